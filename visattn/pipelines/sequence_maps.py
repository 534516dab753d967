"""Maps of models that give several per image: words of captioners, glimpses of glimpse models."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from visattn.images.reader import ImageLike
from visattn.models.captioning.captioner import Captioner
from visattn.models.glimpses.glimpse_model import GlimpseModel
from visattn.pipelines.explain_words import WORD_METHODS
from visattn.pipelines.scanpath import glimpses
from visattn.results.attention_map import AttentionMap, empty_map_reason
from visattn.results.info import MapInfo

SEQUENCE_METHODS = (*WORD_METHODS, "glimpses")
"""Names of the methods with several maps per image."""


def sequence_methods(model: nn.Module) -> list[str]:
    """Return the methods of a captioner or of a glimpse model; none for others."""
    if isinstance(model, Captioner):
        return list(WORD_METHODS)
    return ["glimpses"] if isinstance(model, GlimpseModel) else []


def sequence_maps(
    model: nn.Module,
    images: list[ImageLike],
    method: str,
    options: Mapping[str, Any],
    method_args: Mapping[str, Any],
) -> list[AttentionMap]:
    """Return the maps `[t, y, x]` of each image, one of the `sequence_methods` of the model.

    Args:
        model: Captioner or glimpse model.
        images: Images.
        method: Name of the method.
        options: `batch_size`, and `resize_mode` if there is one.
        method_args: Arguments of the method.
    """
    if isinstance(model, Captioner):
        maps = WORD_METHODS[method](model, images, **options, **method_args)
    else:
        maps = [scan.maps for scan in glimpses(model, images, **options, **method_args)]
    common = MapInfo(method, dict(method_args), written=("options", "signed", "empty"))
    return [
        replace(m, info=m.info | replace(common, empty=empty_map_reason(m.values))) for m in maps
    ]
