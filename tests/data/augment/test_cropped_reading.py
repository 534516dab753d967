"""Random resized crops while a photo is read: equal crops, DCT scaling, rotations, safety."""

import io
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import v2

from visattn.data.augment.images import PerImageTransform, RandomResizedCrop, build_augmentation
from visattn.images.reader import ImageError, read_image

UNIFORMS = torch.rand(7, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def gradient_jpeg(height: int, width: int, orientation: int = 1) -> bytes:
    """Return a smooth JPEG, so that scaling by the decoder hardly changes it."""
    y, x = np.mgrid[:height, :width]
    pixels = np.stack([x * 255 / width, y * 255 / height, (x + y) * 255 / (height + width)], -1)
    file, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(pixels.astype(np.uint8)).save(file, "JPEG", quality=98, exif=exif)
    return file.getvalue()


def decoded_crop(photo: bytes, uniform: Tensor, **options: Any) -> Tensor:
    """Return torchvision's crop of all decoded pixels."""
    pixels = torch.from_numpy(read_image(photo).pixels.transpose(2, 0, 1).copy())
    return PerImageTransform(v2.RandomResizedCrop(**options))(pixels[None], uniform[None])[0]


@pytest.mark.parametrize("orientation", [1, 3, 6])
def test_crop_without_dct_scaling_is_that_of_torchvision(orientation: int) -> None:
    photo, options = gradient_jpeg(61, 89, orientation), {"size": (31, 37)}
    crop = build_augmentation({"RandomResizedCrop": {"size": [31, 37]}})
    assert isinstance(crop, RandomResizedCrop)
    for uniform in UNIFORMS:
        torch.testing.assert_close(
            crop.read(photo, uniform, dct_scaling=False), decoded_crop(photo, uniform, **options)
        )


@pytest.mark.parametrize("orientation", [1, 3, 6])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_dct_scaling_keeps_place_and_colors(orientation: int, interpolation: str) -> None:
    photo = gradient_jpeg(413, 587, orientation)
    options = {"size": 23, "interpolation": v2.InterpolationMode(interpolation)}
    crop = RandomResizedCrop(**options)
    for uniform in UNIFORMS:
        expected = decoded_crop(photo, uniform, **options)
        difference = (crop.read(photo, uniform).int() - expected.int()).abs()
        assert difference.max() <= 6, orientation
        assert difference.float().mean() < 2


def test_only_crops_of_twice_the_size_are_scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    drafted: list[tuple[int, int]] = []
    monkeypatch.setattr(
        "PIL.JpegImagePlugin.JpegImageFile.draft", lambda _, mode, size: drafted.append(size)
    )
    photo = gradient_jpeg(90, 90)
    whole = {"scale": (1, 1), "ratio": (1, 1)}
    for size, factor in ((46, 1), (45, 2), (22, 4), (11, 8), (3, 8)):
        RandomResizedCrop(size=size, **whole).read(photo, UNIFORMS[0])
        assert drafted.pop() == (90 // factor, 90 // factor), size
    nearest = RandomResizedCrop(size=11, interpolation=v2.InterpolationMode.NEAREST, **whole)
    nearest.read(photo, UNIFORMS[0])
    assert not drafted


def test_damaged_and_huge_photos_are_refused_as_by_the_reader() -> None:
    crop, photo = RandomResizedCrop(size=3), gradient_jpeg(413, 587)
    with pytest.raises(ImageError, match="truncated"):
        crop.read(photo[: len(photo) // 2], UNIFORMS[0])
    header = photo.index(b"\xff\xc0") + 5
    huge = photo[:header] + b"\xff\x00\xff\x00" + photo[header + 4 :]
    with pytest.raises(ImageError, match="more than max_pixels|exceeds limit"):
        crop.read(huge, UNIFORMS[0])
