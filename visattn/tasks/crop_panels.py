"""What a Spatial Transformer cuts out of its pictures, in the log while it learns."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor

from visattn.blocks.spatial.spatial_transformers import SpatialTransformer
from visattn.functional.affine_samplers import affine_sampled, sampled_corners
from visattn.models.classifiers import ImageClassifier
from visattn.tasks.bases import Data, Task
from visattn.viz.crops import crop_panel


class CropPanels(Callback):
    """Log the first validation pictures with the frame of what is cut out of each, and the piece.

    It draws before the first batch, when averaged weights stand in for those that are trained: from
    the start of a validation to its end, whichever callback comes first in the config.

    Args:
        pictures: How many.
        height: Of a picture on the panel, in pixels.
    """

    def __init__(self, pictures: int = 16, height: int = 96) -> None:
        self.pictures, self.height = pictures, height

    def on_validation_batch_start(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Look and draw, on the first process only."""
        if batch_idx or dataloader_idx:
            return
        if not trainer.is_global_zero or not isinstance(pl_module, Task):
            return
        boards = [log for log in trainer.loggers if isinstance(log, TensorBoardLogger)]
        data = trainer.datamodule  # type: ignore[attr-defined]
        if not boards or not isinstance(pl_module.model, ImageClassifier):
            return
        if not isinstance(data, Data):
            return
        panel = torch.from_numpy(
            drawn_crops(pl_module.model, np.stack(data.examples(self.pictures)), height=self.height)
        )
        for board in boards:
            board.experiment.add_image("crops", panel, trainer.global_step, dataformats="HWC")


@torch.no_grad()
def drawn_crops(model: ImageClassifier, pictures: np.ndarray, *, height: int = 96) -> np.ndarray:
    """Return a panel of pictures and of what the first Spatial Transformer of a model sees of them.

    Args:
        model: In the mode in which it is to look.
        pictures: RGB bytes, count × height × width × 3, of the model's size.
        height: Of a picture on the panel, in pixels.

    Raises:
        ValueError: If the model has no Spatial Transformer.
    """
    looks = [module for module in model.modules() if isinstance(module, SpatialTransformer)]
    if not looks:
        raise ValueError("the model has no Spatial Transformer, so it cuts nothing out")
    given: list[Float[Tensor, "b c y x"]] = []
    handle = looks[0].register_forward_pre_hook(lambda _, inputs: given.append(inputs[0]))
    device = next(model.parameters()).device
    pixels = torch.from_numpy(pictures).permute(0, 3, 1, 2).to(device)
    try:
        model(pixels)
    finally:
        handle.remove()
    theta, aligned = looks[0].theta(given[0]), looks[0].align_corners
    size = (pictures.shape[1], pictures.shape[2])
    corners = sampled_corners(theta, size, align_corners=aligned)
    seen = affine_sampled(pixels.float(), theta, align_corners=aligned, padding=looks[0].padding)
    crops = seen.round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1)
    return crop_panel(pictures, corners.cpu().numpy(), crops.cpu().numpy(), height=height)
