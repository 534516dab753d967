"""The engine of all commands that do something to every image: read, infer, write, resume.

A command is a `Job`. Images are read and results are drawn in threads, one per core, while the
model works on a batch; rows appear in the order of the images. Results that an earlier run finished
in the same way are not computed again; files that visattn did not write are not replaced.
"""

import argparse
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from visattn.commands.boxes import BoxFile, join_boxes
from visattn.commands.files import (
    PIXELS_PER_BATCH,
    check_no_overwrite,
    count_on_interrupt,
    find_input_images,
    map_in_threads,
    mirrored_names,
    report_failures,
    select_shard,
    unique_names,
)
from visattn.commands.index import (
    INDEX,
    FolderIndex,
    Row,
    check_index,
    csv_table,
    has_index,
    parquet_table,
)
from visattn.commands.model_option import file_digest
from visattn.commands.options import describe_images, describe_model, print_dry_run
from visattn.commands.records import (
    PROVENANCE,
    Origin,
    Part,
    Record,
    ResultFolder,
    plain_values,
    refuse_foreign,
)
from visattn.commands.streams import print_row, progress_bar
from visattn.io.written_files import WrittenFiles, replace_files

if TYPE_CHECKING:  # torch and Pillow are imported when the command runs, not for its help
    from torch import nn

    from visattn.images.reader import LoadedImage

Result = TypeVar("Result")


class _Task(NamedTuple):
    """An image on its way: read; inferred; or finished by an earlier run, with its records."""

    path: Path
    image: Any = None
    result: Any = None
    records: tuple[Record, ...] | None = None


class _Written(NamedTuple):
    """What a thread returns of an image: its records, and why files are missing."""

    records: tuple[Record, ...] = ()
    reason: str = ""


class Job(ABC, Generic[Result]):
    """What a command does to each image.

    Args:
        args: Options of the command: `images`, `out`, `strict`; and `shard`, `overwrite`, `mirror`,
            `autocast`, if the command has them.
        kinds: Files of an image besides its record, with `{}` for its name.
        reserved: A name that no image may have.

    Raises:
        FileNotFoundError: If an image does not exist.
        ValueError: If a file would overwrite an image, or an index is not one of visattn.
    """

    command: str
    title: str = "Captions"
    """Heading of the index."""
    index_of_one: bool = False
    """Whether there is an index of a single image, too."""
    writes_shared: bool = True
    """Whether index, table and boxes of all images are written."""

    def __init__(
        self, args: argparse.Namespace, kinds: Sequence[str], *, reserved: str = "index"
    ) -> None:
        self.args = args
        self.out = args.out
        self.kinds = tuple(kinds)
        self.skipped: list[str] = []
        paths = self.find()
        self.mirrored = bool(getattr(args, "mirror", False))
        # Images get their names before they are divided, so that all shards agree on them.
        self.all_names = (
            mirrored_names(paths, args.images, reserved=reserved)
            if self.mirrored
            else unique_names(paths, reserved=reserved)
        )
        self.names = select_shard(self.all_names, getattr(args, "shard", None))
        self.overwrite = bool(getattr(args, "overwrite", False))
        self.parquet = bool(getattr(args, "parquet", False))
        if self.parquet:
            parquet_table([])  # refuses before anything is computed
        boxes = self.writes_shared and hasattr(args, "boxes")
        self._boxes = BoxFile(args, self.all_names) if boxes else None
        self._known_digests: dict[Path, dict[str, Any]] = {}
        self._checked = False
        self.folder: ResultFolder | None = None
        self.has_index = False
        if self.out is not None:
            self.folder = ResultFolder(self.out)
            several = len(self.all_names) > 1 or self.index_of_one
            self.has_index = self.writes_shared and (several or has_index(self.out))
            if self.has_index:
                check_index(self.out)

    def find(self) -> list[Path]:
        """Return the images of the command line."""
        return find_input_images(self.args.images, self.args.out, self.skipped)

    def read(self, path: Path) -> Any:
        """Read an image, in a thread.

        Raises:
            ImageError: If it cannot be read.
        """
        from visattn.images.reader import read_image

        return read_image(path)

    def digests(self, path: Path) -> dict[str, Any]:
        """Return what tells whether an image has changed since an earlier run."""
        return {"image_sha256": file_digest(path)}

    def stems(self, name: str) -> list[str]:
        """Return the stems of the results of an image; each has a record."""
        return [name]

    def files(self, name: str, stem: str) -> list[str]:
        """Return the files that a result may have, besides its record."""
        del name
        return [kind.format(stem) for kind in self.kinds]

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Return model and options; with others, a result is computed again."""

    def settings_of(self, name: str, stem: str) -> dict[str, Any]:
        """Return settings that the results of an image do not share."""
        del name, stem
        return {}

    def is_same(self, saved: Any, settings: Mapping[str, Any]) -> bool:
        """Whether a result with these saved settings need not be computed again."""
        return saved == settings

    @abstractmethod
    def infer(self, images: "Sequence[LoadedImage]") -> "Sequence[Result | Exception]":
        """Return the result of each image, or the reason why it is skipped."""

    @abstractmethod
    def parts(self, name: str, image: "LoadedImage", result: Result) -> Iterable[Part]:
        """Return the records of an image and, if there is an output folder, its files.

        Called in a thread.

        Raises:
            OSError: If the disk is full.
            ValueError: If the result cannot be drawn.
        """

    @abstractmethod
    def rows(self, record: Record) -> Iterable[Sequence[object]]:
        """Yield the printed rows of a record, without the name of the image."""

    def table(self, record: Record) -> Iterable[Row]:
        """Yield the rows of a record in the table, without the name of the image."""
        del record
        return ()

    def problems(self, record: Record) -> Iterable[str]:
        """Yield why a result is incomplete, although it was written."""
        del record
        return ()

    def finish(self, result: Result | None) -> None:
        """Receive the result of each image in order; None if an earlier run finished it."""

    def extra_files(self) -> list[str]:
        """Return files of all images together, besides index and table."""
        return []

    def run(self, *, batch_size: int = 1) -> int:
        """Process all images; return the exit code.

        Args:
            batch_size: Images per batch.

        Raises:
            FileExistsError: If a file would be replaced that visattn did not write.
            ImageError: If an image cannot be read with `--strict`.
            OSError: If the output folder cannot be written.
        """
        if not self._checked:
            self.check_files()
        if self.folder is not None:
            _ = self._settings  # before threads need them
        # All stages are generators, pulled by the loop below, so that a few batches are in memory:
        #
        #     names -> _read -> _batches -> _infer -> _write -> rows, index
        #              threads              here      threads   here
        #
        # Finished images pass through with their records: rows have the order of the images.
        failures: list[str] = []
        done: list[str] = []
        with ExitStack() as stack:
            stack.enter_context(count_on_interrupt(done, len(self.names)))
            index = self._open_folder(stack)
            progress = stack.enter_context(progress_bar(len(self.names)))
            paths = progress.track(self.names) if progress else self.names
            tasks = self._infer(self._batches(paths, batch_size))
            for task, written in map_in_threads(self._write, tasks, ahead=batch_size):
                records, reason = written()
                failures += self._report(self.names[task.path], records)
                failures += [reason] if reason else []
                self.finish(task.result)
                self._add_boxes(task.path, records)
                done.append(self.names[task.path])
                if index is not None:
                    index.refresh()
        if self._boxes is not None:
            self._boxes.write()
        return report_failures(self.skipped, failures, len(self.names))

    def _add_boxes(self, path: Path, records: Sequence[Record]) -> None:
        """Add the boxes of an image to their file, also if an earlier run finished it."""
        several = [record["boxes"] for record in records if "boxes" in record]
        if self._boxes is not None and several:
            from visattn.results.map_boxes import MapBoxes

            self._boxes.add(path, join_boxes([MapBoxes.from_dict(each) for each in several]))

    def dry_run(self, model: "nn.Module", source: str) -> int:
        """Print what would be read and written; return 0.

        Args:
            model: The model.
            source: Its file or name.

        Raises:
            FileExistsError: If a file would be replaced that visattn did not write.
        """
        self.check_files()
        reads = [describe_images([*self.names]), describe_model(model, source), *self.notes()]
        return print_dry_run(reads, self.out, self.output_files())

    def notes(self) -> list[str]:
        """Return more lines of a dry run on what would be read."""
        return []

    def output_files(self) -> list[str]:
        """Return the files that a run writes."""
        files: list[str] = []
        if self.out is not None:
            for name in self.names.values():
                for stem in self.stems(name):
                    files += [*self.files(name, stem), f"{stem}.json"]
            files += [*[INDEX] * self.has_index, *self.shared_files()]
        boxes = getattr(self.args, "boxes", None)
        return files if boxes is None else [*files, str(boxes.absolute())]

    def check_files(self) -> None:
        """Refuse to replace files that visattn did not write, before anything is computed.

        Raises:
            FileExistsError: If there are such files.
            ValueError: If a file would overwrite an input image.
        """
        if self._boxes is not None:
            self._boxes.check()
        if self.out is None:
            return
        check_no_overwrite(self.out, self.output_files(), self.all_names)
        if self.overwrite or not self.out.is_dir():
            return
        WrittenFiles.read(self.out).check(self.shared_files())
        foreign: dict[str, str] = {}
        for _, reasons in map_in_threads(self._foreign, self.names):
            foreign |= reasons()
        refuse_foreign(self.out, foreign)
        self._checked = True

    def index_link(self, name: str) -> str | None:
        """Return the link from the page of an image to the index; None without an index.

        Args:
            name: Name of the image.
        """
        return "../" * name.count("/") + INDEX if self.has_index else None

    def write_shared(self, name: str, content: bytes) -> None:
        """Write a file of all images together.

        Args:
            name: Its name.
            content: Its content.

        Raises:
            OSError: If it cannot be written.
        """
        if self.out is None:
            return
        path = self.out / name
        if path.is_file() and path.read_bytes() == content:
            return
        with replace_files(self.out, name, overwrite=self.overwrite) as part:
            (part / name).write_bytes(content)

    def shared_files(self) -> list[str]:
        """Return the files of all images, besides the index."""
        tables = [f"{self.command}.csv", *[f"{self.command}.parquet"] * self.parquet]
        return [*tables, *self.extra_files()]

    def _foreign(self, path: Path) -> dict[str, str]:
        """Return the files that the results of an image may not replace, with the reasons."""
        name = self.names[path]
        foreign = dict[str, str]()
        files = {stem: self.files(name, stem) for stem in self.stems(name)}
        every = [file for stem in files for file in (f"{stem}.json", *files[stem])]
        if self.folder is None or not any((self.folder.path / file).exists() for file in every):
            return {}
        try:
            digests = self._digests(path)
        except (OSError, ValueError):  # reported when the image is read
            return {}
        for stem, names in files.items():
            origin = Origin(self.command, str(path), digests, {}, names)
            foreign |= self.folder.foreign(stem, origin)
        return foreign

    def _open_folder(self, stack: ExitStack) -> FolderIndex | None:
        """Open the output folder, if there is one; return its index, written at the end."""
        if self.folder is None:
            return None

        def rows(record: Record) -> Iterator[Row]:
            image = record[PROVENANCE]["image"]
            return ({"image": image, **row} for row in self.table(record))

        stack.enter_context(self.folder)
        if not self.writes_shared:
            return None
        index = FolderIndex(
            self.folder.path,
            self.title,
            self.command,
            rows,
            pages=self.has_index,
            deep=self.mirrored,
        )
        stack.callback(self._write_index, index)
        return index

    def _write_index(self, index: FolderIndex) -> None:
        """Write the index, and the table of all results of the command in the folder."""
        rows = index.write()
        self.write_shared(f"{self.command}.csv", csv_table(rows))
        if self.parquet:
            self.write_shared(f"{self.command}.parquet", parquet_table(rows))

    def _report(self, name: str, records: Sequence[Record]) -> list[str]:
        """Print the rows of an image; return why results are incomplete."""
        for record in records:
            for row in self.rows(record):
                print_row(name, *row)
        return [f"{name}{each}" for record in records for each in self.problems(record)]

    @cached_property
    def _settings(self) -> dict[str, Any]:
        return plain_values(self.settings())

    def origin(self, path: Path, stem: str) -> Origin:
        """Return what a result is made from now.

        Args:
            path: The image.
            stem: Stem of the result.
        """
        name = self.all_names[path]
        settings = {**self._settings, **plain_values(self.settings_of(name, stem))}
        files = self.files(name, stem)
        return Origin(self.command, str(path), self._digests(path), settings, files)

    def _digests(self, path: Path) -> dict[str, Any]:
        """Return the digests of an image, which is read once for all its results."""
        if path not in self._known_digests:
            self._known_digests[path] = self.digests(path)
        return self._known_digests[path]

    def finished(self, path: Path) -> tuple[Record, ...] | None:
        """Return the records of an image that an earlier run finished in the same way, else None.

        Args:
            path: The image.
        """
        records: list[Record] = []
        for stem in self.stems(self.all_names[path]):
            if self.folder is None:
                return None
            try:
                origin = self.origin(path, stem)
                record = self.folder.finished(stem, origin, self.is_same)
                if record is None:
                    return None
                # A record of another version fails here, where its image can be computed again.
                _ = [*self.rows(record)], [*self.problems(record)]
            except (OSError, ValueError, LookupError, TypeError, AttributeError):
                return None  # the image cannot be read, or the record is of another version
            records.append(record)
        return tuple(records)

    def _read(self, path: Path) -> _Task:
        """Read an image, or the records of a finished one, in a thread."""
        records = None if self.overwrite else self.finished(path)
        return _Task(path, None if records else self.read(path), records=records)

    def _batches(self, paths: Iterable[Path], size: int) -> Iterator[list[_Task]]:
        """Yield batches of images, and the finished images between them, in order."""
        from visattn.images.reader import ImageError
        from visattn.images.video import VideoError

        batch: list[_Task] = []
        for _, result in map_in_threads(self._read, paths):
            try:
                batch.append(result())
            except (ImageError, VideoError) as error:
                if self.args.strict:
                    raise
                self.skipped.append(str(error))
                continue
            # Finished images wait only behind images that wait for their batch.
            images = [task.image for task in batch if task.image is not None]
            pixels = sum(image.num_pixels for image in images)
            if len(images) == size or pixels >= PIXELS_PER_BATCH or not images:
                yield batch
                batch = []
        if batch:
            yield batch

    def _infer(self, batches: Iterable[list[_Task]]) -> Iterator[_Task]:
        """Yield the images with their results."""
        for batch in batches:
            images = [task.image for task in batch if task.image is not None]
            with autocast(self.args):
                results = iter(self.infer(images) if images else ())
            for task in batch:
                result = None if task.image is None else next(results)
                if isinstance(result, Exception):
                    self.skipped.append(str(result))
                else:
                    yield task._replace(result=result)

    def _write(self, task: _Task) -> _Written:
        """Draw and write the results of an image, in a thread."""
        if task.records is not None:
            return _Written(task.records)
        parts: list[Part] = []
        try:
            parts += self.parts(self.names[task.path], task.image, task.result)
            if self.folder is not None:
                for part in parts:
                    self.folder.write(part, self.origin(task.path, part.stem))
        except (OSError, ValueError) as error:
            reason = f"{task.image.name}: {error}"
            return _Written(tuple(part.record for part in parts), reason)
        return _Written(tuple(part.record for part in parts))


def autocast(args: argparse.Namespace) -> "AbstractContextManager[Any]":
    """Return the autocast context of `--autocast` and `--device`, or a null context.

    Args:
        args: Options of the command.

    Example:
        >>> with autocast(argparse.Namespace(autocast="bfloat16", device="cpu")):
        ...     (torch.ones(2, 3) @ torch.ones(3, 2)).dtype
        torch.bfloat16
    """
    if getattr(args, "autocast", None) is None:
        return nullcontext()
    import torch

    return torch.autocast(torch.device(args.device).type, getattr(torch, args.autocast))
