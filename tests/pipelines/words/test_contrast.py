"""Contrast of two prompts: the ratio of eager attention, and what is refused."""

from typing import Any

import pytest
import torch
from tiny_vlms import IMAGE, WORDS
from torch import Tensor
from vlm_runs import eager, greedy, options, photo, prompt_of, replays, sharp

import visattn
from visattn.pipelines.words.contrast import contrast_maps
from visattn.pipelines.words.controls import Controls
from visattn.pipelines.words.language_model import PhotoProcessor
from visattn.pipelines.words.replay import WordReplay, replay_tokens
from visattn.viz.html.caption_page import caption_html

OTHER = "w7 w8 w9"


def other_process(family: str) -> PhotoProcessor:
    model, processor = sharp(family)
    return PhotoProcessor(model, processor, OTHER)


def eager_rows(family: str, replay: WordReplay, prompt: str) -> Tensor:
    """Return the rows of the words over the image tokens behind a prompt, mean of layers, heads."""
    model: Any = sharp(family)[0]
    _, processor = sharp(family)
    inputs = processor(text=f"{IMAGE['image_token']}{prompt}", images=photo().pixels,
                       return_tensors="pt")  # fmt: skip
    ids = torch.cat([inputs.input_ids, replay.token_ids[None, :-1]], 1)
    with eager(model), torch.no_grad():
        output = model(input_ids=ids, pixel_values=inputs.pixel_values, output_attentions=True)
    columns = (ids[0] == model.config.image_token_index).nonzero()[:, 0]
    weights = torch.stack(output.attentions)[:, 0, :, -len(replay.token_ids) :]
    return weights.mean((0, 1))[:, columns]


def test_maps_are_the_ratio_of_eager_attention() -> None:
    replay = greedy("llava")
    maps = contrast_maps(replay, other_process("llava"))
    own, other = (eager_rows("llava", replay, each) for each in (prompt_of("llava") or "", OTHER))
    expected = torch.stack(
        [own[slice(*span)].mean(0) / other[slice(*span)].mean(0) for span in replay.spans]
    )
    grid = replay.placement.grid_size
    torch.testing.assert_close(maps, expected.unflatten(1, grid), atol=1e-4, rtol=1e-4)
    assert float((maps - 1).abs().max()) > 0.05


def test_layers_and_heads_are_those_of_both() -> None:
    [replay] = replays("llava", keep_heads=True)
    chosen = Controls(layers=(1,), heads=(2,))
    maps = contrast_maps(replay, other_process("llava"), chosen)
    other = replay_tokens(replay.image, replay.token_ids, other_process("llava"),
                          keep_heads=True)  # fmt: skip
    words: list[Tensor] = []
    for each in (replay, other):
        assert each.head_rows is not None
        rows = each.head_rows[1, 2].float()
        words.append(torch.stack([rows[slice(*span)].mean(0) for span in replay.spans]))
    expected = (words[0] / words[1]).unflatten(1, replay.placement.grid_size)
    torch.testing.assert_close(maps, expected, atol=1e-4, rtol=1e-4)
    assert float((maps - contrast_maps(replay, other_process("llava"))).abs().max()) > 1e-2


def test_captions_name_prompt_and_quantity() -> None:
    model, processor = sharp("llava")
    [caption] = visattn.caption(
        model, photo(), processor=processor, prompt=prompt_of("llava"), contrast=OTHER,
        **options("llava"),
    )  # fmt: skip
    assert caption.quantity == "ratio to the other prompt"
    assert caption.maps.metadata["contrast"] == f"<image>{OTHER}"
    assert "divided by the attention of the same words behind" in caption.notes
    [plain] = visattn.caption(
        model, photo(), processor=processor, prompt=prompt_of("llava"), **options("llava")
    )
    assert caption.words == plain.words
    assert caption.gates == plain.gates  # shares on the photo stay those of the attention
    page = caption_html(photo(), caption)
    assert "as much as behind the other prompt" in page


def test_what_has_no_contrast_is_refused() -> None:
    replay = greedy("llava")
    model, processor = sharp("llava")
    with pytest.raises(ValueError, match="contrast must be another prompt"):
        contrast_maps(replay, PhotoProcessor(model, processor, prompt_of("llava")))
    with pytest.raises(ValueError, match="leave out relative and without_sinks"):
        contrast_maps(replay, other_process("llava"), Controls(relative=True))
    with pytest.raises(ValueError, match="do not depend on the prompt"):
        contrast_maps(greedy("blip"), other_process("blip"))
    common: dict[str, Any] = {"processor": processor, "contrast": OTHER}
    for more, reason in (
        ({"method": "tam"}, "contrast divides attention, not the maps of tam"),
        ({"without_sinks": True}, "without_sinks cannot be combined with contrast"),
        ({"contrast": [OTHER, WORDS[0]]}, "contrast must be one prompt for all photos"),
    ):
        with pytest.raises(ValueError, match=reason):
            visattn.caption(model, photo(), **{**common, **more})
