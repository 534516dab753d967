"""Colors of overlays as people see them: signs differ, lightness rises with the value."""

import numpy as np
import pytest
from color_vision import DEFICIENCIES, ciede2000, lab
from hypothesis import given, strategies as st

from visattn.viz.heatmap import Style, overlay

PHOTOS = {"white": 255, "snow": 235, "gray": 150, "dim": 90, "dark": 30, "black": 0}
ENOUGH = {"heat": {0.2: 9.0, 0.3: 14.0}, "quantitative": {0.1: 6.0, 0.2: 14.0, 0.3: 22.0}}
"""CIEDE2000 between +v and -v."""


@pytest.mark.parametrize(
    ("first", "second", "difference"),
    [  # Sharma, Wu and Dalal (2005), Table 1
        ((50, 2.6772, -79.7751), (50, 0, -82.7485), 2.0425),
        ((50, -1.3802, -84.2814), (50, 0, -82.7485), 1.0),
        ((50, -1, 2), (50, 0, 0), 2.3669),
        ((50, 2.49, -0.001), (50, -2.49, 0.0009), 7.1792),
        ((50, 2.49, -0.001), (50, -2.49, 0.0011), 7.2195),
        ((50, -0.001, 2.49), (50, 0.0011, -2.49), 4.7461),
        ((50, 2.5, 0), (73, 25, -18), 27.1492),
        ((60.2574, -34.0099, 36.2677), (60.4626, -34.1751, 39.4387), 1.2644),
        ((2.0776, 0.0795, -1.1350), (0.9033, -0.0636, -0.5514), 0.9082),
    ],
)
def test_ciede2000_of_the_published_pairs(
    first: tuple[float, ...], second: tuple[float, ...], difference: float
) -> None:
    assert float(ciede2000(first, second)) == pytest.approx(difference, abs=1e-4)
    assert float(ciede2000(second, first)) == pytest.approx(difference, abs=1e-4)


def test_simulated_deficiencies_keep_gray_and_merge_what_is_confused() -> None:
    for name in DEFICIENCIES:
        assert float(ciede2000(lab((128, 128, 128), name), lab((128, 128, 128)))) < 1
    red, green = (190, 100, 60), (130, 130, 60)
    normal = float(ciede2000(lab(red), lab(green)))
    assert float(ciede2000(lab(red, "deuteranopia"), lab(green, "deuteranopia"))) < normal / 3


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
