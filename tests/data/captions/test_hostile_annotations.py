"""Malformed annotation files are refused with the file and the line or key."""

import copy
import gzip
import json
import math
import os
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from annotation_zoo import (
    COCO,
    INSTANCES,
    KARPATHY,
    KINDS,
    MAPS,
    PHRASES,
    RESULTS,
    SQUARE,
    npy,
    npz,
    written,
)
from hypothesis import given, strategies as st

from visattn.data import phrases

TEXTS = [
    name
    for name, kind in KINDS.items()
    if kind.name.endswith(("txt", "csv", "json", "jsonl", "tsv")) and name != "map record"
]
OBJECTS = {
    "karpathy",
    "coco captions",
    "coco results",
    "instances",
    "phrases",
    "map json",
}


def read(name: str, content: bytes, folder: Path) -> object:
    kind = KINDS[name]
    path = folder / kind.name
    path.write_bytes(content)
    return kind.reader(path)


def refused(name: str, content: bytes, reason: str, folder: Path) -> None:
    """Check that the content is refused with file name and reason on a single line."""
    file = KINDS[name].name
    with pytest.raises(ValueError, match=rf"(?s){re.escape(file)}.*{reason}") as caught:
        read(name, content, folder)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1500


def changed(document: Any, *where: str | int, to: Any) -> bytes:
    """Return a document with one value replaced."""
    document = copy.deepcopy(document)
    inner = document
    for key in where[:-1]:
        inner = inner[key]
    inner[where[-1]] = to
    return written(document)


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_is_read_correctly(name: str, tmp_path: Path) -> None:
    assert read(name, KINDS[name].content, tmp_path) is not None


# ---------------------------------------------------------------- all kinds


@pytest.mark.parametrize("code", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le"])
@pytest.mark.parametrize("name", TEXTS)
def test_other_encodings_are_refused(name: str, code: str, tmp_path: Path) -> None:
    content = KINDS[name].content.decode().encode(code)
    refused(name, content, "not UTF-8", tmp_path)


@pytest.mark.parametrize("name", TEXTS)
def test_latin_1_is_refused(name: str, tmp_path: Path) -> None:
    content = KINDS[name].content.decode().replace("a", "é", 1).encode("latin-1")
    refused(name, content, "line 1: not UTF-8, byte 0xe9 at offset", tmp_path)


@pytest.mark.parametrize("name", TEXTS)
def test_utf8_byte_order_mark_is_accepted(name: str, tmp_path: Path) -> None:
    plain = read(name, KINDS[name].content, tmp_path)
    marked = read(name, b"\xef\xbb\xbf" + KINDS[name].content, tmp_path)
    assert repr(marked) == repr(plain)


@pytest.mark.parametrize("name", TEXTS)
def test_null_bytes_are_refused(name: str, tmp_path: Path) -> None:
    content = KINDS[name].content
    refused(
        name,
        content[:20] + bytes(512),
        r"line \d: not UTF-8, byte 0x00 at offset \d+",
        tmp_path,
    )


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in KINDS
        if name not in ("tokens", "table", "result lines", "result table", "map record")
    ],
)
def test_truncated_files_are_refused(name: str, tmp_path: Path) -> None:
    content = KINDS[name].content[: len(KINDS[name].content) // 2]
    refused(name, content, "", tmp_path)


@pytest.mark.parametrize("name", [name for name in KINDS if name != "map record"])
def test_files_above_1_gib_are_not_read(name: str, tmp_path: Path) -> None:
    path = tmp_path / KINDS[name].name
    path.write_bytes(KINDS[name].content)
    os.truncate(path, 2**30 + 1)  # a hole: no disk is filled
    with pytest.raises(
        ValueError, match=r"longer than [\d,]+ bytes|has 1,073,741,825|holds 1,073|not a zip file"
    ):
        KINDS[name].reader(path)


@pytest.mark.parametrize("name", [name for name in KINDS if name != "map record"])
def test_pipes_are_refused_without_waiting(name: str, tmp_path: Path) -> None:
    path = tmp_path / KINDS[name].name
    os.mkfifo(path)
    with pytest.raises(
        (FileNotFoundError, ValueError),
        match=r"not a file|no instances file|no phrase annotations|regular",
    ):
        KINDS[name].reader(path)


@pytest.mark.parametrize("name", sorted(OBJECTS))
@pytest.mark.parametrize("deep", ["[" * 100_000, '{"a":' * 100_000, "[" * 900 + "]" * 900])
def test_deep_nesting_is_refused(name: str, deep: str, tmp_path: Path) -> None:
    refused(name, deep.encode(), "", tmp_path)
    refused(name, f'{{"images": {deep}}}'.encode(), "", tmp_path)


@pytest.mark.parametrize("name", sorted(OBJECTS - {"coco results"}))
def test_duplicate_keys_are_refused(name: str, tmp_path: Path) -> None:
    content = KINDS[name].content
    key = json.dumps(next(iter(json.loads(content))))
    refused(
        name,
        b"{" + f"{key}: 1, ".encode() + content[1:],
        f"duplicate key '{key[1:-1]}'",
        tmp_path,
    )


@pytest.mark.parametrize("name", sorted(OBJECTS))
@pytest.mark.parametrize(
    "document", ["null", "true", "3", '"images"', "1e999", "NaN", "9" * 5000, ""]
)
def test_other_content_is_refused(name: str, document: str, tmp_path: Path) -> None:
    refused(name, document.encode(), "", tmp_path)


# ---------------------------------------------------------------- single fields


WRONG: list[Any] = [
    None,
    True,
    False,
    -1,
    0,
    0.5,
    10**30,
    1e300,
    math.nan,
    math.inf,
    -math.inf,
    "",
    " ",
    "../a.jpg",
    "/etc/passwd",
    "a\0b",
    "a\x1b[2Jb",
    "\ud800",
    "7",
    "x" * 3000,
    [],
    {},
    [[]],
    [None],
    ["a"],
    {"a": 1},
    [0, 0, 1],
    [0, 0, math.nan, 1],
    [1e308] * 8,
    [10**400] * 4,
]
DOCUMENTS = {
    "karpathy": KARPATHY,
    "coco captions": COCO,
    "coco results": RESULTS,
    "instances": INSTANCES,
    "phrases": PHRASES,
    "map json": MAPS,
}


def places(document: Any) -> Iterator[tuple[str | int, ...]]:
    """Yield the path of every value in a document."""
    inner = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in inner:
        yield (key,)
        if isinstance(value, (dict, list)):
            yield from ((key, *rest) for rest in places(value))


@given(data=st.data(), wrong=st.lists(st.sampled_from(WRONG), min_size=1, max_size=3))
@pytest.mark.parametrize("name", DOCUMENTS)
def test_any_value_in_any_field_is_read_or_refused(
    name: str, data: st.DataObject, wrong: list[Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    document = copy.deepcopy(DOCUMENTS[name])
    for value in wrong:
        where = data.draw(st.sampled_from(list(places(document))))
        inner = document
        for key in where[:-1]:
            inner = inner[key]
        inner[where[-1]] = copy.deepcopy(value)
    result = read_or_refused(name, json.dumps(document).encode(), tmp_path_factory.getbasetemp())
    if isinstance(result, ValueError):
        assert str(result).isprintable()
        assert KINDS[name].name in str(result)


def read_or_refused(name: str, content: bytes, folder: Path) -> object:
    try:
        return read(name, content, folder)
    except ValueError as error:
        return error


ANNOTATION = ("annotations", 0)
BAD: dict[str, tuple[str, bytes, str]] = {
    "a folder above": (
        "karpathy",
        changed(KARPATHY, "images", 0, "filepath", to="../.."),
        r"images\[0\]: a file name must be a path inside its directory, got '../../a.jpg'",
    ),
    "a name with an escape": (
        "coco captions",
        changed(COCO, "images", 0, "file_name", to="a\x1b[2J.jpg"),
        r"annotations\[0\]: a file name must be a path inside its directory, got 'a\\x1b\[2J.jpg'",
    ),
    "a name that is too long": (
        "coco captions",
        changed(COCO, "images", 0, "file_name", to="x" * 300),
        r"annotations\[0\]: a file name must be a path inside its directory",
    ),
    "a list cut in a name": (
        "coco results",
        b'[{"image_id": 1, "capt',
        "line 1, column 18: invalid JSON",
    ),
    "an image twice": (
        "instances",
        changed(INSTANCES, "images", to=[*INSTANCES["images"] * 2]),
        r"images\[1\]: the id 3 occurs twice",
    ),
    "an image elsewhere": (
        "instances",
        changed(INSTANCES, "images", 0, "file_name", to="../b.png"),
        r"images\[0\]: a file name must be a path inside its directory, got '../b\.png'",
    ),
    "an image without end": (
        "instances",
        changed(INSTANCES, "images", 0, "height", to=10**9),
        r"images\[0\]: 1000000000 x 8 are no pixels of an image",
    ),
    "a box of NaN": (
        "instances",
        changed(INSTANCES, *ANNOTATION, "bbox", to=[0, 0, math.nan, 1]),
        r"annotations\[0\]: no box inside of an image of 8 x 6 pixels: \[0.0, 0.0, nan, 1.0\]",
    ),
    "a box beside its image": (
        "instances",
        changed(INSTANCES, *ANNOTATION, "bbox", to=[5, 1, 5, 2]),
        r"1 of 3 boxes exceed their images, such as \[5.0, 1.0, 10.0, 3.0\]",
    ),
    "a box inside out": (
        "instances",
        changed(INSTANCES, *ANNOTATION, "bbox", to=[5, 1, -2, 2]),
        r"annotations\[0\]: no box inside",
    ),
    "maps of texts": ("map json", changed(MAPS, "maps", to=[["a"]]), ""),
    "words that are one": ("map json", changed(MAPS, "words", to="dog"), "words must be a list"),
    "a place that is none": (
        "map json",
        changed(MAPS, "geometry", to=[1]),
        "missing 4 required|one geometry and one name",
    ),
    "objects for numbers": (
        "array",
        b"\x93NUMPY\x01\x00F\x00"
        + b"{'descr': '|O', 'fortran_order': False, 'shape': (3,), }".ljust(69)
        + b"\n",
        "",
    ),
    "more than there is": (
        "array",
        npy(np.zeros(3)).replace(b"(3,), }      ", b"(10**9,), } "),
        "",
    ),
    "no array": ("arrays", npz(), "must hold one array"),
}


@pytest.mark.parametrize("name", BAD)
def test_invalid_fields_are_refused_by_name(name: str, tmp_path: Path) -> None:
    kind, content, reason = BAD[name]
    refused(kind, content, reason, tmp_path)


SEGMENTATIONS: dict[str, tuple[Any, str]] = {
    "too few lengths": (
        {"size": [6, 8], "counts": [30, 6]},
        "must sum to 6 x 8 pixels, got 36",
    ),
    "below zero": ({"size": [6, 8], "counts": [-1, 49]}, "RLE counts must sum to"),
    "another size": (
        {"size": [8, 6], "counts": [48]},
        "of size \\[8, 6\\] does not match an image of \\[6, 8\\]",
    ),
    "a text cut off": ({"size": [6, 8], "counts": "P"}, "it is truncated"),
    "a number without end": ({"size": [6, 8], "counts": "o" * 10**6}, "no RLE string"),
    "two corners": (
        [[1, 2, 3, 4]],
        "at least three corners on an image of 8 x 6 pixels, got \\[1, 2, 3, 4\\]",
    ),
    "corners of NaN": ([[1, 2, 3, math.nan, 5, 6]], "at least three corners on"),
    "far corners": ([[1, 2, 3, 1e308, 5, 6]], "at least three corners on"),
}


@pytest.mark.parametrize("name", SEGMENTATIONS)
def test_segmentations_that_do_not_fit_the_image_are_refused(name: str, tmp_path: Path) -> None:
    from visattn.data.regions.masks import segmentation_mask

    outline, reason = SEGMENTATIONS[name]
    with pytest.raises(ValueError, match=reason):
        segmentation_mask(outline, (6, 8))


def test_polygon_of_a_large_image_uses_little_memory() -> None:
    import tracemalloc

    from visattn.data.regions.masks import segmentation_mask

    whole = [[0.0, 0.0, 2003.0, 0.0, 2003.0, 2011.0, 0.0, 2011.0]]
    for polygons, inside in ((SQUARE, 6), (whole, 2011 * 2003)):
        tracemalloc.start()
        mask = segmentation_mask(polygons, (2011, 2003))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert mask.sum() == inside
        assert peak < 8 * mask.nbytes


def test_gzip_bomb_is_not_decompressed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        phrases, "decompress_gzip", partial(phrases.decompress_gzip, max_bytes=10**6)
    )
    bomb = gzip.compress(bytes(10**7))
    assert len(bomb) < 10**5
    refused("packed phrases", bomb, "more than 1,000,000 bytes after decompression", tmp_path)
    refused("packed phrases", gzip.compress(bytes(600_000)) * 2, "more than 1,000,000", tmp_path)
