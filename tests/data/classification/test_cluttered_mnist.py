"""Cluttered MNIST: placement of digits and distractors, reproducibility."""

from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from visattn.data.classification.cluttered_mnist import (
    BlendMode,
    ClutteredMNIST,
    ClutterSpec,
    paste,
)

BLEND_MODES: tuple[BlendMode, ...] = get_args(BlendMode)


def some_digits(count: int, size: tuple[int, int] = (5, 7), seed: int = 0) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randint(256, (count, 1, *size), generator=random).to(torch.uint8)


def canvas_dataset(
    spec: ClutterSpec, *, count: int = 11, seed: int = 0, other_source: bool = True
) -> ClutteredMNIST:
    others = some_digits(13, seed=9) if other_source else None
    return ClutteredMNIST(
        some_digits(count), torch.arange(count) % 10, spec, seed=seed, distractor_source=others
    )


def alike(counts: Tensor) -> bool:
    """Whether counts agree with equally likely cells: chi-square with p above 0.001."""
    freedom = counts.numel() - 1
    expected = counts.sum() / counts.numel()
    result = float(((counts - expected) ** 2 / expected).sum())
    spread = 2 / (9 * freedom)  # Wilson and Hilferty: its cube root is nearly normal
    return result < freedom * (1 - spread + 3.09 * spread**0.5) ** 3


def counted(places: Tensor, spans: tuple[int, int]) -> Tensor:
    """Count how often each cell of a grid occurs."""
    return torch.bincount(places[:, 0] * spans[1] + places[:, 1], minlength=spans[0] * spans[1])


def by_hand(data: ClutteredMNIST, number: int) -> np.ndarray:
    """A canvas computed pixel by pixel in float64."""
    own = number % len(data)
    height, width = data.spec.size
    side, placed = data.spec.distractor_size, data.placements([number])
    canvas = np.zeros((height, width))
    top, left = placed.digits[0].tolist()
    for row in range(data.digits.shape[2]):
        for column in range(data.digits.shape[3]):
            canvas[top + row, left + column] = data.digits[own, 0, row, column]
    for which in range(data.spec.num_distractors):
        source = int(placed.sources[0, which])
        (down, right), (top, left) = (
            corners[0, which].tolist() for corners in (placed.crops, placed.distractors)
        )
        for row in range(side):
            for column in range(side):
                over = float(data.distractor_source[source, 0, down + row, right + column])
                below = canvas[top + row, left + column]
                canvas[top + row, left + column] = {
                    "sum": min(below + over, 255.0),
                    "max": max(below, over),
                    "overwrite": over,
                    "alpha": np.floor(below + (255 - below) * over / 255 + 0.5),
                }[data.spec.blend]
    return canvas


@given(
    blend=st.sampled_from(BLEND_MODES),
    pieces=st.integers(0, 5),
    seed=st.integers(0, 99),
    numbers=st.lists(st.integers(0, 50), min_size=1, max_size=5),
    other_source=st.booleans(),
)
def test_canvases_by_hand(
    blend: BlendMode, pieces: int, seed: int, numbers: list[int], other_source: bool
) -> None:
    data = canvas_dataset(
        ClutterSpec((11, 13), pieces, 3, blend), seed=seed, other_source=other_source
    )
    images, labels = data.draw(numbers)
    for number, image, label in zip(numbers, images, labels, strict=True):
        np.testing.assert_array_equal(image[0].numpy(), by_hand(data, number))
        assert label == data.labels[number % 11]


def test_digit_positions_are_uniform() -> None:
    data = ClutteredMNIST(some_digits(20_000, (28, 28)), torch.zeros(20_000).long(), ClutterSpec())
    corners = data.placements(range(20_000)).digits
    assert corners.amin(0).tolist() == [0, 0]
    assert corners.amax(0).tolist() == [32, 32]
    assert alike(counted(corners, (33, 33)))
    assert not alike(
        counted(corners[corners[:, 1] < 32], (33, 33))
    )  # a last position that is never drawn


def test_distractors_cover_all_crops_and_positions() -> None:
    count = 17
    data = ClutteredMNIST(
        some_digits(count, (28, 28)), torch.zeros(count).long(), ClutterSpec((60, 100), 4)
    )
    placed = data.placements(range(10_000))
    assert placed.sources.shape == (10_000, 4)
    own = torch.arange(10_000)[:, None] % count
    assert alike(torch.bincount(((placed.sources - own) % count).flatten(), minlength=count)[1:])
    assert not (placed.sources == own).any()
    assert alike(counted(placed.crops.flatten(0, 1), (21, 21)))
    assert alike(counted(placed.distractors.flatten(0, 1), (53, 93)))


def test_number_and_size_of_distractors() -> None:
    black = torch.zeros(7, 1, 5, 5, dtype=torch.uint8)
    gray = torch.full((3, 1, 11, 11), 10, dtype=torch.uint8)
    for pieces, piece in ((1, 8), (4, 8), (8, 3)):
        spec = ClutterSpec((23, 29), pieces, piece)
        images, _ = ClutteredMNIST(black, torch.arange(7), spec, distractor_source=gray).draw(
            [*range(7)]
        )
        assert images.sum((1, 2, 3)).tolist() == [10 * pieces * piece**2] * 7
    rows, columns = torch.nonzero(images[0, 0], as_tuple=True)
    assert len(set(rows.tolist())) > 3
    assert len(set(columns.tolist())) > 3


@pytest.mark.parametrize(
    ("blend", "expected"),
    [
        ("sum", [30, 250, 255, 200]),
        ("max", [30, 200, 200, 200]),
        ("overwrite", [30, 50, 100, 0]),
        ("alpha", [30, 211, 222, 200]),
    ],
)
def test_blend_modes(blend: BlendMode, expected: list[int]) -> None:
    canvas = torch.tensor([[[[0, 200, 200, 200]]]], dtype=torch.uint8)
    piece = torch.tensor([[[[30, 50, 100, 0]]]], dtype=torch.uint8)
    paste(canvas, piece, torch.tensor([[0, 0]]), blend)
    assert canvas.flatten().tolist() == expected


@settings(max_examples=9)
@given(seed=st.integers(0, 99), numbers=st.lists(st.integers(0, 40), min_size=1, max_size=5))
def test_canvas_depends_on_seed_and_index_only(seed: int, numbers: list[int]) -> None:
    data, again = (
        canvas_dataset(ClutterSpec((11, 13), 2, 3), seed=seed, other_source=False) for _ in range(2)
    )
    together = data.draw(numbers)[0]
    for number, image in zip(numbers, together, strict=True):
        assert torch.equal(again.draw([number])[0][0], image)


def test_canvases_differ_between_seeds_and_epochs() -> None:
    spec = ClutterSpec((60, 60), 4, 3)
    canvases = [
        canvas_dataset(spec, seed=seed).draw([11 * epoch + 5])[0]
        for seed in range(3)
        for epoch in range(3)
    ]
    assert all(
        not torch.equal(item, other) for i, item in enumerate(canvases) for other in canvases[:i]
    )


def test_global_generator_is_unchanged() -> None:
    data = canvas_dataset(ClutterSpec((11, 13), 2, 3))
    before = torch.get_rng_state()
    first = data.draw([3, 5])[0]
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    assert torch.equal(data.draw([3, 5])[0], first)


def test_centers_locate_the_digits() -> None:
    white = torch.full((19, 1, 5, 7), 255, dtype=torch.uint8)
    data = ClutteredMNIST(white, torch.zeros(19).long(), ClutterSpec((11, 23)))
    images, _ = data.draw([*range(19)])
    for image, (x, y) in zip(images, data.centers.tolist(), strict=True):
        rows, columns = torch.nonzero(image[0], as_tuple=True)
        assert x == pytest.approx(float(2 * (columns.float().mean() + 0.5) / 23 - 1), abs=1e-6)
        assert y == pytest.approx(float(2 * (rows.float().mean() + 0.5) / 11 - 1), abs=1e-6)


def test_digests_of_different_canvases_differ() -> None:
    spec = ClutterSpec((11, 13), 2, 3)
    digest = canvas_dataset(spec).digest()
    assert digest == canvas_dataset(spec).digest()
    others = [
        canvas_dataset(spec, seed=1),
        canvas_dataset(spec, other_source=False),
        canvas_dataset(ClutterSpec((11, 13), 2, 3, "max")),
        ClutteredMNIST(
            some_digits(11), torch.zeros(11).long(), spec, distractor_source=some_digits(13, seed=9)
        ),
    ]
    assert len({digest, *(other.digest() for other in others)}) == 5


def test_digest_is_stable() -> None:
    ramp = torch.arange(3 * 35).view(3, 1, 5, 7).to(torch.uint8)
    data = ClutteredMNIST(ramp, torch.arange(3), ClutterSpec((11, 13), 2, 3), seed=7)
    assert data.digest().startswith("e54bb881c0f6069b2b27c38e")


def test_channels_are_placed_separately() -> None:
    colors = torch.tensor([40, 50, 60], dtype=torch.uint8).view(1, 3, 1, 1).repeat(5, 1, 3, 3)
    data = ClutteredMNIST(colors, torch.zeros(5).long(), ClutterSpec((7, 11), 2, 2, "max"))
    assert {tuple(pixel) for pixel in data.draw([2])[0][0].flatten(1).T.tolist()} == {
        (0, 0, 0),
        (40, 50, 60),
    }


def test_digits_and_distractors_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"digits of \(5, 7\) .* must fit on a canvas of \(9, 6\)"):
        canvas_dataset(ClutterSpec((9, 6)))
    with pytest.raises(ValueError, match="distractors of 6 pixels must fit"):
        canvas_dataset(ClutterSpec((11, 13), 1, 6))


def test_canvas_of_the_digit_size_equals_the_digit() -> None:
    data = canvas_dataset(ClutterSpec((5, 7)))
    assert torch.equal(data.draw([3, 14])[0], data.digits[[3, 3]])
    assert not data.centers.any()
