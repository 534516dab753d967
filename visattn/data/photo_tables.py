"""Tables of Hugging Face datasets as training data: photos and annotations, read by index.

A table is a folder of parquet files, a folder of `save_to_disk`, or a data set of the hub. Rows are
read map-style from an Arrow file that is mapped into memory, so that any order and any number of
worker processes is as with files, and a run resumes in the middle of an epoch to the sample.
"""

import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, overload

from visattn.data.captions.files import CaptionEntry
from visattn.io.messages import did_you_mean, format_names
from visattn.io.safe_paths import SafeDirectory
from visattn.io.safe_text import printable_name, read_bytes_bounded, short_repr
from visattn.io.sources import Location, check_length
from visattn.results.kinds import Split

_HUB = re.compile(r"[\w.-]+/[\w.-]+")
_NO_STREAM = (
    "a stream cannot be trained on: with a shuffle buffer, a resumed run loses the rows in it and "
    "repeats others, and without one the order is that of the files. Pass a table that is read by "
    "index (save_to_disk, parquet), or shards of webdataset, which are made to be streamed"
)


@dataclass(frozen=True)
class TableSource:
    """A data set in tables, and how its splits and columns are named.

    Args:
        data: A folder of parquet files or of `save_to_disk`; the name of a data set on the hub,
            `OWNER/NAME`, with its `revision`; or a `DatasetDict` in memory.
        train: Name of the training split.
        val: Name of the validation split; None for none.
        test: Name of the test split; None for the validation split.
        columns: Names of columns, by what they hold; those that are left out have the usual names.
            `a.b` is the field `b` of a column `a`, or of the entries of a list in it.
        photos: Folder of photos that rows name without holding them; None refuses such rows.
        revision: Commit or tag of a data set on the hub, which may change otherwise.
        subset: Subset of a data set on the hub that has several.
    """

    data: Any
    train: str = "train"
    val: str | None = "validation"
    test: str | None = None
    columns: Mapping[str, str] | None = None
    photos: str | None = None
    revision: str | None = None
    subset: str | None = None

    def open(self, usual: Mapping[str, Sequence[str]]) -> "dict[Split, PhotoTable]":
        """Return the table of each split.

        Args:
            usual: Usual names of the columns, by what they hold; one that ends in `?` is optional.

        Raises:
            FileNotFoundError: If the folder does not exist.
            ImportError: If `datasets` is not installed.
            ValueError: If there is no such split or column, or the data are a stream.
        """
        tables = self._splits()
        names: dict[Split, str | None] = {
            "train": self.train, "validation": self.val, "test": self.test or self.val,
        }  # fmt: skip
        if unknown := [name for name in names.values() if name is not None and name not in tables]:
            known = format_names([*tables])
            raise ValueError(f"{self.name} has no split {unknown[0]!r}; there are {known}")
        opened: dict[Split, PhotoTable] = {}
        by_name: dict[str, PhotoTable] = {}
        for split, name in names.items():
            if name is not None:
                if name not in by_name:
                    by_name[name] = self._table(tables[name], name, usual)
                opened[split] = by_name[name]
        return opened

    @property
    def name(self) -> str:
        """The data set, for messages."""
        return self.data if isinstance(self.data, str) else type(self.data).__name__

    def _table(self, rows: Any, split: str, usual: Mapping[str, Sequence[str]]) -> "PhotoTable":
        if not hasattr(rows, "select_columns") or not hasattr(rows, "__len__"):
            raise ValueError(_NO_STREAM)
        place = f"{self.name}, {split}"
        columns = match_columns(rows.features, self.columns or {}, usual, place)
        table = PhotoTable(rows, columns, place, self.photos)
        if table.lacking:
            warnings.warn(f"{place}: left out {table.lacking:,} rows without a photo", stacklevel=2)
        return table

    def _splits(self) -> Mapping[str, Any]:
        """Return all tables by the names of their splits."""
        try:
            import datasets  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise ImportError(
                "tables are read by datasets: pip install 'visattn[datasets]'"
            ) from error
        data = self.data
        if "Iterable" in type(data).__name__:
            raise ValueError(_NO_STREAM)
        if isinstance(data, Mapping):
            return data
        folder = Path(str(data)).expanduser()
        if folder.is_dir():
            return _local_splits(datasets, folder, (self.train, self.val, self.test))
        if not _HUB.fullmatch(str(data)):
            raise FileNotFoundError(
                f"{data} is no folder; data is a folder of parquet files or of save_to_disk, or "
                "the name of a data set on the hub, OWNER/NAME"
            )
        if self.revision is None:
            raise ValueError(
                f"{data} is a data set on the hub, which may change: add revision: with a commit "
                "or tag"
            )
        return datasets.load_dataset(str(data), self.subset, revision=self.revision)  # pyright: ignore[reportReturnType]


def _local_splits(datasets: Any, folder: Path, names: Sequence[str | None]) -> Mapping[str, Any]:
    """Return the tables of a folder by the names of their splits."""
    if (folder / "dataset_dict.json").is_file():
        return datasets.load_from_disk(str(folder))
    if (folder / "state.json").is_file():
        raise ValueError(
            f"{folder} is a table without splits: save them together, "
            'DatasetDict({"train": ..., "validation": ...}).save_to_disk(FOLDER)'
        )
    files = sorted(path for path in folder.rglob("*.parquet") if path.is_file())
    if not files:
        raise FileNotFoundError(f"{folder} holds neither parquet files nor a data set")
    splits = {name: [f for f in files if _is_of(f.relative_to(folder), name)]
              for name in dict.fromkeys(filter(None, names))}  # fmt: skip
    if lacking := [name for name, of_split in splits.items() if not of_split]:
        listed = format_names([str(file.relative_to(folder)) for file in files], 5)
        raise ValueError(
            f"{folder} has no parquet file of the split {lacking[0]!r}: neither in a folder of "
            f"this name, nor with a name that begins with it; there are {listed}"
        )
    paths = {name: list(map(str, of_split)) for name, of_split in splits.items()}
    return datasets.load_dataset("parquet", data_files=paths)


def _is_of(file: Path, split: str) -> bool:
    """Whether a file is one of a split: `train/0.parquet`, `train-00000-of-00003.parquet`."""
    begins = re.match(rf"{re.escape(split)}(?![A-Za-z])", file.name)
    return split in file.parts[:-1] or begins is not None


def match_columns(
    features: Mapping[str, Any],
    named: Mapping[str, str],
    usual: Mapping[str, Sequence[str]],
    place: str,
) -> dict[str, str]:
    """Return the column of each thing that is read from a table.

    Args:
        features: Types of the columns, by their names.
        named: Columns as the user named them.
        usual: As for `TableSource.open`.
        place: The table, for messages.

    Raises:
        ValueError: If a name is unknown, or a column is missing.

    Example:
        >>> features = {"jpg": "Image", "sentences": "List"}
        >>> usual = {"image": ("image", "jpg"), "captions": ("caption",), "id?": ("id",)}
        >>> match_columns(features, {"captions": "sentences"}, usual, "train")
        {'image': 'jpg', 'captions': 'sentences'}
    """
    known = {role.removesuffix("?"): names for role, names in usual.items()}
    listed = format_names([f"{name} ({_type(kind)})" for name, kind in features.items()], 30)
    for role, column in named.items():
        if role not in known:
            raise ValueError(f"columns: has {role!r}; {did_you_mean(role, [*known])}")
        if not _has(features, column):
            raise ValueError(f"{place} has no column {column!r}; there are {listed}")
    columns: dict[str, str] = {}
    for role, names in usual.items():
        name = role.removesuffix("?")
        column = named.get(name) or next((each for each in names if _has(features, each)), None)
        if column is not None:
            columns[name] = column
        elif name == role:
            raise ValueError(
                f"{place} has no column that is named like {name}: name it, columns: "
                f"{{{name}: COLUMN}}; there are {listed}"
            )
    return columns


def _has(features: Any, column: str) -> bool:
    """Whether a table has a column, or a field of one behind a dot."""
    head, _, rest = column.partition(".")
    if column in features:
        return True
    if head not in features or not rest:
        return False
    fields = _entries(features[head])
    return isinstance(fields, Mapping) and _has(fields, rest)


def _entries(kind: Any) -> Any:
    """Return the type of the entries of a list, or a type itself."""
    while isinstance(kind, list) or hasattr(kind, "feature"):
        kind = kind[0] if isinstance(kind, list) else kind.feature
    return kind


def _type(kind: Any) -> str:
    text = str(getattr(kind, "dtype", "")) or str(kind)
    return text if len(text) <= 60 else f"{text[:57]}..."


class PhotoTable(Sequence[Location]):
    """The photos of a split with their annotations; a photo is read when it is opened.

    Rows without a photo are left out; `lacking` counts them.

    Args:
        rows: A `Dataset`.
        columns: Columns by what they hold.
        place: The table, for messages.
        photos: Folder of photos that rows name without holding them.

    Raises:
        ValueError: If the column of photos holds something else, or rows name files.
    """

    def __init__(
        self, rows: Any, columns: Mapping[str, str], place: str, photos: str | None
    ) -> None:
        import datasets  # pyright: ignore[reportMissingImports]

        self.columns = dict(columns)
        self.place = place
        self.folder = None if photos is None else SafeDirectory(photos)
        column = columns["image"]
        kind = rows.features[column]
        rows = rows.with_format(None)
        if isinstance(kind, datasets.Image):
            rows = rows.cast_column(column, datasets.Image(decode=False))
        elif getattr(kind, "dtype", "") not in ("binary", "large_binary", "string"):
            raise ValueError(
                f"{place}: the column {column!r} must hold images, bytes or names of files, got "
                f"{_type(kind)}"
            )
        numbers = self._readable(rows.select_columns([column]), column)
        self.lacking = len(rows) - len(numbers)
        """Number of rows without a photo."""
        if not numbers:
            raise ValueError(f"{place}: no row of the column {column!r} has a photo")
        self.rows = rows.select(numbers) if self.lacking else rows
        self._images = self.rows.select_columns([column])

    def _readable(self, rows: Any, column: str) -> list[int]:
        """Return the rows that have a photo."""
        readable: list[int] = []
        naming: list[str] = []
        for number, cell in enumerate(_without_bytes(rows, column)):
            if cell is None or cell == "":
                continue
            if isinstance(cell, str):
                naming.append(cell)
            readable.append(number)
        if naming and self.folder is None:
            raise ValueError(
                f"{self.place}: {len(naming):,} rows name files and do not hold them, such as "
                f"{printable_name(naming[0])}: photos: FOLDER reads those of a folder"
            )
        for name in naming:
            self._file(name)
        return readable

    def _file(self, name: str) -> Path:
        """Return the file of a name in a row.

        Raises:
            ValueError: If it leads out of the folder.
        """
        if self.folder is None:
            raise ValueError(f"{self.place}: a row names a file, but there is no folder of photos")
        try:
            return self.folder.path(name)
        except ValueError as error:
            raise ValueError(f"{self.place}: {error}") from error

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

    def content(self, number: int, max_bytes: int) -> bytes:
        """Return the bytes of a photo.

        Raises:
            OSError: If a file that is named cannot be read.
            ValueError: If it is too long, or the file lies elsewhere.
        """
        cell = self._images[number][self.columns["image"]]
        content = cell["bytes"] if isinstance(cell, dict) else cell
        if isinstance(content, bytes):
            return check_length(content, max_bytes)
        return read_bytes_bounded(self._file(cell["path"] if isinstance(cell, dict) else cell),
                                  max_bytes)  # fmt: skip

    def values(self, role: str) -> list[Any]:
        """Return what the rows have of something else than the photo; of a list a list.

        Args:
            role: What the column holds.
        """
        head, _, rest = self.columns[role].partition(".")
        if self.columns[role] in self.rows.features:
            head, rest = self.columns[role], ""
        table = self.rows.select_columns([head]).with_format("arrow")[:]
        cells = table.column(0).to_pylist()
        return [_field(cell, rest) for cell in cells] if rest else cells

    def feature(self, role: str) -> Any:
        """Return the type of a column, or of the entries of its lists.

        Args:
            role: What the column holds.
        """
        features: Any = self.rows.features
        for name in [self.columns[role]] if self.columns[role] in features else (
            self.columns[role].split(".")
        ):  # fmt: skip
            features = _entries(features[name])
        return features

    def names(self, role: str, values: Sequence[Any]) -> list[str]:
        """Return values of a column of classes as their names.

        Args:
            role: What the column holds.
            values: Some of its values.

        Raises:
            ValueError: If a value is no class.
        """
        names = getattr(self.feature(role), "names", None)
        if names is None:
            return [str(value) for value in values]
        if wrong := [value for value in values if not 0 <= value < len(names)]:
            raise ValueError(
                f"{self.place}: the column {self.columns[role]!r} has {len(names)} classes, got "
                f"{wrong[0]!r}: rows without a class must be left out"
            )
        return [names[value] for value in values]

    def ids(self) -> list[str]:
        """Return the name of each row: the value of the column `id`, or its number.

        Raises:
            ValueError: If two rows have the same.
        """
        if "id" not in self.columns:
            return [f"{self.place}, row {number}" for number in range(len(self))]
        names = [str(value) for value in self.values("id")]
        if len(set(names)) < len(names):
            [(name, count)] = Counter(names).most_common(1)
            raise ValueError(
                f"{self.place}: {count:,} rows have the {self.columns['id']} {name!r}; a row is a "
                "photo with all of its annotations: group the rows, or name another column as id"
            )
        return names

    def keep(self, kept: Sequence[bool]) -> "PhotoTable":
        """Return the table with these rows alone.

        Args:
            kept: Whether each row stays.
        """
        if all(kept):
            return self
        numbers = [number for number, stays in enumerate(kept) if stays]
        table = object.__new__(type(self))
        vars(table).update(vars(self))
        table.rows = self.rows.select(numbers)
        table._images = self._images.select(numbers)
        return table


def _field(cell: Any, path: str) -> Any:
    """Return a field of a struct, or of each entry of a list."""
    if isinstance(cell, list):
        return [_field(each, path) for each in cell]
    head, _, rest = path.partition(".")
    value = None if cell is None else cell[head]
    return _field(value, rest) if rest else value


def _without_bytes(rows: Any, column: str) -> Iterator[bool | str | None]:
    """Yield for each cell True if it holds bytes, the file that it names instead, or None.

    The bytes stay in their file: all photos are not read to learn that they are there.
    """
    import pyarrow as pa
    import pyarrow.compute

    compute: Any = pyarrow.compute  # its functions are made when it is imported
    cells = rows.data.column(column)
    if rows._indices is not None:  # noqa: SLF001 (a selection or an order of the rows)
        flags = _flags(compute, pa, cells)
        order = rows._indices.column(0).to_pylist()  # noqa: SLF001
        yield from (flags[number] for number in order)
    else:
        yield from _flags(compute, pa, cells)


def _flags(compute: Any, pa: Any, cells: Any) -> list[bool | str | None]:
    if pa.types.is_struct(cells.type):
        validity = compute.is_valid(compute.struct_field(cells, "bytes")).to_pylist()
        names = compute.struct_field(cells, "path").to_pylist()
        return [full or name for full, name in zip(validity, names, strict=True)]
    if pa.types.is_string(cells.type) or pa.types.is_large_string(cells.type):
        return cells.to_pylist()
    return [full or None for full in compute.is_valid(cells).to_pylist()]


class _TablePhoto(Location):
    """A photo in a row of a table."""

    def __init__(self, table: PhotoTable, number: int) -> None:
        address = f"{table.place}, row {number}"
        super().__init__(address, PurePosixPath(str(number)))
        self._table = table
        self._number = number

    def read_bytes(self, max_bytes: int) -> bytes:
        return self._table.content(self._number, max_bytes)


CAPTION_COLUMNS = {
    "image": ("image", "img", "jpg", "png"),
    "captions": ("captions", "caption", "sentences", "text", "txt"),
    "id?": ("id", "image_id", "img_id", "filename"),
}
"""Usual names of columns."""


def open_captions(
    source: TableSource,
) -> "tuple[dict[Split, PhotoTable], dict[Split, list[CaptionEntry]]]":
    """Return the photos of each split and their captions; rows without a caption are left out.

    Raises:
        ValueError: As `TableSource.open`; or if captions are no texts, or there are none.
    """
    tables = source.open(CAPTION_COLUMNS)
    made: dict[int, tuple[PhotoTable, list[CaptionEntry]]] = {}
    for split, table in tables.items():
        if id(table) in made:
            continue
        captions = [_texts(table, cell) for cell in table.values("captions")]
        kept = table.keep([bool(texts) for texts in captions])
        if not len(kept):
            raise ValueError(f"{table.place}: no row has a caption")
        if missing := len(table) - len(kept):
            warnings.warn(
                f"{table.place}: left out {missing:,} rows without a caption", stacklevel=3
            )
        rows = zip(kept.ids(), filter(None, captions), strict=True)
        made[id(table)] = kept, [CaptionEntry(name, name, texts, split) for name, texts in rows]
    return (
        {split: made[id(table)][0] for split, table in tables.items()},
        {split: made[id(table)][1] for split, table in tables.items()},
    )


def _texts(table: PhotoTable, cell: Any) -> tuple[str, ...]:
    """Return the captions in a cell, without empty ones."""
    texts = [cell] if isinstance(cell, str) else cell or ()
    if not isinstance(texts, (list, tuple)) or not all(isinstance(text, str) for text in texts):
        raise ValueError(
            f"{table.place}: the column {table.columns['captions']!r} must hold texts or lists of "
            f"texts, got {short_repr(cell)}"
        )
    return tuple(line for text in texts if (line := " ".join(text.split())))
