"""Functions on batches of columns for Ray Data, `datasets.map` and Spark.

A function consists of plain values and pickles to under 1 kB; each worker loads the model for its
first batch:

    "timm:resnet50", "gradcam" --pickled--> worker: load, explain --> a row per photo
"""

import json
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from visattn.images.reader import LoadedImage, read_image
from visattn.images.sources import photo_source  # noqa: TID251
from visattn.models.loaded import loaded_with
from visattn.models.saving import load
from visattn.pipelines.captioning import caption
from visattn.pipelines.explainer import explain
from visattn.results.attention_map import AttentionMap
from visattn.results.captions import Caption


class ImageFunction(ABC):
    """Base class of functions from a batch with a column of photos to a batch of results.

    A batch maps names of columns to lists or arrays. The output has the other columns of the batch
    and the result columns, which are texts and numbers. A photo that cannot be read or explained
    gets the reason in `error` (else ""), so that it does not end a job; an invalid model or option
    raises an error on the first batch.

    Args:
        model: Name of a model for `load`. A model in memory would be copied to all workers.
        image: Column of the photos: bytes, paths, URLs, arrays `[y, x, 3]`, PIL images, or cells
            with `bytes` as `datasets` stores them. Paths are those of the worker.
        device: Where the model runs, such as `cuda`.
        pretrained: Whether the pretrained weights of timm or torchvision are loaded.
        options: Options of the function that computes the results.

    Raises:
        TypeError: If the model or options are not texts and numbers.
    """

    function: ClassVar[Callable[..., Sequence[Any]]]
    """Computes results from the model, photos and options."""
    empty: ClassVar[Mapping[str, Any]]
    """Cells of a photo without a result."""

    def __init__(
        self,
        model: str,
        *,
        image: str = "image",
        device: str = "cpu",
        pretrained: bool = False,
        **options: Any,
    ) -> None:
        json.dumps([model, options])  # raises for objects, which would be copied to all workers
        self.model = model
        self.image = image
        self.device = device
        self.pretrained = pretrained
        self.options = options
        self._model: Any = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the arguments without the model, which is not pickled."""
        return {**vars(self), "_model": None}

    @abstractmethod
    def cells(self, result: Any) -> dict[str, Any]:
        """Return the cells of a result."""

    def __call__(self, batch: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
        """Return the batch with the results in place of the photos."""
        if self._model is None:
            model = load(self.model, pretrained=self.pretrained).to(self.device)
            if loaded_with(model).weights == "random":
                text = f"the weights of {self.model} are random: pretrained=True loads trained ones"
                warnings.warn(text, stacklevel=2)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about the empty map of a black photo
                black = LoadedImage(np.zeros((64, 64, 3), np.uint8))
                self.function(model, [black], **self.options)  # raises errors of model or options
            self._model = model
        photos = [_read(cell) for cell in batch[self.image]]
        made = iter(self._made([each for each in photos if isinstance(each, LoadedImage)]))
        rows = [
            next(made) if isinstance(each, LoadedImage) else {**self.empty, "error": str(each)}
            for each in photos
        ]
        others = {name: [*cells] for name, cells in batch.items() if name != self.image}
        return others | {name: [row[name] for row in rows] for name in (*self.empty, "error")}

    def _made(self, images: list[LoadedImage]) -> list[dict[str, Any]]:
        """Return the rows of photos; if a batch fails, photos are computed one by one."""
        try:
            results = self.function(self._model, images, **self.options) if images else ()
            return [{"error": "", **self.cells(each)} for each in results]
        except ValueError as error:
            if len(images) == 1:
                return [{**self.empty, "error": str(error)}]
            return [row for image in images for row in self._made([image])]


class MapImages(ImageFunction):
    """Function from a batch of columns to attribution or attention maps of photos.

    The maps are those of `visattn.explain` for the photos of a batch. A row has `class`, `score`
    (output of the model) and `probability` of the class, `map`, from which
    `AttentionMap.from_dict(json.loads(cell))` restores the map, and `error`.

    Args:
        model: Name of a model, as `load` takes it.
        method: Name of a method.
        target: Class index or name; None for the predicted class.
        options: `image`, `device` and `pretrained`; `input_size`, `resize_mode` and `batch_size` of
            `visattn.explain`, and arguments of the method.

    Raises:
        TypeError: If an argument is no plain value.

    Example:
        >>> import pickle
        >>> from visattn import AttentionMap, save
        >>> from visattn.models import AttentionResNet
        >>> file = str(getfixture("tmp_path") / "cnn.safetensors")
        >>> save(AttentionResNet(("cat", "dog"), depth=8, stem_width=4), file)
        >>> maps = MapImages(file, "gradcam", "dog")
        >>> photo = np.random.default_rng(0).integers(0, 256, (60, 80, 3), dtype=np.uint8)
        >>> batch = maps({"id": [7, 8], "image": [photo, b"no image"]})
        >>> batch["id"], batch["class"], batch["error"][1][:19]
        ([7, 8], ['dog', ''], 'image: not an image')
        >>> AttentionMap.from_dict(json.loads(batch["map"][0])).info.method
        'gradcam'
    """

    function = staticmethod(explain)
    empty: ClassVar = {"class": "", "score": math.nan, "probability": math.nan, "map": ""}

    def __init__(
        self,
        model: str,
        method: str,
        target: int | str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(model, method=method, target=target, **options)

    def cells(self, result: AttentionMap) -> dict[str, Any]:
        """Return class, score and map; for an empty map the reason."""
        info = result.info
        score = info.score if isinstance(info.score, float) else math.nan
        return {
            "class": info.class_name or ("" if info.target is None else str(info.target)),
            "score": score,
            "probability": math.nan if info.probability is None else info.probability,
            "map": json.dumps(result.to_dict(), default=str),
            "error": info.empty,
        }


class CaptionImages(ImageFunction):
    """Function from a batch of columns to captions of photos, with the map of each word.

    A row has `caption`, `score` (its log-probability), `result`, from which
    `Caption.from_dict(json.loads(cell))` restores words and maps, and `error`.

    Args:
        model: Name of a captioner, as `load` takes it.
        options: `image` and `device`; and those of `visattn.caption`.

    Raises:
        TypeError: If an argument is no plain value.

    Example:
        >>> captions = CaptionImages("scenes-captioner", max_length=3)
        >>> batch = captions({"image": [np.zeros((60, 80, 3), np.uint8)]})
        >>> len(batch["caption"][0].split()), batch["error"]
        (3, [''])
    """

    function = staticmethod(caption)
    empty: ClassVar = {"caption": "", "score": math.nan, "result": ""}

    def cells(self, result: Caption) -> dict[str, Any]:
        """Return text, score and the complete result."""
        return {
            "caption": result.text,
            "score": float(result.score),
            "result": json.dumps(result.to_dict(), default=str),
        }


def _read(cell: Any) -> LoadedImage | Exception:
    """Return the photo of a cell, or why it cannot be read."""
    try:
        # A path beside missing bytes is not opened: `datasets` keeps that of the table's author.
        source = cell["bytes"] if isinstance(cell, Mapping) else cell
        return read_image(photo_source(source) if isinstance(source, str) else source)
    except (OSError, TypeError, ValueError) as error:
        return error
