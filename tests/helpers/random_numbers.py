"""Random numbers of a seed of their own."""

import torch
from torch import Tensor


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return normally distributed numbers, which are the same at each call."""
    random = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=random, dtype=torch.float64).to(dtype)


def pixels(*shape: int, seed: int = 3) -> Tensor:
    """Return uniform uint8 noise, which is the same at each call."""
    random = torch.Generator().manual_seed(seed)
    return torch.randint(256, shape, dtype=torch.uint8, generator=random)
