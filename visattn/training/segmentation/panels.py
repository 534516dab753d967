"""Figures of the segmentation of training images, with truth, errors and gates."""

import numpy as np
from jaxtyping import UInt8

from visattn.data.regions.segmentation import SegmentationBatch
from visattn.geometry.affine import Geometry
from visattn.models.unet import UNet, UNetOutput
from visattn.pipelines.segmentation import place_segmentations
from visattn.viz.segmentation import segmentation_figure


def batch_panels(
    model: UNet, batch: SegmentationBatch, output: UNetOutput, count: int
) -> list[UInt8[np.ndarray, "height width 3"]]:
    """Return a figure of each of the first images of a batch, with truth, errors and gates.

    Args:
        model: The model.
        batch: Images at the input size with their label maps.
        output: Its output for them.
        count: Number of figures.
    """
    geometry = Geometry.identity(model.img_size)
    count = min(count, len(batch.images))
    results = place_segmentations(output, model.class_names, [geometry] * count)
    pixels = batch.images.permute(0, 2, 3, 1).cpu().numpy()
    truths = batch.labels.cpu().numpy()
    return [
        segmentation_figure(np.ascontiguousarray(image), result, truth)
        for image, truth, result in zip(pixels, truths, results, strict=False)
    ]
