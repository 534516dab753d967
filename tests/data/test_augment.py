"""Transforms of torchvision, drawn from the seed of a sample."""

import pytest
import torch
from torchvision.transforms import v2

from visattn.data.augment import augment, fill_outside

HEIGHT, WIDTH = 24, 40
TRANSFORMS = [
    [v2.RandomHorizontalFlip()],
    [v2.RandomResizedCrop((17, 19), scale=(0.3, 1.0))],
    [v2.RandomAffine([-30, 30], translate=(0.2, 0.2), scale=(0.8, 1.3))],
    [v2.RandomCrop((HEIGHT, WIDTH), padding=5), v2.RandomVerticalFlip()],
    [v2.RandomZoomOut(side_range=(1.0, 2.0), p=1.0)],
]


def scene(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return an image of two bright rectangles, their masks and their boxes."""
    generator = torch.Generator().manual_seed(seed)
    image, masks, boxes = torch.zeros(3, HEIGHT, WIDTH).byte(), [], []
    for level in (120, 250):
        left, top = (
            int(torch.randint(3, m - 14, (1,), generator=generator)) for m in (WIDTH, HEIGHT)
        )
        mask = torch.zeros(HEIGHT, WIDTH, dtype=torch.bool)
        mask[top : top + 9, left : left + 11] = True
        image[:, mask] = level
        masks.append(mask)
        boxes.append([left, top, left + 11, top + 9])
    return image, torch.stack(masks), torch.tensor(boxes).float()


@pytest.mark.parametrize("number", range(len(TRANSFORMS)))
def test_masks_and_boxes_follow_the_pixels(number: int) -> None:
    transforms = fill_outside(TRANSFORMS[number], mask_fill=0)
    for seed in range(20):
        image, masks, boxes = scene(seed)
        moved, moved_masks, moved_boxes = augment(transforms, seed, image, masks=masks, boxes=boxes)
        assert moved_masks is not None
        assert moved_boxes is not None
        bright = moved[0] > 200  # the second rectangle, which lies above the first
        assert float((bright & ~moved_masks[1]).float().mean()) < 0.03
        assert float((bright ^ moved_masks[1]).float().mean()) < 0.06
        left, top, right, bottom = moved_boxes[1].tolist()
        y, x = torch.where(moved_masks[1])
        if len(y):
            edges = [left - int(x.min()), top - int(y.min())]
            edges += [int(x.max()) + 1 - right, int(y.max()) + 1 - bottom]
            assert max(edges) <= 1.5


def test_the_seed_alone_decides_and_the_global_generator_is_left_alone() -> None:
    image = torch.randint(256, (3, 9, 11), dtype=torch.uint8)
    transforms = [v2.RandomRotation([-90, 90]), v2.ColorJitter(0.5, 0.5), v2.RandAugment()]
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first, *others = (augment(transforms, seed, image)[0] for seed in (3, 3, 4, 5, 6))
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(7)
    assert torch.equal(augment(transforms, 3, image)[0], first)
    assert torch.equal(others[0], first)
    assert len({each.numpy().tobytes() for each in (first, *others[1:])}) == 4
    with_masks = augment(transforms[:2], 3, image, masks=image[:1])[0]
    assert torch.equal(with_masks, augment(transforms[:2], 3, image)[0])


def test_uncovered_pixels_are_gray_and_ignored_unless_a_color_is_named() -> None:
    labels = torch.ones(1, 8, 8, dtype=torch.uint8)
    image = labels.expand(3, -1, -1) * 200
    for fill, gray in ((0, 127), (30, 30)):
        shifted = fill_outside([v2.RandomAffine([0, 0], translate=(0.9, 0.9), fill=fill)])
        for seed in range(9):
            moved, masks, _ = augment(shifted, seed, image, masks=labels)
            assert masks is not None
            outside = masks[0] == 255
            assert set(masks.unique().tolist()) <= {1, 255}
            assert (moved[:, outside] == gray).all()
            assert (moved[:, ~outside] == 200).all()


def test_transforms_that_break_the_input_are_refused() -> None:
    image, _, boxes = scene(0)
    with pytest.raises(TypeError, match=r"must return uint8, got torch\.float32"):
        augment([v2.ToDtype(torch.float32, scale=True)], 0, image)
    sanitize = [v2.RandomCrop((4, 4)), v2.SanitizeBoundingBoxes(labels_getter=None)]
    with pytest.raises(ValueError, match="must keep the 2 boxes"):
        augment(sanitize, 0, image, boxes=boxes)
