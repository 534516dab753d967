"""Methods below the language model: by hand on LLaVA, and marked blocks of other families."""

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from vlm_runs import greedy, options, photo, prompt_of, sharp

import visattn
from visattn.pipelines.word_source import word_grids
from visattn.pipelines.words.language_model import PhotoProcessor
from visattn.pipelines.words.methods import ReplayedWords
from visattn.pipelines.words.replay import WordReplay
from visattn.pipelines.words.tower import tower_maps, tower_placement
from visattn.viz.captions import caption_figure

LAST = {
    "llava": "model.vision_tower.encoder.layers.1",
    "llava_next": "model.vision_tower.encoder.layers.1",
    "qwen2_5_vl": "model.visual.blocks.1",
    "idefics3": "model.vision_model.encoder.layers.1",
    "donut": "encoder.encoder.layers.1.blocks.0",
    "blip2": "vision_model.encoder.layers.1",
}
"""The last layer of each tower that words depend on."""


def process_of(family: str) -> PhotoProcessor:
    model, processor = sharp(family)
    return PhotoProcessor(model, processor, prompt_of(family))


def scores_of_words(replay: WordReplay, model: Any, pixels: Tensor) -> tuple[list[Tensor], Any]:
    output = model(**{**replay.inputs, "pixel_values": pixels}, output_hidden_states=True)
    logits = output.logits[0, -len(replay.token_ids) :].float()
    chosen = logits.log_softmax(-1).gather(1, replay.token_ids[:, None])[:, 0]
    return [chosen[slice(*span)].sum() for span in replay.spans], output


def test_maps_of_llava_equal_those_by_hand() -> None:
    replay, model = greedy("llava"), sharp("llava")[0]
    maps, geometry = tower_maps(replay, ["tower_gradcam", "input_gradient"], num_samples=1)
    pixels = replay.inputs["pixel_values"].clone().requires_grad_()
    kept: list[Tensor] = []
    layer = model.get_submodule(LAST["llava"])
    handle = layer.register_forward_hook(lambda *call: kept.append(call[-1]))
    scores, _ = scores_of_words(replay, model, pixels)
    handle.remove()
    [features] = [each[0] if isinstance(each, tuple) else each for each in kept]
    for word, score in enumerate(scores):
        to_pixels, to_features = torch.autograd.grad(score, [pixels, features], retain_graph=True)
        by_patch = to_pixels.abs().sum((0, 1)).unflatten(0, (4, 8)).unflatten(2, (4, 8))
        torch.testing.assert_close(
            maps["input_gradient"][word], by_patch.sum((1, 3)), atol=1e-4, rtol=1e-4
        )
        weights = to_features[0, 1:].mean(0)  # without the class token
        expected = (features[0, 1:] @ weights).relu().unflatten(0, (4, 4))
        torch.testing.assert_close(
            maps["tower_gradcam"][word], expected.detach(), atol=1e-5, rtol=1e-4
        )
    assert geometry.image_size == (180, 300)


def test_smoothgrad_is_the_mean_gradient_of_noisy_photos() -> None:
    replay, model = greedy("llava"), sharp("llava")[0]
    [maps] = tower_maps(replay, ["smoothgrad"], num_samples=2)[0].values()
    original = replay.inputs["pixel_values"]
    random = torch.Generator().manual_seed(0)
    spread = 0.15 * float(original.max() - original.min())
    total = torch.zeros_like(original)
    for _ in range(2):
        pixels = original + spread * torch.randn(original.shape, generator=random)
        scores, _ = scores_of_words(replay, model, pixels.requires_grad_())
        total += torch.autograd.grad(scores[1], [pixels])[0] / 2
    by_patch = total.abs().sum((0, 1)).unflatten(0, (4, 8)).unflatten(2, (4, 8)).sum((1, 3))
    torch.testing.assert_close(maps[1], by_patch, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", LAST)
def test_marked_blocks_change_the_tokens_that_lie_there(family: str) -> None:
    """Without attention, paint changes the tokens under it: their boxes must touch the paint."""
    replay, process = greedy(family), process_of(family)
    placement, _ = tower_placement(replay, LAST[family])
    model: Any = sharp(family)[0]
    block = model.get_submodule(LAST[family])
    before = features(model, block, replay, process, photo().pixels)
    for left, top in ((110, 20), (150, 120), (185, 75)):
        painted = photo().pixels.copy()
        painted[top : top + 12, left : left + 12] = 255 - painted[top : top + 12, left : left + 12]
        after = features(model, block, replay, process, painted)
        change = (after - before).abs().amax(1)[placement.columns]
        boxes = placement.boxes[change > 0.3 * change.max()]  # resampling spreads the paint
        touched = (
            (boxes[:, 0] <= left + 12) & (boxes[:, 2] >= left)
            & (boxes[:, 1] <= top + 12) & (boxes[:, 3] >= top)
        )  # fmt: skip
        assert bool(touched.all()), (left, top, boxes[~touched])


def features(
    model: Any, block: Any, replay: WordReplay, process: PhotoProcessor, pixels: np.ndarray
) -> Tensor:
    """Return the tokens of a layer of a model whose attention returns zeros."""
    from visattn.recording.key_sources import KeySources

    inputs = {**replay.inputs, replay.pixel_name: process([Image.fromarray(pixels)])[
        replay.pixel_name]}  # fmt: skip
    kept: list[Tensor] = []
    handle = block.register_forward_hook(
        lambda *call: kept.append(call[-1][0] if isinstance(call[-1], tuple) else call[-1])
    )
    with torch.no_grad(), KeySources(model).collecting():
        model(**inputs)
    handle.remove()
    return torch.cat([each.flatten(0, -2) for each in kept])


def test_maps_are_drawn_on_the_grid_of_the_tower() -> None:
    replay = greedy("qwen2_5_vl")
    _, processor = sharp("qwen2_5_vl")
    grids = word_grids(ReplayedWords(replay), ["attention", "tower_gradcam"])
    maps = {name: each for name, (each,) in grids.items()}
    rows, columns = maps["attention"][0].shape[1:]
    assert maps["tower_gradcam"][0].shape[1:] == (2 * rows, 2 * columns)  # four patches a token
    model, _ = sharp("qwen2_5_vl")
    [caption] = visattn.caption(
        model, photo(), processor=processor, method="input_gradient", **options("qwen2_5_vl")
    )
    assert caption.maps.values.shape[1:] == (2 * rows, 2 * columns)
    assert caption.maps.geometry == maps["tower_gradcam"][1]
    assert caption.quantity == "absolute gradient of the pixels"
    assert caption_figure(photo(), caption).image.width == 1200


def test_what_has_no_place_is_refused() -> None:
    with pytest.raises(ValueError, match="have no pixels of their own"):
        tower_maps(greedy("florence2"), ["tower_gradcam"])
    with pytest.raises(ValueError, match="depend on no layer of its vision tower"):
        tower_maps(greedy("mllama"), ["input_gradient"])  # its gates are 0
    with pytest.raises(ValueError, match="methods for words are attention"):
        word_grids(ReplayedWords(greedy("llava")), ["rollout"])
