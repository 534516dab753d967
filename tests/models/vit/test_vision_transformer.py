"""The Vision Transformer itself: sizes, roles, maps, training, and what it refuses."""

from typing import Any

import pytest
import torch
from torch import Tensor

from visattn.blocks.transformer.attention import TokenAttention
from visattn.blocks.transformer.drop import DropPath
from visattn.blocks.transformer.layer import EncoderLayer
from visattn.models.serialization.config import describe, restore
from visattn.models.vit.vision_transformer import VisionTransformer
from visattn.recording.recorder import record

SMALL: dict[str, Any] = {"size": (24, 40), "patch": 8, "width": 24, "depth": 2, "heads": 3}
CLASSES = ("ant", "bee", "cat", "dog", "elk")
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "distilled with registers": {"distilled": True, "registers": 3},
    "sine, mean": {"positions": "sine", "pool": "mean"},
    "rotary, attention": {"positions": "rotary", "pool": "attention", "registers": 1},
    "relative, sequence": {"positions": "relative", "pool": "sequence"},
    "shifted windows, relative": {
        "attend": ("window", "shifted"), "extent": (2, 3), "positions": "relative"
    },
    "neighborhood then linear": {"attend": ("neighborhood", "linear"), "extent": 3},
    "small data": {"stem": "shifted", "locality": True, "layer_scale": 0.1},
    "convolutional, gated": {"stem": "conv", "feed_forward": "swiglu", "qk_norm": True},
    "compact": {
        "stem": "overlapping", "stem_options": {"layers": 2, "kernel": 3}, "pool": "sequence",
        "positions": "none", "qkv_bias": False,
    },
}  # fmt: skip


def made(**options: Any) -> VisionTransformer:
    torch.manual_seed(5)
    model = VisionTransformer(CLASSES, **{**SMALL, **options})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return model.eval()


def noise(*shape: int) -> Tensor:
    random = torch.Generator().manual_seed(3)
    return torch.randint(256, shape, dtype=torch.uint8, generator=random)


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_takes_other_sizes_learns_and_is_built_again(name: str) -> None:
    model, images = made(**VARIANTS[name]), noise(2, 3, 24, 40)
    model.train()(images).square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    scores = model.eval()(images)
    assert scores.shape == (2, 5)
    assert model(noise(1, 3, 40, 16)).isfinite().all()
    again = restore(describe(model), model.state_dict(), source="memory")
    assert torch.equal(again(images), scores)


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_shows_its_maps(name: str) -> None:
    model, images = made(**VARIANTS[name]), noise(2, 3, 40, 24)
    plain = model(images)
    with record(model) as seen:
        assert torch.equal(model(images), plain)
    grid = (10, 6) if name == "compact" else (5, 3)
    sites = [f"blocks.{number}.attn.tap" for number in range(2)]
    sites += ["attn_pool.tap"] if model.pool in ("attention", "sequence") else []
    assert [one.site for one in seen.maps] == sites
    count = grid[0] * grid[1] + len(model.roles)
    for one, rows in zip(seen.maps, seen.weights, strict=True):
        assert one.values.shape[-2:] == grid
        torch.testing.assert_close(rows.sum(-1), torch.ones(rows.shape[:-1]))
        if "attn_pool" not in one.site:
            assert rows.shape == (2, 3, count, count)
            assert one.made["before"] == model.roles
            assert one.made["attention"] in str(model.attend)
        assert one.made["resample"] == "timm"


def test_roles_stand_in_their_order_and_the_grid_is_never_a_square_root() -> None:
    options: dict[str, Any] = {**SMALL, "size": (224, 224), "patch": 14, "registers": 4}
    with torch.device("meta"):
        model = VisionTransformer(CLASSES, **options)
        tokens, layout = model.encoded(torch.empty(1, 3, 168, 280))
    assert (tokens.shape[1], layout.grid, layout.tokens) == (245, (12, 20), 245)
    assert layout.roles == ("class", *("register",) * 4)
    assert made(distilled=True, registers=1).roles == ("class", "distillation", "register")
    assert made(pool="mean", registers=2).roles == ("register", "register")


def test_a_mean_has_no_class_row() -> None:
    model = made(pool="mean", registers=2)
    no_class = "no class token here, .* are register, register: ask for queries='patches'"
    with pytest.raises(ValueError, match=no_class), record(model, queries="class"):
        model(noise(1, 3, 24, 40))


@pytest.mark.parametrize("pool", ["mean", "attention", "sequence"])
def test_registers_are_dropped_at_the_output(pool: str) -> None:
    model = made(pool=pool, registers=2)
    tokens, layout = model.encoded(model.normalized(noise(1, 3, 24, 40)))
    tokens.retain_grad()
    model.pooled(tokens, layout).square().sum().backward()
    assert tokens.grad is not None
    assert not tokens.grad[:, :2].any()
    assert tokens.grad[:, 2:].any(-1).all()


def test_the_last_layer_of_a_class_model_learns_from_the_class_row_alone() -> None:
    model = made(distilled=True, registers=1)
    tokens, layout = model.encoded(model.normalized(noise(1, 3, 24, 40)))
    tokens.retain_grad()
    model.pooled(tokens, layout).square().sum().backward()
    assert tokens.grad is not None
    assert tokens.grad[:, :2].any(-1).all()
    assert not tokens.grad[:, 2:].any()


def test_patches_may_be_shuffled_where_there_are_no_positions() -> None:
    images = noise(2, 3, 24, 40).float()
    patches = images.unflatten(3, (5, 8)).unflatten(2, (3, 8)).permute(0, 2, 4, 1, 3, 5)
    order = torch.randperm(15, generator=torch.Generator().manual_seed(1))
    shuffled = patches.flatten(1, 2)[:, order].unflatten(1, (3, 5)).permute(0, 3, 1, 4, 2, 5)
    shuffled = shuffled.flatten(4, 5).flatten(2, 3) / 100
    for positions in ("none", "learned", "sine", "rotary", "relative"):
        model = made(positions=positions)
        one, other = model.classify(images / 100), model.classify(shuffled)
        same = torch.allclose(one, other, atol=1e-5, rtol=1e-4)
        assert same == (positions == "none")


def test_class_rows_of_a_base_model_are_small_and_cheap() -> None:
    with torch.device("meta"), torch.no_grad():
        model = VisionTransformer(CLASSES, patch=16)
        with record(model, queries="class") as seen:
            model.classify(torch.empty(1, 3, 224, 224))
    assert len(seen.maps) == 12
    assert all(one.values.shape == (1, 12, 1, 14, 14) for one in seen.maps)
    kept = {rows.untyped_storage().nbytes() for rows in seen.weights}
    assert kept == {12 * 197 * 4}  # 111 KiB in twelve layers


def test_all_that_is_asked_for_is_padded_and_said() -> None:
    model = made(pad=True)
    images = noise(1, 3, 17, 30)
    with record(model) as seen:
        scores = model(images)
    assert seen.maps[0].made["padded"] == (7, 2)
    assert seen.maps[0].values.shape[-2:] == (3, 4)
    filled = torch.nn.functional.pad(model.normalized(images), (0, 2, 0, 7))
    torch.testing.assert_close(made().classify(filled), scores)


def test_paths_are_dropped_more_often_from_layer_to_layer() -> None:
    model = VisionTransformer(CLASSES, **{**SMALL, "depth": 5}, drop_path=0.2)
    rates = [module.rate for module in model.modules() if isinstance(module, DropPath)]
    assert rates == pytest.approx([0, 0.05, 0.1, 0.15, 0.2])


def test_patches_are_left_out_while_it_learns_and_not_later() -> None:
    model, images = made(patch_drop=0.4, positions="rotary"), noise(2, 3, 24, 40)
    model.train()
    tokens, layout = model.encoded(model.normalized(images))
    assert tokens.shape[1] == 1 + 9
    assert layout.kept is not None
    with record(model) as seen:
        model(images)
    assert seen.maps[0].values.isfinite().sum((1, 2, 3, 4)).tolist() == [3 * 10 * 9] * 2
    assert torch.equal(model.eval()(images), made(positions="rotary")(images))


def test_layers_that_are_computed_again_learn_the_same() -> None:
    images, found = noise(2, 3, 24, 40), []
    for checkpointing in (False, True):
        model = made(checkpointing=checkpointing, drop_path=0.5).train()
        torch.manual_seed(1)
        scores = model(images)
        scores.square().sum().backward()
        found.append((scores, [parameter.grad for parameter in model.parameters()]))
        with record(model) as seen:
            model(images).sum().backward()
        assert len(seen.maps) == 2
    assert torch.equal(found[0][0], found[1][0])
    for one, other in zip(found[0][1], found[1][1], strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("name", ["plain", "shifted windows, relative", "rotary, attention"])
def test_half_precision_and_channels_last_change_little(name: str) -> None:
    model, images = made(**VARIANTS[name]), noise(2, 3, 24, 40)
    scores = model(images)
    last = model(images.contiguous(memory_format=torch.channels_last))
    torch.testing.assert_close(last, scores)
    with torch.autocast("cpu", torch.bfloat16), record(model, queries=[0]) as seen:
        half = model(images)
    assert (half.float() - scores).abs().max() < 0.05 * scores.abs().max()
    rows = seen.weights[0].float().sum(-1)
    torch.testing.assert_close(rows, torch.ones_like(rows), atol=0.02, rtol=0)


def test_attention_is_mixed_layer_by_layer() -> None:
    model = made(depth=5, attend=("window", "shifted"), extent=2)
    kinds = [layer.attn.kind for layer in model.blocks if isinstance(layer, EncoderLayer)]
    assert kinds == ["window", "shifted", "window", "shifted", "window"]
    assert sum(isinstance(module, TokenAttention) for module in model.modules()) == 5


def test_gray_images_may_come_in_colors() -> None:
    model = made(mean=(0.5,), std=(0.25,))
    assert model(noise(2, 3, 24, 40)).shape == model(noise(2, 1, 24, 40)).shape == (2, 5)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"size": (25, 40)}, "patches of 8 x 8 do not fill images of 25 x 40; say pad=True"),
        ({"heads": 5}, "heads must divide the width 24, got 5"),
        ({"attend": ()}, "attend needs from 1 to 2 kinds, no more than there are layers, got 0"),
        ({"attend": "banded"}, "attend must be one of full, window, .*, got 'banded'"),
        ({"pool": "mean", "distilled": True}, "it needs pool='class', not 'mean'"),
        ({"class_token": False}, "pool='class' reads the class token"),
        ({"registers": 9}, "there can be from 0 to 8 registers, got 9"),
        ({"patch_drop": 0.5, "attend": "window"}, "attend='window' needs it whole"),
        ({"patch_drop": 0.5, "positions": "relative"}, "positions='relative' needs it whole"),
        ({"positions": "relative", "attend": "linear"}, "linear attention has no softmax"),
        ({"stem_options": {"kernel": 3}}, "stem 'patch' does not take these options"),
        ({"width": 18, "positions": "sine"}, "a width that 4 divides, got 18"),
        ({"patch": 0}, "patch must be a height and a width of at least 1, got 0"),
    ],
)
def test_what_does_not_fit_is_said(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        made(**options)(noise(1, 3, 24, 40))


def test_images_that_do_not_fit_are_refused() -> None:
    for shape, said in (
        ((1, 3, 24, 41), "do not fill images of 24 x 41; say pad=True to have these filled up"),
        ((1, 4, 24, 40), r"images must be \[batch, 3, 24, 40\], got \[1, 4, 24, 40\]"),
    ):
        with pytest.raises(ValueError, match=said):
            made()(noise(*shape))


@pytest.mark.compile
@pytest.mark.parametrize(
    "name",
    ["distilled with registers", "shifted windows, relative", "neighborhood then linear",
     "small data"],
)  # fmt: skip
def test_it_compiles_whole(name: str) -> None:
    model, images = made(**VARIANTS[name]), noise(2, 3, 24, 40)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(images), model(images))


@pytest.mark.compile
@pytest.mark.parametrize("name", ["distilled with registers", "rotary, attention", "small data"])
def test_it_exports_for_any_size(name: str) -> None:
    model = made(**VARIANTS[name])
    example = model.normalized(noise(2, 3, 24, 40))
    dim = torch.export.Dim
    rows, columns = dim("rows", min=2, max=9), dim("columns", min=2, max=9)
    shapes = {0: dim("batch", min=1, max=64), 2: 8 * rows, 3: 8 * columns}
    exported = torch.export.export(Scores(model), (example,), dynamic_shapes=(shapes,)).module()
    with torch.no_grad():
        for size in ((24, 40), (16, 56), (64, 48)):
            images = model.normalized(noise(3, 3, *size))
            torch.testing.assert_close(exported(images), model.classify(images))


class Scores(torch.nn.Module):
    """The scores of normalized images."""

    def __init__(self, model: VisionTransformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        return self.model.classify(images)
