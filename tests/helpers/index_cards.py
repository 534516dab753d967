"""Cards of index pages, read back from their HTML."""

import re
from html import unescape
from typing import Any
from urllib.parse import unquote

from visattn.results.kinds import Card

CARD = re.compile(
    r'<a class="photo" href="\./(?P<page>[^"]*)">(?:<img src="(?P<thumbnail>[^"]*)"[^>]*>)?'
    r'<span class="caption"[^>]*>(?P<caption>[^<]*)</span>.*?'
    r'<span class="name"[^>]*>(?P<name>[^<]*)</span></a>'
)


def parse_index_page(page: str) -> list[Card]:
    """Return the cards of an index page."""
    assert '<meta name="generator" content="visattn">' in page
    cards: list[dict[str, Any]] = [
        {key: unescape(text or "") for key, text in each.groupdict().items()}
        for each in CARD.finditer(page)
    ]
    return [Card(**{**card, "page": unquote(card["page"])}) for card in cards]
