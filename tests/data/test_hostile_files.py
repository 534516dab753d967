"""Files of strangers are read, or refused on one line with file and entry: quickly, no crash."""

import copy
import gzip
import io
import json
import math
import os
import re
import resource
import time
import tracemalloc
import warnings
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, strategies as st
from image_zoo import ZOO

from visattn.commands.loop import read_record
from visattn.data.captions.files import read_caption_results, read_captions
from visattn.data.phrases import read_phrases
from visattn.data.regions.coco_instances import read_instance_file
from visattn.data.regions.masks import segmentation_mask
from visattn.geometry.affine import Geometry
from visattn.images.reader import ImageError, read_image
from visattn.results.records import read_array, to_dict


class Kind(NamedTuple):
    """A kind of annotation file: its file name, a valid file, and its reader."""

    name: str
    content: bytes
    reader: Callable[[Path], object]


def written(document: Any) -> bytes:
    return json.dumps(document, ensure_ascii=False).encode()


KARPATHY: Any = {
    "images": [
        {
            "filename": "a.jpg",
            "filepath": "val2014",
            "split": "train",
            "sentences": [{"raw": "A dog ."}, {"raw": "It runs ."}],
        },
        {"filename": "b.jpg", "split": "val", "sentences": [{"raw": "Ein Café ."}]},
    ]
}
COCO: Any = {
    "images": [{"id": 7, "file_name": "a.jpg"}, {"id": 8, "file_name": "b.jpg"}],
    "annotations": [
        {"image_id": 7, "id": 1, "caption": "A dog ."},
        {"image_id": 8, "id": 2, "caption": "It runs ."},
    ],
}
SQUARE = [[1.0, 1.0, 4.0, 1.0, 4.0, 3.0, 1.0, 3.0]]
CAT = {"image_id": 3, "category_id": 17}
INSTANCES: Any = {
    "images": [{"id": 3, "file_name": "b.png", "height": 6, "width": 8}],
    "categories": [{"id": 17, "name": "cat"}],
    "annotations": [
        {**CAT, "bbox": [1, 1, 3, 2], "segmentation": SQUARE},
        {**CAT, "bbox": [5, 0, 1, 6], "segmentation": {"size": [6, 8], "counts": [30, 6, 12]}},
        {**CAT, "bbox": [0, 0, 8, 6], "segmentation": {"size": [6, 8], "counts": "n06<"}},
    ],
}
PHRASE = {"first_word": 0, "words": 2, "phrase": "A dog", "types": ["animals"]}
PHRASES: Any = {
    "a.jpg": [
        {"sentence": "A dog runs .", "phrases": [{**PHRASE, "boxes": [[0.0, 0.25, 0.5, 1.0]]}]}
    ]
}
RESULTS: Any = [{"image_id": 37, "caption": "a ring"}, {"image_id": "b.jpg", "caption": ""}]


def npy(values: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


def npz(**arrays: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)  # pyright: ignore[reportArgumentType]
    return file.getvalue()


def _captions(path: Path) -> object:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*dropped", UserWarning)
        return read_captions(path)


def _maps(path: Path) -> object:
    try:
        return read_array(path)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _instances(path: Path) -> object:
    images, _ = read_instance_file(path)
    try:
        return [
            segmentation_mask(o.segmentation, image.size)
            for image in images
            for o in image.objects
            if o.segmentation
        ]
    except ValueError as error:  # as LocatedImage.regions does, with the image
        raise ValueError(f"{path}: {error}") from error


def _record(path: Path) -> object:
    """A record of a result from a stranger: it is used, or made again."""
    record = read_record(path)
    if record is None:
        raise ValueError("no record of visattn")
    return record


RECORD: Any = {
    "made": {
        "command": "overlay", "name": "a", "photo": "a.png", "sha256": "", "settings": {},
        "files": ["a.npz"], "rows": [], "table": [], "card": {},
    },
    "key": "gradcam", "site": "layer4", "kind": "gradient",
    "geometry": to_dict(Geometry.identity((5, 7))), "info": {"probability": 0.5},
    "scale": {"vmin": 0.0, "vmax": 1.0, "signed": False},
}  # fmt: skip
NOISE = np.random.default_rng(3).random((2, 3, 5))
KINDS: dict[str, Kind] = {
    "tokens": Kind(
        "a.txt", "a.jpg#0\tA dog .\na.jpg#1\tEin Café .\nb.jpg#0\tB\n".encode(), _captions
    ),
    "table": Kind(
        "a.csv", b'image,caption\na.jpg,A dog .\na.jpg,"It, ""too"" , runs ."\n', _captions
    ),
    "karpathy": Kind("a.json", written(KARPATHY), _captions),
    "coco captions": Kind("a.json", written(COCO), _captions),
    "json lines": Kind(
        "a.jsonl",
        b'{"file": "a.jpg", "id": 5, "captions": ["A", "B"]}\n{"image": "b.jpg", "caption": "C"}\n',
        _captions,
    ),
    "coco results": Kind("a.json", written(RESULTS), read_caption_results),
    "result lines": Kind("a.jsonl", b"\n".join(map(written, RESULTS)), read_caption_results),
    "result table": Kind("a.tsv", b"37\ta ring\nb.jpg\t\n", read_caption_results),
    "instances": Kind("a.json", written(INSTANCES), _instances),
    "phrases": Kind("a.json", written(PHRASES), read_phrases),
    "packed phrases": Kind("a.json.gz", gzip.compress(written(PHRASES), mtime=0), read_phrases),
    "array": Kind("a.npy", npy(NOISE), _maps),
    "arrays": Kind("a.npz", npz(maps=NOISE, other=np.zeros(3)), _maps),
    "map record": Kind("a.json", written(RECORD), _record),
}

FILES = [name for name in KINDS if name != "map record"]  # which is made again instead
TEXTS = [name for name in FILES if re.search("txt$|csv$|jsonl?$|tsv$", KINDS[name].name)]
DOCUMENTS = {
    "karpathy": KARPATHY, "coco captions": COCO, "coco results": RESULTS, "instances": INSTANCES,
    "phrases": PHRASES,
}  # fmt: skip


def read(name: str, content: bytes, folder: Path) -> object:
    path = folder / KINDS[name].name
    path.write_bytes(content)
    return KINDS[name].reader(path)


def refused(name: str, content: bytes, reason: str, folder: Path) -> None:
    """Check that the content is refused with file name and reason on a single line."""
    file = re.escape(KINDS[name].name)
    with pytest.raises(ValueError, match=rf"(?s){file}.*{reason}") as caught:
        read(name, content, folder)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1500


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_is_read_also_with_a_byte_order_mark(name: str, tmp_path: Path) -> None:
    plain = read(name, KINDS[name].content, tmp_path)
    assert plain is not None
    if name in TEXTS:
        assert repr(read(name, b"\xef\xbb\xbf" + KINDS[name].content, tmp_path)) == repr(plain)


def twice(content: bytes) -> bytes:
    """Return a document with its first key twice."""
    key = json.dumps(next(iter(json.loads(content))))
    return b"{" + f"{key}: 1, ".encode() + content[1:]


LINES = {"tokens", "table", "result lines", "result table"}
BROKEN: list[tuple[Callable[[bytes], bytes], list[str], str]] = [
    (lambda c: c.decode().encode("utf-16"), TEXTS, "not UTF-8"),
    (lambda c: c.decode().encode("utf-32-le"), TEXTS, "not UTF-8"),
    (lambda c: c.decode().replace("a", "é", 1).encode("latin-1"), TEXTS,
     "line 1: not UTF-8, byte 0xe9 at offset"),
    (lambda c: c[:20] + bytes(512), TEXTS, r"line \d: not UTF-8, byte 0x00 at offset \d+"),
    (lambda c: c[: len(c) // 2], [name for name in FILES if name not in LINES], ""),
    (twice, [name for name in DOCUMENTS if name != "coco results"], "duplicate key"),
    (lambda _: b'{"images": ' + b"[" * 100_000, [*DOCUMENTS], ""),
    (lambda _: b'{"a":' * 100_000, [*DOCUMENTS], ""),
    (lambda _: b"[" * 900 + b"]" * 900, [*DOCUMENTS], ""),
    *((lambda _, text=text: text, [*DOCUMENTS], "")
      for text in (b"null", b"3", b'"images"', b"1e999", b"NaN", b"9" * 5000, b"")),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(BROKEN)))
def test_broken_files_are_refused(number: int, tmp_path: Path) -> None:
    change, names, reason = BROKEN[number]
    for name in names:
        refused(name, change(KINDS[name].content), reason, tmp_path)


@pytest.mark.parametrize("name", FILES)
def test_pipes_and_files_above_1_gib_are_refused_unread(name: str, tmp_path: Path) -> None:
    path = tmp_path / KINDS[name].name
    path.write_bytes(KINDS[name].content)
    os.truncate(path, 2**30 + 1)  # a hole: no disk is filled
    long = r"longer than [\d,]+ bytes|has 1,073,741,825|holds 1,073|not a zip file"
    with pytest.raises(ValueError, match=long):
        KINDS[name].reader(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises((FileNotFoundError, ValueError), match="not a file|regular"):
        KINDS[name].reader(path)


WRONG: list[Any] = [
    None, True, False, -1, 0, 0.5, 10**30, 1e300, math.nan, math.inf, -math.inf, "", " ",
    "../a.jpg", "/etc/passwd", "a\0b", "a\x1b[2Jb", "\ud800", "7", "x" * 3000, [], {}, [[]], [None],
    ["a"], {"a": 1}, [0, 0, 1], [0, 0, math.nan, 1], [1e308] * 8, [10**400] * 4,
]  # fmt: skip


def places(document: Any) -> Iterator[tuple[str | int, ...]]:
    """Yield the path of every value in a document."""
    for key, value in document.items() if isinstance(document, dict) else enumerate(document):
        yield (key,)
        if isinstance(value, (dict, list)):
            yield from ((key, *rest) for rest in places(value))


def changed(document: Any, *where: str | int, to: Any) -> Any:
    """Return a document with one value replaced."""
    document = inner = copy.deepcopy(document)
    for key in where[:-1]:
        inner = inner[key]
    inner[where[-1]] = to
    return document


@given(data=st.data(), wrong=st.lists(st.sampled_from(WRONG), min_size=1, max_size=3))
@pytest.mark.parametrize("name", DOCUMENTS)
def test_any_value_in_any_field_is_read_or_refused(
    name: str, data: st.DataObject, wrong: list[Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    document = DOCUMENTS[name]
    for value in wrong:
        document = changed(document, *data.draw(st.sampled_from([*places(document)])), to=value)
    try:
        read(name, json.dumps(document).encode(), tmp_path_factory.getbasetemp())
    except ValueError as error:
        assert str(error).isprintable()  # noqa: PT017
        assert KINDS[name].name in str(error)  # noqa: PT017


PATH = "a file name must be a path inside its directory"
FIRST = ("annotations", 0)
FIELDS: list[tuple[str, Any, str]] = [
    ("karpathy", changed(KARPATHY, "images", 0, "filepath", to="../.."),
     rf"images\[0\]: {PATH}, got '../../a.jpg'"),
    ("coco captions", changed(COCO, "images", 0, "file_name", to="a\x1b[2J.jpg"),
     rf"annotations\[0\]: {PATH}, got 'a\\x1b\[2J.jpg'"),
    ("coco captions", changed(COCO, "images", 0, "file_name", to="x" * 300), PATH),
    ("coco results", b'[{"image_id": 1, "capt', "line 1, column 18: invalid JSON"),
    ("instances", changed(INSTANCES, "images", to=INSTANCES["images"] * 2),
     r"images\[1\]: ids must be unique, but 3 occurs twice"),
    ("instances", changed(INSTANCES, "images", 0, "file_name", to="../b.png"), PATH),
    ("instances", changed(INSTANCES, "images", 0, "height", to=10**9),
     r"images\[0\]: the size of an image cannot be 1000000000 x 8"),
    ("instances", changed(INSTANCES, *FIRST, "bbox", to=[5, 1, -2, 2]), "must have left <= right"),
    ("array", b"\x93NUMPY\x01\x00F\x00"
     + b"{'descr': '|O', 'fortran_order': False, 'shape': (3,), }".ljust(69) + b"\n", ""),
    ("array", npy(np.zeros(3)).replace(b"(3,), }      ", b"(10**9,), } "), ""),
    ("arrays", npz(), "must hold one array"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(FIELDS)))
def test_invalid_fields_are_refused_by_name(number: int, tmp_path: Path) -> None:
    name, content, reason = FIELDS[number]
    refused(name, content if isinstance(content, bytes) else written(content), reason, tmp_path)


def test_polygon_of_a_large_image_uses_little_memory() -> None:
    whole = [[0.0, 0.0, 2003.0, 0.0, 2003.0, 2011.0, 0.0, 2011.0]]
    for polygons, inside in ((SQUARE, 6), (whole, 2011 * 2003)):
        tracemalloc.start()
        mask = segmentation_mask(polygons, (2011, 2003))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert mask.sum() == inside
        assert peak < 8 * mask.nbytes


# ---------------------------------------------------------------- random edits

TIMES = int(os.environ.get("VISATTN_FUZZ_TIMES", "1"))  # make fuzz reads more
PIECES = [
    *(bytes([byte]) * count for byte in (0, 1, 0x7F, 0x80, 0xFF) for count in (1, 2, 4, 8)),
    *(number.to_bytes(4, order) for number in (1, 2**16, 2**31) for order in ("little", "big")),
    b"\xff\xd8", b"\xff\xd9", b"\xff\xda", b"IDAT", b"IEND", b"II*\0", b"MM\0*", b"GIF89a",
    b"{", b"}", b"[", b"]", b'"', b",", b":", b"\\", b"\\u0000", b"\\ud800", b"\n", b"\t",
    b"9" * 40, b"1e999", b"NaN", b"Infinity", b"null", b"true", b"{}", b"../", b"\xef\xbb\xbf",
]  # fmt: skip


def damaged(seeds: list[bytes], number: int) -> bytes:
    """Return a file with 1 to 16 edits that follow from the number."""
    random = Random(number)
    content = bytearray(random.choice(seeds))
    for _ in range(random.choice((1, 1, 2, 3, 5, 16))):
        at, length = random.randint(0, len(content)), random.choice((1, 2, 4, 9, 33))
        inside = random.choice(seeds)[at : at + 5 * length]
        piece = random.choice((random.randbytes(length), random.choice(PIECES), inside, b""))
        removed = random.choice((0, len(piece), length, 100 * length, len(content)))
        content[at : at + removed] = piece
    is_png = content.startswith(b"\x89PNG") and random.random() < 0.5
    return with_valid_checksums(bytes(content)) if is_png else bytes(content)


def with_valid_checksums(content: bytes) -> bytes:
    """Return a PNG with valid chunk checksums, so that the reader goes beyond them."""
    parts, at = [content[:8]], 8
    while (end := at + 8 + int.from_bytes(content[at : at + 4], "big")) + 4 <= len(content):
        body = content[at + 4 : end]
        parts += [content[at : at + 4], body, zlib.crc32(body).to_bytes(4, "big")]
        at = end + 4
    return b"".join(parts) + content[at:]


@pytest.mark.filterwarnings("ignore:.*dropped")
@pytest.mark.parametrize("name", [*KINDS, "images"])
def test_random_edits_do_not_crash_the_readers(name: str, tmp_path: Path) -> None:
    reading: Callable[[bytes], object] = partial(read, name, folder=tmp_path)
    refusals: tuple[type[Exception], ...] = (ValueError, FileNotFoundError)
    seeds, cases = [KINDS[name].content] if name in KINDS else [], 120
    if name == "images":  # Pillow takes ten times as long for Lab as for all else
        seeds, cases = [content for form, content in ZOO.items() if form != "lab tiff"], 1000
        reading, refusals = partial(read_image, max_pixels=1_000_000), (ImageError,)
    counts = {"read": 0, "refused": 0}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(TIMES * cases):
        content, start = damaged(seeds, number), time.thread_time()
        try:
            reading(content)
            counts["read"] += 1
        except refusals as error:
            assert str(error).isprintable(), number  # noqa: PT017
            counts["refused"] += 1
        except Exception as error:
            error.add_note(f"case {number}")
            raise
        assert time.thread_time() - start < 1, number
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # KiB
    assert counts["refused"] > cases // 10  # most cases are invalid
    # some are readable; a record of a map hardly ever: each of its entries counts
    assert counts["read"] > 0 or name == "map record"
