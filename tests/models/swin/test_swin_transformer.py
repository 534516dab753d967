"""The Swin Transformer: parameter counts, sizes, recorded maps, training and errors."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from visattn.blocks.transformer.layer import DropPath
from visattn.models.saving.config import model_config, restore_model
from visattn.models.swin.swin_transformer import SwinTransformer, create_swin
from visattn.recording.recorder import record

SMALL: dict[str, Any] = {
    "img_size": (24, 40), "patch_size": 2, "embed_dim": 6, "depths": (2, 3), "num_heads": (2, 3),
    "window_size": (3, 5)
}  # fmt: skip
CLASSES = ("ant", "bee", "cat", "dog", "elk")
GRIDS = [(12, 20), (12, 20), (6, 10), (6, 10), (6, 10)]
SITES = [
    f"layers.{stage}.blocks.{block}.attn.tap" for stage in (0, 1) for block in range(2 + stage)
]


def made(**options: Any) -> SwinTransformer:
    torch.manual_seed(5)
    model = SwinTransformer(CLASSES, **{**SMALL, **options})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return model.eval()


def noise(*shape: int) -> Tensor:
    random = torch.Generator().manual_seed(3)
    return torch.randint(256, shape, dtype=torch.uint8, generator=random)


def multiplications(model: SwinTransformer) -> int:
    """Multiply-accumulates by arithmetic, on grids that windows tile."""
    cells, width = model.grid_size[0] * model.grid_size[1], model.embed_dim
    total = cells * width * len(model.mean) * model.patch_size[0] * model.patch_size[1]
    for number, depth in enumerate(model.depths):
        if number:  # four tokens of the old width to one of the new
            cells, width = cells // 4, 2 * width
            total += cells * 2 * width * width
        inside = model.window_size[0] * model.window_size[1]
        layer = (4 + 2 * round(model.mlp_ratio)) * cells * width**2 + 2 * cells * inside * width
        total += depth * layer
    return total + width * len(model.class_names)


def counted(model: SwinTransformer) -> int:
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        model.eval().classify(torch.empty(1, 3, *model.img_size, device="meta"))
    return counter.get_total_flops() // 2


@pytest.mark.parametrize(
    ("name", "weights", "macs"),
    [
        ("tiny", 28_288_354, 4_490_566_656),
        ("small", 49_606_258, 8_740_875_264),
        ("base", 87_768_224, 15_430_946_816),
    ],
)
def test_parameter_counts_of_presets(name: str, weights: int, macs: int) -> None:
    with torch.device("meta"):
        model = create_swin(name, tuple(map(str, range(1000))))
    assert sum(parameter.numel() for parameter in model.parameters()) == weights
    assert multiplications(model) == macs
    last: Any = list(model.layers)[-1]
    assert (last.window_size, last.shift_size) == (
        (7, 7),
        (0, 0),
    )  # one window covers the last grid


def test_flops_match_arithmetic() -> None:
    with torch.device("meta"):
        tiny = create_swin("tiny", tuple(map(str, range(1000))))
        other = SwinTransformer(CLASSES, **SMALL)
    assert counted(tiny) == multiplications(tiny)
    assert counted(other) == multiplications(other)


def test_misspelled_preset_gets_suggestions() -> None:
    with pytest.raises(ValueError, match=r"unknown preset 'smal'; did you mean small"):
        create_swin("smal", CLASSES)


def test_other_sizes_training_and_config_roundtrip() -> None:
    model, images = made(), noise(2, 3, 24, 40)
    model.train()(images).square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    scores = model.eval()(images)
    assert scores.shape == (2, 5)
    for size in ((2, 2), (26, 14), (34, 90)):
        assert model(noise(1, 3, *size)).isfinite().all()
    again = restore_model(model_config(model), model.state_dict(), source="memory")
    assert torch.equal(again(images), scores)


def test_every_layer_records_maps_on_its_own_grid() -> None:
    model, images = made(), noise(2, 3, 24, 40)
    plain = model(images)
    with record(model) as recording:
        assert torch.equal(model(images), plain)
    assert [attention_map.site for attention_map in recording.maps] == SITES
    for attention_map, rows, grid, heads in zip(
        recording.maps, recording.weights, GRIDS, (2, 2, 3, 3, 3), strict=True
    ):
        count = grid[0] * grid[1]
        assert attention_map.values.shape == (2, heads, count, *grid)
        torch.testing.assert_close(rows.sum(-1), torch.ones(2, heads, count))
        assert attention_map.metadata["prefix_tokens"] == ()
    kinds = [attention_map.metadata["attention"] for attention_map in recording.maps]
    assert kinds == ["window", "shifted", "window", "shifted", "window"]


def test_row_of_a_layer_covers_one_window() -> None:
    model = made()
    with record(model, queries=[7 * 20 + 11], layers="layers.0.blocks.1*", heads=[1]) as recording:
        model(noise(1, 3, 24, 40))
    (attention_map,) = recording.maps
    assert attention_map.values.shape == (1, 1, 1, 12, 20)
    wanted = torch.zeros(12, 20, dtype=torch.bool)
    wanted[7:10, 7:12] = True  # windows of 3 x 5, moved by 1 and 2
    assert torch.equal(attention_map.values[0, 0, 0] > 0, wanted)


def test_padded_windows_record_rows_on_the_grid() -> None:
    model, images = made(), noise(1, 3, 22, 26)
    with record(model) as recording:
        model(images)
    grids = [tuple(attention_map.values.shape[-2:]) for attention_map in recording.maps]
    assert grids == [(11, 13)] * 2 + [(6, 7)] * 3
    sums = recording.weights[0].sum(-1)
    assert sums.max() < 1 + 1e-5
    assert sums.min() < 0.99  # of windows at the border, which attend to padded slots


def test_class_query_is_refused() -> None:
    model = made()
    no_class = "no class token; its prefix tokens are none: .* queries='patches'"
    with pytest.raises(ValueError, match=no_class), record(model, queries="class"):
        model(noise(1, 3, 24, 40))


def test_dynamic_img_pad_pads_to_whole_patches() -> None:
    model, images = made(dynamic_img_pad=True, patch_size=4), noise(1, 3, 17, 30)
    with record(model, queries=[0]) as recording:
        scores = model(images)
    assert recording.maps[0].metadata["padding"] == (3, 2)
    filled = torch.nn.functional.pad(model.normalize(images), (0, 2, 0, 3))
    torch.testing.assert_close(made(patch_size=4).classify(filled), scores)


def test_drop_path_rate_increases_with_depth() -> None:
    rates = [
        part.drop_prob for part in made(drop_path_rate=0.2).modules() if isinstance(part, DropPath)
    ]
    assert rates == pytest.approx([0, 0.05, 0.1, 0.15, 0.2])


@pytest.mark.parametrize("size", [(24, 40), (22, 26)])
def test_half_precision_and_channels_last_are_close(size: tuple[int, int]) -> None:
    model, images = made(), noise(2, 3, *size)
    scores = model(images)
    last = model(images.contiguous(memory_format=torch.channels_last))
    torch.testing.assert_close(last, scores)
    with torch.autocast("cpu", torch.bfloat16), record(model, queries=[0]) as recording:
        half = model(images)
    assert (half.float() - scores).abs().max() < 0.05 * scores.abs().max()
    assert recording.weights[0].isfinite().all()


def test_biases_have_no_weight_decay() -> None:
    model = made()
    kept = {id(parameter) for parameter in model.no_weight_decay_parameters()}
    left = [name for name, weight in model.named_parameters() if id(weight) not in kept]
    assert all(name.endswith("weight") and "norm" not in name for name in left)
    assert sum("biases" in name for name, _ in model.named_parameters()) == 5


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"img_size": (25, 40)},
            "25 x 40 is not a multiple of the patch size 2 x 2: set dynamic_img_pad=True",
        ),
        ({"num_heads": (2, 5)}, "num_heads must divide dim 12, got 5"),
        ({"num_heads": (2,)}, r"depths=\(2, 3\) and num_heads=\(2,\)"),
        ({"depths": (2, 0)}, r"one entry per stage, and depths entries >= 1; got depths=\(2, 0\)"),
        ({"depths": (), "num_heads": ()}, "depths and num_heads must have one entry per stage"),
        ({"window_size": 0}, "window_size must be a height and a width of at least 1, got 0"),
        ({"drop_path_rate": -0.5}, r"drop_prob must be in \[0, 1\], got -0.125"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        made(**options)


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
@pytest.mark.parametrize("size", [(24, 40), (22, 26)])
def test_compiles_as_one_graph_for_a_fixed_size(size: tuple[int, int]) -> None:
    model, images = made(), noise(2, 3, *size)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(images), model(images))
