"""Methods for words of vision-language models, on tiny random ones."""

from typing import Any

import numpy as np
import pytest
import torch
from tiny_vlms import PROMPT, build
from torch import Tensor
from vlm_runs import options

from visattn.attribution.words import word_gradients
from visattn.images.reader import LoadedImage
from visattn.pipelines.word_source import with_word_maps, word_grids
from visattn.pipelines.words.methods import ReplayedWords
from visattn.pipelines.words.replay import WordReplay, generate_and_replay

GRADIENT = ("gradient_attention", "relevance", "gradient_embedding", "gradcam")


def photo(seed: int = 0, size: tuple[int, int] = (37, 53)) -> LoadedImage:
    rng = np.random.default_rng(seed)
    return LoadedImage(rng.integers(0, 256, (*size, 3), dtype=np.uint8))


def replayed(family: str, image: LoadedImage, **more: Any) -> tuple[WordReplay, Any]:
    """Return the replay of a caption of five words, and its model."""
    model, processor = build(family)
    model.generation_config.forced_eos_token_id = None
    [[replay]] = generate_and_replay(model, image, processor=processor, **options(family, **more))
    return replay, model


def maps_of(replay: WordReplay, method: str, **selected: Any) -> Tensor:
    return word_grids(ReplayedWords(replay), method, **selected).values


@pytest.mark.parametrize("family", ["ved", "llava", "git"])
def test_gradients_equal_those_of_eager_attention(family: str) -> None:
    replay, model = replayed(family, photo())
    run, word = ReplayedWords(replay).run(), 2
    gradients = word_gradients(run, word)
    model.set_attn_implementation("eager")
    for parameter in model.parameters():
        parameter.requires_grad_()
    output = model(**replay.inputs, output_attentions=True)
    logits = output.logits[0, -len(replay.token_ids) :].float()
    log_prob = logits.log_softmax(-1)[word, replay.token_ids[word]]
    if family == "ved":
        pairs = zip(output.decoder_attentions, output.cross_attentions, strict=True)
        eager = [weights for pair in pairs for weights in pair]
    else:
        eager = list(output.attentions)
    expected = torch.autograd.grad(log_prob, eager)
    assert len(run.layers) == len(eager)
    for layer, own_gradient, weights, gradient in zip(
        run.layers, gradients.weights, eager, expected, strict=True
    ):
        torch.testing.assert_close(layer.weights(), weights[0].detach(), atol=2e-6, rtol=0)
        torch.testing.assert_close(own_gradient, gradient[0], atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("family", ["ved", "llava", "blip", "mllama", "qwen2_vl"])
def test_each_method_has_a_map_per_word(family: str) -> None:
    replay, _ = replayed(family, photo())
    for method in ("attention", *GRADIENT):
        values = maps_of(replay, method)
        assert values.shape == (len(replay.words), *replay.placement.grid_size)
        assert bool(values.isfinite().all())
        assert float(values.min()) >= 0


def test_occlusion_is_zero_where_nothing_is_hidden() -> None:
    pixels = np.full((24, 40, 3), 128, np.uint8)
    block = np.indices((8, 8)).sum(0) % 2  # the mean color stays that of the ground
    pixels[8:16, 24:32] = np.where(block, 228, 28)[..., None]
    replay, _ = replayed("ved", LoadedImage(pixels))
    maps = maps_of(replay, "occlusion", window_cells=1)
    assert maps.shape[1:] == (3, 5)
    inside = maps[:, 1, 3].clone()
    maps[:, 1, 3] = 0
    assert float(inside.max()) > 1e-5
    assert float(maps.max()) <= 2e-6


def test_layers_and_heads_select_attention_weights() -> None:
    replay, _ = replayed("ved", photo(size=(24, 40)))
    run = replay.run(differentiable=True)
    chosen = maps_of(replay, "attention", layers=[1], heads=[0])
    rows = run.weights[replay.sites[1]][0, : len(replay.words)][
        :, replay.placement.columns
    ].detach()
    torch.testing.assert_close(chosen.flatten(1), rows, atol=2e-6, rtol=0)
    caption = with_word_maps(replay.caption(), ReplayedWords(replay), "relevance")
    assert caption.maps.info.method == "relevance"
    assert caption.gates == replay.caption().gates


def test_what_does_not_fit_is_refused() -> None:
    replay, _ = replayed("blip2", photo(), prompt=PROMPT)
    with pytest.raises(ValueError, match="learned queries instead of image tokens"):
        maps_of(replay, "relevance")
    with pytest.raises(ValueError, match="methods for words are attention, gradient_attention"):
        maps_of(replay, "rollout")
