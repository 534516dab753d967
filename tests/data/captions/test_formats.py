"""Caption files: five formats are read, all others are refused."""

import csv
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from caption_data import WRITERS, write_caption_data
from hypothesis import given, strategies as st

from visattn.cli import main
from visattn.data.captions.files import (
    CaptionEntry,
    check_disjoint_splits,
    entries_of_split,
    read_captions,
    read_split_file,
    select_listed,
)
from visattn.data.captions.formats import detect_format, parse_captions
from visattn.results.kinds import CaptionFormat

FORMS: list[CaptionFormat] = ["flickr", "csv", "karpathy", "coco", "jsonl"]
each_form = pytest.mark.parametrize("form", FORMS)
WORD = st.text(
    st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=7
).filter(lambda word: word.split() == [word])
SAID = st.lists(WORD, min_size=1, max_size=5).map(" ".join)
NAMES = st.lists(st.text("abc#. 7", min_size=1).map(lambda name: f"p{name}.jpg"), unique=True)
ANNOTATIONS = st.builds(
    lambda names, said: dict.fromkeys(["first.jpg", *names], said),
    NAMES,
    st.lists(SAID, min_size=1, max_size=5),
)


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., list[CaptionEntry]]:
    """Read captions from a file with this content."""

    def reading(content: str | bytes, form: CaptionFormat | None = None) -> list[CaptionEntry]:
        path = tmp_path / "captions.txt"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return read_captions(path, format=form)

    return reading


Read = Callable[..., list[CaptionEntry]]


def entry(name: str, *captions: str, split: str | None = None) -> CaptionEntry:
    return CaptionEntry(name, name, captions or ("A dog .",), split)


def lines(*records: Any) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


# ---------------------------------------------------------------- all formats


@each_form
def test_every_format_is_detected_and_has_equal_captions(
    form: CaptionFormat, tmp_path: Path
) -> None:
    paths = write_caption_data(tmp_path / form, photos=7, format=form)
    plain = write_caption_data(tmp_path / "plain", photos=7)
    assert detect_format(paths.captions.read_text()) == form
    entries = read_captions(paths.captions)
    assert entries == read_captions(paths.captions, format=form)
    assert [entry.file for entry in entries] == sorted(path.name for path in paths.photos.iterdir())
    assert [entry[1:3] for entry in entries] == [
        item[1:3] for item in read_captions(plain.captions)
    ]
    assert all(len(entry.captions) == 5 for entry in entries)
    for part in (paths.train, paths.validation, paths.test):
        assert [
            entry.file for entry in select_listed(entries, read_split_file(part))
        ] == read_split_file(part)


@each_form
@given(captions=ANNOTATIONS)
def test_written_captions_are_read_back(
    form: CaptionFormat,
    captions: dict[str, list[str]],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.getbasetemp() / f"{form}.txt"
    path.write_text(
        WRITERS[form](captions, {"train": list(captions)}), encoding="utf-8", newline="\n"
    )
    entries = read_captions(path)
    assert {entry.file: list(entry.captions) for entry in entries} == captions
    assert [entry.file for entry in entries] == list(captions)


@each_form
def test_captions_are_unchanged_except_whitespace(form: CaptionFormat, read: Read) -> None:
    said = ['He said " Hi, "  —\u2028 A&B <b>', "🐕‍🦺 runs\x85 fast", "word " * 1000]
    text = WRITERS[form]({"a.jpg": said}, {"train": ["a.jpg"]})
    first, second, long = read(text)[0].captions
    assert first == 'He said " Hi, " — A&B <b>'
    assert second == "🐕‍🦺 runs fast"
    assert long.split(" ") == ["word"] * 1000


@pytest.mark.parametrize("form", ["csv", "karpathy", "coco", "jsonl"])
def test_multiline_captions_are_joined(form: CaptionFormat, read: Read) -> None:
    said = ["A dog\nruns ,\r\n fast ."]
    assert read(WRITERS[form]({"a": said}, {"train": ["a"]}))[0].captions == (
        "A dog runs , fast .",
    )


@each_form
@pytest.mark.parametrize("end", ["\r\n", "\r"])
def test_byte_order_marks_and_line_ends_of_other_systems_are_accepted(
    form: CaptionFormat, end: str, read: Read
) -> None:
    text = WRITERS[form]({"a": ["A dog .", "B"], "b": ["C"]}, {"train": ["a", "b"]})
    marked = b"\xef\xbb\xbf" + ("\n\n" + text).replace("\n", end).encode()
    assert [entry.captions for entry in read(marked)] == [("A dog .", "B"), ("C",)]


@each_form
def test_empty_captions_are_skipped_and_counted(form: CaptionFormat, read: Read) -> None:
    captions = {"a": ["A", " "], "b": ["", "\t"], "c": ["C"]}
    text = WRITERS[form](captions, {"train": list(captions)})
    with pytest.warns(UserWarning) as caught:  # noqa: PT030 (what they say comes next)
        entries = read(text)
    assert [(entry.file, entry.captions) for entry in entries] == [("a", ("A",)), ("c", ("C",))]
    first, second = (str(warning.message) for warning in caught)
    assert "captions.txt: dropped 3 empty captions (" in first
    assert "dropped" in first
    assert "captions.txt: dropped 1 photo (" in second
    assert "without a caption" in second


SILENT: dict[CaptionFormat, str] = {
    "karpathy": json.dumps(
        {
            "images": [
                {"filename": "a", "split": "val", "sentences": []},
                {"filename": "b", "split": "val", "sentences": [{"raw": "B"}]},
            ]
        }
    ),
    "coco": json.dumps(
        {
            "images": [{"id": 1, "file_name": "a"}, {"id": 2, "file_name": "b"}],
            "annotations": [{"image_id": 2, "caption": "B"}],
        }
    ),
    "jsonl": '{"file": "a", "captions": []}\n{"file": "b", "captions": ["B"]}\n',
}


@pytest.mark.parametrize("form", SILENT)
def test_photos_without_captions_are_skipped_and_counted(form: CaptionFormat, read: Read) -> None:
    with pytest.warns(UserWarning, match=r"1 photo \([a1]\) without a caption"):
        assert [(entry.file, entry.captions) for entry in read(SILENT[form])] == [("b", ("B",))]


@each_form
def test_files_without_captions_are_refused(form: CaptionFormat, read: Read) -> None:
    with pytest.raises(ValueError, match=r"captions\.txt \(read as .*\) holds no caption"):
        read(WRITERS[form]({"a": [""], "b": [""]}, {"train": ["a", "b"]}))


@pytest.mark.parametrize("content", ["", " \n\n", b"\xef\xbb\xbf", b"\xef\xbb\xbf \r\n"])
def test_empty_file_is_refused(content: str | bytes, read: Read) -> None:
    with pytest.raises(ValueError, match=r"captions\.txt is empty"):
        read(content)


def test_missing_file_is_reported(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "gone.txt"):
        with pytest.raises(FileNotFoundError, match=f"{path.name} is not a file"):
            read_captions(path)


@each_form
@pytest.mark.parametrize(
    "file",
    ["../x.jpg", "a/../../x.jpg", "/etc/x.jpg", "..", ".", "", "..\\x.jpg", "C:\\x.jpg", "a\0.jpg"],
)
def test_photos_outside_the_folder_are_refused(form: CaptionFormat, file: str, read: Read) -> None:
    text = WRITERS[form]({"good.jpg": ["A"], file: ["B"]}, {"train": ["good.jpg", file]})
    with pytest.raises(
        ValueError, match=r"inside its directory, got|expected name#number|byte 0x00"
    ):
        read(text)


@each_form
def test_photos_may_be_in_subfolders(form: CaptionFormat, read: Read) -> None:
    captions = {"train/a.jpg": ["A"], "val/..b.jpg": ["B"]}
    entries = read(WRITERS[form](captions, {"train": list(captions)}))
    assert [entry.file for entry in entries] == list(captions)
    if form in ("flickr", "csv"):
        assert [entry.id for entry in entries] == ["a.jpg", "..b.jpg"]


@pytest.mark.parametrize("form", ["flickr", "csv"])
def test_duplicate_photo_names_are_refused(form: CaptionFormat, read: Read) -> None:
    captions = {"train/a.jpg": ["A"], "val/a.jpg": ["B"]}
    with pytest.raises(
        ValueError, match=r"val/a\.jpg has the same name as train/a\.jpg \(line [12]\);"
    ):
        read(WRITERS[form](captions, {"train": list(captions)}))


@pytest.mark.filterwarnings("ignore:.*dropped")
@given(form=st.sampled_from(FORMS), at=st.floats(0, 1), cut=st.integers(0, 40), new=st.binary())
def test_damaged_files_yield_captions_or_a_clear_error(
    form: CaptionFormat, at: float, cut: int, new: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    captions = {"a.jpg": ["A dog .", "It runs ."], "b.jpg": ["A cat , too ."]}
    content = WRITERS[form](captions, {"train": list(captions)}).encode()
    place = int(at * len(content))
    path = tmp_path_factory.getbasetemp() / "damaged.txt"
    path.write_bytes(content[:place] + new + content[place + cut :])
    result = read_or_refused(path)
    assert result if isinstance(result, list) else "damaged.txt" in str(result)


@pytest.mark.filterwarnings("ignore:.*dropped")
@given(content=st.binary() | st.text("\n\t,|{}[]\"'#0a:").map(str.encode))
def test_random_bytes_yield_captions_or_a_clear_error(
    content: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.txt"
    path.write_bytes(content)
    for form in (None, *FORMS):
        result = read_or_refused(path, form)
        assert result if isinstance(result, list) else "damaged.txt" in str(result)


def read_or_refused(
    path: Path, form: CaptionFormat | None = None
) -> list[CaptionEntry] | ValueError:
    try:
        return read_captions(path, format=form)
    except ValueError as error:
        return error


# ---------------------------------------------------------------- single formats


@given(order=st.permutations(range(5)))
def test_token_file_captions_are_ordered_by_number(order: list[int]) -> None:
    text = "".join(f"{name}#{number}\t{number}\n" for number in order for name in ("b", "a"))
    assert [(said.id, said.caption) for said in parse_captions(text, "flickr")] == [
        (name, str(number)) for name in ("b", "a") for number in range(5)
    ]


def test_token_file_captions_may_contain_its_separators(read: Read) -> None:
    assert read("a#1.jpg#0\tNo #1\tdog\n") == [entry("a#1.jpg", "No #1 dog")]


@pytest.mark.parametrize(
    ("header", "row"),
    [
        ("image,caption", 'a.jpg,"A dog, ""old""\n, runs"'),
        ('"image","caption"', '"a.jpg","A dog, ""old"" , runs"'),
        ("caption,image", '"A dog, ""old"" , runs",a.jpg'),
        ("Image;Caption", 'a.jpg;"A dog, ""old"" , runs"'),
        ("image_name| comment_number| comment", 'a.jpg | 0| A dog, "old" , runs'),
        ("source\tfile\ttext", 'x\ta.jpg\tA dog, "old" , runs'),
    ],
)
def test_table_layouts(header: str, row: str, read: Read) -> None:
    assert read(f"{header}\n{row}\n") == [entry("a.jpg", 'A dog, "old" , runs')]


@pytest.mark.parametrize("mark", ["|", "\t"])
def test_quotes_are_literal_with_bars_or_tabs_as_separators(mark: str, read: Read) -> None:
    assert read(f'image{mark}caption\na{mark}"Old" dog "\n') == [entry("a", '"Old" dog "')]


def test_third_party_tables_are_read(read: Read) -> None:
    text = io.StringIO()
    writer = csv.writer(text)  # as Python and spreadsheets do, with \r\n
    writer.writerows([("image", "caption"), ("a", 'say "x", y'), ("b", "one\ntwo"), ("a", "z")])
    assert read(text.getvalue()) == [entry("a", 'say "x", y', "z"), entry("b", "one two")]


def test_karpathy_splits_are_read(read: Read) -> None:
    image = {"filename": "a.jpg", "filepath": "val2014", "cocoid": 7, "sentences": [{"raw": "A"}]}
    splits = {"a.jpg": "restval", "b.jpg": "train", "c.jpg": "val", "d.jpg": "test"}
    images = [{**image, "filename": name, "split": split} for name, split in splits.items()]
    entries = read(json.dumps({"images": images, "dataset": "coco"}))
    assert entries[0] == CaptionEntry("a.jpg", "val2014/a.jpg", ("A",), "train")
    assert [entry.id for entry in entries_of_split(entries, "train")] == ["a.jpg", "b.jpg"]
    assert [entry.id for entry in entries_of_split(entries, "val")] == ["c.jpg"]


def test_coco_keeps_the_order_of_photos_and_of_captions(read: Read) -> None:
    document = {
        "images": [{"id": 9, "file_name": "9.jpg"}, {"id": 2, "file_name": "2.jpg"}],
        "annotations": [
            {"image_id": 2, "caption": "first"},
            {"image_id": 9, "id": 5, "caption": "third"},
            {"image_id": 2, "id": 3, "caption": "second"},
        ],
    }
    assert read(json.dumps(document, indent=1)) == [
        CaptionEntry("9", "9.jpg", ("third",)),
        CaptionEntry("2", "2.jpg", ("first", "second")),
    ]


def test_json_lines_layouts(read: Read) -> None:
    whole = {"id": 7, "file": "x/a.png", "captions": ["A", "B"], "split": "val", "shows": [1]}
    assert read(lines(whole)) == [CaptionEntry("7", "x/a.png", ("A", "B"), "val")]
    single = ({"image": "x/a.png", "caption": caption} for caption in "AB")
    assert read(lines(*single)) == [entry("x/a.png", "A", "B")]
    assert read(lines({"file_name": "a", "text": "A"})) == [entry("a", "A")]


def test_written_scenes_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["data", "scenes", "--out", str(tmp_path), "--count", "3", "--size", "16"]
    assert main(words) == 0
    entries = read_captions(tmp_path / "captions.jsonl")
    assert [entry.id for entry in entries] == ["test-0", "test-1", "test-2"]
    assert all((tmp_path / entry.file).is_file() for entry in entries)
    assert [len(entry.captions) for entry in entries] == [5, 5, 5]


COCO = {
    "images": [{"id": 1, "file_name": "a.jpg"}],
    "annotations": [{"image_id": 1, "id": 5, "caption": "A"}],
}
KARPATHY = {"filename": "a.jpg", "split": "train", "sentences": [{"raw": "A"}]}
BAD: dict[str, tuple[str, CaptionFormat | None, str]] = {
    "prose": ("A dog runs.\n", None,
        "first line 'A dog runs.': unknown captions format; supported"),
    "a table without a header": ("a.jpg,A dog\n", None,
        r"unknown captions format.* csv: a header with"),
    "a table as tokens": ("image,caption\na,b\n", "flickr", r"line 1: expected name#number<TAB>"),
    "tokens as a table": ("a.jpg#0\tA\n", "csv", r"\(read as csv\), line 1: expected a header"),
    "only commas": (",,\n,", "csv", "line 1: expected a header"),
    "tokens as coco": ("a.jpg#0\tA\n", "coco",
        r"line 1, column 1: invalid JSON \(.*; expected .*anno"),
    "no tab": ("a.jpg#0\tA\n\na.jpg#1 B\n", None, r"line 3: expected .*, got 'a\.jpg#1 B'"),
    "no number": ("a.jpg#0\tA\na.jpg#x\tB\n", None, "line 2: expected name#number"),
    "a number twice": ("a#0\tA\nb#0\tB\na#0\tC\n", None, "line 3: a#0 is already on line 1"),
    "a bare comma": ("image,caption\na.jpg,A dog, old\n", None,
        "line 2: 3 cells, but the header has 2"),
    "a missing cell": ("image|n|comment\na.jpg|4 A dog\n", None,
        "line 2: 2 cells, but the header has 3"),
    "an open quote": ('image,caption\na,b\nc,"d\ne,f\n', None,
        "line 3: unexpected end of data; close"),
    "a stray quote": ('image,caption\na,"b" c\n', None,
        "line 2: .* expected after .* double quotes"),
    "truncated": (json.dumps(COCO)[:-9], None, r"line 1, column \d+: invalid JSON"),
    "cut off in line 2": ('{"images":\n[', None, r"line 2, column 2: invalid JSON .*; expected {"),
    "a list": (json.dumps([KARPATHY]), None, r"\(read as jsonl\), line 1: expected on each line"),
    "images of another kind": ('{"images": [3]}', None, "the file: images must be a list of obj"),
    "no sentences": (
        json.dumps({"images": [{"filename": "a", "split": "val"}]}),
        None,
        r"images\[0\]: sentences must be a list of objects; expected .*sentences",
    ),
    "coco as karpathy": (json.dumps(COCO), "karpathy", r"images\[0\]: filename must be a string"),
    "karpathy as coco": (json.dumps({"images": [KARPATHY]}), "coco", r"images\[0\]: id must be"),
    "a name that is none": (
        json.dumps({"images": [{**KARPATHY, "filename": True}]}),
        None,
        r"images\[0\]: filename must be a string",
    ),
    "a share of a number": (
        json.dumps({**COCO, "images": [{"id": 1.5, "file_name": "a.jpg"}]}),
        None,
        r"images\[0\]: id must be a string",
    ),
    "no raw": (
        json.dumps({"images": [{**KARPATHY, "sentences": [{"tokens": ["a"]}]}]}),
        None,
        r"images\[0\]: raw must be a string",
    ),
    "a photo twice": (
        json.dumps({"images": [KARPATHY, KARPATHY]}),
        None,
        r"images\[1\]: a\.jpg is already at images\[0\]",
    ),
    "an image twice": (
        json.dumps({**COCO, "images": COCO["images"] * 2}),
        None,
        r"images\[1\]: 1 is already at images\[0\]",
    ),
    "an annotation twice": (
        json.dumps({**COCO, "annotations": COCO["annotations"] * 2}),
        None,
        r"annotations\[1\]: 5 is already at annotations\[0\]",
    ),
    "of no image": (
        json.dumps({**COCO, "annotations": [{"image_id": 3, "caption": "A"}]}),
        None,
        r"annotations\[0\]: no image has the id 3",
    ),
    "a caption that is none": (
        json.dumps({**COCO, "annotations": [{"image_id": 1, "caption": None}]}),
        None,
        r"annotations\[0\]: caption must be a string",
    ),
    "lines without": (lines({"image": "a", "caption": "A"}, {"x": 1}), None, "line 2: expected on"),
    "a line that is none": (lines({"image": "a", "caption": "A"}) + "{\n", None, "line 2, col"),
    "a line of numbers": (lines({"image": "a", "captions": [1]}), None, "line 1: captions must be"),
    "an id twice": (
        lines(*({"id": 1, "file": file, "captions": ["A"]} for file in "ab")),
        None,
        "line 2: 1 is already at line 1",
    ),
    "an empty id": (lines({"id": " ", "file": "a", "captions": ["A"]}), None, "line 1: a photo m"),
    "half an emoji": ('{"image": "a", "caption": "\\ud83d"}', None,
        "line 1: an unpaired surrogate character"),
    "a long number": ('{"image": "a", "caption": ' + "1" * 5000 + "}", None,
        "line 1: invalid JSON"),
    "too deep": ('{"image": ' + "[" * 100_000, None, "line 1.*: invalid JSON"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_malformed_files_are_refused_with_the_position(name: str, read: Read) -> None:
    content, form, reason = BAD[name]
    with pytest.raises(ValueError, match=rf"captions\.txt.*{reason}"):
        read(content, form)


# ---------------------------------------------------------------- imports, and real files


def test_reading_captions_does_not_import_torch() -> None:
    code = "import sys, visattn.data.captions.files as f; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.data
def test_both_flickr8k_formats_are_equal() -> None:
    folder = Path(os.environ["VISATTN_DATA"], "flickr8k")
    tokens = read_captions(folder / "Flickr8k.token.txt")
    assert tokens == read_captions(folder / "captions.txt")
    assert (len(tokens), sum(len(entry.captions) for entry in tokens)) == (7000, 35000)
    splits = {
        name: select_listed(tokens, read_split_file(folder / f"Flickr_8k.{name}Images.txt"))
        for name in ("train", "dev")
    }
    check_disjoint_splits(splits)
    assert {name: len(entries) for name, entries in splits.items()} == {"train": 6000, "dev": 1000}


@pytest.mark.data
def test_coco_captions_are_read() -> None:
    folder = Path(os.environ["VISATTN_DATA"], "coco")
    entries = read_captions(folder / "annotations" / "captions_train2017.json")
    assert (len(entries), sum(len(entry.captions) for entry in entries)) == (80, 400)
    assert all((folder / "train2017" / entry.file).is_file() for entry in entries)
