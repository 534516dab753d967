"""Captions, recorded layers and maps of methods, as pages show them."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import nn

from visattn.geometry.affine import Geometry
from visattn.recording.model_info import ModelInfo
from visattn.recording.subject import Subject
from visattn.results.attention_map import AttentionMap
from visattn.results.captions import Caption
from visattn.results.info import MapInfo
from visattn.results.values import RecordedLayer


def explained_model(name: str = "ViT") -> Subject:
    """Return a model that is not run, whose class token is read."""
    info = ModelInfo(name, "timm", (48, 80), (0.5,), (0.5,), "class")
    return Subject(nn.Identity(), info, nn.Identity())


def layer_of(
    index: int,
    weights: Float[np.ndarray, "h q y x"],
    prefix: tuple[str, ...] = (),
    num_prefix_keys: int = 0,
    site: str = "",
) -> RecordedLayer:
    """Return a layer whose queries lie on the grid of its keys."""
    heads, grid = tuple(range(len(weights))), (weights.shape[2], weights.shape[3])
    values = torch.from_numpy(weights)
    site = site or f"blocks.{index}"
    return RecordedLayer(index, site, values, heads, grid, prefix, num_prefix_keys)


def method_map(
    name: str, values: Float[np.ndarray, "y x"], place: Geometry, **info: Any
) -> AttentionMap:
    """Return the map of a method, placed on the photo."""
    return AttentionMap(torch.from_numpy(values), name, "gradient", place, MapInfo(name, **info))


def caption_of(
    words: tuple[str, ...],
    maps: Float[np.ndarray, "t y x"],
    size: tuple[int, int],
    log_probs: tuple[float, ...] = (),
    gates: tuple[float, ...] = (),
    **more: Any,
) -> Caption:
    """Return a caption of a photo of a size; its maps lie on all of it."""
    values = torch.from_numpy(np.asarray(maps, np.float32))
    placed = AttentionMap(values, "attend", "words", Geometry.identity(size))
    more = {"score": -0.5, "finished": True, **more}
    return Caption(words, log_probs, gates, placed, **more)
