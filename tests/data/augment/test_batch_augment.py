"""Augmentations of a batch on its device: distributed as those of torchvision."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor
from torchvision.transforms import v2

from visattn.data.augment.images import (
    RandAugment,
    RandomErasing,
    RandomHorizontalFlip,
    RandomTranslate,
    build_batch_transform,
)
from visattn.data.classification.datasets import InMemoryImages, WithUniforms

COUNT = 1999


def noise(*shape: int, seed: int = 3) -> Tensor:
    return torch.randint(
        256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed)
    )


def uniforms(transform: Any, count: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, transform.num_uniforms, generator=generator, dtype=torch.float64)


def test_images_that_draw_the_same_operation_get_what_each_gets_alone() -> None:
    images, transform = noise(61, 3, 17, 13), RandAugment(num_ops=2, magnitude=20)
    numbers = uniforms(transform, 61)
    together = transform(images, numbers)
    for index in range(61):
        alone = transform(images[index : index + 1], numbers[index : index + 1])[0]
        assert (together[index].int() - alone.int()).abs().max() <= 1  # rounding of resampling
    assert len({tuple(image.flatten().tolist()) for image in together}) == 61


def test_randaugment_has_the_distribution_of_torchvision() -> None:
    """Of one photo, the frequency of each possible result."""
    [photo] = noise(1, 3, 11, 7)
    ours, theirs = RandAugment(num_ops=1, magnitude=15), v2.RandAugment(num_ops=1, magnitude=15)
    batch = ours(photo.expand(COUNT, -1, -1, -1), uniforms(ours, COUNT))
    with torch.random.fork_rng():
        torch.manual_seed(5)
        results = [theirs(photo) for _ in range(COUNT)]
    counts = [
        Counter(tuple(image.flatten().tolist()) for image in images) for images in (batch, results)
    ]
    assert counts[0].keys() == counts[1].keys()
    for key, count in counts[0].items():
        assert abs(count - counts[1][key]) < 5 * (count + counts[1][key]) ** 0.5


@pytest.mark.parametrize("options", [{"p": 0.5}, {"p": 1.0, "scale": (0.3, 0.9)}])
def test_random_erasing_has_the_distribution_of_torchvision(options: dict[str, Any]) -> None:
    """The probability that a pixel is erased, and that of each height and width."""
    white = torch.full((1, 9, 14), 255, dtype=torch.uint8)
    ours, theirs = RandomErasing(**options), v2.RandomErasing(**options)
    erased = [ours(white.expand(COUNT, -1, -1, -1), uniforms(ours, COUNT))[:, 0] == 0]
    with torch.random.fork_rng():
        torch.manual_seed(5)
        erased.append(torch.stack([theirs(white)[0] for _ in range(COUNT)]) == 0)
    for statistic in (
        lambda masks: masks,
        lambda masks: torch.nn.functional.one_hot(masks.any(2).sum(1), 10),
        lambda masks: torch.nn.functional.one_hot(masks.any(1).sum(1), 15),
    ):
        means = [statistic(masks).double().mean(0) for masks in erased]
        spread = (means[0] * (1 - means[0]) + means[1] * (1 - means[1])).clamp(min=1e-9) / COUNT
        assert ((means[0] - means[1]).abs() <= 5 * spread.sqrt() + 3 / COUNT).all()


def test_values_of_erased_pixels_are_per_channel() -> None:
    images = RandomErasing(p=1.0, value=(7, 8, 9))(noise(5, 3, 8, 8).clamp(min=50))
    for channel, value in enumerate((7, 8, 9)):
        assert (images[:, channel] == value).flatten(1).any(1).all()
    with pytest.raises(ValueError, match=r"scale be a smallest.*got p=1.0, scale=\(0.9, 0.1\)"):
        RandomErasing(p=1.0, scale=(0.9, 0.1))


def test_a_batch_transform_gives_what_the_dataset_would() -> None:
    """The random numbers of an image depend on its index and epoch, not on its batch."""
    images, labels = noise(7, 1, 5, 9), torch.arange(7)
    transforms = (RandomHorizontalFlip(), RandomTranslate(1))
    dataset = WithUniforms(InMemoryImages(images, labels), transforms, seed=4)
    whole = dataset[[3, 1, 10, 5]].transform(transforms)
    part = dataset[[10, 3]].transform(transforms)
    assert torch.equal(part.images, whole.images[[2, 0]])
    assert torch.equal(part.labels, torch.tensor([3, 3]))
    assert not torch.equal(whole.images[0], whole.images[2])  # another epoch
    expected = images[[3, 1, 3, 5]]
    for transform, numbers in zip(
        transforms, dataset[[3, 1, 10, 5]].uniforms.split([1, 2], 1), strict=True
    ):
        expected = transform(expected, numbers)
    assert torch.equal(whole.images, expected)


def test_unknown_transforms_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown transform of a batch 'RandomErase'.*Erasing"):
        build_batch_transform("RandomErase")
    with pytest.raises(ValueError, match="RandAugment does not accept these options"):
        build_batch_transform({"RandAugment": {"power": 9}})
