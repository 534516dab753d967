"""Paths of an eye, drawn on the images that it went over: one by one, and many together."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, UInt8
from numpy import ndarray
from torch import Tensor

from visattn.data.images.reader import read_image
from visattn.pipelines.captioning import ImageLike
from visattn.pipelines.scanpath import ScanPath
from visattn.viz.scanpaths.animation import scan_animation
from visattn.viz.scanpaths.coverage import coverage_panel
from visattn.viz.scanpaths.mosaic import colored
from visattn.viz.scanpaths.panel import scan_panel
from visattn.viz.scanpaths.path import scan_path
from visattn.viz.scanpaths.record import ShownScan
from visattn.viz.scanpaths.view import scan_view
from visattn.viz.scanpaths.wall import scan_wall

_TIMES, _DOT = "\N{MULTIPLICATION SIGN}", " \N{MIDDLE DOT} "


def glimpse_panel(
    image: ImageLike, scan: ScanPath, *, name: str = ""
) -> UInt8[ndarray, "height width 3"]:
    """Return a page: the path on the image, what was seen, and what was thought.

    Args:
        image: The original image.
        scan: What `glimpses` said of it.
        name: Of the image; stands on the page.

    Raises:
        ValueError: If the scan was made of an image of another size.
    """
    shown = _shown(image, scan)
    size = f"{shown.image.shape[1]} {_TIMES} {shown.image.shape[0]}"
    return scan_panel(shown, note=_DOT.join(filter(None, [name, size, *_told(scan)])))


def glimpse_overlay(
    image: ImageLike, scan: ScanPath, *, longest: int = 400
) -> UInt8[ndarray, "y x 3"]:
    """Return the image with the path of the eye on it.

    Args:
        image: The original image.
        scan: What `glimpses` said of it.
        longest: Of its sides, in pixels.

    Raises:
        ValueError: If the scan was made of an image of another size.
    """
    shown = _shown(image, scan)
    view = scan_view(shown.image.shape[:2], shown.boxes, (longest, longest))
    return scan_path(view.canvas(shown.image), view.boxes(shown.boxes), area=view.area)


def glimpse_animation(image: ImageLike, scan: ScanPath, *, width: int = 560) -> bytes:
    """Return a GIF that follows the eye from glimpse to glimpse.

    Args:
        image: The original image.
        scan: What `glimpses` said of it.
        width: In pixels.

    Raises:
        ValueError: If the scan was made of an image of another size, or the width is too small.
    """
    return scan_animation(_shown(image, scan), width=width)


def glimpse_wall(images: Sequence[ImageLike], scans: Sequence[ScanPath], **options: Any) -> bytes:
    """Return a GIF of many images side by side, whose eyes take their steps together.

    Args:
        images: The original images.
        scans: What `glimpses` said of each.
        options: `truths`, `columns` and `side`, as `visattn.viz.scanpaths.wall.scan_wall` takes
            them.

    Raises:
        ValueError: If there is not one scan for each image, or one was made of another size.
    """
    if len(images) != len(scans):
        raise ValueError(f"each image needs its scan, got {len(images)} images, {len(scans)} scans")
    return scan_wall([_shown(*pair) for pair in zip(images, scans, strict=True)], **options)


class Coverage:
    """Where a model looked on many images, added up one by one.

    Args:
        policy: Who led the eye, in a few words for the page.

    Example:
        >>> Coverage().count
        0
    """

    def __init__(self, policy: str = "") -> None:
        self.policy, self.count = policy, 0
        self._sums: list[Float[Tensor, "*axes"]] = []

    def add(self, scan: ScanPath) -> None:
        """Take in a scan.

        Raises:
            ValueError: If it has another number of glimpses or another grid than those before.
        """
        values, places = scan.maps.values.double(), scan.places.double()
        pixels = scan.pixels.double()
        found = [values, values.amax(0), places, places**2, pixels]
        if self._sums and any(a.shape != b.shape for a, b in zip(self._sums, found, strict=True)):
            raise ValueError(
                f"scans must be of one model: the others had {list(self._sums[0].shape)} glimpses, "
                f"rows and columns, this one has {list(values.shape)}"
            )
        self._sums = [a + b for a, b in zip(self._sums or [0.0] * 5, found, strict=True)]
        self.count += 1

    def panel(self) -> UInt8[ndarray, "height width 3"]:
        """Return a page with the mean path and a heat map for each glimpse.

        Raises:
            ValueError: If there was no scan.
        """
        if not self.count:
            raise ValueError("coverage needs at least one scan; add some first")
        maps, whole, places, squares, pixels = (one / self.count for one in self._sums)
        spread = (squares - places**2).clamp(min=0).sqrt()
        half = places.new_tensor([maps.shape[2], maps.shape[1]]) / 2
        boxes = torch.cat([(places - spread + 1) * half, (places + spread + 1) * half], -1)
        images = f"{self.count:,} image{'' if self.count == 1 else 's'}"
        return coverage_panel(
            colored(pixels.round().byte().numpy()),
            boxes.numpy(),
            whole.numpy(),
            maps.numpy(),
            title=f"Where it looked on {images}",
            note=self.policy,
        )


def _shown(image: ImageLike, scan: ScanPath) -> ShownScan:
    """Return what is drawn of a scan, after a look whether it is of this image."""
    read, geometry = read_image(image), scan.maps.geometry
    if geometry is None or geometry.image_size != read.size:
        size = None if geometry is None else geometry.image_size
        raise ValueError(
            f"the scan was made of an image of {size} (height, width), but {read.name} has "
            f"{read.size}; hand over the original"
        )
    return ShownScan(
        read.pixels,
        scan.boxes.numpy(),
        scan.patches.numpy(),
        scan.probabilities.numpy(),
        scan.classes,
    )


def _told(scan: ScanPath) -> list[str]:
    """Return what there is to be said of the glimpses."""
    count, scales, _, side, _ = scan.patches.shape
    sort = f"{count} glimpse{'' if count == 1 else 's'} of {side} {_TIMES} {side}"
    sort += f" at {scales} scales" if scales > 1 else ""
    policy = str(scan.maps.made["policy"])
    drawn = f", seed {scan.maps.made['seed']}" if policy in ("sampled", "random") else ""
    height, width = scan.maps.values.shape[1:]
    return [f"network input {width} {_TIMES} {height}", sort, f"{policy} policy{drawn}"]
