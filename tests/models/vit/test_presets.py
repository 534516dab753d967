"""Parameter counts and FLOPs of presets, exact, on the meta device."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from visattn.blocks.transformer.pooling import SequencePool
from visattn.blocks.transformer.stems import ShiftedPatchEmbedding
from visattn.models.vit.vision_transformer import VisionTransformer, create_vit
from visattn.recording.recorder import record

IMAGENET = tuple(map(str, range(1000)))
_518: dict[str, Any] = {"patch_size": 14, "img_size": (518, 518), "layer_scale": 1e-5}
_REGISTERS: dict[str, Any] = {**_518, "num_registers": 4, "pos_embed_prefix": False}

SIZES: list[tuple[str, dict[str, Any], int, int | None]] = [
    ("tiny", {}, 5_717_416, 1_253_683_200),
    ("small", {}, 22_050_664, 4_598_882_304),
    ("base", {}, 86_567_656, 17_563_828_224),
    ("large", {}, 304_326_632, 61_554_712_576),
    ("base", {"patch_size": 32}, 88_224_232, 4_409_186_304),
    ("tiny", {"img_size": (384, 384)}, 5_790_376, 4_682_219_520),
    ("small", {"img_size": (384, 384)}, 22_196_584, 15_490_351_104),
    ("base", {"img_size": (384, 384)}, 86_859_496, 55_484_350_464),
    ("large", {"img_size": (384, 384)}, 304_715_752, 191_066_300_416),
    ("tiny", {"distilled": True}, 5_910_800, 1_261_003_776),
    ("small", {"distilled": True}, 22_436_432, 4_624_140_288),
    ("base", {"distilled": True}, 87_338_192, 17_656_811_520),
    ("huge", {}, 632_045_800, None),
    ("small", _518, 22_056_192 + 385_000, None),
    ("small", _REGISTERS, 22_057_344 + 385_000, None),
    ("base", _REGISTERS, 86_582_016 + 769_000, None),
]
CIFAR = [
    ("cifar_192_12", 5_362_762, 365_107_584),
    ("cifar_256_7", 5_560_842, 373_757_952),
    ("cifar_384_7", 12_470_026, 829_006_848),
    ("cifar_384_12", 21_342_346, 1_420_309_248),
    ("cifar_512_6", 18_979_338, 1_254_370_304),
    ("cifar_192_9", 2_697_610, 187_716_864),
    ("sl_vit", 2_735_062, 190_076_160),
    ("vit_lite_7_4", 3_716_874, None),
    ("vit_lite_6_4", 3_190_538, None),
    ("cct_7_3x1", 3_760_139, None),
    ("cct_6_3x1", 3_168_267, None),
    ("cct_2_3x2", 283_723, None),
]
# In units of 10⁹, as published: without products of queries with keys and of weights with values.
PUBLISHED = [
    ("vit_lite_7_4", 0.239),
    ("vit_lite_6_4", 0.205),
    ("cct_7_3x1", 0.947),
    ("cct_6_3x1", 0.813),
    ("cct_2_3x2", 0.033),
]


def parameters(model: VisionTransformer) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def multiplications(model: VisionTransformer) -> int:
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        model.eval().classify(torch.empty(1, len(model.mean), *model.img_size, device="meta"))
    return counter.get_total_flops() // 2


@pytest.mark.parametrize(("name", "options", "weights", "macs"), SIZES)
def test_imagenet_preset_parameter_counts(
    name: str, options: dict[str, Any], weights: int, macs: int | None
) -> None:
    with torch.device("meta"):
        model = create_vit(name, IMAGENET, **options)
    assert parameters(model) == weights
    if macs is not None:
        assert multiplications(model) == macs


@pytest.mark.parametrize(("name", "weights", "macs"), CIFAR)
def test_small_image_preset_parameter_counts(name: str, weights: int, macs: int | None) -> None:
    with torch.device("meta"):
        model = create_vit(name, IMAGENET[:10])
    assert parameters(model) == weights
    assert macs is None or multiplications(model) == macs


@pytest.mark.parametrize(("name", "published"), PUBLISHED)
def test_compact_transformer_parameter_counts_match_the_paper(name: str, published: float) -> None:
    with torch.device("meta"):
        model = create_vit(name, IMAGENET[:10])
    tokens = model.grid_size[0] * model.grid_size[1] + len(model.prefix_roles)
    depth: Any = model.depth
    linear = multiplications(model) - 2 * depth * tokens**2 * model.embed_dim
    assert round(linear / 1e9, 3) == published


def test_compact_convolutional_transformers_match_the_authors_code() -> None:
    with torch.device("meta"):
        seven, two = create_vit("cct_7_3x1", IMAGENET[:10]), create_vit("cct_2_3x2", IMAGENET[:10])
    assert (seven.grid_size, two.grid_size) == ((16, 16), (8, 8))
    assert seven.prefix_roles == two.prefix_roles == ()
    assert (
        parameters(seven) - parameters(create_vit("cct_7_3x1", IMAGENET[:10], depth=6)) == 526_336
    )
    assert isinstance(two.attn_pool, SequencePool)
    convolutions = [m.kernel_size for m in two.modules() if isinstance(m, nn.Conv2d)]
    assert convolutions == [(3, 3), (3, 3)]


def test_sl_vit_patch_shifts_and_diagonal_mask() -> None:
    model = create_vit("sl_vit", IMAGENET[:10], depth=1).eval()
    images = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
    with record(model) as recording:
        model(images)
    assert not recording.weights[0].diagonal(dim1=-2, dim2=-1).any()
    assert isinstance(model.patch_embed, ShiftedPatchEmbedding)
    assert model.patch_embed.proj.in_features == 5 * 3 * 4 * 4
    temperature = model.get_parameter("blocks.0.attn.temperature")
    assert temperature.flatten().tolist() == [0.25] * 12  # heads are 16 wide


@settings(max_examples=8, deadline=None)
@given(
    heads=st.integers(1, 3),
    depth=st.integers(1, 3),
    patch=st.integers(1, 5),
    grid=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    classes=st.integers(2, 7),
    ratio=st.sampled_from([1, 2, 4]),
    distilled=st.booleans(),
    bias=st.booleans(),
    scaled=st.booleans(),
)
def test_parameter_count_formulas_hold_for_all_sizes(
    heads: int,
    depth: int,
    patch: int,
    grid: tuple[int, int],
    classes: int,
    ratio: int,
    distilled: bool,
    bias: bool,
    scaled: bool,
) -> None:
    width = 4 * heads
    with torch.device("meta"):
        model = VisionTransformer(
            IMAGENET[:classes],
            img_size=(grid[0] * patch, grid[1] * patch),
            patch_size=patch,
            embed_dim=width,
            depth=depth,
            num_heads=heads,
            mlp_ratio=ratio,
            distilled=distilled,
            qkv_bias=bias,
            layer_scale=1e-5 if scaled else None,
        )
    before = 1 + distilled
    tokens = grid[0] * grid[1] + before
    layer = (4 + 2 * ratio) * width**2 + (9 + ratio) * width - 3 * width * (not bias)
    weights = width * (3 * patch**2 + 1) + before * width + tokens * width + 2 * width
    weights += depth * (layer + 2 * width * scaled) + before * classes * (width + 1)
    assert parameters(model) == weights
    macs = (tokens - before) * 3 * patch**2 * width + before * width * classes
    macs += depth * ((4 + 2 * ratio) * tokens * width**2 + 2 * tokens**2 * width)
    assert multiplications(model) == macs


def test_misspelled_preset_gets_suggestions() -> None:
    with pytest.raises(ValueError, match=r"unknown preset 'smal'; did you mean small"):
        create_vit("smal", IMAGENET)
