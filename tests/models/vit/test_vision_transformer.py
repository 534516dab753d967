"""The Vision Transformer: against timm, sizes, recorded maps, training and errors."""

from typing import Any

import pytest
import timm
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from visattn.blocks.transformer.layer import DropPath
from visattn.models.saving.config import model_config, restore_model
from visattn.models.vit.vision_transformer import VisionTransformer
from visattn.recording.recorder import record

SMALL: dict[str, Any] = {
    "img_size": (24, 40),
    "patch_size": 8,
    "embed_dim": 24,
    "depth": 2,
    "num_heads": 3,
}
CLASSES = ("ant", "bee", "cat", "dog", "elk")
COMPACT: dict[str, Any] = {
    "stem": "overlapping", "stem_kwargs": {"num_layers": 2, "kernel_size": 3},
    "global_pool": "sequence", "qkv_bias": False,
}  # fmt: skip
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "sine, mean": {"pos_embed_type": "sine", "global_pool": "mean"},
    "small data": {"stem": "shifted", "lsa": True},
    "convolutional": {"stem": "conv", "pos_embed_type": "sine"},
    "compact": COMPACT,
}


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
    images = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(ours(images), theirs(images), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "weights", "multiplications"),
    [
        ({"embed_dim": 192, "num_heads": 3}, 5_717_416, 1_253_683_200),
        ({"embed_dim": 384, "num_heads": 6}, 22_050_664, 4_598_882_304),
        ({}, 86_567_656, 17_563_828_224),
        ({"patch_size": 32}, 88_224_232, 4_409_186_304),
        ({"embed_dim": 1024, "depth": 24, "num_heads": 16, "img_size": (384, 384)}, 304_715_752,
         191_066_300_416),
    ],
)  # fmt: skip
def test_published_numbers_of_parameters_and_multiplications(
    options: dict[str, Any], weights: int, multiplications: int
) -> None:
    with torch.device("meta"), torch.no_grad():
        model = VisionTransformer(tuple(map(str, range(1000))), **options).eval()
        with FlopCounterMode(display=False) as counter:
            model.classify(torch.empty(1, 3, *model.img_size))
    assert sum(parameter.numel() for parameter in model.parameters()) == weights
    assert counter.get_total_flops() == 2 * multiplications


def test_compact_transformer_has_the_published_number_of_parameters() -> None:
    options: dict[str, Any] = {
        **COMPACT, "stem_kwargs": {"num_layers": 1, "kernel_size": 3}, "img_size": (32, 32),
        "embed_dim": 256, "depth": 7, "num_heads": 4, "mlp_ratio": 2.0,
    }  # fmt: skip
    model = VisionTransformer(tuple(map(str, range(10))), **options)
    assert model.grid_size == (16, 16)
    assert sum(parameter.numel() for parameter in model.parameters()) == 3_760_139


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_other_sizes_training_and_config_roundtrip(name: str) -> None:
    model, images = made(**VARIANTS[name]), noise(2, 3, 24, 40)
    model.train()(images).square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    scores = model.eval()(images)
    assert scores.shape == (2, 5)
    assert model(noise(1, 3, 40, 16)).isfinite().all()
    again = restore_model(model_config(model), model.state_dict(), source="memory")
    assert torch.equal(again(images), scores)


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_records_its_maps(name: str) -> None:
    model, images = made(**VARIANTS[name]), noise(2, 3, 40, 24)
    plain = model(images)
    with record(model) as recording:
        assert torch.equal(model(images), plain)
    grid = (10, 6) if name == "compact" else (5, 3)
    sites = [f"blocks.{number}.attn.tap" for number in range(2)]
    sites += ["attn_pool.tap"] if model.global_pool == "sequence" else []
    assert [attention_map.site for attention_map in recording.maps] == sites
    count = grid[0] * grid[1] + len(model.prefix_roles)
    for attention_map, rows in zip(recording.maps, recording.weights, strict=True):
        assert attention_map.values.shape[-2:] == grid
        torch.testing.assert_close(rows.sum(-1), torch.ones(rows.shape[:-1]))
        if "attn_pool" not in attention_map.site:
            assert rows.shape == (2, 3, count, count)
            assert attention_map.metadata["prefix_tokens"] == model.prefix_roles


def test_the_grid_is_not_assumed_square() -> None:
    with torch.device("meta"):
        model = VisionTransformer(CLASSES, **{**SMALL, "img_size": (224, 224), "patch_size": 14})
        tokens, layout = model.encode(torch.empty(1, 3, 168, 280))
    assert (tokens.shape[1], layout.grid, layout.num_tokens) == (241, (12, 20), 241)
    assert layout.roles == ("class",)


def test_class_query_without_class_token_is_refused() -> None:
    model = made(global_pool="mean")
    no_class = "no class token; its prefix tokens are none: .* queries='patches'"
    with pytest.raises(ValueError, match=no_class), record(model, queries="class"):
        model(noise(1, 3, 24, 40))


def test_last_layer_has_gradients_from_the_class_row_only() -> None:
    model = made()
    tokens, layout = model.encode(model.normalize(noise(1, 3, 24, 40)))
    tokens.retain_grad()
    model.pool(tokens, layout).square().sum().backward()
    assert tokens.grad is not None
    assert tokens.grad[:, :1].any(-1).all()
    assert not tokens.grad[:, 1:].any()


def test_class_rows_of_a_base_model_use_little_memory() -> None:
    with torch.device("meta"), torch.no_grad():
        model = VisionTransformer(CLASSES, patch_size=16)
        with record(model, queries="class") as recording:
            model.classify(torch.empty(1, 3, 224, 224))
    assert len(recording.maps) == 12
    assert all(attention_map.values.shape == (1, 12, 1, 14, 14) for attention_map in recording.maps)
    kept = {rows.untyped_storage().nbytes() for rows in recording.weights}
    assert kept == {12 * 197 * 4}  # 111 KiB in twelve layers


def test_drop_path_rate_increases_with_depth() -> None:
    model = VisionTransformer(CLASSES, **{**SMALL, "depth": 5}, drop_path_rate=0.2)
    rates = [module.drop_prob for module in model.modules() if isinstance(module, DropPath)]
    assert rates == pytest.approx([0, 0.05, 0.1, 0.15, 0.2])


@pytest.mark.parametrize("name", ["plain", "small data"])
def test_half_precision_and_channels_last_are_close(name: str) -> None:
    model, images = made(**VARIANTS[name]), noise(2, 3, 24, 40)
    scores = model(images)
    last = model(images.contiguous(memory_format=torch.channels_last))
    torch.testing.assert_close(last, scores)
    with torch.autocast("cpu", torch.bfloat16), record(model, queries=[0]) as recording:
        half = model(images)
    assert (half.float() - scores).abs().max() < 0.05 * scores.abs().max()
    rows = recording.weights[0].float().sum(-1)
    torch.testing.assert_close(rows, torch.ones_like(rows), atol=0.02, rtol=0)


def test_gray_model_accepts_rgb_images() -> None:
    model = made(mean=(0.5,), std=(0.25,))
    assert model(noise(2, 3, 24, 40)).shape == model(noise(2, 1, 24, 40)).shape == (2, 5)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"img_size": (25, 40)}, "25 x 40 is not a multiple of the patch size 8 x 8: resize"),
        ({"num_heads": 5}, "num_heads must divide dim 24, got 5"),
        ({"global_pool": "max"}, "global_pool must be one of class, mean, sequence, got 'max'"),
        ({"pos_embed_type": "rotary"}, "pos_embed_type must be one of learned, sine, got 'rotary'"),
        ({"embed_dim": 18, "pos_embed_type": "sine"}, "embed_dim divisible by 4, got 18"),
    ],
)
def test_invalid_options_are_refused(
    options: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jaxtyping.config.jaxtyping_disable", True)  # without type checks
    with pytest.raises(ValueError, match=said):
        made(**options)(noise(1, 3, 24, 40))


def test_invalid_image_sizes_are_refused() -> None:
    for shape, said in (
        ((1, 3, 24, 41), "24 x 41 is not a multiple of the patch size"),
        ((1, 4, 24, 40), r"images must be \[batch, 3, 24, 40\], got \[1, 4, 24, 40\]"),
    ):
        with pytest.raises(ValueError, match=said):
            made()(noise(*shape))


@pytest.mark.compile
@pytest.mark.parametrize("name", ["plain", "small data"])
def test_compiles_as_one_graph(name: str) -> None:
    model, images = made(**VARIANTS[name]), noise(2, 3, 24, 40)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(images), model(images))


@pytest.mark.compile
@pytest.mark.parametrize("name", ["plain", "small data"])
def test_exports_for_any_size(name: str) -> None:
    model = made(**VARIANTS[name])
    example = model.normalize(noise(2, 3, 24, 40))
    dim = torch.export.Dim
    rows, columns = dim("rows", min=2, max=9), dim("columns", min=2, max=9)
    shapes = {0: dim("batch", min=1, max=64), 2: 8 * rows, 3: 8 * columns}
    exported = torch.export.export(Scores(model), (example,), dynamic_shapes=(shapes,)).module()
    with torch.no_grad():
        for size in ((24, 40), (16, 56), (64, 48)):
            images = model.normalize(noise(3, 3, *size))
            torch.testing.assert_close(exported(images), model.classify(images))


class Scores(torch.nn.Module):
    """The scores of normalized images."""

    def __init__(self, model: VisionTransformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        return self.model.classify(images)
