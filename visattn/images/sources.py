"""Photos by what users have: files, folders, patterns, lists, archives, URLs."""

import glob
import itertools
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from visattn.images.formats import describe_skipped, image_suffixes, is_other_image
from visattn.images.reader import (
    ImageError,
    ImageLike,
    LoadedImage,
    find_images,
    is_result_folder,
    list_images,
    path_exists,
    read_image,
)
from visattn.io.safe_text import open_regular_file
from visattn.io.sources import Location, Source, is_archive, is_url, remote_files

PathLike = str | os.PathLike[str]
_MAX_LIST_BYTES = 2**28


def find_sources(
    roots: PathLike | Iterable[PathLike],
    *,
    keep_missing: bool = False,
    report: Callable[[str], object] | None = None,
    **options: Any,
) -> list[Source]:
    """Return the photos of files, folders, patterns, archives and URLs, in their order.

    Args:
        roots: One of them or several. A pattern such as `photos/*.jpg` is expanded if no file has
            its name.
        keep_missing: Return files that do not exist, too, whose reading fails.
        report: Called with a sentence about images of formats that are not read.
        options: Of `find_images`: `omit`, `skip` and `onerror`, for folders.

    Raises:
        FileNotFoundError: If a path does not exist, or there is no image at all.
        ImportError: If a package is missing that reads a store.
        OSError: If a folder cannot be listed, or an archive or store cannot be read.

    Example:
        >>> str(find_sources("https://example.org/dogs/1.jpg")[0])
        'https://example.org/dogs/1.jpg'
    """
    photos: list[Source] = []

    def kind(root: PathLike) -> str:
        path = Path(root)
        if is_url(os.fspath(root)) or (is_archive(path) and path.is_file()):
            return "remote"
        return "missing" if keep_missing and not path_exists(path) else "local"

    for name, group in itertools.groupby(expand_patterns(roots), kind):
        if name == "remote":
            for url in group:
                photos += _photos(os.fspath(url), remote_files(os.fspath(url)), report)
        else:
            paths = [Path(path) for path in group]
            photos += find_images(paths, report=report, **options) if name == "local" else paths
    if not photos:
        raise FileNotFoundError("there is no photo: the list of files is empty")
    return list(dict.fromkeys(photos))


def photo_source(name: str) -> Source:
    """Return the photo of a path or URL.

    Example:
        >>> photo_source("https://example.org/dogs/2.jpg").name
        '2.jpg'
    """
    return remote_files(name)[0] if is_url(name) else Path(name)


def expand_patterns(roots: PathLike | Iterable[PathLike]) -> list[PathLike]:
    """Return sources with patterns replaced by the files and folders that they match.

    Raises:
        FileNotFoundError: If a pattern matches nothing.

    Example:
        >>> expand_patterns(["a.jpg", "no_folder/*.jpg"])
        Traceback (most recent call last):
        FileNotFoundError: no file matches no_folder/*.jpg
    """
    expanded: list[PathLike] = []
    for root in [roots] if isinstance(roots, (str, os.PathLike)) else roots:
        text = os.fspath(root)
        if is_url(text) or not glob.has_magic(text) or path_exists(Path(text)):
            expanded.append(root)
            continue
        matches = sorted(glob.glob(text, recursive=True))  # noqa: PTH207 (patterns may be absolute)
        if not matches:
            raise FileNotFoundError(f"no file matches {text}")
        expanded += map(Path, matches)
    return expanded


def read_list(file: Path) -> list[str]:
    r"""Return the sources in a list of files: one a line, or separated by NUL as `find -print0`.

    Args:
        file: The list; `-` is the standard input. Its paths are those of the working directory.

    Raises:
        OSError: If it cannot be opened.
        ValueError: If it is empty, too long, or no regular file.

    Example:
        >>> file = getfixture("tmp_path") / "list.txt"
        >>> _ = file.write_text("a.jpg\n\nhttps://example.org/b.jpg\n")
        >>> read_list(file)
        ['a.jpg', 'https://example.org/b.jpg']
    """
    if str(file) == "-":
        content = sys.stdin.buffer.read(_MAX_LIST_BYTES + 1)
    else:
        with open_regular_file(file) as stream:
            content = stream.read(_MAX_LIST_BYTES + 1)
    if len(content) > _MAX_LIST_BYTES:
        raise ValueError(f"{file} has more than {_MAX_LIST_BYTES:,} bytes: it is no list of files")
    separator = b"\0" if b"\0" in content else b"\n"
    lines = content.removeprefix(b"\xef\xbb\xbf").split(separator)
    names = [os.fsdecode(line.strip(b"\r")) for line in lines]
    if not any(name.strip() for name in names):
        raise ValueError(f"{file} lists no file: it must hold a path or URL a line")
    return [name for name in names if name.strip()]


def list_photos(images: Iterable[ImageLike] | ImageLike) -> list[ImageLike]:
    """Return images with folders, archives and stores replaced by the photos in them.

    Raises:
        FileNotFoundError: If a folder contains no image.
        TypeError: If it is neither an image nor a list of images.

    Example:
        >>> list_photos("photo.jpg")
        [PosixPath('photo.jpg')]
    """
    items = list_images(images)
    paths = [item for item in items if isinstance(item, (str, os.PathLike))]
    missing = not any(os.path.isdir(path) for path in paths)  # noqa: PTH112 (raises nothing)
    photos: list[ImageLike] = []
    for item in items:
        if isinstance(item, (str, os.PathLike)):
            photos += find_sources(item, skip=is_result_folder, keep_missing=missing)
        else:
            photos.append(item)
    return photos


def read_images(images: Iterable[ImageLike] | ImageLike) -> Iterator[LoadedImage]:
    """Read images one by one, and all images in folders, archives and stores.

    Of those, files that cannot be read are skipped with a warning, and folders below with results
    of visattn are skipped.

    Raises:
        FileNotFoundError: If a folder contains no image.
        ImageError: If an image cannot be read that was named itself.
    """
    items = list_images(images)
    sources = list_photos(items)
    for source in sources:
        try:
            image = read_image(source)
        except ImageError as error:
            if len(sources) == len(items):
                raise
            warnings.warn(f"skipped {error}", stacklevel=3)
        else:
            yield image


def _photos(
    name: str, files: list[Location], report: Callable[[str], object] | None
) -> list[Location]:
    """Return the files that are named like images; a single one may have any name."""
    if len(files) == 1:
        return files
    photos = [file for file in files if file.suffix.lower() in image_suffixes()]
    others = [Path(file.relative) for file in files]
    skipped = describe_skipped([path for path in others if is_other_image(path)])
    if not photos:
        text = f"no image in {name}; looked for {' '.join(image_suffixes())}"
        raise FileNotFoundError(f"{text}; {skipped}" if skipped else text)
    if skipped and report is not None:
        report(skipped)
    return photos
