"""Window attention, patch merging and stages against timm, loops and full attention."""

from typing import Any

import pytest
import torch
from timm.models.swin_transformer import (
    PatchMerging as TimmMerging,
    SwinTransformerBlock,
    SwinTransformerStage,
)
from torch import Tensor, nn

from visattn.blocks.transformer.swin_stage import PatchMerging, SwinStage
from visattn.blocks.transformer.token_attention import TokenAttention, TokenLayout
from visattn.blocks.transformer.window_attention import WindowAttention
from visattn.recording.recorder import record

CASES: list[tuple[tuple[int, int], tuple[int, int], tuple[int, int]]] = [
    ((6, 10), (3, 5), (0, 0)),
    ((6, 10), (3, 5), (1, 2)),
    ((5, 7), (2, 3), (0, 0)),
    ((5, 7), (3, 4), (1, 2)),
    ((5, 7), (3, 7), (1, 0)),
    ((2, 7), (5, 3), (2, 1)),
]


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3)).double()


def made(window: tuple[int, int], shift: tuple[int, int], **options: Any) -> WindowAttention:
    torch.manual_seed(5)
    attend = WindowAttention(
        12, num_heads=3, window_size=window, shift_size=shift, **options
    ).double()
    for parameter in attend.parameters():
        nn.init.normal_(parameter, std=0.4)
    return attend


def table(biases: Tensor) -> Tensor:
    """Return biases in the layout of timm: indexed by the offset of query and key."""
    return biases.detach().flip(1, 2).flatten(1).T


@pytest.mark.parametrize(("grid", "window", "shift"), CASES)
@pytest.mark.parametrize("bias", [True, False])
def test_values_match_timm(
    grid: tuple[int, int], window: tuple[int, int], shift: tuple[int, int], bias: bool
) -> None:
    ours = made(window, shift, qkv_bias=bias)
    theirs: Any = SwinTransformerBlock(
        12, grid, num_heads=3, window_size=window, shift_size=shift,  # pyright: ignore[reportArgumentType]
        qkv_bias=bias, always_partition=True,
    ).double()  # fmt: skip
    state = dict(ours.state_dict())
    state["relative_position_bias_table"] = table(state.pop("biases"))
    theirs.attn.load_state_dict(state)
    x = numbers(2, grid[0] * grid[1], 12)
    result = ours(x, TokenLayout(grid))
    torch.testing.assert_close(result, theirs._attn(x.unflatten(1, grid)).flatten(1, 2))


@pytest.mark.parametrize(("grid", "window", "shift"), CASES)
def test_recorded_rows_reproduce_the_values(
    grid: tuple[int, int], window: tuple[int, int], shift: tuple[int, int]
) -> None:
    attend, layout = made(window, shift), TokenLayout(grid, notes={"padded": (0, 0)})
    x = numbers(2, grid[0] * grid[1], 12)
    with record(attend) as recording:
        result = attend(x, layout)
    (rows,), (shown,) = recording.weights, recording.maps
    values = attend.qkv(x).unflatten(-1, (3, 3, 4))[:, :, 2].transpose(1, 2)
    empty = attend.qkv.bias.unflatten(-1, (3, 3, 4))[2]  # the value of a padded slot per head
    missing = 1 - rows.sum(-1, keepdim=True)
    taken = rows @ values + missing * empty.unsqueeze(1)
    torch.testing.assert_close(attend.proj(taken.transpose(1, 2).flatten(2)), result)
    tiled = grid[0] % window[0] == grid[1] % window[1] == 0
    assert missing.min() > -1e-12
    assert missing.max() < 1e-12 or not tiled
    assert shown.values.shape == (2, 3, grid[0] * grid[1], *grid)
    assert shown.metadata["attention"] == ("shifted" if any(shift) else "window")
    assert (shown.metadata["window"], shown.metadata["shift"]) == (window, shift)
    assert shown.metadata["padded"] == (0, 0)
    assert torch.equal(attend(x, layout), result)  # recording does not change the output


def test_rows_of_a_shifted_window_are_placed_at_its_cells() -> None:
    grid, window, shift = (6, 10), (3, 5), (1, 2)
    attend = made(window, shift)
    with record(attend) as recording:
        attend(numbers(1, 60, 12), TokenLayout(grid))
    rows = recording.maps[0].values[0]
    for cell in range(60):
        y, x = divmod(cell, 10)
        for other in range(60):
            v, u = divmod(other, 10)
            same = ((y - 1) // 3, (x - 2) // 5) == ((v - 1) // 3, (u - 2) // 5)
            assert (rows[:, cell, v, u] > 0).all() == same


def test_single_window_equals_full_attention() -> None:
    windowed, layout, x = made((5, 7), (0, 0)), TokenLayout((5, 7)), numbers(2, 35, 12)
    full = TokenAttention(12, num_heads=3, max_relative_position=(4, 6)).double()
    full.load_state_dict(windowed.state_dict())
    with record(windowed) as window_recording, record(full) as other:
        torch.testing.assert_close(windowed(x, layout), full(x, layout))
    torch.testing.assert_close(window_recording.weights[0], other.weights[0])


def test_selected_rows_and_heads_match_the_full_recording() -> None:
    attend, layout, x = made((3, 4), (1, 2)), TokenLayout((5, 7)), numbers(2, 35, 12)
    with record(attend) as all_of_it, record(attend, queries=[-1, 8], heads=[2]) as selected:
        attend(x, layout)
    with record(attend, queries=[-1, 8], heads=[2]) as alone:
        attend(x, layout)
    wanted = all_of_it.weights[0][:, [2]][:, :, [34, 8]]
    assert torch.equal(selected.weights[0], wanted)
    torch.testing.assert_close(alone.weights[0], wanted)
    with record(attend, queries="patches") as patches:
        attend(x, layout)
    assert torch.equal(patches.weights[0], all_of_it.weights[0])
    no_class = "no class token; its prefix tokens are none: pass .* queries='patches'"
    with pytest.raises(ValueError, match=no_class), record(attend, queries="class"):
        attend(x, layout)


@pytest.mark.parametrize("grid", [(4, 6), (5, 7), (1, 2)])
def test_patch_merging_matches_timm(grid: tuple[int, int]) -> None:
    ours, theirs = PatchMerging(3, 7).double(), TimmMerging(3, 7).double()
    for parameter in ours.parameters():
        nn.init.normal_(parameter)
    theirs.load_state_dict(ours.state_dict())
    x = numbers(2, grid[0] * grid[1], 3)
    actual, layout = ours(x, TokenLayout(grid))
    expected = theirs(x.unflatten(1, grid))
    assert layout.grid == expected.shape[1:3]
    torch.testing.assert_close(actual, expected.flatten(1, 2))


@pytest.mark.parametrize("grid", [(9, 4), (13, 17), (3, 22), (3, 3)])
def test_window_size_adapts_to_the_grid_of_the_stage(grid: tuple[int, int]) -> None:
    ours = SwinStage(
        12, grid, num_heads=3, window_size=(3, 4), drop_path_rates=(0, 0.2, 0.3),
        hidden_dim=24, merge_dim=6,
    )  # fmt: skip
    before = (2 * grid[0] - 1, 2 * grid[1])
    theirs: Any = SwinTransformerStage(6, 12, before, 3, num_heads=3, window_size=(3, 4))
    for first, second in zip(ours.blocks, theirs.blocks, strict=True):
        attend: Any = first.attn
        assert (attend.window_size, attend.shift_size) == (second.window_size, second.shift_size)
    rates: list[Any] = [layer.drop_path for layer in ours.blocks]
    assert [layer.drop_prob for layer in rates] == [0, 0.2, 0.3]
    tokens, layout = ours(torch.zeros(1, before[0] * before[1], 6), TokenLayout(before))
    assert (tokens.shape, layout.grid) == ((1, grid[0] * grid[1], 12), grid)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"num_heads": 5}, "heads must divide dim 12, got 5"),
        ({"num_heads": 3, "window_size": (0, 2)}, "at least 1, .* got window_size=0, shift_size=0"),
        (
            {"num_heads": 3, "window_size": (2, 2), "shift_size": (0, 2)},
            "got window_size=2, shift_size=2",
        ),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        WindowAttention(12, **options)
