"""Augmentations: equal to plain loops, and reproducible for each image."""

from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Generator, Tensor
from torch.nn.functional import pad
from torchvision.transforms import v2
from torchvision.transforms.v2.functional import rotate

from visattn.data.augment.images import (
    Affine,
    PerImageTransform,
    RandomHorizontalFlip,
    RandomTranslate,
    build_augmentation,
)


def noise(*shape: int) -> Tensor:
    return torch.randint(256, shape, dtype=torch.uint8, generator=seeded(3))


def seeded(seed: int) -> Generator:
    return torch.Generator().manual_seed(seed)


def drawn(draws: int, count: int, seed: int) -> Tensor:
    """Random numbers of each image."""
    return torch.rand(draws, count, generator=seeded(seed)).T


@given(pixels=st.integers(0, 9), seed=st.integers(0, 99))
def test_translated_images_are_crops_with_black_padding(pixels: int, seed: int) -> None:
    images = noise(5, 2, 7, 11)
    output = RandomTranslate(pixels)(images, drawn(2, 5, seed))
    for image, shifted in zip(images, output, strict=True):
        wide = pad(image, (pixels,) * 4)
        cuts = [
            wide[:, y : y + 7, x : x + 11]
            for y in range(2 * pixels + 1)
            for x in range(2 * pixels + 1)
        ]
        assert any(torch.equal(shifted, cut) for cut in cuts)


def test_translations_are_independent_and_in_every_direction() -> None:
    dots = torch.zeros(997, 1, 7, 7, dtype=torch.uint8)
    dots[:, :, 3, 3] = 1
    places = RandomTranslate(2)(dots, drawn(2, 997, 0)).nonzero()[:, 2:]
    assert len(places) == 997
    assert {tuple(place) for place in places.tolist()} == {
        (y, x) for y in range(1, 6) for x in range(1, 6)
    }


def test_flip_probability() -> None:
    images = noise(997, 1, 3, 5)
    output = RandomHorizontalFlip(0.25)(images, drawn(1, 997, 0))
    same = (output == images).flatten(1).all(1)
    turned = (output == images.flip(-1)).flatten(1).all(1)
    assert (same ^ turned).all()
    assert 0.2 < turned.float().mean() < 0.3


def test_affine_defaults_to_identity() -> None:
    images = noise(5, 3, 7, 11)
    assert torch.equal(Affine()(images), images)


def test_rotation_matches_torchvision() -> None:
    images = noise(2, 3, 31, 31)
    angles = (2 * torch.rand(4, 2, generator=seeded(0))[0] - 1) * 30
    for image, output, angle in zip(
        images, Affine(degrees=30)(images, drawn(4, 2, 0)), angles.tolist(), strict=True
    ):
        bilinear = v2.InterpolationMode.BILINEAR
        wanted = rotate(
            image, -angle, interpolation=bilinear
        )  # torchvision rotates counterclockwise
        assert (output.float() - wanted.float()).abs().max() <= 1


@given(seed=st.integers(0, 99))
def test_affine_parameters_place_the_image(seed: int) -> None:
    blob = torch.zeros(3, 1, 29, 29, dtype=torch.uint8)
    blob[:, :, 10:19, 10:19] = 255
    affine = Affine(scale=(0.5, 1.5), translate=0.2, canvas_size=(61, 83))
    output = affine(blob, drawn(4, 3, seed)).float()[:, 0]
    _, scale, right, down = torch.rand(4, 3, generator=seeded(seed))
    mass = output.sum((1, 2)) / 255
    torch.testing.assert_close(mass.sqrt(), 9 * (0.5 + scale), rtol=0.1, atol=0.1)
    x = (output.sum(1) * (torch.arange(83) + 0.5)).sum(1) / output.sum((1, 2))
    y = (output.sum(2) * (torch.arange(61) + 0.5)).sum(1) / output.sum((1, 2))
    torch.testing.assert_close(x, 41.5 + (2 * right - 1) * 0.2 * 83, rtol=0, atol=0.3)
    torch.testing.assert_close(y, 30.5 + (2 * down - 1) * 0.2 * 61, rtol=0, atol=0.3)


ALL = {
    "RandomHorizontalFlip": "RandomHorizontalFlip",
    "RandomTranslate": "RandomTranslate",
    "Affine": {"Affine": {"degrees": 45, "scale": [0.7, 1.2], "translate": 0.1}},
    "RandomRotation": {"RandomRotation": {"degrees": 90}},
    "RandAugment": "RandAugment",
}


@pytest.mark.parametrize("spec", ALL.values(), ids=ALL)
def test_result_is_independent_of_the_batch(spec: Any) -> None:
    made, images = build_augmentation(spec), noise(11, 3, 13, 17)
    uniforms = torch.rand(11, made.num_uniforms, generator=seeded(1), dtype=torch.float64)
    output = made(images, uniforms)
    torch.manual_seed(5)  # without effect, and restored
    before = torch.get_rng_state()
    for row in (7, 2):
        assert torch.equal(made(images[row : row + 1], uniforms[row : row + 1])[0], output[row])
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(made(images, uniforms.roll(1, 0)), output)


def test_largest_random_number_is_in_range() -> None:
    last = torch.tensor([[1 - 2.0**-53] * 2])
    dots = torch.zeros(1, 1, 9, 9, dtype=torch.uint8)
    dots[..., 4, 4] = 1
    assert RandomTranslate(4)(dots, last.double()).nonzero()[0, 2:].tolist() == [0, 0]


def test_torchvision_transforms_are_sampled_per_image() -> None:
    images = noise(41, 3, 9, 9)
    made = build_augmentation({"RandomCrop": {"size": [5, 7]}})
    output = made(images)
    assert output.shape == (41, 3, 5, 7)
    firsts = {
        next(
            (y, x)
            for y in range(5)
            for x in range(3)
            if torch.equal(whole[:, y : y + 5, x : x + 7], cut)
        )
        for whole, cut in zip(images, output, strict=True)
    }
    assert len(firsts) > 5


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    "spec",
    [
        {"RandAugment": {"num_ops": 2, "magnitude": 9, "num_magnitude_bins": 11}},
        "TrivialAugmentWide",
        {"RandomErasing": {"p": 1.0, "value": [124]}},
    ],
)
def test_torchvision_policies_accept_gray_and_color_images(spec: Any, channels: int) -> None:
    images, kept = noise(53, channels, 13, 11), noise(53, channels, 13, 11)
    torch.manual_seed(0)
    changed = build_augmentation(spec)(images)
    assert changed.dtype == torch.uint8
    assert changed.shape == images.shape
    assert torch.equal(images, kept)
    same = (changed == images).flatten(1).all(1)
    assert same.float().mean() < 0.5


def test_transforms_without_uint8_output_are_refused() -> None:
    made = PerImageTransform(v2.ToDtype(torch.float32, scale=True))
    with pytest.raises(
        TypeError, match=r"ToDtype returns torch\.float32, but augmentations must return uint8"
    ):
        made(noise(1, 3, 5, 7))


def test_a_transform_that_fails_leaves_the_random_state() -> None:
    before, uniforms = torch.get_rng_state(), torch.full((2, 1), 0.5)
    with pytest.raises(TypeError, match="of the transform"):
        PerImageTransform(fail)(noise(2, 3, 5, 7), uniforms)  # type: ignore[arg-type]
    assert torch.equal(torch.get_rng_state(), before)


def fail(_: torch.Tensor) -> torch.Tensor:
    raise TypeError("of the transform")


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("Miror", "unknown augmentation 'Miror'; choose from RandomHorizontalFlip"),
        ("RandomHorizontalFlop", "did you mean RandomHorizontalFlip"),
        ("functional", "unknown augmentation 'functional'"),
        (
            {"RandomTranslate": {"pixel": 3}},
            "RandomTranslate does not accept these options: .*'pixel'",
        ),
        ({"RandomCrop": {"sise": 3}}, "RandomCrop does not accept these options"),
        (
            {"RandomTranslate": {}, "RandomHorizontalFlip": {}},
            "one name with its options, got RandomTranslate, RandomHorizontalFlip",
        ),
        ({"RandomTranslate": {"pixels": -1}}, "pixels must be at least 0, got -1"),
        ({"RandomHorizontalFlip": {"p": 2}}, "p must lie between 0 and 1, got 2"),
        ({"Affine": {"scale": [2, 1]}}, "scale must be a smallest and a largest factor"),
    ],
)
def test_invalid_options_are_refused(spec: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        build_augmentation(spec)
