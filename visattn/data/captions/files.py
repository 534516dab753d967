"""Caption annotations: reading files in common formats, and dividing them into splits."""

import hashlib
import os
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from visattn.data.captions.formats import (
    RESULT_FORMATS,
    CaptionRecord,
    detect_format,
    parse_captions,
    parse_results,
)
from visattn.io.safe_text import decode_utf8, printable_name, read_bytes_bounded
from visattn.results.kinds import CaptionFormat, Split

PathLike = str | os.PathLike[str]
_SURROGATE = re.compile("[\ud800-\udfff]")  # unpaired, it cannot be encoded as UTF-8


class CaptionEntry(NamedTuple):
    """A photo with its captions.

    Example:
        >>> CaptionEntry("a.jpg", "train/a.jpg", ("A dog .",)).split is None
        True
    """

    id: str
    """Unique name of the photo; for COCO its id."""
    file: str
    """Path relative to the folder of photos."""
    captions: tuple[str, ...]
    """As they were written, but with single spaces."""
    split: str | None = None
    """The split that the captions' file assigns."""


def read_captions(path: PathLike, *, format: CaptionFormat | None = None) -> list[CaptionEntry]:  # noqa: A002
    r"""Read a captions file: photos in the order of the file, each with its captions.

    Photos without captions and empty captions are dropped, with a warning that counts them.

    Args:
        path: UTF-8 text.
        format: `flickr`: lines `name#number<TAB>caption`; `csv`: a header with `image`,
            `caption` and perhaps `split`, separated by commas, semicolons, bars or tabs;
            `karpathy`: JSON with `sentences` under `images`, where the split `restval` counts as
            `train`; `coco`: JSON with `images` and `annotations`; `jsonl`: on each line a JSON
            object with `file` and `captions`, or `image` and `caption`. Detected from the content
            by default.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it does not have the format, a path leads outside of the folder of photos,
            or it has duplicates or no captions; the message names the line or key. If it is not
            text, or is longer than a gibibyte.

    Example:
        >>> folder = getfixture("tmp_path")
        >>> _ = (folder / "a.txt").write_text("a.jpg#0\tA dog .\na.jpg#1\tIt runs .\n")
        >>> read_captions(folder / "a.txt")
        [CaptionEntry(id='a.jpg', file='a.jpg', captions=('A dog .', 'It runs .'), split=None)]
    """
    text = _read_text(Path(path))
    try:
        format = format or detect_format(text)  # noqa: A001
        entries, uncaptioned, empty = _group_by_photo(parse_captions(text, format))
    except ValueError as error:
        raise ValueError(f"{path}{f' (read as {format})' if format else ''}, {error}") from None
    if not entries:
        raise ValueError(f"{path} (read as {format}) holds no caption")
    if empty:
        _warn(f"{path}: dropped {_summarize(empty, 'empty caption')}")
    if uncaptioned:
        _warn(f"{path}: dropped {_summarize(uncaptioned, 'photo')} without a caption")
    return entries


class CaptionResults(NamedTuple):
    """Generated captions, one per image.

    Example:
        >>> CaptionResults({"a.jpg": "a dog"}).duplicates
        ()
    """

    captions: dict[str, str]
    """Captions by image id or file name, as in the file."""
    duplicates: tuple[str, ...] = ()
    """Images that occur more than once with the same caption."""


def read_caption_results(path: PathLike) -> CaptionResults:
    r"""Return the captions of a results file; its format is detected.

    Args:
        path: UTF-8 text: a JSON list of objects with `image_id` and `caption` (the COCO results
            format); a JSON object with `id` and `caption` on each line; lines `name<TAB>caption`,
            as `visattn caption` prints them; or lines `name#0<TAB>caption`.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it has none of these formats, holds no caption, or has two different captions
            for one image; the message names the location.

    Example:
        >>> folder = getfixture("tmp_path")
        >>> _ = (folder / "predictions.tsv").write_text("a.jpg\ta dog\nb.jpg\ta cat\n")
        >>> read_caption_results(folder / "predictions.tsv").captions
        {'a.jpg': 'a dog', 'b.jpg': 'a cat'}
    """
    first: dict[str, CaptionRecord] = {}
    duplicates: dict[str, None] = {}
    text = _read_text(Path(path))
    try:
        for record in parse_results(text):
            same = first.setdefault(record.id, record)
            _check_record(record, same)
            if str(same.caption).split() != str(record.caption).split():
                raise ValueError(
                    f"{record.location}: {printable_name(record.id)} has another caption at "
                    f"{same.location}; results have one caption per image"
                )
            if same is not record:
                duplicates[record.id] = None
    except ValueError as error:
        raise ValueError(f"{path}, {error}") from None
    if not first:
        raise ValueError(f"{path} holds no caption; supported formats: {RESULT_FORMATS}")
    captions = {image: str(record.caption) for image, record in first.items()}
    return CaptionResults(captions, tuple(duplicates))


def read_split_file(path: PathLike) -> list[str]:
    """Read a split file: a list of photos, one name per line.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is empty, not text, or has duplicates.
    """
    lines: dict[str, int] = {}
    for number, line in enumerate(_read_text(Path(path)).split("\n"), 1):
        name = line.strip()
        if name in lines:
            raise ValueError(
                f"{path}, line {number}: {printable_name(name)} is already on line {lines[name]}"
            )
        if name:
            lines[name] = number
    return list(lines)


def select_listed(entries: Iterable[CaptionEntry], names: Sequence[str]) -> list[CaptionEntry]:
    """Return the entries of the listed photos, in the order of the list.

    Args:
        entries: Entries of all splits.
        names: Ids, files, or file stems where these are unique.

    Raises:
        ValueError: If a name has no captions, or two names refer to the same photo.

    Example:
        >>> entries = [CaptionEntry(name, name, ("A dog .",)) for name in ("a.jpg", "b.jpg")]
        >>> [entry.id for entry in select_listed(entries, ["b.jpg"])]
        ['b.jpg']
    """
    by_name: dict[str, CaptionEntry] = {}
    stems: dict[str, list[CaptionEntry]] = {}
    for entry in entries:
        by_name[entry.file] = by_name[entry.id] = entry
        stems.setdefault(PurePosixPath(entry.file).stem, []).append(entry)
    # Lists often lack the suffix. Without it a name must still mean a single photo.
    by_name |= {
        stem: same_stem[0]
        for stem, same_stem in stems.items()
        if len(same_stem) == 1 and stem not in by_name
    }
    if missing := [name for name in names if name not in by_name]:
        raise ValueError(
            f"{_summarize(missing, 'name')} of the split without captions; "
            "add their captions, or remove the names"
        )
    selected = [by_name[name] for name in names]
    counts = Counter(entry.id for entry in selected)
    if duplicates := [photo for photo, count in counts.items() if count > 1]:
        raise ValueError(
            f"{_summarize(duplicates, 'photo')} more than once in the split; list each photo once"
        )
    return selected


def check_disjoint_splits(splits: Mapping[str, Sequence[CaptionEntry]]) -> None:
    """Raise if splits share a photo, which would leak training data into the scores.

    Raises:
        ValueError: If a photo is in two of them.

    Example:
        >>> check_disjoint_splits({"train": [CaptionEntry("a", "a.jpg", ("A dog .",))], "test": []})
    """
    first_split: dict[str, str] = {}
    shared: dict[tuple[str, str], list[str]] = {}
    for split, entries in splits.items():
        for entry in entries:
            first = first_split.setdefault(entry.file, split)
            if first != split:
                shared.setdefault((first, split), []).append(entry.id)
    if shared:
        overlaps = ", ".join(
            f"{first} and {second} share {_summarize(ids, 'photo')}"
            for (first, second), ids in shared.items()
        )
        raise ValueError(f"{overlaps}; a photo may be in one split only")


def _read_text(path: Path) -> str:
    """Return the text of a file with normalized line endings."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not a file")
    content = read_bytes_bounded(path)
    try:
        text = decode_utf8(content)
    except ValueError as error:
        raise ValueError(f"{path}, {error}") from None
    if not text.strip():
        raise ValueError(f"{path} is empty")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _group_by_photo(
    records: Iterable[CaptionRecord],
) -> tuple[list[CaptionEntry], list[str], list[str]]:
    """Return entries, photos without captions, and locations of empty captions."""
    photos: dict[str, CaptionRecord] = {}
    captions: dict[str, list[str]] = {}
    empty: list[str] = []
    for record in records:
        first = photos.setdefault(record.id, record)
        _check_record(record, first)
        photo_captions = captions.setdefault(record.id, [])
        caption = " ".join((record.caption or "").split())
        if caption:
            photo_captions.append(caption)
        elif record.caption is not None:
            empty.append(record.location)
    entries = [
        CaptionEntry(photo.id, photo.file, tuple(captions[photo.id]), photo.split)
        for photo in photos.values()
        if captions[photo.id]
    ]
    return entries, [photo for photo in captions if not captions[photo]], empty


def _check_record(record: CaptionRecord, first: CaptionRecord) -> None:
    """Raise for a photo without a name, two photos with one name, or unencodable text."""
    if not record.id.strip():
        raise ValueError(f"{record.location}: a photo must have a name, got {record.id!r}")
    if record.file != first.file:
        raise ValueError(
            f"{record.location}: {printable_name(record.file)} has the same name as "
            f"{printable_name(first.file)} ({first.location}); each photo needs a unique name"
        )
    if record.split != first.split:
        raise ValueError(
            f"{record.location}: {printable_name(record.file)} is in the split "
            f"{record.split or 'without a name'}, and in {first.split or 'that without a name'} at "
            f"{first.location}; all captions of a photo must have the same split"
        )
    if _SURROGATE.search(f"{record.id} {record.file} {record.caption}"):
        raise ValueError(f"{record.location}: an unpaired surrogate character")


def _summarize(items: Sequence[str], noun: str) -> str:
    """Return the number of items and the first of them, for a message."""
    count = f"{len(items):,} {noun}{'' if len(items) == 1 else 's'}"
    return (
        f"{count} ({', '.join(map(printable_name, items[:3]))}{', ...' if len(items) > 3 else ''})"
    )


def _warn(message: str) -> None:
    warnings.warn(message, UserWarning, stacklevel=3)


SplitPaths = Mapping[str, str] | str
"""One path for all splits, or one per split: `train`, `val`, `test`."""
_SPLITS: dict[str, Split] = {"train": "train", "val": "validation", "test": "test"}
_DEFAULT_NAMES = ("train", "val", None)


class SplitFractions(NamedTuple):
    """Fractions of the photos that are chosen at random for validation and test.

    Example:
        >>> SplitFractions(0.2).test
        0.0
    """

    validation: float = 0.0
    test: float = 0.0
    seed: int = 0
    """Seed of the choice."""


class CaptionSplit(NamedTuple):
    """The entries of a split, and the folder that their files are relative to."""

    entries: list[CaptionEntry]
    folder: Path


def read_caption_splits(
    captions: SplitPaths,
    photos: SplitPaths,
    names: Sequence[str | None] = _DEFAULT_NAMES,
    *,
    format: CaptionFormat | None = None,  # noqa: A002 (as read_captions calls it)
    fractions: SplitFractions | None = None,
) -> dict[Split, CaptionSplit]:
    r"""Return the splits of a caption dataset; none shares a photo with training.

    Without a test split, the validation photos are used for the test. Without either there is only
    a training split.

    Args:
        captions: The captions file, or one per split, as in COCO.
        photos: The folder of the photos, or one per split.
        names: For training, validation and test: a split name in the captions file, or a file with
            a list of photos. With the default names, a split with its own captions file is the
            whole file if that file assigns no splits.
        format: Format of the captions files; detected if None.
        fractions: Divides the photos of a single captions file that assigns no splits, instead of
            `names`; see `divide_photos`.

    Raises:
        FileNotFoundError: If a captions file is missing.
        ValueError: If a split is unknown, there is no training split, a training photo is in
            another split, or there are both fractions and splits.

    Example:
        >>> folder = getfixture("tmp_path")
        >>> for name in ("train", "val"):
        ...     _ = (folder / name).write_text(f"{name}.jpg#0\tA dog .")
        >>> files = {"train": str(folder / "train"), "val": str(folder / "val")}
        >>> splits = read_caption_splits(files, str(folder))
        >>> {name: [entry.file for entry in split.entries] for name, split in splits.items()}
        {'train': ['train.jpg'], 'validation': ['val.jpg'], 'test': ['val.jpg']}
    """
    files = _paths_by_split(captions, "captions")
    folders = _paths_by_split(photos, "photos")
    if "train" not in files or names[0] is None:
        raise ValueError(f"captions must include a train split, got {', '.join(files)}")
    entries_of = {
        file: read_captions(file, format=format) for file in dict.fromkeys(files.values())
    }
    splits: dict[Split, CaptionSplit] = {}
    separate_files = not isinstance(captions, str)
    if fractions:
        _check_without_splits(captions, photos, names, entries_of[files["train"]])
        parts = divide_photos(entries_of[files["train"]], fractions)
        splits = {
            split: CaptionSplit(entries, Path(folders["train"])) for split, entries in parts.items()
        }
        return splits if "test" in splits else {**splits, "test": splits["validation"]}
    if isinstance(captions, str):
        _check_divisible(captions, names[0], entries_of[captions])
    for split, name, default in zip(_SPLITS.values(), names, _DEFAULT_NAMES, strict=True):
        if split not in files or (name is None and not separate_files):
            continue
        if split not in folders:
            raise ValueError(f"photos must include the folder of the {split} split")
        entries = entries_of[files[split]]
        # A file of its own belongs to the split as a whole, unless it assigns this split itself, as
        # one of Karpathy's does, or the user has named another list.
        assigned = name is not None and any(entry.split == name for entry in entries)
        if assigned or not separate_files or name not in (default, None):
            entries = entries_of_split(entries, str(name))
        splits[split] = CaptionSplit(entries, Path(folders[split]))
    if "test" not in splits and "validation" in splits:
        splits["test"] = splits["validation"]
    _check_disjoint_from_train(splits)
    return splits


def divide_photos(
    entries: Sequence[CaptionEntry], fractions: SplitFractions
) -> dict[Split, list[CaptionEntry]]:
    """Divide photos at random into splits; all captions of a photo are in the same one.

    The names of the files and the seed decide, and not the order of the photos. Validation photos
    do not depend on the fraction of the test.

    Raises:
        ValueError: If a fraction lies outside of [0, 1), both are 0, or no photo is left for
            training.

    Example:
        >>> entries = [CaptionEntry(name, name, ("A dog .",)) for name in "abcde"]
        >>> parts = divide_photos(entries, SplitFractions(0.2, 0.4))
        >>> {split: [entry.file for entry in part] for split, part in parts.items()}
        {'train': ['c', 'd'], 'validation': ['e'], 'test': ['a', 'b']}
    """
    chosen: dict[Split, float] = {"validation": fractions.validation, "test": fractions.test}
    if not all(0 <= fraction < 1 for fraction in chosen.values()) or not any(chosen.values()):
        raise ValueError(
            "val_fraction and test_fraction must lie in [0, 1) and not both be 0, got "
            f"{fractions.validation} and {fractions.test}"
        )
    order = sorted(entries, key=lambda entry: _random_rank(entry.file, fractions.seed))
    splits: dict[str, Split] = {}
    start = 0
    for split, fraction in chosen.items():
        stop = start + (max(1, round(fraction * len(order))) if fraction else 0)
        splits |= {entry.file: split for entry in order[start:stop]}
        start = stop
    if start >= len(order):
        raise ValueError(
            f"val_fraction {fractions.validation} and test_fraction {fractions.test} leave none of "
            f"{len(order)} photos for training; lower them"
        )
    parts: dict[Split, list[CaptionEntry]] = {"train": []}
    parts |= {split: [] for split in dict.fromkeys(splits.values())}
    for entry in entries:
        parts[splits.get(entry.file, "train")].append(entry)
    return parts


def _random_rank(file: str, seed: int) -> str:
    """Return a key that sorts files at random, the same on every machine."""
    return hashlib.sha256(f"{seed} {file}".encode()).hexdigest()


def _check_without_splits(
    captions: SplitPaths,
    photos: SplitPaths,
    names: Sequence[str | None],
    entries: Sequence[CaptionEntry],
) -> None:
    """Raise if photos that are to be divided at random have splits already."""
    cure = "leave out val_fraction and test_fraction, or"
    if isinstance(captions, Mapping) or isinstance(photos, Mapping):
        raise ValueError(  # noqa: TRY004 (each is of a type that the parameter accepts)
            "val_fraction and test_fraction divide the photos of a single captions file, but there "
            f"is one per split; {cure} give a single file and folder"
        )
    train, val, test = names
    if train != "train" or val not in ("val", None) or test is not None:
        raise ValueError(
            "val_fraction and test_fraction divide the photos at random, but train, val and test "
            f"name their splits, got {train}, {val} and {test}; {cure} leave these out"
        )
    if assigned := sorted({entry.split for entry in entries if entry.split}):
        raise ValueError(
            "val_fraction and test_fraction divide the photos at random, but the captions file "
            f"assigns the splits {', '.join(assigned)}; {cure} remove these from the file"
        )


def _check_divisible(path: str, train: str, entries: Sequence[CaptionEntry]) -> None:
    """Raise if neither the captions file nor the user says which photos are for training."""
    if train == "train" and not Path(train).is_file() and not any(e.split for e in entries):
        raise ValueError(
            f"{path} assigns no splits: set val_fraction to choose validation photos at random; or "
            "give a table with a column split, lists of photos as train and val, or a captions "
            "file for each split"
        )


def check_unique_ids(splits: Mapping[Split, CaptionSplit]) -> None:
    """Raise if two photos have the same id, which identifies cached features.

    Raises:
        ValueError: If there are such photos.
    """
    files: dict[str, Path] = {}
    for entries, folder in splits.values():
        for entry in entries:
            file = folder / entry.file
            if files.setdefault(entry.id, file) != file:
                raise ValueError(
                    f"{files[entry.id]} and {file} have the same id, {entry.id}, in the captions "
                    "files: a feature cache needs unique ids; rename them, or disable the cache"
                )


def _paths_by_split(paths: SplitPaths, argument: str) -> dict[Split, str]:
    """Return the path of each split."""
    if isinstance(paths, str):
        return dict.fromkeys(_SPLITS.values(), paths)
    if unknown := [name for name in paths if name not in _SPLITS]:
        raise ValueError(f"{argument} accepts {', '.join(_SPLITS)}; got {', '.join(unknown)}")
    return {split: paths[key] for key, split in _SPLITS.items() if paths.get(key)}


def _check_disjoint_from_train(splits: Mapping[Split, CaptionSplit]) -> None:
    """Raise if a split shares a photo with training, comparing full paths."""
    resolved = {
        split: [entry._replace(file=str(folder / entry.file)) for entry in entries]
        for split, (entries, folder) in splits.items()
    }
    for split in resolved:
        if split != "train":
            check_disjoint_splits({name: resolved[name] for name in ("train", split)})


def entries_of_split(entries: Sequence[CaptionEntry], name: str) -> list[CaptionEntry]:
    """Return the entries of a split: one that the captions file assigns, or the path of a list.

    Raises:
        ValueError: If it is neither, or the list does not match the captions.

    Example:
        >>> entries = [CaptionEntry("a", "a.jpg", ("A dog .",), "val")]
        >>> [entry.id for entry in entries_of_split(entries, "val")]
        ['a']
    """
    if selected := [entry for entry in entries if entry.split == name]:
        return selected
    if Path(name).is_file():
        return select_listed(entries, read_split_file(name))
    assigned = sorted({entry.split for entry in entries if entry.split})
    hint = (
        f"it assigns {', '.join(assigned)}"
        if assigned
        else "it assigns no splits: give a list of photos, a captions file for each split, or a "
        "table with a column split"
    )
    raise ValueError(f"{name} is neither a split in the captions file nor a list of photos; {hint}")
