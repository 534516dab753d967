"""AttnLRP against relevance that is propagated layer by layer, without a gradient."""

from typing import Any

import numpy as np
import pytest
import timm
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import visattn as va
from visattn.attribution import METHODS, analyze_model
from visattn.attribution.attn_lrp import attnlrp
from visattn.attribution.targets import resolve_target
from visattn.models import AttentionResNet, SwinTransformer, VisionTransformer
from visattn.recording.model_info import ExplainedModel, ModelInfo

SIDE, PATCH, DIM, HEADS, CLASSES = 6, 2, 8, 2, 3
TOKENS = (SIDE // PATCH) ** 2


class TinyTransformer(nn.Module):
    """One block, mean pooling and a linear head; attention is computed in one of three ways."""

    def __init__(self, attention: str, *, bias: bool = True, activation: Any = F.gelu) -> None:
        super().__init__()
        self.attention, self.activation = attention, activation
        self.embed = nn.Conv2d(1, DIM, PATCH, PATCH, bias=bias)
        self.position = nn.Parameter(torch.randn(TOKENS, DIM) * bias)
        self.norm1, self.norm2 = nn.LayerNorm(DIM, bias=bias), nn.LayerNorm(DIM, bias=bias)
        self.mixer = nn.MultiheadAttention(DIM, HEADS, bias=bias, batch_first=True)
        self.up, self.down = nn.Linear(DIM, 13, bias=bias), nn.Linear(13, DIM, bias=bias)
        self.head = nn.Linear(DIM, CLASSES, bias=bias)
        for parameter in self.parameters():
            if parameter.ndim == 1 and bias:
                nn.init.normal_(parameter, 1.0 if parameter is self.norm1.weight else 0.3, 0.4)

    def attend(self, x: Tensor) -> Tensor:
        if self.attention == "multihead":
            return self.mixer(x, x, x, need_weights=False)[0]
        projected = F.linear(x, self.mixer.in_proj_weight, self.mixer.in_proj_bias)
        q, k, v = projected.unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        if self.attention == "fused":
            mixed = F.scaled_dot_product_attention(q, k, v)
        else:
            mixed = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v
        return self.mixer.out_proj(mixed.transpose(1, 2).flatten(2))

    def forward(self, images: Tensor) -> Tensor:
        x = self.embed(images).flatten(2).mT + self.position
        x = x + self.attend(self.norm1(x))
        x = x + self.down(self.activation(self.up(self.norm2(x))))
        return self.head(x.mean(1))


def explained_tiny(model: nn.Module) -> ExplainedModel:
    info = ModelInfo("tiny", "other", (SIDE, SIDE), (0.0,), (1.0,), "mean")
    return ExplainedModel(model, info, model)


def linear_rule(x: np.ndarray, weight: np.ndarray, bias: Any, relevance: np.ndarray) -> Any:
    """Return the relevance of inputs and of the bias: shares of what each adds to an output."""
    y = x @ weight.T + bias
    of_inputs = np.zeros_like(x)
    for row in range(len(x)):
        for i in range(x.shape[1]):
            for j in range(len(weight)):
                of_inputs[row, i] += x[row, i] * weight[j, i] / y[row, j] * relevance[row, j]
    return of_inputs, float((bias / y * relevance).sum())


def norm_rule(x: np.ndarray, norm: nn.LayerNorm, relevance: np.ndarray) -> Any:
    """Return the relevance of inputs of a normalization whose divisor is a constant."""
    weight = norm.weight.detach().numpy()
    bias = 0.0 if norm.bias is None else norm.bias.detach().numpy()
    deviation = np.sqrt(x.var(1) + norm.eps)
    matrix = np.eye(x.shape[1]) - 1 / x.shape[1]
    rows = [
        linear_rule(x[[n]], weight[:, None] * matrix / deviation[n], bias, relevance[[n]])
        for n in range(len(x))
    ]
    return np.concatenate([of for of, _ in rows]), sum(lost for _, lost in rows)


def product_rule(a: np.ndarray, b: np.ndarray, relevance: np.ndarray) -> Any:
    """Return the relevance of both factors of a matrix product: halves of each term."""
    y, of_a, of_b = a @ b, np.zeros_like(a), np.zeros_like(b)
    for i in range(a.shape[0]):
        for k in range(b.shape[1]):
            for j in range(a.shape[1]):
                share = a[i, j] * b[j, k] / y[i, k] * relevance[i, k] / 2
                of_a[i, j] += share
                of_b[j, k] += share
    return of_a, of_b


def arrays(layer: Any) -> tuple[np.ndarray, Any]:
    weight = layer.weight.detach().numpy()
    return weight, 0.0 if layer.bias is None else layer.bias.detach().numpy()


def oracle(model: TinyTransformer, image: Tensor, target: int) -> tuple[np.ndarray, float]:
    """Return the relevance of each pixel, and what biases, positions and softmax keep."""
    lost = 0.0
    patches = F.unfold(image[None], PATCH, stride=PATCH)[0].T.numpy()
    weight, bias = arrays(model.embed)
    weight = weight.reshape(DIM, -1)
    embedded = patches @ weight.T + bias
    first = embedded + model.position.detach().numpy()
    norm1 = model.norm1(torch.from_numpy(first)).detach().numpy()
    in_weight = model.mixer.in_proj_weight.detach().numpy()
    in_bias = model.mixer.in_proj_bias
    in_bias = np.zeros(3 * DIM) if in_bias is None else in_bias.detach().numpy()
    qkv = norm1 @ in_weight.T + in_bias
    width = DIM // HEADS
    parts = [[qkv[:, p * DIM + h * width :][:, :width] for h in range(HEADS)] for p in range(3)]
    scores = [q @ k.T * width**-0.5 for q, k in zip(parts[0], parts[1], strict=True)]
    weights = [torch.from_numpy(s).softmax(-1).numpy() for s in scores]
    mixed = np.concatenate([a @ v for a, v in zip(weights, parts[2], strict=True)], 1)
    out_weight, out_bias = arrays(model.mixer.out_proj)
    attended = mixed @ out_weight.T + out_bias
    second = first + attended
    norm2 = model.norm2(torch.from_numpy(second)).detach().numpy()
    up_weight, up_bias = arrays(model.up)
    hidden = norm2 @ up_weight.T + up_bias
    active = model.activation(torch.from_numpy(hidden)).numpy()
    down_weight, down_bias = arrays(model.down)
    changed = active @ down_weight.T + down_bias
    last = second + changed
    head_weight, head_bias = arrays(model.head)
    pooled = last.mean(0, keepdims=True)
    score = pooled @ head_weight.T + head_bias

    relevance = np.zeros_like(score)
    relevance[0, target] = score[0, target]
    relevance, bias_part = linear_rule(pooled, head_weight, head_bias, relevance)
    lost += bias_part
    of_last = last / len(last) / pooled * relevance
    relevance, bias_part = linear_rule(active, down_weight, down_bias, of_last * changed / last)
    lost += bias_part
    relevance, bias_part = linear_rule(norm2, up_weight, up_bias, relevance)
    lost += bias_part
    relevance, bias_part = norm_rule(second, model.norm2, relevance)
    lost += bias_part
    of_second = of_last * second / last + relevance
    relevance, bias_part = linear_rule(mixed, out_weight, out_bias, of_second * attended / second)
    lost += bias_part
    of_qkv = np.zeros_like(qkv)
    for h in range(HEADS):
        columns = slice(h * width, (h + 1) * width)
        of_weights, of_values = product_rule(weights[h], parts[2][h], relevance[:, columns])
        of_scores = np.zeros_like(of_weights)
        for row in range(TOKENS):  # proposition 3.1
            for m in range(TOKENS):
                kept = weights[h][row, m] * of_weights[row].sum()
                of_scores[row, m] = scores[h][row, m] * (of_weights[row, m] - kept)
        lost += float(of_weights.sum() - of_scores.sum())
        of_queries, of_keys = product_rule(parts[0][h] * width**-0.5, parts[1][h].T, of_scores)
        for part, of_part in enumerate((of_queries, of_keys.T, of_values)):
            of_qkv[:, part * DIM + h * width :][:, :width] = of_part
    relevance, bias_part = linear_rule(norm1, in_weight, in_bias, of_qkv)
    lost += bias_part
    relevance, bias_part = norm_rule(first, model.norm1, relevance)
    lost += bias_part
    of_first = of_second * first / second + relevance
    lost += float((of_first * (first - embedded) / first).sum())
    relevance, bias_part = linear_rule(patches, weight, bias, of_first * embedded / first)
    lost += bias_part
    image_like = torch.from_numpy(relevance.T)[None]
    return F.fold(image_like, (SIDE, SIDE), PATCH, stride=PATCH)[0, 0].numpy(), lost


@pytest.mark.parametrize("attention", ["fused", "explicit", "multihead"])
def test_relevance_equals_that_of_each_layer_by_hand(attention: str) -> None:
    torch.manual_seed(3)
    model = TinyTransformer(attention).double().eval()
    images = torch.randn(2, 1, SIDE, SIDE, dtype=torch.float64)
    result = attnlrp(explained_tiny(model), images, lambda scores: scores[:, 1])
    for image, relevance in zip(images, result, strict=True):
        expected, lost = oracle(model, image, 1)
        np.testing.assert_allclose(relevance.numpy(), expected, rtol=1e-6, atol=1e-9)
        score = model(image[None])[0, 1].item()
        assert float(relevance.sum()) + lost == pytest.approx(score, abs=1e-8)


def test_without_biases_only_the_softmax_keeps_relevance() -> None:
    torch.manual_seed(5)
    model = TinyTransformer("fused", bias=False, activation=F.relu).double().eval()
    model.mixer.in_proj_weight.data[: 2 * DIM] = 0  # attention is uniform, its scores are 0
    images = torch.randn(2, 1, SIDE, SIDE, dtype=torch.float64)
    result = attnlrp(explained_tiny(model), images, lambda scores: scores[:, 0])
    mlp_only = TinyTransformer("fused", bias=False, activation=F.relu).double().eval()
    mlp_only.load_state_dict(model.state_dict())
    mlp_only.mixer.out_proj.weight.data.zero_()
    whole = attnlrp(explained_tiny(mlp_only), images, lambda scores: scores[:, 0])
    torch.testing.assert_close(whole.sum((1, 2)), mlp_only(images)[:, 0])  # nothing is lost
    assert not torch.allclose(result.sum((1, 2)), model(images)[:, 0])  # half goes to the softmax


def test_a_hidden_unit_at_zero_changes_nothing() -> None:
    torch.manual_seed(3)
    model = TinyTransformer("fused").eval()
    images = torch.randn(2, 1, SIDE, SIDE)
    with torch.no_grad():
        model.up.weight[0], model.up.bias[0] = 0, 0
        relevance = attnlrp(explained_tiny(model), images, lambda scores: scores[:, 1])
        model.up.weight, model.up.bias = (
            nn.Parameter(weight[1:]) for weight in (model.up.weight, model.up.bias)
        )
        model.down.weight = nn.Parameter(model.down.weight[:, 1:])
    expected = attnlrp(explained_tiny(model), images, lambda scores: scores[:, 1])
    torch.testing.assert_close(relevance, expected)


def test_only_the_marked_patch_of_a_vision_transformer_is_relevant() -> None:
    torch.manual_seed(0)
    colors: dict[str, Any] = {"mean": (0.0,) * 3, "std": (1.0,) * 3}
    model = VisionTransformer(
        ("ant", "bee"), img_size=(32, 48), patch_size=8, embed_dim=12, depth=2, num_heads=3,
        **colors,
    )  # fmt: skip
    photo = np.zeros((64, 96, 3), np.uint8)  # black has no relevance: it is 0 when normalized
    photo[20:28, 68:76] = (250, 120, 190)  # inside the patch of row 1 and column 4
    [heatmap] = va.explain(model, photo, "attnlrp", "bee", resize_mode="squash")
    on_photo = heatmap.resize_to_image().abs()
    assert float(on_photo[20:28, 68:76].sum()) > 0
    outside = on_photo.clone()
    outside[16:32, 64:80] = 0
    assert float(outside.max()) < 1e-3 * float(on_photo.max())


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "vit_base_patch16_siglip_gap_224"])
def test_transformers_of_timm_are_followed_and_left_as_they_were(name: str) -> None:
    torch.manual_seed(0)
    model = timm.create_model(
        name, depth=2, embed_dim=24, num_heads=2, img_size=64, num_classes=5
    ).train()
    explained = analyze_model(model)
    assert METHODS["attnlrp"].supports(explained) == ""
    images = torch.randn(2, 3, 64, 64)
    both = attnlrp(explained, images, resolve_target([1, 2], explained))
    alone = attnlrp(explained, images[1:], resolve_target(2, explained))
    torch.testing.assert_close(both[1:], alone)
    assert all(module.training for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


class Gated(TinyTransformer):
    def forward(self, images: Tensor) -> Tensor:
        return self.head(torch.tanh(self.embed(images).flatten(2).mT).mean(1))


class GroupNormalized(TinyTransformer):
    def forward(self, images: Tensor) -> Tensor:
        return super().forward(F.group_norm(images, 1))


class Normalized(TinyTransformer):
    def forward(self, images: Tensor) -> Tensor:
        return super().forward(F.normalize(images, dim=-1))


class Quotient(TinyTransformer):
    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images / images.square().mean())


class InPlace(TinyTransformer):
    def forward(self, images: Tensor) -> Tensor:
        x = self.embed(images)
        x.mul_(self.embed(images))
        return self.head(x.flatten(2).mean(2))


@pytest.mark.parametrize(
    ("kind", "name"),
    [(Gated, "tanh"), (GroupNormalized, "group_norm"), (Normalized, "normalize"),
     (Quotient, "product"), (InPlace, "product")],
)  # fmt: skip
def test_an_operation_without_a_rule_is_refused_by_name(kind: type[nn.Module], name: str) -> None:
    model = kind("fused").eval()
    with pytest.raises(ValueError, match=f"it has no rule for .*{name}.*; use relevance"):
        attnlrp(explained_tiny(model), torch.randn(1, 1, SIDE, SIDE), lambda scores: scores[:, 0])


def test_models_that_are_no_chain_of_blocks_are_refused_with_what_to_do() -> None:
    photo = np.random.default_rng(0).integers(0, 256, (40, 48, 3), np.uint8)
    swin = SwinTransformer(
        ("ant", "bee"), img_size=(40, 48), patch_size=4, embed_dim=6, depths=(1, 2),
        num_heads=(1, 2), window_size=(5, 3),
    )  # fmt: skip
    message = "attnlrp does not fit SwinTransformer: its tokens are merged .*; use gradcam or int"
    with pytest.raises(ValueError, match=message):
        va.explain(swin, photo, "attnlrp")
    cnn = AttentionResNet(("ant", "bee"), depth=8, stem_width=4)
    with pytest.raises(
        ValueError, match="attnlrp does not fit .*it has no attention among tokens; use g"
    ):
        va.explain(cnn, photo, "attnlrp")
    hybrid = VisionTransformer(
        ("ant", "bee"), img_size=(40, 48), patch_size=8, embed_dim=12, depth=1, num_heads=3
    )
    hybrid.head = nn.Sequential(nn.Softplus(), hybrid.head)  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ValueError, match="AttnLRP has no rule for softplus; use relevance"):
        va.explain(hybrid, photo, "attnlrp")
    assert "attnlrp" not in va.methods_for(swin)
