"""Images in the log each time a model is validated, whatever they show."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor, nn

from visattn import pipelines
from visattn.blocks.spatial.spatial_transformer import SpatialTransformer
from visattn.functional.sampling import affine_sampled, sampled_corners
from visattn.models.captioner import Captioner
from visattn.models.classifier import ImageClassifier
from visattn.training.base import DataModule, Task
from visattn.viz.maps.crops import crop_panel


class ImageLogger(Callback, ABC):
    """Draw before the first validation batch, on the first process, where a log takes images.

    Then averaged weights stand in for those that are trained: from the start of a validation to its
    end, whichever callback comes first in the config.
    """

    @abstractmethod
    def panels(self, model: nn.Module, data: DataModule) -> Iterator[tuple[str, np.ndarray]]:
        """Give panels with their names in the log, RGB bytes; none for a model of another kind."""

    def on_validation_batch_start(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Draw."""
        first = trainer.is_global_zero and not batch_idx and not dataloader_idx
        data = trainer.datamodule  # type: ignore[attr-defined]
        boards = [log for log in trainer.loggers if isinstance(log, TensorBoardLogger)]
        if not (first and boards and isinstance(pl_module, Task) and isinstance(data, DataModule)):
            return
        for name, drawn in self.panels(pl_module.model, data):
            for board in boards:
                board.experiment.add_image(
                    name, torch.from_numpy(drawn), trainer.global_step, dataformats="HWC"
                )


class CaptionPanels(ImageLogger):
    """Log a panel for the first validation images, each time the model is validated.

    Args:
        images: How many.
        width: Of a panel, in pixels.
    """

    def __init__(self, images: int = 4, width: int = 900) -> None:
        self.images, self.width = images, width

    def panels(self, model: nn.Module, data: DataModule) -> Iterator[tuple[str, np.ndarray]]:
        """Give a panel for each image, if the model makes captions."""
        if not isinstance(model, Captioner):
            return
        for index, image in enumerate(data.examples(self.images)):
            (told,) = pipelines.caption(model, [image])
            yield f"captions/{index}", pipelines.panel(image, told, width=self.width)


class CropPanels(ImageLogger):
    """Log the first validation images with the frame of what is cut out of each, and the piece.

    Args:
        images: How many.
        height: Of an image on the panel, in pixels.
    """

    def __init__(self, images: int = 16, height: int = 96) -> None:
        self.images, self.height = images, height

    def panels(self, model: nn.Module, data: DataModule) -> Iterator[tuple[str, np.ndarray]]:
        """Give one panel of all images, if the model is a classifier."""
        if isinstance(model, ImageClassifier):
            images = np.stack(data.examples(self.images))
            yield "crops", drawn_crops(model, images, height=self.height)


@torch.no_grad()
def drawn_crops(model: ImageClassifier, images: np.ndarray, *, height: int = 96) -> np.ndarray:
    """Return a panel of images and of what the first Spatial Transformer of a model sees of them.

    Args:
        model: In the mode in which it is to look.
        images: RGB bytes, count × height × width × 3, of the model's size.
        height: Of an image on the panel, in pixels.

    Raises:
        ValueError: If the model has no Spatial Transformer.
    """
    looks = [module for module in model.modules() if isinstance(module, SpatialTransformer)]
    if not looks:
        raise ValueError("the model has no Spatial Transformer, so it cuts nothing out")
    given: list[Float[Tensor, "b c y x"]] = []
    handle = looks[0].register_forward_pre_hook(lambda _, inputs: given.append(inputs[0]))
    device = next(model.parameters()).device
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).to(device)
    try:
        model(pixels)
    finally:
        handle.remove()
    theta, aligned = looks[0].theta(given[0]), looks[0].align_corners
    size = (images.shape[1], images.shape[2])
    corners = sampled_corners(theta, size, align_corners=aligned)
    seen = affine_sampled(pixels.float(), theta, align_corners=aligned, padding=looks[0].padding)
    crops = seen.round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1)
    return crop_panel(images, corners.cpu().numpy(), crops.cpu().numpy(), height=height)
