"""Pictures of the page "From the texts to the code": what its lines give."""

import ast
import re
import sys
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure as MatplotlibFigure
from PIL import Image
from torch import Tensor

from visattn.viz import Figure
from visattn.viz.figures import rgb

PAGE = Path(__file__).parent / "concepts.md"
WIDTH = 480  # pixels
_HEADINGS = re.compile(r"^###? ", re.MULTILINE)
_FENCED = re.compile(r"^```python concept\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Concept(NamedTuple):
    """A concept of the page."""

    name: str
    code: str
    text: str

    @property
    def picture(self) -> str:
        """Return the path of its picture, from the page."""
        return f"concepts/{self.name.lower().replace(' ', '_').replace(',', '')}.jpg"


def concepts() -> tuple[str, list[Concept]]:
    """Return the code that all lines share, and the concepts of the page."""
    first, *sections = _HEADINGS.split(PAGE.read_text(encoding="utf-8"))
    found = [
        Concept(section.splitlines()[0], "\n".join(_FENCED.findall(section)), section)
        for section in sections
        if _FENCED.search(section)
    ]
    return "\n".join(_FENCED.findall(first)), found


def results() -> Iterator[tuple[Concept, Any]]:
    """Run the lines of the page one after the other; yield what each gives."""
    shared, found = concepts()
    names: dict[str, Any] = {}
    exec(compile(shared, str(PAGE), "exec"), names)
    for concept in found:
        *before, last = ast.parse(concept.code).body  # the last is an expression
        exec(compile(ast.Module(before, []), str(PAGE), "exec"), names)
        yield concept, eval(ast.unparse(last), names)


def picture(result: Any) -> Image.Image:
    """Return what a line gives as a picture: an image, a figure, or matrices side by side."""
    if isinstance(result, Tensor | list):
        result = _matrices(result if isinstance(result, list) else [result])
    if isinstance(result, MatplotlibFigure):
        result = rgb(result, 2 * WIDTH)
    image = result if isinstance(result, Image.Image) else Image.fromarray(np.asarray(result))
    scale = WIDTH / max(image.size)
    size = round(image.width * scale), round(image.height * scale)
    return image.convert("RGB").resize(size, Image.Resampling.LANCZOS)


def _matrices(matrices: list[Tensor]) -> Figure:
    """Draw matrices: scores as they are; of weights the roots, and zeros white."""
    ratio = min(1.0, max(each.shape[0] / each.shape[1] for each in matrices) / len(matrices))
    figure = Figure((4.0, max(0.5, 4.0 * ratio)))
    axes = figure.subplots(1, len(matrices), squeeze=False)[0]
    figure.subplots_adjust(0, 0, 1, 1, wspace=0.1)
    for ax, matrix in zip(axes, matrices, strict=True):
        scores = bool(matrix.min() < 0)
        shown = matrix if scores else matrix.sqrt().where(matrix > 0, torch.nan)
        ax.imshow(shown.numpy(), cmap="viridis", interpolation="nearest")
        ax.set_axis_off()
    return figure


def write(models: str) -> None:
    """Write the pictures of all concepts, with the models of a folder."""
    with chdir(models):
        drawn = [(concept, picture(result)) for concept, result in results()]
    for concept, image in drawn:
        file = PAGE.parent / concept.picture
        file.parent.mkdir(exist_ok=True)
        image.save(file, quality=85, optimize=True)


if __name__ == "__main__":
    write(sys.argv[1])
