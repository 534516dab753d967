"""Hugging Face datasets as training data: photos and annotations, read by index.

Rows come from a memory-mapped Arrow file, so any order and any number of worker processes work as
with image files, and a run resumes mid-epoch at the exact sample.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, Literal

import torch

from visattn.data.captions.batch import CaptionSample
from visattn.data.classification.datasets import Labeled
from visattn.data.questions.batch import Question, QuestionSample
from visattn.data.questions.vqa_files import answered_question
from visattn.data.regions.annotations import AnnotatedImage, AnnotatedObject
from visattn.data.regions.coco_instances import check_boxes, clip_box
from visattn.data.source import Source
from visattn.geometry.affine import Box
from visattn.images.reader import read_size
from visattn.io.safe_text import reading
from visattn.io.sources import Location
from visattn.results.kinds import Split

COLUMNS = {
    "image": "image", "captions": "captions", "label": "label", "question": "question",
    "answers": "answers", "type": "answer_type", "boxes": "objects.bbox",
    "categories": "objects.category", "crowds": "objects.iscrowd", "areas": "objects.area",
    "id": "id",
}  # fmt: skip
"""Default column of each role; `a.b` is field `b` of the struct, or list of structs, in `a`."""
_OPTIONAL = ("type", "crowds", "areas", "id")


@dataclass
class HubTable(Source):
    """Base class of Hugging Face datasets, whose splits and columns may have any name.

    Args:
        data: A folder of parquet files or from `save_to_disk`; a dataset on the Hub, OWNER/NAME; or
            a `DatasetDict` in memory. A streaming dataset is written to the cache of `datasets`
            once, since random order needs rows by index.
        train: Name of the training split.
        val: Name of the validation split; null for none.
        test: Name of the test split; null for the validation split.
        columns: Column names by role, where they differ from `COLUMNS`.
        revision: Commit or tag on the Hub; without it, the data may change.
        subset: Subset (configuration) of a dataset on the Hub.

    Raises:
        ImportError: If `datasets` is not installed.
        ValueError: If a split or column does not exist, or a row has no photo.
    """

    data: Any
    train: str = "train"
    val: str | None = "validation"
    test: str | None = None
    columns: dict[str, str] | None = None
    revision: str | None = None
    subset: str | None = None
    roles: ClassVar[tuple[str, ...]] = ()
    """Roles of the columns read in addition to the photos."""

    def __post_init__(self) -> None:
        import datasets  # pyright: ignore[reportMissingImports]

        if unknown := [role for role in self.columns or () if role not in COLUMNS]:
            raise ValueError(f"columns must be of {', '.join(COLUMNS)}; got {', '.join(unknown)}")
        data: Any = self.data
        if isinstance(data, (str, Path)):
            data = (
                datasets.load_from_disk(str(data))
                if Path(data, "dataset_dict.json").is_file()
                else datasets.load_dataset(str(data), self.subset, revision=self.revision)
            )
        names = {"train": self.train, "validation": self.val, "test": self.test or self.val}
        used = [name for name in dict.fromkeys(names.values()) if name]
        if unknown := [name for name in used if name not in data]:
            raise ValueError(f"no split {unknown[0]!r}; choose from {', '.join(data)}")
        chosen = COLUMNS | (self.columns or {})
        columns = {role: chosen[role] for role in (*self.roles, "image")}
        tables = {name: PhotoTable(data[name], columns, name) for name in used}
        self.tables: dict[str, Any] = {split: tables[name] for split, name in names.items() if name}


@dataclass
class HubClasses(HubTable):
    """Photos with their class in a column `label`; options as in `HubTable`."""

    roles = ("label",)

    def __post_init__(self) -> None:
        super().__post_init__()
        train = self.tables["train"]
        names = train.class_names("label") or sorted(set(map(str, train.values("label"))))
        self.class_names = tuple(names)

    def __call__(self, split: Split) -> Sequence[Any]:
        """Return the photos of a split with their classes."""
        if split not in self.tables:
            return []
        numbers = {name: number for number, name in enumerate(self.class_names)}
        labels = [numbers[str(name)] for name in self.tables[split].values("label")]
        return Labeled(self.tables[split], torch.tensor(labels))


@dataclass
class HubCaptions(HubTable):
    """Photos with a list of captions in a column `captions`; options as in `HubTable`."""

    roles = ("captions", "id")

    def __call__(self, split: Split) -> list[CaptionSample]:
        """Return the photos of a split with their captions."""
        table = self.tables.get(split, ())
        texts = table.values("captions") if table else ()
        return [
            CaptionSample.of((photo, cell))._replace(id=name)
            for photo, name, cell in zip(table, table.ids() if table else (), texts, strict=True)
        ]


@dataclass
class HubQuestions(HubTable):
    """Photos with a question and its answers, or lists of both; options as in `HubTable`.

    The columns are `question`, `answers` and optionally `answer_type`.
    """

    roles = ("question", "answers", "type", "id")

    def __call__(self, split: Split) -> list[QuestionSample]:
        """Return the photos of a split with their questions."""
        table = self.tables[split]
        rows = zip(*map(table.values, ("question", "answers", "type")), strict=True)
        return [
            QuestionSample(name, photo, _questions(*row))
            for photo, name, row in zip(table, table.ids(), rows, strict=True)
        ]


def _questions(texts: Any, answers: Any, types: Any) -> tuple[Question, ...]:
    single = isinstance(texts, str)
    texts, answers = ([texts], [answers]) if single else (texts, answers)
    types = [types or "other"] * len(texts) if single or types is None else types
    return tuple(
        answered_question(text, [answer], kind)._replace(answers=())
        if isinstance(answer, str)
        else answered_question(text, answer, kind)
        for text, answer, kind in zip(texts, answers, types, strict=True)
    )


@dataclass
class HubBoxes(HubTable):
    """Photos with boxes: the fields `bbox` and `category` of a column `objects`.

    Args:
        box_format: Boxes in pixels: left, top, width, height (`xywh`), as in COCO, or left, top,
            right, bottom (`xyxy`).
    """

    box_format: Literal["xywh", "xyxy"] = "xywh"
    roles = ("boxes", "categories", "crowds", "areas", "id")

    def __call__(self, split: Split) -> list[AnnotatedImage]:
        """Return the photos of a split with their objects."""
        table = self.tables[split]
        rows = zip(*map(table.values, self.roles[:-1]), strict=True)
        checked: list[tuple[Box, tuple[int, int]]] = []
        images: list[AnnotatedImage] = []
        for photo, name, (boxes, kinds, crowds, areas) in zip(
            table, table.ids(), rows, strict=True
        ):
            size = read_size(photo)
            objects: list[AnnotatedObject] = []
            for index, ((x, y, *rest), kind) in enumerate(zip(boxes, kinds, strict=True)):
                with reading(photo.address, f"box {index}"):
                    right, bottom = (
                        rest if self.box_format == "xyxy" else (x + rest[0], y + rest[1])
                    )
                    checked.append(((x, y, right, bottom), size))
                    box = clip_box((x, y, right, bottom), size)
                crowd = bool(crowds and crowds[index])
                area = None if areas is None else float(areas[index])
                objects.append(AnnotatedObject(str(kind), None, box, crowd, area))
            images.append(AnnotatedImage(name, photo, size, tuple(objects)))
        with reading(table.name):
            check_boxes(checked)
        return images


class PhotoTable(Sequence[Any]):
    """The photos of a split and their annotations; photos are read lazily.

    Args:
        rows: A `Dataset` or an `IterableDataset`.
        columns: Column of each role.
        name: Name of the split, for messages.

    Raises:
        ValueError: If a column is missing, or a row has no photo.
    """

    def __init__(self, rows: Any, columns: Mapping[str, str], name: str) -> None:
        import datasets  # pyright: ignore[reportMissingImports]

        self.name = name
        self.columns = {
            role: column
            for role, column in columns.items()
            if _kind(rows.features, column) is not None or role not in _OPTIONAL
        }
        if missing := [c for c in self.columns.values() if _kind(rows.features, c) is None]:
            raise ValueError(
                f"{name} has no column {missing[0]}; set the option columns; choose from "
                f"{', '.join(rows.features)}"
            )
        image = columns["image"]
        if isinstance(rows.features[image], datasets.Image):
            rows = rows.cast_column(image, datasets.Image(decode=False))
        if not hasattr(rows, "__len__"):
            rows = datasets.Dataset.from_generator(partial(_rows, rows), features=rows.features)
        self.rows = rows.with_format(None)
        self._images = self.rows.select_columns([image])
        # A row may hold a path instead of a photo; paths from untrusted data are not opened.
        for batch in self._images.with_format("arrow").iter(1000):
            cells = batch.column(0).combine_chunks()
            if cells.null_count or (hasattr(cells, "field") and cells.field("bytes").null_count):
                raise ValueError(
                    f"{name}: every row must hold a photo in {image}; remove rows without one, "
                    "or save the photos with the table"
                )

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: Any) -> Any:
        return _TablePhoto(self, range(len(self))[index])

    def content(self, number: int) -> bytes:
        """Return the bytes of a photo."""
        cell = self._images[number][self.columns["image"]]
        return cell["bytes"] if isinstance(cell, dict) else cell

    def values(self, role: str) -> list[Any]:
        """Return the values of a column, with class indices replaced by names.

        Args:
            role: Role of the column; if it does not exist, the values are None.
        """
        if role not in self.columns:
            return [None] * len(self)
        column, _, field = self.columns[role].partition(".")
        cells = self.rows.select_columns([column])[:][column]
        names = self.class_names(role)
        return [_named(_field(cell, field) if field else cell, names) for cell in cells]

    def class_names(self, role: str) -> list[str] | None:
        """Return the class names of a column; None for text or plain numbers.

        Args:
            role: Role of the column.
        """
        return getattr(_kind(self.rows.features, self.columns[role]), "names", None)

    def ids(self) -> list[str]:
        """Return the name of each row: its value in the column `id`, or its number.

        Raises:
            ValueError: If two rows have the same id.
        """
        rows = [f"{self.name}, row {number}" for number in range(len(self))]
        names = [*map(str, self.values("id"))] if "id" in self.columns else rows
        if len(set(names)) < len(names):
            raise ValueError(
                f"{self.name}: {self.columns['id']} must differ in all rows; put all annotations "
                "of a photo into one row, or choose another id column"
            )
        return names


def _rows(stream: Any) -> Iterator[dict[str, Any]]:
    yield from stream


def _kind(features: Any, column: str) -> Any:
    """Return the type of a column, or of its list entries; None if it does not exist."""
    kind: Any = features
    for name in [column] if column in features else column.split("."):
        kind = kind.get(name) if isinstance(kind, Mapping) else None
        while hasattr(kind, "feature") or isinstance(kind, list):
            kind = kind[0] if isinstance(kind, list) else kind.feature
    return kind


def _field(cell: Any, name: str) -> Any:
    """Return a field of a struct, or of each entry of lists of them."""
    return [_field(each, name) for each in cell] if isinstance(cell, list) else cell[name]


def _named(value: Any, names: Sequence[str] | None) -> Any:
    """Return the name of a class, or the names of a list of classes.

    Raises:
        ValueError: If it is not a class, such as the -1 of unlabeled rows.
    """
    if names is None:
        return value
    if isinstance(value, list):
        return [_named(each, names) for each in value]
    if value not in range(len(names)):
        raise ValueError(f"a class must be between 0 and {len(names) - 1}, got {value}")
    return names[value]


class _TablePhoto(Location):
    """A photo in a row of a table."""

    def __init__(self, table: PhotoTable, number: int) -> None:
        super().__init__(f"{table.name}, row {number}", PurePosixPath(str(number)))
        self._table = table
        self._number = number

    def _read(self, max_bytes: int) -> bytes:
        return self._table.content(self._number)[:max_bytes]
