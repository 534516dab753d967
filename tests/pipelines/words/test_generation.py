"""Maps do not depend on how text is generated, and the caller's model is left as it was."""

from typing import Any

import pytest
import torch
from torch import nn
from vlm_runs import (
    eager,
    greedy,
    model_inputs,
    options,
    plain_generate,
    replays,
    sharp,
)

from visattn.pipelines.words.captions import PhotoWords

TOLERANCE = 2e-6


def assert_same(first: PhotoWords, second: PhotoWords) -> None:
    assert first.text.tokens.tolist() == second.text.tokens.tolist()
    torch.testing.assert_close(first.text.rows, second.text.rows, atol=TOLERANCE, rtol=0)
    maps = [each.caption("attention").maps.values for each in (first, second)]
    torch.testing.assert_close(*maps, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("family", ["gemma3"])
@pytest.mark.parametrize(
    "strategy",
    [{"cache_implementation": "static"}, {"use_cache": False}, {"prefill_chunk_size": 7},
     {"prompt_lookup_num_tokens": 2}],
    ids=["static", "no cache", "chunked", "assisted"],
)  # fmt: skip
def test_strategies_give_the_maps_of_greedy_search(family: str, strategy: dict[str, Any]) -> None:
    [replay] = replays(family, **strategy)
    assert_same(greedy(family), replay)


def test_an_assistant_model_gives_the_maps_of_greedy_search() -> None:
    helper = sharp("llava")[0]
    [replay] = replays("llava", assistant_model=helper)
    assert_same(greedy("llava"), replay)


def test_a_sliding_window_hides_image_tokens() -> None:
    replay = greedy("gemma3")  # windows of 12 keys in the first of two layers
    [longer] = replays("gemma3", max_new_tokens=14, min_new_tokens=14)
    length = longer.inputs["input_ids"].shape[1] + 13
    assert length - int(longer.tokens.columns.max()) > 12
    assert float(longer.text.rows[0, -1].abs().max()) == 0.0
    assert float(longer.text.rows[1, -1].min()) > 0.0
    torch.testing.assert_close(longer.text.rows[:, : len(replay.text.tokens)], replay.text.rows,
                               atol=TOLERANCE, rtol=0)  # fmt: skip


def test_sequences_of_beams_are_alternatives() -> None:
    replayed = replays("llava", num_beams=4, num_return_sequences=3)
    with eager(sharp("llava")[0]):
        output = plain_generate("llava", num_beams=4, num_return_sequences=3)
    expected = [ids[-len(replayed[0].text.tokens) :].tolist() for ids in output.sequences]
    assert [replay.text.tokens.tolist() for replay in replayed] == expected


def test_sampling_draws_what_generate_draws() -> None:
    output = plain_generate("llava", do_sample=True, temperature=1.5)  # seed 3
    torch.manual_seed(3)
    [replay] = replays("llava", do_sample=True, temperature=1.5)
    assert output.sequences[0, -len(replay.text.tokens) :].tolist() == replay.text.tokens.tolist()


def test_log_probabilities_are_those_of_the_logits_of_generation() -> None:
    """One number per word, of beams that move and of texts that end early, without the logits."""
    model: Any = sharp("llava")[0]
    more = {"num_beams": 3, "num_return_sequences": 3, "min_new_tokens": 1, "suppress_tokens": None}
    results = replays("llava", **more)
    with torch.no_grad():
        output = model.generate(**model_inputs("llava"), **options("llava", **more),
                                return_dict_in_generate=True, output_logits=True)  # fmt: skip
    for replay, sequence, rows in zip(results, output.sequences, output.beam_indices, strict=True):
        count = len(replay.text.tokens)
        tokens = sequence[len(sequence) - len(output.logits) :][:count]
        assert replay.text.tokens.tolist() == tokens.tolist()
        steps = enumerate(zip(rows[:count], tokens, strict=True))
        own = [output.logits[step][row].log_softmax(-1)[token] for step, (row, token) in steps]
        torch.testing.assert_close(replay.text.log_probs, torch.stack(own), atol=1e-5, rtol=0)


def test_autocast_gives_the_maps_of_float32() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        [replay] = replays("qwen2_vl", max_new_tokens=1, min_new_tokens=1)
    [plain] = replays("qwen2_vl", max_new_tokens=1, min_new_tokens=1)
    assert replay.tokens.columns.tolist() == plain.tokens.columns.tolist()
    torch.testing.assert_close(replay.placement.boxes, plain.placement.boxes, atol=0.5, rtol=0)
    torch.testing.assert_close(replay.text.rows, plain.text.rows, atol=2e-2, rtol=0)


def _condition(model: nn.Module) -> dict[str, Any]:
    """Return everything of a model that a caller could notice."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    config: Any = model.config
    generation: Any = model.generation_config
    return {
        "modes": [module.training for module in model.modules()],
        "hooks": [len(getattr(module, name)) for module in model.modules() for name in hooks],
        "forwards": ["forward" in vars(module) for module in model.modules()],
        "attention": [getattr(getattr(module, "config", None), "_attn_implementation", None)
                      for module in model.modules()],
        "config": config.to_dict(),
        "generation": generation.to_dict(),
        "grads": [weight.grad is None for weight in model.parameters()],
        "requires_grad": [weight.requires_grad for weight in model.parameters()],
        "random": torch.get_rng_state().tolist(),
    }  # fmt: skip


@pytest.mark.parametrize("family", ["gemma3", "mllama"])
def test_nothing_of_the_model_changes(family: str) -> None:
    model, _ = sharp(family)
    model.train()
    next(model.children()).eval()  # a part that the caller keeps in evaluation mode
    first: Any = next(model.parameters())
    first.requires_grad_(requires_grad=False)
    try:
        weights = {name: value.clone() for name, value in model.state_dict().items()}
        before = _condition(model)
        [replay] = replays(family)
        replay.gradient_attention()
        assert _condition(model) == before
        after = model.state_dict()
        assert list(after) == list(weights)
        assert all(torch.equal(after[name], value) for name, value in weights.items())
    finally:
        model.eval()
        first.requires_grad_()
