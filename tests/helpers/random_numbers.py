"""Random numbers and photos of a seed of their own."""

import io

import numpy as np
import torch
from PIL import Image
from torch import Tensor


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return normally distributed numbers, which are the same at each call."""
    random = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=random, dtype=torch.float64).to(dtype)


def pixels(*shape: int, seed: int = 3) -> Tensor:
    """Return uniform uint8 noise, which is the same at each call."""
    random = torch.Generator().manual_seed(seed)
    return torch.randint(256, shape, dtype=torch.uint8, generator=random)


def uniform(*shape: int, seed: int = 0) -> Tensor:
    """Return numbers from 0 to 1, which are the same at each call."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def photo(height: int = 61, width: int = 83, seed: int = 0) -> np.ndarray:
    """Return a photo of uniform noise, which is the same at each call."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def png(pixels: np.ndarray) -> bytes:
    """Return a photo as a PNG file."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    return file.getvalue()
