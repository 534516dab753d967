"""Caption files: every format is read alike; splits; what is dropped, and what refused."""

import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from caption_data import write_caption_data
from hypothesis import given, strategies as st

from visattn.data.captions.files import (
    CaptionEntry,
    CaptionFile,
    entries_of_split,
    read_caption_results,
    read_captions,
)

PLAIN = [("a/1.jpg", "a dog"), ("a/1.jpg", "one dog"), ("b/2.jpg", 'a "big" cat, black')]
GROUPED = {"a/1.jpg": ("a dog", "one dog"), "b/2.jpg": ('a "big" cat, black',)}
ROWS = [{"image": file, "caption": text} for file, text in PLAIN]
LISTS = [{"file": file, "captions": [*texts]} for file, texts in GROUPED.items()]
QUOTED = '"a ""big"" cat, black"'
FILES = {
    "flickr": "a/1.jpg#0\ta dog\na/1.jpg#1\tone dog\nb/2.jpg#0\ta \"big\" cat, black\n",
    "csv": f"image,caption\r\na/1.jpg,a dog\r\na/1.jpg,one dog\r\nb/2.jpg,{QUOTED}\r\n",
    "csv with a mark and blanks": f'\ufeffcaption , "Image" \na dog,a/1.jpg\n\none dog,a/1.jpg\n'
    f"{QUOTED},b/2.jpg\n",
    "semicolons": f"image_path;text\na/1.jpg;a dog\na/1.jpg;one dog\nb/2.jpg;{QUOTED}\n",
    "bars": 'image_name| comment_number| comment\na/1.jpg| 0| a dog\na/1.jpg| 1| one dog\n'
    'b/2.jpg| 0| a "big" cat, black\n',
    "tabs": 'file\tcaption\na/1.jpg\ta dog\na/1.jpg\tone dog\nb/2.jpg\ta "big" cat, black\n',
    "tabs, quoted": 'file\tcaption\na/1.jpg\t"a\ndog"\na/1.jpg\tone dog\n'
    f"b/2.jpg\t{QUOTED}\n",
    "backslashes": f"image,caption\na\\1.jpg,a dog\na\\1.jpg,one dog\nb\\2.jpg,{QUOTED}\n",
    "list of objects": json.dumps(ROWS),
    "JSON lines": "\n".join(map(json.dumps, ROWS)),
    "JSON lines with lists": "\n".join(map(json.dumps, LISTS)),
    "indented list": json.dumps(LISTS, indent=1),
    "COCO": json.dumps({
        "images": [{"id": file, "file_name": file} for file in GROUPED],
        "annotations": [{"image_id": file, "caption": text} for file, text in PLAIN],
    }),
}  # fmt: skip


@pytest.mark.parametrize("form", FILES)
def test_every_format_gives_the_same_captions(form: str, tmp_path: Path) -> None:
    file = tmp_path / "captions"
    file.write_text(FILES[form])
    assert read_captions(file) == [CaptionEntry(name, name, t) for name, t in GROUPED.items()]


def test_karpathy_assigns_splits_and_restval_is_for_training(tmp_path: Path) -> None:
    images = [
        {
            "filename": f"{n}.jpg",
            "filepath": "val2014",
            "split": split,
            "sentences": [{"raw": "A ."}],
        }
        for n, split in enumerate(("train", "restval", "val", "test"))
    ]
    (tmp_path / "k.json").write_text(json.dumps({"images": images, "dataset": "coco"}))
    entries = read_captions(tmp_path / "k.json")
    assert [entry.split for entry in entries] == ["train", "train", "val", "test"]
    assert entries[1][:2] == ("1.jpg", "val2014/1.jpg")


def test_cells_without_a_caption_are_dropped_with_a_count(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("image,caption\n1.jpg,nan\n1.jpg,a dog\n2.jpg,NaN\n3.jpg,\n4.jpg,None\n")
    with pytest.warns(UserWarning, match="dropped") as said:
        assert [entry.captions for entry in read_captions(file)] == [("a dog",)]
    texts = [str(each.message).partition(": ")[2] for each in said]
    assert texts == ["dropped 4 empty captions (line 2, line 4, line 5, ...)",
                     "dropped 3 photos without a caption (2.jpg, 3.jpg, 4.jpg)"]  # fmt: skip


REFUSED = [
    ("", "the file is empty"),
    ("just words\n", "line 1: captions must be a table"),
    ("image,caption\n../a.jpg,a dog\n", "line 2: a file name must be a path inside"),
    ("image,caption\na.jpg,a dog,black\n", "line 2: must have 2 cells"),
    ('image,caption\na.jpg,"a dog\n', "unexpected end of data; quote captions"),
    ("image,caption\na.jpg,nan\n", "has no captions"),
    ("image,caption,split\na.jpg,a dog,train\na.jpg,a cat,val\n", "line 3: .* a.jpg .split val"),
    ('{"id": 1, "file": "a.jpg", "caption": "a"}\n{"id": 1, "file": "b.jpg", "caption": "b"}',
     "line 2: .* b.jpg .* has the id of a.jpg"),
    ('{"file": "a.jpg"}', "entry 1: no 'caption or captions"),
    ('{"file": "a.jpg", "caption": 5}', "entry 1: 'int' object"),
    ('{"file": "a.jpg", "caption": "\\ud800"}', "surrogates not allowed"),
    ('{"images": [], "annotations": [{"image_id": 1, "caption": "a"}]}', "no '1'"),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*dropped")
@pytest.mark.parametrize(("content", "message"), REFUSED)
def test_other_files_are_refused_with_the_entry(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(content)
    with pytest.raises(ValueError, match=rf"a\.txt.*{message}"):
        read_captions(tmp_path / "a.txt")


def test_results_have_one_caption_per_image(tmp_path: Path) -> None:
    file = tmp_path / "results"
    for content in (
        '[{"image_id": 37, "caption": "a dog"}, {"image_id": 37, "caption": "a  dog"}]',
        '{"id": 37, "caption": "a dog"}\n{"id": "37", "caption": "a dog "}',
        "37\ta dog\n37\ta dog\n", "37#0\ta dog\n37#1\ta dog\n",
    ):  # fmt: skip
        file.write_text(content)
        results = read_caption_results(file)
        assert results.captions == {"37": "a dog"}
        assert results.duplicates == ("37",)
    file.write_text("37\ta dog\n37\ta cat\n")
    with pytest.raises(ValueError, match="line 2: 37 must have one caption, got two"):
        read_caption_results(file)


def data_set(folder: Path, **options: Any) -> CaptionFile:
    paths = write_caption_data(folder)
    return CaptionFile(str(paths.captions), str(paths.photos), **options)


def files_of(source: CaptionFile) -> dict[str, list[str]]:
    splits: Any = ("train", "validation", "test")
    return {split: [sample.id for sample in source(split)] for split in splits}


def test_lists_may_lack_suffixes_and_must_have_captions(tmp_path: Path) -> None:
    for name, content in (("train", "1000_00.jpg\n1037_01\n\n"), ("val", "1074_02.jpg")):
        (tmp_path / name).write_text(content)
    lists: Any = {name: str(tmp_path / name) for name in ("train", "val")}
    assert files_of(data_set(tmp_path / "d", **lists)) == {
        "train": ["1000_00.jpg", "1037_01.jpg"], "validation": ["1074_02.jpg"],
        "test": ["1074_02.jpg"],
    }  # fmt: skip
    entries = [CaptionEntry("a.jpg", "a.jpg", ("a",)), CaptionEntry("b/a.png", "b/a.png", ("b",))]
    (tmp_path / "train").write_text("a\n")  # which of both?
    with pytest.raises(ValueError, match="1 names .a. without captions; remove them"):
        entries_of_split(entries, str(tmp_path / "train"))
    with pytest.raises(ValueError, match="must be a split .*it has none. or a file that lists"):
        entries_of_split(entries, "nowhere.txt")


def test_a_file_without_splits_is_divided_with_a_line_that_says_so(tmp_path: Path) -> None:
    source = data_set(tmp_path, val_fraction=0.3, test_fraction=0.15)
    splits = files_of(source)
    assert [len(files) for files in splits.values()] == [4, 2, 1]
    assert len({file for files in splits.values() for file in files}) == 7
    assert "assigns no splits: 30% of the photos are for validation" in source.notes[0]
    with pytest.raises(ValueError, match="must leave some of 7 photos"):
        CaptionFile(source.captions, source.photos, val_fraction=0.99)


@given(seed=st.integers(0, 9), count=st.integers(20, 40))
def test_a_photo_keeps_its_side_when_photos_are_added(seed: int, count: int) -> None:
    source: Any = object.__new__(CaptionFile)
    source.captions, source.val_fraction, source.test_fraction = "a.csv", 0.2, 0.0
    source.split_seed = seed
    entries = [CaptionEntry(f"{n}.jpg", f"{n}.jpg", ("a",)) for n in range(count + 5)]
    before, after = ({e.id for e in source._divide(entries[:n])["val"]} for n in (count, count + 5))
    assert len(before ^ after) <= 8  # at most those at the edge


def test_a_file_for_each_split_and_folders_of_their_own(tmp_path: Path) -> None:
    captions, photos = {}, {}
    for key in ("train", "val"):
        paths = write_caption_data(tmp_path / key)
        captions[key], photos[key] = str(paths.captions), str(paths.photos)
    assert [len(files) for files in files_of(CaptionFile(captions, photos)).values()] == [7, 7, 7]
    only = CaptionFile({"train": captions["train"]}, photos["train"])
    assert [len(files) for files in files_of(only).values()] == [7, 0, 0]


def test_missing_photos_are_refused_and_accents_are_found_in_either_form(tmp_path: Path) -> None:
    composed, decomposed = (unicodedata.normalize(form, "café") for form in ("NFC", "NFD"))
    (tmp_path / f"{decomposed}.jpg").write_bytes(b"photo")
    captions = tmp_path / "a.csv"
    captions.write_text(f"image,caption,split\n{composed}.jpg,a cup,train\n")
    (sample,) = CaptionFile(str(captions), str(tmp_path), val=None)("train")
    assert Path(sample.image).is_file()
    (tmp_path / f"{decomposed}.jpg").write_bytes(b"")
    with pytest.raises(FileNotFoundError, match="1 photos .* are missing or empty in"):
        CaptionFile(str(captions), str(tmp_path), val=None)
