"""Image tokens lie where their pixels came from: worked-out grids, and marked blocks."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from real_grids import boxes_of, tiled
from tiny_vlms import PROMPT, build
from torch import Tensor
from vlm_runs import greedy, options, photo, prompt_of, replays, sharp

from visattn.images.reader import LoadedImage
from visattn.pipelines.words.captions import PhotoWords, read_words
from visattn.pipelines.words.image_tokens import _Pixels
from visattn.pipelines.words.language_model import (
    ONE_TEXT,
    PhotoProcessor,
    pixel_name,
    run_generate,
    text_decoder,
)
from visattn.recording.interception import attention_calls

HEIGHT, WIDTH = 180, 300
TOLERANCE = 0.02  # tokens


def grid(
    columns: int, rows: int, left: float = 0, top: float = 0, right: float = WIDTH,
    bottom: float = HEIGHT,
) -> Tensor:  # fmt: skip
    """Return the boxes of an even grid, row by row."""
    x, y = torch.linspace(left, right, columns + 1), torch.linspace(top, bottom, rows + 1)
    return boxes_of(x, y)


def padded() -> Tensor:
    """Donut: 28 x 48 pixels below 18 rows of padding; tokens of 8 x 8."""
    return boxes_of(torch.linspace(0, WIDTH, 7), torch.tensor([0, 6, 14, 22, 28]) * HEIGHT / 28)


def padded_tiles() -> Tensor:
    """Mllama: 38 x 64 pixels on 2 x 2 tiles of 32 x 32; tokens of 8 x 8, none of padding alone."""
    row = HEIGHT * 8 / 38
    upper = [grid(4, 4, left, 0, left + 150, 4 * row) for left in (0, 150)]
    return torch.cat([*upper, *(grid(4, 1, left, 4 * row, left + 150) for left in (0, 150))])


PIXEL = WIDTH / 53  # LLaVA: 32 x 53 pixels, of which columns 10 to 42 are kept
GRIDS = {
    "llava": grid(4, 4, 10 * PIXEL, 0, 42 * PIXEL),
    "paligemma": grid(4, 4),
    "blip": grid(4, 4),
    "qwen2_vl": grid(7, 4),
    "qwen2_5_vl": grid(7, 4),
    "qwen3_vl": grid(7, 4),
    "idefics3": tiled((HEIGHT, WIDTH), 2, 3, 2),
    "smolvlm": tiled((HEIGHT, WIDTH), 2, 3, 2),
    "internvl": tiled((HEIGHT, WIDTH), 2, 3, 2),
    "donut": padded(),
    "gemma3": grid(2, 2),
    "ved": grid(5, 3),
    "mllama": padded_tiles(),
}

SHOWN = {  # the lower tiles of Mllama are padding but for 6 rows of pixels
    "donut": torch.tensor([0.75, 1, 1, 0.75]).repeat_interleave(6),
    "mllama": torch.tensor([1.0] * 32 + [0.75] * 8),
}
"""How much of each token the photo shows."""


@pytest.mark.parametrize("family", GRIDS)
def test_probe_finds_the_worked_out_grid(family: str) -> None:
    placement = greedy(family).placement
    expected = GRIDS[family]
    assert placement.boxes.shape == expected.shape
    size = torch.cat([expected[:, 2:] - expected[:, :2]] * 2, 1)
    assert float(((placement.boxes - expected) / size).abs().max()) <= TOLERANCE
    if family in SHOWN:
        torch.testing.assert_close(placement.visible, SHOWN[family], atol=3e-3, rtol=0)


@pytest.mark.parametrize("family", ["llava_next", "donut"])
def test_boxes_of_a_word_hold_its_peak(family: str) -> None:
    """Of tiles, and of a page with padding: boxes lie on the photo, around the peak."""
    caption = greedy(family).caption("attention")
    result = caption.maps.boxes(smooth=False)
    assert {each.label for each in result} == set(caption.words)
    placed = caption.maps.resize_to_image(smooth=False).nan_to_num(0.0)
    for drawn, boxes in zip(placed, result.per_map(), strict=True):
        y, x = divmod(int(drawn.argmax()), WIDTH)
        assert any(b[0] <= x < b[2] and b[1] <= y < b[3] for b in boxes)
        assert all(0 <= b[0] < b[2] <= WIDTH and 0 <= b[1] < b[3] <= HEIGHT for b in boxes)


def test_the_box_of_a_word_is_that_of_its_tokens() -> None:
    """All attention on two tokens of the second row of LLaVA: pixels 18 to 33 of the 53."""
    replay = greedy("llava")
    rows = torch.zeros(len(replay.words.words), 16)
    rows[:, 5:7] = 0.5
    caption = replay.caption("attention")
    maps = replace(caption.maps, values=replay.placement.rasterize(rows))
    [result] = maps[0].boxes(smooth=False)
    assert result.box == pytest.approx((18 * PIXEL, 45, 34 * PIXEL, 90), abs=1.0)  # whole pixels
    assert (result.label, result.score) == (caption.words[0], pytest.approx(1.0))


@pytest.mark.parametrize("layer", ["layers.0", "layers.1"])
def test_a_decoder_that_moves_its_rows_is_refused(layer: str) -> None:
    """By one token, for example for a token of its own: maps would lie beside the objects."""
    model, processor = build("llava")
    moved: Any = text_decoder(model)[1].get_submodule(layer)
    moved.register_forward_pre_hook(lambda _, args: (args[0].roll(1, 1), *args[1:]))
    with pytest.raises(ValueError, match="moves image tokens to other keys"):
        replays("llava", model=(model, processor))


def rows_of(replay: PhotoWords, pixels: np.ndarray) -> Tensor:
    """Return what words of the unchanged model read of each image token of a photo."""
    model, inputs = replay.model, dict(replay.inputs)
    name = pixel_name(inputs)
    inputs[name] = replay.process(Image.fromarray(pixels))[name]
    rows: dict[str, Tensor] = {}
    first = (replay.tokens.between or replay.text.sites)[0]

    def on_call(call: Any) -> None:
        if call.name == first and first not in rows:
            rows[first] = call.inputs[2].transpose(1, 2).flatten(2).flatten(0, 1)

    with attention_calls(model, on_call):
        run_generate(model, inputs, {**ONE_TEXT, "max_new_tokens": 1})
    return rows[first][replay.placement.columns if replay.tokens.between else replay.tokens.columns]


@pytest.mark.parametrize(
    "family", ["llava", "llava_next", "qwen2_vl", "internvl", "blip", "donut", "mllama", "mistral3",
               "blip2", "git"],
)  # fmt: skip
def test_the_token_under_a_marked_block_changes_most(family: str) -> None:
    replay = replays(family, model=build(family))[0]
    placement = replay.placement
    boxes = placement.boxes
    before = rows_of(replay, photo().pixels)
    area = (boxes[:, 2:] - boxes[:, :2]).prod(1) * placement.visible
    area[placement.visible < 0.5] = torch.inf
    smallest = (area < 1.3 * area.min()).nonzero()[:, 0]  # of tiles, not of the whole photo
    for token in smallest[:: max(1, len(smallest) // 2)].tolist():
        left, top, right, bottom = boxes[token].round().int().tolist()
        pixels = photo().pixels.copy()
        pixels[max(0, top) : bottom, max(0, left) : right] = 255
        change = (rows_of(replay, pixels) - before).norm(dim=1)
        center = (boxes[token, :2] + boxes[token, 2:]) / 2
        under = ((boxes[:, :2] <= center) & (center <= boxes[:, 2:])).all(1)
        assert float(change[under].max()) >= 0.75 * float(change.max())
        assert float(change[token]) >= 0.75 * float(change[smallest].max())


@pytest.mark.parametrize("name", ["fast_vlm", "gemma3n"])
def test_tokens_of_convolutions_have_a_cell_each(name: str) -> None:
    model, processor = build(name)
    [[replay]] = read_words(model, photo((256, 256)), processor=processor,
                                     prompt="w1", max_new_tokens=1)  # fmt: skip
    side = {"fast_vlm": 4, "gemma3n": 16}[name]
    expected = grid(side, side, 0, 0, 256, 256)
    torch.testing.assert_close(replay.placement.boxes, expected, atol=1e-3, rtol=0)


def page() -> np.ndarray:
    """Return white margins around text."""
    pixels = np.full((180, 300, 3), 255, np.uint8)
    pixels[40:150, 100:280] = np.random.default_rng(0).integers(0, 256, (110, 180, 3))
    return pixels


def test_processors_that_crop_by_content_are_refused() -> None:
    processor = build("nougat")[1]
    model, chosen = sharp("donut")[0], options("donut", max_new_tokens=2, min_new_tokens=2)

    def boxes_of(pixels: np.ndarray) -> Tensor:
        image = LoadedImage(pixels)
        [[replay]] = read_words(model, image, processor=processor, **chosen)
        return replay.placement.boxes

    processor.image_processor.do_crop_margin = False
    plain = boxes_of(page())
    processor.image_processor.do_crop_margin = True
    torch.testing.assert_close(boxes_of(photo().pixels), plain, atol=1.0, rtol=0)  # no margins
    with pytest.raises(ValueError, match=r"this photo by its content.*do_crop_margin=False"):
        boxes_of(page())


def test_a_shift_of_bright_photos_by_three_pixels_is_refused() -> None:
    class Process:
        def unnormalized(self, image: Image.Image) -> dict[str, Tensor]:
            pixels = np.array(image.resize((280, 280)))
            moved = np.roll(pixels, 3 if pixels.mean() > 140 else 0, 1)
            return {"pixel_values": torch.from_numpy(moved.copy()).permute(2, 0, 1)[None].float()}

    process: Any = Process()
    pixels = _Pixels(process, "pixel_values", (280, 280), torch.Size((1, 3, 280, 280)))
    noise = np.random.default_rng(0).integers(0, 200, (280, 280, 3), dtype=np.uint8)
    pixels.check(LoadedImage(noise))
    with pytest.raises(ValueError, match="places this photo by its content"):
        pixels.check(LoadedImage(noise + 55))


@pytest.mark.parametrize("level", [0, 255])
def test_photos_of_one_color_are_placed(level: int) -> None:
    model, processor = sharp("llava")
    pixels = np.full((180, 300, 3), level, np.uint8)
    [[replay]] = read_words(model, LoadedImage(pixels), processor=processor,
                                     **options("llava"))  # fmt: skip
    torch.testing.assert_close(replay.placement.boxes, greedy("llava").placement.boxes)


@pytest.mark.parametrize("first", ["sliding_attention", "full_attention"])
def test_eager_attention_with_a_sliding_window_has_the_maps_of_sdpa(first: str) -> None:
    """The photo reaches beyond the window of one layer, whose scores do not show all keys."""
    other = {"full_attention": "sliding_attention"}.get(first, "full_attention")
    model, processor = build("gemma3", count=16, text_config={
        "sliding_window": 12, "layer_types": [first, other]})  # fmt: skip
    rows = []
    for kernel in ("sdpa", "eager"):
        model.set_attn_implementation(kernel)
        [[replay]] = read_words(model, photo(), processor=processor, prompt=PROMPT,
                                max_new_tokens=3, min_new_tokens=3)  # fmt: skip
        rows.append(replay.text.rows)
    torch.testing.assert_close(*rows, atol=2e-6, rtol=0)


def test_positions_are_kept_for_photos_of_one_size_and_prompt() -> None:
    model, processor = build("llava")
    kept: dict[Any, Any] = {}
    for size, crops in (((180, 300), True), ((180, 300), True), ((90, 180), True)):
        processor.image_processor.do_center_crop = crops
        read_words(model, photo(size), processor=processor, kept=kept, prompt="w1",
                            max_new_tokens=1)  # fmt: skip
    assert len(kept) == 2
    process = PhotoProcessor(model, processor, prompt_of("llava"))
    assert process.text == "<image>w1 w2"
