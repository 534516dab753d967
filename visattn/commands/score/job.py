"""Job of `visattn score maps`: a record with the rows of each image, and their report.

The record of an image, rows/NAME.json, is what a run is resumed from; rows.jsonl and scores.json
are made from the records of all images when the images of a command are done.
"""

import argparse
import json
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from visattn.commands.records import Part, Record
from visattn.commands.run import Job
from visattn.commands.streams import print_where
from visattn.io.sources import Source

if TYPE_CHECKING:  # torch and Pillow are imported when the command runs, not for its help
    from visattn.images.reader import LoadedImage

Row = Mapping[str, Any]
"""Scores of one map, with what it shows."""
ROWS, SCORES = "rows.jsonl", "scores.json"


class ScoredImage(NamedTuple):
    """An image that was read to be scored.

    Args:
        path: Its path, the key of the job.
        image: The image.
        known: Rows of an earlier run by methods that need not be computed again.
    """

    path: Source
    image: "LoadedImage"
    known: Sequence[Row] = ()

    @property
    def name(self) -> str:
        """Name of the image."""
        return self.image.name

    @property
    def num_pixels(self) -> int:
        """Pixels that are in memory."""
        return self.image.num_pixels


class ScoreJob(Job[list[Row]]):
    """Scores of maps on images.

    Args:
        args: Options of the command.
        images: Name of each image, by its path.
        methods: Methods and baselines.
    """

    writes_shared = False
    work = "scoring"

    def __init__(
        self, args: argparse.Namespace, images: Mapping[Source, str], methods: Sequence[str] = ()
    ) -> None:
        self.images = images
        self.methods = tuple(methods)
        super().__init__(args)
        self._latest: dict[str, list[Row]] = {}
        self._image_names = {name: images[path] for path, name in self.all_names.items()}

    def image_of(self, name: str) -> str:
        """Return the name of an image in rows, by that of its files."""
        return self._image_names[name]

    @property
    def roots(self) -> tuple[()]:
        """No folder was searched: the data name their images."""
        return ()

    def find(self) -> list[Source]:
        """Return the images of the data."""
        return [*self.images]

    def stems(self, name: str) -> list[str]:
        """Return the stem of the record of an image."""
        return [f"rows/{name}"]

    def shared_files(self) -> list[str]:
        """Return the files of all images."""
        return [ROWS, SCORES]

    @abstractmethod
    def score(self, image: ScoredImage) -> list[Row]:
        """Return the rows of an image."""

    @abstractmethod
    def report(self, rows: Sequence[Row], skipped: Sequence[str]) -> dict[str, Any]:
        """Print the means of rows; return the content of scores.json.

        Args:
            rows: Rows of all images that are finished.
            skipped: Names of images without.

        Raises:
            ValueError: If there is nothing to report.
        """

    def infer(self, images: "Sequence[Any]") -> list[list[Row]]:
        """Return the rows of each image, whatever others there are, so that resuming is exact."""
        return [self.score(image) for image in images]

    def parts(self, name: str, image: Any, result: list[Row]) -> list[Part]:
        """Return the record of an image."""
        [stem] = self.stems(name)
        return [Part(stem, {"image": self.images[image.path], "rows": result})]

    def rows(self, record: Record) -> Iterable[Sequence[object]]:
        """Print nothing per image."""
        del record
        return ()

    def selected(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield the rows of a record that count now."""
        yield from rows

    def run(self, *, batch_size: int = 1) -> int:
        """Score all images; report all that are finished, those of other shards, too."""
        del batch_size
        code = super().run()
        rows: list[Row] = []
        skipped: list[str] = []
        for path, name in self.images.items():
            # Images of this command are in memory. Those of other shards count if their records are
            # there, and are no failures if not.
            known = self._latest.get(name)
            if known is None and (records := self.finished(path)):
                known = records[0]["rows"]
            if known is not None:
                rows += self.selected(known)
            elif path in self.names:
                skipped.append(name)
        numbers = self.report(rows, skipped)
        lines = [{"settings": self._settings}, *rows]
        self.write_shared(ROWS, b"".join(map(_json_line, lines)))
        self.write_shared(SCORES, json.dumps(numbers, indent=1, allow_nan=False).encode() + b"\n")
        if self.out is not None:
            print_where(self.out / SCORES)
        return code

    def finish(self, result: list[Row] | None, records: Sequence[Record]) -> None:
        """Keep the rows of an image."""
        del result
        for record in records:
            self._latest[record["image"]] = record["rows"]


def _json_line(row: Row) -> bytes:
    return json.dumps(row, allow_nan=False).encode() + b"\n"
