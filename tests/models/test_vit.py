"""The Vision Transformer: against timm and papers, sizes, recorded maps, efficient attention."""

from typing import Any

import pytest
import timm
import torch
from random_numbers import pixels
from timm.layers.pos_embed_sincos import build_sincos2d_pos_embed
from timm.models.vision_transformer import Block
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import visattn as va
from visattn.functional.positions import sincos_pos_embed
from visattn.models.vit import (
    _STEMS,
    Attention,
    EncoderLayer,
    SequencePool,
    ShiftedPatches,
    VisionTransformer,
)

SMALL: dict[str, Any] = {
    "img_size": (24, 40), "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3,
}  # fmt: skip
CLASSES = ("ant", "bee", "cat", "dog", "elk")
COMPACT: dict[str, Any] = {"stem": "overlapping", "global_pool": "sequence", "qkv_bias": False}
CCT_7: dict[str, Any] = {
    **COMPACT, "img_size": (32, 32), "embed_dim": 256, "depth": 7, "num_heads": 4, "mlp_ratio": 2.0,
}  # fmt: skip
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "sine, mean": {"pos_embed_type": "sine", "global_pool": "mean"},
    "small data": {"stem": "shifted", "lsa": True},
    "convolutional": {"stem": "conv", "pos_embed_type": "sine"},
    "compact": COMPACT,
    "neighborhood": {"attention": "neighborhood"},
    "strided": {"attention": "strided", "global_pool": "mean"},
    "lsh": {"attention": "lsh"},
}


def made(**options: Any) -> VisionTransformer:
    torch.manual_seed(5)
    model = VisionTransformer(CLASSES, **{**SMALL, **options})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return model.eval()


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("pool", ["class", "mean"])
@pytest.mark.parametrize("size", [(24, 40), (40, 16)])
def test_matches_timm_with_its_weights(pool: str, size: tuple[int, int]) -> None:
    ours = made(global_pool=pool)
    theirs = timm.create_model(
        "vit_tiny_patch16_224", img_size=(24, 40), patch_size=8, embed_dim=24, depth=2,
        num_heads=3, num_classes=5, dynamic_img_size=True, class_token=pool == "class",
        global_pool={"class": "token", "mean": "avg"}[pool],
    ).eval()  # fmt: skip
    theirs.load_state_dict(ours.state_dict())
    images = numbers(2, 3, *size)
    torch.testing.assert_close(ours(images), theirs(images), rtol=1e-4, atol=1e-5)


def test_a_layer_is_that_of_timm_and_drops_branches_at_its_rate() -> None:
    x, ours = numbers(2, 6, 12), EncoderLayer(12, 3, 31)
    theirs = Block(12, 3, 31 / 12 + 0.01, qkv_bias=True, norm_layer=nn.LayerNorm)
    theirs.load_state_dict(ours.state_dict())
    torch.testing.assert_close(ours(x, (2, 3)), theirs(x), rtol=1e-4, atol=1e-5)
    dropping: Any = EncoderLayer(12, 3, 31, drop_path=0.25).train()
    dropping.attn, dropping.mlp = _Twos(), nn.Identity()
    torch.manual_seed(3)
    branch = dropping._drop(torch.ones(8000, 2, 3)).flatten(1)
    assert torch.equal(branch.amin(1), branch.amax(1))
    values, counts = branch[:, 0].unique(return_counts=True)
    torch.testing.assert_close(values, torch.tensor([0, 4 / 3]))
    assert abs(int(counts[0]) - 2000) < 4 * (8000 * 0.25 * 0.75) ** 0.5
    rates = [layer.drop_path for layer in made(depth=5, drop_path_rate=0.2).blocks]
    assert rates == pytest.approx([0, 0.05, 0.1, 0.15, 0.2])


class _Twos(nn.Module):
    def forward(self, x: Tensor, _: tuple[int, int]) -> Tensor:
        return 2 + 0 * x


def test_locality_self_attention_is_that_of_its_authors() -> None:
    attend, x = Attention(12, 3, lsa=True), numbers(2, 16, 12)
    assert attend.temperature is not None
    assert torch.equal(attend.temperature, torch.full((3, 1, 1), 0.5))
    nn.init.normal_(attend.temperature)
    queries, keys, values = attend.qkv(x).unflatten(-1, (3, 3, 4)).permute(2, 0, 3, 1, 4)
    scores = (queries @ keys.mT) * attend.temperature
    scores[:, :, range(16), range(16)] = -987654321
    output = (scores.softmax(-1) @ values).transpose(1, 2).flatten(2)
    torch.testing.assert_close(attend(x, (3, 5)), attend.proj(output))


def test_stems() -> None:
    # A patch is a product of its pixels.
    embed, images = _STEMS["patch"](3, 5, (2, 7)), numbers(2, 3, 6, 21)
    cut = images[:, :, 2:4, 14:21].flatten(1)
    expected = nn.functional.linear(cut, embed.proj.weight.flatten(1), embed.proj.bias)
    torch.testing.assert_close(embed(images)[:, :, 1, 2], expected)
    # A shifted patch: norm and product of slices of the padded image, half a patch away.
    embed, images = ShiftedPatches(1, 3, (4, 4)), numbers(1, 1, 12, 12).requires_grad_()
    padded = nn.functional.pad(images, (2, 2, 2, 2))[0, 0]
    copies = [images[0, 0], *(padded[y : y + 12, x : x + 12] for y in (0, 4) for x in (0, 4))]
    pixels = torch.stack([copy[4:8, :4].flatten() for copy in copies]).flatten()
    torch.testing.assert_close(embed(images)[0, :, 1, 0], embed.proj(embed.norm(pixels)))
    (gradient,) = torch.autograd.grad(embed(images)[0, 0, 1, 1], images)
    assert (gradient[0, 0] != 0).nonzero().aminmax(dim=0).max.tolist() == [9, 9]
    assert (gradient[0, 0] != 0).sum() == 64
    assert _STEMS["conv"](3, 8, (8, 8))(numbers(1, 3, 32, 40)).shape == (1, 8, 4, 5)
    for size in ((32, 40), (31, 17)):
        model = made(**COMPACT, img_size=size)
        assert model.patch_embed(numbers(1, 3, *size)).shape[2:] == model.grid_size


def test_sine_positions_are_those_of_timm() -> None:
    theirs = build_sincos2d_pos_embed([3, 5], 12).unflatten(1, (2, 2, 3)).transpose(1, 2)
    torch.testing.assert_close(sincos_pos_embed((3, 5), 12), theirs.flatten(1))


def test_sequence_pooling_is_the_mean_by_its_recorded_map() -> None:
    pool, x = SequencePool(7), numbers(2, 15, 7)
    with va.record(pool, queries="class") as recording:  # it has a single query row
        result = pool(x, (3, 5))
    weights = recording.maps[0].values.flatten(1)
    torch.testing.assert_close(weights, pool.score(x).squeeze(-1).softmax(-1))
    torch.testing.assert_close((weights[..., None] * x).sum(1), result)


@pytest.mark.parametrize(
    ("options", "classes", "weights", "multiplications"),
    [
        ({"embed_dim": 192, "num_heads": 3}, 1000, 5_717_416, 1_253_683_200),
        ({"patch_size": 32}, 1000, 88_224_232, 4_409_186_304),
        (CCT_7, 10, 3_760_139, None),
    ],
)
def test_published_numbers_of_parameters_and_multiplications(
    options: dict[str, Any], classes: int, weights: int, multiplications: int | None
) -> None:
    with torch.device("meta"), torch.no_grad():
        model = VisionTransformer(tuple(map(str, range(classes))), **options).eval()
        with FlopCounterMode(display=False) as counter:
            model.classify(torch.empty(1, 3, *model.img_size))
    assert sum(parameter.numel() for parameter in model.parameters()) == weights
    assert multiplications is None or counter.get_total_flops() == 2 * multiplications


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_is_trained_and_reads_other_sizes(name: str) -> None:
    model, images = made(**VARIANTS[name]), pixels(2, 3, 24, 40)
    model.train()(images).square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    scores = model.eval()(images)
    assert scores.shape == (2, 5)
    assert model(pixels(1, 3, 40, 16)).isfinite().all()


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_records_full_rows_that_reproduce_its_output(name: str) -> None:
    model, images = made(**VARIANTS[name]), pixels(2, 3, 40, 24)
    plain = model(images)
    with va.record(model) as recording:
        assert torch.equal(model(images), plain)
    grid = (20, 12) if name == "compact" else (5, 3)
    sites = [f"blocks.{number}.attn.tap" for number in range(2)]
    sites += ["attn_pool.tap"] if model.global_pool == "sequence" else []
    assert [attention_map.site for attention_map in recording.maps] == sites
    first = int(model.global_pool == "class")
    count = grid[0] * grid[1] + first
    for attention_map, rows in zip(recording.maps, recording.weights, strict=True):
        assert attention_map.values.shape[-2:] == grid
        torch.testing.assert_close(rows.sum(-1), torch.ones(rows.shape[:-1]))
        if "attn_pool" not in attention_map.site:
            assert rows.shape == (2, 3, count, count)
            assert attention_map.info.prefix_tokens == ("class",) * first
    with va.record(model, differentiable=True):  # the model computes with the rows
        torch.testing.assert_close(model(images), plain, rtol=1e-4, atol=1e-5)
    if name in ("neighborhood", "strided"):
        row = recording.maps[0].values[0, 0, first]  # of the first patch
        seen = (row > 0).nonzero().tolist()
        near = [[y, x] for y in range(5) for x in range(3)]
        assert seen == (near if name == "neighborhood" else [p for p in near if 0 in p])


@pytest.mark.parametrize("pool", ["class", "sequence"])
def test_attention_to_mixtures_of_tokens_has_no_map(pool: str) -> None:
    """Linformer's weights are not drawn: neither as attention nor in a rollout beside a pool."""
    model = made(attention="linformer", global_pool=pool)
    photo = pixels(24, 40, 3).numpy()
    reason = "blocks.0.attn.tap.*its keys are mixtures of tokens"
    names = set(va.methods_for(model))
    assert {"gradcam", "input_gradient", "integrated_gradients"} <= names
    assert not names & {"rollout", "relevance", "gradient_rollout"}
    with pytest.raises(ValueError, match=f"{reason}.*gradcam"):
        va.explain(model, photo, "rollout")
    assert va.explain(model, photo, "gradcam")[0].values.max() > 0
    if pool == "class":
        with pytest.raises(ValueError, match=f"{reason}.*gradcam"):
            va.explain(model, photo, "attention")
        with pytest.raises(ValueError, match="mixtures of tokens.*gradcam"), va.record(model):
            model(pixels(1, 3, 24, 40))
    else:
        with va.record(model) as recording:
            model(pixels(1, 3, 24, 40))
        assert [each.site for each in recording.maps] == ["attn_pool.tap"]
        assert recording.unsupported.keys() == {f"blocks.{n}.attn.tap" for n in range(2)}


@pytest.mark.parametrize("name", ["plain", "small data", "neighborhood", "lsh"])
def test_selected_rows_and_heads_are_those_of_the_whole(name: str) -> None:
    model, images = made(**VARIANTS[name]), pixels(2, 3, 24, 40)
    with va.record(model, layers=[0]) as everything:
        model(images)
    rows = everything.weights[0]
    wanted: list[tuple[Any, Any, Tensor]] = [
        ("class", None, rows[:, :, :1]),
        ("patches", [-1], rows[:, 2:, 1:]),
        ([15, 0, -2], [2, 0], rows[:, [2, 0]][:, :, [15, 0, 14]]),
    ]
    for queries, heads, expected in wanted:
        with va.record(model, queries=queries, heads=heads, layers=[0]) as recording:
            model(images)
        torch.testing.assert_close(recording.weights[0], expected)


def test_class_rows_of_a_base_model_use_little_memory() -> None:
    model = VisionTransformer(CLASSES, patch_size=16, depth=2)
    with torch.no_grad(), va.record(model, queries="class") as recording:
        model.classify(torch.zeros(1, 3, 224, 224))
    assert [each.values.shape for each in recording.maps] == [(1, 12, 1, 14, 14)] * 2
    kept = {rows.untyped_storage().nbytes() for rows in recording.weights}
    assert kept == {12 * 197 * 4}  # 9 KiB per layer


@pytest.mark.compile
@pytest.mark.parametrize("name", ["plain", "small data", "strided"])
def test_compiles_as_one_graph_and_exports_for_any_size(name: str) -> None:
    model, images = made(**VARIANTS[name]), pixels(2, 3, 24, 40)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(images), model(images))
    if name == "strided":
        return
    model.forward = model.classify  # of normalized images
    dim = torch.export.Dim
    rows, columns = dim("rows", min=2, max=9), dim("columns", min=2, max=9)
    shapes = {0: dim("batch", min=1, max=64), 2: 8 * rows, 3: 8 * columns}
    example = model.normalize(images)
    exported = torch.export.export(model, (example,), dynamic_shapes=(shapes,)).module()
    with torch.no_grad():
        for size in ((24, 40), (16, 56), (64, 48)):
            images = model.normalize(pixels(3, 3, *size))
            torch.testing.assert_close(exported(images), model.classify(images))
