"""The loop of all commands that process photos.

    names -> read -> batches -> infer -> draw and write -> rows, index, table
             threads            here     threads           here

Files are written under temporary names and renamed into place, NAME.json last. A photo is finished
if its record is from the same command, the same bytes and the same settings. Files that no record
of visattn lists are not replaced.
"""

import csv
import io
import itertools
import json
import math
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from visattn.commands.arguments import File, Flag
from visattn.commands.files import (
    check_no_overwrite,
    create_folder,
    file_digest,
    find_input_images,
    map_in_threads,
    report_failures,
    result_names,
)
from visattn.commands.streams import activity, print_row, print_where
from visattn.io.atomic import atomic_write, flush, temporary_folder
from visattn.io.messages import format_names
from visattn.io.safe_text import print_message, read_json
from visattn.io.sources import Source
from visattn.results.kinds import Card

if TYPE_CHECKING:  # imported when the command runs, so that --help is fast
    from visattn.images.reader import LoadedImage

MADE = "made"
"""Key of a record: the inputs of a result, its files, and its rows of the index and the table."""
INDEX = "index.html"
_THUMBNAILS = 2000  # a page with more is slow to open
_PIXELS = 64_000_000  # of decoded photos waiting for their batch


@dataclass(frozen=True)
class LoopOptions:
    """Options of the commands that process photos.

    Args:
        out: output folder
        files_from: a list of more photos, one path or URL per line; - is the standard input
        shard: I/N processes part I of N, for N commands that write to the same folder
        overwrite: process finished photos again, and replace files that visattn did not write
        strict: stop at the first unreadable photo, instead of skipping and reporting it
    """

    out: Path
    files_from: File = None
    shard: str = "1/1"
    overwrite: Flag = False
    strict: Flag = False

    @property
    def part(self) -> tuple[int, int]:
        """Number of this part, from 1, and number of parts."""
        number, _, count = self.shard.partition("/")
        if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
            raise ValueError(f"--shard must be I/N with I from 1 to N, got {self.shard!r}")
        return int(number), int(count)


@dataclass(frozen=True)
class Made:
    """The result of a command for a photo.

    Args:
        record: Values of NAME.json.
        files: Contents by path in the folder; the index links to the first.
        rows: Rows to print after the name, each a tuple of fields.
        table: Rows of COMMAND.csv, by column name.
        caption: Text below the thumbnail in the index.
        thumbnail: Data URL of a small picture, for the index.
        problem: Why the result is incomplete; "" if it is complete.
    """

    record: dict[str, Any]
    files: Mapping[str, bytes]
    rows: Sequence[Sequence[object]] = ()
    table: Sequence[Mapping[str, object]] = ()
    caption: str = ""
    thumbnail: str = ""
    problem: str = ""


class Command(NamedTuple):
    """A command that processes photos.

    Args:
        name: Name of the command, and of its table.
        title: Heading of the index; "" for none.
        settings: Model and options; a photo whose record has other settings is processed again.
        infer: Returns the output of the model for each photo, or the error for which it is skipped.
        draw: Returns the contents of the files from photo, result and file names; runs in threads.
        endings: Files written per photo besides NAME.json, with `{}` for its name.
        read: Reads a photo, in a thread.
        shared: Files about all photos that the command writes itself.
        classes: Class names of the model. If each photo is in a folder named after its class, the
            index shows the accuracy, and wrong predictions first.
    """

    name: str
    title: str
    settings: Mapping[str, Any]
    infer: "Callable[[Sequence[LoadedImage]], Sequence[Any]]"
    draw: "Callable[[LoadedImage, Any, Sequence[str]], Made]"
    endings: Sequence[str]
    read: "Callable[[Source], LoadedImage] | None" = None
    shared: Sequence[str] = ()
    classes: Sequence[str] = ()


def run(
    command: Command, photos: Sequence[Path | str], options: LoopOptions, *, batch_size: int = 16
) -> int:
    """Run a command on every photo; return 0, or 1 if some were skipped or are incomplete.

    Raises:
        FileExistsError: If a file that visattn did not write would be replaced.
        FileNotFoundError: If a photo does not exist.
        ImageError: If a photo cannot be read, with `strict`.
        OSError: If the folder cannot be written.
        ValueError: If a file would overwrite a photo.
    """
    from visattn.images.sources import read_list
    from visattn.viz.text import pop_boxed_letters

    skipped: list[str] = []
    if options.files_from is not None:
        photos = [*photos, *read_list(options.files_from)]
    if not photos:
        raise ValueError(f"name photos: files, folders or URLs, as in visattn {command.name} DIR")
    photos = [each if "://" in str(each) else Path(each) for each in photos]
    listed = options.files_from is not None  # missing files of a list are reported one by one
    paths = find_input_images(photos, options.out, skipped, keep_missing=listed)
    # Before the photos are divided into parts, so that all parts agree on the names.
    names = result_names(paths, photos, reserved="coverage")
    number, count = options.part
    first, last = (len(names) * end // count for end in (number - 1, number))
    own = dict(itertools.islice(names.items(), first, last))
    folder = Folder(options.out, command, names, replace=options.overwrite)
    folder.check(own)
    done: list[str] = []
    incomplete: list[str] = []

    def interrupted(kind: type[BaseException] | None, *_: object) -> None:
        if kind is KeyboardInterrupt:
            raise KeyboardInterrupt(f"{len(done)} of {len(own)} images are done") from None

    with ExitStack() as stack:
        stack.push(interrupted)
        stack.enter_context(folder.opened())
        if command.title:
            stack.callback(lambda: write_index(options.out, command))
        shown = stack.enter_context(activity(command.name, len(own)))

        def skip(error: Exception) -> None:
            skipped.append(str(error))
            shown.advance()

        # Without variables for the iterators: after an error these would keep the threads running.
        for item, finish in map_in_threads(
            folder.finish,
            _infer(command, _batches(folder, own, batch_size, options, skip), skip),
            ahead=batch_size,
        ):
            name, (record, problem) = names[item.path], finish()
            for row in record.get(MADE, {}).get("rows", ()):
                print_row(name, *row)
            shown.advance()
            done.append(name)
            if problem:
                incomplete.append(f"{name}: {problem}")
    code = report_failures(skipped, incomplete, len(own))
    if letters := pop_boxed_letters():
        print_message(
            f"figures show boxes for {len(letters)} characters that no installed font has, such "
            f"as {letters[:8]}: install a font with these characters, such as Noto Sans CJK"
        )
    if done and command.title:
        print_where(options.out / (INDEX if len(names) > 1 else folder.files(names[paths[0]])[0]))
    return code


class Item(NamedTuple):
    """A photo being processed: image and result, or the record of an earlier run."""

    path: Source
    sha256: str
    image: Any = None
    result: Any = None
    record: Mapping[str, Any] | None = None


def _batches(
    folder: "Folder",
    paths: Iterable[Source],
    size: int,
    options: LoopOptions,
    skip: Callable[[Exception], None],
) -> Iterator[list[Item]]:
    """Yield batches of photos, and the finished ones between them, in order."""
    from visattn.images.reader import ImageError

    batch: list[Item] = []
    for _, read in map_in_threads(folder.start, paths):
        try:
            batch.append(read())
        except ImageError as error:
            if options.strict:
                raise
            skip(error)
            continue
        waiting = [item.image for item in batch if item.record is None]
        # A finished photo is held back only to keep the order.
        full = len(waiting) == size or sum(each.num_pixels for each in waiting) >= _PIXELS
        if full or not waiting:
            yield batch
            batch = []
    if batch:
        yield batch


def _infer(
    command: Command, batches: Iterable[list[Item]], skip: Callable[[Exception], None]
) -> Iterator[Item]:
    for batch in batches:
        images = [item.image for item in batch if item.record is None]
        results = iter(command.infer(images) if images else ())
        for item in batch:
            result = None if item.record is not None else next(results)
            if isinstance(result, Exception):
                skip(result)
            else:
                yield item._replace(result=result)


@dataclass
class Folder:
    """The results of a command in a folder.

    A result is replaced in this order, so that the process may be killed at any time:

        new files, under temporary names
        NAME.json  <- a record without settings, which names the old and the new files
        each file  <- its new content
        NAME.json  <- the record of the new result
    """

    path: Path
    command: Command
    names: Mapping[Source, str]
    replace: bool = False
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        # As they are read from a record.
        self._settings = json.loads(json.dumps(dict(self.command.settings), default=str))  # noqa: TID251

    def files(self, name: str) -> list[str]:
        """Return the files of a photo of this name, without its record."""
        return [ending.format(name) for ending in self.command.endings]

    def check(self, own: Mapping[Source, str]) -> None:
        """Raise an error if photos or files that visattn did not write would be replaced."""
        every = [file for name in own.values() for file in (*self.files(name), f"{name}.json")]
        shared = [INDEX, f"{self.command.name}.csv", *self.command.shared]
        check_no_overwrite(self.path, [*every, *shared], self.names)
        if self.replace:
            return
        foreign: dict[str, str] = {}
        for path, name in own.items():
            foreign |= self._foreign(path, name)
        if not any(map(read_record, _records(self.path))):
            # Normalized as text, without following links or needing the folder to exist.
            paths = {name: os.path.normpath(self.path / name) for name in shared}
            present = [name for name, path in paths.items() if os.path.lexists(path)]
            foreign |= dict.fromkeys(present, "the folder has no records of visattn")
        if foreign:
            raise FileExistsError(
                f"--out {self.path} holds {format_names([*foreign])}, which would be replaced: "
                f"{next(iter(foreign.values()))}; choose another folder, or replace with "
                "--overwrite"
            )

    def _foreign(self, path: Source, name: str) -> dict[str, str]:
        """Return files that the results of a photo must not replace, with the reason."""
        file, expected = f"{name}.json", self.files(name)
        record = read_record(self.path / file)
        made = {"files": ()} if record is None else record[MADE]
        if record is None:
            expected.append(file)
        elif made["command"] != self.command.name:
            return {file: f"it holds results of visattn {made['command']}"}
        elif made["photo"] != str(path) and made["sha256"] != _digest(path):
            return {file: f"it holds results of {made['photo']}"}
        others = [name for name in expected if name not in made["files"]]
        present = [name for name in others if os.path.lexists(self.path / name)]
        return dict.fromkeys(present, "no record of visattn names it")

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Create the folder, and a temporary one for unfinished files in the context."""
        create_folder(self.path)
        with temporary_folder(self.path / "visattn") as self._temporary:
            yield

    def start(self, path: Source) -> Item:
        """Read a photo, or the record of a finished one, in a thread."""
        from visattn.images.reader import read_image

        name = self.names[path]
        sha256 = _digest(path)  # before the photo is read, since the file may change at any time
        record = None if self.replace else read_record(self.path / f"{name}.json")
        if record is not None:
            made = record[MADE]
            same = made["command"] == self.command.name and made["settings"] == self._settings
            present = all((self.path / file).exists() for file in made["files"])
            if same and present and made["sha256"] == sha256 and not made.get("problem"):
                return Item(path, sha256, record=record)
        return Item(path, sha256, (self.command.read or read_image)(path))

    def finish(self, item: Item) -> tuple[Mapping[str, Any], str]:
        """Draw and write a result, in a thread; return its record and what it lacks."""
        if item.record is not None:
            return item.record, ""
        name = self.names[item.path]
        try:
            result = self.command.draw(item.image, item.result, self.files(name))
            return self._write(item, name, result), result.problem
        except (OSError, ValueError) as error:
            return {}, str(error)

    def _write(self, item: Item, name: str, result: Made) -> Mapping[str, Any]:
        new = {file: self._stage(content) for file, content in result.files.items()}
        made = {
            "command": self.command.name,
            "name": name,
            "photo": str(item.path),
            "sha256": item.sha256,
            "settings": self._settings,
            "files": [*new],
            "rows": [[str(field) for field in row] for row in result.rows],
            "table": [*result.table],
            "card": {"caption": result.caption, "thumbnail": result.thumbnail},
            "problem": result.problem,
        }
        last = self._stage(_encode({**result.record, MADE: made}))
        file = self.path / f"{name}.json"
        before = read_record(file)
        old = set() if before is None else {*before[MADE]["files"]}
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = {**made, "settings": None, "files": sorted({*old, *new})}
        atomic_write(file, _encode({MADE: unfinished}))
        for target, staged in new.items():
            (self.path / target).parent.mkdir(parents=True, exist_ok=True)
            staged.replace(self.path / target)
        for target in old - {*new}:
            (self.path / target).unlink(missing_ok=True)
        last.replace(file)
        for parent in {(self.path / target).parent for target in new} | {file.parent}:
            flush(parent)  # so that the new names survive a crash
        return {**result.record, MADE: made}

    def _stage(self, content: bytes) -> Path:
        path = self._temporary / str(next(self._numbers))
        path.write_bytes(content)
        flush(path)
        return path


def read_record(file: Path) -> dict[str, Any] | None:
    """Return the record of a result; None if the file is not a record of visattn.

    A record that lists files outside of its folder was not written by visattn.

    Example:
        >>> read_record(Path("no_such_record.json")) is None
        True
    """
    try:
        record = read_json(file)
        made = record[MADE]
        outside = any(".." in name.split("/") or name.startswith("/") for name in made["files"])
        keys = {"settings", "sha256", "name", "rows", "table", "card"}
        known = keys <= made.keys() and made["command"] + made["photo"]
        return record if known and not outside else None
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


def encode_figure(figure: Any, file: str) -> bytes:
    """Return a matplotlib figure as file content, in the format of the file name."""
    from visattn.viz.figures import png

    if file.endswith(".png"):
        return png(figure)
    buffer = io.BytesIO()
    figure.savefig(buffer, format=file.rpartition(".")[2])
    return buffer.getvalue()


def index_link(name: str) -> str:
    """Return the link from the page of a photo to the index.

    Example:
        >>> index_link("a/dog")
        '../index.html'
    """
    return "../" * name.count("/") + INDEX


def _digest(path: Source) -> str:
    """Return the digest of a photo; "" if it cannot be read (its reader reports that)."""
    try:
        return file_digest(path)
    except (OSError, ValueError):
        return ""


def _encode(record: Mapping[str, Any]) -> bytes:
    """Return a record as JSON, with null for NaN."""
    return json.dumps(_finite(record), allow_nan=False).encode() + b"\n"


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list | tuple) else value


def write_index(folder: Path, command: Command) -> None:
    """Write the table and the index of all results of a command in a folder.

    Both are built from all records, including those of other processes (`--shard`).
    """
    from visattn.viz.html.index_page import index_page

    cards: list[Card] = []
    newest = 0.0
    rows: list[Mapping[str, object]] = []
    for record in finished_records(folder, command.name):
        made = record[MADE]
        if not (folder / made["files"][0]).exists():  # removed in the meantime
            continue
        rows += ({"photo": made["photo"], **row} for row in made["table"])
        thumbnail = made["card"]["thumbnail"] if len(cards) < _THUMBNAILS else ""
        first = next(iter(made["table"]), {})
        label, share = first.get("class"), first.get("probability")
        label = "" if label is None else str(label)
        shown = made["name"], made["files"][0], made["card"]["caption"], thumbnail
        cards.append(Card(*shown, label, share, truth=Path(made["photo"]).parent.name))
        newest = max(newest, (folder / f"{made['name']}.json").stat().st_mtime)
    if cards:
        if not all(each.truth in command.classes and each.label for each in cards):
            cards = [each._replace(truth="") for each in cards]
        day = datetime.fromtimestamp(newest).astimezone()
        others = (each["model"] for each in command.settings.get("others", ()))
        models = [str(command.settings.get("model", "")), *others]
        typed = sys.argv[1:] if sys.argv[1:2] == [command.name] else [command.name]
        line = shlex.join(["visattn", *typed])
        about = [*filter(None, models), line, f"{day.day} {day:%B %Y}"]
        atomic_write(folder / INDEX, index_page(cards, title=command.title, about=about))
    if rows:
        atomic_write(folder / f"{command.name}.csv", csv_table(rows))


def csv_table(rows: Sequence[Mapping[str, object]]) -> str:
    r"""Return rows as CSV (RFC 4180) with a header; columns in the order of their first use.

    Example:
        >>> csv_table([{"image": "a", "class": "red, round"}, {"image": "b", "score": 0.5}])
        'image,class,score\r\na,"red, round",\r\nb,,0.5\r\n'
    """
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, dict.fromkeys(column for row in rows for column in row))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def finished_records(folder: Path, command: str) -> Iterator[Mapping[str, Any]]:
    """Yield the records of all results of a command in a folder."""
    for file in _records(folder):
        record = read_record(file)
        made = {} if record is None else record[MADE]
        if record is not None and made["command"] == command and made["settings"] is not None:
            yield record


def _records(folder: Path) -> Iterator[Path]:
    """Yield the JSON files of a folder and of its subfolders without an index."""
    for parent, folders, files in os.walk(folder):
        folders[:] = [each for each in folders if not Path(parent, each, INDEX).exists()]
        folders.sort()
        yield from (Path(parent, each) for each in sorted(files) if each.endswith(".json"))
