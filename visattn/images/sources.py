"""Photos by what users have: files, folders, patterns, lists, archives, tables, URLs."""

import glob
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
from visattn.io.archives import archive_files, is_archive
from visattn.io.locations import Location, Source, Unreadable
from visattn.io.messages import format_names
from visattn.io.safe_paths import walk_files
from visattn.io.safe_text import open_regular_file
from visattn.io.stores import is_url
from visattn.io.tables import is_table, table_files
from visattn.io.web import url_file, url_files

PathLike = str | os.PathLike[str]
_MAX_LIST_BYTES = 2**28


def find_sources(
    roots: PathLike | Iterable[PathLike],
    *,
    keep_missing: bool = False,
    report: Callable[[str], object] | None = None,
    **options: Any,
) -> list[Source]:
    """Return the photos of files, folders, patterns, archives, tables and URLs, in their order.

    Photos of an archive have the order that they would have in a folder, those of a table that of
    its rows. Entries of an archive that cannot be a photo are `Unreadable`: reading them says why.

    Args:
        roots: One of them or several. A pattern such as `photos/*.jpg` is expanded if no file has
            its name; a table may be followed by a colon and the name of its column of photos.
        keep_missing: Return files that do not exist, too, whose reading fails.
        report: Called with a sentence about images of formats that are not read.
        options: Of `find_images`: `omit`, `skip` and `onerror`, for folders.

    Raises:
        FileNotFoundError: If a path does not exist, or there is no image at all.
        ImportError: If a package is missing that reads tables or a store.
        OSError: If a folder cannot be listed.
        ValueError: If an archive or a table cannot be read.

    Example:
        >>> find_sources("https://example.org/dogs/1.jpg")
        [WebFile('https://example.org/dogs/1.jpg')]
    """
    sources: list[Source] = []
    local: list[Path] = []
    options["report"] = report

    def search() -> None:
        """Add the images of the files and folders so far."""
        if local:
            sources.extend(_search(local, options))
            local.clear()

    for root in expand_patterns(roots):
        elsewhere = _files_elsewhere(root, report)
        if elsewhere is None and keep_missing and not path_exists(Path(root)):
            elsewhere = [Path(root)]
        if elsewhere is None:
            local.append(Path(root))
        else:
            search()
            sources += elsewhere
    search()
    if not sources:
        raise FileNotFoundError("there is no photo: the list of files is empty")
    return list(dict.fromkeys(sources))


def photo_source(name: str) -> Source:
    """Return the photo of a path or URL, which is not looked up before it is read.

    Raises:
        ImportError: If a package is missing that reads a store.
        ValueError: If the scheme of a URL is unknown.

    Example:
        >>> photo_source("dogs/1.jpg").name, photo_source("https://example.org/dogs/2.jpg").name
        ('1.jpg', '2.jpg')
    """
    return url_file(name) if is_url(name) else Path(name)


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
    """Return images with folders, archives, tables and stores replaced by the photos in them.

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
    """Read images one by one, and all images in folders, archives, tables and stores.

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


def _files_elsewhere(
    root: PathLike, report: Callable[[str], object] | None
) -> "list[Source] | None":
    """Return the photos of a source that is neither a file nor a folder of photos, else None."""
    text = os.fspath(root)
    if is_url(text):
        files = url_files(text)
        return list(_photos(text, files, report)) if len(files) > 1 else [*files]
    path = Path(text)
    if os.path.isdir(path):  # noqa: PTH112 (raises nothing)
        saved = [path / name for name in ("state.json", "dataset_info.json")]
        tables = sorted(path.glob("*.arrow")) if all(map(path_exists, saved)) else []
        return [file for table in tables for file in table_files(table)] or None
    if path_exists(path):
        if is_archive(path):
            return list(_photos(text, archive_files(path), report))
        return [*table_files(path)] if is_table(path) else None
    name, colon, column = text.rpartition(":")
    if colon and is_table(Path(name)) and path_exists(Path(name)):
        return [*table_files(Path(name), column)]
    return None


def _photos(
    name: str, files: Iterable[Location], report: Callable[[str], object] | None
) -> Iterator[Location]:
    """Yield the files that are named like images, and those that cannot be read."""
    others: list[Path] = []
    count = 0
    for file in files:
        suffix = file.suffix.lower()
        if suffix in image_suffixes() or (isinstance(file, Unreadable) and not suffix):
            count += 1
            yield file
        elif is_other_image(Path(file.relative)):
            others.append(Path(file.relative))
    skipped = describe_skipped(others)
    if not count:
        text = f"no image in {name}; looked for {' '.join(image_suffixes())}"
        raise FileNotFoundError(f"{text}; {skipped}" if skipped else text)
    if skipped and report is not None:
        report(skipped)


def _search(paths: list[Path], options: dict[str, Any]) -> list[Source]:
    """Return the images of files and folders; of folders without, the photos of their tables."""
    try:
        return [*find_images(paths, **options)]
    except FileNotFoundError as error:
        folders = [path for path in paths if os.path.isdir(path)]  # noqa: PTH112 (raises nothing)
        files = [file for folder in folders for file in walk_files(folder)]
        if tables := [file for file in files if is_table(file)]:
            return [photo for table in tables for photo in table_files(table)]
        if archives := [str(file) for file in files if is_archive(file)]:
            raise FileNotFoundError(
                f"{error}; archives in folders are not searched: name {format_names(archives)}"
            ) from error
        raise
