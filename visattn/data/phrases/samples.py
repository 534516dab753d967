"""Photos with captions whose phrases have boxes: drawn scenes, phrase files, COCO."""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from visattn.data.captions.files import read_captions
from visattn.data.captions.vocabulary import split_words
from visattn.data.phrases.flickr30k_entities import read_flickr30k_entities
from visattn.data.phrases.phrases import match_phrases, read_phrases
from visattn.data.regions.coco_instances import CocoImage, read_instance_file
from visattn.data.scenes.dataset import Scenes
from visattn.data.scenes.render import object_boxes
from visattn.data.scenes.verify import verify_caption
from visattn.geometry.affine import Box
from visattn.images.reader import LoadedImage, read_image
from visattn.results.captions import Phrase

Captions = tuple[tuple[tuple[str, ...], tuple[Phrase, ...]], ...]


@dataclass(frozen=True)
class PhrasedPhoto:
    """A photo with reference captions whose phrases have boxes.

    Args:
        name: Its name.
        load: Reads it.
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

    Args:
        scenes: The scenes.

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
    """Yield photos with phrases from a file of phrases, or a folder of Flickr30k Entities.

    Args:
        data: JSON as `read_phrases` reads it, or a folder as `read_flickr30k_entities` reads it.
        images: Folder of the photos.

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
    """Yield photos of COCO; a phrase is the name of a category in a caption, with all its boxes.

    Only names of categories count, in singular or plural; "man" is no phrase of the category
    person. Crowd regions have no boxes.

    Args:
        instances: `instances_NAME.json`.
        captions: `captions_NAME.json`.
        images: Folder of the photos.

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
    (height, width), boxes = photo.size, dict[str, tuple[Box, ...]]()
    for each in photo.objects:
        if each.box is not None and not each.crowd:
            left, top, right, bottom = each.box
            box = (left / width, top / height, right / width, bottom / height)
            boxes[each.category] = (*boxes.get(each.category, ()), box)
    return boxes


def _category_phrases(
    boxes: Mapping[str, tuple[Box, ...]], words: Sequence[str]
) -> tuple[Phrase, ...]:
    """Return the names of categories in a caption, the longest first."""
    text, phrases = " ".join(words), list[Phrase]()
    for name in sorted(boxes, key=len, reverse=True):
        for match in re.finditer(rf"(?<!\S){re.escape(name)}(?:s|es)?(?!\S)", text):
            start, count = len(text[: match.start()].split()), len(match[0].split())
            taken = any(p.start < start + count and start < p.start + p.num_words for p in phrases)
            if not taken:
                phrases.append(Phrase(start, count, boxes[name], (name,), match[0]))
    return tuple(sorted(phrases))
