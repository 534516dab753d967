"""Phrases of captions with boxes (Flickr30k Entities): readers, samples, targets of supervision."""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from visattn.data.captions.batch import split_words
from visattn.data.captions.files import read_captions
from visattn.data.regions.coco_instances import CocoImage, read_instance_file
from visattn.data.scenes.dataset import Scenes
from visattn.data.scenes.language import verify_caption
from visattn.data.scenes.world import object_boxes
from visattn.geometry.affine import Box, Geometry
from visattn.images.reader import LoadedImage, read_image
from visattn.io.safe_text import (
    decode_utf8,
    decompress_gzip,
    element_text,
    parse_json,
    parse_xml,
    printable_name,
    read_bytes_bounded,
    short_repr,
)
from visattn.metrics.grounding import (
    attention_correctness,
    box_coverage,
    box_target,
    paper_correctness,
    pointing_hit,
    uniform_baseline,
)
from visattn.results.captions import Phrase


def read_phrases(
    path: str | os.PathLike[str],
) -> dict[str, dict[tuple[str, ...], tuple[Phrase, ...]]]:
    """Read phrase annotations: for each photo, phrases with boxes by the words of the caption.

    If a caption occurs twice, a phrase has the boxes of both. Phrases without boxes, or without
    words after `split_words`, are dropped.

    Args:
        path: JSON, also as gzip: names of photos with a list of captions each, a caption an object
            with `sentence` and `phrases`, a phrase an object with `first_word` and `words`, counted
            between spaces, `types`, and `boxes` as left, top, right, bottom between 0 and 1.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If its content is invalid; the message names the photo. If it is longer than a
            gibibyte, compressed or decompressed.

    Example:
        >>> ball = {"first_word": 0, "words": 3, "types": [], "boxes": [[0, 0, 1, 0.5]]}
        >>> import json
        >>> annotations = {"a.jpg": [{"sentence": "Dog 's ball", "phrases": [ball]}]}
        >>> path = getfixture("tmp_path") / "phrases.json"
        >>> _ = path.write_text(json.dumps(annotations))
        >>> [phrases] = read_phrases(path)["a.jpg"].values()
        >>> phrases[0].text, phrases[0].boxes
        ("dog 's ball", ((0.0, 0.0, 1.0, 0.5),))

    Source:
        Plummer et al. 2015, arXiv:1505.04870 (Flickr30k Entities), the format of its annotations.
    """
    source = Path(path)
    annotations = _load_json(source)
    if not isinstance(annotations, dict):
        raise ValueError(  # noqa: TRY004 (a file's fault)
            f"{source} must hold an object of photos, got a {type(annotations).__name__}"
        )
    photos: dict[str, dict[tuple[str, ...], tuple[Phrase, ...]]] = {}
    for photo, sentences in annotations.items():
        try:
            photos[photo] = _parse_sentences(sentences)
        except ValueError as error:
            raise ValueError(f"{source}, photo {printable_name(photo)}: {error}") from error
    return photos


def phrases_to_input(phrases: Sequence[Phrase], geometry: Geometry) -> tuple[Phrase, ...]:
    """Return phrases of the upright image with boxes relative to the network's input.

    Boxes are clipped to the input; a phrase whose boxes are all outside is dropped.

    Example:
        >>> left = Geometry.identity((10, 20)).cropped(0, 0, (10, 10))
        >>> ball = Phrase(0, 1, ((0.25, 0.0, 1.0, 1.0), (0.6, 0.0, 1.0, 1.0)), (), "ball")
        >>> phrases_to_input([ball], left)[0].boxes
        ((0.5, 0.0, 1.0, 1.0),)
    """
    if not phrases:
        return ()
    height, width = geometry.image_size
    boxes = [box for phrase in phrases for box in phrase.boxes]
    pixels = torch.tensor(boxes, dtype=torch.float64) * torch.tensor([width, height, width, height])
    on_input = iter(geometry.boxes_to_input(pixels).tolist())
    result: list[Phrase] = []
    for phrase in phrases:
        mapped = [cast("Box", tuple(next(on_input))) for _ in phrase.boxes]
        if nonempty := tuple(box for box in mapped if box[0] < box[2] and box[1] < box[3]):
            result.append(phrase._replace(boxes=nonempty))
    return tuple(result)


def match_phrases(words: Sequence[str], annotated: Iterable[Phrase]) -> tuple[Phrase, ...]:
    """Return the annotated phrases that occur word for word in a generated caption of their image.

    The caption is matched from left to right; at each word the longest phrase wins. If a text is
    annotated several times, for example for several people, the match has all boxes.

    Example:
        >>> dog = Phrase(4, 2, ((0.0, 0.0, 0.5, 0.5),), ("animals",), "a dog")
        >>> match_phrases(["there", "is", "a", "dog"], [dog])[0].start
        2

    Source:
        Liu et al. 2017, arXiv:1605.09553, where a parser finds the phrases: here an
        annotated `dog` also matches inside of `a big dog`.
    """
    by_words: dict[tuple[str, ...], list[Phrase]] = {}
    for phrase in annotated:
        by_words.setdefault(tuple(phrase.text.split()), []).append(phrase)
    longest = max(map(len, by_words), default=0)
    matches: list[Phrase] = []
    start = 0
    while start < len(words):
        for num_words in range(longest, 0, -1):
            if phrases := by_words.get(tuple(words[start : start + num_words])):
                matches.append(_merge(phrases)._replace(start=start))
                start += matches[-1].num_words
                break
        else:
            start += 1
    return tuple(matches)


def _load_json(source: Path) -> Any:
    if not source.is_file():
        raise FileNotFoundError(f"no phrase annotations at {source}")
    content = read_bytes_bounded(source)
    if content[:2] == b"\x1f\x8b":
        try:
            content = decompress_gzip(content)
        except ValueError as error:
            raise ValueError(
                f"{source} cannot be decompressed: {error}; download it again"
            ) from error
    try:
        return parse_json(decode_utf8(content))
    except ValueError as error:
        raise ValueError(f"{source} is neither JSON nor gzip-compressed JSON: {error}") from error


def _parse_sentences(sentences: Any) -> dict[tuple[str, ...], tuple[Phrase, ...]]:
    """Return the phrases of each caption of one photo."""
    if not isinstance(sentences, list):
        raise ValueError(f"captions must be a list, got a {type(sentences).__name__}")  # noqa: TRY004
    captions: dict[tuple[str, ...], tuple[Phrase, ...]] = {}
    for entry in sentences:
        # Annotations count what stands between spaces, captions count words of `split_words`:
        #
        #     parts    A  dog's   bone  ,  two  cats
        #     words    a  dog 's  bone     two  cats
        #     starts   0  1       3     4  4    5     6
        parts = str(_require_field(entry, "sentence", str)).split()
        words_of_parts = [split_words(part) for part in parts]
        words = tuple(chain.from_iterable(words_of_parts))
        starts = [0, *accumulate(map(len, words_of_parts))]
        phrases = [
            _parse_phrase(phrase, parts, starts, words)
            for phrase in _require_field(entry, "phrases", list)
        ]
        kept = (phrase for phrase in phrases if phrase.num_words and phrase.boxes)
        captions[words] = _merge_duplicates((*captions.get(words, ()), *kept))
    return captions


def _parse_phrase(
    entry: Any, parts: Sequence[str], starts: Sequence[int], words: Sequence[str]
) -> Phrase:
    """Return a phrase; its position in space-separated parts becomes one in `split_words`."""
    first = _require_field(entry, "first_word", int)
    count = _require_field(entry, "words", int)
    if not 0 <= first < first + count <= len(parts):
        raise ValueError(
            f"{count} words from word {first} exceed {short_repr(' '.join(parts))}, "
            f"which has {len(parts)}"
        )
    text = " ".join(parts[first : first + count])
    if entry.get("phrase", text) != text:
        raise ValueError(
            f"the phrase {short_repr(entry['phrase'])} is not at word {first}, where the caption "
            f"has {short_repr(text)}; words are separated by spaces and counted from 0"
        )
    start = starts[first]
    end = starts[first + count]
    boxes = tuple(_parse_box(box, text) for box in _require_field(entry, "boxes", list))
    types = _require_field(entry, "types", list)
    if not all(isinstance(name, str) for name in types):
        raise ValueError(f"types must be strings, got {short_repr(types)} for {short_repr(text)}")
    return Phrase(start, end - start, boxes, tuple(types), " ".join(words[start:end]))


def _parse_box(value: Any, text: str) -> Box:
    numbers = value if isinstance(value, list) and len(value) == 4 else [-1]
    numeric = all(isinstance(n, (int, float)) and not isinstance(n, bool) for n in numbers)
    if not numeric or not all(0 <= n <= 1 for n in numbers):  # false for NaN
        numbers = [-1.0] * 4
    x0, y0, x1, y1 = map(float, numbers)
    if not (0 <= x0 < x1 and 0 <= y0 < y1):
        raise ValueError(
            "a box must be left < right and top < bottom, all between 0 and 1, got "
            f"{short_repr(value)} for {short_repr(text)}"
        )
    return x0, y0, x1, y1


def _require_field(entry: Any, name: str, kind: type) -> Any:
    value = entry.get(name) if isinstance(entry, dict) else None
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(  # noqa: TRY004 (a file's fault)
            f"each entry needs {name!r} of type {kind.__name__}, got {short_repr(entry)}"
        )
    return value


def _merge_duplicates(phrases: Iterable[Phrase]) -> tuple[Phrase, ...]:
    """Return phrases in order, merging those with the same words."""
    by_span: dict[tuple[int, int], list[Phrase]] = {}
    for phrase in phrases:
        by_span.setdefault((phrase.start, phrase.num_words), []).append(phrase)
    return tuple(_merge(by_span[span]) for span in sorted(by_span))


def _merge(phrases: Sequence[Phrase]) -> Phrase:
    """Return the first phrase, with the unique boxes and types of all."""
    boxes = dict.fromkeys(box for phrase in phrases for box in phrase.boxes)
    types = dict.fromkeys(name for phrase in phrases for name in phrase.types)
    return phrases[0]._replace(boxes=tuple(boxes), types=tuple(types))


# [/EN#7/people Two kids]: a chain of phrases for one thing, its kinds, the words; or a plain word.
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
    sentences = source / "Sentences"
    annotations = source / "Annotations"
    for subfolder in (sentences, annotations):
        if not subfolder.is_dir():
            raise FileNotFoundError(
                f"{source} must hold the folders Sentences and Annotations of Flickr30k Entities; "
                f"there is no {subfolder.name}"
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
    """Return the words of a marked sentence, and its phrases whose chains have boxes.

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


class GroundingResult(NamedTuple):
    """Grounding scores of one phrase; its region is the union of its boxes."""

    word_correctness: tuple[float, ...]
    """Attention correctness of each word: attention mass in the boxes, exact by area."""
    baseline: float
    """Correctness of uniform attention: the fraction of the image covered by the boxes."""
    pointing_hit: bool
    """Whether the maximum of the summed maps of the words is in a box; see `pointing_hit`."""
    paper_correctness: float
    """Maximum correctness over the words as the authors compute it, `paper_correctness`."""
    paper_baseline: float
    """The baseline as the authors compute it."""

    @property
    def max_correctness(self) -> float:
        """Maximum correctness over the words, as the paper scores a phrase.

        It grows with the number of words by chance: compare it with that of other images' maps.
        """
        return max(self.word_correctness)

    @property
    def mean_correctness(self) -> float:
        """Mean correctness of the words; random maps reach the baseline on average."""
        return sum(self.word_correctness) / len(self.word_correctness)

    @property
    def last_correctness(self) -> float:
        """Correctness of the last word, in English mostly the head noun."""
        return self.word_correctness[-1]


def normalize_maps(values: Float[Tensor, "*t gy gx"]) -> Float[Tensor, "*t gy gx"]:
    """Return maps that sum to 1, in double precision; negative values count as 0.

    A map without positive values is uniform.

    Example:
        >>> normalize_maps(torch.tensor([[[1.0, 3.0]], [[0.0, 0.0]]]))
        tensor([[[0.2500, 0.7500]],
        <BLANKLINE>
                [[0.5000, 0.5000]]], dtype=torch.float64)
    """
    values = values.double().clamp(min=0)
    sums = values.sum((-2, -1), keepdim=True)
    uniform = torch.full_like(values, 1 / (values.shape[-2] * values.shape[-1]))
    return torch.where(sums > 0, values / sums.clamp(min=1e-300), uniform)


def score_phrases(
    maps: Float[Tensor, "t gy gx"], phrases: Sequence[Phrase]
) -> tuple[GroundingResult, ...]:
    """Score the attention maps of a caption's words against the boxes of its phrases.

    Args:
        maps: Attention per word over the network's input, each map summing to 1.
        phrases: With boxes relative to that input: from `phrases_to_input` for a reference
            caption, from `match_phrases` for a generated one.

    Raises:
        ValueError: If there are too few maps for a phrase, or a map does not sum to 1.

    Example:
        >>> sky = Phrase(0, 2, ((0.0, 0.0, 1.0, 0.5),), ("scene",), "the sky")
        >>> maps = torch.tensor([[[0.5], [0.5]], [[0.9], [0.1]]])
        >>> [result] = score_phrases(maps, [sky])
        >>> [round(c, 6) for c in result.word_correctness], result.baseline, result.pointing_hit
        ([0.5, 0.9], 0.5, True)

    Source:
        Liu et al. 2017, arXiv:1605.09553, section 3; pointing: Zhang et al. 2016,
        arXiv:1608.00507, on one map per phrase.
    """
    return tuple(_score_phrase(maps, phrase) for phrase in phrases)


def _score_phrase(maps: Float[Tensor, "t gy gx"], phrase: Phrase) -> GroundingResult:
    phrase_maps = maps[phrase.start : phrase.start + phrase.num_words]
    if len(phrase_maps) < phrase.num_words:
        raise ValueError(
            f"the phrase {phrase.text!r} ends at word {phrase.start + phrase.num_words - 1}, "
            f"counted from 0, and needs a map for each word; got {len(maps)} maps"
        )
    boxes = torch.tensor(phrase.boxes, device=maps.device)
    coverage = box_coverage(boxes, (maps.shape[-2], maps.shape[-1]))
    enlarged, paper_baseline = paper_correctness(phrase_maps, boxes)
    return GroundingResult(
        word_correctness=tuple(attention_correctness(phrase_maps, coverage).tolist()),
        baseline=float(uniform_baseline(coverage)),
        pointing_hit=bool(pointing_hit(phrase_maps.sum(0), boxes)),
        paper_correctness=float(enlarged.max()),
        paper_baseline=float(paper_baseline),
    )


SupervisedPart = Literal["all", "last"]


class SupervisedWords(NamedTuple):
    """Words of a batch of captions with known boxes, and their target attention."""

    caption_indices: Int[Tensor, " s"]
    """Index of the caption of each word."""
    steps: Int[Tensor, " s"]
    """Index of the word in its caption, which is the decoding step of its attention."""
    targets: Float[Tensor, "s n"]
    """Target attention over the flattened grid; each row sums to 1."""


def supervised_words(
    captions: Sequence[Sequence[Phrase]], grid: tuple[int, int], *, words: SupervisedPart = "all"
) -> SupervisedWords:
    """Return the words of captions that have boxes, with uniform target attention over these.

    `visattn.functional.captions.pack_targets` aligns them with the attention of a batch.

    Args:
        captions: Phrases of each caption, with boxes relative to the network's input.
        grid: Rows and columns of the attention grid.
        words: `all` supervises every word of a phrase, articles included; `last` only the last
            one, in English mostly the head noun.

    Example:
        >>> red_ring = Phrase(1, 2, ((0.0, 0.0, 0.5, 1.0),), (), "red ring")
        >>> supervised_words([[], [red_ring]], (1, 2))
        SupervisedWords(caption_indices=tensor([1, 1]), steps=tensor([1, 2]),
            targets=tensor([[1., 0.], [1., 0.]]))

    Source:
        Liu et al. 2017, arXiv:1605.09553, strong supervision.
    """
    boxes: dict[tuple[int, int], tuple[Box, ...]] = {}
    for caption_index, phrases in enumerate(captions):
        for phrase in phrases:
            end = phrase.start + phrase.num_words
            for step in range(end - 1 if words == "last" else phrase.start, end):
                boxes[caption_index, step] = (*boxes.get((caption_index, step), ()), *phrase.boxes)
    positions = torch.tensor(list(boxes), dtype=torch.long).reshape(-1, 2)
    targets = [_target(word_boxes, grid) for word_boxes in boxes.values()]
    stacked = torch.stack(targets) if targets else torch.zeros(0, grid[0] * grid[1])
    return SupervisedWords(positions[:, 0], positions[:, 1], stacked)


@lru_cache(2**17)  # the same boxes recur in each caption and each epoch
def _target(boxes: tuple[Box, ...], grid: tuple[int, int]) -> Float[Tensor, " n"]:
    return box_target(torch.tensor(boxes), grid).flatten()


Captions = tuple[tuple[tuple[str, ...], tuple[Phrase, ...]], ...]


@dataclass(frozen=True)
class PhrasedPhoto:
    """A photo with reference captions whose phrases have boxes.

    Args:
        captions: Words of each reference caption, and its phrases.
        match: Returns the phrases of any caption of this photo, such as a generated one; empty for
            a caption that is known to be wrong.
    """

    name: str
    load: Callable[[], LoadedImage]
    captions: Captions
    match: Callable[[Sequence[str]], tuple[Phrase, ...]]


def scene_photos(scenes: Scenes) -> Iterator[PhrasedPhoto]:
    """Yield scenes; each visual word is a phrase with the box of its object.

    Example:
        >>> [photo] = scene_photos(Scenes(1, split="test"))
        >>> words, phrases = photo.captions[0]
        >>> [phrase.text for phrase in phrases][:2] == list(words)[1:3]
        True
    """
    for index in range(len(scenes)):
        match = partial(_scene_phrases, scenes, index)
        captions = tuple((c.words, match(c.words)) for c in scenes.captions(index))
        name = f"{scenes.split}-{index}"
        yield PhrasedPhoto(name, partial(_load_scene, scenes, index, name), captions, match)


def _load_scene(scenes: Scenes, index: int, name: str) -> LoadedImage:
    return LoadedImage(scenes.image(index).permute(1, 2, 0).numpy(), name=name)


def _scene_phrases(scenes: Scenes, index: int, words: Sequence[str]) -> tuple[Phrase, ...]:
    """Return a phrase per visual word of a true caption."""
    world = scenes.world(index)
    verdict = verify_caption(" ".join(words), world)
    if not verdict.true:
        return ()
    boxes = [tuple(box) for box in (object_boxes(world, scenes.size) / scenes.size).tolist()]
    return tuple(
        Phrase(start, 1, tuple(boxes[thing] for thing in things), (), words[start])
        for start, things in enumerate(verdict.objects)
        if things
    )


def annotated_photos(
    data: str | os.PathLike[str], images: str | os.PathLike[str]
) -> Iterator[PhrasedPhoto]:
    """Yield photos with phrases of `read_phrases`, or of `read_flickr30k_entities` for a folder.

    Raises:
        FileNotFoundError: If no photo of the data is in the folder.
    """
    source = Path(data)
    annotated = read_flickr30k_entities(source) if source.is_dir() else read_phrases(source)
    present = [name for name in sorted(annotated) if (Path(images) / name).is_file()]
    if not present:
        raise FileNotFoundError(f"{images} holds none of the {len(annotated)} photos of {source}")
    for name in present:
        captions = tuple(annotated[name].items())
        known = tuple(phrase for _, phrases in captions for phrase in phrases)
        match = partial(match_phrases, annotated=known)
        yield PhrasedPhoto(name, partial(read_image, Path(images) / name), captions, match)


def coco_photos(
    instances: str | os.PathLike[str],
    captions: str | os.PathLike[str],
    images: str | os.PathLike[str],
) -> Iterator[PhrasedPhoto]:
    """Yield photos of COCO, of `instances_NAME.json` and `captions_NAME.json`.

    A phrase is the name of a category in a caption, with all boxes of the category.

    Only names of categories count, in singular or plural; "man" is no phrase of the category
    person. Crowd regions have no boxes.

    Raises:
        ValueError: If a file is not as COCO's.
        FileNotFoundError: If a file, or all photos are missing.
    """
    photos = sorted(read_instance_file(Path(instances)), key=lambda photo: photo.file)
    entries = {entry.file: entry for entry in read_captions(captions, format="coco")}
    present = [photo for photo in photos if (Path(images) / photo.file).is_file()]
    if not present:
        raise FileNotFoundError(f"{images} holds none of the {len(photos)} photos of {instances}")
    for photo in present:
        match = partial(_category_phrases, _category_boxes(photo))
        sentences = entries[photo.file].captions if photo.file in entries else ()
        lines = (tuple(split_words(text)) for text in sentences)
        path = Path(images) / photo.file
        yield PhrasedPhoto(photo.file, partial(read_image, path),
                           tuple((words, match(words)) for words in lines), match)  # fmt: skip


def _category_boxes(photo: CocoImage) -> dict[str, tuple[Box, ...]]:
    """Return the boxes of each category relative to the photo, without crowds."""
    height, width = photo.size
    boxes: dict[str, tuple[Box, ...]] = {}
    for annotated in photo.objects:
        if annotated.box is not None and not annotated.crowd:
            left, top, right, bottom = annotated.box
            box = (left / width, top / height, right / width, bottom / height)
            boxes[annotated.category] = (*boxes.get(annotated.category, ()), box)
    return boxes


def _category_phrases(
    boxes: Mapping[str, tuple[Box, ...]], words: Sequence[str]
) -> tuple[Phrase, ...]:
    """Return the names of categories in a caption, the longest first."""
    text = " ".join(words)
    phrases = list[Phrase]()
    for name in sorted(boxes, key=len, reverse=True):
        for match in re.finditer(rf"(?<!\S){re.escape(name)}(?:s|es)?(?!\S)", text):
            start = len(text[: match.start()].split())
            count = len(match[0].split())
            taken = any(p.start < start + count and start < p.start + p.num_words for p in phrases)
            if not taken:
                phrases.append(Phrase(start, count, boxes[name], (name,), match[0]))
    return tuple(sorted(phrases))
