"""Score file with one JSON line per image and method, by which an interrupted run is resumed."""

import fcntl
import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from visattn.io.disk_errors import explained_disk_errors
from visattn.io.safe_text import decode_utf8, parse_json

RowKey = tuple[str | None, ...]
_KEY = ("category", "method")


class ScoreRows(AbstractContextManager["ScoreRows"]):
    """Rows of scores, each appended to a file at once.

    The first line of the file holds the settings; scores of other settings are refused. An
    incomplete last line, left by an interrupted run, is dropped. Rows of images that are not scored
    now, or whose content has changed, stay in the file and do not count.

    Args:
        path: Score file; None keeps the rows in memory only.
        settings: Everything that changes the scores, as plain values.
        contents: For each image that is scored a digest of it and of its annotations; None if each
            row has an entry `content` of its own.
        overwrite: Discard existing rows instead of resuming.
        key: Entries by which a row is known, besides kind and image.

    Raises:
        ValueError: If the file is not a score file, or has other settings.
        OSError: If it cannot be read or written.

    Example:
        >>> path = getfixture("tmp_path") / "rows.jsonl"
        >>> with ScoreRows(path, {"seed": 0}, {"a": "1"}) as rows:
        ...     rows.add({"kind": "score", "image": "a", "category": None, "method": "rise"})
        >>> with ScoreRows(path, {"seed": 0}, {"a": "1"}) as rows:
        ...     rows.has("score", "a", None, "rise"), len(rows.rows)
        (True, 1)
        >>> ScoreRows(path, {"seed": 1}, {})
        Traceback (most recent call last):
        ValueError: ...rows.jsonl holds scores made with seed=0, now it is seed=1; choose another
        --out, or start again with --overwrite
    """

    def __init__(
        self,
        path: Path | None,
        settings: Mapping[str, Any],
        contents: Mapping[str, str] | None,
        *,
        overwrite: bool = False,
        key: Sequence[str] = _KEY,
    ) -> None:
        self.key = tuple(key)
        self.contents = contents
        self.path, self.settings = path, json.loads(json.dumps(dict(settings)))
        self.rows: list[dict[str, Any]] = []
        self._keys: set[RowKey] = set()
        self._file = None
        if path is None:
            return
        self._folder = path.parent
        if path.exists() and not path.is_file():
            raise OSError(f"{path} is not a regular file; choose another --out")
        file = path.open("a+b")  # creates the file, and leaves its content until it is locked
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            end = 0 if overwrite else self._read(path)
            file.truncate(end)
        except BlockingIOError as error:
            file.close()
            raise OSError(
                f"another process is writing {path}; wait for it, or choose another --out"
            ) from error
        except BaseException:
            file.close()
            raise
        self._file = file
        if not end:
            self._write({"settings": self.settings})

    def __exit__(self, *_exception: object) -> None:
        """Close the file."""
        if self._file is not None:
            with explained_disk_errors(self._folder):  # of a row that is still buffered
                self._file.close()

    def has(self, kind: str, image: str, category: str | None, method: str) -> bool:
        """Return whether a row exists."""
        return (kind, image, category, method) in self._keys

    def add(self, row: dict[str, Any]) -> None:
        """Append a row, unless it exists already.

        Args:
            row: Has the entries of the key.
        """
        key = self._row_key(row)
        if key in self._keys:
            return
        self._keys.add(key)
        self.rows.append(row)
        if self.contents is not None:
            row = {**row, "content": self.contents.get(row["image"])}
        self._write(row)

    def _write(self, row: Mapping[str, Any]) -> None:
        if self._file is not None:
            with explained_disk_errors(self._folder):
                self._file.write(json.dumps(row, allow_nan=False).encode() + b"\n")
                self._file.flush()

    def _read(self, path: Path) -> int:
        """Read the rows of a file; return the offset after its last complete line."""
        content = path.read_bytes()
        end = content.rfind(b"\n") + 1
        lines = content[:end].splitlines()
        if not lines and content:
            raise ValueError(f"{path} is not a score file; choose another --out")
        try:
            records = [parse_json(decode_utf8(line), n) for n, line in enumerate(lines, 1)]
            settings = records[0]["settings"] if records else self.settings
            self.rows = records[1:]
            if self.contents is not None:
                known = self.contents
                scored = [row for row in self.rows if row.get("content") == known.get(row["image"])]
                self.rows = [{key: row[key] for key in row if key != "content"} for row in scored]
            self._keys = {self._row_key(row) for row in self.rows}
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path} is not a score file: {error!r}; choose another --out"
            ) from error
        changed = [
            name
            for name in {**settings, **self.settings}
            if settings.get(name) != self.settings.get(name)
        ]
        if changed:
            then, now = (
                ", ".join(f"{name}={values.get(name)!r}" for name in changed)
                for values in (settings, self.settings)
            )
            raise ValueError(
                f"{path} holds scores made with {then}, now it is {now}; choose another --out, or "
                "start again with --overwrite"
            )
        return end

    def _row_key(self, row: Mapping[str, Any]) -> RowKey:
        return row["kind"], row["image"], *(row.get(name) for name in self.key)
