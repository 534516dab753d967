"""The Vision Transformer: sizes, prefix tokens, recorded maps, training and errors."""

from typing import Any

import pytest
import torch
from torch import Tensor

from visattn.blocks.transformer.layer import DropPath, EncoderLayer
from visattn.blocks.transformer.token_attention import TokenAttention
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
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "distilled with registers": {"distilled": True, "num_registers": 3},
    "sine, mean": {"pos_embed_type": "sine", "global_pool": "mean"},
    "rotary, attention": {"pos_embed_type": "rotary", "global_pool": "attention",
        "num_registers": 1},
    "relative, sequence": {"pos_embed_type": "relative", "global_pool": "sequence"},
    "shifted windows, relative": {
        "attn_type": ("window", "shifted"), "window_size": (2, 3), "pos_embed_type": "relative"
    },
    "neighborhood then linear": {"attn_type": ("neighborhood", "linear"), "window_size": 3},
    "small data": {"stem": "shifted", "lsa": True, "layer_scale": 0.1},
    "convolutional, gated": {"stem": "conv", "ffn_layer": "swiglu", "qk_norm": True},
    "compact": {
        "stem": "overlapping", "stem_kwargs": {"num_layers": 2, "kernel_size": 3},
        "global_pool": "sequence",
        "pos_embed_type": "none", "qkv_bias": False,
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
    sites += ["attn_pool.tap"] if model.global_pool in ("attention", "sequence") else []
    assert [attention_map.site for attention_map in recording.maps] == sites
    count = grid[0] * grid[1] + len(model.prefix_roles)
    for attention_map, rows in zip(recording.maps, recording.weights, strict=True):
        assert attention_map.values.shape[-2:] == grid
        torch.testing.assert_close(rows.sum(-1), torch.ones(rows.shape[:-1]))
        if "attn_pool" not in attention_map.site:
            assert rows.shape == (2, 3, count, count)
            assert attention_map.metadata["prefix_tokens"] == model.prefix_roles
            assert attention_map.metadata["attention"] in str(model.attn_type)
        assert attention_map.metadata["pos_interpolation"] == "timm"


def test_prefix_roles_are_ordered_and_the_grid_is_not_assumed_square() -> None:
    options: dict[str, Any] = {
        **SMALL,
        "img_size": (224, 224),
        "patch_size": 14,
        "num_registers": 4,
    }
    with torch.device("meta"):
        model = VisionTransformer(CLASSES, **options)
        tokens, layout = model.encode(torch.empty(1, 3, 168, 280))
    assert (tokens.shape[1], layout.grid, layout.num_tokens) == (245, (12, 20), 245)
    assert layout.roles == ("class", *("register",) * 4)
    assert made(distilled=True, num_registers=1).prefix_roles == (
        "class",
        "distillation",
        "register",
    )
    assert made(global_pool="mean", num_registers=2).prefix_roles == ("register", "register")


def test_class_query_without_class_token_is_refused() -> None:
    model = made(global_pool="mean", num_registers=2)
    no_class = "no class token; its prefix tokens are register, register: .* queries='patches'"
    with pytest.raises(ValueError, match=no_class), record(model, queries="class"):
        model(noise(1, 3, 24, 40))


@pytest.mark.parametrize("pool", ["mean", "attention", "sequence"])
def test_registers_are_dropped_at_the_output(pool: str) -> None:
    model = made(global_pool=pool, num_registers=2)
    tokens, layout = model.encode(model.normalize(noise(1, 3, 24, 40)))
    tokens.retain_grad()
    model.pool(tokens, layout).square().sum().backward()
    assert tokens.grad is not None
    assert not tokens.grad[:, :2].any()
    assert tokens.grad[:, 2:].any(-1).all()


def test_last_layer_has_gradients_from_the_class_row_only() -> None:
    model = made(distilled=True, num_registers=1)
    tokens, layout = model.encode(model.normalize(noise(1, 3, 24, 40)))
    tokens.retain_grad()
    model.pool(tokens, layout).square().sum().backward()
    assert tokens.grad is not None
    assert tokens.grad[:, :2].any(-1).all()
    assert not tokens.grad[:, 2:].any()


def test_class_rows_of_a_base_model_use_little_memory() -> None:
    with torch.device("meta"), torch.no_grad():
        model = VisionTransformer(CLASSES, patch_size=16)
        with record(model, queries="class") as recording:
            model.classify(torch.empty(1, 3, 224, 224))
    assert len(recording.maps) == 12
    assert all(attention_map.values.shape == (1, 12, 1, 14, 14) for attention_map in recording.maps)
    kept = {rows.untyped_storage().nbytes() for rows in recording.weights}
    assert kept == {12 * 197 * 4}  # 111 KiB in twelve layers


def test_dynamic_img_pad_pads_and_records_the_padding() -> None:
    model = made(dynamic_img_pad=True)
    images = noise(1, 3, 17, 30)
    with record(model) as recording:
        scores = model(images)
    assert recording.maps[0].metadata["padding"] == (7, 2)
    assert recording.maps[0].values.shape[-2:] == (3, 4)
    filled = torch.nn.functional.pad(model.normalize(images), (0, 2, 0, 7))
    torch.testing.assert_close(made().classify(filled), scores)


def test_drop_path_rate_increases_with_depth() -> None:
    model = VisionTransformer(CLASSES, **{**SMALL, "depth": 5}, drop_path_rate=0.2)
    rates = [module.drop_prob for module in model.modules() if isinstance(module, DropPath)]
    assert rates == pytest.approx([0, 0.05, 0.1, 0.15, 0.2])


def test_patch_dropout_is_active_in_training_only() -> None:
    model, images = made(patch_drop_rate=0.4, pos_embed_type="rotary"), noise(2, 3, 24, 40)
    model.train()
    tokens, layout = model.encode(model.normalize(images))
    assert tokens.shape[1] == 1 + 9
    assert layout.keep_indices is not None
    with record(model) as recording:
        model(images)
    assert recording.maps[0].values.isfinite().sum((1, 2, 3, 4)).tolist() == [3 * 10 * 9] * 2
    assert torch.equal(model.eval()(images), made(pos_embed_type="rotary")(images))


@pytest.mark.parametrize("name", ["plain", "shifted windows, relative", "rotary, attention"])
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


def test_attn_type_may_differ_per_layer() -> None:
    model = made(depth=5, attn_type=("window", "shifted"), window_size=2)
    kinds = [layer.attn.attn_type for layer in model.blocks if isinstance(layer, EncoderLayer)]
    assert kinds == ["window", "shifted", "window", "shifted", "window"]
    assert sum(isinstance(module, TokenAttention) for module in model.modules()) == 5


def test_gray_model_accepts_rgb_images() -> None:
    model = made(mean=(0.5,), std=(0.25,))
    assert model(noise(2, 3, 24, 40)).shape == model(noise(2, 1, 24, 40)).shape == (2, 5)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"img_size": (25, 40)},
            "25 x 40 is not a multiple of the patch size 8 x 8: set dynamic_img_pad=True",
        ),
        ({"num_heads": 5}, "num_heads must divide dim 24, got 5"),
        ({"attn_type": ()}, "attn_type must be 1 to 2 types, at most one per layer, got 0"),
        ({"attn_type": "banded"}, "attn_type must be one of full, window, .*, got 'banded'"),
        ({"global_pool": "mean", "distilled": True}, "needs global_pool='class', .* got 'mean'"),
        ({"class_token": False}, "global_pool='class' needs a class token"),
        ({"num_registers": 9}, "num_registers must be 0 to 8, got 9"),
        ({"patch_drop_rate": 0.5, "attn_type": "window"}, "attn_type='window' needs all patches"),
        (
            {"patch_drop_rate": 0.5, "pos_embed_type": "relative"},
            "pos_embed_type='relative' needs all patches",
        ),
        ({"pos_embed_type": "relative", "attn_type": "linear"}, "linear attention has no softmax"),
        ({"stem_kwargs": {"kernel_size": 3}}, "stem 'patch' does not take these arguments"),
        ({"embed_dim": 18, "pos_embed_type": "sine"}, "embed_dim divisible by 4, got 18"),
        ({"patch_size": 0}, "patch_size must be a height and a width of at least 1, got 0"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        made(**options)(noise(1, 3, 24, 40))


def test_invalid_image_sizes_are_refused() -> None:
    for shape, said in (
        (
            (1, 3, 24, 41),
            "24 x 41 is not a multiple of the patch size .*: set dynamic_img_pad=True",
        ),
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
def test_compiles_as_one_graph(name: str) -> None:
    model, images = made(**VARIANTS[name]), noise(2, 3, 24, 40)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(images), model(images))


@pytest.mark.compile
@pytest.mark.parametrize("name", ["distilled with registers", "rotary, attention", "small data"])
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
