"""Figures and animations of scan paths: one image, many images, and mean coverage."""

import io
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, UInt8
from numpy import ndarray
from PIL import Image
from torch import Tensor

from visattn.geometry.affine import Geometry
from visattn.images.reader import ImageLike, read_image
from visattn.results.values import ScanPath
from visattn.viz.scanpaths.animation import scan_path_animation, scan_path_grid_animation
from visattn.viz.scanpaths.canvas import patch_to_rgb, place_image
from visattn.viz.scanpaths.coverage import coverage_panel
from visattn.viz.scanpaths.panel import scan_path_panel
from visattn.viz.scanpaths.path import draw_scan_path
from visattn.viz.scanpaths.record import ScanPathData

_TIMES, _DOT = "\N{MULTIPLICATION SIGN}", " \N{MIDDLE DOT} "


def glimpse_panel(
    image: ImageLike, scan: ScanPath, *, name: str = ""
) -> UInt8[ndarray, "height width 3"]:
    """Return a figure of a scan path: path, glimpse contents and class probabilities.

    Args:
        image: The original image.
        scan: Its scan path, from `glimpses`.
        name: Name of the image in the figure.

    Raises:
        ValueError: If the scan path belongs to an image of another size.

    Example:
        >>> from visattn.models import RecurrentAttentionModel
        >>> from visattn.pipelines.scanpath import glimpses
        >>> model = RecurrentAttentionModel(
        ...     ("cat", "dog"), (24, 24), (0.5,), (0.5,), glimpse_size=5, num_glimpses=3
        ... )
        >>> photo = np.zeros((60, 80, 3), np.uint8)
        >>> [scan] = glimpses(model, photo)
        >>> glimpse_panel(photo, scan, name="photo").ndim
        3
    """
    shown = _scan_path_data(image, scan)
    size = f"{shown.image.shape[1]} {_TIMES} {shown.image.shape[0]}"
    return scan_path_panel(shown, note=_DOT.join(filter(None, [name, size, *_note_parts(scan)])))


def glimpse_overlay(
    image: ImageLike, scan: ScanPath, *, max_side: int = 400
) -> UInt8[ndarray, "y x 3"]:
    """Return the image with its scan path.

    Args:
        image: The original image.
        scan: Its scan path, from `glimpses`.
        max_side: Maximum length of the longer side, in pixels.

    Raises:
        ValueError: If the scan path belongs to an image of another size.
    """
    shown = _scan_path_data(image, scan)
    view = place_image(shown.image.shape[:2], shown.boxes, (max_side, max_side))
    return draw_scan_path(
        view.paste_image(shown.image),
        view.boxes_on_canvas(shown.boxes),
        image_area=view.image_area,
        tags=shown.tags,
    )


def glimpse_animation(image: ImageLike, scan: ScanPath, *, width: int = 560) -> bytes:
    """Return an animated GIF of a scan path, one frame per glimpse.

    Args:
        image: The original image.
        scan: Its scan path, from `glimpses`.
        width: Width in pixels.

    Raises:
        ValueError: If the scan path belongs to an image of another size, or the width is too small.

    Example:
        >>> from visattn.models import RecurrentAttentionModel
        >>> from visattn.pipelines.scanpath import glimpses
        >>> model = RecurrentAttentionModel(
        ...     ("cat", "dog"), (24, 24), (0.5,), (0.5,), glimpse_size=5, num_glimpses=3
        ... )
        >>> photo = np.zeros((60, 80, 3), np.uint8)
        >>> [scan] = glimpses(model, photo)
        >>> glimpse_animation(photo, scan)[:3]
        b'GIF'
    """
    return scan_path_animation(_scan_path_data(image, scan), width=width)


def glimpse_wall(images: Sequence[ImageLike], scans: Sequence[ScanPath], **options: Any) -> bytes:
    """Return an animated GIF of the scan paths of many images on a grid.

    Args:
        images: The original images.
        scans: One scan path per image.
        options: `truths`, `columns` and `side`, as for
            `visattn.viz.scanpaths.animation.scan_path_grid_animation`.

    Raises:
        ValueError: If there is not one scan path per image, or one belongs to another size.

    Example:
        >>> from visattn.models import RecurrentAttentionModel
        >>> from visattn.pipelines.scanpath import glimpses
        >>> model = RecurrentAttentionModel(
        ...     ("cat", "dog"), (24, 24), (0.5,), (0.5,), glimpse_size=5, num_glimpses=3
        ... )
        >>> photo = np.zeros((60, 80, 3), np.uint8)
        >>> [scan] = glimpses(model, photo)
        >>> glimpse_wall([photo, photo], [scan, scan], columns=2)[:3]
        b'GIF'
    """
    if len(images) != len(scans):
        raise ValueError(
            f"there must be one scan path per image, got {len(scans)} for {len(images)} images"
        )
    return scan_path_grid_animation(
        [_scan_path_data(*pair) for pair in zip(images, scans, strict=True)], **options
    )


class Coverage:
    """Mean scan path and mean resolution maps over many images.

    Args:
        policy: Description of the policy for the figure.

    Example:
        >>> Coverage().count
        0
    """

    def __init__(self, policy: str = "") -> None:
        self.policy, self.count = policy, 0
        self._sums: list[Float[Tensor, "*axes"]] = []

    def add(self, scan: ScanPath) -> None:
        """Add a scan path.

        Raises:
            ValueError: If its number of glimpses or its grid differs from the others.
        """
        values, locations = scan.maps.values.double(), scan.locations.double()
        pixels = scan.pixels.double()
        terms = [values, values.amax(0), locations, locations**2, pixels]
        if self._sums and any(a.shape != b.shape for a, b in zip(self._sums, terms, strict=True)):
            raise ValueError(
                "scan paths must come from one model: expected maps of shape "
                f"{list(self._sums[0].shape)}, got {list(values.shape)}"
            )
        self._sums = [a + b for a, b in zip(self._sums or [0.0] * 5, terms, strict=True)]
        self.count += 1

    def panel(self) -> UInt8[ndarray, "height width 3"]:
        """Return a figure with the mean path and a heat map for each glimpse.

        Raises:
            ValueError: If no scan path was added.
        """
        if not self.count:
            raise ValueError("coverage needs at least one scan path, got none")
        maps, overall, mean, squares, pixels = (total / self.count for total in self._sums)
        std = (squares - mean**2).clamp(min=0).sqrt()
        half = mean.new_tensor([maps.shape[2], maps.shape[1]]) / 2
        boxes = torch.cat([(mean - std + 1) * half, (mean + std + 1) * half], -1)
        images = f"{self.count:,} image{'' if self.count == 1 else 's'}"
        return coverage_panel(
            patch_to_rgb(pixels.round().byte().numpy()),
            boxes.numpy(),
            overall.numpy(),
            maps.numpy(),
            title=f"Coverage of {images}",
            note=self.policy,
        )


def _scan_path_data(image: ImageLike, scan: ScanPath) -> ScanPathData:
    """Return the plain arrays of a scan path up to the end of its sequence of labels.

    Raises:
        ValueError: If the scan path does not belong to the image.
    """
    original, geometry = read_image(image), scan.maps.geometry
    if geometry is None or geometry.image_size != original.size:
        size = None if geometry is None else geometry.image_size
        raise ValueError(
            f"the scan path belongs to an image of {size} (height, width), but {original.name} has "
            f"{original.size}; pass the original image"
        )
    count = scan.labels[-1].glimpse + 1
    return ScanPathData(
        original.pixels,
        scan.boxes[:count].numpy(),
        scan.patches[:count].numpy(),
        scan.probabilities[:count].numpy(),
        scan.class_names,
        scan.glimpses_per_label,
        scan.end_class,
    )


def _note_parts(scan: ScanPath) -> list[str]:
    """Return the description of the glimpses: input size, glimpse size, policy."""
    count, scales, _, side, _ = scan.patches.shape
    text = f"{count} glimpse{'' if count == 1 else 's'} of {side} {_TIMES} {side}"
    text += f" at {scales} scales" if scales > 1 else ""
    text += f", {scan.glimpses_per_label} per label" if scan.glimpses_per_label else ""
    policy = str(scan.maps.metadata["policy"])
    seed = f", seed {scan.maps.metadata['seed']}" if policy in ("sampled", "random") else ""
    height, width = scan.maps.values.shape[1:]
    return [f"network input {width} {_TIMES} {height}", text, f"{policy} policy{seed}"]


def notebook_scanpath(scan: ScanPath) -> bytes:
    """Return the scan path on the network's input, as a PNG file for notebooks.

    Args:
        scan: A scan path.
    """
    geometry = Geometry.identity((scan.pixels.shape[-2], scan.pixels.shape[-1]))
    corners, boxes = scan.boxes.view(-1, 2), scan.boxes
    if scan.maps.geometry is not None:
        boxes = scan.maps.geometry.to_input(corners).view(scan.boxes.shape)
    on_input = replace(scan, boxes=boxes, maps=scan.maps.with_geometry(geometry))
    buffer = io.BytesIO()
    panel = glimpse_panel(scan.pixels.expand(3, -1, -1).permute(1, 2, 0).numpy(), on_input)
    Image.fromarray(panel).save(buffer, "png")
    return buffer.getvalue()
