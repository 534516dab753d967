"""Small captioned data sets in real formats, with drawn photos."""

import gzip
import json
from pathlib import Path
from typing import NamedTuple

from PIL import Image, ImageDraw

COLORS = {"red": (200, 40, 40), "green": (40, 170, 60), "blue": (50, 70, 210)}
THINGS = ("ball", "box", "kite")
PLACES = {"left": 0.05, "right": 0.55}  # left edge of an object, as a fraction of the width
SIZE = 0.4  # size of an object, as a fraction of a side


class CaptionPaths(NamedTuple):
    """Paths of the parts of a data set."""

    photos: Path
    captions: Path
    train: Path
    validation: Path
    test: Path
    phrases: Path


def write_caption_data(
    folder: Path, photos: int = 7, *, karpathy: bool = False, sides: bool = True
) -> CaptionPaths:
    """Write photos of an object each, five captions per photo, split lists and phrase boxes.

    Of the photos, two are for validation, two for the test and the rest for training. Without
    `sides`, no caption says where the object is, so that photos may be mirrored. The captions are
    lines of Flickr8k, or a JSON file of Karpathy, which assigns the splits.
    """
    paths = CaptionPaths(
        photos=folder / "photos",
        captions=folder / ("captions.json" if karpathy else "captions.token.txt"),
        train=folder / "train.txt",
        validation=folder / "validation.txt",
        test=folder / "test.txt",
        phrases=folder / "phrase_boxes.json.gz",
    )
    paths.photos.mkdir(parents=True)
    names = [f"{1000 + 37 * index}_{index:02x}.jpg" for index in range(photos)]
    for index, name in enumerate(names):
        draw_photo(index, 64).save(paths.photos / name, quality=95)
    captions_by_photo = {name: captions(index, sides) for index, name in enumerate(names)}
    lists = {"train": names[:-4], "val": names[-4:-2], "test": names[-2:]}
    text = with_splits(captions_by_photo, lists) if karpathy else lines(captions_by_photo)
    paths.captions.write_text(text, encoding="utf-8")
    for path, split in zip(
        (paths.train, paths.validation, paths.test), lists.values(), strict=True
    ):
        path.write_text("\n".join([*split, ""]), encoding="utf-8")
    phrases = {name: phrased(index, sides) for index, name in enumerate(names)}
    paths.phrases.write_bytes(gzip.compress(json.dumps(phrases).encode(), mtime=0))
    return paths


def thing(index: int) -> tuple[str, str, str]:
    """Return color, kind and position of the object on a photo."""
    colors, places = list(COLORS), list(PLACES)
    return colors[index % 3], THINGS[index // 3 % 3], places[index % 2]


def draw_photo(index: int, size: int) -> Image.Image:
    """Return a landscape photo with its object on grass below a sky."""
    color, kind, _ = thing(index)
    width, height = size * 5 // 4, size
    image = Image.new("RGB", (width, height), (150, 200, 235))
    pen = ImageDraw.Draw(image)
    pen.rectangle((0, height * 0.7, width, height), fill=(90, 140, 70))
    x0, y0, x1, y1 = box(index)
    at = (x0 * width, y0 * height, x1 * width, y1 * height)
    if kind == "kite":
        middle = ((at[0] + at[2]) / 2, (at[1] + at[3]) / 2)
        pen.polygon(
            [(middle[0], at[1]), (at[2], middle[1]), (middle[0], at[3]), (at[0], middle[1])],
            fill=COLORS[color],
        )
    else:
        shape = pen.ellipse if kind == "ball" else pen.rectangle
        shape(at, fill=COLORS[color])
    return image


def box(index: int) -> tuple[float, float, float, float]:
    """Return left, top, right and bottom of the object, as fractions of the photo."""
    left = PLACES[thing(index)[2]]
    return left, 0.3, round(left + SIZE, 4), 0.7


def captions(index: int, sides: bool = True) -> list[str]:
    """Return five captions with the spacing of Flickr8k."""
    color, kind, place = thing(index)
    place = place if sides else "sunny"
    return [
        f"A {color} {kind} is on the {place} .",
        f"There 's a {color} {kind} , on grass .",
        f"On the {place} lies a {kind}",
        f'A well-known {kind} " in {color} " on the {place} side .',
        f"The grass below the {color} {kind} is green .",
    ]


def phrased(index: int, sides: bool = True) -> list[dict[str, object]]:
    """Return the captions with the boxes of their phrases."""
    color, kind, _ = thing(index)
    candidates = (f"a {color} {kind}", f"a {color} {kind}", f"a {kind}", f"a well-known {kind}")
    sentences: list[dict[str, object]] = []
    for caption, phrase in zip(captions(index, sides), (*candidates, "the grass"), strict=True):
        words, wanted = caption.split(), phrase.split()
        lowered = [word.lower() for word in words]
        first = next(i for i in range(len(words)) if lowered[i : i + len(wanted)] == wanted)
        grass = phrase == "the grass"
        boxes_by_text = {
            "first_word": first,
            "words": len(wanted),
            "phrase": " ".join(words[first : first + len(wanted)]),
            "types": ["scene" if grass else "other"],
            "boxes": [[0.0, 0.7, 1.0, 1.0] if grass else list(box(index))],
        }
        sentences.append({"sentence": caption, "phrases": [boxes_by_text]})
    return sentences


def lines(captions: dict[str, list[str]]) -> str:
    return "".join(
        f"{name}#{number}\t{caption}\n"
        for name, said in captions.items()
        for number, caption in enumerate(said)
    )


def with_splits(captions: dict[str, list[str]], lists: dict[str, list[str]]) -> str:
    """Return the JSON of Karpathy, in which the last training photo is of `restval`."""
    split_of = {name: split for split, names in lists.items() for name in names}
    split_of[lists["train"][-1]] = "restval"
    images = [
        {
            "filename": name,
            "split": split_of[name],
            "sentences": [{"raw": caption} for caption in said],
        }
        for name, said in captions.items()
    ]
    return json.dumps({"images": images})
