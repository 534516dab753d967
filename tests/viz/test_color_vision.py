"""Colors of overlays as people see them: signs differ, lightness rises with the value."""

import numpy as np
import pytest
from color_vision import DEFICIENCIES, ciede2000, lab
from hypothesis import given, strategies as st

from visattn.viz.heatmap import Style, overlay

PHOTOS = {"white": 255, "snow": 235, "gray": 150, "dim": 90, "dark": 30, "black": 0}
ENOUGH = {"heat": {0.2: 9.0, 0.3: 14.0}, "quantitative": {0.1: 6.0, 0.2: 14.0, 0.3: 22.0}}
"""CIEDE2000 between +v and -v."""


@pytest.mark.parametrize("photo", PHOTOS)
@pytest.mark.parametrize("viewer", ["", *DEFICIENCIES])
@pytest.mark.parametrize("style", ENOUGH)
def test_signs_differ_where_they_have_colors(photo: str, viewer: str, style: Style) -> None:
    image = np.full((1, 2, 3), PHOTOS[photo], np.uint8)
    for value, enough in ENOUGH[style].items():
        values = np.array([[value, -value]])
        [[positive, negative]] = overlay(image, values, signed=True, style=style)
        difference = float(ciede2000(lab(positive, viewer), lab(negative, viewer)))
        assert difference >= (enough / 2 if viewer else enough), (photo, viewer, value)
    [[positive, negative]] = overlay(image, np.array([[1.0, -1.0]]), signed=True, style=style)
    assert float(ciede2000(lab(positive, viewer), lab(negative, viewer))) >= 22


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
        assert falls.max() <= 1  # L* of 1 is the least that is noticed
        assert lightness[-1] >= lightness[0] + 15
