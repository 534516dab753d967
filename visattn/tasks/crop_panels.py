"""What a Spatial Transformer cuts out of its pictures, in the log while it learns."""

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.spatial.spatial_transformers import SpatialTransformer
from visattn.functional.affine_samplers import affine_sampled, sampled_corners
from visattn.models.classifiers import ImageClassifier
from visattn.tasks.bases import Data
from visattn.tasks.drawn_panels import DrawnPanels
from visattn.viz.crops import crop_panel


class CropPanels(DrawnPanels):
    """Log the first validation pictures with the frame of what is cut out of each, and the piece.

    Args:
        pictures: How many.
        height: Of a picture on the panel, in pixels.
    """

    def __init__(self, pictures: int = 16, height: int = 96) -> None:
        self.pictures, self.height = pictures, height

    def panels(self, model: nn.Module, data: Data) -> Iterator[tuple[str, np.ndarray]]:
        """Give one panel of all pictures, if the model is a classifier."""
        if isinstance(model, ImageClassifier):
            pictures = np.stack(data.examples(self.pictures))
            yield "crops", drawn_crops(model, pictures, height=self.height)


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
