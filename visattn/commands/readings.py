"""Pictures as commands read them, and what they say of those that went wrong."""

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence, Sized
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from visattn.commands.streams import print_remark

if TYPE_CHECKING:
    from visattn.data.pictures import Picture

Key = TypeVar("Key")

# Pictures wait decoded until their batch is full: at most about this many pixels at a time.
PIXELS_PER_BATCH = 64_000_000


def input_pictures(paths: Sequence[Path], out: Path | None, bad: list[str]) -> list[Path]:
    """Return the pictures among files and folders; what lies in `--out` is none of them.

    Args:
        paths: Files and folders of the command line.
        out: Folder for results, if there is one.
        bad: Where the reasons go why folders could not be listed.

    Raises:
        FileNotFoundError: If a path does not exist, or if there is no picture at all.
        ValueError: If the results would go into a folder that is searched for pictures.

    Example:
        >>> input_pictures([Path("no_such_folder")], None, [])
        Traceback (most recent call last):
        FileNotFoundError: no_such_folder does not exist; give picture files or folders
    """
    from visattn.data.pictures import find_pictures

    if out is not None and os.path.isdir(out):  # noqa: PTH112 (raises nothing)
        for path in paths:
            if os.path.isdir(path) and out.samefile(path):  # noqa: PTH112
                raise ValueError(
                    f"--out {out} is searched for pictures: the next run would take the results "
                    f"for photos; choose another folder, for instance {path / 'results'}"
                )
    return find_pictures(
        paths, omit=out, onerror=lambda error: bad.append(f"{error.filename}: {error.strerror}")
    )


def readable(
    paths: Iterable[Path], bad: list[str], *, strict: bool
) -> "Iterator[tuple[Path, Picture]]":
    """Read pictures one by one, noting in `bad` those that cannot be read.

    Args:
        paths: Files.
        bad: Where the reasons go.
        strict: Stop at the first one instead.

    Raises:
        PictureError: If, with `strict`, a picture cannot be read.
    """
    from visattn.data.pictures import PictureError, read_picture

    for path in paths:
        try:
            picture = read_picture(path)
        except PictureError as error:
            if strict:
                raise
            bad.append(str(error))
        else:
            yield path, picture


def batched(
    pictures: "Iterable[tuple[Key, Picture]]", size: int, *, pixels: int = PIXELS_PER_BATCH
) -> "Iterator[list[tuple[Key, Picture]]]":
    """Hand pictures on by the batch.

    Args:
        pictures: Each with something that it is known by.
        size: Of a batch.
        pixels: A batch with so many is full, too.

    Example:
        >>> from visattn.data.pictures import Picture
        >>> dots = [(name, Picture(np.zeros((1, 1, 3), np.uint8))) for name in "abc"]
        >>> [[name for name, _ in batch] for batch in batched(dots, 2)]
        [['a', 'b'], ['c']]
    """
    batch: list[tuple[Key, Picture]] = []
    for name, picture in pictures:
        batch.append((name, picture))
        held = sum(picture.size[0] * picture.size[1] for _, picture in batch)
        if len(batch) == size or held >= pixels:
            yield batch
            batch = []
    if batch:
        yield batch


@contextlib.contextmanager
def telling_how_far(done: Sized, count: int) -> Iterator[None]:
    """Let an interruption say how many pictures were finished.

    Args:
        done: Those that are; it grows.
        count: Of all of them.

    Example:
        >>> try:
        ...     with telling_how_far(["a.png"], 3):
        ...         raise KeyboardInterrupt
        ... except KeyboardInterrupt as interruption:
        ...     print(interruption)
        1 of 3 pictures are done
    """
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"{len(done)} of {count} pictures are done") from None


def report(bad: list[str], lost: list[str], count: int) -> int:
    """Say on stderr what went wrong; return the exit code.

    Args:
        bad: Why pictures were skipped.
        lost: Why files were not written.
        count: Of the pictures in all.

    Example:
        >>> report([], [], 3)
        0
    """
    for reason in bad:
        print_remark(f"skipped {reason}")
    for reason in lost:
        print_remark(f"not written: {reason}")
    for some, what in ((bad, "pictures skipped"), (lost, "pictures not written")):
        if some:
            print_remark(f"{len(some)} of {count} {what}")
    return 1 if bad or lost else 0
