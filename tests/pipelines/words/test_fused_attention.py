"""Models with attention that hides its weights, such as flash attention, are replayed without it.

A function of the test stands for a fused kernel: nothing that it computes can be intercepted.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tiny_vlms import PROMPT
from torch import nn
from torch.nn import functional as F
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from vlm_runs import options, photo, sharp

from visattn.pipelines.word_source import word_grids
from visattn.pipelines.words.methods import ReplayedWords
from visattn.pipelines.words.replay import WordReplay, generate_and_replay
from visattn.recording.attention_call import fused_kernels, recordable_attention
from visattn.recording.recorder import check_supports_hooks

Kernels = list[Any]


def fused(
    module: nn.Module, query: Any, key: Any, value: Any, attention_mask: Any, **kwargs: Any
) -> Any:
    groups = query.shape[1] // key.shape[1]
    causal = kwargs.get("is_causal", getattr(module, "is_causal", False))
    with torch._C.DisableTorchFunction():
        output = F.scaled_dot_product_attention(
            query, key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1),
            attn_mask=attention_mask, scale=kwargs.get("scaling"),
            is_causal=bool(attention_mask is None and query.shape[2] > 1 and causal),
        )  # fmt: skip
    return output.transpose(1, 2).contiguous(), None


def other_fused(module: nn.Module, query: Any, *args: Any, **kwargs: Any) -> Any:
    """Attention with other scores."""
    return fused(module, 1.5 * query, *args, **kwargs)


def kernels(model: nn.Module) -> Kernels:
    return [getattr(getattr(module, "config", None), "_attn_implementation", None)
            for module in model.modules()]  # fmt: skip


def replay(family: str) -> WordReplay:
    model, processor = sharp(family)
    [[result]] = generate_and_replay(model, photo(), processor=processor, prompt=PROMPT,
                                     **options(family))  # fmt: skip
    return result


@pytest.fixture(params=["llava", "ved"])
def family(request: pytest.FixtureRequest) -> Iterator[str]:
    """A model whose attention is fused."""
    for name, function in (("fused", fused), ("other_fused", other_fused)):
        ALL_ATTENTION_FUNCTIONS.register(name, function)
        ALL_MASK_ATTENTION_FUNCTIONS.register(name, sdpa_mask)
    model: Any = sharp(request.param)[0]
    configs = {id(each.config): each.config for each in model.modules() if hasattr(each, "config")}
    before = [(each, each._attn_implementation_internal) for each in configs.values()]
    model.set_attn_implementation("fused")
    yield request.param
    for config, implementation in before:
        config._attn_implementation_internal = implementation


def test_rows_equal_those_of_sdpa(family: str) -> None:
    model: Any = sharp(family)[0]
    before = kernels(model)
    assert "fused" in before
    with pytest.raises(ValueError, match="'sdpa' or 'eager' to be recorded, got 'fused'"):
        check_supports_hooks(model)
    hidden = replay(family)
    assert hidden.kernel == "sdpa"
    maps = word_grids(ReplayedWords(hidden), "gradient_attention").values
    assert kernels(model) == before
    with recordable_attention(model):
        assert not fused_kernels(model)
        shown = replay(family)
        expected = word_grids(ReplayedWords(shown), "gradient_attention").values
    assert hidden.token_ids.tolist() == shown.token_ids.tolist()
    torch.testing.assert_close(hidden.rows, shown.rows, atol=2e-6, rtol=0)
    torch.testing.assert_close(maps, expected, atol=1e-5, rtol=1e-4)


def test_another_attention_is_refused(family: str) -> None:
    model: Any = sharp(family)[0]
    model.set_attn_implementation("other_fused")
    before = kernels(model)
    with pytest.raises(ValueError, match="must give the log-probabilities of the generation"):
        replay(family)
    assert kernels(model) == before


def test_eager_attention_where_sdpa_computes_another_one(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = replay(family)

    def other_sdpa(
        module: nn.Module, query: Any, key: Any, value: Any, *args: Any, **kw: Any
    ) -> Any:
        scores = 1.5 * query
        groups = scores.shape[1] // key.shape[1]
        key, value = (each.repeat_interleave(groups, 1) for each in (key, value))
        kw = {"scale": kw.get("scaling"), "attn_mask": args[0] if args else kw["attention_mask"]}
        return F.scaled_dot_product_attention(scores, key, value, **kw).transpose(1, 2), None

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "sdpa", other_sdpa)
    again = replay(family)
    assert again.kernel == "eager"
    torch.testing.assert_close(again.rows, right.rows, atol=2e-6, rtol=0)
