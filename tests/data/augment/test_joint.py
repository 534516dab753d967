"""Images, masks and boxes stay aligned: a marked object keeps its mask and its box."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from visattn.data.augment.joint import JointTransforms
from visattn.data.regions.sample import RegionSample
from visattn.geometry.affine import Geometry
from visattn.images.reader import LoadedImage
from visattn.images.resize import ResizeSpec
from visattn.results.kinds import IGNORE_CLASS

SIZE = (83, 127)
BOX = (67, 19, 97, 43)  # left, top, right, bottom of a white rectangle on black
WINDOW = ((11, 29), (47, 61))


def marked(box: tuple[int, int, int, int] = BOX) -> RegionSample:
    left, top, right, bottom = box
    mask = np.zeros(SIZE, dtype=bool)
    mask[top:bottom, left:right] = True
    pixels = np.repeat(mask[:, :, None] * np.uint8(255), 3, axis=2)
    boxes = torch.tensor([box], dtype=torch.float64)
    return RegionSample.from_image(LoadedImage(pixels), torch.from_numpy(mask)[None], boxes)


def bounds(mask: Tensor) -> list[float]:
    rows, columns = mask.any(1).nonzero().flatten(), mask.any(0).nonzero().flatten()
    return [float(v) for v in (columns[0], rows[0], columns[-1] + 1, rows[-1] + 1)]


def steps() -> dict[str, RegionSample]:
    start, spec = marked(), ResizeSpec((31, 37), shorter=41)
    return {
        "hflip": start.hflip(),
        "crop": start.crop(*WINDOW[0], WINDOW[1]),
        "center crop": start.resize(spec),
        "squash": start.resize(ResizeSpec((31, 37), mode="squash")),
        "pad": start.resize(ResizeSpec((61, 37), mode="pad")),
        "enlarged": start.resize(ResizeSpec((167, 251), mode="squash")),
        "all": start.hflip().crop(5, 7, (71, 113)).resize(spec).hflip(),
    }


def test_the_box_and_the_mask_still_surround_the_marked_pixels() -> None:
    for name, sample in steps().items():
        bright = sample.image[0] > 127
        assert bright.any(), name
        [box], [mask] = sample.boxes.tolist(), sample.object_masks
        np.testing.assert_allclose(bounds(bright), box, atol=1.0, err_msg=name)
        np.testing.assert_allclose(bounds(mask), box, atol=1.0, err_msg=name)
        assert (mask != bright).float().mean() < 0.03, name
        corners = torch.tensor([box[:2], box[2:]], dtype=torch.float64)
        left, top, right, bottom = sample.geometry.to_image(corners).flatten().tolist()
        region = sample.geometry.region
        original = [
            max(BOX[0], region[0]),
            max(BOX[1], region[1]),
            min(BOX[2], region[2]),
            min(BOX[3], region[3]),
        ]
        flipped = [min(left, right), min(top, bottom), max(left, right), max(top, bottom)]
        np.testing.assert_allclose(flipped, original, atol=1e-9, err_msg=name)


def test_flips_and_crops_move_pixels_exactly() -> None:
    (top, left), (height, width) = WINDOW
    sample = marked().hflip().crop(top, left, (height, width))
    mask = marked().object_masks.flip(-1)[:, top : top + height, left : left + width]
    assert torch.equal(sample.object_masks, mask)
    assert torch.equal(sample.image, mask.expand(3, -1, -1) * torch.tensor(255, dtype=torch.uint8))
    assert sample.hflip().hflip().geometry == sample.geometry


def test_masks_are_sampled_as_torch_does() -> None:
    noise = torch.rand(3, *SIZE, generator=torch.Generator().manual_seed(0)) < 0.5
    start = marked()
    sample = RegionSample(start.image, noise, start.boxes.expand(3, 4), start.geometry)
    for size in ((31, 37), (167, 251)):
        expected = interpolate(noise[None].float(), size, mode="nearest-exact")[0].bool()
        assert torch.equal(sample.resize(ResizeSpec(size, mode="squash")).object_masks, expected)


def test_padding_is_in_no_mask() -> None:
    whole = marked((0, 0, 127, 83)).resize(ResizeSpec((61, 37), mode="pad"))
    tall = marked((0, 0, 127, 83)).crop(0, 0, (83, 29)).resize(ResizeSpec((31, 61), mode="pad"))
    for sample in (whole, tall):
        np.testing.assert_allclose(
            bounds(sample.object_masks[0]), sample.boxes[0].tolist(), atol=1.0
        )
        assert not sample.object_masks.all()


def test_an_object_outside_of_the_window_stays_and_is_empty() -> None:
    sample = marked().crop(50, 0, (17, 19))
    assert not sample.object_masks.any()
    left, top, right, bottom = sample.boxes[0].tolist()
    assert (right - left) * (bottom - top) == 0


def test_what_does_not_match_is_refused() -> None:
    start = marked()
    with pytest.raises(ValueError, match=r"image must be \(3, 5, 7\), got \(3, 83, 127\)"):
        RegionSample(start.image, start.object_masks, start.boxes, Geometry.identity((5, 7)))
    with pytest.raises(ValueError, match=r"the window \(17, 19\) at \(80, 0\) must lie inside"):
        start.crop(80, 0, (17, 19))
    with pytest.raises(ValueError, match=r"a step after \(83, 127\) starts at \(47, 61\)"):
        start.geometry.then(Geometry.identity((47, 61)))


SPECS = [
    "RandomHorizontalFlip",
    {"RandomResizedCrop": {"size": [31, 37]}},
    {"RandomRotation": {"degrees": 30}},
    {"RandomAffine": {"degrees": 10, "translate": [0.2, 0.2]}},
    "RandomPerspective",
    {"Resize": {"size": [59, 97]}},
]


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("seed", [3, 5, 7])
def test_random_transforms_keep_mask_and_box_on_the_marked_pixels(spec: str, seed: int) -> None:
    moved = JointTransforms([spec], mask_fill=0).move_sample(marked((20, 19, 97, 67)), seed)
    bright = moved.image[0] > 127 + 64  # the outside is gray, the edge in between
    assert moved.object_masks[0].any()
    overlap = (bright & moved.object_masks[0]).sum() / (bright | moved.object_masks[0]).sum()
    assert overlap > 0.9
    np.testing.assert_allclose(moved.boxes[0], bounds(moved.object_masks[0]), atol=1.25)


EXACT = [
    {"RandomHorizontalFlip": {"p": 1.0}},
    {"RandomVerticalFlip": {"p": 1.0}},
    {"RandomCrop": {"size": [47, 61]}},
    {"Pad": {"padding": [3, 5, 7, 11]}},
    {"RandomZoomOut": {"p": 1.0, "side_range": [1.0, 2.0]}},
    {"RandomRotation": {"degrees": [180, 180]}},
]


def test_boxes_are_those_of_moved_rectangles_and_need_no_mask() -> None:
    start = marked()
    bare = RegionSample(start.image, None, start.boxes, start.geometry)
    for spec in EXACT:
        transforms = JointTransforms([spec], mask_fill=0)
        for seed in (3, 5, 7):
            moved, alone = transforms.move_sample(start, seed), transforms.move_sample(bare, seed)
            visible = bool(moved.object_masks[0].any())
            expected = bounds(moved.object_masks[0]) if visible else moved.boxes[0].tolist()
            assert moved.boxes[0].tolist() == pytest.approx(expected, abs=1e-4), spec
            left, top, right, bottom = moved.boxes[0].tolist()
            assert visible == bool(right > left and bottom > top), spec
            assert torch.equal(alone.boxes, moved.boxes), spec
            assert alone.masks is None, spec


def test_a_transform_that_does_nothing_changes_no_target() -> None:
    start = marked()
    annotated = start.boxes + torch.tensor([0.25, -1.5, 3.75, 0.5])  # not those of the mask
    sample = RegionSample(start.image, start.object_masks, annotated, start.geometry)
    for spec in ({"RandomHorizontalFlip": {"p": 0.0}}, {"RandomRotation": {"degrees": [0, 0]}}):
        moved = JointTransforms([spec], mask_fill=0).move_sample(sample, 3)
        torch.testing.assert_close(moved.boxes, annotated, atol=1e-4, rtol=0, msg=str(spec))
        assert torch.equal(moved.object_masks, start.object_masks), spec


def test_transforms_that_drop_boxes_are_refused() -> None:
    dropping = JointTransforms([{"SanitizeBoundingBoxes": {"labels_getter": None}}], mask_fill=0)
    empty = replace(marked(), boxes=torch.zeros(1, 4))
    with pytest.raises(ValueError, match="must keep the 1 boxes of an image, got 0: remove San"):
        dropping.move_sample(empty, 0)


def test_label_maps_ignore_what_lies_outside_of_the_image() -> None:
    labels = torch.full((61, 61), 3, dtype=torch.uint8)
    image = torch.full((3, 61, 61), 255, dtype=torch.uint8)
    rotated, moved = JointTransforms([{"RandomRotation": {"degrees": [45, 45]}}])(image, labels, 0)
    assert moved.unique().tolist() == [3, IGNORE_CLASS]
    assert rotated[:, moved == IGNORE_CLASS].unique().tolist() == [127]


def test_the_seed_decides_the_transform_and_the_global_generator_does_not_move() -> None:
    state, sample = torch.random.get_rng_state(), marked()
    jitter = JointTransforms([{"RandomAffine": {"degrees": 30}}], mask_fill=0)
    first, again, other = (jitter.move_sample(sample, seed) for seed in (1, 1, 2))
    assert torch.equal(first.image, again.image)
    assert torch.equal(first.object_masks, again.object_masks)
    assert not torch.equal(first.image, other.image)
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("RandomHorizontalFlop", "unknown transform 'RandomHorizontalFlop'; did you mean"),
        ({"RandomRotation": {"angle": 3}}, "RandomRotation does not accept these options"),
        ({"Resize": {}, "Pad": {}}, "one name with its options, got Resize, Pad"),
    ],
)
def test_unknown_transforms_are_refused(spec: dict[str, dict[str, int]], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        JointTransforms([spec])


def test_transforms_to_floats_are_refused() -> None:
    floats = JointTransforms([{"ConvertImageDtype": {"dtype": torch.float32}}])
    with pytest.raises(TypeError, match="uint8 image and its masks, got torch.float32"):
        floats(torch.zeros(3, 5, 7, dtype=torch.uint8), torch.zeros(5, 7, dtype=torch.uint8), 0)
