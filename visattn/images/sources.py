"""Finding photos: in files, folders, patterns, lists, archives and URLs; and samples."""

import glob
import os
import sys
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from visattn.images.formats import IMAGE_SUFFIXES
from visattn.images.reader import ImageError, ImageLike, LoadedImage, list_images, read_image
from visattn.io.safe_paths import walk_files
from visattn.io.safe_text import open_regular_file
from visattn.io.sources import ARCHIVES, Source, is_url, remote_files  # noqa: TID251

PathLike = str | os.PathLike[str]
_MAX_LIST_BYTES = 2**28
_HEAD_OF_PAGE = 4096  # bytes of a page that include its generator tag
_SAMPLES = Path(__file__).parent / "samples"
_GENERATOR = b'<meta name="generator" content="visattn">'


def sample_photos() -> list[Path]:
    """Return the paths of six COCO photos; `ATTRIBUTION.md` in their folder credits the authors.

    Example:
        >>> [photo.stem for photo in sample_photos()][:2]
        ['skateboarder', 'cat']
    """
    names = ("skateboarder", "cat", "dinner", "tennis", "phone_call", "laptop")
    return [_SAMPLES / f"{name}.jpg" for name in names]


def find_images(
    roots: PathLike | Iterable[PathLike], *, keep_missing: bool = False, **walking: Any
) -> list[Any]:
    """Find image files in files, folders, patterns, archives and URLs, in the given order.

    A file is returned as is. A folder is searched recursively for image suffixes, in alphabetical
    order, by `visattn.io.safe_paths.walk_files`; hidden files and folders are skipped, and links to
    folders are followed without cycles. Unreadable files, such as broken links, are included:
    `read_image` reports the reason.

    Args:
        roots: One or several sources. A pattern such as `photos/*.jpg` is expanded if no file has
            this name.
        keep_missing: Also return files that do not exist; reading them fails.
        walking: Options of `walk_files`: `exclude`, `skip` and `onerror`.

    Returns:
        Local files as a `Path`, others as a `Location`; without duplicates.

    Raises:
        FileNotFoundError: If a path does not exist, or there is no image at all.
        ImportError: If the package that reads a store is missing.
        OSError: If a folder cannot be listed, or an archive or store cannot be read.

    Example:
        >>> str(find_images("https://example.org/dogs/1.jpg")[0])
        'https://example.org/dogs/1.jpg'
        >>> find_images("no_such_folder")
        Traceback (most recent call last):
        FileNotFoundError: no_such_folder does not exist; pass image files or folders
    """
    expanded = expand_patterns(roots)
    photos: list[Source] = []
    for root in expanded:
        path = Path(root)
        if is_url(os.fspath(root)) or (path.suffix.lower() in ARCHIVES and path.is_file()):
            files: Iterable[Source] = remote_files(os.fspath(root))
            if len(files) == 1:  # it may have any name
                photos += files
                continue
        elif not _exists(path) and not keep_missing:
            raise FileNotFoundError(f"{path} does not exist; pass image files or folders")
        elif os.path.isdir(root):  # noqa: PTH112 (Path.is_dir raises without permission)
            files = walk_files(path, **walking)
        else:
            photos.append(path)
            continue
        photos += [file for file in files if file.suffix.lower() in IMAGE_SUFFIXES]
    if not photos:
        searched = ", ".join(map(str, expanded)) or "an empty list"
        raise FileNotFoundError(f"no image in {searched}; looked for {' '.join(IMAGE_SUFFIXES)}")
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
        if is_url(text) or not glob.has_magic(text) or _exists(Path(text)):
            expanded.append(root)
            continue
        matches = sorted(glob.glob(text, recursive=True))  # noqa: PTH207 (patterns may be absolute)
        if not matches:
            raise FileNotFoundError(f"no file matches {text}")
        expanded += map(Path, matches)
    return expanded


def read_list(file: Path) -> list[str]:
    r"""Return the sources in a list file: one per line, or separated by NUL as by `find -print0`.

    Args:
        file: The list; `-` for standard input. Its paths are relative to the working directory.

    Raises:
        OSError: If it cannot be opened.
        ValueError: If it is empty, too long, or not a regular file.

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
        raise ValueError(f"a list of files must have at most {_MAX_LIST_BYTES:,} bytes: {file}")
    separator = b"\0" if b"\0" in content else b"\n"
    lines = content.removeprefix(b"\xef\xbb\xbf").split(separator)
    names = [os.fsdecode(line.strip(b"\r")) for line in lines]
    if not any(name.strip() for name in names):
        raise ValueError(f"{file} lists no file: it must have one path or URL per line")
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
            photos += find_images(item, skip=is_result_folder, keep_missing=missing)
        else:
            photos.append(item)
    return photos


def read_images(images: Iterable[ImageLike] | ImageLike) -> Iterator[LoadedImage]:
    """Read images one by one, and all images in folders, archives and stores.

    In these, unreadable files are skipped with a warning, and so are folders with results of
    visattn.

    Raises:
        FileNotFoundError: If a folder contains no image.
        ImageError: If an image that was passed by itself cannot be read.
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


def is_result_folder(folder: Path) -> bool:
    """Return whether a folder has an index page of visattn: the images in it are results.

    Example:
        >>> folder = getfixture("tmp_path")
        >>> tag = '<meta name="generator" content="visattn">'
        >>> _ = (folder / "index.html").write_text(tag)
        >>> is_result_folder(folder), is_result_folder(folder.parent)
        (True, False)
    """
    try:
        with open_regular_file(folder / "index.html") as page:
            return _GENERATOR in page.read(_HEAD_OF_PAGE)
    except (OSError, ValueError):
        return False


def _exists(path: Path) -> bool:
    """Return whether the path exists; a broken link counts."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # the reader reports why it cannot be read
        return True
    return True
