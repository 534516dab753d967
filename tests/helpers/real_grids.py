"""Vision-language models with the grids of published ones, and almost no weights."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import tiny_vlms
import torch
from PIL import Image
from tiny_vlms import IMAGE, LLAMA, SMALL, hf, tokenizer
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
VISION: dict[str, Any] = {**SMALL, "num_hidden_layers": 1, "vision_use_head": False}
TEXT: dict[str, Any] = {**LLAMA, "num_hidden_layers": 1, "max_position_embeddings": 20_000}
PINPOINTS = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]


def clip_336() -> tuple[Any, Any]:
    """LLaVA 1.5: the class token is dropped, and the layer before the last one is read."""
    vision = {**VISION, "model_type": "clip_vision_model", "num_hidden_layers": 2, "patch_size": 14,
              "image_size": 336, "projection_dim": 16}  # fmt: skip
    config = hf.LlavaConfig(vision_config=vision, text_config={**TEXT, "model_type": "llama"},
                            image_token_index=4, image_seq_length=576)  # fmt: skip
    images = hf.CLIPImageProcessor(size={"shortest_edge": 336},
                                   crop_size={"height": 336, "width": 336})  # fmt: skip
    processor = hf.LlavaProcessor(images, tokenizer(**IMAGE), patch_size=14,
                                  vision_feature_select_strategy="default",
                                  num_additional_image_tokens=1)  # fmt: skip
    return hf.LlavaForConditionalGeneration(config), processor


def siglip(side: int, patch: int) -> tuple[Any, Any]:
    """PaliGemma."""
    vision = {**VISION, "model_type": "siglip_vision_model", "patch_size": patch,
              "image_size": side}  # fmt: skip
    text = {**TEXT, "model_type": "gemma", "vocab_size": 1600, "head_dim": 4}
    config = hf.PaliGemmaConfig(vision_config=vision, text_config=text, image_token_index=4,
                                projection_dim=16)  # fmt: skip
    images = hf.SiglipImageProcessor(size={"height": side, "width": side})
    images.image_seq_length = (side // patch) ** 2
    return hf.PaliGemmaForConditionalGeneration(config), hf.PaliGemmaProcessor(
        images, tokenizer(**IMAGE))  # fmt: skip


def qwen(version: str) -> tuple[Any, Any]:
    """Qwen2-VL or 2.5-VL, with up to 1,000 tokens of 28 x 28 pixels."""
    text = {**TEXT, "rope_parameters": tiny_vlms._rope()}
    ids = {"image_token_id": 4, "video_token_id": 5, "vision_start_token_id": 6,
           "vision_end_token_id": 7}  # fmt: skip
    if version == "2":
        vision = {"depth": 1, "embed_dim": 16, "hidden_size": 16, "num_heads": 2, "mlp_ratio": 1,
                  "patch_size": 14}  # fmt: skip
        model = hf.Qwen2VLForConditionalGeneration(
            hf.Qwen2VLConfig(text_config=text, vision_config=vision, **ids))  # fmt: skip
    else:
        vision = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2,
                  "patch_size": 14, "out_hidden_size": 16, "window_size": 56,
                  "fullatt_block_indexes": []}  # fmt: skip
        model = hf.Qwen2_5_VLForConditionalGeneration(
            hf.Qwen2_5_VLConfig(text_config=text, vision_config=vision, **ids))  # fmt: skip
    images = hf.Qwen2VLImageProcessor(patch_size=14, merge_size=2, size={
        "shortest_edge": 56 * 56, "longest_edge": 1000 * 28 * 28})  # fmt: skip
    return model, hf.Qwen2VLProcessor(images, tiny_vlms._qwen_tokens(), hf.Qwen2VLVideoProcessor())


def internvl() -> tuple[Any, Any]:
    """Tiles of 448 x 448 with 16 x 16 tokens, up to 6, then the whole photo."""
    vision = {**SMALL, "num_hidden_layers": 1, "image_size": [448, 448], "patch_size": [14, 14]}
    config = hf.InternVLConfig(vision_config=vision, text_config={**TEXT, "model_type": "qwen2"},
                               image_token_id=4, image_seq_length=256)  # fmt: skip
    images = hf.GotOcr2ImageProcessor(size={"height": 448, "width": 448}, crop_to_patches=True,
                                      max_patches=6)  # fmt: skip
    tokens = tokenizer(context_image_token="<IMG_CONTEXT>", start_image_token="<img>",
                       end_image_token="</img>", video_token="<video>")  # fmt: skip
    processor = hf.InternVLProcessor(images, tokens, hf.InternVLVideoProcessor(),
                                     image_seq_length=256)  # fmt: skip
    return hf.InternVLForConditionalGeneration(config), processor


def llava_next() -> tuple[Any, Any]:
    """The whole photo, then its tiles of 336 x 336 without their padding."""
    vision = {**VISION, "model_type": "clip_vision_model", "num_hidden_layers": 2, "patch_size": 14,
              "image_size": 336, "projection_dim": 16}  # fmt: skip
    config = hf.LlavaNextConfig(
        vision_config=vision, text_config={**TEXT, "model_type": "llama"}, image_token_index=4,
        image_seq_length=576, image_grid_pinpoints=PINPOINTS,
    )  # fmt: skip
    images = hf.LlavaNextImageProcessor(
        size={"shortest_edge": 336}, crop_size={"height": 336, "width": 336},
        image_grid_pinpoints=PINPOINTS,
    )  # fmt: skip
    return hf.LlavaNextForConditionalGeneration(config), hf.LlavaNextProcessor(
        images, tokenizer(**IMAGE), patch_size=14, vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    )  # fmt: skip


def idefics3() -> tuple[Any, Any]:
    """Tiles of 364 x 364 with 13 x 13 tokens, up to 4 x 4, then the whole photo."""
    model = hf.Idefics3ForConditionalGeneration(hf.Idefics3Config(
        vision_config={**VISION, "patch_size": 14, "image_size": 364},
        text_config={**TEXT, "model_type": "llama"}, image_token_id=4, scale_factor=2,
    ))  # fmt: skip
    images = hf.Idefics3ImageProcessor(size={"longest_edge": 1456},
                                       max_image_size={"longest_edge": 364})  # fmt: skip
    return model, hf.Idefics3Processor(images, tiny_vlms._idefics_tokens(), image_seq_len=169)


def gemma3() -> tuple[Any, Any]:
    """Pan and scan: the whole photo at 896 x 896 with 16 x 16 tokens, then up to 4 crops of it."""
    config = hf.Gemma3Config(
        vision_config={**VISION, "patch_size": 14, "image_size": 896},
        text_config={**TEXT, "head_dim": 8, "query_pre_attn_scalar": 8,
                     "layer_types": ["full_attention"]},
        mm_tokens_per_image=256, boi_token_index=5, eoi_token_index=6, image_token_index=4,
    )  # fmt: skip
    tokens = tokenizer(image_token="<image>", boi_token="<boi>", eoi_token="<eoi>")
    processor = hf.Gemma3Processor(hf.Gemma3ImageProcessor(size={"height": 896, "width": 896}),
                                   tokens, image_seq_length=256)  # fmt: skip
    processor.images_kwargs = {**processor.images_kwargs, "do_pan_and_scan": True}
    model = hf.Gemma3ForConditionalGeneration(config)
    torch.nn.init.normal_(model.model.multi_modal_projector.mm_input_projection_weight)  # zeros
    return model, processor


def idefics2() -> tuple[Any, Any]:
    """Four quarters of the photo, then all of it, in patches of 14 pixels; 64 queries read each."""
    config = hf.Idefics2Config(
        vision_config={**VISION, "patch_size": 14, "image_size": 980},
        text_config={**TEXT, "model_type": "mistral"},
        perceiver_config={"hidden_size": 16, "resampler_n_latents": 64, "resampler_depth": 1,
                          "resampler_n_heads": 2, "num_key_value_heads": 1,
                          "resampler_head_dim": 8},
        image_token_id=4,
    )  # fmt: skip
    images = hf.Idefics2ImageProcessor(size={"shortest_edge": 378, "longest_edge": 980},
                                       do_image_splitting=True)  # fmt: skip
    return hf.Idefics2ForConditionalGeneration(config), hf.Idefics2Processor(
        images, tiny_vlms._idefics_tokens(), image_seq_len=64)  # fmt: skip


def onevision() -> tuple[Any, Any]:
    """Tiles of 384 pixels hold 27 x 27 patches of 14; 6 pixels are left over in each."""
    pinpoints = [[384 * rows, 384 * columns] for rows in (1, 2, 3) for columns in (1, 2, 3)]
    vision = {**VISION, "model_type": "siglip_vision_model", "patch_size": 14, "image_size": 384}
    config = hf.LlavaOnevisionConfig(
        vision_config=vision, text_config={**TEXT, "model_type": "qwen2"}, image_token_index=4,
        video_token_index=5, image_grid_pinpoints=pinpoints, vision_feature_layer=-1,
    )  # fmt: skip
    images = hf.LlavaOnevisionImageProcessor(size={"height": 384, "width": 384},
                                             image_grid_pinpoints=pinpoints)  # fmt: skip
    return hf.LlavaOnevisionForConditionalGeneration(config), hf.LlavaOnevisionProcessor(
        images, tokenizer(image_token="<image>", video_token="<video>"),
        hf.LlavaOnevisionVideoProcessor(), num_image_tokens=729,
        vision_feature_select_strategy="full",
    )  # fmt: skip


def tokens_of(
    model: Any, processor: Any, size: Size, *, dtype: torch.dtype = torch.float32
) -> ImageTokens:
    """Return the image tokens of a photo of noise."""
    torch.manual_seed(0)
    process = PhotoProcessor(model.to(dtype).eval(), processor, f"{_marker(processor)} w1")
    image = photo(size)
    inputs = process(Image.fromarray(image.pixels))
    return find_image_tokens(process, image, inputs, {})


def _marker(processor: Any) -> str:
    return "" if type(processor).__name__ == "PaliGemmaProcessor" else processor.image_token


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
        kept = int(round(photo_side * (scale_tokens(size, height, width)), 7))
        padding = (count - kept) // 2 if own < side else 0
        lines = torch.arange(padding, count - padding + 1) * 14.0 - (side - own) // 2
        edges.append((lines * photo_side / own).clamp(0, photo_side))
    return torch.cat([even(size, 24, 24), boxes_of(edges[1], edges[0])])


def scale_tokens(size: Size, height: int, width: int) -> float:
    """Return tokens per pixel of the photo."""
    return min(height / 14 / size[0], width / 14 / size[1])


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


def tile_counts(size: Size) -> Size:
    """Return rows and columns of the tiles of InternVL."""
    columns, rows = get_optimal_tiled_canvas(size, (448, 448), 1, 6)
    return rows, columns


MODELS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "clip_336": clip_336,
    "siglip_224": lambda: siglip(224, 14),
    "siglip_384": lambda: siglip(384, 16),
    "siglip_448": lambda: siglip(448, 14),
    "siglip_896": lambda: siglip(896, 14),
    "qwen2": lambda: qwen("2"),
    "qwen2_5": lambda: qwen("2.5"),
    "internvl": internvl,
    "llava_next": llava_next,
    "idefics3": idefics3,
    "gemma3": gemma3,
    "idefics2": idefics2,
}


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
        side, patch = {"224": (224, 14), "384": (384, 16), "448": (448, 14), "896": (896, 14)}[
            name[-3:]
        ]
        return even(size, side // patch, side // patch)
    if name.startswith("qwen"):
        return even(size, *merged_28(size))
    if name in ("gemma3", "idefics2"):
        return panned(size) if name == "gemma3" else quartered(size)
    if name == "internvl":
        rows, columns = tile_counts(size)
        return tiled(size, rows, columns, 16) if rows * columns > 1 else even(size, 16, 16)
    if name == "idefics3":
        images: Any = MODELS[name]()[1].image_processor
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
