"""Which captions of a model and which of people are of the same picture."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from visattn.data.caption_files import CaptionEntry

_ENDING = re.compile(r"\.(?:jpe?g|png|webp|gif|bmp|tiff?)$", re.IGNORECASE)
_COCO = re.compile(r"(?:COCO_[a-z]+20[0-9]{2}_)?([0-9]{12})")


class Pairs(NamedTuple):
    """Captions of a model and of people, by the ids of the latter.

    Example:
        >>> Pairs({"a.jpg": "a dog"}, {"a.jpg": ("One dog .",)}).left
        ()
    """

    captions: dict[str, str]
    references: dict[str, tuple[str, ...]]
    left: tuple[str, ...] = ()
    """What was left out, in sentences."""


def paired(
    captions: Mapping[str, str], entries: Sequence[CaptionEntry], *, common: bool = False
) -> Pairs:
    """Return captions and references of the same pictures.

    Names are the same if they are so without folder, without ending, or, for COCO, as the number
    that the name ends with; a name that would fit several pictures fits none.

    Args:
        captions: By picture.
        entries: What people said, of the pictures that are to be scored.
        common: Leave out what stands on one side only, and say so, instead of refusing.

    Raises:
        ValueError: If two captions are of one picture, no picture is on both sides, or, unless
            `common`, one is on one side only.

    Example:
        >>> told = [CaptionEntry("790", "train/000000000790.jpg", ("A dog .",))]
        >>> paired({"000000000790": "a dog"}, told).captions
        {'790': 'a dog'}
    """
    owners = _owners(entries)
    found: dict[str, str] = {}  # picture of the references: picture of the results
    unknown: list[str] = []
    for name in captions:
        owner = next((owners[known] for known in _names(name) if known in owners), None)
        if owner is None:
            unknown.append(name)
        elif found.setdefault(owner, name) != name:
            raise ValueError(
                f"{found[owner]} and {name} of the results are both the picture {owner} of the "
                "references; results have one caption per picture"
            )
    silent = [entry.id for entry in entries if entry.id not in found]
    if not found:
        raise ValueError(
            "no picture of the results is in the references: they name theirs "
            f"{_some(list(captions))} against {_some([entry.id for entry in entries])}"
        )
    if (unknown or silent) and not common:
        raise ValueError("; ".join(_refusals(unknown, silent, entries)))
    chosen = [entry for entry in entries if entry.id in found]
    return Pairs(
        {entry.id: captions[found[entry.id]] for entry in chosen},
        {entry.id: entry.captions for entry in chosen},
        tuple(f"left out, {line}" for line in _differences(unknown, silent)),
    )


def _owners(entries: Sequence[CaptionEntry]) -> dict[str, str]:
    """Return the picture that each name means; exact ids first, shared names not at all."""
    owners: dict[str, set[str]] = {}
    for entry in entries:
        for name in {*_names(entry.id), *_names(entry.file)}:
            owners.setdefault(name, set()).add(entry.id)
    known = {name: next(iter(ids)) for name, ids in owners.items() if len(ids) == 1}
    return {**known, **{entry.id: entry.id for entry in entries}}


def _names(name: str) -> Iterator[str]:
    """Yield what a picture may be called, the fullest name first."""
    yield name
    last = name.replace("\\", "/").rpartition("/")[2]
    yield last
    stem = _ENDING.sub("", last)
    yield stem
    if number := _COCO.fullmatch(stem):
        yield str(int(number[1]))


def _differences(unknown: Sequence[str], silent: Sequence[str]) -> Iterator[str]:
    if unknown:
        yield f"in the results without references: {_some(unknown)}"
    if silent:
        yield f"in the references without a result: {_some(silent)}"


def _refusals(
    unknown: Sequence[str], silent: Sequence[str], entries: Sequence[CaptionEntry]
) -> Iterator[str]:
    yield from _differences(unknown, silent)
    if silent:
        splits = sorted({entry.split for entry in entries if entry.split})
        known = f" ({', '.join(splits)})" if len(splits) > 1 else ""
        yield f"--split chooses among the references{known}"
    yield "--common scores only the pictures that both hold"


def _some(ids: Sequence[str]) -> str:
    count = f"{len(ids):,} picture{'' if len(ids) == 1 else 's'}"
    return f"{count} ({', '.join(ids[:3])}{', ...' if len(ids) > 3 else ''})"
