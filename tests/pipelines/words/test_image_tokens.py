"""Image tokens lie where their pixels came from: worked-out grids, and marked blocks."""

import itertools
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_vlms import build, nougat
from torch import Tensor
from vlm_runs import VLMS, greedy, model_inputs, options, photo, prompt_of, replays, sharp

from visattn.images.reader import LoadedImage
from visattn.pipelines.words.image_tokens import _CACHE, ImageTokens, find_image_tokens
from visattn.pipelines.words.language_model import GeneratedText, PhotoProcessor
from visattn.pipelines.words.lattice import find_lattices
from visattn.pipelines.words.pixel_places import check_places, find_pixel_places
from visattn.pipelines.words.placement import (
    NO_TOKEN,
    Placement,
    owned_pixel_moments,
    token_owners,
)
from visattn.pipelines.words.replay import WordReplay, generate_and_replay
from visattn.recording.frozen import frozen
from visattn.recording.key_sources import KeySources

HEIGHT, WIDTH = 180, 300
TOLERANCE = 0.02  # tokens
LEAST = 0.75
"""Change of the marked token, relative to the largest: attention carries some on to others, and
resampling blurs the edge of a block."""
SHARED = ("florence2", "got_ocr2")


def image_tokens_of(family: str) -> ImageTokens:
    """Return the tokens that read the photo: for resamplers, the ones before the queries."""
    model, processor = sharp(family)
    replay = greedy(family)
    ids = replay.inputs.get("decoder_input_ids", replay.inputs.get("input_ids"))
    assert isinstance(ids, Tensor)
    sequence = torch.cat([ids[0].cpu(), replay.token_ids[-1:]])
    text = GeneratedText(sequence, len(replay.token_ids), replay.log_probs)
    process = PhotoProcessor(model, processor, prompt_of(family))
    return find_image_tokens(model, process, photo(), model_inputs(family), text)


def grid(
    columns: int, rows: int, left: float = 0, top: float = 0, right: float = WIDTH,
    bottom: float = HEIGHT,
) -> Tensor:  # fmt: skip
    """Return the boxes of an even grid, row by row."""
    x, y = torch.linspace(left, right, columns + 1), torch.linspace(top, bottom, rows + 1)
    return torch.stack(
        [torch.stack([x[j], y[i], x[j + 1], y[i + 1]]) for i in range(rows) for j in range(columns)]
    )


def tiles(columns: int, rows: int, side: int) -> Tensor:
    """Return the boxes of tiles of `side` x `side` tokens, tile by tile, then the whole photo."""
    each = [grid(side, side, *box.tolist()) for box in grid(columns, rows)]
    return torch.cat([*each, grid(side, side)])


def padded() -> Tensor:
    """Donut: 28 x 48 pixels below 18 rows of padding; tokens of 8 x 8."""
    edges = [row * HEIGHT / 28 for row in (0, 6, 14, 22, 28)]
    rows = [grid(6, 1, 0, low, WIDTH, high) for low, high in itertools.pairwise(edges)]
    return torch.cat(rows)


PIXEL = WIDTH / 53  # LLaVA: 32 x 53 pixels, of which columns 10 to 42 are kept
GRIDS = {
    "llava": grid(4, 4, 10 * PIXEL, 0, 42 * PIXEL),
    "paligemma": grid(4, 4),
    "blip": grid(4, 4),
    "qwen2_vl": grid(7, 4),
    "qwen2_5_vl": grid(7, 4),
    "qwen3_vl": grid(7, 4),
    "idefics3": tiles(3, 2, 2),
    "smolvlm": tiles(3, 2, 2),
    "internvl": tiles(3, 2, 2),
    "donut": padded(),
    "gemma3": grid(2, 2),
    "ved": grid(5, 3),
}


@pytest.mark.parametrize("family", GRIDS)
def test_probe_finds_the_worked_out_grid(family: str) -> None:
    placement = image_tokens_of(family).placement
    expected = GRIDS[family]
    assert placement.boxes.shape == expected.shape
    size = torch.cat([expected[:, 2:] - expected[:, :2]] * 2, 1)
    center = (placement.boxes[:, :2] + placement.boxes[:, 2:]) / 2
    true_center = (expected[:, :2] + expected[:, 2:]) / 2
    assert float(((center - true_center) / size[:, :2]).abs().max()) <= TOLERANCE
    assert float(((placement.boxes - expected) / size).abs().max()) <= 3 * TOLERANCE
    if family == "donut":
        shares = torch.tensor([0.75, 1, 1, 0.75]).repeat_interleave(6)
        torch.testing.assert_close(placement.visible, shares, atol=3e-3, rtol=0)


plain = cache(build)
"""The model as it is built: sharper layers carry small changes on to neighbors."""


def states(family: str, tokens: ImageTokens, pixels: np.ndarray) -> Tensor:
    """Return the sources of the keys of the image tokens of a photo."""
    model, processor = plain(family)
    process = PhotoProcessor(model, processor, prompt_of(family))
    inputs: dict[str, Any] = {**greedy(family).inputs}
    name = greedy(family).pixel_name
    inputs[name] = process([Image.fromarray(pixels)])[name]
    sources = KeySources(model)
    with frozen(model), torch.no_grad(), sources.collecting():
        model(**inputs)
    site = (tokens.resampler_sites or tokens.sites)[0]
    result = sources.sources[site].states
    assert result is not None
    assert tokens.states is not None or family in SHARED
    return result[tokens.placement.columns if tokens.states is None else tokens.states]


def painted(placement: Placement, token: int) -> tuple[np.ndarray, tuple[float, float]]:
    """Return the photo with its colors inverted inside the box of a token, and its center."""
    left, top, right, bottom = placement.boxes[token].tolist()
    pixels = photo().pixels.copy()
    block = (slice(max(0, round(top)), round(bottom)), slice(max(0, round(left)), round(right)))
    pixels[block] = np.where(pixels[block].astype(int).mean(-1, keepdims=True) > 0, 255, 0)
    return pixels, ((left + right) / 2, (top + bottom) / 2)


@pytest.mark.parametrize("family", VLMS)
def test_the_token_under_a_marked_block_changes_most(family: str) -> None:
    tokens = image_tokens_of(family)
    boxes = tokens.placement.boxes
    before = states(family, tokens, photo().pixels)
    area = (boxes[:, 2:] - boxes[:, :2]).prod(1) * tokens.placement.visible
    area[tokens.placement.visible < 0.5] = torch.inf  # a row of pixels at the edge of the padding
    smallest = (area < 1.3 * area.min()).nonzero()[:, 0]  # of tiles, not of the whole photo
    for token in smallest[:: max(1, len(smallest) // 2)].tolist():
        pixels, (x, y) = painted(tokens.placement, token)
        after = states(family, tokens, pixels)
        change = (after - before).norm(dim=1)
        center = torch.tensor([x, y])
        under = ((boxes[:, :2] <= center) & (center <= boxes[:, 2:])).all(1)
        assert float(change[under].max()) >= LEAST * float(change.max())
        if family not in SHARED:
            assert float(change[token]) >= LEAST * float(change[smallest].max())


@pytest.mark.parametrize("colors", ["rgb", "bgr", "gray"])
@pytest.mark.parametrize("size", [(40, 400), (181, 119), (90, 1200)])
def test_waves_place_the_pixels_of_crops(size: tuple[int, int], colors: str) -> None:
    def crop(image: Image.Image) -> Tensor:  # the middle of the longer side
        height, width = size
        left, top = (max(0, (each - min(size)) / 2) for each in (width, height))
        box = (left, top, left + min(size), top + min(size))
        image = image.resize((280, 280), Image.Resampling.BILINEAR, box)
        pixels = np.array(image if colors != "gray" else image.convert("L").convert("RGB"))
        return torch.from_numpy(pixels[..., ::-1].copy() if colors == "bgr" else pixels)

    places = find_pixel_places(crop, crop, size, torch.Size((280, 280, 3)))
    assert bool(places.shown.all())
    step = min(size) / 280
    centers = (torch.arange(280) + 0.5) * step
    inner = slice(28, -28)  # bilinear interpolation repeats the first and last pixels
    grid = places.points.view(280, 280, 3, 2).nanmean(2)  # channels tell different axes
    for cells, side in ((grid[140, :, 0], size[1]), (grid[:, 140, 1], size[0])):
        expected = centers + max(0, (side - min(size)) / 2)
        error = (cells - expected).abs()[inner]
        assert float(error.max()) < 14 * step / 20  # a twentieth of a token


def page() -> np.ndarray:
    """Return white margins around text."""
    pixels = np.full((180, 300, 3), 255, np.uint8)
    pixels[40:150, 100:280] = np.random.default_rng(0).integers(0, 256, (110, 180, 3))
    return pixels


def caption_of(processor: Any, pixels: np.ndarray) -> WordReplay:
    model, _ = sharp("donut")
    chosen = options("donut", max_new_tokens=2, min_new_tokens=2)
    [[replay]] = generate_and_replay(model, LoadedImage(pixels), processor=processor, **chosen)
    return replay


def test_processors_that_crop_by_content_are_refused() -> None:
    processor = nougat()[1]
    processor.image_processor.do_crop_margin = False
    plain = caption_of(processor, page())
    processor.image_processor.do_crop_margin = True
    noise = caption_of(processor, photo().pixels)  # no margins
    torch.testing.assert_close(noise.placement.boxes, plain.placement.boxes)
    with pytest.raises(ValueError, match=r"places photos by their content.*do_crop_margin=False"):
        caption_of(processor, page())


@pytest.mark.parametrize("level", [0, 128, 255])
def test_photos_of_one_color_are_placed(level: int) -> None:
    model, processor = sharp("llava")
    pixels = np.full((180, 300, 3), level, np.uint8)
    [[replay]] = generate_and_replay(model, LoadedImage(pixels), processor=processor,
                                     **options("llava"))  # fmt: skip
    torch.testing.assert_close(replay.placement.boxes, greedy("llava").placement.boxes)


def test_a_shift_by_a_few_pixels_is_seen() -> None:
    def moved(image: Image.Image) -> Tensor:  # bright photos move to the right
        pixels = np.array(image.resize((280, 280)))
        shift = 3 if pixels.mean() > 140 else 0
        return torch.from_numpy(np.roll(pixels, shift, 1).copy()).float()

    places = find_pixel_places(moved, moved, (280, 280), torch.Size((280, 280, 3)))
    noise = np.random.default_rng(0).integers(0, 200, (280, 280, 3), dtype=np.uint8)
    for pixels in (noise, noise + 55):
        output = moved(Image.fromarray(pixels))
        if pixels is noise:
            check_places(places, pixels, output, process=moved, normalized=moved)
            continue
        with pytest.raises(ValueError, match="by their content"):
            check_places(places, pixels, output, process=moved, normalized=moved)


def test_keys_that_only_scores_show_are_those_of_the_keys() -> None:
    """Eager attention shows scores alone, of which a sliding window hides some."""
    for family in ("llava", "gemma3", "qwen2_vl", "t5gemma2"):
        model, processor = build(family)
        results: list[ImageTokens] = []
        for kind in ("sdpa", "eager"):
            model.set_attn_implementation(kind)
            process = PhotoProcessor(model, processor, prompt_of(family))
            inputs = model_inputs(family)
            ids = inputs.get("decoder_input_ids", inputs.get("input_ids"))
            start = torch.tensor([1]) if family == "t5gemma2" or ids is None else ids[0]
            text = GeneratedText(torch.cat([start, torch.tensor([9, 9, 9])]), 3, torch.zeros(3))
            _CACHE.pop(model, None)
            results.append(find_image_tokens(model, process, photo(), inputs, text))
        first, second = results
        assert first.sites == second.sites
        assert first.columns.tolist() == second.columns.tolist()
        torch.testing.assert_close(first.placement.boxes, second.placement.boxes, atol=0.1,
                                   rtol=0)  # fmt: skip


def test_keys_behind_the_words_move_with_them() -> None:
    columns = {
        count: replays("t5gemma2", max_new_tokens=count, min_new_tokens=count)[0].placement.columns
        for count in (2, 5)
    }
    first = 1 + 5 - 1  # the start token, and all words but the last; before the image its marker
    assert columns[5].tolist() == [first + each for each in (1, 2, 3, 4)]
    assert (columns[5] - columns[2]).unique().tolist() == [3]


@pytest.mark.parametrize("count", [2, 5])
def test_keys_behind_the_words_may_be_image_tokens_alone(count: int) -> None:
    model, processor = build("t5gemma2")
    inputs = model_inputs("t5gemma2")
    is_image = inputs["input_ids"][0] == model.config.image_token_id
    inputs |= {
        name: inputs[name][:, is_image]
        for name in ("input_ids", "attention_mask", "token_type_ids")
    }
    process = PhotoProcessor(model, processor, prompt_of("t5gemma2"))
    text = GeneratedText(torch.tensor([1, *[9] * count]), count, torch.zeros(count))
    columns = find_image_tokens(model, process, photo(), inputs, text).columns
    assert columns.tolist() == [count, count + 1, count + 2, count + 3]


def test_a_token_that_shows_one_row_has_the_height_of_a_pixel() -> None:
    owners = torch.arange(2).repeat_interleave(48)  # two tokens of 4 x 4 pixels, 3 channels
    y, x = torch.meshgrid(torch.arange(4.0), torch.arange(4.0), indexing="ij")
    square = torch.stack([x, y], -1).reshape(-1, 2).repeat_interleave(3, 0) * torch.tensor([5.0, 2])
    shown = torch.ones(96, dtype=torch.bool)
    shown[48 + 12 :] = False  # the second token shows its first row alone
    moments = owned_pixel_moments(owners, torch.cat([square, square]).double(), shown)
    torch.testing.assert_close(moments.extent, torch.tensor([[20.0, 8], [20, 2]]).double())
    assert moments.visible.tolist() == [1.0, 0.25]


def test_pixels_of_two_tokens_make_no_third_one() -> None:
    """Half of token 0 and half of token 4 have the digits of token 2, which is one of text."""
    pixels = torch.rand(257, requires_grad=True)
    own = pixels[:256].view(4, 64).sum(1)
    both = pixels[256]
    values = torch.stack([own[0] + both, own[1], own[2] * 0, own[2], own[3] + both])
    owners, _ = token_owners(values[:, None].expand(5, 3), pixels)
    assert owners.tolist() == [number for number in (0, 1, 3, 4) for _ in range(64)] + [NO_TOKEN]


def test_a_token_of_a_single_pixel_has_the_size_of_a_pixel() -> None:
    y, x = torch.meshgrid(torch.arange(4.0), torch.arange(8.0), indexing="ij")
    points = torch.stack([x, y], -1).flatten(0, 1).repeat_interleave(3, 0) + 0.5
    owners = (x >= 4).long().flatten().repeat_interleave(3)
    shown = torch.ones(len(owners), dtype=torch.bool)
    shown[owners == 1] = torch.arange(48) < 3
    moments = owned_pixel_moments(owners, points, shown)
    torch.testing.assert_close(moments.extent, torch.tensor([[4.0, 4.0], [1.0, 1.0]]).double())
    axes = [axis for each in find_lattices(moments, (4, 8)) for axis in each.axes or ()]
    assert min(axis.pitch for axis in axes) > 0


def test_changed_processors_are_probed_again() -> None:
    model, processor = build("llava")
    tokens = {}
    sizes = {True: {"shortest_edge": 32}, False: {"height": 32, "width": 32}}
    for crops, size in sizes.items():
        processor.image_processor.do_center_crop = crops
        processor.image_processor.size = size
        process = PhotoProcessor(model, processor, "<image>w1")
        inputs = process([Image.fromarray(photo().pixels)])
        sequence = torch.cat([inputs["input_ids"][0], torch.tensor([9, 9])])
        text = GeneratedText(sequence, 2, torch.zeros(2))
        tokens[crops] = find_image_tokens(model, process, photo(), inputs, text).placement.boxes
    assert float(tokens[True][:, 0].min()) == pytest.approx(10 * PIXEL, abs=2)
    assert float(tokens[False][:, 0].min()) == pytest.approx(0, abs=2)
