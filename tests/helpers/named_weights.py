"""Weights that follow from their names alone, whatever the order in which a model makes them."""

import zlib
from typing import TypeVar

import numpy as np
import torch
from torch import nn

Model = TypeVar("Model", bound=nn.Module)


@torch.no_grad()
def fill(model: Model) -> Model:
    """Give a model weights of usual sizes, and its running statistics; return it for evaluation."""
    for name, tensor in model.state_dict(keep_vars=True).items():
        if not (isinstance(tensor, nn.Parameter) or name.endswith(("running_mean", "running_var"))):
            continue
        noise = torch.from_numpy(
            np.random.RandomState(zlib.crc32(name.encode())).uniform(-1, 1, tuple(tensor.shape))
        ).to(tensor)
        if tensor.ndim > 1:
            noise /= (tensor[0].numel() / 3) ** 0.5
        elif name.endswith(("weight", "running_var")):
            noise = 1 + noise / 4
        else:
            noise /= 4
        tensor.copy_(noise)
    return model.eval()


def waves(*shape: int, seed: int = 0) -> torch.Tensor:
    """Return smooth uint8 images `[b 3 y x]` with some noise."""
    random = np.random.RandomState(seed)
    *_, height, width = shape
    y, x = np.mgrid[:height, :width] / np.array([height, width])[:, None, None]
    waves = np.sin(2 * np.pi * (random.uniform(0, 2, shape) / 9 + y + 2 * x * random.uniform(0, 1)))
    return torch.from_numpy((127 + 90 * waves + random.uniform(-30, 30, shape)).astype(np.uint8))
