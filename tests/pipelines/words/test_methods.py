"""Methods for words of vision-language models, on tiny random ones."""

from typing import Any

import numpy as np
import pytest
import torch
from tiny_vlms import PROMPT, build
from vlm_runs import options, photo, sharpened, whole_text, words_only

from visattn.images.reader import LoadedImage
from visattn.pipelines.words import captions
from visattn.pipelines.words.captions import PhotoWords, caption_with_transformers, read_words
from visattn.pipelines.words.spans import word_means

SMALL = photo((37, 53))


def replayed(family: str, image: LoadedImage, **more: Any) -> tuple[PhotoWords, Any]:
    """Return the replay of a caption of five words, and its model."""
    model, processor = build(family)
    model.generation_config.forced_eos_token_id = None
    [[replay]] = read_words(model, image, processor=processor, **options(family, **more))
    return replay, model


@pytest.mark.parametrize("family", ["ved", "llava"])
def test_gradient_attention_is_that_of_eager_attention(family: str) -> None:
    replay, model = replayed(family, SMALL)
    rows = replay.gradient_attention()
    model.set_attn_implementation("eager")
    for parameter in model.parameters():
        parameter.requires_grad_()
    start = torch.tensor([[1, *replay.text.tokens[:-1].tolist()]])
    whole = {**replay.inputs, "decoder_input_ids": start} if family == "ved" else whole_text(replay)
    output = model(**whole, output_attentions=True)
    count, word = len(replay.text.tokens), 2
    log_probs = output.logits[0, -count:].float().log_softmax(-1)
    eager = output.cross_attentions if family == "ved" else output.attentions
    gradients = torch.autograd.grad(log_probs[word, replay.text.tokens[word]], eager)
    row = -count + word
    expected = torch.stack([
        (weights[0, :, row] * gradient[0, :, row]).clamp(min=0).mean(0)[replay.tokens.columns]
        for weights, gradient in zip(eager, gradients, strict=True)
    ]).mean(0).detach()  # fmt: skip
    torch.testing.assert_close(rows[word], expected, atol=1e-6, rtol=1e-3)


def test_occlusion_is_zero_where_nothing_is_hidden() -> None:
    pixels = np.full((24, 40, 3), 128, np.uint8)
    block = np.indices((8, 8)).sum(0) % 2  # the mean color stays that of the ground
    pixels[8:16, 24:32] = np.where(block, 228, 28)[..., None]
    replay, _ = replayed("ved", LoadedImage(pixels))
    maps = replay.occlusion(window_cells=1)
    assert maps.shape[1:] == (3, 5)
    inside = maps[:, 1, 3].clone()
    maps[:, 1, 3] = 0
    assert float(inside.max()) > 1e-5
    assert float(maps.max()) <= 2e-6


@pytest.mark.parametrize("family", ["llava", "molmo2"])
def test_occlusion_reads_several_photos_at_once_if_they_stay_apart(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Molmo 2 counts the crops of all photos from the first, whoever joins them."""
    model, processor = build(family)
    image = photo()
    [[replay]] = read_words(sharpened(model), image, processor=processor, prompt=PROMPT,
                            max_new_tokens=2, suppress_tokens=words_only(processor, 200),
                            )  # fmt: skip
    read, sizes = replay._log_probs, list[int]()
    monkeypatch.setattr(PhotoWords, "_log_probs",
                        lambda _, photos: (sizes.append(len(photos)), read(photos))[1])  # fmt: skip
    at_once = replay.occlusion()
    assert max(sizes[1:]) == (8 if family == "llava" else 1)
    monkeypatch.setattr(captions, "_BATCH", 1)
    torch.testing.assert_close(at_once, replay.occlusion(), atol=1e-5, rtol=0)


def test_layers_have_the_numbers_of_the_model() -> None:
    """Qwen 3.5 with eight layers, of which 3 and 7 have attention weights."""
    model, processor = build("qwen3_5", text_config={
        "num_hidden_layers": 8,
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 2,
    })  # fmt: skip
    [[replay]] = read_words(model, photo(), processor=processor, prompt=PROMPT,
                            max_new_tokens=3, min_new_tokens=3,
                            suppress_tokens=words_only(processor, 200))  # fmt: skip
    assert (replay.layers, replay.num_layers) == ((3, 7), 8)
    for layers, index in (((3,), 0), ((-1,), 1)):
        torch.testing.assert_close(replay.attention(layers), replay.text.rows[index])
    caption = replay.caption("attention")
    assert "3, 7 of 8; the others have no attention weights" in caption.notes
    assert replay.caption("gradient_attention", layers=(7,)).maps.values.any()
    for layer in (1, 8, -2):
        with pytest.raises(ValueError, match=r"among 3, 7 of the 8 layers .* the others have no"):
            replay.attention((layer,))


def test_relative_attention_is_divided_by_that_of_a_neutral_prompt() -> None:
    replay, _ = replayed("llava", SMALL, prompt="w1 <image> w2")
    plain, neutral = replay.attention(), replay.neutral_row()
    assert neutral.shape == plain.shape[1:]
    ratio = word_means(plain, replay.words.spans) / neutral
    caption = replay.caption("attention", relative=True)
    drawn = replay.placement.rasterize(ratio)
    shape = drawn / drawn.sum((1, 2), keepdim=True)
    own = caption.maps.values
    torch.testing.assert_close(own / own.sum((1, 2), keepdim=True), shape)
    assert caption.notes.endswith("relative to a neutral prompt")
    with pytest.raises(ValueError, match="neutral prompt, but VisionEncoderDecoderModel takes"):
        replayed("ved", SMALL)[0].caption("attention", relative=True)


def test_attention_sinks_draw_weight_that_no_token_gets() -> None:
    model, processor = build("internvl", text_config={
        "model_type": "gpt_oss", "head_dim": 4, "sliding_window": 128,
    })  # fmt: skip
    [[replay]] = read_words(model, photo(), processor=processor, prompt=PROMPT,
                            max_new_tokens=3)  # fmt: skip
    with torch.no_grad():
        eager = model(**whole_text(replay), output_attentions=True).attentions
    count = len(replay.text.tokens)
    expected = torch.stack(
        [each[0, :, -count:][..., replay.tokens.columns].mean(0) for each in eager]
    )
    torch.testing.assert_close(replay.text.rows, expected, atol=2e-6, rtol=0)


def test_what_does_not_fit_is_refused() -> None:
    replay, _ = replayed("blip2", SMALL, prompt=PROMPT)
    with pytest.raises(ValueError, match="learned queries instead of image tokens"):
        replay.caption("gradient_attention")
    model, processor = build("llava")

    def refuse(match: str, **options: Any) -> None:
        with pytest.raises(ValueError, match=match):
            caption_with_transformers(model, SMALL, processor=processor, prompt=PROMPT,
                                      max_new_tokens=2, **options)  # fmt: skip

    refuse("relevance is only for captioners of visattn", method="relevance")
    refuse("heads must be from 0 to 3, got", heads=[4])
    refuse("relative=True needs the method attention", method="occlusion", relative=True)
