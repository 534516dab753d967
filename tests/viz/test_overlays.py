"""Attention on its picture, pixel by pixel."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from visattn.maps.attention_maps import AttentionMap
from visattn.maps.geometries import Geometry
from visattn.viz.colours import colour_table
from visattn.viz.overlays import Style, overlay

STYLES = st.sampled_from(["heat", "light"])


def scene(y: int = 43, x: int = 61) -> np.ndarray:
    """Return a small picture: a sky, a meadow, a house."""
    picture = np.zeros((y, x, 3), np.uint8)
    picture[:] = np.linspace((120, 170, 230), (220, 235, 250), y).astype(np.uint8)[:, None]
    picture[2 * y // 3 :] = (90, 140, 60)
    picture[y // 3 : 4 * y // 5, x // 2 : 4 * x // 5] = (190, 70, 50)
    return picture


def hill(y: int = 43, x: int = 61) -> np.ndarray:
    down, along = np.mgrid[:y, :x]
    return np.exp(-(((down / y - 0.5) / 0.2) ** 2) - ((along / x - 0.6) / 0.2) ** 2)


@given(seed=st.integers(0, 999), style=STYLES)
def test_a_pixel_depends_on_itself_alone(seed: int, style: Style) -> None:
    # oracle: each pixel drawn in a picture of its own, of one pixel
    rng = np.random.default_rng(seed)
    picture = rng.integers(0, 256, (3, 5, 3), dtype=np.uint8)
    values = rng.uniform(-0.2, 1.3, (3, 5))
    whole = overlay(picture, values, style=style)
    for y, x in np.ndindex(3, 5):
        alone = overlay(picture[y : y + 1, x : x + 1], values[y : y + 1, x : x + 1], style=style)
        assert whole[y, x].tolist() == alone[0, 0].tolist()


def test_a_white_pixel_or_a_peak_elsewhere_changes_nothing() -> None:
    picture, values = scene(), hill()
    before = overlay(picture, values)
    picture[0, 0], values[0, 1] = 255, 1e6
    after = overlay(picture, values)
    assert np.array_equal(before[1:], after[1:])
    assert np.array_equal(before[0, 2:], after[0, 2:])


@given(style=STYLES)
def test_a_second_run_gives_the_same_bytes(style: Style) -> None:
    values = hill()
    values[:, :9] = np.nan
    first = overlay(scene(), values, style=style)
    assert first.tobytes() == overlay(scene(), values, style=style).tobytes()


def test_full_attention_shows_the_colour_and_none_shows_a_quiet_picture() -> None:
    picture = np.full((1, 3, 3), 100, np.uint8)
    shown = overlay(picture, np.array([[0.0, 1.0, 2.0]]), opacity=1.0)
    assert shown[0, 0].tolist() == [82, 82, 82]
    assert shown[0, 1].tolist() == shown[0, 2].tolist() == colour_table()[255].tolist()


def test_without_opacity_attention_is_not_seen() -> None:
    picture = scene()
    none = overlay(picture, np.zeros(picture.shape[:2]))
    assert np.array_equal(overlay(picture, hill(), opacity=0.0), none)


def test_light_gives_the_picture_back_where_attention_is_full() -> None:
    picture = scene()
    shown = overlay(picture, np.ones(picture.shape[:2]), style="light")
    assert np.array_equal(shown, picture)


def test_the_scale_decides_and_ends_hold_beyond_it() -> None:
    picture = np.full((1, 4, 3), 200, np.uint8)
    shown = overlay(picture, np.array([[-9.0, 2.0, 4.0, np.inf]]), low=2.0, high=4.0)
    assert np.array_equal(shown[0, 0], shown[0, 1])
    assert np.array_equal(shown[0, 2], shown[0, 3])
    same = overlay(picture, np.array([[0.0, 0.0, 1.0, 1.0]]))
    assert np.array_equal(shown, same)


def test_more_attention_covers_more() -> None:
    picture = np.zeros((1, 256, 3), np.uint8)
    shown = overlay(picture, np.linspace(0, 1, 256)[None], colours="gray").astype(int)[0, :, 0]
    assert (np.diff(shown) >= 0).all()
    assert shown[255] == pytest.approx(0.7 * 255, abs=1)


def test_the_unseen_is_grey_dark_and_hatched() -> None:
    picture = scene(61, 61)
    values = np.full((61, 61), 0.9)
    values[:, 31:] = np.nan
    shown = overlay(picture, values).astype(int)
    unseen = shown[:, 31:]
    assert (unseen == unseen[:, :, :1]).all()
    flat = overlay(np.full((61, 61, 3), 150, np.uint8), np.full((61, 61), np.nan))[..., 0]
    dark, line = np.unique(flat)
    assert 0.05 < (flat == line).mean() < 0.3
    assert dark < line < 150
    assert np.array_equal(flat[1:, :-1], flat[:-1, 1:])  # the lines slant
    assert np.array_equal(shown[:, :31], overlay(picture, np.full((61, 61), 0.9))[:, :31])


def test_the_inputs_stay_as_they_were() -> None:
    picture, values = scene(), hill()
    values[0] = np.nan
    kept, known = picture.copy(), values.copy()
    overlay(picture, values)
    np.testing.assert_array_equal(picture, kept)
    np.testing.assert_array_equal(values, known)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"values": np.zeros((5, 7))}, r"\(43, 61\), got \(5, 7\)|Expected type: .*y x"),
        ({"low": 1.0}, "must rise from low to high, got 1.0 to 1.0"),
        ({"high": float("nan")}, "must rise from low to high"),
        ({"opacity": 1.1}, "opacity must lie between 0 and 1, got 1.1"),
        ({"colours": "heat"}, "no colour table 'heat'"),
        ({"style": "fog"}, "got 'fog'|Expected type: .*Literal"),
    ],
)
def test_what_cannot_be_drawn_is_refused(change: dict[str, Any], reason: str) -> None:
    with pytest.raises((ValueError, TypeError), match=reason):
        overlay(**{"picture": scene(), "values": hill(), **change})


@pytest.mark.parametrize("style", ["heat", "light"])
def test_an_overlay_looks_as_it_did(
    golden: Callable[[str, np.ndarray], None], style: Style
) -> None:
    geometry = Geometry.identity((43, 61)).cropped(0, 9, (43, 43))
    cells = torch.zeros(7, 7)
    cells[3, 4], cells[2, 2], cells[5, 1] = 1.0, 0.5, 0.2
    values = AttentionMap(cells, "site", "words", geometry).on_picture().numpy()
    golden(f"overlay_{style}", overlay(scene(), values, style=style))


def test_cells_look_as_they_did(golden: Callable[[str, np.ndarray], None]) -> None:
    geometry = Geometry.identity((43, 61)).padded(9, 0, (61, 61))
    cells = torch.zeros(5, 5)
    cells[2, 3], cells[2, 1], cells[0, 0] = 1.0, 0.4, 1.0
    hard = AttentionMap(cells, "site", "gate", geometry).on_picture(smooth=False).numpy()
    golden("overlay_cells", overlay(scene(), hard, colours="viridis"))
