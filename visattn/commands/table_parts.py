"""Results of a command as a table: a parquet file per slice of the photos.

The slices are those of all photos, however many commands share them, so that a part has one name:

    photos  0 ... 99 | 100 ... 199 | 200 ... 260
            part-000000  part-000001  part-000002.parquet

A part says in its metadata what it was made of. A part that was made in the same way of the same
photos is not made again.
"""

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from visattn.commands.files import map_in_threads
from visattn.commands.outputs import Output
from visattn.commands.records import IDENTITY
from visattn.commands.schedulers import Share
from visattn.commands.streams import RowPrinter
from visattn.io.locations import Location, Source
from visattn.io.safe_text import parse_json, print_message

PART_SIZE = 100
"""Photos of a part."""
_KEY = b"visattn"
_NAME = re.compile(r"part-[0-9]{6}\.parquet")


class RowJob(ABC):
    """A job whose results can be rows of a table."""

    command: str
    row_function: str = ""
    """The function of batches whose columns its table has."""
    skipped: list[str]
    overwrite: bool

    @property
    @abstractmethod
    def threads(self) -> int:
        """Threads that read images."""

    @abstractmethod
    def digests(self, path: Source) -> dict[str, Any]:
        """Return what tells whether an image has changed."""

    @abstractmethod
    def rows_of(
        self, paths: Sequence[Source], size: int
    ) -> Iterable[tuple[Source, Sequence[Mapping[str, Any]]]]:
        """Yield the images that have results, with their rows."""

    def row_labels(self) -> Sequence[Mapping[str, Any]]:
        """Return what is known of the rows of an image without a result."""
        return [{}]

    def result_rows(self, result: Any) -> Iterable[Mapping[str, Any]]:
        """Yield the rows of a result."""
        yield result.to_row()


class TableParts:
    """The parts of a table in a folder, and those of them that a command writes.

    Args:
        out: The folder or store.
        names: Name of each image of all commands.
        shard: The share of this command; None for all.
    """

    def __init__(self, out: Output, names: Mapping[Source, str], shard: Share | None) -> None:
        self.out = out
        self._origins: dict[str, dict[str, Any] | None] = {}
        self.names = names
        paths = [*names]
        starts = range(0, len(paths), PART_SIZE)
        parts = [paths[start : start + PART_SIZE] for start in starts]
        first, last = 0, len(parts)
        if shard is not None:
            bounds = (shard.number - 1, shard.number)
            first, last = (len(parts) * end // shard.parts for end in bounds)
        self.own = dict(enumerate(parts[first:last], start=first))
        """Images of each part of this command, by its number."""
        self.others = [number for number in range(len(parts)) if not first <= number < last]
        self._count = len(parts)

    @property
    def paths(self) -> list[Source]:
        """Images of this command."""
        return [path for paths in self.own.values() for path in paths]

    def files(self) -> list[str]:
        """Return the files of this command."""
        return [part_name(number) for number in self.own]

    def check(self, command: str) -> None:
        """Refuse a folder with parts that would not belong to the table, or be replaced.

        Raises:
            FileExistsError: If there are any.
        """
        for file in self.out.find("part-*.parquet"):
            made = self._origin(file)
            if made is None:
                reason = "visattn did not write it"
            elif made.get("command") != command:
                reason = f"it holds results of visattn {made.get('command')}"
            elif _NAME.fullmatch(file) and int(file[5:11]) >= self._count:
                reason = "it is of an earlier run with more photos"
            else:
                continue
            raise FileExistsError(
                f"--out {self.out} holds {file}, which does not belong to the table: "
                f"{reason}; choose another folder, or remove it"
            )

    def run(self, job: RowJob, settings: Mapping[str, Any], size: int) -> int:
        """Write the parts of this command; return the number of images without a result.

        Args:
            job: What computes the rows.
            settings: Model and options; with others, a part is made again.
            size: Images per batch.

        Raises:
            OSError: If the folder cannot be written.
        """
        with self.out:
            return self._run(job, settings, size)

    def _run(self, job: RowJob, settings: Mapping[str, Any], size: int) -> int:
        printer = RowPrinter(("file", "images", "errors"), self.files())
        total = 0
        for number, paths in self.own.items():
            file = part_name(number)
            origin = {"command": job.command, "settings": settings, "of": _digest(job, paths)}
            made = None if job.overwrite else self._origin(file)
            errors = 0 if made is None else made.get("errors", 0)
            if made is None or {**made, "errors": 0} != {**origin, "errors": 0}:
                errors = self._write(file, job, paths, origin, size)
            total += errors
            printer.print((file, len(paths), errors))
        if self.others:
            self.out.refresh()
            missing = [n for n in self.others if not self.out.exists(part_name(n))]
            rest = f"{len(missing):,} are not written yet" if missing else "all are written"
            print_message(f"of the {len(self.others):,} parts of other shards {rest}")
        return total

    def _origin(self, file: str) -> dict[str, Any] | None:
        """Return what a part was made of, which is read once."""
        if file not in self._origins:
            self._origins[file] = read_origin(self.out, file)
        return self._origins[file]

    def _write(
        self,
        file: str,
        job: RowJob,
        paths: Sequence[Source],
        origin: Mapping[str, Any],
        size: int,
    ) -> int:
        """Write a part; return the number of images without a result."""
        from visattn.pipelines import image_functions
        from visattn.results.rows import arrow_table, empty_cell, encode_table

        cells = getattr(image_functions, job.row_function).cells
        before = len(job.skipped)
        rows = dict(job.rows_of(paths, size))
        reasons = job.skipped[before:]
        table: list[dict[str, Any]] = []
        for path in paths:
            known = {"path": str(path), "name": self.names[path], "error": ""}
            empty = {name: empty_cell(name) for name in cells}
            if path in rows:
                for row in rows[path]:
                    table.append({**known, **empty, **{n: row[n] for n in cells if n in row}})
                    table[-1]["error"] = row.get("error", "")
                continue
            reason = next((text for text in reasons if text.startswith(str(path))), "no result")
            table += [{**known, **empty, **label, "error": reason} for label in job.row_labels()]
        columns = ("path", "name", *cells, "error")
        made = arrow_table({name: [row[name] for row in table] for name in columns})
        errors = len(paths) - len(rows)
        note = json.dumps({**origin, "errors": errors})
        self.out.write(file, encode_table(made.replace_schema_metadata({_KEY: note})))
        return errors


def part_name(number: int) -> str:
    """Return the file of a part.

    Example:
        >>> part_name(7)
        'part-000007.parquet'
    """
    return f"part-{number:06}.parquet"


def read_origin(out: Output, name: str) -> dict[str, Any] | None:
    """Return what a part was made of; None if there is no part of visattn."""
    from pyarrow import ArrowException, parquet

    try:
        if not out.exists(name):
            return None
        with out.open(name) as file:
            metadata = parquet.read_metadata(file).metadata or {}
        made = parse_json(metadata[_KEY].decode())
    except (OSError, ValueError, LookupError, ArrowException):
        return None
    return made if isinstance(made, dict) else None


def _digest(job: RowJob, paths: Iterable[Source]) -> str:
    """Return a digest of images, by their names and contents."""

    def known_of(path: Source) -> dict[str, Any]:
        if isinstance(path, Location) and (identity := path.identity):
            return {IDENTITY: identity}
        try:
            return job.digests(path)
        except (OSError, ValueError):
            return {}  # reported when it is read
        finally:
            if isinstance(path, Location):
                path.release()

    digest = hashlib.sha256()
    for path, known in map_in_threads(known_of, paths, threads=job.threads):
        digest.update(json.dumps([str(path), known()], default=str).encode())
    return digest.hexdigest()
