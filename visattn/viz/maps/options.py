"""Options of drawing maps: one set for all figures and pages."""

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from jaxtyping import Float, UInt8

from visattn.viz.maps.heatmap import Style, overlay


@dataclass(frozen=True)
class DrawOptions:
    """Options of all figures of maps.

    Args:
        colormap: Colormap, see `colormap_lut`.
        opacity: Opacity at `vmax`, between 0 and 1.
        style: `heat`, `light`, `blur` or `contour`, see `visattn.viz.maps.heatmap.overlay`.
        vmin: Value at the lower end of the colormap.
        vmax: Value at the upper end of the colormap; None for that of the result.
        smooth: Whether to interpolate between cells; None for what suits the result.
        width: Width of the figure in pixels.

    Example:
        >>> DrawOptions(vmax=2.0).draw(np.zeros((1, 2, 3), np.uint8), np.ones((1, 2))).shape
        (1, 2, 3)
    """

    colormap: str = "magma"
    opacity: float = 0.7
    style: Style = "heat"
    vmin: float = 0.0
    vmax: float | None = None
    smooth: bool | None = None
    width: int = 1200

    def draw(
        self,
        image: UInt8[np.ndarray, "y x 3"],
        values: Float[np.ndarray, "y x"],
        *,
        signed: bool = False,
    ) -> UInt8[np.ndarray, "y x 3"]:
        """Return the image with a map drawn on it, by `overlay`.

        Args:
            image: RGB.
            values: One per pixel of the image.
            signed: Whether negative values are drawn in the negative palette.
        """
        return overlay(
            image,
            values,
            vmin=self.vmin,
            vmax=1.0 if self.vmax is None else self.vmax,
            colormap=self.colormap,
            opacity=self.opacity,
            style=self.style,
            signed=signed,
        )

    def otherwise(self, **defaults: Any) -> Self:
        """Return the options, with values for those that are None.

        Example:
            >>> DrawOptions(vmax=2.0).otherwise(vmax=1.0, smooth=False).vmax
            2.0
        """
        missing = {key: each for key, each in defaults.items() if getattr(self, key) is None}
        return replace(self, **missing)
