"""Targets of segmentation and detection models: a pixel, region, box, query or token of a photo."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from visattn.attribution.bound_targets import (
    BoundBox,
    BoundPixel,
    BoundQuery,
    BoundRegion,
    BoundTarget,
    Label,
    Part,
)
from visattn.attribution.regions import MaskLike, check_box
from visattn.geometry.affine import Box, Geometry
from visattn.recording.model_info import ExplainedModel


class DenseTarget(ABC):
    """A thing on a photo that a dense model has an output for; coordinates are pixels of the photo.

    `visattn.explain` places it on the input of the network by the geometry of the photo.
    """

    label: Label

    @abstractmethod
    def bind(self, explained: ExplainedModel, geometries: Sequence[Geometry]) -> BoundTarget:
        """Return the target function for prepared images.

        Args:
            explained: The model.
            geometries: Geometry of each image.

        Raises:
            ValueError: If there is no such class, or the network does not see the thing.
        """


@dataclass(frozen=True)
class PixelTarget(DenseTarget):
    """The logit of a class at one pixel, for segmentation models.

    Args:
        label: Class index or name; None for the class that is predicted at the pixel.
        x: Column of the pixel on the photo, from 0.
        y: Row of the pixel.

    Example:
        >>> from visattn.attribution.explained_model import describe_model
        >>> explained = describe_model(torch.nn.Identity(), class_names=("sky", "cat"))
        >>> half = Geometry.identity((4, 8)).resized((2, 4))
        >>> target = PixelTarget("cat", x=6, y=3).bind(explained, [half])
        >>> logits = torch.arange(16.0).view(1, 2, 2, 4)  # the pixel is a quarter off the center
        >>> target(logits), target.describe(0, ("sky", "cat")).class_name
        (tensor([14.7500]), 'cat')
    """

    label: Label
    x: float
    y: float

    def bind(self, explained: ExplainedModel, geometries: Sequence[Geometry]) -> BoundTarget:
        """Return the target function for prepared images."""
        return BoundPixel(self.label, explained, geometries, (self.x, self.y))


@dataclass(frozen=True, eq=False)
class RegionTarget(DenseTarget):
    """The sum of the logits of a class over a region, for segmentation models.

    Grad-CAM of it is Seg-Grad-CAM, HiResCAM of it its elementwise form.

    Args:
        label: Class index or name; None, with a mask, for the class that is predicted most there.
        mask: True in the region, one value per pixel of the photo; None for the region that is
            predicted as the class, which is chosen in the first call and then kept.

    Raises:
        ValueError: If there is neither a class nor a mask.

    Example:
        >>> from visattn.attribution.explained_model import describe_model
        >>> explained = describe_model(torch.nn.Identity(), class_names=("sky", "cat"))
        >>> target = RegionTarget("cat").bind(explained, [Geometry.identity((2, 2))])
        >>> cat = torch.tensor([[[[0.0, 0.0], [0.0, 0.0]], [[1.0, -1.0], [2.0, -5.0]]]])
        >>> target(cat), target(-cat)  # the region of the first call is kept
        (tensor([3.]), tensor([-3.]))

    Source:
        Vinogradova, Dibrov and Myers 2020, arXiv:2002.11434, equation 2.
    """

    label: Label
    mask: MaskLike | None = None

    def __post_init__(self) -> None:
        """Check that there is a class or a mask."""
        if self.label is None and self.mask is None:
            raise ValueError("a region needs a class, a mask, or both; got neither")

    def bind(self, explained: ExplainedModel, geometries: Sequence[Geometry]) -> BoundTarget:
        """Return the target function for prepared images."""
        return BoundRegion(self.label, explained, geometries, self.mask)


@dataclass(frozen=True)
class BoxTarget(DenseTarget):
    """Score or side of the detections at a box, for detectors.

    Detections have no fixed order, so none is selected: the score is the sum of IoU² · score over
    all detections, and a side is their mean with these weights. The IoU is taken as a constant, so
    that gradients explain the score, or the side.

    Args:
        box: Left, top, right, bottom in pixels of the photo; None for the box of the detection with
            the highest score, which is chosen in the first call and then kept.
        label: Class index or name; None for that of the detection that fits the box best.
        part: `score`, or the side `left`, `top`, `right` or `bottom`, in pixels of the photo.

    Raises:
        ValueError: If the box is empty or there is no such part.

    Example:
        >>> from visattn.attribution.explained_model import describe_model
        >>> explained = describe_model(torch.nn.Identity(), class_names=("cat", "dog"))
        >>> target = BoxTarget((0, 0, 4, 4), "dog").bind(explained, [Geometry.identity((8, 8))])
        >>> boxes = torch.tensor([[0.0, 0.0, 4.0, 4.0], [0.0, 0.0, 4.0, 2.0], [4.0, 4.0, 8.0, 8.0]])
        >>> scores, labels = torch.tensor([0.5, 0.4, 0.9]), torch.tensor([1, 1, 1])
        >>> target([{"boxes": boxes, "scores": scores, "labels": labels}])  # 0.5 + 0.4 / 4
        tensor([0.6000])
    """

    box: Box | None
    label: Label = None
    part: Part = "score"

    def __post_init__(self) -> None:
        """Check the box and the part."""
        if self.box is not None:
            check_box(self.box)
        _check_part(self.part)

    def bind(self, explained: ExplainedModel, geometries: Sequence[Geometry]) -> BoundBox:
        """Return the target function for prepared images."""
        return BoundBox(self.label, explained, geometries, self.box, self.part)


@dataclass(frozen=True)
class QueryTarget(DenseTarget):
    """The class logit of a query, or a side of its box, for DETR and its successors.

    Args:
        query: Index of the query.
        label: Class index or name; None for the class that the query predicts.
        part: `score`, or the side `left`, `top`, `right` or `bottom`, in pixels of the photo.

    Example:
        >>> from visattn.attribution.explained_model import describe_model
        >>> explained = describe_model(torch.nn.Identity(), class_names=("cat", "star"))
        >>> target = QueryTarget(5, "star").bind(explained, [Geometry.identity((8, 8))])
        >>> target({"logits": torch.arange(14.0).view(1, 7, 2)})
        tensor([11.])
    """

    query: int
    label: Label = None
    part: Part = "score"

    def __post_init__(self) -> None:
        """Check the part."""
        _check_part(self.part)

    def bind(self, explained: ExplainedModel, geometries: Sequence[Geometry]) -> BoundTarget:
        """Return the target function for prepared images."""
        return BoundQuery(self.label, explained, geometries, self.query, self.part)


@dataclass(frozen=True)
class TokenTarget(DenseTarget):
    """The logit of a token at a position of an output sequence `[b, t, v]`.

    Args:
        position: Index of the position; -1 is the last.
        label: Index of the token, or its name among the class names; None for the predicted one.

    Example:
        >>> from visattn.attribution.explained_model import describe_model
        >>> explained = describe_model(torch.nn.Identity())
        >>> target = TokenTarget(-1).bind(explained, [Geometry.identity((8, 8))])
        >>> target(torch.tensor([[[1.0, 0.0], [2.0, 7.0]]])), target.class_indices
        (tensor([7.]), (1,))
    """

    position: int
    label: Label = None

    def bind(self, explained: ExplainedModel, geometries: Sequence[Geometry]) -> BoundTarget:
        """Return the target function for prepared images."""
        return BoundQuery(self.label, explained, geometries, self.position, None)


def _check_part(part: str) -> None:
    if part not in get_args(Part):
        raise ValueError(f"part must be one of {', '.join(get_args(Part))}; got {part!r}")
