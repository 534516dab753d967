"""Channels that are no colors are drawn between two percentiles."""

import numpy as np

from visattn.images.rgb import draw_channels


def test_values_between_the_percentiles_fill_the_gray_levels() -> None:
    values = 3 * np.arange(101, dtype=np.float32)[None, :, None] - 50
    pixels, text = draw_channels(values)
    assert pixels[0, [0, 2, 50, 98, 100], 0].tolist() == [0, 0, 128, 255, 255]
    assert text == "channel 0 in gray from its 2nd to its 98th percentile"
    values[0, 50] = np.nan
    assert draw_channels(values)[0][0, 50].tolist() == [0, 0, 0]
