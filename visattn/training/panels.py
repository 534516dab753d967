"""Callbacks that log images: attention of any network, captions, crops and masks."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn

from visattn.blocks.spatial_transformer import SpatialTransformer
from visattn.functional.sampling import affine_corners, affine_sample
from visattn.images.reader import ImageLike
from visattn.models.base import ImageClassifier
from visattn.models.captioning.captioner import Captioner
from visattn.models.unet import UNet
from visattn.pipelines.attention_panels import AttentionPanels
from visattn.pipelines.captioning import caption
from visattn.training.data_module import DataModule
from visattn.training.segmentation.task import batch_panels
from visattn.training.task import Task
from visattn.viz.captions import caption_figure
from visattn.viz.crops import crop_figure
from visattn.viz.figures import rgb


class AttentionLogger(Callback):
    """Draws attention maps of the same images every few hundred steps, for any LightningModule.

    `Trainer(callbacks=[AttentionLogger("photos")])`. TensorBoard and Weights & Biases get the
    panels as images `attention/NAME`; they are written to `FOLDER/step-0000500/` as well. The first
    are drawn before the first step, so that invalid arguments fail at once; later errors are
    warnings. One process draws; the model is unchanged.

    Args:
        images: Images to follow: a folder, files, PIL images or RGB arrays, of any size.
        method: Method of `visattn.explain`; `visattn.methods_for(model)` lists those that fit.
        target: Class to explain; None explains the predicted class of each step.
        every_n_steps: Optimizer steps between two logs; None draws at the end of each validation.
        folder: Folder of the panels; by default `attention` in the run's folder.
        module: Name of the network inside the LightningModule, such as `net`; by default the
            LightningModule itself (without a `forward`, its single submodule with parameters), or
            `model` of a visattn task.
        options: Further arguments of `visattn.explain`: `transform`, `input_size`, `class_names`,
            `layers` and others.

    Raises:
        ValueError: If the method does not fit the model, or the LightningModule has several
            networks.

    Example:
        >>> photo = np.random.default_rng(0).integers(0, 255, (60, 80, 3), np.uint8)
        >>> logger = AttentionLogger(photo, method="gradcam", module="net", every_n_steps=100)
    """

    def __init__(
        self,
        images: Iterable[ImageLike] | ImageLike,
        method: str = "gradcam",
        target: Any = None,
        *,
        every_n_steps: int | None = 500,
        folder: str | Path | None = None,
        module: str | None = None,
        **options: Any,
    ) -> None:
        self.images = images
        self.every_n_steps = every_n_steps
        self.folder = folder
        self.module = module
        self.options = {"method": method, "target": target, **options}
        self.panels: AttentionPanels | None = None
        self._last_step = -1

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Read the images and draw the first maps.

        In `on_fit_start` a resumed run has its weights, but not yet its step.
        """
        if trainer.is_global_zero:
            folder = self.folder or Path(trainer.log_dir or trainer.default_root_dir, "attention")
            steps = self.every_n_steps or sys.maxsize
            self.panels = AttentionPanels(self.images, folder, every_n_steps=steps, **self.options)
            self._log(trainer, pl_module, strict=True)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Draw the maps if they are due."""
        if self.panels is not None and self.panels.is_due(trainer.global_step):
            self._log(trainer, pl_module)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw the maps after a validation, if `every_n_steps` is None."""
        if self.every_n_steps is None and not trainer.sanity_checking:
            self._log(trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw the last maps."""
        self._log(trainer, pl_module)

    def _log(self, trainer: Trainer, pl_module: LightningModule, *, strict: bool = False) -> None:
        step = trainer.global_step
        if self.panels is None or step == self._last_step:
            return
        try:
            panels = self.panels.draw(_network(pl_module, self.module), step)
        except (OSError, RuntimeError, ValueError) as error:
            if strict:
                raise
            rank_zero_warn(f"AttentionLogger drew no maps after step {step}: {error}")
            return
        self._last_step = step
        for name, panel in panels.items():
            _send(trainer, f"attention/{name}", panel)


def _network(pl_module: LightningModule, name: str | None) -> nn.Module:
    """Return the named submodule, or the LightningModule, or its single submodule."""
    if name is not None or isinstance(pl_module, Task):
        return pl_module.get_submodule(name or "model")
    if type(pl_module).forward is not LightningModule.forward:
        return pl_module
    parts = {name: part for name, part in pl_module.named_children() if [*part.parameters()]}
    if len(parts) != 1:
        raise ValueError(
            f"{type(pl_module).__name__} has no forward: name its network, as in "
            f"AttentionLogger(..., module='net'); its parts are {', '.join(parts) or 'none'}"
        )
    return next(iter(parts.values()))


def _send(trainer: Trainer, name: str, panel: np.ndarray) -> None:
    """Send an image to loggers that support images, such as TensorBoard and Weights & Biases."""
    for logger in trainer.loggers:
        if isinstance(logger, TensorBoardLogger):
            image = torch.tensor(panel)  # a copy, since views of figures are read-only
            logger.experiment.add_image(name, image, trainer.global_step, dataformats="HWC")
        elif hasattr(logger, "log_image"):
            logger.log_image(name, [panel], step=trainer.global_step)  # type: ignore[attr-defined]


class ImageLogger(Callback, ABC):
    """Base class: log images before the first validation batch, on rank 0.

    With `EMA`, the images show the averaged weights, which are swapped in during a validation,
    regardless of the order of callbacks.
    """

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
        """Log the panels before the first batch; a dry run has no log."""
        logs = trainer.loggers and not trainer.fast_dev_run  # type: ignore[attr-defined]
        if trainer.is_global_zero and not batch_idx and logs:
            for name, panel in self.panels(
                pl_module.get_submodule("model"),
                trainer.datamodule,  # type: ignore[attr-defined]
            ):
                _send(trainer, name, panel)


class CaptionPanels(ImageLogger):
    """Log the captions of the first validation images, with the attention of each word.

    Args:
        images: Number of images.
        width: Width of a panel in pixels.
    """

    def __init__(self, images: int = 4, width: int = 900) -> None:
        self.images = images
        self.width = width

    def panels(self, model: nn.Module, data: DataModule) -> Iterator[tuple[str, np.ndarray]]:
        """Yield a panel for each image, if the model is a captioner."""
        for index, image in enumerate(data.examples(self.images)):
            if isinstance(model, Captioner):
                (said,) = caption(model, [image])
                yield f"captions/{index}", rgb(caption_figure(image, said), self.width)


class CropPanels(ImageLogger):
    """Log the crops of a Spatial Transformer from the first validation images.

    Args:
        images: Number of images.
        width: Width of the panel in pixels.
    """

    def __init__(self, images: int = 16, width: int = 900) -> None:
        self.images = images
        self.width = width

    def panels(self, model: nn.Module, data: DataModule) -> Iterator[tuple[str, np.ndarray]]:
        """Yield one panel of all images, if the model is a classifier."""
        if isinstance(model, ImageClassifier):
            images = np.stack(data.examples(self.images))
            yield "crops", draw_crops(model, images, width=self.width)


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
        if isinstance(model, UNet):
            batch = data.example_batch(self.images).to(next(model.parameters()).device)
            panels = batch_panels(model, batch, model.segment(batch.images), self.images)
            yield from ((f"segmentation/{index}", panel) for index, panel in enumerate(panels))


@torch.no_grad()
def draw_crops(model: ImageClassifier, images: np.ndarray, *, width: int = 900) -> np.ndarray:
    """Return a panel of images, each with the crop of the first Spatial Transformer of a model.

    The images are RGB (uint8), count × height × width × 3, of the input size of the model; `width`
    is that of the panel, in pixels.

    Raises:
        ValueError: If the model has no Spatial Transformer.
    """
    transformers = [m for m in model.modules() if isinstance(m, SpatialTransformer)]
    if not transformers:
        raise ValueError("the model has no Spatial Transformer, so there are no crops to draw")
    transformer = transformers[0]
    inputs: list[Float[Tensor, "b c y x"]] = []
    # The crop is recomputed from the image, since the input of the module may be a feature map.
    handle = transformer.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).to(next(model.parameters()).device)
    try:
        model(pixels)
    finally:
        handle.remove()
    theta = transformer.theta(inputs[0])
    align = transformer.align_corners
    corners = affine_corners(theta, (images.shape[1], images.shape[2]), align_corners=align)
    samples = affine_sample(
        pixels.float(), theta, align_corners=align, padding_mode=transformer.padding_mode
    )
    crops = samples.round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1)
    drawn = crop_figure(images, corners.cpu().numpy(), crops.cpu().numpy())
    return rgb(drawn, width)
