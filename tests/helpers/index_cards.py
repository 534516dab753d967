"""Cards of index pages, read back from their HTML."""

from html.parser import HTMLParser
from typing import Any
from urllib.parse import unquote

from visattn.results.kinds import Card


def parse_index_page(page: str) -> list[Card]:
    """Return the cards of an index page."""
    reader = _CardReader()
    reader.feed(page)
    assert reader.is_index
    return [Card(**card) for card in reader.cards]


class _CardReader(HTMLParser):
    """Parses the cards of an index page."""

    def __init__(self) -> None:
        super().__init__()
        self.is_index = False
        self.cards: list[dict[str, Any]] = []
        self._text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        if tag == "meta" and attributes.get("name") == "generator":
            self.is_index = attributes.get("content") == "visattn"
        elif tag == "a" and attributes.get("class") == "photo":
            page = unquote(attributes.get("href") or "").removeprefix("./")
            self.cards.append({"name": "", "page": page, "caption": "", "thumbnail": ""})
        elif tag == "img" and self.cards:
            self.cards[-1]["thumbnail"] = attributes.get("src") or ""
        self._text = (attributes.get("class") or "") if tag == "span" else ""

    def handle_endtag(self, tag: str) -> None:
        self._text = ""

    def handle_data(self, data: str) -> None:
        if self.cards and self._text in ("caption", "name"):
            self.cards[-1][self._text] = data
