"""Refusals of models, processors and prompts whose maps could not be right."""

from typing import Any

import pytest
import torch
import transformers as hf
from tiny_vlms import LLAMA, PROMPT, build
from torch import nn
from vlm_runs import greedy, photo

from visattn.pipelines.words import checks
from visattn.pipelines.words.checks import check_captioner, replay_memory, why_no_image_tokens
from visattn.pipelines.words.language_model import PhotoProcessor, pixel_name
from visattn.pipelines.words.placement import token_owners
from visattn.pipelines.words.recorded_pass import check_log_probs
from visattn.pipelines.words.replay import generate_and_replay


def caption(model: nn.Module, processor: Any, **kwargs: Any) -> Any:
    options = {"prompt": PROMPT, "max_new_tokens": 2, **kwargs}
    return generate_and_replay(model, photo(), processor=processor, **options)


def test_a_model_that_was_compiled_in_place_runs_uncompiled() -> None:
    model, processor = build("llava")
    model.compile(backend=lambda *_: pytest.fail("it was compiled"))
    assert caption(model, processor)[0][0].words
    assert model._compiled_call_impl is not None


def test_text_only_models_are_refused() -> None:
    model = hf.LlamaForCausalLM(hf.LlamaConfig(**LLAMA))
    with pytest.raises(TypeError, match="LlamaForCausalLM takes input_ids.*text-only"):
        caption(model, build("llava")[1])


def test_models_that_do_not_generate_are_refused() -> None:
    with pytest.raises(TypeError, match="Linear has no generate"):
        check_captioner(nn.Linear(1, 1))


def test_a_tokenizer_is_no_processor() -> None:
    model, processor = build("llava")
    with pytest.raises(TypeError, match="processor must be .* AutoProcessor.from_pretrained"):
        caption(model, processor.tokenizer)
    with pytest.raises(TypeError, match="got NoneType"):
        caption(model, None)


def test_prompts_beyond_the_context_are_refused() -> None:
    model, processor = build("llava")
    model.config.text_config.max_position_embeddings = 24
    with pytest.raises(ValueError, match="fit into the 24 positions.*got .* max_new_tokens=2"):
        caption(model, processor, prompt=" ".join(["w1"] * 20))


def test_models_with_two_vision_encoders_are_refused() -> None:
    inputs = {"pixel_values": torch.zeros(1), "high_res_pixel_values": torch.zeros(1)}
    with pytest.raises(ValueError, match=r"returns .*high_res_pixel_values.*two vision encoders"):
        pixel_name(inputs)


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen3_vl"])
def test_prompts_that_end_with_the_photo_are_refused(family: str) -> None:
    """Words behind image tokens: `generate` gives them positions that no forward pass does."""
    model, processor = build(family)
    with pytest.raises(ValueError, match="must end with text.*write an instruction behind"):
        caption(model, processor, prompt=f"w1 {processor.image_token}")
    assert caption(model, processor, prompt=f"{processor.image_token} w1")
    llava, other = build("llava")  # its image tokens have one position each
    assert caption(llava, other, prompt=f"w1 {other.image_token}")


@pytest.mark.parametrize("family", ["llava", "qwen2_vl"])
def test_prompts_with_several_photos_are_refused(family: str) -> None:
    model, processor = build(family)
    token = processor.image_token
    with pytest.raises(ValueError, match="one place for its photo, got 2 times"):
        caption(model, processor, prompt=f"{token} {token} w1")


@pytest.mark.parametrize(
    ("family", "module"),
    [("blip2", "qformer"), ("idefics2", "perceiver"), ("kosmos2", "image_to_text_projection"),
     ("instructblip", "qformer")],
)  # fmt: skip
def test_maps_through_learned_queries_are_labelled(family: str, module: str) -> None:
    [note] = greedy(family).caption().maps.info.more["placement"]
    assert "learned queries" in note
    assert module in note
    assert note.endswith("an approximation")
    assert note in (greedy(family).caption().notes or "")


def test_other_log_probabilities_are_refused() -> None:
    def check(deviation: float, rounding: float) -> None:
        generated, replayed = torch.full((2,), deviation), torch.zeros(2)
        noisy = torch.full((2,), rounding)
        check_log_probs(replayed, generated, torch.zeros(2, 3), torch.float32, lambda: noisy)

    check(5e-5, rounding=0.0)
    check(1e-3, rounding=5e-4)  # rounding alone changes them by as much
    with pytest.raises(
        ValueError, match=r"differ by 0.001, more than rounding explains \(0.0001\)"
    ):
        check(1e-3, rounding=1e-6)


class Wrapper(nn.Module):
    """What peft puts around a model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.base_model = model

    def get_base_model(self) -> nn.Module:
        return self.base_model

    def generate(self, **kwargs: Any) -> Any:
        return None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.base_model(*args, **kwargs)


def test_true_reasons_are_given() -> None:
    model, processor = build("llava")
    with pytest.raises(TypeError, match=r"wrapper Wrapper: pass model.get_base_model\(\)"):
        caption(Wrapper(model), processor)
    compiled: Any = torch.compile(model, backend="eager")  # a wrapper, too
    with pytest.raises(TypeError, match=r"pass model\._orig_mod"):
        caption(compiled, processor)
    assert "attention before words" in why_no_image_tokens(model)
    assert "discrete codes" in why_no_image_tokens(nn.Sequential(hf.ChameleonVQVAE(
        hf.ChameleonVQVAEConfig(base_channels=32, num_embeddings=8, embed_dim=8,
                                channel_multiplier=[1], num_res_blocks=1))))  # fmt: skip


def test_processors_of_videos_are_refused() -> None:
    class Processor:
        video_processor = tokenizer = build("llava")[1].tokenizer

    with pytest.raises(TypeError, match="transformers for photos, .* got Processor"):
        caption(build("llava")[0], Processor())


def test_kept_bytes_are_a_fraction_of_eager_attention() -> None:
    replay = greedy("llava_next")
    model = replay.model
    memory = replay_memory(model, replay.inputs, len(replay.token_ids))
    assert replay.rows.numel() * 4 <= memory["kept"]
    assert memory["kept"] < memory["eager"] / 10


def test_weights_beyond_the_free_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    replay = greedy("llava")
    needed = replay_memory(replay.model, replay.inputs, 0)["eager"]
    layers, heads, length = 2, 4, replay.inputs["input_ids"].shape[1]
    assert needed == layers * heads * length**2 * 4
    monkeypatch.setattr(checks, "free_memory", lambda _: needed)
    replay.run()
    monkeypatch.setattr(checks, "free_memory", lambda _: needed - 1)
    with pytest.raises(ValueError, match="attention weights .* are free on cpu: use the method"):
        replay.run(differentiable=True)
    replay.run(sites=())  # keeps none


def test_pixels_of_several_tokens_are_seen_as_shared() -> None:
    pixels = torch.rand(4, requires_grad=True)
    states = torch.stack([pixels[:2].sum().expand(3), pixels[1:3].sum().expand(3)])
    owners, share = token_owners(states, pixels)
    assert owners.tolist() == [0, -2, 1, -1]
    assert float(share) == pytest.approx(1 / 3)


def test_a_processor_without_photos_is_refused() -> None:
    process = PhotoProcessor(*build("llava"), prompt=PROMPT)
    assert process.text == f"<image>{PROMPT}"
    with pytest.raises(ValueError, match="pixel_values, .* image_patches, got input_ids"):
        pixel_name({"input_ids": torch.zeros(1, 1)})
