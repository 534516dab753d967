"""Maps of the same images every few hundred steps of a training, with a page."""

import csv
import io
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import nn

from visattn.attribution.methods import METHODS
from visattn.images.reader import ImageLike, LoadedImage, list_images, read_image
from visattn.io.argument_checks import check_argument
from visattn.io.atomic import atomic_write
from visattn.metrics.faithfulness import spearman_correlation
from visattn.pipelines.explained_targets import is_list
from visattn.pipelines.explainer import explain
from visattn.results.attention_map import AttentionMap
from visattn.results.captions import Caption
from visattn.results.records import read_array
from visattn.results.scale import map_scale
from visattn.viz.captions import caption_figure
from visattn.viz.heatmap import resize_image
from visattn.viz.html.document import image_data_url, jpeg_data_url
from visattn.viz.html.history_page import HistoryRow, history_page
from visattn.viz.maps import color_bar, overlay
from visattn.viz.text import join_notes

_PAGE = "index.html"
_TABLE = "maps.csv"
_LONGEST = 320  # pixels of a map
_WORDS_WIDTH = 900  # pixels of a panel of words
_QUALITY = 85  # of JPEG
_MAX_COLUMNS = 24  # steps on the page; all of them are in the folder


@dataclass(frozen=True)
class MapRecord:
    """A line of `maps.csv`: the map of one image after some steps of training."""

    step: int
    image: str
    target: str
    """Explained class; "" for attention without a target."""
    score: float
    """Score of the explained class; NaN for attention without a target."""
    x: float
    """Maximum of the map, in pixels of the image; NaN for several maps or an empty one."""
    y: float
    correlation: float
    """Rank correlation with the map logged before; NaN for the first."""
    note: str = ""
    """Why the map is empty."""
    range: str = ""
    """Values at the ends of its color scale; "" for several maps."""


class AttentionHistory:
    """Maps of the same images while a model trains, in a folder with a page.

    Each call of `log` that is due writes the maps of all images to `FOLDER/step-0000500/`, adds
    lines to `FOLDER/maps.csv` and rewrites `FOLDER/index.html`, which shows images by steps. The
    model is returned as it was: mode, gradients, random state. A folder that exists is continued;
    lines of later steps, as after a resume, are replaced; `last_maps` is what a checkpoint has to
    hold for the next correlation.

    `AttentionLogger` of `visattn.training` does this in any Lightning training, and
    `visattn.integrations.transformers.AttentionCallback` in a Trainer of Hugging Face.

    Args:
        images: Images to follow: files, bytes, PIL images or RGB arrays, of any size.
        folder: Folder of the maps.
        method: Method of `visattn.explain`, the same for all images.
        target: Class to explain, or a tensor with the label of each image; None explains the
            predicted class of each step, which may change.
        every_n_steps: Steps between two logs.
        max_cost: Largest share of the run time that maps may take: after a log of 2 seconds and
            with 0.05, the next one is skipped until 40 seconds have passed.
        options: Further arguments of `visattn.explain`: `transform`, `img_size`, `class_names`,
            `layer` and others.

    Raises:
        ImageError: If an image cannot be read.
        ValueError: If there is no image, or a number is out of range.

    Example:
        >>> from visattn.models import AttentionResNet
        >>> model = AttentionResNet(("cat", "dog"), depth=8, stem_width=4)
        >>> photo = np.random.default_rng(0).integers(0, 255, (60, 80, 3), np.uint8)
        >>> history = AttentionHistory(photo, getfixture("tmp_path"), method="input_gradient")
        >>> for step in range(3):
        ...     panels = history.log(model, step)  # after optimizer.step()
        ...     print(step, [panel.shape for panel in panels])
        0 [(60, 80, 3)]
        1 []
        2 []
    """

    def __init__(
        self,
        images: Iterable[ImageLike] | ImageLike,
        folder: str | Path,
        *,
        method: str = "gradcam",
        target: Any = None,
        every_n_steps: int = 500,
        max_cost: float = 0.05,
        **options: Any,
    ) -> None:
        self.images = [read_image(image) for image in list_images(images)]
        check_argument("every_n_steps", every_n_steps, int, (1, sys.maxsize))
        check_argument("max_cost", max_cost, float, (1e-9, 1))
        if is_list(target):
            raise ValueError(
                "target must be one class, as an image has one map in the history, got "
                f"{target!r}; a tensor of labels has one for each image"
            )
        self.folder = Path(folder)
        self.method = method
        self.target = target
        self.every_n_steps = every_n_steps
        self.max_cost = max_cost
        self.options = options
        self.names = _unique_names(self.images)
        self.records = _read_records(self.folder / _TABLE)
        self.seconds = 0.0
        self.last_maps: dict[str, torch.Tensor] = {}
        self._next_time = -float("inf")

    def resume(self, step: int, last_maps: dict[str, torch.Tensor]) -> bool:
        """Continue a history after a step; return whether its last maps are known.

        What a run that was killed has drawn after its last checkpoint is drawn again.

        Args:
            step: Number of optimizer steps.
            last_maps: The last maps by name at that step, with which the next ones are
                compared; none if unknown.
        """
        known = set(last_maps) == set(self.names)
        self.last_maps = dict(last_maps) if known else {}
        # With its maps known, the record of `step` itself stays.
        self.records = [record for record in self.records if record.step < step + known]
        return known

    def is_due(self, step: int) -> bool:
        """Return whether maps are drawn after this step."""
        return step % self.every_n_steps == 0 and time.monotonic() >= self._next_time

    def log(
        self, model: nn.Module, step: int, *, force: bool = False
    ) -> list[UInt8[np.ndarray, "_y _x 3"]]:
        """Draw the maps of all images if they are due, and return one panel per image.

        Args:
            model: The model, in any mode; also under `torch.inference_mode`.
            step: Number of optimizer steps.
            force: Draw them although they are not due.

        Returns:
            RGB panels; none if nothing was due.

        Raises:
            ValueError: If the method does not fit the model.
        """
        if not force and not self.is_due(step):
            return []
        start = time.monotonic()
        maps = self._explain(model)
        panels = [_draw(*pair) for pair in zip(self.images, maps, strict=True)]
        records = [self._record(step, *pair) for pair in zip(self.names, maps, strict=True)]
        self.records = [r for r in self.records if r.step < step] + records
        for name, panel, attention_map in zip(self.names, panels, maps, strict=True):
            _write_jpeg(self._map_file(step, name), panel)
            _write_values(self._map_file(step, name, ".npy"), attention_map)
        atomic_write(self.folder / _TABLE, _table_text(self.records))
        atomic_write(self.folder / _PAGE, self._page(maps))
        took = time.monotonic() - start
        self.seconds += took
        # Counted from the beginning of this log.
        self._next_time = time.monotonic() + took / self.max_cost - took
        return panels

    def check(self, model: nn.Module) -> None:
        """Compute the maps once and write nothing.

        Args:
            model: The model, in any mode.

        Raises:
            ValueError: If the method does not fit the model.
        """
        self._explain(model)

    def _explain(self, model: nn.Module) -> list[AttentionMap]:
        # A trainer may call this under inference_mode; most methods need gradients.
        with torch.inference_mode(mode=False), torch.enable_grad():
            maps = explain(model, self.images, self.method, self.target, **self.options)
        return list(maps)

    def _record(self, step: int, name: str, attention_map: AttentionMap) -> MapRecord:
        values = attention_map.values.detach().float().cpu()
        info = attention_map.info
        before = self.last_maps.get(name)
        empty = info.empty
        self.last_maps[name] = values
        correlation = x = y = float("nan")
        if before is not None and before.shape == values.shape and not empty:
            correlation = float(spearman_correlation(before.reshape(1, -1), values.reshape(1, -1)))
        if values.ndim == 2 and not empty:
            placed = attention_map.resize_to_image().nan_to_num(-float("inf"))
            row, column = divmod(int(placed.argmax()), placed.shape[1])
            x = column + 0.5
            y = row + 0.5
        score = info.score if isinstance(info.score, int | float) else float("nan")
        ends = map_scale([attention_map]).text if values.ndim == 2 and not empty else ""
        return MapRecord(step, name, info.target_name, score, x, y, correlation, empty, ends)

    def _map_file(self, step: int, name: str, ending: str = ".jpg") -> Path:
        return self.folder / f"step-{step:07}" / f"{name}{ending}"

    def _page(self, maps: Sequence[AttentionMap]) -> str:
        steps = sorted({record.step for record in self.records})
        shown = _evenly(steps, _MAX_COLUMNS)
        rows = [
            self._row(*of_image, shown)
            for of_image in zip(self.names, self.images, maps, strict=True)
        ]
        method = METHODS.get(self.method)
        title = self.method if method is None else method.title
        paper = "" if method is None else method.paper
        legend = image_data_url(color_bar(), longest=_LONGEST)[0]
        return history_page(
            rows, shown, num_steps=len(steps), method=title, paper=paper, legend=legend
        )

    def _row(
        self, name: str, image: LoadedImage, last_map: AttentionMap, steps: Sequence[int]
    ) -> HistoryRow:
        by_step = {record.step: record for record in self.records if record.image == name}
        files = [self._map_file(step, name) for step in steps]
        kind = "logit" if self.target is None or isinstance(self.target, int | str) else "score"
        return HistoryRow(
            name,
            image.pixels,
            [jpeg_data_url(path.read_bytes()) if path.is_file() else "" for path in files],
            [_note(by_step.get(step), kind) for step in steps],
            last_map.geometry,
            [_read_values(path.with_suffix(".npy")) for path in files],
            last_map.info.signed,
        )


def _draw(image: LoadedImage, attention_map: AttentionMap) -> UInt8[np.ndarray, "_y _x 3"]:
    """Return an overlay at no more than `_LONGEST` pixels, or a panel of several maps."""
    if attention_map.values.ndim == 2:
        return _shrink(np.array(overlay(image, attention_map)))
    labels = attention_map.labels or tuple(map(str, range(1, len(attention_map) + 1)))
    maps = replace(attention_map, values=attention_map.values.detach().cpu())
    words = Caption(labels, (), (), maps, score=0.0, finished=True)
    return np.asarray(caption_figure(image, words, smooth=True, width=_WORDS_WIDTH).image)


def _shrink(pixels: UInt8[np.ndarray, "y x 3"]) -> UInt8[np.ndarray, "_y _x 3"]:
    share = min(1.0, _LONGEST / max(pixels.shape[:2]))
    height, width = (max(1, round(side * share)) for side in pixels.shape[:2])
    return resize_image(pixels, (height, width))


def _write_jpeg(path: Path, pixels: UInt8[np.ndarray, "y x 3"]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "jpeg", quality=_QUALITY)
    atomic_write(path, buffer.getvalue())


def _write_values(path: Path, attention_map: AttentionMap) -> None:
    """Write the values of a map for the page; several maps or an empty one are only drawn."""
    if attention_map.values.ndim == 2 and not attention_map.info.empty:
        buffer = io.BytesIO()
        np.save(buffer, attention_map.values.detach().float().cpu().numpy())
        atomic_write(path, buffer.getvalue())


def _read_values(path: Path) -> Float[np.ndarray, "gy gx"] | None:
    """Return the values of a map; None if they are not kept, as in folders of earlier versions."""
    return read_array(path) if path.is_file() else None


def _unique_names(images: Sequence[LoadedImage]) -> list[str]:
    """Return names for files: the stem of each image, numbered."""
    stems = [Path(image.name).stem if image.name else "image" for image in images]
    safe = ["".join(c if c.isalnum() or c in "-_" else "-" for c in stem)[:60] for stem in stems]
    return [f"{index}-{stem}" for index, stem in enumerate(safe, 1)]


def _evenly(steps: Sequence[int], count: int) -> list[int]:
    """Return at most `count` of the steps, evenly spaced, the first and the last among them."""
    if len(steps) <= count:
        return list(steps)
    return [steps[round(i * (len(steps) - 1) / (count - 1))] for i in range(count)]


def _note(record: MapRecord | None, kind: str) -> str:
    if record is None:
        return "not logged"
    if record.note:
        return f"no map: {record.note}"
    number = f"{record.score:.3g}".replace("-", "\N{MINUS SIGN}")
    target = f"{record.target}, {kind} {number}" if record.target else ""
    return join_notes(target, f"colors {record.range}" if record.range else "")


def _table_text(records: Sequence[MapRecord]) -> str:
    names = [field.name for field in fields(MapRecord)]
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([getattr(record, name) for name in names] for record in records)
    return buffer.getvalue()


def _read_records(path: Path) -> list[MapRecord]:
    """Return the lines of an earlier run."""
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        try:
            return [
                MapRecord(
                    int(row["step"]), row["image"], row["target"],
                    *(float(row[name]) for name in ("score", "x", "y", "correlation")),
                    note=row["note"],
                    range=row.get("range") or "",
                )
                for row in csv.DictReader(file)
            ]  # fmt: skip
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"{path} must be a table that AttentionHistory wrote, but {error!r}; "
                "choose another folder"
            ) from error
