"""Gallery of the documentation: one page per block, attribution method and model."""

import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import equations
import gallery_figures as figures
import numpy as np
from PIL import Image
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from visattn.attribution import METHODS, Method
from visattn.blocks import block_class, block_info, list_blocks
from visattn.commands.options import CommandParser

HERE = Path(__file__).resolve().parent


# ---------------------------------------------------------------- pages


class Figure(NamedTuple):
    """A picture and what stands below it."""

    file: str
    caption: str


FIGURES_OF_BLOCKS = {
    "stn": Figure(
        "../../crops.png",
        "Above: transformed validation digits, with the region that the block of `stn_mnist` "
        "reads. Below: what it passes on.",
    )
}
"""Blocks that are not drawn in the CNN of shapes."""


def legend(kind: str) -> str:
    """Return how the maps of blocks of a kind are drawn."""
    if kind in ("channel", "multi_branch"):
        return "A bar is the weight of a channel; branches stand below each other."
    if kind == "self_attention":
        return (
            "Attention of the place on the shape, from the lowest to the highest weight of each "
            "tile, which stand below it; attention among channels as a matrix."
        )
    return (
        "Gates per place, from the lowest to the highest value of each tile, which stand below it; "
        "of gates per channel, the channel that varies most. Bars are weights of channels."
    )


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
        ("paper", with_links(info.paper)),
        ("kind", info.kind),
        ("parameters", info.parameters),
        ("also known as", ", ".join(info.aliases)),
        ("class", f"`from visattn.blocks import {block.__name__}`"),
        ("code", source_link(block)),
    ]
    shown = "Top: test scenes. Below: weights of the block in a small CNN of drawn shapes."
    drawn = FIGURES_OF_BLOCKS.get(name, Figure(f"{name}.jpg", f"{shown} {legend(info.kind)}"))
    parts = [
        f"# {info.title}",
        first_paragraph(block),
        f"![{shown}]({drawn.file})",
        f"*{drawn.caption}*",
        equations.block_equation(name, info.equation),
        table(facts),
        bullets("Deviations", info.deviations),
        bullets("Compatible weights", info.compatible_weights),
        "## Use\n\n" + fenced(textwrap.dedent(snippet).strip(), "python"),
        options_section(block, first=1),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


INSERTION = """
        x = torch.zeros(1, 3, 224, 224)
        va.insert(model, "cbam", position="residual", example=x)"""


NEEDS = {
    "tokens": "attention among tokens",
    "features": "a layer whose features lie on the image",
    "gates": "blocks that gate places (`spatial`, `cbam`, `bam`, ...), or attention gates",
    "gradient": "gradients down to the pixels",
    "scores": "scores only; the model runs on changed images",
    "pixels": "nothing: the model is not used",
}
CHECKED = {
    "xgradcam": "a layer whose features lie on the image and are hardly negative",
    "fullgrad": "a CNN of convolutions, batch normalization, pooling and elementwise activations",
}
"""What methods with a further requirement need."""
LAYER = "Index of a feature layer, a module or its name; -1 is the last."


_EQUAL_NOTE = """\
Of the last layer of many CNNs (ResNet, DenseNet, the CNN above) {method} is
[{like}]({other}.md): where features are averaged over all places before a linear classifier, the
gradient of a class is the same at all places. They differ where more lies behind the layer."""


def method_page(name: str) -> str:
    """Return the page of an attribution method in Markdown."""
    method = METHODS[name]
    architecture = "vit_tiny_patch16_224" if figures.of_transformers(method) else "resnet18"
    options = {"rise": ", num_masks=20", "scorecam": ', layer="layer1"'}.get(name, "")
    imports = "timm\n        import torch" if method.needs == "gates" else "timm"
    build = f'timm.create_model("{architecture}").eval()  # pretrained=True for trained weights'
    if method.needs == "gates":
        build += INSERTION
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
        ("paper", with_links(method.paper)),
        ("needs", CHECKED.get(name, NEEDS[method.needs])),
        ("class-specific", "yes" if method.needs_target else "no"),
        ("signed", "yes" if method.signed else "no"),
        ("cost", cost(method)),
        ("code", source_link(method.function)),
    ]
    network = "ViT" if figures.of_transformers(method) else "CNN"
    shown = f"Top: test scenes. Below: {method.title} of a small {network} of drawn shapes."
    note = ""
    if other := figures.EQUAL.get(name):
        like = METHODS[other].title
        shown = (
            f"Top: test scenes. Below: {like}, then {method.title}, both of the layer before the "
            f'last of a small CNN of drawn shapes (`layer="{figures.EARLIER_LAYER}"`).'
        )
        note = _EQUAL_NOTE.format(method=method.title, like=like, other=other)
    alt = shown.replace("`", "")
    parts = [
        f"# {method.title}",
        first_paragraph(method.function),
        f"![{alt}]({name}.jpg)",
        f"*{shown}*",
        note,
        equations.method_equation(name),
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
        "scorecam": "one forward pass per channel of the layer",
        "ablationcam": "one forward pass per channel, of the part behind the layer",
        "eigencam": "one forward pass",
        "kpcacam": "one forward pass, and the eigenvectors of a matrix of all pairs of positions",
    }
    simple = {"pixels": "no pass", "tokens": "one forward pass", "gates": "one forward pass"}
    if method.needs_target:
        simple["tokens"] = "one forward and backward pass"
    return passes.get(method.name, simple.get(method.needs, "one forward and backward pass"))


MODELS: dict[str, dict[str, str]] = {
    "ShowAttendTell": {
        "figure": "ShowAttendTell.jpg",
        "caption": "Attention of each word of a caption on a drawn scene (`scenes-captioner`).",
        "configs": "scenes_demo, scenes_captioner, scenes_soft, flickr8k_soft, flickr8k_cider, "
        "coco_soft; hard attention is a variant of these",
        "works": "caption, attention per word, word Grad-CAM, beam search, phrase scores",
    },
    "TransformerCaptioner": {
        "figure": "",
        "caption": "",
        "configs": "scenes_transformer, flickr8k_transformer, coco_transformer",
        "works": "caption, attention per word, layer and head, word Grad-CAM, beam search, phrase "
        "scores",
    },
    "KnowingWhenToLook": {
        "figure": "",
        "caption": "",
        "configs": "a variant of scenes_soft, flickr8k_soft, coco_soft",
        "works": "caption, attention and sentinel per word, word Grad-CAM, beam search, phrase "
        "scores",
    },
    "SequenceRecognizer": {
        "figure": "",
        "caption": "",
        "configs": "read_digits",
        "works": "reading, attention per digit, alignment matrix, beam search",
    },
    "CrossAttentionVQA": {
        "figure": "CrossAttentionVQA.jpg",
        "caption": "A question about the closest object: the first map lies on the object in the "
        "question, the second and third mostly on the answer (`sort_of_clevr_cross`, maps "
        "supervised).",
        "configs": "sort_of_clevr_cross, vqa2_cross",
        "works": "questions, attention of each layer, hop supervision, pages of `visattn ask`",
    },
    "MAC": {
        "figure": "",
        "caption": "",
        "configs": "sort_of_clevr_mac",
        "works": "questions, attention over cells and words per step, hop supervision, pages of "
        "`visattn ask`",
    },
    "RecurrentAttentionModel": {
        "figure": "RecurrentAttentionModel.jpg",
        "caption": "Five glimpses at a triangle at three scales, and what they saw "
        "(`scenes-glimpses`).",
        "configs": "ram_scenes, ram_mnist, ram_mnist_paper, ram_translated60",
        "works": "glimpses, scan paths, coverage, policies random, raster and saliency",
    },
    "DRAM": {
        "figure": "",
        "caption": "",
        "configs": "dram_pairs60, dram_sequences",
        "works": "sequences of labels, glimpses, scan paths, coverage, policies random, raster and "
        "saliency",
    },
    "AttentionResNet": {
        "figure": "AttentionResNet.jpg",
        "caption": "Grad-CAM of a ResNet-8 of drawn shapes.",
        "configs": "mnist_resnet_cbam, stn_mnist, cifar10_resnet20",
        "works": "all blocks by name, Grad-CAM and its relatives, gradients, perturbations",
    },
    "TimmClassifier": {
        "figure": "TimmClassifier.jpg",
        "caption": "Occlusion maps of a CNN of drawn shapes, as of any classifier.",
        "configs": "flowers_mobilenetv2_cbam",
        "works": "any timm backbone with inserted blocks; the methods that fit the backbone",
    },
    "VisionTransformer": {
        "figure": "VisionTransformer.jpg",
        "caption": "Relevance maps of a small ViT of drawn shapes.",
        "configs": "vit_mnist, vit_cifar10, vit_imagenet",
        "works": "attention, rollout, relevance, gradients, perturbations; weights of timm",
    },
}
_MODEL_METHODS = {
    "AttentionResNet": "gradcam",
    "TimmClassifier": "occlusion",
    "VisionTransformer": "relevance",
}


def model_figure(name: str) -> np.ndarray | None:
    """Return the figure of a model; None if the page shows a committed picture or none."""
    if name in _MODEL_METHODS:
        return figures.method_figure(_MODEL_METHODS[name], scenes_of=name)
    drawn = {
        "ShowAttendTell": figures.caption_panel,
        "CrossAttentionVQA": figures.question_figure,
        "RecurrentAttentionModel": figures.glimpse_figure,
    }.get(name)
    return drawn() if drawn else None


def model_page(name: str) -> str:
    """Return the page of a model in Markdown."""
    import visattn.models

    model, about = getattr(visattn.models, name), MODELS[name]
    facts = [
        ("class", f"`from visattn.models import {name}`"),
        ("code", source_link(model)),
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
    return "\n\n".join([*paragraphs, *([f"Source: {with_links(source)}"] if source else [])])


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
    if module is None:
        raise ValueError(f"{thing} has no module")
    return module.__name__.replace(".", "/") + ".py"


def source_page(file: str) -> str:
    """Return the name of the page that shows a file."""
    return file.removesuffix(".py").removeprefix("visattn/").replace("/", ".") + ".html"


def source_link(thing: Any) -> str:
    """Return the file of a definition, linked to the page that shows it."""
    file = source_file(thing)
    return f'<a href="../../_static/source/{source_page(file)}"><code>{file}</code></a>'


def with_links(text: str) -> str:
    """Return a text whose arXiv numbers and proceedings are links."""
    text = re.sub(r"arXiv:(\d{4}\.\d{4,5})", r"[arXiv:\1](https://arxiv.org/abs/\1)", text)
    return re.sub(r"\b(proceedings\.mlr\.press/[\w/]+)", r"[\1](https://\1)", text)


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


def write(folder: Path, *, draft: bool = False) -> None:
    """Write all pages and figures of the gallery into a folder; drafts take few random masks."""
    rooms: dict[
        str, tuple[Sequence[str], Callable[[str], str], Callable[[str], np.ndarray | None]]
    ] = {
        "blocks": (list_blocks(), block_page, block_figure),
        "methods": (
            list(METHODS),
            method_page,
            lambda name: figures.method_figure(name, draft=draft),
        ),
        "models": (list(MODELS), model_page, model_figure),
    }
    for room, (names, page, figure) in rooms.items():
        (folder / room).mkdir(parents=True, exist_ok=True)
        for name in names:
            (folder / room / f"{name}.md").write_text(page(name))
            if (drawn := figure(name)) is not None:
                Image.fromarray(drawn).save(folder / room / f"{name}.jpg", quality=88)
                thumbnail(name, drawn).save(folder / room / f"{name}_thumbnail.jpg", quality=88)
        (folder / room / "index.md").write_text(
            f"# {room.capitalize()}\n\n{thumbnails(room, names)}\n\n{contents(names)}"
        )
    write_sources(HERE / "_static" / "source")
    parts = [
        f"## [{room.capitalize()}]({room}/index.md)\n\n{thumbnails(room, names, f'{room}/')}"
        for room, (names, _, _) in rooms.items()
    ]
    listed = contents([f"{room}/index" for room in rooms])
    (folder / "index.md").write_text("\n\n".join(["# Gallery", _INTRODUCTION, *parts, listed]))


def block_figure(name: str) -> np.ndarray | None:
    """Return the figure of a block; None if the page shows a committed picture."""
    return None if name in FIGURES_OF_BLOCKS else figures.block_figure(name)


_SOURCE_PAGE = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{file}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ margin: 1rem auto; max-width: 60rem; padding: 0 1rem; }}
pre {{ font-size: .85rem; line-height: 1.4; overflow-x: auto; }}
{light}
@media (prefers-color-scheme: dark) {{ {dark} }}
</style>
<h1><code>{file}</code></h1>
{code}
"""


def write_sources(folder: Path) -> None:
    """Write a page for each file that a page of the gallery names."""
    import visattn.models

    shown = [
        *map(block_class, list_blocks()),
        *(method.function for method in METHODS.values()),
        *(getattr(visattn.models, name) for name in MODELS),
    ]
    folder.mkdir(parents=True, exist_ok=True)
    light, dark = (HtmlFormatter(style=name) for name in ("friendly", "github-dark"))
    styles = {"light": light.get_style_defs(), "dark": dark.get_style_defs()}
    for file in {source_file(thing) for thing in shown}:
        code = highlight((HERE.parent / file).read_text(), PythonLexer(), light)
        page = _SOURCE_PAGE.format(file=file, code=code, **styles)
        (folder / source_page(file)).write_text(page)


_INTRODUCTION = """\
Every block, attribution method and model with figure, equation, cost, source and a snippet that
the tests run. Blocks and maps are drawn with two small classifiers of drawn shapes, trained for
this gallery."""


TILES = {
    "ShowAttendTell": (376, 36, 214),
    "CrossAttentionVQA": (138, 391, 333),
    "RecurrentAttentionModel": (125, 36, 400),
}
"""Top, left and side of the tile that stands for a figure, if it is not the one below a scene."""


def thumbnail(name: str, figure: np.ndarray) -> Image.Image:
    """Return one tile of a figure: the map of the block or method on its first scene."""
    side = figures.SIDE
    below = (side + figures.GAP) * (1 + (name in figures.EQUAL)) if len(figure) > side else 0
    top, left, side = TILES.get(name, (below, 0, side))
    return Image.fromarray(figure[top : top + side, left : left + side])


def thumbnail_file(room: str, name: str) -> str:
    """Return the picture of a page in a grid, from the folder of the page."""
    if room == "blocks" and name in FIGURES_OF_BLOCKS:
        return FIGURES_OF_BLOCKS[name].file
    if room == "models" and not MODELS[name]["figure"].startswith(name):
        return MODELS[name]["figure"]
    return f"{name}_thumbnail.jpg"


def thumbnails(room: str, names: Sequence[str], prefix: str = "") -> str:
    """Return a grid of linked figures, one per page of a part of the gallery."""
    entries, others = [], []
    for name in names:
        if file := thumbnail_file(room, name):
            entries.append(f"- [![]({prefix}{file})<br>{title(room, name)}]({prefix}{name}.md)")
        else:
            others.append(f"[{title(room, name)}]({prefix}{name}.md)")
    grid = ":::{container} thumbnails\n" + "\n".join(entries) + "\n:::"
    return f"{grid}\n\nWithout a figure: {', '.join(others)}." if others else grid


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
    """Draw the gallery into a folder."""
    parser = CommandParser(description=main.__doc__)
    parser.add_argument("--out", type=Path, default=HERE / "gallery")
    write(parser.parse_args(argv).out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
