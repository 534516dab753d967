"""Tables of Hugging Face datasets as training data: photos and annotations, read by index.

Rows are read from an Arrow file that is mapped into memory, so that any order and any number of
worker processes is as with files, and a run resumes in the middle of an epoch to the sample.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Literal, TypeVar, overload

from visattn.data.captions.files import CaptionEntry
from visattn.data.questions.vqa_files import QuestionPhoto, answered_question
from visattn.data.regions.annotations import AnnotatedImage, AnnotatedObject
from visattn.data.regions.coco_instances import check_clipped, parse_box
from visattn.images.reader import read_size
from visattn.io.sources import Location, check_length
from visattn.results.kinds import Split

T = TypeVar("T")
BoxFormat = Literal["xywh", "xyxy"]
COLUMNS = {
    "image": "image", "captions": "captions", "label": "label", "question": "question",
    "answers": "answers", "type": "answer_type", "boxes": "objects.bbox",
    "categories": "objects.category", "crowds": "objects.iscrowd", "areas": "objects.area",
    "id": "id",
}  # fmt: skip
"""Names of columns by what they hold; `a.b` is the field `b` of the struct or structs in `a`."""
_OPTIONAL = ("type", "crowds", "areas", "id")


@dataclass(frozen=True)
class TableSource:
    """A data set in tables, and how its splits and columns are named.

    Args:
        data: A folder of parquet files or of `save_to_disk`; the name of a data set on the hub,
            OWNER/NAME; or a `DatasetDict` in memory. A stream is written to the cache of `datasets`
            once, since an epoch of random order needs rows by index.
        train: Name of the training split.
        val: Name of the validation split; None for none.
        test: Name of the test split; None for the validation split.
        columns: Names of columns, by what they hold, that are not those of `COLUMNS`.
        revision: Commit or tag of a data set on the hub, which may change otherwise.
        subset: Subset of a data set on the hub that has several.
    """

    data: Any
    train: str = "train"
    val: str | None = "validation"
    test: str | None = None
    columns: Mapping[str, str] | None = None
    revision: str | None = None
    subset: str | None = None

    def open(self, *roles: str) -> "dict[Split, PhotoTable]":
        """Return the table of each split; splits of one name share it.

        Args:
            roles: What is read beside the photos.

        Raises:
            ImportError: If `datasets` is not installed.
            ValueError: If there is no such split or column, or a row holds no photo.
        """
        import datasets  # pyright: ignore[reportMissingImports]

        columns = {**COLUMNS, **(self.columns or {})}
        if unknown := columns.keys() - COLUMNS.keys():
            raise ValueError(f"columns are {', '.join(COLUMNS)}; got {', '.join(unknown)}")
        data: Any = self.data
        if isinstance(data, (str, Path)):
            saved = Path(data, "dataset_dict.json").is_file()
            data = (
                datasets.load_from_disk(str(data))
                if saved
                else datasets.load_dataset(str(data), self.subset, revision=self.revision)
            )
        names = {"train": self.train, "validation": self.val, "test": self.test or self.val}
        splits: dict[Any, str] = {split: name for split, name in names.items() if name}
        if unknown := [name for name in splits.values() if name not in data]:
            raise ValueError(f"no split {unknown[0]!r}; there are {', '.join(data)}")
        tables = {
            name: PhotoTable(data[name], {role: columns[role] for role in ("image", *roles)}, name)
            for name in dict.fromkeys(splits.values())
        }
        return {split: tables[name] for split, name in splits.items()}


class PhotoTable(Sequence[Location]):
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

    @overload
    def __getitem__(self, index: int) -> Location: ...
    @overload
    def __getitem__(self, index: slice) -> "list[Location]": ...
    def __getitem__(self, index: int | slice) -> "Location | list[Location]":
        """Return a photo, or several."""
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        return _TablePhoto(self, range(len(self))[index])

    def content(self, number: int) -> bytes:
        """Return the bytes of a photo."""
        cell = self._images[number][self.columns["image"]]
        return cell["bytes"] if isinstance(cell, dict) else cell

    def values(self, role: str, default: Any = None) -> list[Any]:
        """Return what the rows have beside the photos, classes as their names.

        Args:
            role: What the column holds.
            default: What each row has if there is no such column.
        """
        if role not in self.columns:
            return [default] * len(self)
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

    def read_bytes(self, max_bytes: int) -> bytes:
        return check_length(self._table.content(self._number), max_bytes)


def read_tables(
    tables: Mapping[Split, PhotoTable], read: Callable[[PhotoTable], T]
) -> dict[Split, T]:
    """Return what a function reads of each table; a table of several splits is read once."""
    made = {table: read(table) for table in dict.fromkeys(tables.values())}
    return {split: made[table] for split, table in tables.items()}


def caption_entries(table: PhotoTable) -> list[CaptionEntry]:
    """Return the captions of each photo: a text, or a list of texts."""
    cells = [[cell] if isinstance(cell, str) else cell for cell in table.values("captions")]
    return [
        CaptionEntry(name, name, tuple(" ".join(text.split()) for text in texts))
        for name, texts in zip(table.ids(), cells, strict=True)
    ]


def question_photos(table: PhotoTable) -> list[QuestionPhoto]:
    """Return the questions about each photo: one with its answers, or a list of both.

    The answers of several people to a question are a list.
    """
    photos: list[QuestionPhoto] = []
    rows = zip(*map(table.values, ("question", "answers", "type")), strict=True)
    for name, (asked, replies, kinds) in zip(table.ids(), rows, strict=True):
        one = isinstance(asked, str)
        texts, answers = ([asked], [replies]) if one else (asked, replies)
        types = [kinds or "other"] * len(texts) if one or kinds is None else kinds
        questions = [
            answered_question(text, [said], type_)._replace(answers=())
            if isinstance(said, str)
            else answered_question(text, said, type_)
            for text, said, type_ in zip(texts, answers, types, strict=True)
        ]
        photos.append(QuestionPhoto(name, tuple(questions)))
    return photos


def annotated_images(table: PhotoTable, box_format: BoxFormat) -> list[AnnotatedImage]:
    """Return the photos with their objects: a list of boxes, and one of categories.

    Raises:
        ValueError: If more than 1 % of the boxes exceed their photos, as those of another format
            do; the message names the row.
    """
    rows = zip(*map(table.values, ("boxes", "categories", "crowds", "areas")), strict=True)
    faults: list[str] = []
    total = 0
    images: list[AnnotatedImage] = []
    for photo, name, (boxes, kinds, crowds, areas) in zip(table, table.ids(), rows, strict=True):
        size = read_size(photo)
        objects: list[AnnotatedObject] = []
        for index, (box, kind) in enumerate(zip(boxes, kinds, strict=True)):
            x, y, *rest = box
            place = f"{photo.address}, box {index}"
            own = [x, y, rest[0] - x, rest[1] - y] if box_format == "xyxy" else box
            corners, fault = parse_box(own, place, size)
            faults += [fault] if fault else []
            crowd = bool(crowds and crowds[index])
            area = None if areas is None else float(areas[index])
            objects.append(AnnotatedObject(str(kind), None, corners, crowd, area))
        total += len(objects)
        images.append(AnnotatedImage(name, photo, size, tuple(objects)))
    check_clipped(faults, total)
    return images
