"""Self-contained HTML documents: escaping, content security policy, embedded images."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from importlib.resources import files
from typing import Any

import pytest
from hypothesis import given, strategies as st

from visattn.viz.html.document import escape_text, path_url, render_page


class Reader(HTMLParser):
    """Tags of a page, and the texts that they contain."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inside: dict[str, list[str]] = {}
        self.open = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.inside.setdefault(tag, []).append("")
        self.open = tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.inside[self.open][-1] += data

    def handle_endtag(self, tag: str) -> None:
        self.open = ""


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    return reader


def document(text: str, data: dict[str, Any] | None = None) -> str:
    return render_page(
        "index.html",
        styles=["paper.css", "index.css"],
        scripts=["index.js"],
        data=data or {},
        css=":root { --ratio: 1.5 }",
        heading=text,
        texts={"title": text, "count": text, "about": ""},
        markup={"cards": ""},
    )


def page_data(reader: Reader) -> Any:
    """Return the data of the script: the JSON between its tags."""
    return json.loads(reader.inside["script"][0])


@given(st.text(), st.dictionaries(st.text(), st.text() | st.floats(allow_nan=False, width=16)))
def test_text_is_escaped(text: str, data: dict[str, Any]) -> None:
    data = {key: value for key, value in data.items() if value not in (float("inf"), -float("inf"))}
    reader = read(document(text, data))
    assert reader.tags == read(document("plain")).tags
    assert page_data(reader) == data


@pytest.mark.parametrize(
    "text",
    ["</script>", "</script ", "<!--<script ", "]]>", "\u2028", "\u2029", "&lt;", "\udcff", "\\"],
)
def test_script_end_tags_in_data_are_escaped(text: str) -> None:
    page = document(text, {"text": text})
    page.encode()  # also what is no Unicode, such as half of a pair
    assert page_data(read(page)) == {"text": text}
    data = page.split('id="page-data">')[1].split("</script>")[0]
    assert not {*"<>&\u2028\u2029"} & {*data}


def test_content_security_policy_allows_hashed_scripts_only() -> None:
    reader = read(document("dog"))
    policy = next(
        page_data["content"]
        for tag, page_data in reader.tags
        if tag == "meta" and page_data.get("http-equiv") == "Content-Security-Policy"
    )
    rules = dict(part.strip().split(" ", 1) for part in str(policy).split(";"))
    hashes = {
        kind: "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"
        for kind, text in (
            ("script-src", reader.inside["script"][1]),
            ("style-src", reader.inside["style"][0]),
        )
    }
    assert rules == {
        "default-src": "'none'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        **hashes,
    }


def test_page_assets_are_small_and_load_nothing() -> None:
    for file in files("visattn.viz.html").iterdir():
        if not file.name.endswith((".html", ".css", ".js")):
            continue
        text = file.read_text(encoding="utf-8")
        assert len(text.splitlines()) < 300
        addresses = set(re.findall(r"https?://[^\s\"']+", text))
        assert addresses <= {"http://www.w3.org/2000/svg"}  # an XML namespace, never requested
        assert not re.search(r"@import|innerHTML|outerHTML|insertAdjacent|eval\(|style=", text)
        assert not re.search(r"<[^>]*\son\w+=", text)


def test_non_json_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        document("dog", {"score": float("nan")})


def test_control_characters_are_replaced() -> None:
    assert escape_text("a\0b\x1b") == "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(
    ("name", "address"),
    [
        ("a.html", "./a.html"),
        ("javascript:alert(1)", "./javascript%3Aalert%281%29"),
        ("../a#b?c%d.html", "./../a%23b%3Fc%25d.html"),
        ("犬 '\".html", "./%E7%8A%AC%20%27%22.html"),
    ],
)
def test_file_names_are_url_quoted(name: str, address: str) -> None:
    assert path_url(name) == address
