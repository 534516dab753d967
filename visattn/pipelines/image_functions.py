"""Functions from a batch of columns to a batch of columns, as engines of many machines call them.

Ray Data, `datasets.map`, `mapInPandas` of Spark, Dask and Daft send a function to their workers and
call it with batches of rows. Such a function here is made of plain values, from which each worker
loads the model when it gets its first batch:

    "timm:resnet50", "gradcam" --pickled, 0.3 kB--> worker: load, explain --> a row per photo
"""

import json
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from visattn.images.encoding import encode_overlay
from visattn.images.reader import LoadedImage, read_image
from visattn.images.sources import photo_source
from visattn.io.messages import did_you_mean, format_names
from visattn.models.backbones.pretrained import LoadedModel
from visattn.models.saving.load import load_model
from visattn.pipelines.answering import ask
from visattn.pipelines.captioning import caption
from visattn.pipelines.detection import detect, explain_queries, load_detector
from visattn.pipelines.explained_targets import is_list
from visattn.pipelines.explainer import Explainer
from visattn.pipelines.words.language_model import load_word_model
from visattn.results.attention_map import AttentionMap
from visattn.results.captions import Caption
from visattn.results.rows import arrow_table, empty_cell
from visattn.results.values import Answer, Detections
from visattn.viz.answers import answer_figure
from visattn.viz.captions import caption_figure
from visattn.viz.detections import detection_figure, detection_overlay
from visattn.viz.html.caption_page import caption_html
from visattn.viz.html.question_page import answer_html
from visattn.viz.maps import overlay

_MAP = ("map", "map_shape", "geometry", "seen_share", "record")
_EXPLAINER = ("img_size", "resize_mode", "align")
"""Options of `Explainer`; all others are those of its `explain`."""
_QUESTION = "what color is it ?"  # of the first run, which only has to run


class ImageFunction(ABC):
    """Base class of functions from a batch with a column of photos to a batch of results.

    It is called with a mapping of columns, a data frame of pandas or a table of pyarrow, and
    returns the same. A photo that cannot be read or explained has a row with the reason in `error`
    (else ""), so that it ends no job. It starts no threads and no processes of its own.

    Args:
        model: Name of a model, as `load_model` takes it, or `hf:DIRECTORY`. A model in memory would
            be copied to all workers.
        image: Column of the photos: bytes, paths, URLs, arrays `[y, x, 3]`, PIL images, or cells
            with `bytes` and `path` as `datasets` stores them. Relative paths are those of the
            worker.
        key: Column whose values are copied to the rows of the result.
        device: Where the model runs: `cpu`, `cuda`, `cuda:1`, `mps`.
        save: Drawings of each row as bytes.
        load_args: Arguments of `load_model`, such as `{"pretrained": True}`.
        options: Of the function that computes the results.

    Raises:
        TypeError: If an argument is no plain value.
        ValueError: If a drawing is unknown.
    """

    cells: tuple[str, ...] = _MAP
    """Columns of the result."""
    drawings: tuple[str, ...] = ()
    """Columns that `save` may add."""

    def __init__(
        self,
        model: str,
        *,
        image: str = "image",
        key: str | None = None,
        device: str = "cpu",
        save: Sequence[str] = (),
        load_args: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.model = os.fspath(model) if isinstance(model, os.PathLike) else model
        self.image = image
        self.key = key
        self.device = device
        self.save = (save,) if isinstance(save, str) else tuple(save)
        self.load_args = dict(load_args or {})
        self.options = options
        self._run: Callable[[list[LoadedImage], list[Any]], list[list[Any]]] | None = None
        self.check_plain(model=self.model, load_args=self.load_args, **options)
        if not isinstance(self.model, str):
            raise TypeError(f"model must be the name of a model, got {type(model).__name__}")
        if unknown := [name for name in self.save if name not in self.drawings]:
            names = format_names(self.drawings)
            raise ValueError(f"save may hold {names}, got {unknown[0]!r}")

    def check_plain(self, **values: Any) -> None:
        """Refuse arguments that would copy a model or an open file to all workers.

        Raises:
            TypeError: With the name of the argument.
        """
        for name, value in values.items():
            try:
                json.dumps(value)
            except (TypeError, ValueError):
                raise TypeError(
                    f"{name} must be made of texts and numbers, from which each worker builds what "
                    f"it needs, got {type(value).__name__}"
                ) from None

    def __getstate__(self) -> dict[str, Any]:
        """Return the arguments; the model stays in its process."""
        return {**vars(self), "_run": None}

    def __repr__(self) -> str:
        """Return class and model in one line."""
        return f"{type(self).__name__}({self.model!r})"

    @abstractmethod
    def build(self) -> Callable[[list[LoadedImage], list[Any]], list[list[Any]]]:
        """Load the model; return what computes the results of photos, one for each of their rows.

        It takes the photos and, for each, what `labels` has of it.
        """

    def labels(self, columns: Mapping[str, Sequence[Any]], number: int) -> list[dict[str, Any]]:
        """Return what is known of the rows of a photo before it is read.

        Args:
            columns: The batch.
            number: Index of the photo.
        """
        del columns, number
        return [{}]

    def load(self) -> "ImageFunction":
        """Load the model and run it once, so that the first batch need not wait; return itself.

        A model or an option that cannot be used is an error here; later, errors are those of rows.

        Raises:
            FileNotFoundError: If the model does not exist.
            ValueError: If an option does not fit the model.
        """
        if self._run is None:
            run = self.build()
            noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
            columns = self.example()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the map of noise may be empty
                run([LoadedImage(noise)], [self.labels(columns, 0)])
            self._run = run
        return self

    @abstractmethod
    def draw(self, kind: str, image: LoadedImage, result: Any) -> bytes:
        """Return a drawing of a result, one of `drawings`.

        Raises:
            ValueError: If it cannot be drawn.
        """

    def example(self) -> dict[str, Sequence[Any]]:
        """Return the columns of the first run, besides the photo."""
        return {}

    def __call__(self, batch: Any) -> Any:
        """Return the rows of a batch: a row per photo, and per method or question if several.

        Raises:
            FileNotFoundError: If the model does not exist.
            ValueError: If a column is missing, or an option does not fit the model.
        """
        columns, build = _columns(batch)
        for name in filter(None, (self.image, self.key)):
            if name not in columns:
                known = [*map(str, columns)]
                raise ValueError(f"there is no column {name!r}; {did_you_mean(name, known)}")
        self.load()
        rows = self._rows(columns)
        own = ("path", *self.cells, *self.save, "error")
        names = ((self.key,) if self.key and self.key not in own else ()) + own
        return build({name: [row[name] for row in rows] for name in names})

    def _rows(self, columns: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
        """Return all rows of a batch."""
        images: dict[int, LoadedImage] = {}
        errors: dict[int, str] = {}
        cells = columns[self.image]
        labels = [self.labels(columns, number) for number in range(len(cells))]
        for number, cell in enumerate(cells):
            try:
                images[number] = _read(cell, "" if self.key is None else columns[self.key][number])
            except (OSError, TypeError, ValueError) as error:
                errors[number] = str(error)
        results = self._results([*images.values()], [labels[number] for number in images])
        of_image = dict(zip(images, results, strict=True))
        rows: list[dict[str, Any]] = []
        for number, cell in enumerate(cells):
            result = of_image.get(number, ValueError(errors.get(number, "")))
            image = images.get(number)
            for place, label in enumerate(labels[number]):
                row = {name: empty_cell(name) for name in (*self.cells, *self.save)}
                row |= {"path": _path(cell), "error": ""}
                if self.key is not None:
                    row[self.key] = columns[self.key][number]
                if isinstance(result, Exception) or image is None:
                    row |= {**label, "error": str(result)}
                else:
                    row |= self._cells(image, result[place])
                rows.append(row)
        return rows

    def _results(
        self, images: list[LoadedImage], labels: list[Any]
    ) -> "list[list[Any] | Exception]":
        """Return the results of photos, or why there are none: computed alone if that is needed."""
        if not images or self._run is None:
            return []
        try:
            return [*self._run(images, labels)]
        except ValueError as error:
            if len(images) == 1:
                return [error]
            pairs = zip(images, labels, strict=True)
            return [each for image, label in pairs for each in self._results([image], [label])]

    def _cells(self, image: LoadedImage, result: Any) -> dict[str, Any]:
        """Return the cells of a result with its drawings."""
        made = result.to_row()
        cells = {name: made[name] for name in self.cells if name in made}
        if isinstance(result, AttentionMap) and result.info.empty:
            return {**cells, "error": result.info.empty}
        try:
            return cells | {name: self.draw(name, image, result) for name in self.save}
        except ValueError as error:
            return {**cells, "error": str(error)}

    def load_visattn(self) -> LoadedModel:
        """Return the model with its preprocessing, on its device."""
        loaded = load_model(self.model, **self.load_args)
        if loaded.weights == "random":
            warnings.warn(
                f"the weights of {self.model} are random: its results have no meaning; "
                "load_args={'pretrained': True} or {'weights': FILE} loads trained ones",
                stacklevel=2,
            )
        _move(loaded.model, self.device)
        return loaded

    def load_transformers(
        self, load: Callable[..., Any], **loading: Any
    ) -> "tuple[nn.Module, Any] | None":
        """Return a model of transformers and its processor; None if the model is another one."""
        directory = self.model.removeprefix("hf:")
        if directory == self.model or directory.startswith("//"):
            return None
        model, processor, *_ = load(Path(directory).expanduser(), **loading, **self.load_args)
        _move(model, self.device)
        return model, processor


class MapImages(ImageFunction):
    """Attribution or attention maps of photos, as a function of a batch of columns.

    The maps are those of `visattn.explain` for the photos of a batch. A row has `map` (flat) and
    `map_shape`, `class`, `score`, `geometry` and `record`, from which `AttentionMap.from_row`
    restores the map; the share of the photo that the network saw; and `error`. With several
    methods or targets a photo has a row for each.

    Args:
        model: As for `ImageFunction`.
        method: Name of a method, or several.
        target: Class index or name, or several; None for the predicted class.
        options: Those of `ImageFunction`: `image`, `key`, `device`, `load_args` and `save`, of
            which `overlay` is a PNG file; of `visattn.explain`: `img_size`, `resize_mode`, `align`,
            `batch_size`; and arguments of the method.

    Raises:
        TypeError: If an argument is no plain value.

    Example:
        >>> import pickle
        >>> from visattn import AttentionMap, save
        >>> from visattn.models import AttentionResNet
        >>> file = getfixture("tmp_path") / "cnn.safetensors"
        >>> save(AttentionResNet(("cat", "dog"), depth=8, stem_width=4), file)
        >>> maps = MapImages(str(file), "gradcam", "dog", key="id", save=["overlay"])
        >>> len(pickle.dumps(maps)) < 1000
        True
        >>> photo = np.random.default_rng(0).integers(0, 256, (60, 80, 3), dtype=np.uint8)
        >>> batch = maps({"id": [7, 8], "image": [photo, b"no image"]})
        >>> batch["id"], batch["class"], batch["map_shape"], batch["error"][1][:19]
        ([7, 8], ['dog', ''], [[8, 8], array([], dtype=int64)], 'image: not an image')
        >>> AttentionMap.from_row({name: cells[0] for name, cells in batch.items()}).info.method
        'gradcam'
    """

    cells = ("method", "class", "score", *_MAP)
    drawings = ("overlay",)

    def __init__(
        self,
        model: str,
        method: str | Sequence[str] = "rollout",
        target: int | str | Sequence[int | str] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(model, **options)
        self.methods = [method] if isinstance(method, str) else list(method)
        self.targets = list(target) if is_list(target) else [target]
        self.check_plain(method=self.methods, target=self.targets)

    def labels(self, columns: Mapping[str, Sequence[Any]], number: int) -> list[dict[str, Any]]:
        """Return the methods of the rows of a photo, once for each target."""
        del columns, number
        return [{"method": method} for method in self.methods for _ in self.targets]

    def draw(self, kind: str, image: LoadedImage, result: AttentionMap) -> bytes:
        """Return the photo with the map."""
        del kind
        return encode_overlay(np.array(overlay(image, result)))

    def build(self) -> Callable[[list[LoadedImage], list[Any]], list[list[Any]]]:
        """Load the model; return what computes the maps of photos."""
        own = {name: self.options[name] for name in _EXPLAINER if name in self.options}
        more = {name: value for name, value in self.options.items() if name not in own}
        explainer = Explainer(self.load_visattn(), **own)

        def run(images: list[LoadedImage], _labels: list[Any]) -> list[list[AttentionMap]]:
            target = self.targets if len(self.targets) > 1 else self.targets[0]
            maps = explainer.explain(images, self.methods, target, **more)
            if len(self.targets) == 1:
                return maps
            return [[each for of_method in of_image for each in of_method] for of_image in maps]

        return run


class CaptionImages(ImageFunction):
    """Captions of photos with the map of each word, as a function of a batch of columns.

    A row has `caption`, `score`, `words`, `log_probs`, `gates` and `finished`; the maps of the
    words, `map` with the `map_shape` [t, y, x], and their `geometry`; and `error`.

    Args:
        model: As for `ImageFunction`; a captioner.
        options: Those of `ImageFunction`: `image`, `key`, `device`, `load_args` and `save`, of
            which `page` is an HTML page and `figure` a PNG file; and of `visattn.caption`.

    Raises:
        TypeError: If an argument is no plain value.

    Example:
        >>> captions = CaptionImages("scenes-captioner", max_length=3)
        >>> batch = captions({"image": [np.zeros((60, 80, 3), np.uint8)]})
        >>> len(batch["words"][0]), batch["map_shape"][0][0], batch["error"]
        (3, 3, [''])
    """

    cells = (
        "caption", "score", "words", "log_probs", "gates", "finished", *_MAP,
    )  # fmt: skip
    drawings = ("page", "figure")

    def build(self) -> Callable[[list[LoadedImage], list[Any]], list[list[Any]]]:
        """Load the captioner; return what captions photos."""
        options: dict[str, Any] = dict(self.options)
        loaded = self.load_transformers(load_word_model)
        if loaded is None:
            model = self.load_visattn().model
        else:
            model, options["processor"] = loaded
        return lambda images, _: [[each] for each in caption(model, images, **options)]

    def draw(self, kind: str, image: LoadedImage, result: Caption) -> bytes:
        """Return the page or the figure of a caption."""
        if kind == "page":
            return caption_html(image, result).encode()
        return caption_figure(image, result).to_bytes("png")


class DetectImages(ImageFunction):
    """Objects in photos with the map of each query, as a function of a batch of columns.

    A row has `classes`, `scores`, `boxes` (left, top, right, bottom of all objects, one after the
    other) and `queries`; the maps of the queries, `map` with the `map_shape` [n, y, x], and their
    `geometry`; and `error`.

    Args:
        model: As for `ImageFunction`; a detector.
        options: Those of `ImageFunction`: `image`, `key`, `device`, `load_args` and `save`, of
            which `overlay` has the boxes and `figure` the maps, both PNG files; of
            `visattn.detect`, or of `explain_queries` for models of transformers.

    Raises:
        TypeError: If an argument is no plain value.

    Example:
        >>> from visattn import save
        >>> from visattn.models import DETR, SmallEncoder
        >>> file = getfixture("tmp_path") / "detr.safetensors"
        >>> save(DETR(("cat",), SmallEncoder((16, 24), channels=8), dim=8, num_queries=3), file)
        >>> objects = DetectImages(str(file), threshold=0.0)
        >>> batch = objects({"image": [np.zeros((60, 80, 3), np.uint8)]})
        >>> batch["classes"][0], len(batch["boxes"][0]), batch["map_shape"]
        (['cat', 'cat', 'cat'], 12, [[3, 2, 3]])
    """

    cells = ("classes", "scores", "boxes", "queries", *_MAP)
    drawings = ("overlay", "figure")

    def build(self) -> Callable[[list[LoadedImage], list[Any]], list[list[Any]]]:
        """Load the detector; return what detects objects in photos."""
        options: dict[str, Any] = dict(self.options)
        loaded = self.load_transformers(load_detector)
        if loaded is None:
            model, run = self.load_visattn().model, detect
        else:
            (model, options["processor"]), run = loaded, explain_queries
        return lambda images, _: [[each] for each in run(model, images, **options)]  # pyright: ignore[reportArgumentType]

    def draw(self, kind: str, image: LoadedImage, result: Detections) -> bytes:
        """Return the photo with boxes, or the figure of the queries."""
        if kind == "overlay":
            return encode_overlay(detection_overlay(image, result))
        return detection_figure(image, result).to_bytes("png")


class AskImages(ImageFunction):
    """Answers to questions about photos with the map of each hop, as a function of a batch.

    A row has `question`, `answer`, its probability as `score`, further `answers` with
    `probabilities`; the maps of the hops, `map` with the `map_shape` [hops, y, x], and their
    `geometry`; and `error`. A photo has a row for each question.

    Args:
        model: As for `ImageFunction`; a model that answers questions.
        questions: A question for all photos, or several; None for those in the column `question`,
            a text or a list in each row.
        options: Those of `ImageFunction`: `image`, `key`, `device`, `load_args` and `save`, of
            which `page` is an HTML page and `figure` a PNG file; and of `visattn.ask`.

    Raises:
        TypeError: If an argument is no plain value.

    Example:
        >>> from visattn import save
        >>> from visattn.models import SPECIAL_TOKENS, SmallEncoder, StackedAttentionNetwork
        >>> words, encoder = (*SPECIAL_TOKENS, "what", "color"), SmallEncoder((16, 24), channels=8)
        >>> file = getfixture("tmp_path") / "vqa.safetensors"
        >>> save(StackedAttentionNetwork(words, ("red", "blue"), encoder, dim=8), file)
        >>> answers = AskImages(str(file), "What color?")
        >>> batch = answers({"image": [np.zeros((60, 80, 3), np.uint8)]})
        >>> batch["question"], len(batch["answers"][0]), batch["map_shape"]
        (['What color?'], 2, [[2, 2, 3]])
    """

    cells = ("question", "answer", "score", "answers", "probabilities", *_MAP)
    drawings = ("page", "figure")

    def __init__(
        self, model: str, questions: str | Sequence[str] | None = None, **options: Any
    ) -> None:
        super().__init__(model, **options)
        self.questions = [questions] if isinstance(questions, str) else questions
        self.check_plain(questions=self.questions)

    def labels(self, columns: Mapping[str, Sequence[Any]], number: int) -> list[dict[str, Any]]:
        """Return the questions about a photo.

        Raises:
            ValueError: If there is no column of questions.
        """
        questions: Iterable[str] | None = self.questions
        if questions is None:
            if "question" not in columns:
                raise ValueError("there is no column 'question'; or pass questions= for all photos")
            cell = columns["question"][number]
            questions = [cell] if isinstance(cell, str) else cell
        return [{"question": str(text)} for text in questions or ()]

    def example(self) -> dict[str, Sequence[Any]]:
        """Return the column of questions of the first run."""
        return {"question": [()]}

    def build(self) -> Callable[[list[LoadedImage], list[Any]], list[list[Any]]]:
        """Load the model; return what answers questions about photos."""
        options: dict[str, Any] = dict(self.options)
        loaded = self.load_transformers(load_word_model, answers=True)
        if loaded is None:
            model = self.load_visattn().model
        else:
            model, options["processor"] = loaded

        def run(images: list[LoadedImage], labels: list[Any]) -> list[list[Answer]]:
            texts = [[label["question"] for label in of_image] for of_image in labels]
            pairs = zip(images, texts, strict=True)
            return [ask(model, image, text, **options) if text else [] for image, text in pairs]

        return run

    def draw(self, kind: str, image: LoadedImage, result: Answer) -> bytes:
        """Return the page or the figure of an answer."""
        if kind == "page":
            return answer_html(image, [result]).encode()
        return answer_figure(image, [result]).to_bytes("png")


def _move(model: nn.Module, device: str) -> None:
    try:
        model.eval().to(torch.device(device))
    except (RuntimeError, AssertionError) as error:  # torch asserts CUDA support
        reason = str(error).splitlines()[0]
        raise ValueError(f"the device {device!r} is not available: {reason:.200}") from error


def _columns(batch: Any) -> tuple[Mapping[str, Sequence[Any]], Callable[[dict[str, Any]], Any]]:
    """Return the columns of a batch, and what makes columns a batch of the same kind.

    Neither pandas nor pyarrow is imported: who passes their batches has done so.
    """
    if isinstance(batch, Mapping):
        return batch, lambda columns: columns
    if hasattr(batch, "to_pydict"):  # a table or record batch of pyarrow
        return batch.to_pydict(), arrow_table
    if hasattr(batch, "to_dict"):  # a data frame of pandas
        return batch.to_dict("list"), type(batch)
    raise TypeError(
        "a batch must be a mapping of columns, a data frame of pandas or a table of pyarrow, got "
        f"{type(batch).__name__}"
    )


def _read(cell: Any, name: object) -> LoadedImage:
    """Return the photo of a cell, which has this name if it has no path.

    Raises:
        OSError: If it cannot be reached.
        TypeError: If it is of another type.
        ValueError: If it cannot be read.
    """
    source = cell
    if isinstance(cell, Mapping):
        # A path that is stored in a table is not opened: whoever wrote the table chose it.
        source = cell.get("bytes")
        if source is None:
            raise ValueError("the cell has no bytes: pass a column of paths")
    image = read_image(photo_source(source) if isinstance(source, str) else source)
    known = _path(cell) or str(name)
    return replace(image, name=known) if image.name == "image" and known else image


def _path(cell: Any) -> str:
    """Return the path of a photo; "" if it has none."""
    path = cell.get("path") if isinstance(cell, Mapping) else cell
    return os.fspath(path) if isinstance(path, (str, os.PathLike)) else ""
