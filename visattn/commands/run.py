"""The engine of all commands that do something to every image: read, infer, write, resume.

A command is a `Job`. Images are read and results are drawn in threads, one per core, while the
model works on a batch; rows appear in the order of the images. Results that an earlier run finished
in the same way are not computed again; files that visattn did not write are not replaced.
"""

import argparse
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
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
    report_failures,
    result_names,
    select_shard,
)
from visattn.commands.image_options import describe_images
from visattn.commands.index import SEEN, Row, write_index
from visattn.commands.model_option import autocast, file_digest
from visattn.commands.options import describe_model, print_dry_run
from visattn.commands.records import (
    INDEX,
    Origin,
    Part,
    Record,
    ResultFolder,
    plain_values,
    read_record,
    record_files,
    refuse_foreign,
)
from visattn.commands.streams import Activity, activity, print_row, print_where
from visattn.io.atomic import atomic_write
from visattn.io.safe_text import print_message
from visattn.io.sources import Source

if TYPE_CHECKING:  # torch and Pillow are imported when the command runs, not for its help
    from torch import nn

    from visattn.images.reader import LoadedImage

Result = TypeVar("Result")
_WHOLE = 0.995  # share of a photo that is printed as 100 %


class _QueuedImage(NamedTuple):
    """An image on its way: read; inferred; or finished by an earlier run, with its records."""

    path: Source
    image: Any = None
    result: Any = None
    records: tuple[Record, ...] | None = None


class _Written(NamedTuple):
    """What a thread returns of an image: its records, and why files are missing."""

    records: tuple[Record, ...] = ()
    reason: str = ""


class Job(ABC, Generic[Result]):
    """What a command does to each image, and the files of its results.

    Args:
        args: Options of the command: `images`, `out`, `strict`; and `shard`, `overwrite`,
            `autocast`, if the command has them.

    Raises:
        FileNotFoundError: If an image does not exist.
    """

    command: str
    title: str = "Captions"
    """Heading of the index."""
    kinds: tuple[str, ...] = ()
    """Files of an image besides its record, with `{}` for its name."""
    reserved: str = "index"
    """A name that no image may have."""
    index_of_one: bool = False
    """Whether there is an index of a single image, too."""
    writes_shared: bool = True
    """Whether index, table and boxes of all images are written."""
    work: str = "computing"
    """What is done to an image, for the line that shows the progress."""
    resizes: bool = True
    """Whether `--resize-mode` decides how a photo becomes the input of the model."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.out: Path | None = args.out
        self.skipped: list[str] = []
        paths = self.find()
        # Images get their names before they are divided, so that all shards agree on them.
        self.all_names = result_names(paths, self.roots, reserved=self.reserved)
        self.shard: tuple[int, int] | None = getattr(args, "shard", None)
        self.names = select_shard(self.all_names, self.shard)
        self.overwrite = bool(getattr(args, "overwrite", False))
        boxes = self.writes_shared and hasattr(args, "boxes")
        self.boxes_file = BoxFile(args, self.all_names) if boxes else None
        self.folder = None if self.out is None else ResultFolder(self.out)
        several = len(self.all_names) > 1 or self.index_of_one
        self.has_index = self.writes_shared and (several or self._has_own_index())
        self._known_digests: dict[Source, dict[str, Any]] = {}
        self._checked = False
        self._activity = Activity()

    @property
    def roots(self) -> "Sequence[Path | str]":
        """What was searched for images: their results get the subfolders that they have there."""
        return getattr(self.args, "images", ())

    def find(self) -> Sequence[Source]:
        """Return the images of the command line."""
        missing = getattr(self.args, "files_from", None) is not None
        return find_input_images(
            self.args.images, self.args.out, self.skipped, keep_missing=missing
        )

    def read(self, path: Source) -> Any:
        """Read an image, in a thread.

        Raises:
            ImageError: If it cannot be read.
        """
        from visattn.images.reader import read_image

        return read_image(path)

    @abstractmethod
    def load(self) -> "tuple[nn.Module, str]":
        """Load the model on its device; return it with its file or name.

        Raises:
            FileNotFoundError: If a file, directory or run does not exist.
            ValueError: If it is a model of another kind, or an option does not fit it.
        """

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
    def settings(self) -> dict[str, Any]:
        """Return model and options; with others, a result is computed again."""

    def settings_of(self, name: str, stem: str) -> dict[str, Any]:
        """Return settings that the results of an image do not share."""
        del name, stem
        return {}

    def is_same(self, saved: Any, settings: Mapping[str, Any]) -> bool:
        """Whether a result with these saved settings need not be computed again."""
        return saved == settings

    def digests(self, path: Source) -> dict[str, Any]:
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
    def rows(self, record: Record) -> Iterable[Sequence[object]]:
        """Yield the printed rows of a record, without the name of the image."""

    @staticmethod
    def table(record: Record) -> Iterable[Row]:
        """Yield the rows of a record in the table, without the name of the image."""
        del record
        return ()

    def problems(self, record: Record) -> Iterable[str]:
        """Yield why a result is incomplete, although it was written."""
        del record
        return ()

    def finish(self, result: Result | None, records: Sequence[Record]) -> None:
        """Receive result and records of each image in order.

        Args:
            result: None if an earlier run finished the image.
            records: Its records.
        """

    def main_file(self, name: str) -> str | None:
        """Return the file of an image to open first; None if there is none.

        Args:
            name: Name of the image.
        """
        files = [file for stem in self.stems(name) for file in self.files(name, stem)]
        return min(files, key=lambda file: not file.endswith(".html"), default=None)

    def extra_files(self) -> list[str]:
        """Return files of all images together, besides index and table."""
        return []

    @staticmethod
    def geometry(record: Record) -> Any:
        """Return the geometry in a record; None if there is none, or several photos have one."""
        maps = record.get("maps")
        return record.get("geometry") or (maps or {}).get("geometry")

    @classmethod
    def seen_share(cls, record: Record) -> float | None:
        """Return which share of a photo the model saw, in [0, 1]; None if that is not known."""
        geometry = cls.geometry(record)
        if not isinstance(geometry, dict):
            return None
        left, top, right, bottom = geometry["region"]
        height, width = geometry["image_size"]
        return round((right - left) * (bottom - top) / (height * width), 4)

    def notes(self) -> list[str]:
        """Return more lines of a dry run on what would be read."""
        return []

    def shared_files(self) -> list[str]:
        """Return the files of all images, besides the index."""
        return [f"{self.command}.csv", *self.extra_files()]

    def output_files(self) -> list[str]:
        """Return the files that a run writes."""
        files: list[str] = []
        if self.out is not None:
            for name in self.names.values():
                for stem in self.stems(name):
                    files += [*self.files(name, stem), f"{stem}.json"]
            files += [*[INDEX] * self.has_index, *self.shared_files()]
        boxes = getattr(self.args, "boxes", None)
        return [*files, *([] if boxes is None else [str(boxes.absolute())])]

    def check_files(self) -> None:
        """Refuse to replace files that visattn did not write, before anything is computed.

        Raises:
            FileExistsError: If there are such files.
            ValueError: If a file would overwrite an input image.
        """
        if self.boxes_file is not None:
            self.boxes_file.check()
        if self.out is None:
            return
        check_no_overwrite(self.out, self.output_files(), self.all_names)
        if self.overwrite:
            return
        foreign: dict[str, str] = {}
        present = [name for name in self.shared_files() if (self.out / name).exists()]
        if present and not any(map(read_record, record_files(self.out))):
            foreign = dict.fromkeys(present, "the folder has no records of visattn")
        if self.has_index and (self.out / INDEX).exists() and not self._has_own_index():
            foreign[INDEX] = "visattn did not write it"
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
        """Write a file of all images together, if there is an output folder.

        Raises:
            OSError: If it cannot be written.
        """
        if self.out is not None:
            atomic_write(self.out / name, content)

    def origin(self, path: Source, stem: str) -> Origin:
        """Return what a result is made from now.

        Args:
            path: The image.
            stem: Stem of the result.
        """
        name = self.all_names[path]
        settings = {**self._settings, **plain_values(self.settings_of(name, stem))}
        files = self.files(name, stem)
        return Origin(self.command, str(path), self._digests(path), settings, files)

    def finished(self, path: Source) -> tuple[Record, ...] | None:
        """Return the records of an image that an earlier run finished in the same way, else None.

        Args:
            path: The image.
        """
        records: list[Record] = []
        for stem in self.stems(self.all_names[path]):
            if self.folder is None:
                return None
            try:
                record = self.folder.finished(stem, self.origin(path, stem), self.is_same)
                if record is None:
                    return None
                # A record of another version fails here, where its image can be computed again.
                _ = [*self.rows(record)], [*self.problems(record)]
            except (OSError, ValueError, LookupError, TypeError, AttributeError):
                return None  # the image cannot be read, or the record is of another version
            records.append(record)
        return tuple(records)

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
        failures: dict[str, list[str]] = {}
        done: list[str] = []
        shares: list[float] = []

        with ExitStack() as stack:
            stack.enter_context(count_on_interrupt(done, len(self.names)))
            if self.out is not None and self.folder is not None:
                stack.enter_context(self.folder)
                if self.writes_shared:
                    stack.callback(write_index, self.out, self)  # also after an error
            self._activity = stack.enter_context(activity(self.work, len(self.names)))
            # No name may hold the iterators: after an error their threads would go on.
            for queued, written in map_in_threads(
                self._write,
                self._infer(self._batches(self.names, batch_size)),
                ahead=batch_size,
            ):
                records, reason = written()
                name = self.names[queued.path]
                for row in (row for each in records for row in self.rows(each)):
                    print_row(name, *row)
                self._activity.advance()
                done.append(name)
                problems = [f"{name}{text}" for each in records for text in self.problems(each)]
                if reasons := [*problems, *filter(None, [reason])]:
                    failures[name] = reasons
                shares += filter(None, map(self.seen_share, records))
                self.finish(queued.result, records)
                self._add_boxes(queued.path, records)
        if self.boxes_file is not None:
            self.boxes_file.write()
        if self.writes_shared:
            self._report_seen(shares)
        code = report_failures(self.skipped, failures, len(self.names))
        if self.writes_shared and done:
            self._report_boxed_letters()
            self._report_file(done[0])
            self._report_other_shards()
        return code

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

    @cached_property
    def _settings(self) -> dict[str, Any]:
        return plain_values(self.settings())

    def _digests(self, path: Source) -> dict[str, Any]:
        """Return the digests of an image, which is read once for all its results."""
        if path not in self._known_digests:
            self._known_digests[path] = self.digests(path)
        return self._known_digests[path]

    def _has_own_index(self) -> bool:
        from visattn.images.sources import is_result_folder

        return self.out is not None and is_result_folder(self.out)

    def _foreign(self, path: Source) -> dict[str, str]:
        """Return the files that the results of an image may not replace, with the reasons."""
        name = self.names[path]
        foreign = dict[str, str]()
        for stem in self.stems(name):
            origin = Origin(self.command, str(path), {}, {}, self.files(name, stem))
            if self.folder is not None:
                try:
                    foreign |= self.folder.foreign(stem, origin, lambda: self._digests(path))
                except (OSError, ValueError):  # reported when the image is read
                    return {}
        return foreign

    def _read(self, path: Source) -> _QueuedImage:
        """Read an image, or the records of a finished one, in a thread."""
        records = None if self.overwrite else self.finished(path)
        return _QueuedImage(path, None if records else self.read(path), records=records)

    def _batches(self, paths: Iterable[Source], size: int) -> Iterator[list[_QueuedImage]]:
        """Yield batches of images, and the finished images between them, in order."""
        from visattn.images.reader import ImageError

        batch: list[_QueuedImage] = []
        for _, result in map_in_threads(self._read, paths):
            try:
                batch.append(result())
            except ImageError as error:
                if self.args.strict:
                    raise
                self._skip(error)
                continue
            # Finished images wait only behind images that wait for their batch.
            images = [queued.image for queued in batch if queued.image is not None]
            pixels = sum(image.num_pixels for image in images)
            if len(images) == size or pixels >= PIXELS_PER_BATCH or not images:
                yield batch
                batch = []
        if batch:
            yield batch

    def _infer(self, batches: Iterable[list[_QueuedImage]]) -> Iterator[_QueuedImage]:
        """Yield the images with their results."""
        count = 0
        for batch in batches:
            images = [queued.image for queued in batch if queued.image is not None]
            first, count = count + 1, count + len(batch)
            which = f"image {first}" if first == count else f"images {first} to {count}"
            self._activity.show(f"{self.work} {which}")
            with autocast(self.args):
                results = iter(self.infer(images) if images else ())
            for queued in batch:
                result = None if queued.image is None else next(results)
                if isinstance(result, Exception):
                    self._skip(result)
                else:
                    yield queued._replace(result=result)

    def _skip(self, error: Exception) -> None:
        self.skipped.append(str(error))
        self._activity.advance()

    def _write(self, queued: _QueuedImage) -> _Written:
        """Draw and write the results of an image, in a thread."""
        if queued.records is not None:
            return _Written(queued.records)
        parts: list[Part] = []
        reason = ""
        try:
            parts += self.parts(self.names[queued.path], queued.image, queued.result)
            for part in parts:
                if (share := self.seen_share(part.record)) is not None:
                    part.record[SEEN] = share
            if self.folder is not None:
                for part in parts:
                    self.folder.write(part, self.origin(queued.path, part.stem))
        except (OSError, ValueError) as error:
            reason = f"{queued.image.name}: {error}"
        return _Written(tuple(part.record for part in parts), reason)

    def _add_boxes(self, path: Source, records: Sequence[Record]) -> None:
        """Add the boxes of an image to their file, also if an earlier run finished it."""
        several = [record["boxes"] for record in records if "boxes" in record]
        if self.boxes_file is not None and several:
            from visattn.results.map_boxes import MapBoxes

            self.boxes_file.add(path, join_boxes([MapBoxes.from_dict(boxes) for boxes in several]))

    def _report_seen(self, shares: Sequence[float]) -> None:
        """Print which share of the photos the model saw, if it did not see all of them."""
        if not shares or min(shares) >= _WHOLE:
            return
        lowest, highest = (f"{100 * share:.0f} %" for share in (min(shares), max(shares)))
        photos = "photo" if len(self.names) == 1 else "photos"
        share = lowest if lowest == highest else f"{lowest} to {highest}"
        whole = "all of it" if len(self.names) == 1 else "all of them"
        advice = f"; --resize-mode squash or pad shows {whole}" * self.resizes
        print_message(f"the model saw {share} of the {photos} (center crop){advice}")

    def _report_boxed_letters(self) -> None:
        """Print which letters figures show as boxes, if there are any."""
        from visattn.viz.text import pop_boxed_letters

        if self.out is not None and (letters := pop_boxed_letters()):
            print_message(
                f"figures show boxes for {len(letters)} letters that no font of this system has, "
                f"such as {letters[:8]}: install a font that has them, such as Noto Sans CJK, and "
                "run the command again with --overwrite; pages use the fonts of the browser"
            )

    def _report_file(self, name: str) -> None:
        """Print which file to open: the index, or that of an image."""
        file = INDEX if self.has_index else self.main_file(name)
        if self.out is not None and file is not None and (self.out / file).exists():
            print_where(self.out / file)

    def _report_other_shards(self) -> None:
        """Print how many images of other shards have no results yet."""
        if self.out is None or self.shard is None:
            return
        others = [name for path, name in self.all_names.items() if path not in self.names]
        missing = sum(
            not all((self.out / f"{stem}.json").exists() for stem in self.stems(name))
            for name in others
        )
        rest = f"{missing:,} have no results yet" if missing else "all have results"
        print_message(f"of the {len(others):,} images of other shards {rest}")


def run_job(
    kind: Callable[[argparse.Namespace], Job[Any]], args: argparse.Namespace, *, batch_size: int = 1
) -> int:
    """Load the model of a job and process all images, or print what would be; return the exit code.

    Args:
        kind: Class of the job.
        args: Options of the command.
        batch_size: Images per batch.

    Raises:
        FileNotFoundError: If an image or a file of the model does not exist.
        FileExistsError: If a file would be replaced that visattn did not write.
        ValueError: If the model does not fit, or a file would overwrite an image.
        ImageError: If an image cannot be read with `--strict`.
        OSError: If the output folder cannot be written.
    """
    dry_run = getattr(args, "dry_run", False)
    with activity("loading the model"):
        job = kind(args)
        if not dry_run:
            job.check_files()  # before the model is loaded
        model, source = job.load()
    if dry_run:
        return job.dry_run(model, source)
    return job.run(batch_size=batch_size)
