"""A caption as an image that moves."""

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageSequence

from visattn.viz.captions.animation import FIRST, LAST, WORD, caption_animation, frame_size
from visattn.viz.maps.heatmap import overlay
from visattn.viz.maps.legend import INK, PAPER
from visattn.viz.maps.resize import resized_image, resized_map

RNG = np.random.default_rng(7)


def photo(y: int, x: int) -> np.ndarray:
    down, along = np.mgrid[:y, :x] / max(y, x)
    layers = (np.sin(9 * down + 3 * along), np.cos(5 * along - down), np.sin(11 * along * down))
    return np.stack([127 + 60 * layer for layer in layers], axis=-1).astype(np.uint8)


def frames(moving: bytes) -> list[np.ndarray]:
    with Image.open(io.BytesIO(moving)) as opened:
        return [np.array(one.convert("RGB")) for one in ImageSequence.Iterator(opened)]


def blocks(frame: np.ndarray) -> np.ndarray:
    """Return means over squares: between 250 colors one sees the colors that are mixed."""
    return frame.reshape(len(frame) // 10, 10, -1, 10, 3).mean((1, 3))


def test_frames_are_the_photo_each_word_and_all_words() -> None:
    pixels, maps = photo(60, 80), np.zeros((2, 60, 80))
    maps[0, :20, :20], maps[1, 40:, 60:] = 1.0, 0.5
    found = frames(caption_animation(pixels, ["a", "dog"], maps, high=1.0, width=240))
    small, size = resized_image(pixels, (180, 240)), (180, 240)
    shown = [resized_map(one, size) for one in (*maps, maps.mean(0))]
    expected = [small, *(overlay(small, one, high=1.0) for one in shown)]
    assert len(found) == 4
    for drawn, wanted in zip(found, expected, strict=True):
        assert np.abs(blocks(drawn[:180]) - blocks(wanted)).max() < 12  # of 255
        assert drawn.shape == (found[0].shape[0], 240, 3)


def marked(frame: np.ndarray, height: int) -> np.ndarray:
    """Return the columns of what stands on dark ground below the photo."""
    dark = np.abs(frame[height:].astype(int) - INK).max(2) < 30
    return np.flatnonzero(dark.sum(0) > 20)


def test_the_word_in_turn_is_marked() -> None:
    words = ["dogs", "running", "far"]
    found = frames(caption_animation(photo(60, 80), words, np.zeros((3, 60, 80)), high=1.0))
    ends = [marked(frame, 360) for frame in found]
    assert len(ends[0]) == len(ends[-1]) == 0
    middles = [(one.min() + one.max()) / 2 for one in ends[1:-1]]
    assert all(middles[word] < ends[word + 2].min() for word in (0, 1))


def test_times_leave_room_to_look() -> None:
    moving = caption_animation(
        photo(60, 80), ["a", "dog"], RNG.random((2, 60, 80)), high=1.0, width=160
    )
    with Image.open(io.BytesIO(moving)) as opened:
        assert opened.info["loop"] == 0
        times = [one.info["duration"] for one in ImageSequence.Iterator(opened)]
    assert times == [FIRST, WORD, WORD, LAST]


def own_palettes(moving: bytes) -> list[bool]:
    """Return for each frame of a GIF whether it brings a palette of its own."""
    at, found = 13 + 3 * 2 ** (1 + moving[10] % 8) * (moving[10] >> 7), []
    while moving[at] != 0x3B:
        if moving[at] == 0x2C:
            flags = moving[at + 9]
            found.append(bool(flags >> 7))
            at += 11 + 3 * 2 ** (1 + flags % 8) * (flags >> 7)
        else:
            at += 2
        while moving[at]:
            at += 1 + moving[at]
        at += 1
    return found


def test_frames_share_one_palette() -> None:
    maps = RNG.random((2, 60, 80))
    moving = caption_animation(photo(60, 80), ["a", "b"], maps, high=1.0, width=160)
    assert own_palettes(moving) == [False] * 4


def test_what_would_be_too_long_is_drawn_smaller() -> None:
    noise = RNG.integers(0, 256, (480, 480, 3), dtype=np.uint8)
    maps = np.zeros((3, 480, 480))
    for word, top in enumerate((0, 150, 300)):
        maps[word, top : top + 150] = 1.0
    whole = caption_animation(noise, ["a", "b", "c"], maps, high=1.0, width=240)
    small = caption_animation(noise, ["a", "b", "c"], maps, high=1.0, width=240, max_bytes=180_000)
    assert len(whole) > 200_000
    assert len(small) <= 180_000
    assert 160 <= frames(small)[0].shape[1] < 240


@pytest.mark.parametrize("size", [(48, 160), (160, 48), (7, 5), (1000, 10), (10, 1000)])
def test_any_image_can_move(size: tuple[int, int]) -> None:
    maps = RNG.random((2, *size))
    maps[:, :, : size[1] // 3] = np.nan  # not seen
    words = ["incomprehensibilities" * 9, "犬"]
    found = frames(caption_animation(photo(*size), words, maps, high=1.0, width=160))
    assert {one.shape[1] for one in found} == {160}
    assert found[0].shape[0] <= 2 * 160 + 140


def test_a_long_caption_is_cut_and_not_squeezed() -> None:
    found = frames(
        caption_animation(photo(24, 40), ["dogs"] * 29, np.zeros((29, 24, 40)), high=1.0, width=160)
    )
    assert found[0].shape[0] == 96 + 2 * 12 + 4 * 28 - 6
    assert (np.array(found)[:, -8:] == PAPER).all()  # nothing of a fifth line


@pytest.mark.parametrize(
    ("size", "shown"), [((480, 640), (360, 480)), ((640, 480), (640, 480)), ((100, 10), (960, 96))]
)
def test_frames_have_the_proportions_of_the_image(
    size: tuple[int, int], shown: tuple[int, int]
) -> None:
    assert frame_size(size, 480) == shown


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"words": []}, "one for each word, got 2 for 0"),
        ({"words": ["a"]}, "one for each word, got 2 for 1"),
        ({"width": 159}, "at least 160 pixels wide, got 159"),
        ({"high": 0.0}, "must rise"),
    ],
)
def test_what_cannot_move_is_refused(change: dict[str, Any], reason: str) -> None:
    given = {"words": ["a", "dog"], "maps": np.zeros((2, 24, 40)), "high": 1.0}
    with pytest.raises(ValueError, match=reason):
        caption_animation(photo(24, 40), **{**given, **change})
