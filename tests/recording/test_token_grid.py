"""Encoded token indices survive window partitioning, and grids are inferred from token counts."""

import pytest
import torch
from hypothesis import given, settings, strategies as st
from windows import swin_windows

from visattn.recording.token_grid import (
    decode_indices,
    encode_indices,
    encodes_indices,
    fits,
    infer_grid,
    rectangular_window_size,
    split_prefix_tokens,
    windows_per_image,
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("channels_last", [True, False])
def test_encoded_indices_are_decoded(dtype: torch.dtype, channels_last: bool) -> None:
    shape = (2, 131, 137, 7) if channels_last else (2, 7, 131, 137)
    code = encode_indices(torch.zeros(shape, dtype=dtype), 131 * 137, channels_last=channels_last)
    indices = decode_indices(code, 2, 131 * 137)
    assert indices is not None
    assert torch.equal(indices.flatten(), torch.arange(2 * 131 * 137))
    assert encodes_indices(code)
    code.view(-1)[3] += 0.5
    assert not encodes_indices(code)


@settings(max_examples=20, deadline=None)
@given(
    grid=st.tuples(st.integers(2, 9), st.integers(2, 9)),
    window=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    data=st.data(),
)
def test_shifted_and_padded_windows_are_found(
    grid: tuple[int, int], window: tuple[int, int], data: st.DataObject
) -> None:
    shift = tuple(data.draw(st.integers(0, side - 1)) for side in window)
    code = encode_indices(torch.zeros(2, *grid, 5), grid[0] * grid[1], channels_last=True)
    rolled = code.roll((-shift[0], -shift[1]), (1, 2))
    missing = [-side % cells for side, cells in zip(grid, window, strict=True)]
    padded = torch.nn.functional.pad(rolled, (0, 0, 0, missing[1], 0, missing[0]))
    windows = padded.unflatten(2, (-1, window[1])).unflatten(1, (-1, window[0])).transpose(2, 3)
    tokens = windows.flatten(3, 4).flatten(0, 2)
    indices = decode_indices(tokens, tokens.shape[0], tokens.shape[1])
    assert indices is not None
    result = windows_per_image(indices, 2)
    assert result is not None
    expected = swin_windows(grid, window, (shift[0], shift[1]))
    assert torch.equal(result, expected)


def test_interleaved_windows_of_images_are_not_supported() -> None:
    indices = torch.tensor([[0, 1], [4, 5], [2, 3], [6, 7]])
    assert windows_per_image(indices, 2) is None


def test_duplicate_and_missing_tokens_are_not_decoded() -> None:
    code = encode_indices(torch.zeros(2, 6, 5), 6, channels_last=True)
    assert decode_indices(code[:, [0, 1, 1, 2, 3, 4]], 2, 6) is None
    assert decode_indices(code[:, :, :4], 2, 6) is None
    assert decode_indices(torch.zeros(2, 6, 5), 2, 6) is None


def test_dilated_windows_are_not_rectangular() -> None:
    assert rectangular_window_size(torch.tensor([[0, 2, 8, 10], [1, 3, 9, 11]]), 4) is None
    assert rectangular_window_size(torch.tensor([[0, 1, 4, 5], [2, -1, 6, -1]]), 4) == (2, 2)


def test_prefix_tokens_are_split_from_the_grid() -> None:
    size, grids = (168, 280), [(84, 140), (12, 20)]
    assert split_prefix_tokens(245, ("class", *["register"] * 4), size, grids) == (
        ("class", "register", "register", "register", "register"), (12, 20)
    )  # fmt: skip
    assert split_prefix_tokens(240, ("class",), size, grids) == ((), (12, 20))
    assert split_prefix_tokens(241, ("class", "distillation"), size, grids) == (
        ("class",),
        (12, 20),
    )
    assert split_prefix_tokens(61, ("class",), size, grids) == (("class",), (6, 10))
    assert split_prefix_tokens(244, ("class",), size, grids) is None
    assert infer_grid(64, (224, 224), [(14, 14)]) is None
    assert infer_grid(49, (224, 224), [(14, 14)]) == (7, 7)
    assert infer_grid(15, (48, 80), []) == (3, 5)
    assert not fits((5, 3), (168, 280))
