"""Classifiers: normalization, class names, parameter groups."""

import pytest
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor, nn

from visattn.blocks.registry import create_block
from visattn.models.base import ImageClassifier


class Means(ImageClassifier):
    """A classifier that depends on the mean of its input only."""

    def __init__(self, channels: int = 3, classes: tuple[str, ...] = ("cat", "dog")) -> None:
        super().__init__(classes, (5, 7), (0.5,) * channels, (0.25,) * channels)
        self.block = create_block("se", channels)
        self.fc = nn.Linear(channels, len(classes))

    @property
    def head(self) -> nn.Module:
        return self.fc

    def classify(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b k"]:
        return self.fc(self.block(images).mean((2, 3)))


class Questions(nn.Module):
    """A module that excludes one of its two matrices from weight decay."""

    NO_WEIGHT_DECAY = ("queries", "absent")

    def __init__(self) -> None:
        super().__init__()
        self.queries, self.other = nn.Parameter(torch.ones(2, 3)), nn.Parameter(torch.ones(2, 3))
        self.absent = None


def noise(*shape: int) -> Tensor:
    random = torch.Generator().manual_seed(3)
    return torch.randint(256, shape, dtype=torch.uint8, generator=random)


def test_vectors_and_named_parameters_have_no_weight_decay() -> None:
    model = Means()
    model.questions = Questions()
    spared = {id(weight) for weight in model.no_weight_decay_parameters()}
    names = {name for name, weight in model.named_parameters() if id(weight) in spared}
    single = {name for name, weight in model.named_parameters() if weight.ndim < 2}
    assert names == single | {"questions.queries"}
    assert {"fc.bias"} < single


def test_uint8_images_are_normalized() -> None:
    images = torch.tensor([0, 51, 255], dtype=torch.uint8).expand(2, 3, 5, 7, 3)[..., :3]
    black, dark, white = (images[..., index].contiguous() for index in range(3))
    for pixels, expected in ((black, -2.0), (dark, -1.2), (white, 2.0)):
        actual = Means().normalize(pixels)
        torch.testing.assert_close(actual, torch.full_like(actual, expected))


def test_logits_are_those_of_normalized_images() -> None:
    model, images = Means(), noise(2, 3, 5, 7)
    assert torch.equal(model(images), model.classify(model.normalize(images)))


def test_gray_conversion_matches_pillow() -> None:
    images = noise(2, 3, 5, 7)
    actual = Means(1).normalize(images) * 0.25 * 255 + 0.5 * 255
    for gray, image in zip(actual[:, 0], images, strict=True):
        expected = torch.tensor(
            list(Image.fromarray(image.permute(1, 2, 0).numpy()).convert("L").tobytes())
        )
        assert (gray.flatten() - expected).abs().max() <= 0.51  # Pillow rounds


@pytest.mark.parametrize("shape", [(1, 3, 7, 5), (1, 1, 5, 7), (1, 4, 5, 7)])
def test_wrong_image_size_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"images must be \[batch, 3, 5, 7\], got \[1, "):
        Means()(torch.zeros(shape, dtype=torch.uint8))


@pytest.mark.parametrize("classes", [("cat",), ("cat", "cat")])
def test_class_names_must_be_unique(classes: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="class_names must be at least two distinct names"):
        Means(classes=classes)


def test_mean_and_std_have_one_or_three_channels() -> None:
    with pytest.raises(ValueError, match="mean and std 1 or 3 channels"):
        Means(2)


def test_each_parameter_is_in_one_group() -> None:
    model = Means()
    parts = model.parameter_groups()
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = {part: sorted(names[id(p)] for p in members) for part, members in parts.items()}
    assert groups == {
        "backbone": [],
        "blocks": sorted(f"block.{name}" for name, _ in model.block.named_parameters()),
        "head": ["fc.bias", "fc.weight"],
    }


def test_state_dict_has_weights_only() -> None:
    assert not {"shift", "scale", "luma"} & set(Means().state_dict())
