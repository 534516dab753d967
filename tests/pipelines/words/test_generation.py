"""Maps do not depend on how text is generated, and the caller's model is left as it was."""

from typing import Any

import pytest
import torch
from tiny_vlms import build
from torch import nn
from vlm_runs import eager, greedy, options, photo, plain_generate, prompt_of, replays, sharp

from visattn.pipelines.words.replay import WordReplay, generate_and_replay

TOLERANCE = 2e-6


def assert_same(first: WordReplay, second: WordReplay) -> None:
    assert first.token_ids.tolist() == second.token_ids.tolist()
    torch.testing.assert_close(first.rows, second.rows, atol=TOLERANCE, rtol=0)
    maps = [each.caption().maps.values for each in (first, second)]
    torch.testing.assert_close(*maps, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("family", ["qwen2_vl", "gemma3"])
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
    length = longer.inputs["input_ids"].shape[1]
    assert length - int(longer.placement.columns.max()) > 12
    assert float(longer.rows[0, -1].abs().max()) == 0.0
    assert float(longer.rows[1, -1].min()) > 0.0
    torch.testing.assert_close(longer.rows[:, : len(replay.token_ids)], replay.rows,
                               atol=TOLERANCE, rtol=0)  # fmt: skip


@pytest.mark.parametrize("family", ["ved", "idefics3", "qwen2_vl", "blip"])
def test_batches_give_the_maps_of_single_photos(family: str) -> None:
    model, processor = sharp(family)
    photos = [photo(), photo((90, 180), seed=1), photo((180, 90), seed=2)]
    common: dict[str, Any] = {"processor": processor, "prompt": prompt_of(family),
                              **options(family)}  # fmt: skip
    together = generate_and_replay(model, photos, batch_size=3, **common)
    assert len(together) == len(photos)
    for image, [replay] in zip(photos, together, strict=True):
        [[alone]] = generate_and_replay(model, image, **common)
        assert_same(alone, replay)


def test_sequences_of_beams_are_alternatives() -> None:
    replayed = replays("llava", num_beams=4, num_return_sequences=3)
    with eager(sharp("llava")[0]):
        output = plain_generate("llava", num_beams=4, num_return_sequences=3)
    expected = [ids[-len(replayed[0].token_ids) :].tolist() for ids in output.sequences]
    assert [replay.token_ids.tolist() for replay in replayed] == expected


def test_sampling_draws_what_generate_draws() -> None:
    output = plain_generate("llava", do_sample=True, temperature=1.5)  # seed 3
    torch.manual_seed(3)
    [replay] = replays("llava", do_sample=True, temperature=1.5)
    assert output.sequences[0, -len(replay.token_ids) :].tolist() == replay.token_ids.tolist()


@pytest.mark.parametrize("family", ["qwen2_vl", "ved"])
def test_autocast_gives_the_maps_of_float32(family: str) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        [replay] = replays(family, max_new_tokens=1, min_new_tokens=1)
    [plain] = replays(family, max_new_tokens=1, min_new_tokens=1)
    assert not any("share pixels" in note for note in replay.notes)
    assert replay.placement.columns.tolist() == plain.placement.columns.tolist()
    torch.testing.assert_close(replay.placement.boxes, plain.placement.boxes)
    torch.testing.assert_close(replay.rows, plain.rows, atol=2e-2, rtol=0)


@pytest.mark.parametrize(
    ("family", "dtype"),
    [("llava", torch.float16), ("qwen2_vl", torch.bfloat16), ("gemma3", torch.float16)],
)
def test_16_bit_models_have_the_places_of_float32(family: str, dtype: torch.dtype) -> None:
    own, processor = build(family)
    common: dict[str, Any] = {"processor": processor, "prompt": prompt_of(family),
                              **options(family, max_new_tokens=2, min_new_tokens=2)}  # fmt: skip
    [[wide]] = generate_and_replay(own, photo(), **common)
    [[half]] = generate_and_replay(own.to(dtype), photo(), **common)
    assert half.notes == wide.notes
    assert half.placement.grid_size == wide.placement.grid_size
    assert half.placement.columns.tolist() == wide.placement.columns.tolist()
    torch.testing.assert_close(half.placement.boxes, wide.placement.boxes, atol=1e-2, rtol=0)


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


@pytest.mark.parametrize("family", ["ved", "gemma3", "blip2", "mllama"])
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
        replay.run(differentiable=True).log_probs.sum().backward()
        assert _condition(model) == before
        after = model.state_dict()
        assert list(after) == list(weights)
        assert all(torch.equal(after[name], value) for name, value in weights.items())
    finally:
        model.eval()
        first.requires_grad_()
