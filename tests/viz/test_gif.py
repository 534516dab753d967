"""GIF encoding of frames."""

import io

import numpy as np
import pytest
from PIL import Image, ImageSequence

from visattn.viz.canvas import BACKGROUND, TEXT
from visattn.viz.gif import encode_gif

RED, ODD = (186, 84, 84), (153, 149, 160)


def page(shade: int) -> Image.Image:
    """Return an image of many colors above, text-like marks on paper below."""
    pixels = np.empty((60, 40, 3), np.uint8)
    pixels[:] = BACKGROUND
    down, along = np.mgrid[:30, :30]
    pixels[:30, 5:35] = np.stack([down * 8, along * 8, np.full_like(down, shade)], -1)
    pixels[40:45, 5:20], pixels[50:55, 5:20], pixels[40:55, 25:35] = TEXT, RED, ODD
    return Image.fromarray(pixels)


def frames(moving: bytes) -> list[np.ndarray]:
    with Image.open(io.BytesIO(moving)) as opened:
        return [np.array(item.convert("RGB")) for item in ImageSequence.Iterator(opened)]


def test_background_and_text_colors_are_exact() -> None:
    actual = frames(encode_gif([page(0), page(200)], [100, 200], 35, text_colors=[RED]))
    assert len(actual) == 2
    for frame in actual:
        assert (frame[:30, :5] == BACKGROUND).all()  # beside the image too
        assert (frame[45:50, :25] == BACKGROUND).all()
        assert (frame[40:45, 5:20] == TEXT).all()
        assert (frame[50:55, 5:20] == RED).all()


def test_text_is_not_dithered() -> None:
    for frame in frames(encode_gif([page(0), page(200)], [100, 200], 35)):
        assert len(np.unique(frame[40:55, 25:35].reshape(-1, 3), axis=0)) == 1
        assert np.abs(frame[45, 30].astype(int) - ODD).max() < 20


def test_images_are_close_to_the_originals() -> None:
    actual = frames(encode_gif([page(0), page(200)], [100, 200], 35, text_colors=[RED]))
    for frame, shade in zip(actual, (0, 200), strict=True):
        wanted = np.asarray(page(shade)).astype(float)
        off = (frame - wanted)[:30, 5:35].reshape(6, 5, 6, 5, 3).mean((1, 3))
        assert np.abs(off).max() < 12


def test_durations_are_kept_and_the_animation_loops() -> None:
    moving = encode_gif([page(0), page(9), page(90)], [100, 250, 1000], 35)
    with Image.open(io.BytesIO(moving)) as opened:
        assert opened.info["loop"] == 0
        assert [item.info["duration"] for item in ImageSequence.Iterator(opened)] == [
            100,
            250,
            1000,
        ]


def test_frames_may_be_images_only() -> None:
    assert len(frames(encode_gif([page(0), page(99)], [50, 50], 60))) == 2


@pytest.mark.parametrize(("count", "times"), [(0, []), (2, [100])])
def test_each_frame_has_a_duration(count: int, times: list[int]) -> None:
    with pytest.raises(ValueError, match="each frame needs a duration"):
        encode_gif([page(0)] * count, times, 35)
