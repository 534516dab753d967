"""Replays that reuse the generation's keys of the prompt equal those over prompt and words."""

from typing import Any

import pytest
import torch
from tiny_vlms import PROMPT
from transformers.cache_utils import DynamicCache
from vlm_runs import greedy, options, photo, sharp

from visattn.pipelines.words.prompts import CachedPrompt
from visattn.pipelines.words.replay import WordReplay, generate_and_replay

CACHED = ("llava", "llava_next", "llava_onevision", "qwen2_vl", "qwen2_5_vl", "qwen3_vl",
          "paligemma", "gemma3", "idefics3", "smolvlm", "internvl", "deepseek_vl", "ovis2",
          "mistral3", "aya_vision", "got_ocr2")  # fmt: skip
WHOLE = ("lfm2_vl", "mllama", "git", "kosmos2", "florence2", "t5gemma2")
"""Families with other caches, resamplers or encoders of text."""
EXACT: dict[str, Any] = {"atol": 2e-6, "rtol": 0.0}


def replays(family: str, images: Any = None, **more: Any) -> list[list[WordReplay]]:
    model, processor = sharp(family)  # the window of Gemma 3 is too short for the prompt
    torch.manual_seed(5)
    return generate_and_replay(
        model, photo() if images is None else images, processor=processor,
        prompt=None if family == "gemma3" else PROMPT, **options(family, **more),
    )  # fmt: skip


def whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replay over prompt and words from now on."""
    monkeypatch.setattr(CachedPrompt, "replay_inputs", lambda *_: None)


@pytest.mark.parametrize("family", CACHED)
def test_words_alone_are_read(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    [[shorter]] = replays(family)
    assert not shorter.verified
    whole(monkeypatch)
    [[longer]] = replays(family)
    assert longer.verified
    assert shorter.token_ids.tolist() == longer.token_ids.tolist()
    torch.testing.assert_close(shorter.rows, longer.rows, **EXACT)
    assert shorter.run().log_probs.shape == shorter.log_probs.shape
    assert shorter.verified


@pytest.mark.parametrize("family", WHOLE)
def test_other_caches_are_not_reused(family: str) -> None:
    assert greedy(family).verified


@pytest.mark.parametrize("more", [
    {"num_beams": 4, "num_return_sequences": 3}, {"do_sample": True, "num_return_sequences": 2},
    {"max_new_tokens": 1, "min_new_tokens": 1}, {"cache_implementation": "static"},
    {"prompt_lookup_num_tokens": 2}, {"past_key_values": "own"},
])  # fmt: skip
def test_generation_by_any_strategy(more: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def made() -> dict[str, Any]:
        return {
            **more,
            **({"past_key_values": DynamicCache()} if "past_key_values" in more else {}),
        }

    [shorter] = replays("qwen2_vl", **made())
    assert not any(replay.verified for replay in shorter)
    whole(monkeypatch)
    [longer] = replays("qwen2_vl", **made())
    for cached, complete in zip(shorter, longer, strict=True):
        assert cached.token_ids.tolist() == complete.token_ids.tolist()
        torch.testing.assert_close(cached.rows, complete.rows, **EXACT)


@pytest.mark.parametrize("more", [{}, {"num_beams": 4, "num_return_sequences": 3}])
def test_batches_with_padding(more: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    images = [photo((180, 300)), photo((90, 200), seed=1), photo((300, 130), seed=2)]
    together = replays("qwen2_vl", images, batch_size=3, **more)
    lengths = {len(replay.inputs["input_ids"][0]) for [replay, *_] in together}
    assert len(lengths) > 1
    assert not any(replay.verified for each in together for replay in each)
    whole(monkeypatch)
    longer = replays("qwen2_vl", images, batch_size=3, **more)
    for several, completes in zip(together, longer, strict=True):
        for cached, complete in zip(several, completes, strict=True):
            torch.testing.assert_close(cached.rows, complete.rows, **EXACT)


def test_windows_that_moved_on_are_replayed_whole() -> None:
    model: Any = sharp("gemma3")[0]
    text = model.config.get_text_config()
    window = text.sliding_window
    text.sliding_window = 7
    try:
        [[replay]] = replays("gemma3")
    finally:
        text.sliding_window = window
    assert replay.verified


def test_wrong_keys_of_the_prompt_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    right = greedy("internvl")
    cut = CachedPrompt.replay_inputs

    def wrong(self: CachedPrompt, *args: Any) -> Any:
        layers = tuple((keys.flip(2), values) for keys, values in self.layers)
        return cut(CachedPrompt(layers, self.positions), *args)

    monkeypatch.setattr(CachedPrompt, "replay_inputs", wrong)
    [[replay]] = replays("internvl")
    assert replay.verified
    torch.testing.assert_close(replay.rows, right.rows, **EXACT)


def test_gradients_need_a_pass_over_the_prompt_with_the_same_words() -> None:
    [[replay]] = replays("llava")
    replay.log_probs = replay.log_probs - 1
    with pytest.raises(ValueError, match="must give the log-probabilities"):
        replay.run()
    replay.run(pixels=replay.inputs["pixel_values"])  # other pixels have other words
