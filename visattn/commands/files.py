"""Files of the commands: input images, output folders, and unique names."""

import hashlib
import itertools
import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from visattn.io.atomic import remove_partial_files, temporary_folder
from visattn.io.safe_text import print_message
from visattn.io.sources import Source

PathLike = str | os.PathLike[str]

DIGEST_LENGTH = 16  # hexadecimal digits


def file_digest(path: Source) -> str:
    """Return the first 16 hexadecimal digits of the SHA-256 of a file.

    Raises:
        OSError: If it cannot be read.

    Example:
        >>> file = getfixture("tmp_path") / "a"
        >>> file.write_bytes(b"abc")
        3
        >>> file_digest(file)
        'ba7816bf8f01cfea'
    """
    from visattn.io.safe_text import open_regular_file

    if not isinstance(path, Path):
        return path.digest()[:DIGEST_LENGTH]
    with open_regular_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:DIGEST_LENGTH]


def create_folder(folder: Path) -> None:
    """Create a folder, check that it is writable, and remove temporary files of killed processes.

    Raises:
        OSError: If it cannot be created or written; the message names `--out`.

    Example:
        >>> create_folder(Path(__file__))
        Traceback (most recent call last):
        ...
        OSError: --out ...files.py cannot be written: File exists; choose another folder
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        remove_partial_files(folder)
        # Fail now rather than after the first images.
        with temporary_folder(folder / "visattn"):
            pass
    except OSError as error:
        raise OSError(
            f"--out {folder} cannot be written: {error.strerror}; choose another folder"
        ) from error


def check_no_overwrite(folder: Path, files: Iterable[str], images: Iterable[Source]) -> None:
    """Check that no output file would replace an input image.

    Args:
        folder: Value of `--out`.
        files: Names of the output files.
        images: Input images.

    Raises:
        ValueError: If an output file would replace an image.

    Example:
        >>> check_no_overwrite(Path("out"), ["dog.png"], [Path("photos/dog.png")])
    """
    # Unlike resolve, realpath accepts link loops.
    inputs = {os.path.realpath(path) for path in images if isinstance(path, Path)}
    for file in files:
        if os.path.realpath(folder / file) in inputs:
            raise ValueError(
                f"--out {folder} would overwrite the input image {file}; choose another folder"
            )


def result_names(
    sources: Sequence[Source], roots: Iterable[PathLike] = (), *, reserved: str = "index"
) -> dict[Source, str]:
    """Return a unique file name without suffix for each photo: its path below the searched folder.

    Photos with the same name are distinguished by their folders below the common parent of all
    photos, and where these are equal too (a.jpg and a.png, or names that differ only in case) by a
    number.

    Args:
        sources: Photos.
        roots: Folders that were searched for them.
        reserved: A name that no file may have.

    Example:
        >>> photos = ["a/b/dog.jpg", "c/dog.jpg", "d/dog.jpg", "cat.jpg", "a/index.png"]
        >>> list(result_names([Path(photo) for photo in photos], ["a"]).values())
        ['b/dog', 'c/dog', 'd/dog', 'cat', 'index_2']
    """
    folders = {Path(root) for root in roots}
    files = [source.absolute() for source in sources if isinstance(source, Path)]
    common = Path(os.path.commonpath([file.parent for file in files])) if files else Path()

    def name_of(source: Source, *, whole: bool) -> str:
        if isinstance(source, Path):
            root = next((each for each in source.parents if each in folders), source.parent)
            # Not resolved, so that links keep their names.
            relative = source.absolute().relative_to(common) if whole else source.relative_to(root)
        else:
            relative = source.relative
        parts = [_printable(part) for part in relative.with_suffix("").parts if part != ".."]
        return "/".join(parts)

    names = {source: name_of(source, whole=False) for source in sources}
    counts = Counter(name.casefold() for name in names.values())
    used: set[str] = set()
    for source, name in names.items():
        plain = name_of(source, whole=True) if counts[name.casefold()] > 1 else name
        tried = itertools.chain([plain], (f"{plain}_{number}" for number in itertools.count(2)))
        names[source] = next(
            new
            for new in tried
            if new.casefold() not in used
            and new.rpartition("/")[2].casefold() not in ("index", reserved)
        )
        used.add(names[source].casefold())
    return names


def _printable(part: str) -> str:
    """Return a part of a path with unprintable characters replaced by underscores."""
    return "".join(letter if letter.isprintable() else "_" for letter in part)


Key = TypeVar("Key")
Value = TypeVar("Value")


def find_input_images(
    paths: Sequence[PathLike], out: Path, skipped: list[str], *, keep_missing: bool = False
) -> list[Source]:
    """Return the images in sources, except those in the output folder.

    Subfolders with results of an earlier command are skipped with a message on stderr.

    Args:
        paths: Files, folders, archives and URLs of the command line.
        out: Output folder; it need not exist yet.
        skipped: List to which the reasons why folders could not be read are appended.
        keep_missing: Keep files that do not exist; they are skipped when they are read.

    Raises:
        FileNotFoundError: If a path does not exist, or there is no image at all.
        ValueError: If the output folder is searched for images.

    Example:
        >>> find_input_images([Path("no_such_folder")], Path("out"), [])
        Traceback (most recent call last):
        FileNotFoundError: no_such_folder does not exist; pass image files or folders
    """
    from visattn.images.sources import find_images, is_result_folder

    def skip(folder: Path) -> bool:
        is_result = is_result_folder(folder)
        if is_result:
            print_message(f"skipped {folder}: results of visattn; to include it, give its path")
        return is_result

    for path in paths:
        if os.path.isdir(out) and os.path.isdir(path) and out.samefile(path):  # noqa: PTH112
            raise ValueError(
                f"--out {out} is searched for images: the next run would read the results as "
                f"photos; choose another folder, for instance {os.fspath(path)}/results"
            )
    try:
        return find_images(
            paths,
            keep_missing=keep_missing,
            exclude=out,
            skip=skip,
            onerror=lambda error: skipped.append(f"{error.filename}: {error.strerror}"),
        )
    except FileNotFoundError as error:
        raise FileNotFoundError("; ".join([str(error), *skipped])) from error


def map_in_threads(
    function: Callable[[Key], Value], items: Iterable[Key], *, ahead: int = 0
) -> Iterator[tuple[Key, Callable[[], Value]]]:
    """Yield each item with a function that returns its result or raises its error.

    One thread per core, at most 8, works ahead of the caller; image decoders and encoders release
    the GIL. An error raised by `items` follows the results of the items before it.

    Args:
        function: Called with each item, in a thread.
        items: Taken in order, at most one per thread ahead of the caller.
        ahead: How many more items may be taken ahead, so that all threads stay busy while the next
            items are produced.

    Example:
        >>> [(item, result()) for item, result in map_in_threads(abs, [-3, 2])]
        [(-3, 3), (2, 2)]
    """
    from visattn.data.loading import available_cores

    num_threads = min(8, available_cores())
    waiting: deque[tuple[Key, Future[Value]]] = deque()
    remaining = iter(items)
    failure: BaseException | None = None
    with ThreadPoolExecutor(num_threads) as pool:
        try:
            while waiting or failure is None:
                try:
                    if failure is None:
                        item = next(remaining)
                        waiting.append((item, pool.submit(function, item)))
                except BaseException as error:  # noqa: BLE001 (raised below)
                    failure = error
                while waiting and (
                    failure or waiting[0][1].done() or len(waiting) > num_threads + ahead
                ):
                    done, future = waiting.popleft()
                    yield done, future.result
        finally:
            # If the caller stops early, waiting items are dropped.
            pool.shutdown(cancel_futures=True)
    if failure is not None and not isinstance(failure, StopIteration):
        raise failure


def report_failures(skipped: Sequence[str], not_written: Sequence[str], count: int) -> int:
    """Print the failures on stderr; return the exit code.

    Args:
        skipped: Reasons why images could not be read.
        not_written: Reasons why the results of images could not be written, one per image.
        count: Total number of images.

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
