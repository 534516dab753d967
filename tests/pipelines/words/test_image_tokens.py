"""Image tokens lie where their pixels came from: worked-out grids, and marked blocks."""

import itertools
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_vlms import build
from torch import Tensor
from vlm_runs import QUICK, SLOW, greedy, model_inputs, photo, prompt_of, sharp

from visattn.pipelines.words.generation import GeneratedText
from visattn.pipelines.words.image_tokens import ImageTokens, find_image_tokens
from visattn.pipelines.words.placement import Placement
from visattn.pipelines.words.processing import PhotoProcessor
from visattn.recording.frozen_model import frozen
from visattn.recording.word_rows import KeySources

HEIGHT, WIDTH = 180, 300
TOLERANCE = 0.02  # tokens
MIXED = ("deepseek_vl",)
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
        torch.testing.assert_close(placement.visible, shares, atol=1e-6, rtol=0)


@cache
def plain(family: str) -> tuple[Any, Any]:
    """Return the model as it is built: sharper layers carry small changes on to neighbors."""
    return build(family)


def states(
    family: str, tokens: ImageTokens, pixels: np.ndarray, *, zero_attention: bool = False
) -> Tensor:
    """Return the sources of the keys of the image tokens of a photo."""
    model, processor = plain(family)
    process = PhotoProcessor(model, processor, prompt_of(family))
    inputs: dict[str, Any] = {**greedy(family).inputs}
    name = greedy(family).pixel_name
    inputs[name] = process([Image.fromarray(pixels)])[name]
    sources = KeySources(model, zero_attention=zero_attention)
    with frozen(model), torch.no_grad(), sources.collecting():
        model(**inputs)
    site = (tokens.resampler_sites or tokens.sites)[0]
    result = sources.sources[site].states
    assert result is not None
    return result[tokens.placement.columns]


def painted(placement: Placement, token: int) -> tuple[np.ndarray, tuple[float, float]]:
    """Return the photo with its colors inverted inside the box of a token, and its center."""
    left, top, right, bottom = placement.boxes[token].tolist()
    pixels = photo().pixels.copy()
    block = (slice(max(0, round(top)), round(bottom)), slice(max(0, round(left)), round(right)))
    pixels[block] = np.where(pixels[block].astype(int).mean(-1, keepdims=True) > 0, 255, 0)
    return pixels, ((left + right) / 2, (top + bottom) / 2)


@pytest.mark.parametrize("attention", [True, False], ids=["whole model", "without attention"])
@pytest.mark.parametrize("family", [*QUICK, SLOW])
def test_the_token_under_a_marked_block_changes_most(family: str, *, attention: bool) -> None:
    if attention and family in MIXED:
        pytest.skip("its tower carries the change on to other tokens")
    tokens = image_tokens_of(family)
    boxes = tokens.placement.boxes
    before = states(family, tokens, photo().pixels, zero_attention=not attention)
    area = (boxes[:, 2:] - boxes[:, :2]).prod(1) * tokens.placement.visible
    area[tokens.placement.visible < 0.5] = torch.inf  # a row of pixels at the edge of the padding
    smallest = (area < 1.3 * area.min()).nonzero()[:, 0]  # of tiles, not of the whole photo
    for token in smallest[:: max(1, len(smallest) // 4)].tolist():
        pixels, (x, y) = painted(tokens.placement, token)
        after = states(family, tokens, pixels, zero_attention=not attention)
        change = (after - before).norm(dim=1)
        left, top, right, bottom = boxes[int(change.argmax())].tolist()
        assert left <= x <= right
        assert top <= y <= bottom
        if family not in SHARED:
            assert int(smallest[change[smallest].argmax()]) == token
