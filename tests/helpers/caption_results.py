"""Captions with maps that cover their photo."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from visattn.geometry.affine import Geometry
from visattn.results.attention_map import AttentionMap
from visattn.results.captions import Caption


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
