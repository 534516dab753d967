"""Worker process that reads mutated files, so that a crash does not end the tests.

    python tests/helpers/fuzz_worker.py WHAT FIRST COUNT SECONDS FOLDER

WHAT is `images` or `annotations`. COUNT cases of each kind are read, or as many as SECONDS for all
kinds allow. One line of JSON for each kind says how it went.
"""

import faulthandler
import json
import resource
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

from byte_mutations import run_cases

_ROOM = 3 * 2**30  # bytes of memory beside what is taken at the start


def main(what: str, first: int, count: int, seconds: float, folder: Path) -> None:
    """Read cases and print their outcomes."""
    faulthandler.enable()
    warnings.simplefilter("error")  # a warning would end a run of the tests as well
    numbers, progress = range(first, first + count), folder / "progress"
    if what == "images":
        from image_zoo import ZOO

        from visattn.images.reader import ImageError, read_image

        _bound()
        # Pillow takes ten times as long for Lab as for all else: only in long runs.
        seeds = [ZOO[name] for name in ZOO if name != "lab tiff" or count > 100_000]
        reading = partial(read_image, max_pixels=1_000_000)
        counts = run_cases(reading, seeds, numbers, (ImageError,), progress, seconds)
        sys.stdout.write(json.dumps({"kind": "images", **counts}) + "\n")
        return
    from annotation_zoo import KINDS

    _bound()
    for name, kind in KINDS.items():
        reading = partial(_read, kind.reader, folder / kind.name)
        counts = run_cases(
            reading,
            [kind.content],
            numbers,
            (ValueError, FileNotFoundError),
            progress,
            seconds / len(KINDS),
        )
        sys.stdout.write(json.dumps({"kind": name, **counts}) + "\n")


def _read(reader: Callable[[Path], object], path: Path, content: bytes) -> None:
    path.write_bytes(content)
    reader(path)


def _bound() -> None:
    """Limit the memory of the process, so that excessive allocation fails."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + _ROOM
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), Path(sys.argv[5]))
