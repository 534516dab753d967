"""Annotations of Flickr30k Entities: sentences with marked phrases, and boxes of their chains."""

import os
import re
from collections.abc import Mapping, Sequence
from itertools import accumulate, chain
from pathlib import Path

from visattn.data.captions.vocabulary import split_words
from visattn.geometry.affine import Box
from visattn.io.safe_text import decode_utf8, element_text, parse_xml, read_bytes_bounded
from visattn.results.captions import Phrase

_PARTS = re.compile(r"\[/EN#(\d+)((?:/[a-z]+)+) ([^\]]+)\]|([^\s\[\]]+)")


def read_flickr30k_entities(
    folder: str | os.PathLike[str],
) -> dict[str, dict[tuple[str, ...], tuple[Phrase, ...]]]:
    """Read a folder of Flickr30k Entities: for each photo, phrases with boxes by caption.

    Phrases of a chain without boxes (`nobox`, or the whole scene) are dropped.

    Args:
        folder: Holds `Sentences/NAME.txt`, a caption per line with phrases as
            `[/EN#283585/people An Asian woman]`, and `Annotations/NAME.xml` with boxes in pixels.

    Returns:
        As `read_phrases`; photos are named `NAME.jpg`, boxes are relative to the photo.

    Raises:
        FileNotFoundError: If one of the two folders, or the annotation of a photo is missing.
        ValueError: If a file is invalid; the message names it.

    Source:
        Plummer et al. 2015, arXiv:1505.04870.
    """
    source = Path(folder)
    sentences, annotations = source / "Sentences", source / "Annotations"
    for part in (sentences, annotations):
        if not part.is_dir():
            raise FileNotFoundError(
                f"{source} must hold the folders Sentences and Annotations of Flickr30k Entities; "
                f"there is no {part.name}"
            )
    photos: dict[str, dict[tuple[str, ...], tuple[Phrase, ...]]] = {}
    for path in sorted(sentences.glob("*.txt")):
        boxes = _read_boxes(annotations / f"{path.stem}.xml")
        lines = decode_utf8(read_bytes_bounded(path)).splitlines()
        parsed = (parse_entity_sentence(line, boxes) for line in lines if line.strip())
        photos[f"{path.stem}.jpg"] = dict(parsed)
    if not photos:
        raise ValueError(f"{sentences} holds no NAME.txt")
    return photos


def parse_entity_sentence(
    line: str, boxes: Mapping[str, Sequence[Box]]
) -> tuple[tuple[str, ...], tuple[Phrase, ...]]:
    """Return the words of a marked sentence, and its phrases that have boxes.

    Args:
        line: Sentence with marked phrases.
        boxes: Boxes of each chain, relative to the photo.

    Example:
        >>> line = "[/EN#1/people A man] rides [/EN#2/other/vehicles a red bike] ."
        >>> words, phrases = parse_entity_sentence(line, {"2": [(0.0, 0.5, 1.0, 1.0)]})
        >>> words, [(phrase.start, phrase.text, phrase.types) for phrase in phrases]
        (('a', 'man', 'rides', 'a', 'red', 'bike'), [(3, 'a red bike', ('other', 'vehicles'))])
    """
    parts = [(match[1], match[2], split_words(match[3] or match[4])) for match in
             _PARTS.finditer(line)]  # fmt: skip
    starts = [0, *accumulate(len(words) for *_, words in parts)]
    phrases = tuple(
        Phrase(start, len(words), tuple(boxes[entity]), tuple(kinds.split("/")[1:]),
               " ".join(words))
        for start, (entity, kinds, words) in zip(starts, parts, strict=False)
        if entity and words and boxes.get(entity)
    )  # fmt: skip
    return tuple(chain.from_iterable(words for *_, words in parts)), phrases


def _read_boxes(path: Path) -> dict[str, list[Box]]:
    """Return the boxes of each chain of a photo, relative to its size."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no annotation {path}")
    content = read_bytes_bounded(path)
    try:
        root = parse_xml(content)
        width, height = (float(element_text(root, f"size/{side}")) for side in ("width", "height"))
        boxes: dict[str, list[Box]] = {}
        for element in root.findall("object"):
            if (corners := element.find("bndbox")) is None:
                continue
            sides = [
                float(element_text(corners, name)) for name in ("xmin", "ymin", "xmax", "ymax")
            ]
            box = (sides[0] / width, sides[1] / height, sides[2] / width, sides[3] / height)
            for name in element.findall("name"):
                boxes.setdefault(str(name.text), []).append(box)
    except (ValueError, ZeroDivisionError) as error:
        raise ValueError(f"{path} is no annotation of Flickr30k Entities: {error}") from error
    return boxes
