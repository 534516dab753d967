"""Callbacks that log images to TensorBoard at each validation: captions, crops, segmentations."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from torch import Tensor, nn

from visattn import pipelines, viz
from visattn.blocks.spatial_transformer import SpatialTransformer
from visattn.functional.sampling import affine_corners, affine_sample
from visattn.models.base import ImageClassifier
from visattn.models.captioning.captioner import Captioner
from visattn.models.unet import UNet
from visattn.training.data_module import DataModule
from visattn.training.segmentation.panels import batch_panels
from visattn.training.task import Task
from visattn.viz.tiles import crop_panel


class ImageLogger(Callback, ABC):
    """Base class: log images before the first validation batch, on rank 0, to TensorBoard.

    With `EMA`, the images show the averaged weights, whatever the order of the callbacks: they are
    swapped in from the start of a validation to its end.
    """

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse models whose weights are split over processes."""
        require_whole_model(trainer, type(self).__name__)

    @abstractmethod
    def panels(self, model: nn.Module, data: DataModule) -> Iterator[tuple[str, np.ndarray]]:
        """Yield names and RGB images (uint8); nothing for unsupported models."""

    def on_validation_batch_start(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Log the panels before the first batch."""
        is_first = trainer.is_global_zero and not batch_idx and not dataloader_idx
        data = trainer.datamodule  # type: ignore[attr-defined]
        loggers = [log for log in trainer.loggers if isinstance(log, TensorBoardLogger)]
        if not (is_first and loggers):
            return
        if not (isinstance(pl_module, Task) and isinstance(data, DataModule)):
            return
        for name, panel in self.panels(pl_module.model, data):
            for logger in loggers:
                logger.experiment.add_image(
                    name, torch.from_numpy(panel), trainer.global_step, dataformats="HWC"
                )


def require_whole_model(trainer: Trainer, name: str) -> None:
    """Refuse strategies that split the weights of a model over processes.

    Args:
        trainer: Trainer with its strategy.
        name: Name of the callback that runs the model on rank 0 alone.

    Raises:
        ValueError: If the strategy splits the weights.
    """
    whole = isinstance(trainer.strategy, SingleDeviceStrategy | DDPStrategy)
    if not whole:
        raise ValueError(
            f"{name} needs the whole model on one device; {type(trainer.strategy).__name__} "
            "splits it: explain a checkpoint with visattn overlay instead"
        )


class CaptionPanels(ImageLogger):
    """Log the captions of the first validation images, with the attention of each word.

    Args:
        images: Number of images.
        width: Width of a panel in pixels.
    """

    def __init__(self, images: int = 4, width: int = 900) -> None:
        self.images, self.width = images, width

    def panels(self, model: nn.Module, data: DataModule) -> Iterator[tuple[str, np.ndarray]]:
        """Yield a panel for each image, if the model is a captioner."""
        if not isinstance(model, Captioner):
            return
        for index, image in enumerate(data.examples(self.images)):
            (caption,) = pipelines.caption(model, [image])
            yield f"captions/{index}", viz.caption_figure(image, caption, width=self.width)


class CropPanels(ImageLogger):
    """Log the crops of a Spatial Transformer from the first validation images.

    Args:
        images: Number of images.
        height: Height of an image on the panel in pixels.
    """

    def __init__(self, images: int = 16, height: int = 96) -> None:
        self.images, self.height = images, height

    def panels(self, model: nn.Module, data: DataModule) -> Iterator[tuple[str, np.ndarray]]:
        """Yield one panel of all images, if the model is a classifier."""
        if isinstance(model, ImageClassifier):
            images = np.stack(data.examples(self.images))
            yield "crops", draw_crops(model, images, height=self.height)


class SegmentationPanels(ImageLogger):
    """Log the first validation images with truth, prediction, errors and gates.

    Args:
        images: Number of images.
    """

    def __init__(self, images: int = 4) -> None:
        self.images = images

    @torch.no_grad()
    def panels(self, model: nn.Module, data: DataModule) -> Iterator[tuple[str, np.ndarray]]:
        """Yield a panel for each image, if the model is a U-Net."""
        if isinstance(model, UNet) and (batch := data.example_batch(self.images)) is not None:
            batch = batch.to(next(model.parameters()).device)
            panels = batch_panels(model, batch, model.segment(batch.images), self.images)
            yield from ((f"segmentation/{index}", panel) for index, panel in enumerate(panels))


@torch.no_grad()
def draw_crops(model: ImageClassifier, images: np.ndarray, *, height: int = 96) -> np.ndarray:
    """Return a panel of images, each with the crop of the first Spatial Transformer of a model.

    Args:
        model: Model in the desired mode (train or eval).
        images: RGB images (uint8), count × height × width × 3, of the input size of the model.
        height: Height of an image on the panel in pixels.

    Raises:
        ValueError: If the model has no Spatial Transformer.
    """
    transformers = [m for m in model.modules() if isinstance(m, SpatialTransformer)]
    if not transformers:
        raise ValueError("the model has no Spatial Transformer, so there are no crops to draw")
    transformer = transformers[0]
    inputs: list[Float[Tensor, "b c y x"]] = []
    handle = transformer.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    device = next(model.parameters()).device
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).to(device)
    try:
        model(pixels)
    finally:
        handle.remove()
    theta, align_corners = transformer.theta(inputs[0]), transformer.align_corners
    size = (images.shape[1], images.shape[2])
    corners = affine_corners(theta, size, align_corners=align_corners)
    samples = affine_sample(
        pixels.float(),
        theta,
        align_corners=align_corners,
        padding_mode=transformer.padding_mode,
    )
    crops = samples.round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1)
    return crop_panel(images, corners.cpu().numpy(), crops.cpu().numpy(), height=height)
