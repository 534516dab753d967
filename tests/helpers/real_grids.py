"""Vision-language models with the grids of published ones, and almost no weights."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from PIL import Image
from tiny_vlms import build
from torch import Tensor
from transformers.image_processing_utils import select_best_resolution
from transformers.image_utils import SizeDict
from transformers.models.got_ocr2.image_processing_got_ocr2 import get_optimal_tiled_canvas
from transformers.models.idefics2.image_processing_idefics2 import (
    get_resize_output_image_size as idefics2_size,
)
from vlm_runs import photo

from visattn.pipelines.words.image_tokens import ImageTokens, find_image_tokens
from visattn.pipelines.words.language_model import PhotoProcessor

Size = tuple[int, int]
SIGLIP = {224: 14, 384: 16, 448: 14, 896: 14}
"""Patches of sides of the input."""
ONE: dict[str, Any] = {"num_hidden_layers": 1, "depth": 1, "max_position_embeddings": 20_000}
PINPOINTS = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
_CLIP = {"side": 336, "patch": 14, "vision_config": {"num_hidden_layers": 2}}  # reads the first
_PIXELS = {"size": {"shortest_edge": 56 * 56, "longest_edge": 1000 * 28 * 28}}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "clip_336": ("llava", _CLIP),
    **{f"siglip_{side}": ("paligemma", {"side": side, "patch": patch, "shared": {
        **ONE, "vocab_size": 1600}}) for side, patch in SIGLIP.items()},
    "qwen2": ("qwen2_vl", {"patch": 14, "images": _PIXELS}),
    "qwen2_5": ("qwen2_5_vl", {"patch": 14, "images": _PIXELS, "vision_config": {
        "window_size": 56, "fullatt_block_indexes": []}}),
    "internvl": ("internvl", {"side": 448, "patch": 14, "count": 256}),
    "llava_next": ("llava_next", _CLIP),
    "idefics3": ("idefics3", {"side": 364, "patch": 14, "count": 169, "images": {
        "size": {"longest_edge": 1456}, "max_image_size": {"longest_edge": 364}}}),
    "gemma3": ("gemma3", {"side": 896, "patch": 14, "count": 256}),
    "idefics2": ("idefics2", {"side": 980, "patch": 14, "count": 64, "images": {
        "size": {"shortest_edge": 378, "longest_edge": 980}, "do_image_splitting": True}}),
}  # fmt: skip


def grid_model(name: str) -> tuple[Any, Any]:
    """Return a tiny model with the image sizes and patches of a published one."""
    family, row = MODELS[name]
    model, processor = build(family, **{"shared": ONE, **row})
    if name == "gemma3":  # the whole photo, then up to 4 crops of it
        processor.images_kwargs = {**processor.images_kwargs, "do_pan_and_scan": True}
    return model, processor


def tokens_of(
    model: Any, processor: Any, size: Size, *, dtype: torch.dtype = torch.float32
) -> ImageTokens:
    """Return the image tokens of a photo of noise."""
    torch.manual_seed(0)
    marker = "" if type(processor).__name__ == "PaliGemmaProcessor" else processor.image_token
    process = PhotoProcessor(model.to(dtype).eval(), processor, f"{marker} w1")
    image = photo(size)
    inputs = process(Image.fromarray(image.pixels))
    return find_image_tokens(process, image, inputs, {})


def boxes_of(x: Tensor, y: Tensor) -> Tensor:
    """Return the boxes between edges along both axes, row by row."""
    left, top = torch.meshgrid(x[:-1], y[:-1], indexing="xy")
    right, bottom = torch.meshgrid(x[1:], y[1:], indexing="xy")
    return torch.stack([left, top, right, bottom], -1).reshape(-1, 4)


def even(size: Size, rows: int, columns: int) -> Tensor:
    """Return the boxes of an even grid over the photo."""
    return boxes_of(torch.linspace(0, size[1], columns + 1), torch.linspace(0, size[0], rows + 1))


def cropped(size: Size, side: int, count: int) -> Tensor:
    """Return the boxes of a grid on the central crop after resizing the shorter side."""
    short, edges = min(size), []
    for length in size[::-1]:
        resized = side if length == short else int(side * length / short)
        begin = (resized - side) // 2
        edges.append((begin + torch.linspace(0, side, count + 1)) * length / resized)
    return boxes_of(edges[0], edges[1])


def tiled(size: Size, rows: int, columns: int, side: int) -> Tensor:
    """Return the boxes of tiles of `side` x `side` tokens, tile by tile, then of the photo."""
    x = torch.linspace(0, size[1], columns * side + 1)
    y = torch.linspace(0, size[0], rows * side + 1)
    tiles = [
        boxes_of(x[j * side : (j + 1) * side + 1], y[i * side : (i + 1) * side + 1])
        for i in range(rows)
        for j in range(columns)
    ]
    return torch.cat([*tiles, even(size, side, side)])


def unpadded(size: Size) -> Tensor:
    """Return the boxes of LLaVA-NeXT: the photo, and tokens of tiles that show some of it."""
    height, width = select_best_resolution(size, PINPOINTS)
    scale = min(height / size[0], width / size[1])
    whole = width / size[1] < height / size[0]
    resized = (min(math.ceil(size[0] * scale), height), width) if whole else (
        height, min(math.ceil(size[1] * scale), width))  # fmt: skip
    edges = []
    for photo_side, side, own in zip(size, (height, width), resized, strict=True):
        count = side // 14
        kept = int(round(photo_side * scale / 14, 7))
        padding = (count - kept) // 2 if own < side else 0
        lines = torch.arange(padding, count - padding + 1) * 14.0 - (side - own) // 2
        edges.append((lines * photo_side / own).clamp(0, photo_side))
    return torch.cat([even(size, 24, 24), boxes_of(edges[1], edges[0])])


def panned(size: Size) -> Tensor:
    """Return the boxes of Gemma 3: the photo, and crops of equal length along its longer side."""
    longer, shorter = max(size), min(size)
    count = min(max(2, min(longer // 256, math.floor(longer / shorter + 0.5))), 4)
    length = math.ceil(longer / count)
    if longer / shorter < 1.2 or min(length, shorter) < 256:
        return even(size, 16, 16)
    parts = [even(size, 16, 16)]
    for begin in range(0, longer, length):
        along = torch.linspace(begin, min(begin + length, longer), 17)
        across = torch.linspace(0, shorter, 17)
        x, y = (along, across) if size[1] > size[0] else (across, along)
        parts.append(boxes_of(x, y))
    return torch.cat(parts)


def quartered(size: Size) -> Tensor:
    """Return the boxes of Idefics 2: patches of the quarters, then of the photo.

    Each part is resized on its own, and padded to the largest; patches without photo are left out.
    """
    rows, columns = [0, size[0] // 2, size[0]], [0, size[1] // 2, size[1]]
    parts = [(rows[i], rows[i + 1], columns[j], columns[j + 1]) for i in (0, 1) for j in (0, 1)]
    parts.append((0, size[0], 0, size[1]))
    limits = SizeDict(shortest_edge=378, longest_edge=980)
    resized = [idefics2_size(torch.zeros(1, bottom - top, right - left), limits)
               for top, bottom, left, right in parts]  # fmt: skip
    canvas = [max(each[axis] for each in resized) // 14 for axis in (0, 1)]
    boxes: list[Tensor] = []
    for (top, bottom, left, right), (height, width) in zip(parts, resized, strict=True):
        y = (top + torch.arange(canvas[0] + 1) * 14.0 * (bottom - top) / height).clamp(max=bottom)
        x = (left + torch.arange(canvas[1] + 1) * 14.0 * (right - left) / width).clamp(max=right)
        own = boxes_of(x, y)
        boxes.append(own[(own[:, 2:] > own[:, :2]).all(1)])
    return torch.cat(boxes)


def merged_28(size: Size) -> Size:
    """Return rows and columns of the tokens of Qwen-VL."""
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

    height, width = smart_resize(*size, factor=28, min_pixels=56 * 56, max_pixels=1000 * 28 * 28)
    return height // 28, width // 28


def expected(name: str, size: Size) -> Tensor:
    """Return the boxes of the tokens as worked out from the preprocessing."""
    if name == "clip_336":
        return cropped(size, 336, 24)
    if name.startswith("siglip"):
        count = (side := int(name[-3:])) // SIGLIP[side]
        return even(size, count, count)
    if name.startswith("qwen"):
        return even(size, *merged_28(size))
    if name in ("gemma3", "idefics2"):
        return panned(size) if name == "gemma3" else quartered(size)
    if name == "internvl":
        columns, rows = get_optimal_tiled_canvas(size, (448, 448), 1, 6)
        return tiled(size, rows, columns, 16) if rows * columns > 1 else even(size, 16, 16)
    if name == "idefics3":
        images: Any = grid_model(name)[1].image_processor
        info = images([Image.new("RGB", (size[1], size[0]))], return_row_col_info=True)
        return tiled(size, info["rows"][0][0], info["cols"][0][0], 13)
    return unpadded(size)


def misplaced(boxes: Tensor, truth: Tensor) -> float:
    """Return the largest distance of edges, in tokens."""
    size = torch.cat([truth[:, 2:] - truth[:, :2]] * 2, 1)
    size = size.maximum(0.9 * size.median(0).values)  # padding leaves some tokens a sliver
    return float(((boxes - truth) / size).abs().max())


def grid_of(boxes: Tensor) -> Size:
    """Return rows and columns of the finest cells of boxes along each axis."""
    counts = []
    for axis in (1, 0):
        side = boxes[:, axis + 2] - boxes[:, axis]
        common = min(each for each in side.round(decimals=1).unique()
                     if (side.round(decimals=1) == each).sum() > len(side) / 6)  # fmt: skip
        finest = boxes[side < 1.1 * common, axis]
        counts.append(len(finest.round(decimals=1).unique()))
    return counts[0], counts[1]


def sizes() -> Iterator[Size]:
    """Return sizes of photos: usual and odd, panoramas, much smaller and larger than the input."""
    yield from ((375, 500), (427, 640), (480, 640), (180, 300), (641, 479), (333, 501), (200, 500),
                (1200, 600), (97, 613), (53, 71), (40, 400), (768, 1024))  # fmt: skip
