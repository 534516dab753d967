"""Captions and glimpses of the frames of a video, as maps that `overlay_video` draws."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from visattn.images.reader import ImageLike
from visattn.images.resize import ResizeMode
from visattn.pipelines.captioning import caption
from visattn.pipelines.scanpath import Policy, glimpses
from visattn.results.attention_map import AttentionMap
from visattn.results.captions import Caption
from visattn.results.info import MapInfo
from visattn.results.values import ScanPath


class FrameCaptions:
    """Captions frames; takes the place of an `Explainer` in `overlay_video`.

    The map of a frame is the mean of the maps of its words, weighted by their gates; the caption is
    written below the frame, and its words, gates and log-probabilities are in the details.

    Args:
        model: A trained captioner.
        options: Options of `visattn.caption`, such as `beam_size`.

    Example:
        >>> import numpy as np
        >>> from visattn.models import SPECIAL_TOKENS, ShowAttendTell, SmallEncoder
        >>> model = ShowAttendTell((*SPECIAL_TOKENS, "red"), SmallEncoder((24, 40), channels=8))
        >>> frames = FrameCaptions(model, max_length=3)
        >>> [heatmap] = frames.map(frames.prepare([np.zeros((48, 64, 3), np.uint8)]))
        >>> heatmap.values.shape, sorted(heatmap.info.more["details"])
        (torch.Size([3, 5]), ['gates', 'log_probs', 'words'])
    """

    text_lines = 3  # below each frame

    def __init__(self, model: nn.Module, **options: Any) -> None:
        self.model, self.options = model, options

    def prepare(self, frames: Sequence[ImageLike]) -> Sequence[ImageLike]:
        """Return the frames: the captioner prepares them itself."""
        return frames

    def map(self, frames: Sequence[ImageLike], *_: Any, **__: Any) -> list[AttentionMap]:
        """Return the mean map of the words of each frame; method and target are not used."""
        return [_mean_map(each) for each in caption(self.model, frames, **self.options)]


class FrameGlimpses:
    """Classifies frames with a glimpse model; takes the place of an `Explainer`.

    The map of a frame is the resolution at which its parts were seen; the scan path is drawn on the
    frame, and boxes, locations and probability are in the details. Each frame is a new image to the
    model: it does not remember the frames before.

    Args:
        model: A trained glimpse model.
        policy: As for `visattn.pipelines.glimpses`.
        seed: Seed of random locations.
        resize_mode: How frames get the shape of the input.

    Example:
        >>> import numpy as np
        >>> from visattn.models import RecurrentAttentionModel
        >>> model = RecurrentAttentionModel(("cat", "dog"), (24, 40), [0.5] * 3, [0.2] * 3)
        >>> frames = FrameGlimpses(model)
        >>> [heatmap] = frames.map(frames.prepare([np.zeros((48, 64, 3), np.uint8)]))
        >>> heatmap.values.shape, len(heatmap.info.more["details"]["boxes"])
        (torch.Size([24, 40]), 6)
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        policy: Policy = "greedy",
        seed: int = 0,
        resize_mode: ResizeMode = "crop",
    ) -> None:
        self.model = model
        self.options: dict[str, Any] = {
            "policy": policy, "seed": seed, "resize_mode": resize_mode,
        }  # fmt: skip

    def prepare(self, frames: Sequence[ImageLike]) -> Sequence[ImageLike]:
        """Return the frames: the model prepares them itself."""
        return frames

    def map(self, frames: Sequence[ImageLike], *_: Any, **__: Any) -> list[AttentionMap]:
        """Return the resolution map of each frame; method and target are not used."""
        return [_resolution_map(scan) for scan in glimpses(self.model, frames, **self.options)]


def _mean_map(result: Caption) -> AttentionMap:
    maps, gates = result.maps.values, torch.tensor(result.gates)
    if len(result.words):
        values = (maps * gates.view(-1, 1, 1)).sum(0) / gates.sum().clamp_min(1e-6)
    else:
        values = maps.new_zeros(maps.shape[1:])
    details = {
        "words": list(result.words),
        "log_probs": list(result.log_probs),
        "gates": list(result.gates),
    }
    more = {"subtitle": result.text or "(no words)", "details": details}
    info = MapInfo(class_name=result.text, more=more)
    return AttentionMap(values, result.maps.site, "words", result.maps.geometry, info)


def _resolution_map(scan: ScanPath) -> AttentionMap:
    details = {
        "probability": scan.probability,
        "locations": scan.locations.tolist(),
        "boxes": scan.boxes[: scan.labels[-1].glimpse + 1].tolist(),
    }
    text = f"{scan.prediction}   {scan.probability:.2f}"
    info = MapInfo(class_name=scan.prediction, more={"subtitle": text, "details": details})
    values = scan.maps.values.amax(0)
    return AttentionMap(values, "retina", "glimpse", scan.maps.geometry, info)
