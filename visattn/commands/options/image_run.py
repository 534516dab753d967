"""A run of a command over images: read, infer in batches, draw in threads, index, resume."""

import argparse
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from visattn.commands.options.dry_run import describe_images, describe_model, print_dry_run
from visattn.commands.options.folders import check_no_overwrite, create_folder, unique_names
from visattn.commands.options.image_index import INDEX, ImageIndex, card_image, read_index_entries
from visattn.commands.options.images import (
    PIXELS_PER_BATCH,
    count_on_interrupt,
    find_input_images,
    map_in_threads,
    report_failures,
    select_shard,
)
from visattn.commands.options.output_streams import print_row, progress_bar
from visattn.commands.options.provenance import file_digest
from visattn.io.atomic import atomic_write

if TYPE_CHECKING:  # torch and Pillow are imported when the command runs, not for its help
    import numpy as np
    from torch import nn

    from visattn.images.reader import LoadedImage

Result = TypeVar("Result")
Record = Mapping[str, Any]
"""Values of NAME.json."""


class _Job(NamedTuple):
    """An image on its way: read; inferred; or finished by an earlier run, with its record."""

    path: Path
    image: "LoadedImage | None"
    result: Any = None
    record: Record | None = None


class _Written(NamedTuple):
    """What a thread returns of an image: its record, its card, and why files are missing."""

    record: Record
    card: str | None = None
    reason: str | None = None


class ImageRun(ABC, Generic[Result]):
    """The images of a command line and the files that are written for each.

    Images are read and drawn in threads, one per core, while the model works on a batch. The
    record of an image, NAME.json, is written last; an image whose record has the same provenance
    is not computed again.

    Args:
        args: Options of the command: `images`, `out`, `strict`; and `shard`, `overwrite` and
            `autocast`, if the command has them.
        files: Files of an image, with `{}` for its name; one of them is `{}.json`.
        reserved: A name that no image may have.

    Raises:
        FileNotFoundError: If an image does not exist.
        ValueError: If a file would overwrite an image, or an index is not one of visattn.
    """

    title: str = "Captions"
    """Heading of the index."""
    page: str = "{}.png"
    """File to which the card of an image links."""
    index_of_one: bool = False
    """Whether there is an index of a single image, too."""

    def __init__(
        self, args: argparse.Namespace, files: Sequence[str], *, reserved: str = "index"
    ) -> None:
        self.args, self.out = args, args.out
        self.skipped: list[str] = []
        images = self.find()
        self.all_names = unique_names(images, reserved=reserved)
        self.names = select_shard(self.all_names, getattr(args, "shard", None))
        self.files = [file.format(name) for name in self.names.values() for file in files]
        self._kinds = tuple(files)
        self.has_index = len(self.all_names) > 1 or self.index_of_one
        self.files += [INDEX] * self.has_index
        self._provenance: dict[str, Any] = {}
        self._index: ImageIndex | None = None
        if self.out is not None:
            check_no_overwrite(self.out, self.files, self.all_names)
            if self.has_index:
                read_index_entries(self.out)

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

    def digest(self, path: Path) -> dict[str, Any]:
        """Return what tells whether an image has changed since an earlier run."""
        return {"image_sha256": file_digest(path)}

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Return model and options as plain values; with others, images are computed again."""

    @abstractmethod
    def infer(self, images: "Sequence[LoadedImage]") -> "Sequence[Result | Exception]":
        """Return the result of each image, or the reason why it is skipped."""

    @abstractmethod
    def record(self, image: "LoadedImage", result: Result) -> dict[str, Any]:
        """Return a result as values of JSON, from which its row and its card can be made."""

    @abstractmethod
    def row(self, record: Record) -> Sequence[object]:
        """Return the fields of the row of an image after its name."""

    @abstractmethod
    def write(self, name: str, image: "LoadedImage", result: Result) -> "Sequence[np.ndarray]":
        """Write the files of an image but its record, in a thread; return the images of its card.

        Raises:
            OSError: If a file cannot be written.
            ValueError: If the result cannot be drawn.
        """

    def caption(self, record: Record) -> str:
        """Return the text of the card of an image."""
        return ", ".join(map(str, self.row(record)))

    def finish(self, result: Result | None) -> None:
        """Receive the result of each image in order; None if an earlier run finished it."""

    def collect(self, path: Path, record: Record) -> None:
        """Receive the record of each image in order, also if an earlier run finished it."""

    def dry_run(self, model: "nn.Module", source: str) -> int:
        """Print what would be read and written; return 0.

        Args:
            model: The model.
            source: Its file.
        """
        reads = [describe_images([*self.names]), describe_model(model, source)]
        return print_dry_run(reads, self.out, self.files)

    def process(self, *, batch_size: int = 1) -> int:
        """Process all images; return the exit code.

        Args:
            batch_size: Images per batch.

        Raises:
            ImageError: If an image cannot be read with `--strict`.
            OSError: If the output folder cannot be written.
        """
        if self.out is not None:
            for folder in dict.fromkeys((self.out / file).parent for file in self._kinds):
                create_folder(folder)
            self._provenance = plain_values(self.settings())
            self._index = ImageIndex(self.out, self.title) if self.has_index else None
        not_written: list[str] = []
        done: list[str] = []
        with (
            count_on_interrupt(done, len(self.names)),
            self._index or nullcontext(),
            progress_bar(len(self.names)) as progress,
        ):
            paths = progress.track(self.names) if progress else self.names
            jobs = self._infer(self._batches(paths, batch_size))
            for job, written in map_in_threads(self._write, jobs, ahead=batch_size):
                name, (record, card, reason) = self.names[job.path], written()
                print_row(name, *self.row(record))
                not_written += [] if reason is None else [reason]
                if self._index is not None and card is not None:
                    page = self.page.format(name)
                    self._index.add(name, page, self.caption(record), card)
                self.finish(job.result)
                self.collect(job.path, record)
                done.append(name)
        return report_failures(self.skipped, not_written, len(self.names))

    def finished_record(self, path: Path) -> Record | None:
        """Return the record of an image that an earlier run finished in the same way, else None.

        Args:
            path: The image.
        """
        from visattn.io.safe_text import read_json

        name = self.all_names[path]
        page = self.page.format(name)
        if self.out is None or (self._index is not None and page not in self._index):
            return None
        try:
            record = read_json(self.out / f"{name}.json")
            same = record["provenance"] == {**self._provenance, **self.digest(path)}
            if same:  # a stranger's record may have entries of other types
                _ = self.row(record), self.caption(record)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):  # or of another version
            return None
        files = (self.out / file.format(name) for file in self._kinds)
        return record if same and all(file.is_file() for file in files) else None

    def _read(self, path: Path) -> _Job:
        """Read an image, or the record of a finished one, in a thread."""
        record = None if getattr(self.args, "overwrite", True) else self.finished_record(path)
        return _Job(path, None if record else self.read(path), record=record)

    def _batches(self, paths: Iterable[Path], size: int) -> Iterator[list[_Job]]:
        """Yield batches of images, and the finished images between them, in order."""
        from visattn.images.reader import ImageError
        from visattn.images.video import VideoError

        batch: list[_Job] = []
        for _, result in map_in_threads(self._read, paths):
            try:
                batch.append(result())
            except (ImageError, VideoError) as error:
                if self.args.strict:
                    raise
                self.skipped.append(str(error))
                continue
            images = [job.image for job in batch if job.image is not None]
            pixels = sum(image.num_pixels for image in images)
            if len(images) == size or pixels >= PIXELS_PER_BATCH or not images:
                yield batch
                batch = []
        if batch:
            yield batch

    def _infer(self, batches: Iterable[list[_Job]]) -> Iterator[_Job]:
        """Yield the images with their results."""
        for batch in batches:
            images = [job.image for job in batch if job.image is not None]
            with autocast(self.args):
                results = iter(self.infer(images) if images else ())
            for job in batch:
                result = None if job.image is None else next(results)
                if isinstance(result, Exception):
                    self.skipped.append(str(result))
                else:
                    yield job._replace(result=result)

    def _write(self, job: _Job) -> _Written:
        """Write the files of an image, the record last."""
        if job.image is None or job.record is not None:
            return _Written(job.record or {})
        record = self.record(job.image, job.result)
        if self.out is None:
            return _Written(record)
        name = self.names[job.path]
        try:
            entries = {**record, "provenance": {**self._provenance, **self.digest(job.path)}}
            card = card_image(self.write(name, job.image, job.result))
            content = json.dumps(entries, allow_nan=False).encode() + b"\n"
            atomic_write(self.out / f"{name}.json", content)
        except (OSError, ValueError) as error:
            return _Written(record, reason=f"{job.image.name}: {error}")
        return _Written(record, card)


def plain_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as they are read back from JSON; paths and other objects become strings.

    Example:
        >>> plain_values({"size": (3, 4), "file": Path("a")})
        {'size': [3, 4], 'file': 'a'}
    """
    return json.loads(json.dumps(values, default=str))


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
