"""Forward pass for the methods of words: steps, numeric gradients, and marked blocks."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d

import visattn
from visattn.attribution.words import word_attributions
from visattn.models.base import ImageEncoder, SmallEncoder
from visattn.models.captioning.captioner import Captioner
from visattn.models.captioning.knowing_when_to_look import KnowingWhenToLook
from visattn.models.captioning.sequence_recognizer import SequenceRecognizer
from visattn.models.captioning.show_attend_tell import ShowAttendTell
from visattn.models.captioning.transformer import TransformerCaptioner
from visattn.pipelines.caption_words import (
    captioner_run,
    occlude_words,
    word_log_probs,
)
from visattn.results.captions import Caption
from visattn.results.kinds import SPECIAL_TOKENS, START, WordMethod

WORDS = (*SPECIAL_TOKENS, *"abcdefg")
METHODS: tuple[WordMethod, ...] = (
    "gradient_attention", "relevance", "gradient_embedding", "gradcam", "occlusion",
)  # fmt: skip


class CellColors(ImageEncoder):
    """The mean color of each cell, in seven channels; black is 0."""

    def __init__(self) -> None:
        super().__init__((24, 40), (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
        self.channels, self.grid_size = 7, (3, 5)
        self.mix = nn.Parameter(torch.randn(7, 3))

    def forward_features(self, images: Tensor) -> tuple[Tensor, ...]:
        return (torch.einsum("kc,bcyx->bkyx", self.mix, avg_pool2d(images, 8)),)


FAMILIES: dict[str, Callable[[ImageEncoder], Captioner]] = {
    "soft": lambda encoder: ShowAttendTell(WORDS, encoder, hidden_size=11),
    "projected": lambda encoder: ShowAttendTell(
        WORDS, encoder, hidden_size=11, feature_proj_dim=13
    ),
    "adaptive": lambda encoder: KnowingWhenToLook(WORDS, encoder, hidden_size=11),
    "transformer": lambda encoder: TransformerCaptioner(
        WORDS, encoder, embed_dim=12, num_heads=3, num_layers=2
    ),
    "recognizer": lambda encoder: SequenceRecognizer(WORDS, encoder),
}


def captioner(family: str, encoder: ImageEncoder) -> Captioner:
    torch.manual_seed(2)
    return FAMILIES[family](encoder).eval()


@pytest.mark.parametrize("family", FAMILIES)
def test_run_equals_single_steps(family: str) -> None:
    model = captioner(family, SmallEncoder((24, 40), channels=8)).double()
    features, words = torch.rand(1, 8, 3, 5, dtype=torch.float64), [7, 4, 9]
    run = captioner_run(model, features, words)
    state, previous = model.start(features), START
    last = [-1] if family == "transformer" else None
    attention = word_attributions(run, "attention", layers=last)
    for index, word in enumerate(words):
        logits, state, step = model.step(state, torch.tensor([[previous]]))
        torch.testing.assert_close(run.log_probs[index], logits[0, 0].log_softmax(-1)[word])
        torch.testing.assert_close(attention[index], step.weights[0, 0])
        previous = word


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_equal_finite_differences(family: str) -> None:
    model = captioner(family, SmallEncoder((24, 40), channels=8)).double()
    features, words = torch.rand(1, 8, 3, 5, dtype=torch.float64), [7, 4, 9]
    gradients = captioner_run(model, features, words).gradients(2).attention()[-1]
    path = model.attention_site
    path = path.replace(".tap", ".attn_drop") if family == "transformer" else path
    site = model.get_submodule(path)
    for step, place in ((0, 3), (2, 11)):
        values = list[Tensor]()
        for shift in (-1e-5, 1e-5):
            calls = list[Tensor]()

            def change(
                _module: nn.Module, _args: Any, weights: Tensor, *, s: float = shift, c: Any = calls
            ) -> Tensor:
                c.append(weights)
                changed = weights.clone()
                if family == "transformer":
                    changed[0, 1, step, place] += s  # noqa: B023 (used at once)
                elif len(c) == step + 1:  # noqa: B023
                    changed[..., place] += s  # noqa: B023
                return changed

            handle = site.register_forward_hook(change)
            values.append(word_log_probs(model, features, words)[0, 2].detach())
            handle.remove()
        numeric = (values[1] - values[0]) / 2e-5
        head = 1 if family == "transformer" else 0
        gradient = gradients[head, step, place]
        torch.testing.assert_close(gradient, numeric, atol=1e-7, rtol=1e-4)


def bias_free(model: Captioner) -> Captioner:
    """Let black cells have zero embeddings and values."""
    with torch.no_grad():
        decoder: Any = model.decoder
        for module in decoder.feature_proj.modules():
            if isinstance(module, nn.Linear):
                module.bias.zero_()
        for name, parameter in model.named_parameters():
            if name.endswith("grid_positions"):
                parameter.zero_()
    return model


@pytest.mark.parametrize("cell", [(0, 0), (1, 3), (2, 4)])
@pytest.mark.parametrize("family", FAMILIES)
def test_maps_vanish_outside_of_the_only_painted_block(family: str, cell: tuple[int, int]) -> None:
    model, (row, column) = bias_free(captioner(family, CellColors())), cell
    image = np.zeros((24, 40, 3), np.uint8)
    image[8 * row : 8 * row + 8, 8 * column : 8 * column + 8] = 204
    pixels = torch.from_numpy(image).movedim(2, 0)[None]
    words = [WORDS.index(word) for word in "abcdefg"]
    run = captioner_run(model, model.encoder(pixels), words)
    for method in METHODS:
        maps = occlude_words(model, pixels, words, 1)
        if method != "occlusion":
            maps = word_attributions(run, method).unflatten(-1, (3, 5))
        inside = maps[:, row, column].clone()
        maps[:, row, column] = 0
        assert inside.max() > 0, method
        assert maps.abs().max() <= 1e-5 * inside.max() + 2e-6, method  # rounding
    attention = word_attributions(run, "attention", layers=[-1]).unflatten(-1, (3, 5))
    others = attention.flatten(1)[:, [i for i in range(15) if i != 5 * row + column]]
    torch.testing.assert_close(others, others[:, :1].expand_as(others))
    assert (attention[:, row, column] - others[:, 0]).abs().min() > 1e-6


def test_block_on_a_panorama_is_found_on_the_photo() -> None:
    model = bias_free(captioner("soft", CellColors()))
    photo = np.zeros((72, 400, 3), np.uint8)
    photo[24:48, 188:212] = 200  # the middle cell of the central crop, 120 pixels wide
    for method in ("gradient_attention", "relevance", "occlusion"):
        [maps] = visattn.explain(model, photo, method, max_length=5)
        total = maps.values.sum(0)
        if float(total.max()):
            [[y, x]] = (total == total.max()).nonzero().tolist()
            assert (y, x) == (1, 2), method


def test_a_captioner_without_a_tap_has_the_methods_that_need_no_weights() -> None:
    class Untapped(ShowAttendTell):
        attention_site = "decoder"

    model, plain = captioner("soft", CellColors()), Untapped(WORDS, CellColors(), hidden_size=11)
    plain.load_state_dict(model.state_dict())
    plain.decoder.feature_proj = nn.Sequential()  # as without a projection
    photo = np.random.default_rng(0).integers(0, 256, (24, 40, 3), np.uint8)
    unweighted: tuple[WordMethod, ...] = ("gradcam", "gradient_embedding", "occlusion")
    for method in unweighted:
        [[first], [second]] = (
            visattn.caption(each, photo, method=method, min_length=5)
            for each in (model, plain.eval())
        )
        assert torch.equal(first.maps.values, second.maps.values)
        assert first.maps.kind == "gradient"
        assert first.maps.info.more["scale"] == "each map sums to 1"
        assert first.maps.values.any()
    with pytest.raises(ValueError, match="set attention_site of the captioner"):
        visattn.caption(plain, photo, method="relevance")
    with pytest.raises(ValueError, match="set attention_site of the captioner"):
        visattn.caption(plain, photo, layers=0)


def test_layers_and_heads_are_a_number_or_a_list() -> None:
    model = captioner("transformer", SmallEncoder((24, 40), channels=8))
    photo = np.random.default_rng(4).integers(0, 256, (31, 53, 3), dtype=np.uint8)
    made = [
        visattn.explain(model, photo, "attention", layers=layers, heads=heads, max_length=3)[
            0
        ].values
        for layers, heads in ((0, 2), ([0], [2]), (0, None))
    ]
    assert torch.equal(made[0], made[1])
    assert not torch.equal(made[0], made[2])
    [said] = visattn.caption(model, photo, layers=0, heads=2, max_length=3, num_captions=2)
    assert torch.equal(said.maps.values, made[0])
    assert (said.maps.kind, "scale" in said.maps.info.more) == ("words", False)
    assert said.alternatives[0].maps.values.shape[1:] == (3, 5)
    with pytest.raises(ValueError, match="apply only to attention and gradient_"):
        visattn.caption(model, photo, method="gradcam", heads=[0])


def test_model_is_returned_as_it_was() -> None:
    model = captioner("transformer", SmallEncoder((24, 40), channels=8)).train()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    visattn.caption(model, np.zeros((24, 40, 3), np.uint8), method="relevance", max_length=3)
    assert model.training
    assert all(weight.requires_grad for weight in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, before[name])


def test_letters_of_scripts_without_spaces_are_joined_in_captions() -> None:
    torch.manual_seed(0)
    model = ShowAttendTell((*SPECIAL_TOKENS, *"狗在跑"), SmallEncoder((16, 24), channels=8))
    photo = np.random.default_rng(0).integers(0, 256, (17, 23, 3), np.uint8)
    [result] = visattn.caption(model, photo, num_captions=2, min_length=3)
    assert len(result.words) > 1
    assert result.text == "".join(result.words)
    assert Caption.from_dict(result.to_dict()).text == result.text
    assert result.alternatives[0].text == "".join(result.alternatives[0].words)
    assert "</span><span" in (result._repr_html_() or "")


def test_explain_heeds_the_batch_size_and_empty_maps_of_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = captioner("soft", SmallEncoder((24, 40), channels=8))
    photos = [np.zeros((24, 40, 3), np.uint8)] * 3
    sizes: list[int] = []
    encode = model.encoder.forward

    def counted(images: Tensor) -> Tensor:
        sizes.append(len(images))
        return encode(images)

    monkeypatch.setattr(model.encoder, "forward", counted)
    maps = visattn.explain(model, photos, "attention", batch_size=2)
    assert sizes == [2, 1]
    monkeypatch.setattr("visattn.pipelines.caption_words.word_attributions", lambda *_, **__: zeros)
    zeros = torch.zeros(len(maps[0]), 15)
    kept = visattn.explain(model, photos, "gradcam")
    assert [each.info.empty for each in kept] == ["the map is zero everywhere"] * 3
