"""Overlays of the same images while a model trains."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image
from torch import nn

from visattn.images.reader import ImageLike, LoadedImage
from visattn.images.sources import read_images
from visattn.pipelines.explainer import explain
from visattn.results.attention_map import AttentionMap
from visattn.results.captions import Caption
from visattn.viz.captions import caption_figure
from visattn.viz.figures import rgb
from visattn.viz.heatmap import resize_image
from visattn.viz.maps import overlay

_LONGEST = 320  # pixels of an overlay
_WORDS_WIDTH = 900  # pixels of a panel of words


class AttentionPanels:
    """Draws the maps of the same images every few hundred steps of a training.

    `AttentionLogger` of `visattn.training` does this in any Lightning training, and
    `visattn.integrations.transformers.AttentionCallback` in a Trainer of Hugging Face.

    Args:
        images: Images to follow: files, folders, bytes, PIL images or RGB arrays, of any size.
        folder: Folder of the panels, one for each step inside it.
        method: Method of `visattn.explain`, the same for all images.
        target: Class to explain; None explains the predicted class of each step.
        every_n_steps: Number of steps between panels.
        options: Further arguments of `visattn.explain`: `transform`, `input_size`, `class_names`,
            `layers` and others.

    Raises:
        ImageError: If an image cannot be read.

    Example:
        >>> from visattn.models import AttentionResNet
        >>> model = AttentionResNet(("cat", "dog"), depth=8, stem_width=4)
        >>> photo = np.random.default_rng(0).integers(0, 255, (60, 80, 3), np.uint8)
        >>> panels = AttentionPanels(photo, getfixture("tmp_path"), method="input_gradient")
        >>> for step in range(3):  # after optimizer.step()
        ...     if panels.is_due(step):
        ...         print(step, list(panels.draw(model, step)))
        0 ['1-image']
    """

    def __init__(
        self,
        images: Iterable[ImageLike] | ImageLike,
        folder: str | Path,
        *,
        method: str = "gradcam",
        target: Any = None,
        every_n_steps: int = 500,
        **options: Any,
    ) -> None:
        self.images = list(read_images(images))
        self.folder = Path(folder)
        self.method = method
        self.target = target
        self.every_n_steps = every_n_steps
        self.options = options

    def is_due(self, step: int) -> bool:
        """Return whether maps are drawn after this step."""
        return step % self.every_n_steps == 0

    def draw(self, model: nn.Module, step: int) -> dict[str, UInt8[np.ndarray, "_y _x 3"]]:
        """Draw the maps of all images, write them to `FOLDER/step-0000500/`, and return them.

        Args:
            model: The model, in any mode; also under `torch.inference_mode`. Its mode is restored.
            step: Number of optimizer steps.

        Raises:
            OSError: If a file cannot be written.
            ValueError: If the method does not fit the model.
        """
        # Trainers may call this under inference_mode, but most methods need gradients.
        with torch.inference_mode(mode=False), torch.enable_grad():
            maps = explain(model, self.images, self.method, self.target, **self.options)
        folder = self.folder / f"step-{step:07}"
        folder.mkdir(parents=True, exist_ok=True)
        panels: dict[str, np.ndarray] = {}
        for number, (image, attention_map) in enumerate(zip(self.images, maps, strict=True), 1):
            stem = Path(image.name).stem or "image"
            safe = "".join(c if c.isalnum() or c in "-_" else "-" for c in stem)[:60]
            panel = panels[f"{number}-{safe}"] = _draw(image, attention_map)
            Image.fromarray(panel).save(folder / f"{number}-{safe}.jpg")
        return panels


def _draw(image: LoadedImage, attention_map: AttentionMap) -> UInt8[np.ndarray, "_y _x 3"]:
    """Return an overlay at no more than `_LONGEST` pixels, or a panel of several maps."""
    if attention_map.values.ndim == 2:
        drawn = np.array(overlay(image, attention_map))
        share = min(1.0, _LONGEST / max(drawn.shape[:2]))
        height, width = (max(1, round(side * share)) for side in drawn.shape[:2])
        return resize_image(drawn, (height, width))
    labels = attention_map.labels or tuple(map(str, range(1, len(attention_map) + 1)))
    maps = replace(attention_map, values=attention_map.values.detach().cpu())
    words = Caption(labels, (), (), maps, score=0.0, finished=True)
    return rgb(caption_figure(image, words, smooth=True), _WORDS_WIDTH)
