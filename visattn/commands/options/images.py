"""Input images of the commands: search, reading, batches, and the report of skipped files."""

import contextlib
import itertools
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from visattn.io.safe_text import print_message

if TYPE_CHECKING:
    from visattn.images.reader import LoadedImage

Key = TypeVar("Key")
Value = TypeVar("Value")

# Decoded images wait in memory until their batch is full: at most about this many pixels.
PIXELS_PER_BATCH = 64_000_000


def find_input_images(paths: Sequence[Path], out: Path | None, skipped: list[str]) -> list[Path]:
    """Return the images among files and folders, without those in the output folder.

    Folders below with results of an earlier command are skipped, and named on stderr.

    Args:
        paths: Files and folders of the command line.
        out: Output folder, if there is one.
        skipped: Receives the reasons why folders could not be listed.

    Raises:
        FileNotFoundError: If a path does not exist, or there is no image at all.
        ValueError: If the output folder is searched for images.

    Example:
        >>> find_input_images([Path("no_such_folder")], None, [])
        Traceback (most recent call last):
        FileNotFoundError: no_such_folder does not exist; give image files or folders
    """
    from visattn.images.reader import find_images, is_result_folder

    def skip(folder: Path) -> bool:
        is_result = is_result_folder(folder)
        if is_result:
            print_message(f"skipped {folder}: results of visattn; to include it, give its path")
        return is_result

    if out is not None and os.path.isdir(out):  # noqa: PTH112 (raises nothing)
        for path in paths:
            if os.path.isdir(path) and out.samefile(path):  # noqa: PTH112
                raise ValueError(
                    f"--out {out} is searched for images: the next run would read the results as "
                    f"photos; choose another folder, for instance {path / 'results'}"
                )
    return find_images(
        paths,
        omit=out,
        skip=skip,
        onerror=lambda error: skipped.append(f"{error.filename}: {error.strerror}"),
        report=print_message,
    )


def read_images(
    paths: Iterable[Path], skipped: list[str], *, strict: bool
) -> "Iterator[tuple[Path, LoadedImage]]":
    """Yield paths and their images; unreadable images are skipped and reported.

    Args:
        paths: Image files.
        skipped: Receives the reasons.
        strict: Raise an error for the first unreadable image instead.

    Raises:
        ImageError: If `strict` is set and an image cannot be read.
    """
    from visattn.images.reader import ImageError, read_image

    for path, result in map_in_threads(read_image, paths):
        try:
            image = result()
        except ImageError as error:
            if strict:
                raise
            skipped.append(str(error))
        else:
            yield path, image


def thread_count() -> int:
    """Return the number of threads that read and write images: one per core, at most 8.

    Example:
        >>> 1 <= thread_count() <= 8
        True
    """
    from visattn.data.loading.loader import available_cores

    return min(8, available_cores())


def map_in_threads(
    function: Callable[[Key], Value], items: Iterable[Key], *, ahead: int = 0
) -> Iterator[tuple[Key, Callable[[], Value]]]:
    """Yield each item with a function that waits for its result, or raises its error.

    One thread per core works ahead of the caller. Decoders and encoders of images release Python's
    lock. An error of `items` is raised after the results of the items before it.

    Args:
        function: Called with each item, in a thread.
        items: Taken in order, at most one per thread ahead of the caller.
        ahead: How many more of them may be ahead, so that all threads have work while the next
            items are made.

    Example:
        >>> [(item, result()) for item, result in map_in_threads(abs, [-3, 2])]
        [(-3, 3), (2, 2)]
    """
    num_threads = thread_count()
    waiting: deque[tuple[Key, Future[Value]]] = deque()
    remaining, failure = iter(items), None
    with ThreadPoolExecutor(num_threads) as pool:
        try:
            while True:
                try:
                    item = next(remaining)
                except BaseException as error:  # noqa: BLE001 (raised below)
                    failure = error
                    break
                waiting.append((item, pool.submit(function, item)))
                if len(waiting) > num_threads + ahead:
                    done, future = waiting.popleft()
                    yield done, future.result
            while waiting:
                done, future = waiting.popleft()
                yield done, future.result
        finally:
            pool.shutdown(cancel_futures=True)
    if not isinstance(failure, StopIteration):
        raise failure


def select_shard(names: Mapping[Path, str], shard: tuple[int, int] | None) -> dict[Path, str]:
    """Return the images of one of several commands that share the work; all without `--shard`.

    Args:
        names: Name of each image.
        shard: Number of the command, from 1, and how many there are.

    Example:
        >>> names = {Path(name): name for name in "abcde"}
        >>> [[*select_shard(names, (number, 2)).values()] for number in (1, 2)]
        [['a', 'b'], ['c', 'd', 'e']]
    """
    if shard is None:
        return dict(names)
    number, count = shard
    first, last = (len(names) * end // count for end in (number - 1, number))
    return dict(itertools.islice(names.items(), first, last))


def batched(
    images: "Iterable[tuple[Key, LoadedImage]]", size: int, *, pixels: int = PIXELS_PER_BATCH
) -> "Iterator[list[tuple[Key, LoadedImage]]]":
    """Yield batches of images.

    Args:
        images: Pairs of a key and an image.
        size: Images per batch.
        pixels: Number of pixels at which a smaller batch is full, too.

    Example:
        >>> from visattn.images.reader import LoadedImage
        >>> dots = [(name, LoadedImage(np.zeros((1, 1, 3), np.uint8))) for name in "abc"]
        >>> [[name for name, _ in batch] for batch in batched(dots, 2)]
        [['a', 'b'], ['c']]
    """
    batch: list[tuple[Key, LoadedImage]] = []
    for key, image in images:
        batch.append((key, image))
        waiting = sum(image.size[0] * image.size[1] for _, image in batch)
        if len(batch) == size or waiting >= pixels:
            yield batch
            batch = []
    if batch:
        yield batch


@contextlib.contextmanager
def count_on_interrupt(done: Sized, count: int) -> Iterator[None]:
    """Add the number of finished images to the message of a keyboard interrupt.

    Args:
        done: Finished images; grows while the context is open.
        count: Number of all images.

    Example:
        >>> try:
        ...     with count_on_interrupt(["a.png"], 3):
        ...         raise KeyboardInterrupt
        ... except KeyboardInterrupt as interruption:
        ...     print(interruption)
        1 of 3 images are done
    """
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"{len(done)} of {count} images are done") from None


def report_failures(skipped: list[str], not_written: list[str], count: int) -> int:
    """Print the failures on stderr; return the exit code.

    Args:
        skipped: Reasons why images could not be read.
        not_written: Reasons why files could not be written.
        count: Number of all images.

    Example:
        >>> report_failures([], [], 3)
        0
    """
    for reason in skipped:
        print_message(f"skipped {reason}")
    for reason in not_written:
        print_message(f"not written: {reason}")
    for reasons, text in ((skipped, "images skipped"), (not_written, "images not written")):
        if reasons:
            print_message(f"{len(reasons)} of {count} {text}")
    return 1 if skipped or not_written else 0
