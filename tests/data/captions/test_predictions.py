"""Files of generated captions: formats that are read, and refused content."""

import json
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from visattn.data.captions.files import read_caption_results
from visattn.data.captions.formats import parse_results

names = st.text(
    st.characters(codec="utf-8", exclude_categories=["C", "Z"], exclude_characters="#[{"),
    min_size=1,
    max_size=7,
)
captions = st.text(st.characters(codec="utf-8", exclude_characters="\n\r\t"), max_size=29)
results = st.dictionaries(names, captions, min_size=1, max_size=5)


def written(folder: Path, text: str) -> Path:
    path = folder / "said.txt"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "text",
    [
        '[{"image_id": 37, "caption": "a ring"}, {"image_id": "b.jpg", "caption": ""}]',
        '\n [{"id": 37, "caption": "a ring", "x": [1]},\n{"id": "b.jpg", "caption": ""}]\n',
        '{"id": "37", "caption": "a ring"}\n\n{"file": "b.jpg", "caption": ""}\n',
        '{"image": 37, "caption": "a ring"}\r\n{"image_id": "b.jpg", "caption": ""}',
        "37\ta ring\nb.jpg\t\n",
        "\ufeff37\ta ring\r\nb.jpg\t\r\n",
        "37#0\ta ring\nb.jpg#4\t\n",
    ],
)
def test_every_format_has_equal_captions(text: str, tmp_path: Path) -> None:
    assert read_caption_results(written(tmp_path, text)) == ({"37": "a ring", "b.jpg": ""}, ())


@given(results=results)
def test_every_format_roundtrips(results: dict[str, str]) -> None:
    entries = [{"image_id": name, "caption": said} for name, said in results.items()]
    forms = [
        json.dumps(entries),
        json.dumps(entries, ensure_ascii=False),
        "\n".join(json.dumps(entry) for entry in entries),
        "\n".join(f"{name}\t{said}" for name, said in results.items()),
        "\n".join(f"{name}#0\t{said}" for name, said in results.items()),
    ]
    for text in forms:
        assert {said.id: said.caption for said in parse_results(text)} == results


def test_captions_may_be_long_and_contain_any_text(tmp_path: Path) -> None:
    said = "two\nlines, a \u2028 and 🙂 " + "stone " * 1009
    path = written(tmp_path, json.dumps([{"image_id": 1, "caption": said}]))
    assert read_caption_results(path).captions == {"1": said}
    assert read_caption_results(written(tmp_path, "a\tone\x0btwo\u2028three\tfour\n")).captions == {
        "a": "one\x0btwo\u2028three\tfour"
    }


def test_number_sign_is_part_of_the_name_unless_all_have_a_number(tmp_path: Path) -> None:
    path = written(tmp_path, "a#1\tred\nb\tblue\n")
    assert read_caption_results(path).captions == {"a#1": "red", "b": "blue"}


def test_duplicate_captions_are_counted_once_and_reported(tmp_path: Path) -> None:
    content = read_caption_results(
        written(tmp_path, "a\tred ring\nb\tblue\na\tred  ring \na\tred ring\n")
    )
    assert content == ({"a": "red ring", "b": "blue"}, ("a",))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a\tred\nb\tblue\na\tgreen\n", "line 3: a has another caption at line 1"),
        ("a#0\tred\na#1\tblue\n", "line 2: a has another caption at line 1"),
        (
            '[{"image_id": 5, "caption": "a"}, {"image_id": "5", "caption": "b"}]',
            "entry 2: 5 has another caption at entry 1",
        ),
        (
            '[{"image_id": 5, "caption": "a"},\n{"image_id": 6, "cap',
            r"line 2, column 17: invalid JSON \(Unterminated string\)",
        ),
        ('{"id": "a", "caption": "b"}\n{"id": "c", caption}', "line 2, column 13: invalid JSON"),
        ('{"id": "a",\n "caption": "b"}', "line 1, column 12: invalid JSON"),
        ('[{"image_id": 5}]', "entry 1: .* has none of the formats"),
        ('[{"caption": "a"}]', "entry 1: .* has none of the formats"),
        ('[{"image_id": true, "caption": "a"}]', "entry 1: .* has none of the formats"),
        ('[{"image_id": 1.5, "caption": "a"}]', "entry 1: .* has none of the formats"),
        ('[{"image_id": " ", "caption": "a"}]', "entry 1: .* has none of the formats"),
        ('{"id": "a", "captions": ["b"]}', "line 1: .* has none of the formats"),
        ('[["a", "b"]]', "entry 1: .* has none of the formats"),
        ('[{"image_id": 1, "caption": "\\ud83d"}]', "entry 1: an unpaired surrogate character"),
        ("[" * 100_003, r"line 1: invalid JSON \(nested too deeply\)"),
        ("a red ring\n", "line 1: 'a red ring' has none of the formats"),
        ("a\tred\nblue\n", "line 2: 'blue' has none of the formats"),
        ("\tred\n", "line 1: '' has none of the formats"),
        ("", "is empty"),
        ("[]", "holds no caption"),
        (" \n\n", "is empty"),
    ],
)
def test_invalid_files_are_refused_with_the_position(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"said\.txt,? {said}"):
        read_caption_results(written(tmp_path, text))


@pytest.mark.parametrize("name", ["missing.json", "."])
def test_missing_file_is_reported(name: str, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="is not a file"):
        read_caption_results(tmp_path / name)
