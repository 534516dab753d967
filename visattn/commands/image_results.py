"""The results of a job on every image: their names, their files, and which are finished."""

import argparse
import json
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any

from visattn.commands.boxes import BoxFile
from visattn.commands.figure_file import FigureFile
from visattn.commands.files import (
    check_no_overwrite,
    find_input_images,
    map_in_threads,
    result_names,
    select_shard,
    thread_count,
)
from visattn.commands.index import (
    INDEX,
    FolderIndex,
    Row,
    check_index,
    describe_unfinished,
    has_index,
)
from visattn.commands.model_option import file_digest
from visattn.commands.outputs import Output, content_digest, open_output
from visattn.commands.records import (
    IDENTITY,
    PROVENANCE,
    Origin,
    Record,
    ResultFolder,
    plain_values,
    refuse_foreign,
)
from visattn.commands.schedulers import Share
from visattn.commands.table_parts import RowJob, TableParts
from visattn.io.locations import Location, Source
from visattn.io.safe_text import print_message
from visattn.io.tables import parquet_table

_REMOTE_THREADS = 16  # an answer from afar takes longer than decoding a photo


class ImageResults(RowJob):
    """The results of a command on every image.

    Args:
        args: Options of the command: `images`, `out`; and `shard`, `overwrite`, if the command has
            them.

    Raises:
        FileNotFoundError: If an image does not exist.
        ValueError: If a file would overwrite an image, or an index is not one of visattn.
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

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.out: Output | None = None if args.out is None else open_output(args.out)
        self.skipped: list[str] = []
        paths = self.find()
        # Images get their names before they are divided, so that all shards agree on them.
        self.all_names = result_names(paths, self.roots, reserved=self.reserved)
        self.shard: Share | None = getattr(args, "shard", None)
        self.names = select_shard(self.all_names, self.shard)
        self.parts_of_table: TableParts | None = None
        if self.out is not None and "table" in getattr(args, "save", ()):
            self.parts_of_table = TableParts(self.out, self.all_names, self.shard)
            self.names = {path: self.all_names[path] for path in self.parts_of_table.paths}
        self.overwrite = bool(getattr(args, "overwrite", False))
        self.parquet = bool(getattr(args, "parquet", False))
        if self.parquet or self.parts_of_table is not None:
            parquet_table([])  # refuses before anything is computed
        boxes = self.writes_shared and hasattr(args, "boxes")
        self.boxes_file = BoxFile(args, self.all_names) if boxes else None
        figure = self.writes_shared and getattr(args, "figure", None) is not None
        self.figure_file = FigureFile(args, self.all_names) if figure else None
        self._known_digests: dict[Source, dict[str, Any]] = {}
        self._checked = False
        self.folder: ResultFolder | None = None
        self.has_index = False
        if self.out is not None and self.parts_of_table is None:
            self.folder = ResultFolder(self.out, overwrite=self.overwrite)
            several = len(self.all_names) > 1 or self.index_of_one
            self.has_index = self.writes_shared and (several or has_index(self.out))
            if self.has_index:
                check_index(self.out)

    @property
    def threads(self) -> int:
        """Threads that read and write images; more of them if these are far away."""
        far = any(isinstance(path, Location) and path.is_remote for path in self.names)
        far |= self.out is not None and not self.out.renames
        return max(thread_count(), _REMOTE_THREADS) if far else thread_count()

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

    def extra_files(self) -> list[str]:
        """Return files of all images together, besides index and table."""
        return []

    def main_file(self, name: str) -> str | None:
        """Return the file of an image to open first; None if there is none.

        Args:
            name: Name of the image.
        """
        files = [file for stem in self.stems(name) for file in self.files(name, stem)]
        return min(files, key=lambda file: not file.endswith(".html"), default=None)

    @classmethod
    def seen_share(cls, record: Record) -> float | None:
        """Return which share of a photo the model saw, in [0, 1]; None if that is not known."""
        geometry = cls.geometry(record)
        if not isinstance(geometry, dict):
            return None
        left, top, right, bottom = geometry["region"]
        height, width = geometry["image_size"]
        return round((right - left) * (bottom - top) / (height * width), 4)

    @staticmethod
    def geometry(record: Record) -> Any:
        """Return the geometry in a record; None if there is none, or several photos have one."""
        return record.get("geometry")

    def output_files(self) -> list[str]:
        """Return the files that a run writes."""
        files: list[str] = []
        if self.parts_of_table is not None:
            files = self.parts_of_table.files()
        elif self.out is not None:
            for name in self.names.values():
                for stem in self.stems(name):
                    files += [*self.files(name, stem), f"{stem}.json"]
            files += [*[INDEX] * self.has_index, *self.shared_files()]
        whole = (getattr(self.args, name, None) for name in ("boxes", "figure"))
        return [*files, *(str(path.absolute()) for path in whole if path is not None)]

    def check_files(self) -> None:
        """Refuse to replace files that visattn did not write, before anything is computed.

        Raises:
            FileExistsError: If there are such files.
            ValueError: If a file would overwrite an input image.
        """
        if self.boxes_file is not None:
            self.boxes_file.check()
        if self.figure_file is not None:
            self.figure_file.check()
        if self.out is None:
            return
        check_no_overwrite(self.args.out, self.output_files(), self.all_names)
        if self.overwrite:
            return
        if self.parts_of_table is not None:
            self.parts_of_table.check(self.command)
            return
        if self.out.renames or not self.writes_shared:  # else `visattn index` writes them
            self.out.check_shared(self.shared_files())
        foreign: dict[str, str] = {}
        for _, reasons in map_in_threads(self._foreign, self.names, threads=self.out.readers):
            foreign |= reasons()
        refuse_foreign(self.out, foreign)
        self._checked = True

    def index_link(self, name: str) -> str | None:
        """Return the link from the page of an image to the index; None without an index.

        Args:
            name: Name of the image.
        """
        return "../" * name.count("/") + INDEX if self.has_index else None

    def write_shared(self, name: str, content: bytes, *, key: str = "") -> None:
        """Write a file of all images together.

        Args:
            name: Its name.
            content: Its content.
            key: What it replaces, if an earlier run has written it under another name.

        Raises:
            OSError: If it cannot be written.
        """
        if self.out is not None:
            self.out.write_shared(name, content, key=key or name, overwrite=self.overwrite)

    def shared_files(self) -> list[str]:
        """Return the files of all images, besides the index."""
        tables = [f"{self.command}.csv", *[f"{self.command}.parquet"] * self.parquet]
        return [*tables, *self.extra_files()]

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

    def _foreign(self, path: Source) -> dict[str, str]:
        """Return the files that the results of an image may not replace, with the reasons."""
        name = self.names[path]
        foreign = dict[str, str]()
        files = {stem: self.files(name, stem) for stem in self.stems(name)}
        every = [file for stem in files for file in (f"{stem}.json", *files[stem])]
        if self.folder is None or not any(map(self.folder.out.exists, every)):
            return {}
        try:
            digests = self._digests(path)
        except (OSError, ValueError):  # reported when the image is read
            return {}
        if isinstance(path, Location):
            path.release()
        for stem, names in files.items():
            origin = Origin(self.command, str(path), digests, {}, names)
            foreign |= self.folder.foreign(stem, origin)
        return foreign

    def open_folder(self, stack: ExitStack) -> FolderIndex | None:
        """Open the output folder, if there is one; return its index, written at the end."""
        if self.folder is None or self.out is None:
            return None
        stack.enter_context(self.folder)
        photos = [[name, str(path)] for path, name in self.all_names.items()]
        purpose = content_digest(json.dumps([self._settings, photos]).encode())
        stack.enter_context(self.out.claim({"command": self.command, "purpose": purpose}))
        if not self.writes_shared or not self.out.renames:
            return None
        kinds = {self.command: self}
        pages = self.has_index
        index = FolderIndex(self.out, self.title, self.command, kinds.get, pages=pages)
        options = {"parquet": self.parquet, "overwrite": self.overwrite}
        stack.callback(index.write, [self.command], **options)
        return index

    @cached_property
    def _settings(self) -> dict[str, Any]:
        return plain_values(self.settings())

    def _digests(self, path: Source) -> dict[str, Any]:
        """Return the digests of an image, which is read once for all its results."""
        if path not in self._known_digests:
            identity = path.identity if isinstance(path, Location) else ""
            if identity and isinstance(path, Location):
                self._recall(path, identity)
            digests = self.digests(path)
            self._known_digests[path] = {**digests, **({IDENTITY: identity} if identity else {})}
        return self._known_digests[path]

    def _recall(self, path: Location, identity: str) -> None:
        """Take the digest of an image of a store from a record, unless it was replaced since."""
        for stem in self.stems(self.all_names[path]):
            record = None if self.folder is None else self.folder.read(stem)
            made = {} if record is None else record[PROVENANCE]
            if made.get(IDENTITY) == identity and isinstance(made.get("image_sha256"), str):
                path.recall(made["image_sha256"])
                return

    def report_other_shards(self) -> None:
        """Print how many images of other shards have no results yet."""
        if self.out is None:
            return
        self.out.refresh()
        others = [name for path, name in self.all_names.items() if path not in self.names]
        rest = describe_unfinished(self.out.records(), map(self.stems, others))
        print_message(f"of the {len(others):,} images of other shards {rest}")
