"""Which photos a split holds: named in the captions' file, listed in another, or a file each."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from visattn.data.caption_files import (
    CaptionEntry,
    check_disjoint,
    in_split,
    of_split,
    read_captions,
    read_split,
)
from visattn.data.caption_formats import Format

Split = Literal["train", "validation", "test"]
PerSplit = Mapping[str, str] | str
"""One path for all splits, or one for each, by `train`, `validation` and `test`."""
_SPLITS: tuple[Split, ...] = ("train", "validation", "test")
_NAMES = ("train", "val", None)  # unless others are given


class CaptionSplit(NamedTuple):
    """The photos of a split, and the folder below which their files lie."""

    entries: list[CaptionEntry]
    folder: Path


def per_split(
    captions: PerSplit,
    photos: PerSplit,
    names: Sequence[str | None] = _NAMES,
    *,
    format: Format | None = None,  # noqa: A002 (as read_captions calls it)
) -> dict[Split, CaptionSplit]:
    r"""Return the splits of photos with captions, of which none shares a photo with training.

    Without a test split the validation photos are tested. Without either there is training alone.

    Args:
        captions: The file of captions, or that of each split, as COCO comes.
        photos: The folder of the photos, or that of each split.
        names: Of training, validation and test: a split that the captions' file names, or a list
            of photos. A split with a file of its own is the whole file, where these are left as
            they are and the file names no splits.
        format: Of the captions' files; recognized if left out.

    Raises:
        FileNotFoundError: If a file of captions is missing.
        ValueError: If a split is unknown, there is nothing to train on, or a photo of training is
            in another split.

    Example:
        >>> folder = getfixture("tmp_path")
        >>> for name in ("train", "val"):
        ...     _ = (folder / name).write_text(f"{name}.jpg#0\tA dog .")
        >>> files = {"train": str(folder / "train"), "validation": str(folder / "val")}
        >>> splits = per_split(files, str(folder))
        >>> {split: [entry.file for entry in found.entries] for split, found in splits.items()}
        {'train': ['train.jpg'], 'validation': ['val.jpg'], 'test': ['val.jpg']}
    """
    files, folders = _by_split(captions, "captions"), _by_split(photos, "photos")
    if "train" not in files or names[0] is None:
        raise ValueError(f"there must be captions to train on, got captions of {', '.join(files)}")
    read = {file: read_captions(file, format=format) for file in dict.fromkeys(files.values())}
    splits: dict[Split, CaptionSplit] = {}
    own = not isinstance(captions, str)
    for split, name, usual in zip(_SPLITS, names, _NAMES, strict=True):
        if split not in files or (name is None and not own):
            continue
        if split not in folders:
            raise ValueError(f"photos must name the folder of the {split} split too")
        entries = read[files[split]]
        named = name is not None and any(entry.split == name for entry in entries)
        if named or not own or name not in (usual, None):
            entries = split_entries(entries, str(name))
        splits[split] = CaptionSplit(entries, Path(folders[split]))
    if "test" not in splits and "validation" in splits:
        splits["test"] = splits["validation"]
    _check_disjoint(splits)
    return splits


def check_ids(splits: Mapping[Split, CaptionSplit]) -> None:
    """Refuse two photos with one name: kept features are found by it.

    Raises:
        ValueError: If there are such photos.
    """
    files: dict[str, Path] = {}
    for entries, folder in splits.values():
        for entry in entries:
            file = folder / entry.file
            if files.setdefault(entry.id, file) != file:
                raise ValueError(
                    f"{files[entry.id]} and {file} have the same name, {entry.id}, in the files of "
                    "captions: a cache needs different ones; leave out the cache, or rename them"
                )


def _by_split(paths: PerSplit, what: str) -> dict[Split, str]:
    """Return the path of each split."""
    if isinstance(paths, str):
        return dict.fromkeys(_SPLITS, paths)
    if unknown := [name for name in paths if name not in _SPLITS]:
        raise ValueError(f"{what} may be given for {', '.join(_SPLITS)}; got {', '.join(unknown)}")
    return {split: paths[split] for split in _SPLITS if paths.get(split)}


def _check_disjoint(splits: Mapping[Split, CaptionSplit]) -> None:
    """Refuse a split that shares a photo with training; photos of one name may differ by folder."""
    placed = {
        split: [entry._replace(file=str(folder / entry.file)) for entry in entries]
        for split, (entries, folder) in splits.items()
    }
    for split in placed:
        if split != "train":
            check_disjoint({part: placed[part] for part in ("train", split)})


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
    known = (
        f"the captions' file names {', '.join(named)}"
        if named
        else "it names no split: give a list of photos, or a file of captions for each split"
    )
    raise ValueError(
        f"{name} is neither a split that the captions' file names nor a list of photos; {known}"
    )
