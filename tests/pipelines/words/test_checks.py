"""What is refused, before and after generation, with its reason."""

from typing import Any

import more_vlms
import pytest
import tiny_vlms
import torch
import transformers as hf
from tiny_vlms import IDS, LLAMA, PROMPT, SMALL, TILES, VOCABULARY, build
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


def question_answering() -> nn.Module:
    text = {**SMALL, **IDS, "vocab_size": VOCABULARY, "encoder_hidden_size": 16, "sep_token_id": 2}
    config = hf.BlipConfig(text_config=text, vision_config={**SMALL, **TILES})
    return hf.BlipForQuestionAnswering(config)


MODELS = [
    (lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**LLAMA)), "takes input_ids.*text-only model"),
    (lambda: nn.Linear(1, 1), "Linear has no generate"),
    (Omni, "pass model.thinker"),
    (question_answering, "answers questions: use visattn.ask"),
    (lambda: Adapted(is_prompt_learning=True), "virtual tokens .* words have maps with LoRA"),
]


@pytest.mark.parametrize(("make", "match"), MODELS)
def test_models_that_are_refused(make: Any, match: str) -> None:
    with pytest.raises((TypeError, ValueError), match=match):
        as_captioner(make())


def test_adapters_of_weights_are_taken_with_their_model() -> None:
    adapted = Adapted(is_prompt_learning=False)
    assert as_captioner(adapted) is adapted.own
    assert caption(adapted, build("llava")[1])[0][0].words.words


CASES = [
    ("llava", {"processor": None}, "processor must be .* AutoProcessor.from_pretrained"),
    ("llava", {"guidance_scale": 2.0}, "mixes two runs for each word"),
    ("llava", {"prompt": "<image> <image> w1"}, "one place for its photo, got 2 times"),
    ("deepseek_vl_hybrid", {}, "pixel_values and high_res_pixel_values: models with two vision"),
    ("chameleon", {}, "no token with a position .* discrete codes"),
    ("instructblipvideo", {}, "for photos, .* got InstructBlipVideoProcessor"),
]


@pytest.mark.parametrize(("family", "kwargs", "match"), CASES)
def test_calls_that_are_refused(family: str, kwargs: dict[str, Any], match: str) -> None:
    torch.manual_seed(5)
    model, processor = {**tiny_vlms.FAMILIES, **more_vlms.FAMILIES}[family]()
    with pytest.raises((TypeError, ValueError), match=match):
        caption(model.eval(), **{"processor": processor, **kwargs})


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

    with pytest.raises(ValueError, match="Offline writes the question .* with a font of the Hub"):
        caption(model, (Offline(), processor.tokenizer))


def test_a_compiled_model_runs_uncompiled() -> None:
    model, processor = build("llava")
    model.compile(backend=lambda *_: pytest.fail("it was compiled"))
    assert caption(model, processor)[0][0].words.words
    assert model._compiled_call_impl is not None
