"""Animations of captions."""

import io
from typing import Any

import numpy as np
import pytest
from caption_results import caption_of
from PIL import Image, ImageSequence

from visattn.viz.canvas import BACKGROUND, TEXT
from visattn.viz.captions import (
    FIRST_DURATION,
    LAST_DURATION,
    WORD_DURATION,
    animation_frame_size,
    caption_gif,
)
from visattn.viz.heatmap import overlay, resize_image, resize_map

RNG = np.random.default_rng(7)


def caption_animation(
    image: np.ndarray, words: list[str], maps: np.ndarray, **options: Any
) -> bytes:
    """Return the animation of a caption with maps over its photo."""
    said = caption_of(tuple(words), maps, (image.shape[0], image.shape[1]))
    return caption_gif(image, said, **options)


def photo(y: int, x: int) -> np.ndarray:
    down, along = np.mgrid[:y, :x] / max(y, x)
    layers = (np.sin(9 * down + 3 * along), np.cos(5 * along - down), np.sin(11 * along * down))
    return np.stack([127 + 60 * layer for layer in layers], axis=-1).astype(np.uint8)


def frames(moving: bytes) -> list[np.ndarray]:
    with Image.open(io.BytesIO(moving)) as opened:
        return [np.array(item.convert("RGB")) for item in ImageSequence.Iterator(opened)]


def blocks(frame: np.ndarray) -> np.ndarray:
    """Return means over squares, where dithered colors are averaged."""
    return frame.reshape(len(frame) // 10, 10, -1, 10, 3).mean((1, 3))


def test_frames_are_the_photo_each_word_and_all_words() -> None:
    pixels, maps = photo(60, 80), np.zeros((2, 60, 80))
    maps[0, :20, :20], maps[1, 40:, 60:] = 1.0, 0.5
    actual = frames(caption_animation(pixels, ["a", "dog"], maps, vmax=1.0, width=240))
    small, size = resize_image(pixels, (180, 240)), (180, 240)
    shown = [resize_map(item, size) for item in (*maps, maps.mean(0))]
    expected = [small, *(overlay(small, item, vmax=1.0) for item in shown)]
    assert len(actual) == 4
    for drawn, wanted in zip(actual, expected, strict=True):
        assert np.abs(blocks(drawn[:180]) - blocks(wanted)).max() < 12  # of 255
        assert drawn.shape == (actual[0].shape[0], 240, 3)


def marked(frame: np.ndarray, height: int) -> np.ndarray:
    """Return the columns of text on dark background below the photo."""
    dark = np.abs(frame[height:].astype(int) - TEXT).max(2) < 30
    return np.flatnonzero(dark.sum(0) > 20)


def test_current_word_is_marked() -> None:
    words = ["dogs", "running", "far"]
    actual = frames(caption_animation(photo(60, 80), words, np.zeros((3, 60, 80)), vmax=1.0))
    ends = [marked(frame, 360) for frame in actual]
    assert len(ends[0]) == len(ends[-1]) == 0
    middles = [(item.min() + item.max()) / 2 for item in ends[1:-1]]
    assert all(middles[word] < ends[word + 2].min() for word in (0, 1))


def test_frame_durations() -> None:
    moving = caption_animation(
        photo(60, 80), ["a", "dog"], RNG.random((2, 60, 80)), vmax=1.0, width=160
    )
    with Image.open(io.BytesIO(moving)) as opened:
        assert opened.info["loop"] == 0
        times = [item.info["duration"] for item in ImageSequence.Iterator(opened)]
    assert times == [FIRST_DURATION, WORD_DURATION, WORD_DURATION, LAST_DURATION]


def own_palettes(moving: bytes) -> list[bool]:
    """Return for each frame of a GIF whether it has its own palette."""
    at, actual = 13 + 3 * 2 ** (1 + moving[10] % 8) * (moving[10] >> 7), []
    while moving[at] != 0x3B:
        if moving[at] == 0x2C:
            flags = moving[at + 9]
            actual.append(bool(flags >> 7))
            at += 11 + 3 * 2 ** (1 + flags % 8) * (flags >> 7)
        else:
            at += 2
        while moving[at]:
            at += 1 + moving[at]
        at += 1
    return actual


def test_frames_share_one_palette() -> None:
    maps = RNG.random((2, 60, 80))
    moving = caption_animation(photo(60, 80), ["a", "b"], maps, vmax=1.0, width=160)
    assert own_palettes(moving) == [False] * 4


def test_long_animations_are_drawn_smaller() -> None:
    noise = RNG.integers(0, 256, (480, 480, 3), dtype=np.uint8)
    maps = np.zeros((3, 480, 480))
    for word, top in enumerate((0, 150, 300)):
        maps[word, top : top + 150] = 1.0
    whole = caption_animation(noise, ["a", "b", "c"], maps, vmax=1.0, width=240)
    small = caption_animation(noise, ["a", "b", "c"], maps, vmax=1.0, width=240, max_bytes=180_000)
    assert len(whole) > 200_000
    assert len(small) <= 180_000
    assert 160 <= frames(small)[0].shape[1] < 240


@pytest.mark.parametrize("size", [(48, 160), (160, 48), (7, 5), (1000, 10), (10, 1000)])
def test_animations_of_any_image_size(size: tuple[int, int]) -> None:
    maps = RNG.random((2, *size))
    maps[:, :, : size[1] // 3] = np.nan  # not seen
    words = ["incomprehensibilities" * 9, "犬"]
    actual = frames(caption_animation(photo(*size), words, maps, vmax=1.0, width=160))
    assert {item.shape[1] for item in actual} == {160}
    assert actual[0].shape[0] <= 2 * 160 + 140


def test_long_caption_is_truncated() -> None:
    actual = frames(
        caption_animation(photo(24, 40), ["dogs"] * 29, np.zeros((29, 24, 40)), vmax=1.0, width=160)
    )
    assert actual[0].shape[0] == 96 + 2 * 12 + 4 * 28 - 6
    assert (np.array(actual)[:, -8:] == BACKGROUND).all()  # no fifth line


@pytest.mark.parametrize(
    ("size", "shown"), [((480, 640), (360, 480)), ((640, 480), (640, 480)), ((100, 10), (960, 96))]
)
def test_frames_have_the_aspect_ratio_of_the_image(
    size: tuple[int, int], shown: tuple[int, int]
) -> None:
    assert animation_frame_size(size, 480) == shown


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"width": 159}, "at least 160 pixels wide, got 159"),
        ({"vmax": 0.0}, "vmin must be below vmax"),
    ],
)
def test_invalid_inputs_are_refused(change: dict[str, Any], reason: str) -> None:
    arguments = {"words": ["a", "dog"], "maps": np.zeros((2, 24, 40)), "vmax": 1.0}
    with pytest.raises(ValueError, match=reason):
        caption_animation(photo(24, 40), **{**arguments, **change})
