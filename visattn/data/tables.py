"""Tables of Hugging Face datasets as training data: photos and annotations, read by index.

Rows are read from an Arrow file that is mapped into memory, so that any order and any number of
worker processes is as with files, and a run resumes in the middle of an epoch to the sample.
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
"""Names of columns by what they hold; `a.b` is the field `b` of the struct or structs in `a`."""
_OPTIONAL = ("type", "crowds", "areas", "id")


@dataclass
class HubTable(Source):
    """Base class of data sets in tables, whose splits and columns may have any name.

    Args:
        data: A folder of parquet files or of `save_to_disk`; the name of a data set on the hub,
            OWNER/NAME; or a `DatasetDict` in memory. A stream is written to the cache of `datasets`
            once, since an epoch of random order needs rows by index.
        train: Name of the training split.
        val: Name of the validation split; null for none.
        test: Name of the test split; null for the validation split.
        columns: Names of columns, by what they hold, that are not those of `COLUMNS`.
        revision: Commit or tag of a data set on the hub, which may change otherwise.
        subset: Subset of a data set on the hub that has several.

    Raises:
        ImportError: If `datasets` is not installed.
        ValueError: If there is no such split or column, or a row holds no photo.
    """

    data: Any
    train: str = "train"
    val: str | None = "validation"
    test: str | None = None
    columns: dict[str, str] | None = None
    revision: str | None = None
    subset: str | None = None
    roles: ClassVar[tuple[str, ...]] = ()
    """What is read beside the photos."""

    def __post_init__(self) -> None:
        import datasets  # pyright: ignore[reportMissingImports]

        if unknown := [role for role in self.columns or () if role not in COLUMNS]:
            raise ValueError(f"columns are {', '.join(COLUMNS)}; got {', '.join(unknown)}")
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
            raise ValueError(f"no split {unknown[0]!r}; there are {', '.join(data)}")
        chosen = COLUMNS | (self.columns or {})
        columns = {role: chosen[role] for role in (*self.roles, "image")}
        tables = {name: PhotoTable(data[name], columns, name) for name in used}
        self.tables: dict[str, Any] = {split: tables[name] for split, name in names.items() if name}


@dataclass
class HubClasses(HubTable):
    """Photos with a class each in a column `label`; options of `HubTable`."""

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
    """Photos with a list of captions each in a column `captions`; options of `HubTable`."""

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
    """Photos with a question and its answers, or a list of both; options of `HubTable`.

    Columns are `question`, `answers` and, if there is one, `answer_type`.
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


def _questions(asked: Any, replies: Any, kinds: Any) -> tuple[Question, ...]:
    one = isinstance(asked, str)
    texts, answers = ([asked], [replies]) if one else (asked, replies)
    types = [kinds or "other"] * len(texts) if one or kinds is None else kinds
    return tuple(
        answered_question(text, [said], kind)._replace(answers=())
        if isinstance(said, str)
        else answered_question(text, said, kind)
        for text, said, kind in zip(texts, answers, types, strict=True)
    )


@dataclass
class HubBoxes(HubTable):
    """Photos with boxes: the fields `bbox` and `category` of a column `objects`.

    Args:
        box_format: The numbers of a box, in pixels of the photo: left, top, width, height
            (`xywh`), as COCO has them; or left, top, right, bottom (`xyxy`).
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
    """The photos of a split with their annotations; a photo is read when it is opened.

    Args:
        rows: A `Dataset`, or a stream.
        columns: Columns by what they hold.
        name: The split, for messages.

    Raises:
        ValueError: If a column is missing, or a row holds no photo.
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
                f"{name} has no column {missing[0]}; name it with columns: ... Its columns are "
                f"{', '.join(rows.features)}"
            )
        image = columns["image"]
        if isinstance(rows.features[image], datasets.Image):
            rows = rows.cast_column(image, datasets.Image(decode=False))
        if not hasattr(rows, "__len__"):
            rows = datasets.Dataset.from_generator(partial(_rows, rows), features=rows.features)
        self.rows = rows.with_format(None)
        self._images = self.rows.select_columns([image])
        # A row may name a file instead of holding a photo: strangers' names are not opened.
        for batch in self._images.with_format("arrow").iter(1000):
            cells = batch.column(0).combine_chunks()
            if cells.null_count or (hasattr(cells, "field") and cells.field("bytes").null_count):
                raise ValueError(
                    f"{name}: rows hold no photo in {image}; leave them out, or save the "
                    "photos with the table"
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
        """Return what the rows have beside the photos, classes as their names.

        Args:
            role: What the column holds; None for each row if there is no such column.
        """
        if role not in self.columns:
            return [None] * len(self)
        column, _, field = self.columns[role].partition(".")
        cells = self.rows.select_columns([column])[:][column]
        names = self.class_names(role)
        return [_named(_field(cell, field) if field else cell, names) for cell in cells]

    def class_names(self, role: str) -> list[str] | None:
        """Return the names of the classes in a column; None if it has texts or plain numbers.

        Args:
            role: What the column holds.
        """
        return getattr(_kind(self.rows.features, self.columns[role]), "names", None)

    def ids(self) -> list[str]:
        """Return the name of each row: the value of the column `id`, or its number.

        Raises:
            ValueError: If two rows have the same.
        """
        rows = [f"{self.name}, row {number}" for number in range(len(self))]
        names = [*map(str, self.values("id"))] if "id" in self.columns else rows
        if len(set(names)) < len(names):
            raise ValueError(
                f"{self.name}: rows have the same {self.columns['id']}; a row is a photo with all "
                "of its annotations: group the rows, or name another column as id"
            )
        return names


def _rows(stream: Any) -> Iterator[dict[str, Any]]:
    yield from stream


def _kind(features: Any, column: str) -> Any:
    """Return the type of a column, or of the entries of its lists; None if there is none."""
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
    """Return the name of a class, or those of a list of classes.

    Raises:
        ValueError: If it is no class, such as the -1 of rows without one.
    """
    if names is None:
        return value
    if isinstance(value, list):
        return [_named(each, names) for each in value]
    if value not in range(len(names)):
        raise ValueError(f"a class must be from 0 to {len(names) - 1}, got {value}")
    return names[value]


class _TablePhoto(Location):
    """A photo in a row of a table."""

    def __init__(self, table: PhotoTable, number: int) -> None:
        super().__init__(f"{table.name}, row {number}", PurePosixPath(str(number)))
        self._table = table
        self._number = number

    def _read(self, max_bytes: int) -> bytes:
        return self._table.content(self._number)[:max_bytes]
