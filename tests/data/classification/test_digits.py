"""Canvases of digits: places, clutter, order and sizes, by hand; they follow from the seed."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from visattn.data.classification.cluttered_mnist import (
    ClutteredMNIST,
    ClutterSpec,
    canvas_digest,
    ink_boxes,
)
from visattn.data.classification.digit_sequences import DigitSequences, DigitSequenceSpec
from visattn.results.kinds import IGNORE_LABEL

ROW = DigitSequenceSpec(canvas=ClutterSpec((13, 61)), max_digits=5, gap=(1, 3), scale=(0.7, 1.3))
SCATTERED = DigitSequenceSpec(
    "scattered", ClutterSpec((31, 37)), min_digits=2, max_digits=3, scale=(0.7, 1.3), min_offset=2
)


def some_digits(count: int, size: tuple[int, int] = (5, 7), seed: int = 0) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randint(256, (count, 1, *size), generator=random).to(torch.uint8)


def cluttered(spec: ClutterSpec, *, seed: int = 0, other: bool = True) -> ClutteredMNIST:
    others = some_digits(13, seed=9) if other else None
    labels = torch.arange(11) % 10
    return ClutteredMNIST(some_digits(11), labels, spec, seed=seed, distractor_source=others)


def sequences(spec: DigitSequenceSpec, *, seed: int = 0, **options: Any) -> DigitSequences:
    random = torch.Generator().manual_seed(1)
    digits = torch.randint(1, 256, (11, 1, 7, 5), generator=random).to(torch.uint8)
    digits[:, :, 0], digits[:, :, :, -1] = 0, 0  # the ink is 6 × 4
    return DigitSequences(digits, torch.arange(11) % 10, spec, seed=seed, **options)


@settings(max_examples=30)
@given(
    pieces=st.integers(0, 5), seed=st.integers(0, 99), other=st.booleans(),
    numbers=st.lists(st.integers(0, 50), min_size=1, max_size=5),
)  # fmt: skip
def test_cluttered_canvases_follow_from_seed_and_index_alone(
    pieces: int, seed: int, numbers: list[int], other: bool
) -> None:
    spec = ClutterSpec((11, 13), pieces, 3)
    data, again = (cluttered(spec, seed=seed, other=other) for _ in range(2))
    before = torch.get_rng_state()
    images, labels = data.draw(numbers)
    assert torch.equal(torch.get_rng_state(), before)
    for number, image, label in zip(numbers, images, labels, strict=True):
        assert label == data.labels[number % 11]
        assert torch.equal(again.draw([number])[0][0], image)


def test_channels_are_placed_together_and_sums_end_at_white() -> None:
    colors = torch.tensor([100, 150, 200], dtype=torch.uint8).view(1, 3, 1, 1).repeat(5, 1, 3, 3)
    data = ClutteredMNIST(colors, torch.zeros(5).long(), ClutterSpec((7, 11), 2, 2))
    images = data.draw([*range(9)])[0]
    pixels = {tuple(pixel) for pixel in images.movedim(1, 3).reshape(-1, 3).tolist()}
    assert pixels >= {(0, 0, 0), (100, 150, 200), (200, 255, 255)}
    assert pixels <= {(0, 0, 0), (100, 150, 200), (200, 255, 255), (255, 255, 255)}


def test_centers_locate_the_digits() -> None:
    white = torch.full((19, 1, 5, 7), 255, dtype=torch.uint8)
    data = ClutteredMNIST(white, torch.zeros(19).long(), ClutterSpec((11, 23)))
    for image, (x, y) in zip(data.draw([*range(19)])[0], data.centers.tolist(), strict=True):
        rows, columns = torch.nonzero(image[0], as_tuple=True)
        assert x == pytest.approx(float(2 * (columns.float().mean() + 0.5) / 23 - 1), abs=1e-6)
        assert y == pytest.approx(float(2 * (rows.float().mean() + 0.5) / 11 - 1), abs=1e-6)
    batch = sequences(SCATTERED).draw([*range(17)])
    middles = (batch.boxes[..., :2] + batch.boxes[..., 2:]) / torch.tensor([37.0, 31.0]) - 1
    present = torch.arange(3) < batch.num_digits[:, None]
    torch.testing.assert_close(batch.centers[present], middles[present])
    assert not batch.centers[~present].any()


def test_the_digest_is_the_same_on_every_machine_and_differs_between_canvases() -> None:
    ramp = torch.arange(3 * 35).view(3, 1, 5, 7).to(torch.uint8)
    spec = ClutterSpec((11, 13), 2, 3)
    digits = ClutteredMNIST(ramp, torch.arange(3), spec, seed=7)
    for data, digest in (
        (digits, "e54bb881c0f6069b2b27c38e"), (sequences(ROW, seed=7), "9a7922e8b8eec8046bc5ff64"),
        (sequences(SCATTERED, seed=7), "cb6eb6ee2fefdd5377ed4f87"),
    ):  # fmt: skip
        assert canvas_digest(data).startswith(digest)
    others = (cluttered(spec), cluttered(spec, seed=1), cluttered(spec, other=False))
    assert len({canvas_digest(each) for each in others}) == 3


# ---------------------------------------------------------------- sequences


@settings(max_examples=5)
@given(seed=st.integers(0, 99), start=st.integers(0, 999))
def test_digits_lie_in_their_boxes_in_order_without_overlap(seed: int, start: int) -> None:
    for spec in (ROW, SCATTERED):
        data = sequences(spec, seed=seed)
        batch = data.draw(list(range(start, start + 17)))
        alone = data.draw([start + 5])
        assert all(torch.equal(many[5], one[0]) for many, one in zip(batch, alone, strict=True))
        height, width = spec.canvas.size
        for image, labels, length, boxes, count in zip(*batch, strict=True):
            assert count == length
            assert spec.min_digits <= count <= spec.max_digits
            assert (labels[count:] == IGNORE_LABEL).all()
            assert not boxes[count:].any()
            left, top, right, bottom = boxes[:count].T
            assert min(left.min(), top.min(), width - right.max(), height - bottom.max()) >= 0
            offsets = ((left + right) / 2).diff()
            assert (offsets >= (spec.min_offset if spec is SCATTERED else 0.5)).all()
            covered = torch.zeros_like(image[0], dtype=torch.int)
            for x0, y0, x1, y1 in boxes[:count].tolist():
                covered[int(y0) : int(np.ceil(y1)), int(x0) : int(np.ceil(x1))] += 1
            if spec is ROW:
                gaps = left[1:] - right[:-1]
                assert ((gaps > spec.gap[0] - 1) & (gaps < spec.gap[1] + 1)).all()
            inner = boxes[:count].tolist()
            for i, a in enumerate(inner):
                for b in inner[:i]:
                    assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
            assert not (image[0][covered == 0] > 128).any()  # beyond a box only its faint edge


def test_labels_are_those_of_the_digits_or_their_sum() -> None:
    spec = DigitSequenceSpec(canvas=ClutterSpec((11, 41)), max_digits=3)
    data = sequences(spec)
    batch, placed = data.draw([*range(17)]), data.placements(range(17))
    present = torch.arange(3) < placed.num_digits[:, None]
    assert torch.equal(batch.labels[present], data.labels[placed.sources][present])
    added = DigitSequenceSpec(canvas=spec.canvas, max_digits=3, target="addition")
    sums = sequences(added).draw([*range(17)])
    assert sums.lengths.tolist() == [1] * 17
    assert sums.labels[:, 0].tolist() == batch.labels.clamp(min=0).sum(1).tolist()
    assert (added.num_classes, added.max_length) == (28, 1)


def test_distractors_are_cropped_from_their_source() -> None:
    gray = torch.full((3, 1, 5, 5), 10, dtype=torch.uint8)
    plain, filled = (
        sequences(DigitSequenceSpec("scattered", ClutterSpec((31, 43), count, 3), 1, 2),
                  distractor_source=gray).draw([*range(17)]).images.int()
        for count in (0, 2)
    )  # fmt: skip
    added = filled - plain
    assert set(added.unique().tolist()) <= set(range(21))
    full = added.sum((1, 2, 3)) == 2 * 9 * 10
    assert full.float().mean() > 0.5  # the others lie on bright digits
    assert len(torch.nonzero(added.sum((0, 1)))) > 100
    assert ink_boxes(torch.zeros(1, 1, 5, 7, dtype=torch.uint8)).tolist() == [[0, 0, 5, 7]]


NARROW = DigitSequenceSpec(canvas=ClutterSpec((13, 37)), gap=(1, 3), scale=(0.7, 1.3))
REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: cluttered(ClutterSpec((9, 6))), r"digits of \(5, 7\) .* must fit on a canvas of \(9"),
    (lambda: cluttered(ClutterSpec((11, 13), 1, 6)), "distractors of 6 pixels must fit"),
    (lambda: DigitSequenceSpec(scale=(0.4, 1.0)), "scale must be at least 0.5"),
    (lambda: sequences(NARROW), r"5 digits of up to 7.8 x 5.2 pixels .* 7.8 x 38"),
    (lambda: sequences(DigitSequenceSpec("scattered", ClutterSpec((7, 7)), 2, 2)),
     "2 digits could not be scattered without overlap"),
    (lambda: sequences(DigitSequenceSpec(canvas=ClutterSpec((13, 61), 1, 6))), "distractors of 6"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_what_does_not_fit_is_refused(number: int) -> None:
    call, message = REFUSED[number]
    with pytest.raises(ValueError, match=message):
        call()
