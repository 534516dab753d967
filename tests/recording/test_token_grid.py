"""Numbers of tokens survive what networks do to tokens, and grids are found again."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from visattn.functional.attention.window import filled_windows
from visattn.recording.token_grid import (
    block_of,
    coded,
    fits,
    grid_of,
    holds_numbers,
    numbers_in,
    split_tokens,
    windows_of,
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("last", [True, False])
def test_numbers_are_read_as_they_were_written(dtype: torch.dtype, last: bool) -> None:
    shape = (2, 131, 137, 7) if last else (2, 7, 131, 137)
    code = coded(torch.zeros(shape, dtype=dtype), 131 * 137, last=last)
    numbers = numbers_in(code, 2, 131 * 137)
    assert numbers is not None
    assert torch.equal(numbers.flatten(), torch.arange(2 * 131 * 137))
    assert holds_numbers(code)
    code.view(-1)[3] += 0.5
    assert not holds_numbers(code)


@settings(max_examples=20, deadline=None)
@given(
    grid=st.tuples(st.integers(2, 9), st.integers(2, 9)),
    window=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    data=st.data(),
)
def test_windows_are_found_however_they_are_cut(
    grid: tuple[int, int], window: tuple[int, int], data: st.DataObject
) -> None:
    shift = tuple(data.draw(st.integers(0, side - 1)) for side in window)
    code = coded(torch.zeros(2, *grid, 5), grid[0] * grid[1], last=True)
    rolled = code.roll((-shift[0], -shift[1]), (1, 2))
    missing = [-side % cells for side, cells in zip(grid, window, strict=True)]
    filled = torch.nn.functional.pad(rolled, (0, 0, 0, missing[1], 0, missing[0]))
    cut = filled.unflatten(2, (-1, window[1])).unflatten(1, (-1, window[0])).transpose(2, 3)
    tokens = cut.flatten(3, 4).flatten(0, 2)
    numbers = numbers_in(tokens, tokens.shape[0], tokens.shape[1])
    assert numbers is not None
    found = windows_of(numbers, 2)
    assert found is not None
    expected, _ = filled_windows(grid, window, (shift[0], shift[1]))
    assert torch.equal(found, expected)


def test_windows_of_images_that_take_turns_are_not_taken_for_one_image() -> None:
    numbers = torch.tensor([[0, 1], [4, 5], [2, 3], [6, 7]])
    assert windows_of(numbers, 2) is None


def test_overlapping_and_missing_tokens_are_no_numbering() -> None:
    code = coded(torch.zeros(2, 6, 5), 6, last=True)
    assert numbers_in(code[:, [0, 1, 1, 2, 3, 4]], 2, 6) is None
    assert numbers_in(code[:, :, :4], 2, 6) is None
    assert numbers_in(torch.zeros(2, 6, 5), 2, 6) is None


def test_spread_windows_are_no_blocks() -> None:
    assert block_of(torch.tensor([[0, 2, 8, 10], [1, 3, 9, 11]]), 4) is None
    assert block_of(torch.tensor([[0, 1, 4, 5], [2, -1, 6, -1]]), 4) == (2, 2)


def test_grids_of_odd_numbers_of_tokens() -> None:
    size, seen = (168, 280), [(84, 140), (12, 20)]
    assert split_tokens(245, ("class", *["register"] * 4), size, seen) == (
        ("class", "register", "register", "register", "register"), (12, 20)
    )  # fmt: skip
    assert split_tokens(240, ("class",), size, seen) == ((), (12, 20))
    assert split_tokens(241, ("class", "distillation"), size, seen) == (("class",), (12, 20))
    assert split_tokens(61, ("class",), size, seen) == (("class",), (6, 10))
    assert split_tokens(244, ("class",), size, seen) is None
    assert grid_of(64, (224, 224), [(14, 14)]) is None
    assert grid_of(49, (224, 224), [(14, 14)]) == (7, 7)
    assert grid_of(15, (48, 80), []) == (3, 5)
    assert not fits((5, 3), (168, 280))
