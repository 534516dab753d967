"""Color tables."""

import matplotlib as mpl
import numpy as np
import pytest

from visattn.viz.heatmap import colormap_lut


@pytest.mark.parametrize("name", ["magma", "viridis", "inferno", "jet"])
def test_tables_match_matplotlib(name: str) -> None:
    expected = np.rint(mpl.colormaps[name](np.arange(256))[:, :3] * 255)
    assert np.abs(colormap_lut(name).astype(int) - expected).max() <= 1


def test_magma_lightness_increases() -> None:
    light = colormap_lut("magma").astype(int) @ [299, 587, 114]
    assert (np.diff(light) > -600).all()  # 8 bits round
    assert light[255] > 0.9 * 255_000 > light[128] > light[0]


def test_tables_are_read_only() -> None:
    with pytest.raises(ValueError, match="read-only"):
        colormap_lut()[0] = 7


def test_unknown_colormap_gets_suggestions() -> None:
    with pytest.raises(ValueError, match="unknown colormap 'magmas'; did you mean magma"):
        colormap_lut("magmas")
