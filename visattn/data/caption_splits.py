"""Which photos a split holds: named in the captions' own file, or listed in another."""

from collections.abc import Sequence
from pathlib import Path

from visattn.data.caption_files import CaptionEntry, in_split, of_split, read_split


def split_entries(entries: Sequence[CaptionEntry], name: str) -> list[CaptionEntry]:
    """Return the entries of a split that is named in the captions' file, or listed in another.

    Args:
        entries: Of all splits.
        name: Of a split, or of a file with a list of photos.

    Raises:
        ValueError: If it is neither, or the list does not fit the captions.

    Example:
        >>> entries = [CaptionEntry("a", "a.jpg", ("A dog .",), "val")]
        >>> [entry.id for entry in split_entries(entries, "val")]
        ['a']
    """
    if any(entry.split == name for entry in entries):
        return in_split(entries, name)
    if Path(name).is_file():
        return of_split(entries, read_split(name))
    named = sorted({entry.split for entry in entries if entry.split})
    known = f"the captions' file names {', '.join(named)}" if named else "it names no split"
    raise ValueError(
        f"{name} is neither a split that the captions' file names nor a list of photos; {known}"
    )
