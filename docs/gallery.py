"""Gallery of the documentation: one page per block, attribution method and model.

The figures use two small classifiers of drawn shapes (`_gallery/*.safetensors`): accuracy 1.000
(CNN) and 0.938 (ViT) on 500 validation scenes when they were trained, with the steps and settings
of `python docs/gallery.py train`. Blocks are inserted into the CNN and trained for a few steps.
"""

import argparse
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import nn

import visattn as va
from visattn.attribution import METHODS, Method
from visattn.blocks import block_class, block_info, list_blocks
from visattn.data import Scenes, WorldConfig, single_object_scenes
from visattn.data.scenes.dataset import SingleObjectScenes
from visattn.models import AttentionResNet, TextPromptClassifier, VisionTransformer
from visattn.viz import colormap_lut

HERE = Path(__file__).resolve().parent
SHAPES = ("circle", "square", "triangle", "cross", "ring")
SIZE = 64
SCALE = 2
"""Figures are drawn at this multiple of the size of a scene."""
GAP = 4


# ---------------------------------------------------------------- scenes and classifiers


@cache
def scenes(split: Literal["train", "test"], count: int) -> SingleObjectScenes:
    """Return drawn scenes with one plain shape each."""
    config = WorldConfig(shapes=SHAPES, textures=("plain",), num_objects=(2, 2))
    return single_object_scenes(Scenes(count, size=SIZE, config=config, split=split))


def photos(count: int = 3) -> tuple[list[np.ndarray], list[tuple[float, float]]]:
    """Return test scenes of distinct shapes as RGB arrays, and x and y of each shape in [0, 1]."""
    drawn = scenes("test", 40)
    first = [int((drawn.shapes == shape).nonzero()[0]) for shape in range(count)]
    centers = [tuple(((drawn.centers[index] + 1) / 2).tolist()) for index in first]
    return [drawn.images[index].permute(1, 2, 0).numpy() for index in first], centers


def untrained_cnn() -> AttentionResNet:
    """Return the architecture of the CNN."""
    return AttentionResNet(SHAPES, img_size=(SIZE, SIZE), depth=8, stem_width=12)


def untrained_vit() -> VisionTransformer:
    """Return the architecture of the Vision Transformer."""
    return VisionTransformer(
        SHAPES, img_size=(SIZE, SIZE), patch_size=8, depth=4, embed_dim=64, num_heads=4
    )


def trained(name: str) -> nn.Module:
    """Return the trained `cnn` or `vit`."""
    model = {"cnn": untrained_cnn, "vit": untrained_vit}[name]()
    weights = load_file(HERE / "_gallery" / f"shapes_{name}.safetensors")
    model.load_state_dict(
        {key: value.to(model.state_dict()[key]) for key, value in weights.items()}
    )
    return model.eval()


def fit(
    model: nn.Module,
    parameters: Sequence[nn.Parameter],
    steps: int,
    *,
    batch: int = 16,
    lr: float = 2e-3,
) -> None:
    """Train some parameters of a classifier of shapes, with random horizontal flips."""
    drawn = scenes("train", 6000 if steps > 500 else min(256, steps * batch))
    optimizer = torch.optim.AdamW(parameters, lr=lr, weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=max(steps, 2))
    for _ in range(steps):
        index = torch.randint(len(drawn.images), (batch,))
        images = drawn.images[index]
        images = images.flip(-1) if torch.rand(()) < 0.5 else images
        loss = nn.functional.cross_entropy(model(images), drawn.shapes[index])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()


# ---------------------------------------------------------------- figures


def block_figure(name: str, *, steps: int) -> np.ndarray:
    """Return three scenes above what a block, trained in the CNN, attended to on each."""
    torch.manual_seed(0)
    model = trained("cnn")
    images, centers = photos()
    batch = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2)
    options: dict[str, Any] = {"signal": "layer1"} if name == "gate" else {}
    before = {id(parameter) for parameter in model.parameters()}
    place = "layer3" if block_info(name).kind == "self_attention" else "layer2"
    va.insert(model, name, position=[place], example=batch, **options)
    added = [parameter for parameter in model.parameters() if id(parameter) not in before]
    if added:
        fit(model.train(), added, steps)
    with torch.no_grad(), va.record(model.eval()) as recorder:
        model(batch)
    rows = [[enlarged(image) for image in images]]
    rows += [map_tiles(entry, images, centers) for entry in unique_sites(recorder.maps)]
    return tiled(rows)


def unique_sites(maps: Sequence[va.AttentionMap]) -> list[va.AttentionMap]:
    """Return the last map of each site: a block may attend several times."""
    return list({entry.site: entry for entry in maps}.values())


def map_tiles(
    entry: va.AttentionMap,
    images: Sequence[np.ndarray],
    centers: Sequence[tuple[float, float]],
) -> list[np.ndarray]:
    """Return one tile per image: an overlay, or bars where the map has no place on the image."""
    values = entry.values.float()
    if entry.kind == "channel":
        return [channel_bars(value) for value in values]
    tiles = []
    for value, image, (x, y) in zip(values, images, centers, strict=True):
        rows, columns = value.shape[-2:]
        if entry.kind == "tokens":  # the mean of the heads, the row of the query on the shape
            value = value.flatten(0, -4).mean(0) if value.ndim > 3 else value
            query = int(y * rows) * columns + int(x * columns)
            value = value[query if len(value) == rows * columns else 0]
        elif value.ndim > 2:  # the channel whose gate varies most over the image
            value = value[int(value.flatten(1).std(1).argmax())]
        heatmap = va.AttentionMap(value, entry.site, entry.kind, va.Geometry.identity((SIZE, SIZE)))
        tiles.append(enlarged(np.asarray(va.overlay(image, heatmap))))
    return tiles


def tiled(rows: Sequence[Sequence[np.ndarray]]) -> np.ndarray:
    """Return tiles in rows, with white gaps."""
    padded = [
        [np.pad(t, ((0, GAP), (0, GAP), (0, 0)), constant_values=255) for t in r] for r in rows
    ]
    return np.concatenate([np.concatenate(row, 1) for row in padded])[:-GAP, :-GAP]


def channel_bars(values: torch.Tensor) -> np.ndarray:
    """Return a tile with the weights of channels: one bar each, or a matrix for two axes."""
    side = SIZE * SCALE
    table = colormap_lut("magma")
    grid = values.reshape(-1, values.shape[-1])
    low, high = float(grid.min()), float(grid.max())
    shares = (grid - low) / (high - low) if high > low else torch.full_like(grid, 0.5)
    tile = np.full((side, side, 3), 255, np.uint8)
    if len(grid) > 2:
        cells = table[(shares * 255).round().int().numpy()]
        return np.asarray(Image.fromarray(cells).resize((side, side), Image.Resampling.NEAREST))
    for row, line in enumerate(shares):
        top, height = row * side // len(grid), side // len(grid)
        for column, share in enumerate(line):
            left, right = column * side // len(line), (column + 1) * side // len(line)
            length = int(4 + float(share) * (height - 12))
            ink = table[int(40 + float(share) * 170)]
            tile[top + height - length : top + height, left : max(right - 1, left + 1)] = ink
    return tile


@cache
def explained(name: str) -> nn.Module:
    """Return the trained `cnn` or `vit` that all methods explain; it is analyzed once."""
    return trained(name)


def method_figure(name: str, *, draft: bool = False) -> np.ndarray:
    """Return three scenes above the maps of a method on them; a draft takes few random masks."""
    torch.manual_seed(0)
    method = METHODS[name]
    model = explained("vit" if of_transformers(method) else "cnn")
    images, _ = photos()
    target: Any = SHAPES[:3] if method.needs_target else None
    if method.needs == "texts":
        model = with_texts(model)
    if method.needs == "boxes":
        model, target = ShapeDetector(model), [va.BoxTarget(None, shape) for shape in range(3)]
    options = {"grid_size": 6} if method.needs == "boxes" else {}
    if draft and name in ("rise", "drise"):
        options["num_masks"] = 50
    maps = va.explain(model, images, name, target=target, **options)
    return tiled([[enlarged(image) for image in images], overlays(images, maps)])


class ShapeDetector(nn.Module):
    """A detector out of the CNN: its classifier, applied at each place, scores a box there."""

    def __init__(self, cnn: Any) -> None:
        super().__init__()
        self.cnn, self.img_size = cnn, cnn.img_size

    def forward(self, images: torch.Tensor) -> list[dict[str, torch.Tensor]]:
        """Return a box around the center of each cell, with its likeliest class."""
        features: list[torch.Tensor] = []
        handle = self.cnn.layer3.register_forward_hook(lambda *call: features.append(call[2]))
        self.cnn(images)
        handle.remove()
        scores = self.cnn.fc(features[0].movedim(1, -1)).softmax(-1)
        stride = images.shape[-1] // scores.shape[2]
        rows, columns = torch.meshgrid(*map(torch.arange, scores.shape[1:3]), indexing="ij")
        centers = (torch.stack((columns, rows), -1).flatten(0, 1) + 0.5) * stride
        boxes = torch.cat((centers - 10, centers + 10), 1).clamp(0, images.shape[-1])
        best = scores.flatten(1, 2).max(-1)
        return [
            {"boxes": boxes, "scores": score, "labels": label}
            for score, label in zip(best.values, best.indices, strict=True)
        ]


def with_texts(model: Any) -> TextPromptClassifier:
    """Return a classifier of shapes as a model that compares images with embeddings of texts."""
    tower: Any = model.to_timm().eval()
    return TextPromptClassifier(
        tower,
        lambda network, images: network.forward_head(
            network.forward_features(images), pre_logits=True
        ),
        SHAPES,
        tower.head.weight.detach(),
        img_size=model.img_size,
        mean=model.mean,
        std=model.std,
        name="ViT",
    )


def overlays(images: Sequence[np.ndarray], maps: Sequence[va.AttentionMap]) -> list[np.ndarray]:
    """Return one tile per image with its map."""
    pairs = zip(images, maps, strict=True)
    return [enlarged(np.asarray(va.overlay(image, heatmap))) for image, heatmap in pairs]


def enlarged(image: np.ndarray) -> np.ndarray:
    """Return an image at the scale of the figures."""
    size = (image.shape[1] * SCALE, image.shape[0] * SCALE)
    return np.asarray(Image.fromarray(image[..., :3]).resize(size, Image.Resampling.NEAREST))


# ---------------------------------------------------------------- pages


def block_page(name: str) -> str:
    """Return the page of a block in Markdown."""
    info, block = block_info(name), block_class(name)
    snippet = f"""
        import torch
        import visattn as va

        block = va.create_block("{name}", 64)
        assert block(torch.randn(2, 64, 14, 14)).shape == (2, 64, 14, 14)
        """
    facts = [
        ("paper", info.paper),
        ("kind", info.kind),
        ("parameters", info.parameters),
        ("also known as", ", ".join(info.aliases)),
        ("class", f"`from visattn.blocks import {block.__name__}`"),
        ("code", f"`{source_file(block)}`"),
    ]
    shown = "Top: test scenes. Below: what the block attended to in a small CNN of drawn shapes."
    parts = [
        f"# {info.title}",
        first_paragraph(block),
        f"![{shown}]({name}.png)",
        f"*{shown} Channel weights are drawn as bars, attention among tokens as the row of the "
        "token on the shape, gates per channel by the channel that varies most.*",
        fenced(re.sub(r";\s+(?![^\[]*\])", "\n", info.equation), "text"),
        table(facts),
        bullets("Deviations", info.deviations),
        bullets("Compatible weights", info.compatible_weights),
        "## Use\n\n" + fenced(textwrap.dedent(snippet).strip(), "python"),
        options_section(block, first=1),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


TEXT_MODEL = """va.models.TextPromptClassifier(  # or va.load_model("hf:DIRECTORY", text=[...])
            timm.create_model("vit_tiny_patch16_224", num_classes=0).eval(),
            lambda tower, images: tower(images),
            ["a dog", "the sky"],
            torch.eye(2, 192),  # embeddings of the texts
            img_size=(224, 224),
            mean=(0.5,) * 3,
            std=(0.5,) * 3,
        )"""

BOX_MODEL = """torchvision.models.detection.ssdlite320_mobilenet_v3_large(
            weights=None, weights_backbone=None, score_thresh=0.0
        ).eval()  # weights="DEFAULT" for trained weights"""

NEEDS = {
    "tokens": "attention among tokens",
    "texts": "attention among tokens, and texts to compare images with",
    "features": "a layer whose features lie on the image",
    "gradient": "gradients down to the pixels",
    "scores": "scores only; the model runs on changed images",
    "boxes": "a detector; only its boxes and scores are read",
    "pixels": "nothing: the model is not used",
}
CHECKED = {
    "xgradcam": "a layer whose features lie on the image and are hardly negative",
    "fullgrad": "a CNN of convolutions, batch normalization, pooling and elementwise activations",
    "guided_backprop": "ReLU or ReLU6 as the only activations",
    "attnlrp": "a ViT of linear layers, attention, layer normalization and usual activations",
}
"""What methods with a further requirement need."""
LAYER = "Index of a feature layer, a module or its name; -1 is the last."


def of_transformers(method: Method) -> bool:
    """Whether a method explains transformers only."""
    return method.needs in ("tokens", "texts") or method.name == "attnlrp"


NOTES = {
    "attention_flow": """The maps above miss the shapes: 13 to 25 % of the flow ends on them, which
cover 13 to 15 % of the area. They lie right: the likely reason is that the flow saturates, since
within four layers many paths lead to most tokens. From the last layer alone (`start_layer=3`) 42
to 87 % ends on the shapes. Take [relevance](relevance.md) or [rollout](rollout.md) to see where a
model looked.""",
    "similarity": """The text `triangle` is less similar to the tokens on the triangle (0.41 on
average) than to those of the background (0.56): the last layers of a ViT write the class into
tokens of the background too. The map lies right, as [LeGrad](legrad.md) of the same model and text
shows, but similarity is no evidence of where a thing is.""",
}


def method_page(name: str) -> str:
    """Return the page of an attribution method in Markdown."""
    method = METHODS[name]
    architecture = "vit_tiny_patch16_224" if of_transformers(method) else "resnet18"
    options = {"rise": ", num_masks=20", "scorecam": ', layer="layer1"'}.get(name, "")
    imports = {"texts": "timm\n        import torch", "boxes": "torchvision"}.get(
        method.needs, "timm"
    )
    build = f'timm.create_model("{architecture}").eval()  # pretrained=True for trained weights'
    if method.needs == "texts":
        build, options = TEXT_MODEL, ', "the sky"'
    if method.needs == "boxes":
        build, options = BOX_MODEL, ", va.BoxTarget(None), num_masks=8"
    snippet = f"""
        import numpy as np
        import {imports}
        import visattn as va

        model = {build}
        photo = np.random.default_rng(0).integers(0, 256, (240, 320, 3), dtype=np.uint8)
        [heatmap] = va.explain(model, photo, "{name}"{options})
        va.overlay(photo, heatmap).save("{name}.png")
        """
    facts = [
        ("paper", method.paper),
        ("needs", CHECKED.get(name, NEEDS[method.needs])),
        ("class-specific", "yes" if method.needs_target else "no"),
        ("signed", "yes" if method.signed else "no"),
        ("warning", method.warning),
        ("cost", cost(method)),
        ("code", f"`{source_file(method.function)}`"),
    ]
    network = "ViT" if of_transformers(method) else "CNN"
    network = "detector" if method.needs == "boxes" else network
    shown = f"Top: test scenes. Below: {method.title} of a small {network} of drawn shapes."
    parts = [
        f"# {method.title}",
        first_paragraph(method.function),
        f"![{shown}]({name}.png)",
        f"*{shown}*",
        NOTES.get(name, ""),
        table(facts),
        body_of_docstring(method.function),
        "## Use\n\n" + fenced(textwrap.dedent(snippet).strip(), "python"),
        options_section(method.function, keyword_only=True),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def cost(method: Method) -> str:
    """Return what a map costs, in passes of the model."""
    passes = {
        "smoothgrad": "one forward and backward pass per noisy sample",
        "integrated_gradients": "one forward and backward pass per integration step",
        "occlusion": "one forward pass per position of the window",
        "rise": "one forward pass per mask",
        "drise": "one forward pass per mask",
        "scorecam": "one forward pass per channel of the layer",
        "ablationcam": "one forward pass per channel, of the part behind the layer",
        "eigencam": "one forward pass",
        "kpcacam": "one forward pass, and the eigenvectors of a matrix of all pairs of positions",
        "smoothgradcam++": "one forward and backward pass per noisy sample",
        "shapleycam": "one forward and two backward passes",
        "attention_flow": "one forward pass and a maximum-flow problem per token",
    }
    simple = {"pixels": "no pass", "tokens": "one forward pass"}
    if method.needs_target:
        simple["tokens"] = "one forward and backward pass"
    return passes.get(method.name, simple.get(method.needs, "one forward and backward pass"))


MODELS: dict[str, dict[str, str]] = {
    "ShowAttendTell": {
        "figure": "../../panel.jpg",
        "caption": "Attention of each word of a caption on a drawn test scene (`scenes_soft`).",
        "configs": "scenes_demo, scenes_soft, flickr8k_soft, flickr8k_cider, flickr8k_shards; hard "
        "attention: scenes_hard, flickr8k_hard, coco_hard",
        "works": "caption, attention per word, word Grad-CAM, beam search, phrase scores",
    },
    "TransformerCaptioner": {
        "figure": "../../transformer_panel.jpg",
        "caption": "Attention of each word in the last layer, on a drawn test scene, after 1,400 "
        "steps on the scenes of `scenes_demo`.",
        "configs": "scenes_transformer, flickr8k_transformer, flickr8k_transformer_cider, "
        "coco_transformer",
        "works": "caption, attention per word, layer and head, word Grad-CAM, beam search, phrase "
        "scores",
    },
    "KnowingWhenToLook": {
        "figure": "../../captioners.jpg",
        "caption": "Three captioners read one caption of a drawn test scene. Below each word its "
        "probability, and the gate: β or 1-β, the share of the image in its context "
        "(`scenes_soft`, `scenes_hard`, `scenes_adaptive`).",
        "configs": "scenes_adaptive, flickr8k_adaptive, coco_adaptive",
        "works": "caption, attention and sentinel per word, word Grad-CAM, beam search, phrase "
        "scores",
    },
    "SequenceRecognizer": {
        "figure": "../../alignment.png",
        "caption": "Alignment matrix: the attention of each digit over the columns of a test "
        "canvas (`read_digits`).",
        "configs": "read_digits",
        "works": "reading, attention per digit, alignment matrix, beam search",
    },
    "StackedAttentionNetwork": {
        "figure": "StackedAttentionNetwork.png",
        "caption": "The same scores of 196 cells, scaled by 1, 4 and 16, then a softmax: as in the "
        "paper (above), and with the tanh around the score of the authors' code (below), on one "
        "color scale. See [Why tanh scores cannot look sharply](../../tanh_scores.md).",
        "configs": "sort_of_clevr_san, scenes_questions_san, vqa2_san",
        "works": "questions, attention of each hop, hop supervision, pages of `visattn ask`",
    },
    "HierarchicalCoAttention": {
        "figure": "",
        "caption": "",
        "configs": "",
        "works": "questions, attention over cells and words per level, pages of `visattn ask`",
    },
    "CrossAttentionVQA": {
        "figure": "../../question_panel.png",
        "caption": "A question about the closest object: the first map lies on the object in the "
        "question (frame), the second and third on the answer (`sort_of_clevr_cross`, maps "
        "supervised).",
        "configs": "sort_of_clevr_cross, sort_of_clevr_cross_unsupervised, scenes_questions",
        "works": "questions, attention of each layer, hop supervision, pages of `visattn ask`",
    },
    "MAC": {
        "figure": "../../mac_panel.png",
        "caption": "A question about one object (frame): the third of four steps lies on it, "
        "without supervision of the maps (`sort_of_clevr_mac`).",
        "configs": "sort_of_clevr_mac",
        "works": "questions, attention over cells and words per step, hop supervision, pages of "
        "`visattn ask`",
    },
    "RelationNetwork": {
        "figure": "",
        "caption": "",
        "configs": "sort_of_clevr_rn",
        "works": "questions; it has no attention map",
    },
    "CNNMLP": {
        "figure": "",
        "caption": "",
        "configs": "sort_of_clevr_cnn",
        "works": "questions; it has no attention map",
    },
    "RecurrentAttentionModel": {
        "figure": "../../scan.png",
        "caption": "Six glimpses at a digit (`ram_mnist`).",
        "configs": "ram_scenes, ram_mnist, ram_mnist_paper, ram_translated60, ram_cluttered60",
        "works": "glimpses, scan paths, coverage, policies random, raster and saliency",
    },
    "DRAM": {
        "figure": "../../scan_pairs.png",
        "caption": "Three glimpses at each of two digits, and what was read there, after 200 "
        "training steps (`dram_pairs60`).",
        "configs": "dram_pairs60, dram_pairs100, dram_addition, dram_sequences",
        "works": "sequences of labels, glimpses, scan paths, coverage, policies random, raster and "
        "saliency",
    },
    "AttentionResNet": {
        "figure": "AttentionResNet.png",
        "caption": "Grad-CAM of a ResNet-8 of drawn shapes.",
        "configs": "mnist_resnet_cbam, stn_mnist, cifar10_resnet20_none, cifar10_resnet20_se",
        "works": "all blocks by name, Grad-CAM and its relatives, gradients, perturbations",
    },
    "TimmClassifier": {
        "figure": "TimmClassifier.png",
        "caption": "Occlusion maps of a CNN of drawn shapes, as of any classifier.",
        "configs": "flowers_mobilenetv2_cbam, flowers_shards",
        "works": "any timm backbone with inserted blocks; the methods that fit the backbone",
    },
    "VisionTransformer": {
        "figure": "VisionTransformer.png",
        "caption": "Relevance maps of a small ViT of drawn shapes.",
        "configs": "vit_mnist, vit_mnist_conv, vit_cifar10, vit_cifar10_slvit, cct_cifar10, "
        "vit_flowers, vit_imagenet",
        "works": "attention, rollout, relevance, gradients, perturbations; weights of timm, "
        "torchvision and DINOv2",
    },
    "SwinTransformer": {
        "figure": "SwinTransformer.png",
        "caption": "Input gradients of an untrained Swin: the geometry only.",
        "configs": "",
        "works": "window attention per layer, Grad-CAM, gradients, perturbations; timm weights",
    },
}
_MODEL_METHODS = {
    "AttentionResNet": "gradcam",
    "TimmClassifier": "occlusion",
    "VisionTransformer": "relevance",
}


def model_figure(name: str) -> np.ndarray | None:
    """Return the figure of a model; None if the page shows a committed picture."""
    if name in _MODEL_METHODS:
        return method_figure(_MODEL_METHODS[name])
    if name == "StackedAttentionNetwork":
        return sharpness_figure()
    if name != "SwinTransformer":
        return None
    from visattn.models import SwinTransformer

    torch.manual_seed(0)
    images, _ = photos()
    model = SwinTransformer(
        SHAPES, img_size=(SIZE, SIZE), embed_dim=24, depths=(2, 2), num_heads=(2, 4), window_size=4
    )
    maps = va.explain(model.eval(), images, "input_gradient", target="circle")
    return tiled([overlays(images, maps)])


def sharpness_figure() -> np.ndarray:
    """Return maps of the same scores as in the paper of stacked attention, and as in its code.

    A score is the similarity of the color of a cell to that of the object, from -1 to 1, times 1, 4
    or 16. The code has a tanh around the score, and its maps stay diffuse.
    """
    images, [(x, y), *_] = photos()
    image = torch.from_numpy(images[0]).permute(2, 0, 1)[None].float() / 255
    cells = nn.functional.adaptive_avg_pool2d(nn.functional.interpolate(image, (224, 224)), 14)[0]
    color = image[0, :, int(y * SIZE), int(x * SIZE)]
    similarity = 1 - 2 * (cells - color[:, None, None]).norm(dim=0).div(0.5).clamp(max=1)
    rows = []
    for bounded in (False, True):
        scores = [factor * similarity for factor in (1, 4, 16)]
        scores = [each.tanh() if bounded else each for each in scores]
        rows.append([each.flatten().softmax(0).view(14, 14) for each in scores])
    vmax = max(float(values.max()) for row in rows for values in row)
    place = va.Geometry.identity((SIZE, SIZE))
    return tiled(
        [
            [
                enlarged(
                    np.asarray(
                        va.overlay(
                            images[0],
                            va.AttentionMap(values, "hop", "tokens", place),
                            vmax=vmax,
                            smooth=False,
                        )
                    )
                )
                for values in row
            ]
            for row in rows
        ]
    )


def model_page(name: str) -> str:
    """Return the page of a model in Markdown."""
    import visattn.models

    model, about = getattr(visattn.models, name), MODELS[name]
    facts = [
        ("class", f"`from visattn.models import {name}`"),
        ("code", f"`{source_file(model)}`"),
        ("configs", about["configs"]),
        ("what works", about["works"]),
    ]
    parts = [
        f"# {name}",
        first_paragraph(model),
        f"![{about['caption']}]({about['figure']})" if about["figure"] else "",
        f"*{about['caption']}*" if about["figure"] else "",
        table(facts),
        body_of_docstring(model),
        "## Use\n\n" + fenced(example(model), "python"),
        options_section(model),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


# ---------------------------------------------------------------- Markdown out of docstrings


def sections(thing: Any) -> dict[str, str]:
    """Return the parts of a Google docstring by heading; the text before them under ''."""
    text = inspect.getdoc(thing) or ""
    pieces = re.split(
        r"^(Args|Returns|Raises|Example|Source|Note|Yields):\s*", text, flags=re.MULTILINE
    )
    return {"": pieces[0].strip(), **dict(zip(pieces[1::2], pieces[2::2], strict=True))}


def first_paragraph(thing: Any) -> str:
    """Return the first paragraph of a docstring."""
    return " ".join(sections(thing)[""].split("\n\n")[0].split())


def body_of_docstring(thing: Any) -> str:
    """Return what follows the first paragraph, and the source."""
    paragraphs = sections(thing)[""].split("\n\n")[1:]
    source = " ".join(sections(thing).get("Source", "").split())
    return "\n\n".join([*paragraphs, *([f"Source: {source}"] if source else [])])


def example(thing: Any) -> str:
    """Return the code of the docstring's example."""
    lines = [line.strip() for line in sections(thing).get("Example", "").splitlines()]
    code = [line[4:] for line in lines if line.startswith((">>> ", "... "))]
    imports = ["import numpy as np", "import torch", "from visattn.models import *"]
    return "\n".join([*imports, "", *code])


def options_section(thing: Any, *, first: int = 0, keyword_only: bool = False) -> str:
    """Return a table of arguments with defaults and meanings."""
    meanings = dict(
        re.findall(
            r"^\s{4}(\w+): (.*?)(?=^\s{4}\w+: |\Z)",
            sections(thing).get("Args", ""),
            re.MULTILINE | re.DOTALL,
        )
    )
    meanings.setdefault("layer", LAYER)
    parameters = list(inspect.signature(thing).parameters.values())[first:]
    if keyword_only:
        parameters = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
    rows = [
        (
            f"`{p.name}`",
            "required" if p.default is p.empty else f"`{p.default!r}`",
            " ".join(meanings.get(p.name, "").split()),
        )
        for p in parameters
        if p.kind is not p.VAR_KEYWORD
    ]
    if not rows:
        return ""
    lines = ["| argument | default | meaning |", "|---|---|---|"]
    return "## Arguments\n\n" + "\n".join(
        lines + ["| " + " | ".join(cell(c) for c in row) + " |" for row in rows]
    )


def source_file(thing: Any) -> str:
    """Return the file of a definition, from the root of the checkout."""
    module = inspect.getmodule(inspect.unwrap(thing))
    return module.__name__.replace(".", "/") + ".py" if module else ""


def table(facts: Sequence[tuple[str, str]]) -> str:
    """Return a table of two columns, without the rows that are empty."""
    rows = [f"| {name} | {cell(value)} |" for name, value in facts if value]
    return "\n".join(["| | |", "|---|---|", *rows])


def cell(text: str) -> str:
    """Return a text that does not end a cell of a table."""
    return text.replace("|", "\\|")


def bullets(title: str, lines: Sequence[str]) -> str:
    """Return a section with a list, or nothing."""
    return f"## {title}\n\n" + "\n".join(f"- {line}" for line in lines) if lines else ""


def fenced(text: str, language: str) -> str:
    """Return a block of code."""
    return f"```{language}\n{text}\n```"


# ---------------------------------------------------------------- all pages


def write(folder: Path, *, steps: int) -> None:
    """Write all pages and figures of the gallery into a folder; with one step they are drafts."""
    rooms: dict[
        str, tuple[Sequence[str], Callable[[str], str], Callable[[str], np.ndarray | None]]
    ] = {
        "blocks": (list_blocks(), block_page, lambda name: block_figure(name, steps=steps)),
        "methods": (
            list(METHODS),
            method_page,
            lambda name: method_figure(name, draft=steps == 1),
        ),
        "models": (list(MODELS), model_page, model_figure),
    }
    for room, (names, page, figure) in rooms.items():
        (folder / room).mkdir(parents=True, exist_ok=True)
        for name in names:
            (folder / room / f"{name}.md").write_text(page(name))
            if (drawn := figure(name)) is not None:
                Image.fromarray(drawn).save(folder / room / f"{name}.png")
                Image.fromarray(thumbnail(drawn)).save(folder / room / f"{name}_thumbnail.png")
        (folder / room / "index.md").write_text(
            f"# {room.capitalize()}\n\n{thumbnails(room, names)}\n\n{contents(names)}"
        )
    parts = [
        f"## [{room.capitalize()}]({room}/index.md)\n\n{thumbnails(room, names, f'{room}/')}"
        for room, (names, _, _) in rooms.items()
    ]
    listed = contents([f"{room}/index" for room in rooms])
    (folder / "index.md").write_text("\n\n".join(["# Gallery", _INTRODUCTION, *parts, listed]))


_INTRODUCTION = """\
Every block, attribution method and model with figure, equation, cost, source and a snippet that
the tests run. Blocks and maps are drawn with two small classifiers of drawn shapes, trained for
this gallery."""


def thumbnail(figure: np.ndarray) -> np.ndarray:
    """Return one tile of a figure: the map below its first scene."""
    side = SIZE * SCALE
    top = side + GAP if len(figure) > side else 0
    return figure[top : top + side, :side]


def thumbnails(room: str, names: Sequence[str], prefix: str = "") -> str:
    """Return a grid of linked figures, one per page of a part of the gallery."""
    entries = []
    for name in names:
        picture = f"{name}_thumbnail.png"
        if room == "models" and not MODELS[name]["figure"].startswith(name):
            picture = MODELS[name]["figure"]
        shown = f"![]({prefix}{picture})<br>" if picture else ""
        entries.append(f"- [{shown}{title(room, name)}]({prefix}{name}.md)")
    return ":::{container} thumbnails\n" + "\n".join(entries) + "\n:::"


def title(room: str, name: str) -> str:
    """Return the title of a page."""
    if room == "blocks":
        return block_info(name).title
    return METHODS[name].title if room == "methods" else name


def contents(pages: Sequence[str]) -> str:
    """Return the hidden table of contents from which the sidebar is made."""
    entries = "\n".join(pages)
    return f"```{{toctree}}\n:hidden:\n:maxdepth: 1\n\n{entries}\n```\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Train the classifiers of the figures, or draw the gallery into a folder."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("action", choices=["train", "draw"])
    parser.add_argument("--out", type=Path, default=HERE / "gallery")
    parser.add_argument("--steps", type=int, default=40)
    args = parser.parse_args(argv)
    if args.action == "draw":
        write(args.out, steps=args.steps)
        return 0
    for name, build, steps, lr in (
        ("cnn", untrained_cnn, 1000, 2e-3),
        ("vit", untrained_vit, 3000, 1.5e-3),
    ):
        torch.manual_seed(0)
        model = build()
        fit(model, list(model.parameters()), steps, batch=48, lr=lr)
        weights = {key: value.half() for key, value in model.state_dict().items()}
        save_file(weights, HERE / "_gallery" / f"shapes_{name}.safetensors")
    return 0


if __name__ == "__main__":
    sys.exit(main())
