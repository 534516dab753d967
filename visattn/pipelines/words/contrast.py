"""Contrast of two prompts: attention of words divided by that of the same words behind another."""

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from visattn.pipelines.words.controls import Controls
from visattn.pipelines.words.language_model import PhotoProcessor
from visattn.pipelines.words.replay import WordReplay, replay_tokens
from visattn.results.captions import Caption
from visattn.results.info import MapInfo

CONTRAST = "contrast"
"""Name of this method."""

NEUTRAL_PROMPT = "Write a general description of the image."
"""The neutral prompt of Zhang et al. 2025."""

_LEAST = 1e-12
_ALIKE = 1e-5  # maps that rounding alone tells apart
_ALL = Controls()


def contrast_maps(
    replay: WordReplay, process: PhotoProcessor, controls: Controls = _ALL
) -> Float[Tensor, "w gy gx"]:
    """Return the attention of each word divided by that of the same word behind another prompt.

    The model reads the words of the caption behind the other prompt, as if it had generated them.
    A cell of 1 draws as much attention behind both prompts. The replay must have the rows of single
    heads if heads are selected, and `process` the other prompt.

    Raises:
        ValueError: If the prompts are the same, image tokens of both lie elsewhere, or words are
            corrected in another way too.

    Source:
        Zhang et al. 2025, arXiv:2502.17422, relative attention: the attention of the token that
        begins the answer, divided by that behind a neutral prompt. Here for each word, and with the
        mean of layers where they choose one.
    """
    if controls.relative or controls.without_sinks:
        raise ValueError(
            "contrast divides by the attention with another prompt: leave out relative and "
            "without_sinks, which correct rows in another way"
        )
    other = replay_tokens(
        replay.image, replay.token_ids, process, keep_heads=controls.heads is not None
    )
    if _texts(replay) == _texts(other):
        raise ValueError(
            "contrast must be another prompt than that of the caption, or all maps are 1; for "
            f"models that take questions, Zhang et al. use {NEUTRAL_PROMPT!r}"
        )
    # The tokens are the same; whether each is a word, the caption decides for both.
    pair = (replay, replace(other, spans=replay.spans))
    maps = [run.placement.rasterize(run.word_rows(controls)[0]) for run in pair]
    own, others = (torch.tensor(run.placement.geometry.matrix) for run in pair)
    if maps[0].shape != maps[1].shape or not torch.allclose(own, others):
        raise ValueError(
            "contrast compares cells of one grid, but with the other prompt the image tokens form "
            f"a grid of {tuple(maps[1].shape[1:])} instead of {tuple(maps[0].shape[1:])}"
        )
    if torch.allclose(*maps, rtol=_ALIKE, atol=0.0):
        raise ValueError(
            f"the words of {type(replay.model).__name__} do not depend on the prompt: contrast "
            "would be 1 everywhere"
        )
    return maps[0] / maps[1].clamp(min=_LEAST)


def contrast_replay(
    replay: WordReplay, process: PhotoProcessor, controls: Controls = _ALL
) -> Caption:
    """Return a caption with the contrast of each word; its image shares stay those of attention."""
    result = replay.caption(controls)
    values = contrast_maps(replay, process, controls)
    prompt = str(process.text or "")
    info = result.maps.info | MapInfo(
        quantity="ratio to the other prompt",
        even=[1.0, "as much as behind the other prompt"],
        more={"contrast": prompt},
    )
    maps = replace(result.maps, values=values, kind="gradient", info=info)
    notes = f"{result.notes}; divided by the attention of the same words behind {prompt!r}"
    return replace(result, maps=maps, notes=notes)


def _texts(replay: WordReplay) -> dict[str, list[Any]]:
    """Return the inputs that hold text."""
    return {
        name: value.tolist()
        for name, value in replay.inputs.items()
        if isinstance(value, Tensor) and name.endswith("input_ids")
    }
