"""Tables: photos in the rows of parquet files and Hugging Face datasets; rows as CSV, parquet."""

import csv
import io
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from visattn.io.archives import source_parts
from visattn.io.locations import Location, check_length
from visattn.io.messages import format_names
from visattn.io.safe_paths import SafeDirectory, check_relative_path
from visattn.io.safe_text import open_regular_file, printable_name, read_bytes_bounded

TABLE_SUFFIXES = (".parquet", ".arrow")
_ROWS = 16  # read together, one after the other: a row alone costs as much
_WINDOW = 4  # such groups in memory, for threads that are ahead
_NAMES = ("image", "img", "photo", "jpg", "jpeg", "png", "webp", "bytes", "content")


def is_table(path: Path) -> bool:
    """Return whether a file is named like a table, with or without a column behind a colon.

    Example:
        >>> is_table(Path("train.parquet")), is_table(Path("train.csv"))
        (True, False)
    """
    return path.suffix.lower() in TABLE_SUFFIXES


def table_files(path: Path, column: str = "") -> list[Location]:
    """Return the photos of a table, row by row.

    A row has the name that its photo had as a file, or its number. A row that names a file, and
    does not hold it, is read if the file lies in the folder of the table.

    Args:
        path: A parquet or Arrow file.
        column: The column of photos: bytes, names of files, or a struct of both as `datasets`
            writes it; "" for the one that is named like it.

    Raises:
        ImportError: If pyarrow is not installed.
        OSError: If it cannot be opened.
        ValueError: If it is no table, or its column of photos is not known.
    """
    table = _open(path)
    column = _column(path, table.schema, column)
    kind = table.schema.field(column).type
    rows: list[Location] = []
    width = len(str(max(table.count - 1, 0)))
    folder = SafeDirectory(path.absolute().parent)
    for number, name in enumerate(table.names(column, kind)):
        plain = f"{path.name.partition('.')[0]}-{number:0{width}}"
        relative = PurePosixPath(_file_name(name) or plain)
        address = f"{path}:{number}"
        place = (address, source_parts(path), relative)
        rows.append(_TableRow(place, table, column, number, name, folder))
    return rows


def _file_name(name: str) -> str:
    """Return the last part of a path; "" if it is none."""
    last = PurePosixPath(name.replace("\\", "/")).name
    try:
        check_relative_path(last)
    except ValueError:
        return ""
    return "" if last.startswith(".") else last


def _column(path: Path, schema: Any, column: str) -> str:
    """Return the column of photos.

    Raises:
        ValueError: With the columns and their types, if there is none, or several could be it.
    """
    import pyarrow.types as kinds

    listed = format_names([f"{field.name} ({field.type})" for field in schema], 12)
    if column:
        if column in schema.names:
            return column
        raise ValueError(f"{path} has no column {column!r}; there are {listed}")

    def holds_bytes(kind: Any) -> bool:
        if kinds.is_struct(kind):
            return any(kind.field(i).name == "bytes" for i in range(kind.num_fields))
        return bool(kinds.is_binary(kind) or kinds.is_large_binary(kind))

    named = [field.name for field in schema if field.name.lower() in _NAMES]
    likely = [name for name in named if holds_bytes(schema.field(name).type)] or named
    likely = likely or [field.name for field in schema if holds_bytes(field.type)]
    if len(likely) == 1:
        return likely[0]
    problem = "several columns that may hold photos" if likely else "no column of photos"
    raise ValueError(f"{path} has {problem}: name it, as in {path.name}:COLUMN; there are {listed}")


class _TableRow(Location):
    """A photo in a row of a table."""

    def __init__(
        self,
        place: tuple[str, Sequence[str], PurePosixPath],
        table: "_Table",
        column: str,
        number: int,
        name: str,
        folder: SafeDirectory,
    ) -> None:
        super().__init__(*place)
        self._table = table
        self._column = column
        self._number = number
        self._name = name
        self._folder = folder

    def fetch(self, max_bytes: int) -> bytes:
        """Return the bytes of the row, or of the file that it names."""
        value = self._table.value(self._column, self._number)
        content = value.get("bytes") if isinstance(value, dict) else value
        if isinstance(content, bytes):
            check_length(len(content), max_bytes)
            return content
        if not self._name:
            raise ValueError("the row holds no image")
        try:
            file = self._folder.path(self._name)
        except ValueError as error:
            raise ValueError(
                f"the row names the file {printable_name(self._name)}, outside of the folder of "
                "the table: list such files with --files-from"
            ) from error
        return read_bytes_bounded(file, max_bytes)


class _Table:
    """Columns of a table, of which a few rows are in memory."""

    def __init__(self, path: Path, schema: Any, count: int) -> None:
        self.path = path
        self.schema = schema
        self.count = count
        self._lock = threading.Lock()
        self._batches: Iterator[Any] = iter(())
        self._next = count  # row at which the next batch begins
        self._window: dict[int, Any] = {}  # the last batches, by their first rows

    def batches(self, column: str) -> Iterator[Any]:
        """Yield a column, or a field of a struct behind a dot, as arrays of about 16 rows."""
        raise NotImplementedError

    def names(self, column: str, kind: Any) -> Iterator[str]:
        """Yield the name of the file of each row, "" if it has none."""
        import pyarrow.types as kinds

        if kinds.is_struct(kind) and "path" in {field.name for field in kind}:
            for batch in self.batches(f"{column}.path"):
                for row in batch.to_pylist():  # of parquet a struct of this field alone
                    yield (row.get("path") if isinstance(row, dict) else row) or ""
        elif kinds.is_string(kind) or kinds.is_large_string(kind):
            for batch in self.batches(column):
                yield from (name or "" for name in batch.to_pylist())
        else:
            yield from [""] * self.count

    def value(self, column: str, number: int) -> Any:
        """Return a row of a column; rows are read in their order, and the last few are kept."""
        with self._lock:
            if number < min(self._window, default=self._next):
                self._batches, self._next, self._window = self.batches(column), 0, {}
            while self._next <= number:
                array = next(self._batches)
                self._window[self._next] = array
                self._next += len(array)
                while len(self._window) > _WINDOW:
                    del self._window[min(self._window)]
            first = max(start for start in self._window if start <= number)
            return self._window[first][number - first].as_py()


class _Parquet(_Table):
    def __init__(self, path: Path, file: Any) -> None:
        super().__init__(path, file.schema_arrow, file.metadata.num_rows)
        self._file = file

    def batches(self, column: str) -> Iterator[Any]:
        for batch in self._file.iter_batches(batch_size=_ROWS, columns=[column]):
            yield batch.column(0)


class _Arrow(_Table):
    def __init__(self, path: Path, table: Any) -> None:
        super().__init__(path, table.schema, table.num_rows)
        self._rows = table

    def batches(self, column: str) -> Iterator[Any]:
        import pyarrow.compute

        compute: Any = pyarrow.compute  # its functions are made when it is imported
        rows = self._rows.column(column.removesuffix(".path"))
        if column.endswith(".path"):
            rows = compute.struct_field(rows, "path")
        for start in range(0, self.count, _ROWS):
            yield rows.slice(start, _ROWS)


def _open(path: Path) -> _Table:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise ImportError(
            f"{path} is a table, which pyarrow reads: pip install 'visattn[parquet]'"
        ) from error
    with open_regular_file(path):
        pass  # a pipe is refused
    try:
        if path.suffix.lower() == ".parquet":
            return _Parquet(path, parquet.ParquetFile(path, buffer_size=2**20))
        mapped = pa.memory_map(str(path))
        try:
            return _Arrow(path, pa.ipc.open_stream(mapped).read_all())
        except pa.ArrowInvalid:
            return _Arrow(path, pa.ipc.open_file(mapped).read_all())
    except pa.ArrowException as error:
        raise ValueError(f"{path} is not a readable table: {error}") from error


def csv_table(rows: Sequence[Mapping[str, object]]) -> bytes:
    r"""Return rows as CSV (RFC 4180) with a header; columns in the order of their first use.

    Example:
        >>> csv_table([{"image": "a", "class": "red, round"}, {"image": "b", "score": 0.5}])
        b'image,class,score\r\na,"red, round",\r\nb,,0.5\r\n'
    """
    columns = list(dict.fromkeys(column for row in rows for column in row))
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns)
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def parquet_table(rows: Sequence[Mapping[str, object]]) -> bytes:
    """Return rows as parquet.

    Raises:
        ImportError: If pyarrow is not installed.
    """
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise ImportError(
            '--parquet needs pyarrow: pip install "visattn[parquet]"; a CSV file is always written'
        ) from error
    columns = dict.fromkeys(column for row in rows for column in row)
    sink = pa.BufferOutputStream()
    table = pa.table({name: [row.get(name) for row in rows] for name in columns})
    parquet.write_table(table, sink)
    return sink.getvalue().to_pybytes()
