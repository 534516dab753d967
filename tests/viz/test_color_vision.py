"""Colors of overlays as people see them: signs differ, lightness rises with the value."""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from numpy.typing import ArrayLike, NDArray

from visattn.viz.heatmap import Style, overlay

PHOTOS = {"white": 255, "snow": 235, "gray": 150, "dim": 90, "dark": 30, "black": 0}
ENOUGH = {"heat": {0.2: 5, 0.3: 9, 1.0: 12}, "quantitative": {0.1: 4, 0.2: 7, 0.3: 10, 1.0: 12}}
"""Distance of the colors of +v and -v; 2 are noticed."""

# Machado, Oliveira and Fernandes, "A Physiologically-based Model for Simulation of Color Vision
# Deficiency" (2009), severity 1.0; they apply to linear RGB.
VIEWERS = {
    "": np.eye(3),
    "deuteranopia": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "protanopia": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "tritanopia": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
}
# Ottosson, "A perceptual color space for image processing" (2020): Oklab, here from 0 to 100.
TO_CONES = [[0.4122, 0.5363, 0.0514], [0.2119, 0.6807, 0.1074], [0.0883, 0.2817, 0.6300]]
TO_LAB = [[0.2105, 0.7936, -0.0041], [1.9780, -2.4286, 0.4506], [0.0259, 0.7828, -0.8087]]


def lab(rgb: ArrayLike, viewer: str = "") -> NDArray[np.float64]:
    """Return lightness, red against green, and yellow against blue of sRGB in 0 to 255."""
    share = np.asarray(rgb) / 255
    light = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    seen = np.clip(light @ np.transpose(VIEWERS[viewer]), 0, 1)
    return 100 * np.cbrt(seen @ np.transpose(TO_CONES)) @ np.transpose(TO_LAB)


@pytest.mark.parametrize("photo", PHOTOS)
@pytest.mark.parametrize("viewer", VIEWERS)
@pytest.mark.parametrize("style", ENOUGH)
def test_signs_differ_where_they_have_colors(photo: str, viewer: str, style: Style) -> None:
    image = np.full((1, 2, 3), PHOTOS[photo], np.uint8)
    for value, enough in ENOUGH[style].items():
        values = np.array([[value, -value]])
        positive, negative = lab(overlay(image, values, signed=True, style=style)[0], viewer)
        assert np.linalg.norm(positive - negative) >= enough, value


@given(pixel=st.tuples(*[st.integers(0, 255)] * 3), colormap=st.sampled_from(["magma", "viridis"]))
def test_lightness_rises_with_the_value_on_any_photo(
    pixel: tuple[int, int, int], colormap: str
) -> None:
    values = np.linspace(0, 1, 256)[None]
    image = np.broadcast_to(np.array(pixel, np.uint8), (1, 256, 3)).copy()
    unsigned = overlay(image, values, colormap=colormap, style="quantitative")
    arms = [overlay(image, sign * values, signed=True, style="quantitative") for sign in (1, -1)]
    for drawn in (unsigned, *arms):
        lightness = lab(drawn[0])[:, 0]
        falls = np.maximum.accumulate(lightness) - lightness
        assert falls.max() <= 1  # the least that is noticed
        assert lightness[-1] >= lightness[0] + 12
