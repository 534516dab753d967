"""What is refused, before and after generation, with its reason."""

import itertools
from typing import Any

import pytest
import transformers as hf
from tiny_vlms import PROMPT, build, shrink
from torch import nn
from vlm_runs import photo

from visattn.pipelines.words.captions import read_words
from visattn.pipelines.words.language_model import as_captioner


def caption(model: Any, processor: Any, **kwargs: Any) -> Any:
    options = {"prompt": PROMPT, "max_new_tokens": 2, **kwargs}
    return read_words(model, photo(), processor=processor, **options)


class Adapted(nn.Module):
    """What peft puts around a model."""

    def __init__(self, *, is_prompt_learning: bool) -> None:
        super().__init__()
        self.own = build("llava")[0]
        config = type("Config", (), {"is_prompt_learning": is_prompt_learning})
        self.peft_config = {"default": config}

    def get_base_model(self) -> nn.Module:
        return self.own


class Omni(nn.Module):
    thinker = None

    def generate(self) -> None: ...

    def forward(self, input_ids: Any, thinker_input: Any) -> None: ...


MODELS = [
    (
        lambda: hf.LlamaForCausalLM(shrink(hf.LlamaConfig, {}, {})),
        "takes input_ids.*text-only model",
    ),
    (lambda: nn.Linear(1, 1), "must have a method generate, .* Linear has none"),
    (Omni, "pass model.thinker"),
    (
        lambda: build("blip", classes={"model": "BlipForQuestionAnswering"})[0],
        "answers questions .*; use visattn.ask",
    ),
    (lambda: Adapted(is_prompt_learning=True), "virtual tokens .* not supported; use LoRA"),
]


@pytest.mark.parametrize(("make", "match"), MODELS)
def test_models_that_are_refused(make: Any, match: str) -> None:
    with pytest.raises((TypeError, ValueError), match=match):
        as_captioner(make())


def test_adapters_of_weights_are_taken_with_their_model() -> None:
    adapted = Adapted(is_prompt_learning=False)
    assert as_captioner(adapted) is adapted.own
    assert len(caption(adapted, build("llava")[1])[0][0].text.tokens) == 2


CASES = [
    ("llava", {"processor": None}, "processor must be .* AutoProcessor.from_pretrained"),
    ("llava", {"guidance_scale": 2.0}, "mixes two runs for each word"),
    ("llava", {"prompt": "<image> <image> w1"}, "exactly one photo, got 2 times"),
    ("deepseek_vl_hybrid", {}, "pixel_values and high_res_pixel_values; models with two vision"),
    ("chameleon", {}, "no token with a position .* discrete codes"),
    ("instructblipvideo", {}, "for photos, .* got InstructBlipVideoProcessor"),
]


@pytest.mark.parametrize(("family", "kwargs", "match"), CASES)
def test_calls_that_are_refused(family: str, kwargs: dict[str, Any], match: str) -> None:
    model, processor = build(family)
    with pytest.raises((TypeError, ValueError), match=match):
        caption(model, **{"processor": processor, **kwargs})


def test_kernels_that_hide_their_weights_are_refused() -> None:
    model, processor = build("llava")
    model.config.text_config._attn_implementation_internal = "flash_attention_2"
    with pytest.raises(ValueError, match="'flash_attention_2', which .*implementation..sdpa"):
        caption(model, processor)


def test_fonts_that_cannot_be_fetched_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    model, processor = build("pix2struct")

    class Offline:
        is_vqa = True

        def __call__(self, **kwargs: Any) -> Any:
            raise FileNotFoundError

    with pytest.raises(ValueError, match="Offline draws the question .* with a font of the Hub"):
        caption(model, (Offline(), processor.tokenizer))


def test_a_compiled_model_runs_uncompiled() -> None:
    model, processor = build("llava")
    model.compile(backend=lambda *_: pytest.fail("it was compiled"))
    assert len(caption(model, processor)[0][0].text.tokens) == 2
    assert model._compiled_call_impl is not None


def test_a_text_that_reads_back_otherwise_is_refused() -> None:
    model, processor = build("llava")
    louder = itertools.count()  # with each call
    model.lm_head.register_forward_hook(lambda *args: args[2] + next(louder))
    with pytest.raises(ValueError, match="must be the same when it reads its text again"):
        caption(model, processor)
