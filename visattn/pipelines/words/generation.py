"""Generation as `model.generate` does it, heard word by word: log-probability and attention.

    generate:  forward pass           ->  logits processors      ->  a token, and so on
    heard:     last rows of attention,    the texts that these
               and logits                 rows continue

Beams move from row to row, and an assistant suggests several tokens at once; so all is kept by the
text that a row continues, and read when the final text is known.
"""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from visattn.pipelines.words.language_model import text_decoder
from visattn.recording.attention_call import ALL, AttentionCall, fused_kernels
from visattn.recording.interception import attention_calls, in_this_run

_BYTES = 8  # of an id


@dataclass(frozen=True, eq=False)
class Step:
    """The attention with which a token was chosen.

    Args:
        rows: Its row in each layer of the text decoder, over all keys: the mean over heads, or a
            row `h m` of each head; on the CPU.
        later: Keys behind the text so far: tokens that an assistant suggested.
    """

    rows: dict[str, Float[Tensor, "*_h _m"]]
    later: int


@dataclass(frozen=True, eq=False)
class GeneratedText:
    """A generated sequence.

    Args:
        sequence: Ids of the prompt and of the generated tokens.
        num_generated: Number of generated tokens.
        log_probs: Log-probability of each generated token, in nats, before any processing.
        steps: Attention of each.
        mixing: Attention `image query key`, mean over heads, of layers outside of the text decoder
            whose queries are no keys.
    """

    sequence: Int[Tensor, " n"]
    num_generated: int
    log_probs: Float[Tensor, " t"]
    steps: Sequence[Step] = ()
    mixing: dict[str, Float[Tensor, "_g _q _k"]] | None = None


def unpacked(
    model: nn.Module, call: AttentionCall, weights: Float[Tensor, "g h r m"], inputs: dict[str, Any]
) -> Float[Tensor, "g _h _r m"]:
    """Return weights with an axis of queries.

    For a single query, transformers packs the heads that share keys into that axis.
    """
    shared = getattr(model.get_submodule(call.site), "num_key_value_groups", 1)
    if _num_tokens(inputs) == 1 and weights.shape[2] == shared:
        return weights.flatten(1, 2).unsqueeze(2)
    return weights


def _num_tokens(inputs: dict[str, Any]) -> int:
    """Return the number of tokens that a pass of the text decoder reads."""
    names = ("decoder_input_ids", "input_ids", "inputs_embeds")
    given = next((inputs[name] for name in names if isinstance(inputs.get(name), Tensor)), None)
    return 0 if given is None else given.shape[1]


class _Hearing:
    """What a model does while it generates: it is its hook, its `on_call`, its logits processor.

    Args:
        model: The model.
        ends: Ids with which a text ends: it may leave the beam search with them.
        keep_heads: Whether the rows of each head are kept.
    """

    def __init__(self, model: nn.Module, ends: Sequence[int], *, keep_heads: bool) -> None:
        self.model, self.ends, self.keep_heads = model, ends, keep_heads
        self.decoder = text_decoder(model)[0]
        # A pass returns the logits of the positions alone that are asked for: the last one, or with
        # an assistant those of all its suggestions; else those of all positions.
        self.keeps = "logits_to_keep" in inspect.signature(type(model).forward).parameters
        self.start = -1
        self.num_texts = 1
        self.mixing: dict[str, Float[Tensor, "_g _q _k"]] = {}
        self._inputs: dict[str, Any] = {}
        self._asked = 1
        self._rows: dict[str, Float[Tensor, "_g _h _r _m"]] = {}
        self._logits: list[Float[Tensor, "b v"]] = []
        self._open: dict[bytes, Float[Tensor, " v"]] = {}
        self._is_new = True
        self._log_probs: dict[int, float] = {}
        self._steps: dict[int, Step] = {}

    def enter(self, _module: nn.Module, _args: Any, kwargs: dict[str, Any]) -> None:
        """Begin a forward pass."""
        self._rows, self._inputs = {}, kwargs
        self._asked = int(kwargs.get("logits_to_keep") or 1) if self.keeps else 1

    def on_call(self, call: AttentionCall) -> None:
        """Take the last rows of the text decoder, and what learned queries read before it."""
        _, _, num_queries, num_keys = call.shape
        if call.unsupported:
            return
        if not call.name.startswith(self.decoder):
            if num_queries != num_keys and call.name not in self.mixing:
                self.mixing[call.name] = call.proved_weights()[0].float().mean(1).cpu()
        elif num_queries <= num_keys:
            last = ALL if _num_tokens(self._inputs) == 1 else slice(-self._asked, None)
            weights = call.proved_weights(ALL, last)[0]
            self._rows[call.name] = unpacked(self.model, call, weights, self._inputs)

    def hear(self, _module: nn.Module, _args: Any, output: Any) -> None:
        """End a forward pass: take its logits."""
        logits = getattr(output, "logits", None)
        if isinstance(logits, Tensor):
            self._is_new = True
            kept = logits.detach() if self.keeps else logits.detach()[:, -1:]
            self._logits = list(kept.unbind(1))

    def __call__(self, ids: Int[Tensor, "b n"], scores: Tensor) -> Tensor:
        """Keep what was heard under the text of each row; return the scores unchanged."""
        texts = [row.numpy().tobytes() for row in ids.cpu()]
        if self.start < 0:
            self.start, self.num_texts = ids.shape[1], len(texts)
        for text in texts:
            self._close(text[:-_BYTES], int.from_bytes(text[-_BYTES:], "little"))
        if not self._logits:
            return scores
        if self._is_new:  # texts of the pass before are closed
            self._open, self._is_new = {}, False
        self._keep_rows(texts, len(self._logits))
        log_probs = self._logits.pop(0).float().log_softmax(-1)
        self._open.update(zip(texts, log_probs, strict=True))
        for text in texts:
            for end in self.ends:
                self._close(text, end)
        return scores

    def _keep_rows(self, texts: Sequence[bytes], left: int) -> None:
        """Keep the rows of one position, before which `left - 1` others follow."""
        own: list[dict[str, Tensor]] = [{} for _ in texts]
        for site, weights in self._rows.items():
            if weights.shape[2] < left:
                continue
            # bmm has the heads on the batch axis: one text after the other in both cases
            rows = weights[:, :, -left].reshape(len(texts), -1, weights.shape[-1]).float()
            for kept, row in zip(
                own, (rows if self.keep_heads else rows.mean(1)).cpu(), strict=True
            ):
                kept[site] = row
        for text, rows in zip(texts, own, strict=True):
            self._steps[hash(text)] = Step(rows, left - 1)

    def _close(self, text: bytes, token: int) -> None:
        values = self._open.get(text)
        if values is not None:
            key = hash(text + token.to_bytes(_BYTES, "little"))
            self._log_probs[key] = float(values[token])

    def of(self, sequence: Int[Tensor, " n"]) -> tuple[Float[Tensor, " t"], list[Step]] | None:
        """Return log-probability and attention of each token of a text; None if not heard."""
        text = sequence.numpy().tobytes()
        self._close(text[:-_BYTES], int(sequence[-1]))
        ends = range(_BYTES * self.start, len(text), _BYTES)
        log_probs = [self._log_probs.get(hash(text[: end + _BYTES])) for end in ends]
        steps = [self._steps.get(hash(text[:end])) for end in ends]
        if self.start < 0 or None in log_probs or None in steps:
            return None
        return torch.tensor(log_probs), [step for step in steps if step is not None]


@torch.no_grad()
def generate(
    model: nn.Module,
    inputs: dict[str, Any],
    special_ids: frozenset[int],
    generate_kwargs: dict[str, Any],
    *,
    keep_heads: bool = False,
) -> list[GeneratedText]:
    """Generate text as `model.generate` does, with log-probability and attention of each token.

    After the special ids nothing follows but padding.

    Raises:
        ValueError: If the attention is hidden in a kernel, or the words cannot be heard.
    """
    from transformers import GenerationMixin

    name = type(model).__name__
    for kernel in fused_kernels(model).values():
        raise ValueError(
            f"the attention of {name} must run as 'sdpa' or 'eager' to be recorded, got "
            f"{kernel!r}, which hides its weights: call model.set_attn_implementation('sdpa')"
            "; 'eager' if it has soft caps"
        )
    # Some models write into the inputs of `generate`, as BLIP does; later passes need them.
    owned = {name: value.clone() if isinstance(value, Tensor) else value
             for name, value in inputs.items()}  # fmt: skip
    own: Any = model
    end = generate_kwargs.get("eos_token_id", own.generation_config.eos_token_id)
    ends = [end] if isinstance(end, int) else [int(each) for each in end or ()]
    hearing = _Hearing(model, ends, keep_heads=keep_heads)
    kwargs = {**generate_kwargs, "return_dict_in_generate": True}
    kwargs["logits_processor"] = [*generate_kwargs.get("logits_processor", ()), hearing]
    run, guidance = own.generate, getattr(own.generation_config, "guidance_scale", None)
    mixin: Any = GenerationMixin
    overridden = type(own).generate is not mixin.generate
    if overridden and "logits_processor" in inspect.signature(run).parameters:
        # Janus takes it, and drops it; it writes without guidance
        run, guidance = partial(mixin.generate, own), None
    kwargs["guidance_scale"] = guidance = generate_kwargs.get("guidance_scale", guidance)
    if guidance not in (None, 1):
        raise ValueError("guidance_scale mixes two runs for each word, of which only one reads the "
                         "photo: words have no map of their own then; leave it out")  # fmt: skip
    parts = [each for each in model.modules() if hasattr(each, "generation_config")]
    hooks = [hook for each in parts for hook in (
        each.register_forward_pre_hook(in_this_run(hearing.enter), with_kwargs=True),
        each.register_forward_hook(in_this_run(hearing.hear)),
    )]  # fmt: skip
    try:
        with attention_calls(model, hearing.on_call):
            output = run(**owned, **kwargs)
    finally:
        for hook in hooks:
            hook.remove()
    results: list[GeneratedText] = []
    for sequence in output.sequences.cpu():
        length = _length(sequence[max(hearing.start, 0) :].tolist(), special_ids)
        text = sequence[: hearing.start + length]
        heard = hearing.of(text)
        if heard is None:
            raise ValueError(
                f"{name} must run once for each word, and call its logits_processor after that, so "
                "that words can be heard; this kind of generation is not supported"
            )
        mixing = {site: each[: len(each) // hearing.num_texts]
                  for site, each in hearing.mixing.items()}  # fmt: skip
        results.append(GeneratedText(text, length, *heard, mixing))
    return results


def _length(tokens: list[int], special_ids: frozenset[int]) -> int:
    """Return the number of tokens up to the first of the special tokens at the end."""
    count = len(tokens)
    while count > 1 and tokens[count - 1] in special_ids and tokens[count - 2] in special_ids:
        count -= 1
    return count
