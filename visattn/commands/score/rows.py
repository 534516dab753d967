"""Scores as lines of a file, so that a run that was interrupted goes on where it was."""

import fcntl
import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

Key = tuple[str, str, str | None, str]


class ScoreRows:
    """Rows of scores, each added to a file at once.

    The first line of the file says how they were made; what is made otherwise is not mixed in. A
    line that was cut off at the end of the file, by whatever stopped the run, is dropped.

    Args:
        path: Of the file; None to keep the rows in memory only.
        settings: How scores are made, in plain values.
        again: Begin anew instead of going on.

    Raises:
        ValueError: If the file holds something else, or scores made in another way.
        OSError: If it cannot be read or written.

    Example:
        >>> path = getfixture("tmp_path") / "rows.jsonl"
        >>> with ScoreRows(path, {"seed": 0}) as rows:
        ...     rows.add({"kind": "score", "image": "a", "category": None, "method": "rise"})
        >>> with ScoreRows(path, {"seed": 0}) as rows:
        ...     rows.known("score", "a", None, "rise"), len(rows.rows)
        (True, 1)
        >>> ScoreRows(path, {"seed": 1})
        Traceback (most recent call last):
        ValueError: ...rows.jsonl holds scores made with seed=0, now it is seed=1; choose another
        --out, or begin anew with --again
    """

    def __init__(
        self, path: Path | None, settings: Mapping[str, Any], *, again: bool = False
    ) -> None:
        self.path, self.settings = path, json.loads(json.dumps(dict(settings)))
        self.rows: list[dict[str, Any]] = []
        self._known: set[Key] = set()
        self._file = None
        if path is None:
            return
        if path.exists() and not path.is_file():
            raise OSError(f"{path} is not a regular file; choose another --out")
        file = path.open("a+b")  # made if it is not there, and as it is until it is ours alone
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            end = 0 if again else self._read(path)
            file.truncate(end)
        except BlockingIOError as error:
            file.close()
            raise OSError(
                f"another process is writing {path}; let it end, or choose another --out"
            ) from error
        except BaseException:
            file.close()
            raise
        self._file = file
        if not end:
            self._write({"settings": self.settings})

    def __enter__(self) -> "ScoreRows":
        """Return itself."""
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def known(self, kind: str, image: str, category: str | None, method: str) -> bool:
        """Return whether there is such a row."""
        return (kind, image, category, method) in self._known

    def add(self, row: dict[str, Any]) -> None:
        """Add a row, unless it is known, and write it.

        Args:
            row: With `kind`, `image`, `category` and `method`.
        """
        key = _key(row)
        if key in self._known:
            return
        self._known.add(key)
        self.rows.append(row)
        self._write(row)

    def _write(self, row: Mapping[str, Any]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(row, allow_nan=False).encode() + b"\n")
            self._file.flush()

    def _read(self, path: Path) -> int:
        """Take over the rows of a file; return where its last whole line ends."""
        content = path.read_bytes()
        end = content.rfind(b"\n") + 1
        lines = content[:end].splitlines()
        if not lines and content:
            raise ValueError(f"{path} is no file of scores; choose another --out")
        try:
            told = [json.loads(line) for line in lines]
            settings = told[0]["settings"] if told else self.settings
            self.rows = told[1:]
            self._known = {_key(row) for row in self.rows}
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path} is no file of scores: {error!r}; choose another --out"
            ) from error
        differs = [
            name
            for name in {**settings, **self.settings}
            if settings.get(name) != self.settings.get(name)
        ]
        if differs:
            then, now = (
                ", ".join(f"{name}={given.get(name)!r}" for name in differs)
                for given in (settings, self.settings)
            )
            raise ValueError(
                f"{path} holds scores made with {then}, now it is {now}; choose another --out, or "
                "begin anew with --again"
            )
        return end


def _key(row: Mapping[str, Any]) -> Key:
    return row["kind"], row["image"], row["category"], row["method"]
