"""Captions as pages to touch and images that move."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from visattn.data.images.reader import read_image
from visattn.data.phrases.grounding import judge_phrases
from visattn.data.phrases.phrases import Phrase, phrases_on_input, spoken_phrases
from visattn.pipelines.captioning import Caption, ImageLike
from visattn.viz.captions.animation import caption_animation, frame_size
from visattn.viz.html.caption_page import ShownCaption, ShownPhrase, caption_page


def page(
    image: ImageLike,
    caption: Caption,
    *,
    regions: Sequence[Phrase] = (),
    name: str | None = None,
    **options: Any,
) -> str:
    """Return a page of HTML, whole in itself, that shows where the model looked for each word.

    Args:
        image: The original image.
        caption: What was said of it; its `alternatives` can be chosen on the page.
        regions: Phrases that people said of the image, with boxes as shares of it. Where a
            caption says one of them again, the page shows the boxes and how well it looked there.
        name: Stands on the page; by default the image's own name.
        options: As `visattn.viz.html.caption_page.caption_page` takes them.

    Raises:
        ValueError: If a caption has no word, or was said of an image of another size.

    Example:
        >>> from visattn.geometry import Geometry
        >>> from visattn.recording import AttentionMap
        >>> maps = AttentionMap(torch.full((1, 2, 2), 0.25), "look", "words")
        >>> maps = maps.placed(Geometry.identity((30, 40)))
        >>> said = Caption(("dog",), (-0.1,), (0.9,), maps, -0.1, True)
        >>> page(np.zeros((30, 40, 3), np.uint8), said)[:15]
        '<!doctype html>'
    """
    read, geometry = read_image(image), caption.maps.geometry
    if geometry is None:
        raise ValueError("the caption's maps do not know their image; `caption` places them")
    options.setdefault("high", caption.maps.scale()[1])
    return caption_page(
        read.pixels,
        [_shown(one, regions) for one in (caption, *caption.alternatives)],
        geometry.to_dict(),
        name=Path(read.name).name if name is None else name,
        **options,
    )


def animation(image: ImageLike, caption: Caption, *, width: int = 480, **options: Any) -> bytes:
    """Return a GIF that goes through a caption word by word, showing where the model looked.

    Args:
        image: The original image.
        caption: What was said of it.
        width: In pixels.
        options: As `visattn.viz.captions.animation.caption_animation` takes them.

    Raises:
        ValueError: If the caption has no word.

    Example:
        >>> from visattn.geometry import Geometry
        >>> from visattn.recording import AttentionMap
        >>> maps = AttentionMap(torch.full((1, 2, 2), 0.25), "look", "words")
        >>> maps = maps.placed(Geometry.identity((30, 40)))
        >>> said = Caption(("dog",), (-0.1,), (0.9,), maps, -0.1, True)
        >>> animation(np.zeros((30, 40, 3), np.uint8), said)[:6]
        b'GIF89a'
    """
    pixels = read_image(image).pixels
    options.setdefault("high", caption.maps.scale()[1])
    shown = frame_size(pixels.shape[:2], width)
    maps = caption.maps.on_image(shown).numpy()
    return caption_animation(pixels, caption.words, maps, width=width, **options)


def judged_phrases(caption: Caption, regions: Sequence[Phrase]) -> tuple[ShownPhrase, ...]:
    """Return the phrases that a caption says again, and how well the model looked there.

    Args:
        caption: With maps that know their image.
        regions: Phrases that people said of the image, with boxes as shares of it.

    Example:
        >>> from visattn.geometry import Geometry
        >>> from visattn.recording import AttentionMap
        >>> maps = AttentionMap(torch.tensor([[[0.9, 0.1]]]), "look", "words")
        >>> maps = maps.placed(Geometry.identity((30, 40)))
        >>> said = Caption(("dog",), (-0.1,), (0.9,), maps, -0.1, True)
        >>> left = Phrase(0, 1, ((0.0, 0.0, 0.5, 1.0),), ("animals",), "dog")
        >>> [found] = judged_phrases(said, [left])
        >>> round(found.correctness[0], 3), found.baseline, found.pointed
        (0.9, 0.5, True)
    """
    return tuple(_judged(caption, phrase) for phrase in spoken_phrases(caption.words, regions))


def _shown(caption: Caption, regions: Sequence[Phrase]) -> ShownCaption:
    return ShownCaption(
        words=caption.words,
        maps=caption.maps.values.numpy(),
        log_probabilities=caption.log_probabilities,
        gates=caption.gates,
        score=caption.score,
        finished=caption.finished,
        phrases=judged_phrases(caption, regions),
    )


def _judged(caption: Caption, phrase: Phrase) -> ShownPhrase:
    """Return a phrase with its boxes on the image, judged by what the network saw of them."""
    shown, geometry = ShownPhrase(phrase.first, phrase.count, phrase.boxes), caption.maps.geometry
    on_input = () if geometry is None else phrases_on_input([phrase], geometry)
    for judged in judge_phrases(caption.maps.values, on_input):
        return shown._replace(
            correctness=judged.words, baseline=judged.baseline, pointed=judged.pointed
        )
    return shown
