"""Photos on the command line: what can be named, lists of them, and what a dry run says of them."""

import argparse
import stat
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from visattn.commands.options import RUN, CommandParser, add_options
from visattn.commands.output_option import output_name, output_path
from visattn.io.sources import Source


def image_source(text: str) -> Path | str:
    """Return a source of photos: a path, or a URL as it is.

    Example:
        >>> image_source("photos/").as_posix(), image_source("s3://bucket/photos/")
        ('photos', 's3://bucket/photos/')
    """
    return text if "://" in text else Path(output_name(text))


def add_images(parser: CommandParser, *, videos: bool = False, positional: bool = True) -> None:
    """Add the positional arguments `images`, and the options `--files-from` and `--strict`.

    Args:
        parser: The parser.
        videos: Whether videos can be given too.
        positional: Whether images are positional arguments.
    """
    if positional:
        kinds = (
            "photos: files, folders that are searched recursively, patterns in quotes, zip and tar "
            "archives, and URLs (https, s3, zip://*.jpg::photos.zip)"
        )
        parser.add_argument(
            "images",
            nargs="*",
            type=image_source,
            metavar="PHOTOS",
            help=f"{kinds}; or video files" if videos else kinds,
        )
    parser.group(RUN).add_argument(
        "--files-from",
        type=output_path,
        metavar="LIST",
        help="read the photos in a list instead, a path or URL a line (- for the standard input); "
        "those that do not exist are skipped",
    )
    add_options(parser, "strict")


def resolve_images(
    parser: argparse.ArgumentParser, args: argparse.Namespace, nothing: str = ""
) -> None:
    """Set `args.images` from the list of `--files-from`; exit with a usage error without photos.

    Args:
        parser: Parser of a command with `add_images`.
        args: Its options, as they were parsed.
        nothing: What to name, if the command takes more than photos.

    Raises:
        OSError: If the list cannot be read.
        ValueError: If it lists nothing.
    """
    if args.files_from is None:
        if not args.images:
            needed = nothing or "name the photos: files, folders, archives, URLs"
            parser.error(f"{needed}, or --files-from LIST")
        return
    if args.images:
        parser.error("--files-from LIST replaces the photos of the command line: leave them out")
    from visattn.images.sources import read_list

    args.images = [image_source(line) for line in read_list(args.files_from)]


def describe_images(paths: Sequence[Source]) -> str:
    """Return number, file types and total size of images.

    Example:
        >>> describe_images([Path("no/a.png"), Path("no/b.JPG")])
        '2 images: 1 .jpg, 1 .png; 0.0 MB'
    """
    counts = Counter(path.suffix.lower() for path in paths)
    types = ", ".join(f"{count:,} {suffix}" for suffix, count in sorted(counts.items()))
    size = sum(map(_file_size, paths)) / 10**6
    return f"{len(paths):,} image{'' if len(paths) == 1 else 's'}: {types}; {size:,.1f} MB"


def _file_size(path: Source) -> int:
    """Return the bytes of a regular file; 0 for anything else and for unreadable paths."""
    try:
        status = Path(str(path)).stat()
    except OSError:
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0
