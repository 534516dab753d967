"""Tokens that the scores read are right for each kind of head, by changing single tokens."""

from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
import torchvision
from torch import Tensor, nn

from visattn.attribution.layer_weights import read_shares
from visattn.recording.model_info import ModelInfo
from visattn.recording.subject import analyze_model

GRID, PATCHES, WIDTH = (3, 5), 15, 24
FACTORS = torch.linspace(1, 4, PATCHES)
PREFIX = {"class": 1, "distilled": 2, "registers": 3, "none": 0}
OPTIONS = {
    "registers": {"reg_tokens": 2},
    "none": {"class_token": False, "global_pool": "avg"},
}


def encoder(kind: str = "class", **options: Any) -> Any:
    name = "deit_tiny_distilled_patch16_224" if kind == "distilled" else "vit_tiny_patch16_224"
    small = {"depth": 2, "embed_dim": WIDTH, "num_heads": 2, "img_size": (48, 80), "num_classes": 0}
    return timm.create_model(name, **{**small, **OPTIONS.get(kind, {}), **options})


class Classifier(nn.Module):
    """A head of one's own on the tokens of an encoder, whose attributes tell something else."""

    def __init__(self, read: Callable[[Any, Tensor], Tensor], kind: str = "class") -> None:
        super().__init__()
        self.image_size, self.global_pool = (48, 80), "token"
        self.backbone, self.read = encoder(kind), read
        self.num_prefix = PREFIX[kind]
        self.head, self.wide = nn.Linear(WIDTH, 3), nn.Linear(2 * WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.read(self, self.backbone.forward_features(x))

    def patches(self, tokens: Tensor) -> Tensor:
        return tokens[:, self.num_prefix :]


def plane(model: Any, tokens: Tensor) -> Tensor:
    return model.patches(tokens).mT.unflatten(-1, GRID)


def weighted_plane(model: Any, tokens: Tensor) -> Tensor:
    """Channels are last, and only behind tanh the pooling is linear."""
    return (FACTORS.view(*GRID, 1) * model.head(tokens.tanh().unflatten(1, GRID))).sum((1, 2))


ONES, ZEROS = torch.ones(PATCHES), torch.zeros(PATCHES)
CENTER = torch.zeros(GRID)
CENTER[1, 1:4] = 1
HEADS: dict[str, tuple[str, Callable[[Any, Tensor], Tensor], list[float], Tensor, str]] = {
    # kind of encoder, head, expected weights of prefix tokens and patches, pooling
    "class": ("class", lambda m, t: m.head(t[:, 0]), [1], ZEROS, "class"),
    "all": ("class", lambda m, t: m.head(t.mean(1)), [1], ONES, "mixture"),
    "patches": ("registers", lambda m, t: m.head(m.patches(t).mean(1)), [0] * 3, ONES, "mean"),
    "maximum": ("class", lambda m, t: m.head(m.patches(t).amax(1)), [0], ONES, "mean"),
    "class and mean": ("registers", lambda m, t: m.wide(torch.cat(
        (t[:, 0], m.patches(t).mean(1)), -1)), [PATCHES, 0, 0], ONES, "mixture"),
    "class plus mean": ("class", lambda m, t: m.head(t[:, 0] + m.patches(t).mean(1)), [PATCHES],
                        ONES, "mixture"),
    "weighted": ("class", lambda m, t: m.head((FACTORS[:, None] * m.patches(t)).sum(1)), [0],
                 FACTORS, "mixture"),
    "weighted plane": ("none", weighted_plane, [], FACTORS, "mixture"),
    "two heads": ("distilled", lambda m, t: m.head(t[:, 0]) + m.wide(t[:, 1].repeat(1, 2)), [1, 1],
                  ZEROS, "distilled"),
    "number": ("class", lambda m, t: m.head(t[:, 0]) * (1 + 0 * float(t.detach().sum())), [1],
               ZEROS, "class"),
    "register": ("registers", lambda m, t: m.head(t[:, 1]), [0, 1, 0], ZEROS, "mixture"),
    "last token": ("class", lambda m, t: m.head(t[:, -1]), [0], torch.eye(PATCHES)[-1], "mixture"),
    "center": ("class", lambda m, t: m.head(plane(m, t)[:, :, 1, 1:4].mean(-1)), [0],
               CENTER.flatten(), "mixture"),
}  # fmt: skip


def shares(info: ModelInfo) -> Tensor:
    layer = info.attention_layers[-1]
    return read_shares(info, layer.prefix_tokens, layer.grid)


@pytest.mark.parametrize("name", HEADS)
def test_rows_are_those_that_the_head_reads(name: str) -> None:
    kind, read, prefix, patches, pooling = HEADS[name]
    torch.manual_seed(0)
    model: Any = Classifier(read, kind).eval()
    if name == "patches":
        nn.init.zeros_(model.head.weight)  # as before training
    info = analyze_model(model).info
    nn.init.normal_(model.head.weight)
    expected = torch.cat((torch.tensor(prefix, dtype=torch.float32), patches))
    torch.testing.assert_close(shares(info), expected / expected.sum(), atol=1e-4, rtol=0)
    assert (info.pooling, info.pooling_assumed, info.unread_layers) == (pooling, "", ())
    if name == "maximum":
        assert "counted equally" in str(info.read_rows)
    model.double()
    tokens = torch.randn(1, len(expected), WIDTH).double()
    changed = tokens.expand(len(expected), -1, -1).clone()
    changed.diagonal().mT.copy_(50 * torch.randn(len(expected), WIDTH))
    differs = (read(model, changed) - read(model, tokens)).abs().amax(1) > 1e-9
    assert torch.equal(differs, shares(info) > 0)


class Transposed(nn.Module):
    """Attention whose weights stand on the right of the values; the last token is read."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, WIDTH, 16, 16), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.stem(x).flatten(2).mT
        weights = (tokens @ tokens.mT).softmax(-1)
        return self.head((tokens.mT @ weights.mT).mT[:, -1])


def test_rows_of_transposed_weights_are_read() -> None:
    torch.manual_seed(0)
    info = analyze_model(Transposed().eval(), (48, 80)).info
    assert shares(info).tolist() == torch.eye(PATCHES)[-1].tolist()


class Detached(Classifier):
    """The encoder runs without gradients, as that of a linear probe often does."""

    def __init__(self, context: Callable[[], Any], read: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__(read)
        self.context = context

    def forward(self, x: Tensor) -> Tensor:
        with self.context():
            tokens = self.backbone.forward_features(x)
        return self.read(self, tokens.clone())


def test_rows_are_measured_without_gradients() -> None:
    torch.manual_seed(0)
    for context, name in ((torch.no_grad, "patches"), (torch.inference_mode, "last token")):
        _, read, _, patches, pooling = HEADS[name]
        info = analyze_model(Detached(context, read).eval()).info
        assert (info.pooling, info.pooling_assumed) == (pooling, "")
        assert torch.equal(shares(info)[1:] > 0, patches > 0)
    partly = Classifier(lambda m, t: m.head(t[:, 0]) + m.head(m.patches(t).mean(1).detach()))
    assert str(analyze_model(partly.eval()).info.read_rows) == "class 0.5, patches 0.5"


def test_timm_pools_are_measured() -> None:
    for pool, registers, expected in (
        ("token", 0, "class"), ("avg", 2, "patches"), ("map", 0, "query of the attention pool"),
        ("max", 0, "patches (patches counted equally: no linear pooling)"),
        ("avgmax", 0, "patches (patches counted equally: no linear pooling)"),
    ):  # fmt: skip
        torch.manual_seed(0)
        model = encoder(global_pool=pool, reg_tokens=registers, num_classes=3)
        assert str(analyze_model(model.eval()).info.read_rows) == expected
    untrained = torchvision.models.VisionTransformer(32, 8, 2, 2, 24, 16, num_classes=3).eval()
    assert str(analyze_model(untrained).info.read_rows) == "class"
    model = encoder(global_pool="avg", pool_include_prefix=True, num_classes=3)
    assert shares(analyze_model(model.eval()).info).unique(sorted=False).numel() == 1
    unpooled = analyze_model(encoder(global_pool="", num_classes=3).eval()).info
    assert (unpooled.pooling, unpooled.read_rows) == ("class", None)
    assert unpooled.pooling_assumed.startswith("its output does not show which tokens")
