"""The engine of all commands that do something to every image: read, infer, write, resume.

A command is a `Job`. Images are read and results are drawn in threads, one per core, while the
model works on a batch; rows appear in the order of the images. Results that an earlier run finished
in the same way are not computed again; files that visattn did not write are not replaced.
"""

import argparse
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from visattn.commands.boxes import join_boxes
from visattn.commands.files import (
    PIXELS_PER_BATCH,
    count_on_interrupt,
    map_in_threads,
    report_failures,
)
from visattn.commands.image_options import describe_images
from visattn.commands.image_results import ImageResults
from visattn.commands.index import INDEX, SEEN
from visattn.commands.model_option import autocast
from visattn.commands.options import describe_model, print_dry_run
from visattn.commands.records import (
    Part,
    Record,
    plain_values,
)
from visattn.commands.streams import Activity, RowPrinter, activity, print_where
from visattn.commands.table_parts import TableParts
from visattn.io.locations import Location, Source
from visattn.io.safe_text import print_message

if TYPE_CHECKING:  # torch and Pillow are imported when the command runs, not for its help
    from torch import nn

    from visattn.images.reader import LoadedImage
    from visattn.viz.rendering import Figure

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


class Job(ImageResults, Generic[Result]):
    """What a command does to each image.

    Args:
        args: Options of the command: `images`, `out`, `strict`; and `shard`, `overwrite`,
            `autocast`, if the command has them.

    Raises:
        FileNotFoundError: If an image does not exist.
        ValueError: If a file would overwrite an image, or an index is not one of visattn.
    """

    columns: tuple[str, ...] = ("image",)
    """Headings of the printed rows."""
    work: str = "computing"
    """What is done to an image, for the line that shows the progress."""
    resizes: bool = True
    """Whether `--resize-mode` decides how a photo becomes the input of the model."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__(args)
        self._activity = Activity()

    def read(self, path: Source) -> Any:
        """Read an image, in a thread.

        Raises:
            ImageError: If it cannot be read.
        """
        from visattn.images.reader import read_image

        return read_image(path, display=getattr(self.args, "display", None))

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

    def finish(self, result: Result | None, records: Sequence[Record]) -> None:
        """Receive result and records of each image in order.

        Args:
            result: None if an earlier run finished the image.
            records: Its records.
        """

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
        if self.parts_of_table is not None:
            return self._run_table(self.parts_of_table, batch_size)
        if self.folder is not None:
            _ = self._settings  # before threads need them
        # All stages are generators, pulled by the loop below, so that a few batches are in memory:
        #
        #     names -> _read -> _batches -> _infer -> _write -> rows, index
        #              threads              here      threads   here
        #
        # Finished images pass through with their records: rows have the order of the images.
        if self.writes_shared and self.shard is not None and self.shard.origin:
            print_message(f"shard {self.shard} by {self.shard.origin}: {len(self.names):,} images")
        failures: dict[str, list[str]] = {}
        done: list[str] = []
        shares: list[float] = []
        printer = RowPrinter(self.columns, self.names.values())

        def report(queued: _QueuedImage, written: _Written) -> None:
            name = self.names[queued.path]
            rows = (row for record in written.records for row in self.rows(record))
            printer.print(*((name, *row) for row in rows))
            self._activity.advance()
            done.append(name)

        with ExitStack() as stack:
            stack.enter_context(count_on_interrupt(done, len(self.names)))
            index = self.open_folder(stack)
            self._activity = stack.enter_context(activity(self.work, len(self.names)))
            # No name may hold the iterators: after an error their threads would go on.
            for queued, written in map_in_threads(
                self._write,
                self._infer(self._batches(self.names, batch_size)),
                ahead=batch_size,
                report=report,
                threads=self.threads,
            ):
                records, reason = written()
                name = self.names[queued.path]
                problems = [f"{name}{text}" for each in records for text in self.problems(each)]
                if reasons := [*problems, *filter(None, [reason])]:
                    failures[name] = reasons
                shares += filter(None, map(self.seen_share, records))
                self.finish(queued.result, records)
                self._add_boxes(queued.path, records)
                if index is not None:
                    index.refresh()
        if self.boxes_file is not None:
            self.boxes_file.write()
        if self.writes_shared:
            self._report_seen(shares)
        code = max(self._write_figure(), report_failures(self.skipped, failures, len(self.names)))
        if self.writes_shared and done:
            self._report_boxed_letters()
            self._report_file(done[0])
        if self.writes_shared and self.shard is not None:
            self.report_other_shards()
        return code

    def _run_table(self, parts: TableParts, batch_size: int) -> int:
        """Write the parts of a table; return the exit code."""
        stems = [(name, stem) for name in self.names.values() for stem in self.stems(name)]
        of_image = [self.settings_of(*each) for each in stems if each[0] == stems[0][0]]
        settings = plain_values({**self._settings, "results": of_image})
        with activity(self.work, len(self.names)) as self._activity:
            errors = parts.run(self, settings, batch_size)
        print_message(f"table: {parts.out}")
        return max(report_failures(self.skipped, {}, len(self.names)), int(errors > 0))

    def rows_of(
        self, paths: Sequence[Source], size: int
    ) -> Iterator[tuple[Source, Sequence[Mapping[str, Any]]]]:
        """Yield the images that have results, with their rows of a table."""
        for queued in self._infer(self._batches(paths, size)):
            yield queued.path, [*self.result_rows(queued.result)]
            self._activity.advance()

    def draw_figure(self) -> "Figure | None":
        """Return the figure of `--figure` from what is in the folder; None without any map."""
        raise NotImplementedError

    def _write_figure(self) -> int:
        """Write the file of `--figure`; return 0, or 1 if there is nothing to draw."""
        if self.figure_file is None:
            return 0
        if (drawn := self.draw_figure()) is None:
            print_message(f"{self.figure_file.path} is not written: no photo has maps")
            return 1
        self.figure_file.write(drawn)
        return 0

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
        """Print which file to open."""
        file = INDEX if self.has_index else self.main_file(name)
        if self.out is None:
            return
        if not self.out.renames:
            print_message(f"index and table of all results: visattn index {self.out}")
        elif file is not None and self.out.exists(file):
            print_where(self.out.where(file))

    def _add_boxes(self, path: Source, records: Sequence[Record]) -> None:
        """Add the boxes of an image to their file, also if an earlier run finished it."""
        several = [record["boxes"] for record in records if "boxes" in record]
        if self.boxes_file is not None and several:
            from visattn.results.map_boxes import MapBoxes

            self.boxes_file.add(path, join_boxes([MapBoxes.from_dict(boxes) for boxes in several]))

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
        return print_dry_run(
            reads,
            self.args.out,
            self.output_files(),
            present=None if self.out is None else self.out.exists,
        )

    def notes(self) -> list[str]:
        """Return more lines of a dry run on what would be read."""
        return []

    def _read(self, path: Source) -> _QueuedImage:
        """Read an image, or the records of a finished one, in a thread."""
        records = None if self.overwrite else self.finished(path)
        if isinstance(path, Location):
            if records:
                path.release()
            elif self.folder is not None:
                with suppress(OSError, ValueError):  # reading it says why
                    self._digests(path)  # before it is read, so that it is fetched once
        return _QueuedImage(path, None if records else self.read(path), records=records)

    def _batches(self, paths: Iterable[Source], size: int) -> Iterator[list[_QueuedImage]]:
        """Yield batches of images, and the finished images between them, in order."""
        from visattn.images.reader import ImageError
        from visattn.images.video import VideoError

        batch: list[_QueuedImage] = []
        for _, result in map_in_threads(self._read, paths, threads=self.threads):
            try:
                batch.append(result())
            except (ImageError, VideoError) as error:
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
            self._show_batch(count, len(batch))
            count += len(batch)
            with autocast(self.args):
                results = iter(self.infer(images) if images else ())
            for queued in batch:
                result = None if queued.image is None else next(results)
                if isinstance(result, Exception):
                    self._skip(result)
                else:
                    yield queued._replace(result=result)

    def _show_batch(self, before: int, size: int) -> None:
        """Show which images the model gets."""
        first = before + 1
        last = before + size
        which = f"image {first}" if size == 1 else f"images {first} to {last}"
        self._activity.show(f"{self.work} {which}")

    def _skip(self, error: Exception) -> None:
        self.skipped.append(str(error))
        self._activity.advance()

    def _write(self, queued: _QueuedImage) -> _Written:
        """Draw and write the results of an image, in a thread."""
        if queued.records is not None:
            return _Written(queued.records)
        parts: list[Part] = []
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
        return _Written(tuple(part.record for part in parts))


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
