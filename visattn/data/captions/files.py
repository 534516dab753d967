"""Photos and what is said of them, from the files that people have."""

import os
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path, PurePosixPath
from typing import Literal, NamedTuple

from visattn.data.captions.formats import Format, Remark, recognized, remarks
from visattn.io.safe_text import bounded_bytes, named, plain_text

PathLike = str | os.PathLike[str]
_HALF = re.compile("[\ud800-\udfff]")  # half of a pair; it cannot be written to any file


class CaptionEntry(NamedTuple):
    """A photo and what is said of it.

    Example:
        >>> CaptionEntry("a.jpg", "train/a.jpg", ("A dog .",)).split is None
        True
    """

    id: str
    """Name of the photo, unlike all others; for COCO its number."""
    file: str
    """Path below the folder of photos."""
    captions: tuple[str, ...]
    """As they were written, but for white space: each run of it is one blank."""
    split: str | None = None
    """The split that the file of captions itself names."""


def read_captions(path: PathLike, *, format: Format | None = None) -> list[CaptionEntry]:  # noqa: A002
    r"""Return the photos that a file of captions names, in its order, each with its captions.

    What has no caption, or an empty one, is left out with a warning that counts it.

    Args:
        path: UTF-8 text.
        format: `flickr`: lines `name#number<TAB>caption`; `csv`: a header with `image` and
            `caption`, separated by commas, semicolons, bars or tabs; `karpathy`: JSON with
            `sentences` below `images`, where the split `restval` counts as `train`; `coco`: JSON
            with `images` and `annotations`; `jsonl`: on each line a JSON object with `file` and
            `captions`, or `image` and `caption`. By default what the content looks like.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it does not have the format, names a photo outside the folder of photos,
            says something twice, or says nothing, with the line or the key; if it is no text, or
            longer than a gibibyte.

    Example:
        >>> folder = getfixture("tmp_path")
        >>> _ = (folder / "a.txt").write_text("a.jpg#0\tA dog .\na.jpg#1\tIt runs .\n")
        >>> read_captions(folder / "a.txt")
        [CaptionEntry(id='a.jpg', file='a.jpg', captions=('A dog .', 'It runs .'), split=None)]
    """
    text = _content(Path(path))
    form = format
    try:
        form = form or recognized(text)
        entries, silent, empty = _gathered(remarks(text, form))
    except ValueError as error:
        raise ValueError(f"{path}{f' (read as {form})' if form else ''}, {error}") from None
    if not entries:
        raise ValueError(f"{path} (read as {form}) holds no caption")
    if empty:
        _warn(f"{path}: {_some(empty, 'empty caption')} left out")
    if silent:
        _warn(f"{path}: {_some(silent, 'photo')} without a caption left out")
    return entries


def read_split(path: PathLike) -> list[str]:
    """Return the names in a list of photos, one on each line.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is empty, is no text, or a name stands twice.
    """
    lines: dict[str, int] = {}
    for number, line in enumerate(_content(Path(path)).split("\n"), 1):
        name = line.strip()
        if name in lines:
            raise ValueError(
                f"{path}, line {number}: {named(name)} stands already on line {lines[name]}"
            )
        if name:
            lines[name] = number
    return list(lines)


def of_split(entries: Iterable[CaptionEntry], names: Sequence[str]) -> list[CaptionEntry]:
    """Return the entries of a list of photos, in the order of the list.

    Args:
        entries: Of all splits.
        names: Ids, files, or files without folder and ending where only one photo has that name.

    Raises:
        ValueError: If a name has no captions, or two names mean the same photo.

    Example:
        >>> entries = [CaptionEntry(name, name, ("A dog .",)) for name in ("a.jpg", "b.jpg")]
        >>> [entry.id for entry in of_split(entries, ["b.jpg"])]
        ['b.jpg']
    """
    known: dict[str, CaptionEntry] = {}
    stems: dict[str, list[CaptionEntry]] = {}
    for entry in entries:
        known[entry.file] = known[entry.id] = entry
        stems.setdefault(PurePosixPath(entry.file).stem, []).append(entry)
    known |= {stem: same[0] for stem, same in stems.items() if len(same) == 1 and stem not in known}
    if missing := [name for name in names if name not in known]:
        raise ValueError(
            f"{_some(missing, 'name')} of the split without captions; "
            "give the captions of all its photos, or take the names out"
        )
    chosen = [known[name] for name in names]
    if twice := [one for one, count in Counter(entry.id for entry in chosen).items() if count > 1]:
        raise ValueError(f"{_some(twice, 'photo')} more than once in the split; name each once")
    return chosen


def in_split(entries: Iterable[CaptionEntry], split: str) -> list[CaptionEntry]:
    """Return the entries that their own file of captions puts into this split.

    Raises:
        ValueError: If there are none.

    Example:
        >>> entries = [CaptionEntry("a", "a.jpg", ("A dog .",), "val")]
        >>> [entry.id for entry in in_split(entries, "val")]
        ['a']
    """
    entries = list(entries)
    chosen = [entry for entry in entries if entry.split == split]
    if not chosen:
        there = sorted({str(entry.split) for entry in entries})
        raise ValueError(f"no photo is of split {split!r}; the captions know {', '.join(there)}")
    return chosen


def check_disjoint(splits: Mapping[str, Sequence[CaptionEntry]]) -> None:
    """Refuse splits that share a photo: a score would then praise what was learnt by heart.

    Raises:
        ValueError: If a photo is in two of them.

    Example:
        >>> check_disjoint({"train": [CaptionEntry("a", "a.jpg", ("A dog .",))], "test": []})
    """
    owners: dict[str, str] = {}
    shared: dict[tuple[str, str], list[str]] = {}
    for split, entries in splits.items():
        for entry in entries:
            owner = owners.setdefault(entry.file, split)
            if owner != split:
                shared.setdefault((owner, split), []).append(entry.id)
    if shared:
        both = ", ".join(
            f"{first} and {second} share {_some(ids, 'photo')}"
            for (first, second), ids in shared.items()
        )
        raise ValueError(f"{both}; a photo may be in one split only")


def _content(path: Path) -> str:
    """Return the text of a file, with line feeds alone at the ends of its lines."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is no file{_alike(path)}")
    content = bounded_bytes(path)
    try:
        text = plain_text(content)
    except ValueError as error:
        raise ValueError(f"{path}, {error}") from None
    if not text.strip():
        raise ValueError(f"{path} is empty")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _alike(path: Path) -> str:
    """Return what may have been meant by a file that is not there, as the end of a sentence."""
    if not path.parent.is_dir():
        return f"; there is no folder {path.parent} either"
    there = [one.name for one in path.parent.iterdir() if one.is_file()]
    close = get_close_matches(path.name, there, n=1)
    return f"; did you mean {path.parent / close[0]}?" if close else ""


def _gathered(said: Iterable[Remark]) -> tuple[list[CaptionEntry], list[str], list[str]]:
    """Return entries, photos of which nothing is said, and places of empty captions."""
    photos: dict[str, Remark] = {}
    captions: dict[str, list[str]] = {}
    empty: list[str] = []
    for remark in said:
        first = photos.setdefault(remark.id, remark)
        _check(remark, first)
        kept = captions.setdefault(remark.id, [])
        caption = " ".join((remark.caption or "").split())
        if caption:
            kept.append(caption)
        elif remark.caption is not None:
            empty.append(remark.place)
    entries = [
        CaptionEntry(photo.id, photo.file, tuple(captions[photo.id]), photo.split)
        for photo in photos.values()
        if captions[photo.id]
    ]
    return entries, [photo for photo, kept in captions.items() if not kept], empty


def _check(remark: Remark, first: Remark) -> None:
    """Refuse a photo without a name, two photos of one name, and what cannot be written."""
    if not remark.id.strip():
        raise ValueError(f"{remark.place}: a photo must have a name, got {remark.id!r}")
    if remark.file != first.file:
        raise ValueError(
            f"{remark.place}: {named(remark.file)} has the name of {named(first.file)}, "
            f"{first.place}; each photo needs a name of its own"
        )
    if _HALF.search(f"{remark.id} {remark.file} {remark.caption}"):
        raise ValueError(f"{remark.place}: half a character (a surrogate without its pair)")


def _some(items: Sequence[str], noun: str) -> str:
    """Return how many there are, and the first of them."""
    count = f"{len(items):,} {noun}{'' if len(items) == 1 else 's'}"
    return f"{count} ({', '.join(map(named, items[:3]))}{', ...' if len(items) > 3 else ''})"


def _warn(message: str) -> None:
    warnings.warn(message, UserWarning, stacklevel=3)


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
