"""Digit sequences: places, order, sizes and seeds of the digits."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from visattn.data.classification.cluttered_mnist import ClutterSpec, ink_boxes
from visattn.data.classification.digit_sequences import DigitSequences, DigitSequenceSpec
from visattn.results.kinds import IGNORE_LABEL

ROW = DigitSequenceSpec(canvas=ClutterSpec((13, 61)), max_digits=5, gap=(1, 3), scale=(0.7, 1.3))
SCATTERED = DigitSequenceSpec(
    "scattered", ClutterSpec((31, 37)), min_digits=2, max_digits=3, scale=(0.7, 1.3), min_offset=2
)


def random_digits(count: int = 11, size: tuple[int, int] = (7, 5)) -> Tensor:
    random = torch.Generator().manual_seed(1)
    digits = torch.randint(1, 256, (count, 1, *size), generator=random).to(torch.uint8)
    digits[:, :, 0], digits[:, :, :, -1] = 0, 0  # the ink is 6 × 4
    return digits


def sequences(spec: DigitSequenceSpec, *, seed: int = 0, **options: Any) -> DigitSequences:
    digits = random_digits()
    return DigitSequences(digits, torch.arange(len(digits)) % 10, spec, seed=seed, **options)


def pixel_by_hand(digit: np.ndarray, y: float, x: float, scale: float) -> float:
    """Antialiased bilinear interpolation at a point of a digit; black outside."""
    width = max(1.0, 1 / scale)
    total = weight_sum = 0.0
    for row in range(-3, digit.shape[0] + 3):
        for column in range(-3, digit.shape[1] + 3):
            weight = max(0, 1 - abs(row + 0.5 - y) / width)
            weight *= max(0, 1 - abs(column + 0.5 - x) / width)
            weight_sum += weight
            if 0 <= row < digit.shape[0] and 0 <= column < digit.shape[1]:
                total += weight * digit[row, column]
    return total / max(weight_sum, 0.25) if weight_sum else 0.0


@pytest.mark.parametrize("spec", [ROW, SCATTERED])
def test_canvases_are_those_made_by_hand(spec: DigitSequenceSpec) -> None:
    data = sequences(spec)
    indices = [0, 3, 13]
    placed, batch = data.placements(indices), data.draw(indices)
    height, width = spec.canvas.size
    for row, image in enumerate(batch.images[:, 0].numpy()):
        expected = np.zeros((height, width))
        for slot in range(int(placed.num_digits[row])):
            digit = data.digits[placed.sources[row, slot], 0].double().numpy()
            scale = float(placed.scales[row, slot])
            top, left = placed.corners[row, slot].tolist()
            for y in range(top, height):
                for x in range(left, width):
                    value = pixel_by_hand(
                        digit, 1 + (y - top + 0.5) / scale, (x - left + 0.5) / scale, scale
                    )
                    expected[y, x] = max(expected[y, x], value)
        np.testing.assert_allclose(image, expected, atol=0.501)


@settings(max_examples=11)
@given(seed=st.integers(0, 99), start=st.integers(0, 999))
def test_digits_lie_in_their_boxes_in_order_without_overlap(seed: int, start: int) -> None:
    for spec in (ROW, SCATTERED):
        data = sequences(spec, seed=seed)
        batch = data.draw(list(range(start, start + 17)))
        height, width = spec.canvas.size
        for image, labels, length, boxes, count in zip(*batch, strict=True):
            assert count == length
            assert spec.min_digits <= count <= spec.max_digits
            assert (labels[count:] == IGNORE_LABEL).all()
            assert not boxes[count:].any()
            left, top, right, bottom = boxes[:count].T
            assert (left >= 0).all()
            assert (top >= 0).all()
            assert (right <= width).all()
            assert (bottom <= height).all()
            offsets = ((left + right) / 2).diff()
            assert (offsets >= (spec.min_offset if spec is SCATTERED else 0.5)).all()
            covered = torch.zeros_like(image[0], dtype=torch.int)
            for x0, y0, x1, y1 in boxes[:count].tolist():
                covered[int(y0) : int(np.ceil(y1)), int(x0) : int(np.ceil(x1))] += 1
            if spec is ROW:
                gaps = left[1:] - right[:-1]
                assert (gaps > spec.gap[0] - 1).all()
                assert (gaps < spec.gap[1] + 1).all()
            else:
                inner = boxes[:count].tolist()
                for i, a in enumerate(inner):
                    for b in inner[:i]:
                        assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
            assert not (image[0][covered == 0] > 128).any()  # beyond a box only its faint edge


def test_digits_at_their_own_size_are_copied() -> None:
    spec = DigitSequenceSpec(canvas=ClutterSpec((11, 41)), max_digits=3)
    data = sequences(spec)
    batch, placed = data.draw([*range(17)]), data.placements(range(17))
    for row in range(17):
        for slot in range(int(batch.num_digits[row])):
            left, top, right, bottom = batch.boxes[row, slot].int().tolist()
            digit = data.digits[placed.sources[row, slot], 0, 1:, :4]
            assert torch.equal(batch.images[row, 0, top:bottom, left:right], digit)
            assert batch.labels[row, slot] == data.labels[placed.sources[row, slot]]


def test_every_digit_number_and_place_occurs() -> None:
    data = sequences(ROW)
    placed = data.placements(range(4000))
    counts = torch.bincount(placed.num_digits, minlength=6)
    assert counts[0] == 0
    assert (counts[1:] > 640).all()  # 800 expected, standard deviation 25
    present = torch.arange(5) < placed.num_digits[:, None]
    sources = torch.bincount(placed.sources[present], minlength=11)
    assert (sources > 880).all()  # 1,091 expected, standard deviation 31
    (single,) = torch.nonzero(placed.num_digits == 1).T
    assert {0} < set(placed.corners[single, 0, 0].tolist())
    assert placed.corners[single, 0, 1].min() == 0
    ends = placed.corners[single, 0, 1] + placed.sizes[single, 0, 1]
    assert 60 < ends.max() <= 61
    scales = placed.scales[present]
    assert 0.7 <= scales.min() < 0.71
    assert 1.29 < scales.max() < 1.3


def test_a_canvas_depends_on_seed_and_index_only() -> None:
    for spec in (ROW, SCATTERED):
        together = sequences(spec, seed=7).draw([5, 29, 2])
        for row, index in enumerate((5, 29, 2)):
            alone = sequences(spec, seed=7).draw([index])
            for many, single in zip(together, alone, strict=True):
                assert torch.equal(many[row], single[0])
        images = [sequences(spec, seed=s).draw([i]).images for s in (7, 8) for i in (5, 16)]
        assert len({image.numpy().tobytes() for image in images}) == 4


def test_the_digest_is_the_same_on_every_machine() -> None:
    assert sequences(ROW, seed=7).digest().startswith("9a7922e8b8eec8046bc5ff64")
    assert sequences(SCATTERED, seed=7).digest().startswith("cb6eb6ee2fefdd5377ed4f87")


def test_addition_has_one_label_the_sum() -> None:
    spec = DigitSequenceSpec(canvas=ClutterSpec((11, 41)), max_digits=3, target="addition")
    data, digits = (
        sequences(s) for s in (spec, DigitSequenceSpec(canvas=spec.canvas, max_digits=3))
    )
    sums, batch = data.draw([*range(17)]), digits.draw([*range(17)])
    assert sums.lengths.tolist() == [1] * 17
    assert torch.equal(sums.num_digits, batch.num_digits)
    assert sums.labels[:, 0].tolist() == batch.labels.clamp(min=0).sum(1).tolist()
    assert (spec.num_classes, spec.max_length) == (28, 1)


def test_centers_are_the_middles_of_the_boxes() -> None:
    batch = sequences(SCATTERED).draw([*range(17)])
    assert {2, 3} == set(batch.num_digits.tolist())
    for centers, boxes, count in zip(batch.centers, batch.boxes, batch.num_digits, strict=True):
        for (x, y), (left, top, right, bottom) in zip(
            centers[:count].tolist(), boxes[:count].tolist(), strict=True
        ):
            assert x == pytest.approx((left + right) / 37 - 1, abs=1e-6)
            assert y == pytest.approx((top + bottom) / 31 - 1, abs=1e-6)
        assert not centers[count:].any()


def test_distractors_are_cropped_from_their_source() -> None:
    spec = DigitSequenceSpec(
        canvas=ClutterSpec((31, 43), 2, 3), min_digits=1, max_digits=2, layout="scattered"
    )
    gray = torch.full((3, 1, 5, 5), 10, dtype=torch.uint8)
    with_distractors = sequences(spec, distractor_source=gray).draw([*range(17)]).images.int()
    plain_spec = DigitSequenceSpec("scattered", ClutterSpec((31, 43)), 1, 2)
    added = with_distractors - sequences(plain_spec).draw([*range(17)]).images
    assert set(added.unique().tolist()) <= set(range(21))
    full = added.sum((1, 2, 3)) == 2 * 9 * 10
    assert full.float().mean() > 0.5  # the others lie on bright digits
    assert len(torch.nonzero(added.sum((0, 1)))) > 100


def test_ink_of_a_blank_digit_is_the_whole_image() -> None:
    digits = torch.zeros(2, 1, 5, 7, dtype=torch.uint8)
    digits[1, 0, 2, 3:6] = 1
    assert ink_boxes(digits).tolist() == [[0, 0, 5, 7], [2, 3, 3, 6]]


def test_scales_that_would_skip_pixels_are_refused() -> None:
    with pytest.raises(ValueError, match="scale must be at least 0.5"):
        DigitSequenceSpec(scale=(0.4, 1.0))


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"5 digits of up to 7.8 x 5.2 pixels .* 7.8 x 38"):
        sequences(DigitSequenceSpec(canvas=ClutterSpec((13, 37)), gap=(1, 3), scale=(0.7, 1.3)))
    with pytest.raises(ValueError, match="2 digits could not be scattered without overlap"):
        sequences(DigitSequenceSpec("scattered", ClutterSpec((7, 7)), 2, 2))
    with pytest.raises(ValueError, match="distractors of 6 pixels must fit"):
        sequences(DigitSequenceSpec(canvas=ClutterSpec((13, 61), 1, 6)))
