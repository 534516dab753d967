"""Maps of several texts on one image, which share one scale."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from visattn.images.reader import ImageLike
from visattn.pipelines.inputs import PreparedImages
from visattn.results.attention_map import AttentionMap, empty_map_reason


def maps_of_texts(
    prepare: Callable[[list[ImageLike]], PreparedImages],
    explain: Callable[..., list[AttentionMap]],
    batches: Sequence[list[ImageLike]],
    num_texts: int,
) -> list[list[AttentionMap]]:
    """Return for each text a map of each image; images are prepared once.

    Args:
        prepare: From images to inputs.
        explain: From inputs and the index of a text as `target` to maps.
        batches: Images.
        num_texts: Number of texts.
    """
    maps: list[list[AttentionMap]] = [[] for _ in range(num_texts)]
    for images in batches:
        batch = prepare(images)
        for index, of_text in enumerate(maps):
            of_text += explain(batch, target=index)
    return maps


def _single(value: float | Sequence[float | None] | None) -> float | None:
    return value if isinstance(value, int | float) else None


def stack_texts(maps: Sequence[Sequence[AttentionMap]], texts: Sequence[str]) -> list[AttentionMap]:
    """Return one `AttentionMap` `[t, y, x]` for each image, with a label for each text.

    Args:
        maps: For each text, a map of each image.
        texts: The texts.

    Example:
        >>> pair = [[AttentionMap(torch.full((2, 3), value), "legrad", "gradient")]
        ...         for value in (1.0, 4.0)]
        >>> [both] = stack_texts(pair, ["a dog", "a cat"])
        >>> both[1].info.label, both.display_range()
        ('a cat', (0.0, 4.0))
    """
    stacked: list[AttentionMap] = []
    for of_image in zip(*maps, strict=True):
        values = torch.stack([each.values for each in of_image])
        info = replace(
            of_image[0].info,
            target=list(range(len(texts))),
            class_name="",
            score=[_single(each.info.score) for each in of_image],
            cosine=[_single(each.info.cosine) for each in of_image],
            texts=list(texts),
            empty=empty_map_reason(values),
        )
        stacked.append(replace(of_image[0], values=values, labels=tuple(texts), info=info))
    return stacked
