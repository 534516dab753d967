"""Images as commands read them, and what they say of those that went wrong."""

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence, Sized
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from visattn.commands.options.output_streams import print_remark

if TYPE_CHECKING:
    from visattn.data.images.reader import LoadedImage

Key = TypeVar("Key")

# Images wait decoded until their batch is full: at most about this many pixels at a time.
PIXELS_PER_BATCH = 64_000_000


def input_images(paths: Sequence[Path], out: Path | None, bad: list[str]) -> list[Path]:
    """Return the images among files and folders; what lies in `--out` is none of them.

    Args:
        paths: Files and folders of the command line.
        out: Folder for results, if there is one.
        bad: Where the reasons go why folders could not be listed.

    Raises:
        FileNotFoundError: If a path does not exist, or if there is no image at all.
        ValueError: If the results would go into a folder that is searched for images.

    Example:
        >>> input_images([Path("no_such_folder")], None, [])
        Traceback (most recent call last):
        FileNotFoundError: no_such_folder does not exist; give image files or folders
    """
    from visattn.data.images.reader import find_images

    if out is not None and os.path.isdir(out):  # noqa: PTH112 (raises nothing)
        for path in paths:
            if os.path.isdir(path) and out.samefile(path):  # noqa: PTH112
                raise ValueError(
                    f"--out {out} is searched for images: the next run would take the results "
                    f"for photos; choose another folder, for instance {path / 'results'}"
                )
    return find_images(
        paths, omit=out, onerror=lambda error: bad.append(f"{error.filename}: {error.strerror}")
    )


def readable(
    paths: Iterable[Path], bad: list[str], *, strict: bool
) -> "Iterator[tuple[Path, LoadedImage]]":
    """Read images one by one, noting in `bad` those that cannot be read.

    Args:
        paths: Files.
        bad: Where the reasons go.
        strict: Stop at the first one instead.

    Raises:
        ImageError: If, with `strict`, an image cannot be read.
    """
    from visattn.data.images.reader import ImageError, read_image

    for path in paths:
        try:
            image = read_image(path)
        except ImageError as error:
            if strict:
                raise
            bad.append(str(error))
        else:
            yield path, image


def batched(
    images: "Iterable[tuple[Key, LoadedImage]]", size: int, *, pixels: int = PIXELS_PER_BATCH
) -> "Iterator[list[tuple[Key, LoadedImage]]]":
    """Hand images on by the batch.

    Args:
        images: Each with something that it is known by.
        size: Of a batch.
        pixels: A batch with so many is full, too.

    Example:
        >>> from visattn.data.images.reader import LoadedImage
        >>> dots = [(name, LoadedImage(np.zeros((1, 1, 3), np.uint8))) for name in "abc"]
        >>> [[name for name, _ in batch] for batch in batched(dots, 2)]
        [['a', 'b'], ['c']]
    """
    batch: list[tuple[Key, LoadedImage]] = []
    for name, image in images:
        batch.append((name, image))
        held = sum(image.size[0] * image.size[1] for _, image in batch)
        if len(batch) == size or held >= pixels:
            yield batch
            batch = []
    if batch:
        yield batch


@contextlib.contextmanager
def telling_how_far(done: Sized, count: int) -> Iterator[None]:
    """Let an interruption say how many images were finished.

    Args:
        done: Those that are; it grows.
        count: Of all of them.

    Example:
        >>> try:
        ...     with telling_how_far(["a.png"], 3):
        ...         raise KeyboardInterrupt
        ... except KeyboardInterrupt as interruption:
        ...     print(interruption)
        1 of 3 images are done
    """
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"{len(done)} of {count} images are done") from None


def report(bad: list[str], lost: list[str], count: int) -> int:
    """Say on stderr what went wrong; return the exit code.

    Args:
        bad: Why images were skipped.
        lost: Why files were not written.
        count: Of the images in all.

    Example:
        >>> report([], [], 3)
        0
    """
    for reason in bad:
        print_remark(f"skipped {reason}")
    for reason in lost:
        print_remark(f"not written: {reason}")
    for some, what in ((bad, "images skipped"), (lost, "images not written")):
        if some:
            print_remark(f"{len(some)} of {count} {what}")
    return 1 if bad or lost else 0
