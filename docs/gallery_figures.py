"""Figures of the gallery: what blocks, methods and models attend to on drawn scenes.

Two small classifiers of drawn shapes are explained (`_gallery/*.safetensors`): accuracy 1.000 (CNN)
and 0.938 (ViT) on 500 validation scenes when they were trained, with the steps and settings of
`python docs/gallery_figures.py classifiers`. They read scenes of 64 pixels; figures show the same
scenes at 256. Blocks were inserted into the CNN and trained alone on noisy scenes (`... blocks`).
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image, ImageDraw
from safetensors.torch import load_file, save_file
from torch import nn

import visattn as va
from visattn.attribution import METHODS, Method
from visattn.blocks import block_info, list_blocks
from visattn.commands.options import CommandParser
from visattn.data import Scenes, WorldConfig, single_object_scenes
from visattn.data.questions.sort_of_clevr import draw_layouts, sample_layouts
from visattn.data.scenes.dataset import SingleObjectScenes, single_object_world
from visattn.data.scenes.world import draw_world
from visattn.images import ResizeSpec
from visattn.models import AttentionResNet, VisionTransformer
from visattn.pipelines import glimpses
from visattn.results import Answer, AttentionMap
from visattn.viz import caption_figure, colormap_lut, glimpse_panel
from visattn.viz.answers import answer_figure
from visattn.viz.text import load_font

HERE = Path(__file__).resolve().parent
SHAPES = ("circle", "square", "triangle", "cross", "ring")
CONFIG = WorldConfig(shapes=SHAPES, textures=("plain",), num_objects=(2, 2))
SIZE = 64
"""Side of the input of the classifiers."""
SIDE = 256
"""Side of a tile of a figure."""
GAP = 8
TEXT = 34
"""Height of a line of text below a tile."""
INK, MUTED, PAPER = (24, 26, 32), (100, 102, 106), (255, 255, 255)
NOISE = 0.35
"""Standard deviation of the noise on which blocks are trained, as a share of white."""


# ---------------------------------------------------------------- scenes and classifiers


@dataclass(frozen=True)
class Scene:
    """A drawn scene with one shape: as it is shown, as the classifiers read it, and its truth."""

    image: np.ndarray
    small: np.ndarray
    shape: str
    center: tuple[float, float]


@cache
def chosen_scenes() -> list[Scene]:
    """Return test scenes with a large shape each, five of different shapes in turn."""
    drawn = Scenes(120, size=SIDE, config=CONFIG, split="test")
    worlds = [single_object_world(drawn, index) for index in range(len(drawn))]
    by_shape: dict[str, list[Any]] = {shape: [] for shape in SHAPES}
    for world in sorted(worlds, key=lambda world: -world.objects[0].radius):
        by_shape[world.objects[0].shape].append(world)
    scenes = []
    for rank in range(3):
        for shape in SHAPES:
            world = by_shape[shape][rank]
            center = (world.objects[0].x, world.objects[0].y)
            images = [draw_world(world, side) for side in (SIDE, SIZE)]
            scenes.append(Scene(images[0], images[1], shape, center))
    return scenes


def three_scenes(name: str) -> list[Scene]:
    """Return three scenes of different shapes, others for neighboring pages."""
    pool = chosen_scenes()
    first = sum(map(ord, name)) * 7 % len(pool)
    return [pool[(first + step * 6) % len(pool)] for step in range(3)]


@cache
def training_scenes(count: int) -> SingleObjectScenes:
    """Return scenes to train on."""
    return single_object_scenes(Scenes(count, size=SIZE, config=CONFIG, split="train"))


def untrained(name: Literal["cnn", "vit"]) -> nn.Module:
    """Return the architecture of a classifier."""
    if name == "cnn":
        return AttentionResNet(SHAPES, img_size=(SIZE, SIZE), depth=8, stem_width=12)
    return VisionTransformer(
        SHAPES, img_size=(SIZE, SIZE), patch_size=8, depth=4, embed_dim=64, num_heads=4
    )


def trained(name: Literal["cnn", "vit"]) -> Any:
    """Return a trained classifier."""
    model = untrained(name)
    weights = load_file(HERE / "_gallery" / f"shapes_{name}.safetensors")
    model.load_state_dict(
        {key: value.to(model.state_dict()[key]) for key, value in weights.items()}
    )
    return model.eval()


@cache
def explained(name: Literal["cnn", "vit"]) -> Any:
    """Return the classifier that all methods explain; it is analyzed once."""
    return trained(name)


def fit(
    model: nn.Module,
    parameters: Sequence[nn.Parameter],
    steps: int,
    *,
    batch: int = 16,
    lr: float = 2e-3,
    noise: float = 0.0,
) -> None:
    """Train some parameters of a classifier of shapes, with random horizontal flips."""
    drawn = training_scenes(6000 if steps > 500 else min(512, steps * batch))
    optimizer = torch.optim.AdamW(parameters, lr=lr, weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=max(steps, 2))
    for _ in range(steps):
        index = torch.randint(len(drawn.images), (batch,))
        images = drawn.images[index]
        images = images.flip(-1) if torch.rand(()) < 0.5 else images
        if noise:
            noisy = images + 255 * noise * torch.randn(images.shape)
            images = noisy.clamp(0, 255).to(torch.uint8)
        loss = nn.functional.cross_entropy(model(images), drawn.shapes[index])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()


# ---------------------------------------------------------------- figures of blocks


# The layer has 24 channels: with the reductions of the papers one hidden unit is left, which dies.
BLOCK_OPTIONS: dict[str, dict[str, Any]] = {
    "gate": {"signal": "layer1"},
    "se": {"reduction": 4},
    "cbam": {"reduction": 2},
    "split": {"min_hidden_channels": 8},
}
BLOCK_STEPS = {"cbam": 200, "split": 200}
LEAST_SPREAD = 0.01  # of the weight of a channel over the images


def with_block(name: str) -> tuple[Any, list[nn.Module]]:
    """Return the CNN with an untrained block in it, and the modules of the block."""
    torch.manual_seed(0)
    model = trained("cnn")
    before = {id(module) for module in model.modules()}
    options = BLOCK_OPTIONS.get(name, {})
    place = "layer3" if block_info(name).kind == "self_attention" else "layer2"
    va.insert(model, name, position=[place], example=torch.zeros(1, 3, SIZE, SIZE), **options)
    return model, [module for module in model.modules() if id(module) not in before]


def train_block(name: str) -> dict[str, torch.Tensor]:
    """Train a block in the CNN, which stays as it is, on noisy scenes; return its weights."""
    model, added = with_block(name)
    keys = model.state_dict().keys() - untrained("cnn").state_dict().keys()
    for module in added:
        module.train()
    parameters = list({id(p): p for module in added for p in module.parameters()}.values())
    if parameters:
        fit(model, parameters, BLOCK_STEPS.get(name, 60), lr=1e-2, noise=NOISE)
    return {key: value.half() for key, value in model.state_dict().items() if key in keys}


@cache
def block_weights() -> dict[str, torch.Tensor]:
    """Return the weights of all trained blocks, by `BLOCK/KEY`."""
    return load_file(HERE / "_gallery" / "blocks.safetensors")


def with_trained_block(name: str) -> Any:
    """Return the CNN with a block that was trained in it."""
    model, _ = with_block(name)
    state = model.state_dict()
    weights = {
        key.partition("/")[2]: value
        for key, value in block_weights().items()
        if key.startswith(f"{name}/")
    }
    model.load_state_dict(state | {key: value.to(state[key]) for key, value in weights.items()})
    return model.eval()


def block_figure(name: str) -> np.ndarray:
    """Return three scenes above what a block, trained in the CNN, attended to on each."""
    model = with_trained_block(name)
    scenes = three_scenes(name)
    batch = torch.from_numpy(np.stack([scene.small for scene in scenes])).permute(0, 3, 1, 2)
    with torch.no_grad(), va.record(model) as recorder:
        model(batch)
    last = {entry.site: entry for entry in recorder.maps}.values()
    return tiled([[scene.image for scene in scenes], *(map_tiles(entry, scenes) for entry in last)])


def map_tiles(entry: AttentionMap, scenes: Sequence[Scene]) -> list[np.ndarray]:
    """Return one tile per scene: an overlay, or bars where the map has no place on the image."""
    values = entry.values.float()
    if entry.kind == "channel":
        if float((values.amax(0) - values.amin(0)).max()) < LEAST_SPREAD:
            raise ValueError(
                f"{entry.site} weighs the channels of all images alike: train it again"
            )
        return channel_tiles(values)
    placed = [place(value, entry.kind, scene) for value, scene in zip(values, scenes, strict=True)]
    return [gate_tile(scene.image, each) for each, scene in zip(placed, scenes, strict=True)]


def gate_tile(image: np.ndarray, heatmap: AttentionMap) -> np.ndarray:
    """Return a map on its image, with its lowest and highest value."""
    low, high = float(heatmap.values.min()), float(heatmap.values.max())
    return labeled(overlay(image, heatmap), f"{low:.2g} to {high:.2g}")


def place(value: torch.Tensor, kind: Any, scene: Scene) -> AttentionMap:
    """Return the map of a block on a scene: of tokens, the row of the query on the shape."""
    rows, columns = value.shape[-2:]
    if kind == "tokens":  # the mean of the heads
        value = value.flatten(0, -4).mean(0) if value.ndim > 3 else value
        query = int(scene.center[1] * rows) * columns + int(scene.center[0] * columns)
        value = value[query if len(value) == rows * columns else 0]
    elif value.ndim > 2:  # the channel whose gate varies most over the image
        value = value[int(value.flatten(1).std(1).argmax())]
    spec = ResizeSpec((SIZE, SIZE), "squash")
    return AttentionMap.from_array(value, spec, (SIDE, SIDE), kind=kind)


def overlay(image: np.ndarray, heatmap: AttentionMap) -> np.ndarray:
    """Return a map on its image, from the lowest to the highest value of the map."""
    low, high = float(heatmap.values.min()), float(heatmap.values.max())
    spread = high - low
    shown = replace(heatmap, values=(heatmap.values - low) / spread) if spread > 0 else heatmap
    return np.asarray(va.overlay(image, shown))[..., :3]


def channel_tiles(values: torch.Tensor) -> list[np.ndarray]:
    """Return the weights of channels, a tile per image, on one axis; of pairs, as a matrix."""
    grids = [value.reshape(-1, value.shape[-1]) for value in values]
    if len(grids[0]) > 2:
        return [channel_matrix(grid) for grid in grids]
    low = min(0.0, float(torch.floor(values.min() * 10) / 10))
    high = max(1.0, float(torch.ceil(values.max() * 10) / 10))
    return [channel_bars(grid, low, high) for grid in grids]


def channel_bars(grid: torch.Tensor, low: float, high: float) -> np.ndarray:
    """Return bars from 0, one per channel, with an axis; a row of bars for each branch."""
    tile = Image.new("RGB", (SIDE, SIDE), PAPER)
    draw, font = ImageDraw.Draw(tile), load_font(18)
    left, bottom = 42, 28
    height = (SIDE - bottom) / len(grid)
    for row, line in enumerate(grid.tolist()):
        top = row * height + 10

        def y_of(value: float, top: float = top) -> float:
            return top + (1 - (value - low) / (high - low)) * (height - 18)

        for tick in sorted({low, 0.0, 0.5, 1.0, high}):
            if tick == 0.5 and high - low > 2:
                continue
            y = y_of(tick)
            draw.line([(left - 4, y), (SIDE - 4, y)], fill=(225, 226, 228))
            draw.text((left - 7, y), f"{tick:g}", fill=MUTED, font=font, anchor="rm")
        step = (SIDE - 4 - left) / len(line)
        for column, value in enumerate(line):
            x = left + column * step
            ends = sorted((y_of(value), y_of(0.0)))
            draw.rectangle([x + 1, ends[0], max(x + step - 1, x + 1), ends[1]], fill=(176, 64, 92))
        draw.line([(left, y_of(0.0)), (SIDE - 4, y_of(0.0))], fill=INK)
    draw.text(((left + SIDE) / 2, SIDE - 4), "channels", fill=MUTED, font=font, anchor="md")
    return np.asarray(tile)


def channel_matrix(grid: torch.Tensor) -> np.ndarray:
    """Return the weights among pairs of channels: a row for each channel that reads."""
    high = float(grid.max())
    cells = colormap_lut("magma")[(grid / high * 255).round().int().numpy()]
    drawn = Image.fromarray(cells).resize((SIDE, SIDE), Image.Resampling.NEAREST)
    return labeled(np.asarray(drawn), f"channels × channels, 0 to {high:.2g}")


def labeled(tile: np.ndarray, text: str) -> np.ndarray:
    """Return a tile with a line of text below it."""
    whole = Image.new("RGB", (SIDE, SIDE + TEXT), PAPER)
    whole.paste(Image.fromarray(tile), (0, 0))
    font = load_font(21)
    ImageDraw.Draw(whole).text((SIDE / 2, SIDE + TEXT - 10), text, INK, font, anchor="ms")
    return np.asarray(whole)


def tiled(rows: Sequence[Sequence[np.ndarray]]) -> np.ndarray:
    """Return tiles in rows, with white gaps."""
    padded = [
        [np.pad(t, ((0, GAP), (0, GAP), (0, 0)), constant_values=255) for t in r] for r in rows
    ]
    return np.concatenate([np.concatenate(row, 1) for row in padded])[:-GAP, :-GAP]


# ---------------------------------------------------------------- figures of methods and models


EQUAL = {"hirescam": "gradcam", "xgradcam": "gradcam"}
"""Methods that are another one where features are averaged before a linear classifier: the gradient
of the class is the same at all places then. Both are drawn of an earlier layer, where they differ.
"""
EARLIER_LAYER = "layer2"


def of_transformers(method: Method) -> bool:
    """Whether a method explains transformers only."""
    return method.needs == "tokens"


def method_figure(name: str, *, draft: bool = False, scenes_of: str = "") -> np.ndarray:
    """Return three scenes above the maps of a method on them; a draft takes few random masks."""
    method = METHODS[name]
    model = explained("vit" if of_transformers(method) else "cnn")
    if method.needs == "gates":
        model = with_trained_block("cbam")
    scenes = three_scenes(scenes_of or name)
    # One class for each image; a list of classes would be explained on every image.
    target: Any = [[scene.shape] for scene in scenes] if method.needs_target else None
    options: dict[str, Any] = {}
    if draft and name == "rise":
        options["num_masks"] = 50
    images, rows = [scene.image for scene in scenes], [name]
    if name in EQUAL:
        rows, options["layer"] = [EQUAL[name], name], EARLIER_LAYER

    def maps_of(row: str) -> list[np.ndarray]:
        torch.manual_seed(0)
        maps = va.explain(model, images, row, target=target, **options)
        pairs = zip(images, maps if target is None else [of[0] for of in maps], strict=True)
        if method.needs == "gates":
            return [gate_tile(*pair) for pair in pairs]
        return [np.asarray(va.overlay(*pair))[..., :3] for pair in pairs]

    return tiled([images, *map(maps_of, rows)])


def caption_panel() -> np.ndarray:
    """Return the panel of a scene that the bundled captioner describes, as wide as a page."""
    pixels = Scenes(1, size=480, split="test").image(0).permute(1, 2, 0).numpy()
    [caption] = va.caption(va.load("scenes-captioner"), pixels)
    return np.asarray(caption_figure(pixels, caption, width=760).image)


def glimpse_figure() -> np.ndarray:
    """Return the scan path of the bundled glimpse model on a scene, and what it saw of it."""
    scene = chosen_scenes()[2]
    [scan] = glimpses(va.load("scenes-glimpses"), [scene.image])
    return np.asarray(glimpse_panel(scene.image, scan).image)[:552, :872]


def recorded_answers() -> tuple[np.ndarray, list[Answer]]:
    """Return an image of Sort-of-CLEVR, and what a model answered about it once.

    The answers (`_gallery/answers.json`, from `Answer.to_dict`) are those of `visattn fit --config
    sort_of_clevr_cross` with `--seed_everything 1 --trainer.max_steps 1400 --data.batch_size 16`
    and `word_attention true`.
    """
    [pixels] = draw_layouts(sample_layouts(7, [3]), size=75)
    small = Image.fromarray(pixels.permute(1, 2, 0).numpy())
    image = np.asarray(small.resize((450, 450), Image.Resampling.LANCZOS))
    recorded = json.loads((HERE / "_gallery" / "answers.json").read_text())
    return image, [Answer.from_dict(each) for each in recorded]


def question_figure() -> np.ndarray:
    """Return the maps of a recorded answer, on the image of the live page of questions."""
    image, answers = recorded_answers()
    return np.asarray(answer_figure(image, answers[-1:], width=760).image)


def main(argv: Sequence[str] | None = None) -> int:
    """Train the two classifiers, or the blocks in the CNN, and write their weights."""
    parser = CommandParser(description=main.__doc__)
    parser.add_argument("what", choices=["classifiers", "blocks"])
    if parser.parse_args(argv).what == "blocks":
        weights = {
            f"{name}/{key}": value
            for name in list_blocks()
            for key, value in train_block(name).items()
        }
        save_file(weights, HERE / "_gallery" / "blocks.safetensors")
        return 0
    for name, steps, lr in (("cnn", 1000, 2e-3), ("vit", 3000, 1.5e-3)):
        torch.manual_seed(0)
        model = untrained(name)
        fit(model, list(model.parameters()), steps, batch=48, lr=lr)
        weights = {key: value.half() for key, value in model.state_dict().items()}
        save_file(weights, HERE / "_gallery" / f"shapes_{name}.safetensors")
    return 0


if __name__ == "__main__":
    sys.exit(main())
