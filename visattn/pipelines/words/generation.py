"""`model.generate`, heard word by word, and once more with each word forced.

    generate:  forward pass           ->  logits processors      ->  a token, and so on
    heard:     last rows of attention,    the texts that these
               and logits                 rows continue
    forced:    gradients of the rows  <-  log-probability        ->  the known token

Beams move from row to row, and an assistant suggests several tokens at once; so all is kept by the
text that a row continues, and read when the final text is known.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from visattn.pipelines.words.image_tokens import ImageTokens
from visattn.pipelines.words.language_model import ONE_TEXT, run_generate
from visattn.recording.attention_call import ALL, AttentionCall
from visattn.recording.frozen import frozen
from visattn.recording.interception import OnCall, attention_calls, in_this_run

_BYTES = 8  # of an id
_Rows = dict[str, Float[Tensor, " i"]]


@dataclass(frozen=True, eq=False)
class GeneratedText:
    """A generated text.

    Args:
        tokens: Ids of its tokens, with that of the end.
        log_probs: Log-probability of each, in nats, before any processing.
        sites: Attention layers in which words read image tokens, in their order.
        rows: Attention to the image tokens with which each token was chosen, mean over heads.
        mixing: If these are learned queries, their attention over the placed tokens: the mean over
            layers and heads.
    """

    tokens: Int[Tensor, " t"]
    log_probs: Float[Tensor, " t"]
    sites: tuple[str, ...]
    rows: Float[Tensor, "site t i"]
    mixing: Float[Tensor, "i _p"] | None


def generate(
    model: nn.Module,
    inputs: dict[str, Any],
    options: dict[str, Any],
    image: ImageTokens,
    special_ids: frozenset[int],
    heads: Sequence[int] | None = None,
) -> list[GeneratedText]:
    """Generate text as `model.generate` does, with log-probability and attention of each token.

    After the special ids nothing follows but padding.

    Raises:
        ValueError: If the words cannot be heard, or a head does not exist.
    """
    own: Any = model
    end = inputs.get("eos_token_id", own.generation_config.eos_token_id)
    ends = [end] if isinstance(end, int) else [int(each) for each in end or ()]
    hearing = _Hearing(model, image, heads, ends)
    with _heard(model, hearing.enter, hearing.leave, hearing.on_call):
        output = run_generate(model, inputs, options, hearing)
    results: list[GeneratedText] = []
    for sequence in output.sequences.cpu():
        count = _length(sequence[max(hearing.start, 0) :].tolist(), special_ids)
        heard = hearing.of(sequence[: hearing.start + count])
        if heard is None:
            raise ValueError(
                f"{type(model).__name__} must run once for each word, and then call its "
                "logits_processor, so that words can be heard; such generation is not supported"
            )
        results.append(heard)
    return results


class _Pass:
    """What is asked of a forward pass, and its logits.

    A pass returns the logits of the positions alone that are asked for: the last one, or with an
    assistant those of all its suggestions; else those of all positions.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.keeps = "logits_to_keep" in inspect.signature(type(model).forward).parameters
        self.asked, self.num_tokens = 1, 0
        self.logits: list[Float[Tensor, "b v"]] = []

    def enter(self, kwargs: dict[str, Any]) -> None:
        """Begin a pass."""
        self.asked = int(kwargs.get("logits_to_keep") or 1) if self.keeps else 1
        names = ("decoder_input_ids", "input_ids", "inputs_embeds")
        given = next((kwargs[name] for name in names if isinstance(kwargs.get(name), Tensor)), None)
        self.num_tokens = 0 if given is None else given.shape[1]

    def leave(self, output: Any) -> None:
        """Take the logits of a pass."""
        if isinstance(logits := getattr(output, "logits", None), Tensor):
            self.logits = list((logits if self.keeps else logits[:, -1:]).unbind(1))

    def unpacked(
        self, name: str, weights: Float[Tensor, "g _h _r m"]
    ) -> Float[Tensor, "g _h _r m"]:
        """Return weights with an axis of queries.

        For a single query, transformers packs the heads that share keys into that axis.
        """
        layer = self.model.get_submodule(name.partition("#")[0])
        shared = getattr(layer, "num_key_value_groups", 1)
        if self.num_tokens == 1 and weights.shape[2] == shared:
            return weights.flatten(1, 2).unsqueeze(2)
        return weights


@contextmanager
def _heard(
    model: nn.Module,
    enter: Callable[[dict[str, Any]], None],
    leave: Callable[[Any], None],
    on_call: OnCall,
) -> Iterator[None]:
    """Hear the passes of a model, or of the part of it that generates, and their attention."""
    parts = [each for each in model.modules() if hasattr(each, "generation_config")]
    before = in_this_run(lambda _, _args, kwargs: enter(kwargs))
    after = in_this_run(lambda _, _args, output: leave(output))
    hooks = [each.register_forward_pre_hook(before, with_kwargs=True) for each in parts]
    hooks += [each.register_forward_hook(after) for each in parts]
    try:
        with attention_calls(model, on_call):
            yield
    finally:
        for hook in hooks:
            hook.remove()


class _Hearing(_Pass):
    """What a model does while it generates: the last argument of its `generate`, and its hooks."""

    def __init__(
        self,
        model: nn.Module,
        image: ImageTokens,
        heads: Sequence[int] | None,
        ends: Sequence[int],  # ids with which a text may leave the beam search
    ) -> None:
        super().__init__(model)
        self.image, self.heads, self.ends = image, heads, ends
        self.start = -1
        self.num_texts = 1
        self.mixing: dict[str, Float[Tensor, "_g _q _k"]] = {}
        self._weights: dict[str, Float[Tensor, "_g _h _r _m"]] = {}
        self._open: dict[bytes, Float[Tensor, " v"]] = {}
        self._is_new = True
        self._log_probs: dict[int, float] = {}
        self._rows: dict[int, _Rows] = {}

    def enter(self, kwargs: dict[str, Any]) -> None:
        super().enter(kwargs)
        self._weights, self._is_new = {}, True

    def on_call(self, call: AttentionCall) -> None:
        """Take the last rows of words, and what learned queries read before them."""
        if call.name in self.image.between and call.name not in self.mixing:
            self.mixing[call.name] = call.proved_weights()[0].float().mean(1).cpu()
        elif call.name in self.image.sites:
            last = ALL if self.num_tokens == 1 else slice(-self.asked, None)
            self._weights[call.name] = self.unpacked(call.name, call.proved_weights(ALL, last)[0])

    def __call__(self, ids: Int[Tensor, "b n"], scores: Tensor) -> Tensor:
        """Keep what was heard under the text of each row; return the scores unchanged."""
        texts = [row.numpy().tobytes() for row in ids.cpu()]
        if self.start < 0:
            self.start, self.num_texts = ids.shape[1], len(texts)
        for text in texts:
            self._close(text[:-_BYTES], int.from_bytes(text[-_BYTES:], "little"))
        if not self.logits:
            return scores
        if self._is_new:  # texts of the pass before are closed
            self._open, self._is_new = {}, False
        self._keep_rows(texts, ids.shape[1] - self.start)
        self._open.update(zip(texts, self.logits.pop(0).float().log_softmax(-1), strict=True))
        for text in texts:
            for end in self.ends:
                self._close(text, end)
        return scores

    def _keep_rows(self, texts: Sequence[bytes], words: int) -> None:
        """Keep the rows of one position, behind which keys of suggested tokens may follow."""
        own: list[_Rows] = [{} for _ in texts]
        left = len(self.logits)
        for site, weights in self._weights.items():
            if weights.shape[2] < left:
                continue
            # bmm has the heads on the batch axis: one text after the other in both cases
            rows = weights[:, :, -left].reshape(len(texts), -1, weights.shape[-1]).float()
            rows = rows[:, select_heads(self.heads, rows.shape[1])].mean(1)
            placed = self.image.of_row(rows, words + left - 1).cpu()
            for kept, row in zip(own, placed, strict=True):
                kept[site] = row
        self._rows |= {hash(text): rows for text, rows in zip(texts, own, strict=True)}

    def _close(self, text: bytes, token: int) -> None:
        values = self._open.get(text)
        if values is not None:
            key = hash(text + token.to_bytes(_BYTES, "little"))
            self._log_probs[key] = float(values[token])

    def of(self, sequence: Int[Tensor, " n"]) -> GeneratedText | None:
        """Return what was heard of a text; None if it was not heard."""
        text = sequence.numpy().tobytes()
        self._close(text[:-_BYTES], int(sequence[-1]))
        ends = range(_BYTES * self.start, len(text), _BYTES)
        log_probs = [self._log_probs.get(hash(text[: end + _BYTES])) for end in ends]
        steps = [self._rows.get(hash(text[:end])) for end in ends]
        if self.start < 0 or None in log_probs or None in steps:
            return None
        heard = [step for step in steps if step is not None]
        sites = tuple(site for site in heard[0] if all(site in step for step in heard))
        rows = torch.stack([torch.stack([step[site] for step in heard]) for site in sites])
        tokens = sequence[self.start :]
        return GeneratedText(tokens, torch.tensor(log_probs), sites, rows, self._mixed())

    def _mixed(self) -> Float[Tensor, "i p"] | None:
        """Return what the learned queries of one text read of the placed tokens."""
        if not self.image.between:
            return None
        every = (self.mixing[name] for name in self.image.between)
        own = (each[: len(each) // self.num_texts] for each in every)
        # of several images, each reads its own keys alone
        mixed = torch.stack([torch.block_diag(*each) for each in own]).mean(0)
        return mixed[:, self.image.placement.columns]


class _Forcing(_Pass):
    """Makes `generate` write a known text, and takes its log-probabilities and gradients."""

    def __init__(
        self,
        model: nn.Module,
        tokens: Int[Tensor, " t"],
        image: ImageTokens | None,  # None if no gradients are asked for
        heads: Sequence[int] | None,
    ) -> None:
        super().__init__(model)
        self.tokens, self.image, self.heads = tokens, image, heads
        self.log_probs: list[float] = []
        self.rows: list[_Rows] = []
        self._nodes: dict[str, Float[Tensor, "_g _h _r _m"]] = {}

    def enter(self, kwargs: dict[str, Any]) -> None:
        super().enter(kwargs)
        self._nodes = {}
        torch.set_grad_enabled(self.image is not None)  # `generate` turns it off

    def on_call(self, call: AttentionCall) -> Tensor | None:
        """Let the model go on from weights whose gradient is asked for."""
        if self.image is None or call.name not in self.image.sites:
            return None
        own = call.weights()
        if not own.requires_grad:  # the first layer, or given by a cache
            own = own.detach().requires_grad_()
        self._nodes[call.name] = own
        return own

    def __call__(self, ids: Int[Tensor, "1 n"], scores: Float[Tensor, "1 v"]) -> Tensor:
        """Return scores that leave one token."""
        token = int(self.tokens[len(self.log_probs)])
        log_prob = self.logits[-1][0].float().log_softmax(-1)[token]
        if self.image is not None:
            self.rows.append(self._gradients(log_prob, self.image))
        self.log_probs.append(float(log_prob.detach()))
        torch.set_grad_enabled(False)
        return torch.full_like(scores, -torch.inf).index_fill(1, ids.new_tensor([token]), 0.0)

    def _gradients(self, log_prob: Float[Tensor, ""], image: ImageTokens) -> _Rows:
        nodes, found = list(self._nodes.values()), _Rows()
        gradients = torch.autograd.grad(log_prob, nodes, materialize_grads=True)
        for (name, node), gradient in zip(self._nodes.items(), gradients, strict=True):
            product = (node.detach() * gradient).clamp(min=0)
            rows = self.unpacked(name, product)[:, :, -1].flatten(0, 1)
            mean = rows[select_heads(self.heads, len(rows))].mean(0)
            found[name] = image.of_row(mean, len(self.log_probs)).float().cpu()
        return found


def force(
    model: nn.Module,
    inputs: dict[str, Any],
    tokens: Int[Tensor, " t"],
    image: ImageTokens | None = None,
    heads: Sequence[int] | None = None,
) -> tuple[Float[Tensor, " t"], list[_Rows]]:
    """Generate a known text again, and return the log-probability of each of its tokens.

    Args:
        model: The model.
        inputs: Its inputs, for example with other pixels.
        tokens: The text.
        image: Tokens for which gradients are asked for.
        heads: Heads whose mean they are.

    Returns:
        The log-probabilities; and, if image tokens are given, for each token of the text and each
        layer the positive part of attention times gradient. A log-probability depends on the row of
        its word through its own pass alone: what that continues was computed before.

    Source:
        Chefer, Gur and Wolf 2021, arXiv:2103.15679, equation 5, for the row of a word.
    """
    forcing = _Forcing(model, tokens, image, heads)
    # Caches of states, as of hybrid decoders, are written in place.
    with (
        frozen(model), torch.autograd.graph.allow_mutation_on_saved_tensors(),
        _heard(model, forcing.enter, forcing.leave, forcing.on_call),
    ):  # fmt: skip
        run_generate(model, inputs, {**ONE_TEXT, "max_new_tokens": len(tokens)}, forcing)
    return torch.tensor(forcing.log_probs), forcing.rows


def select_heads(heads: Sequence[int] | None, count: int) -> list[int]:
    """Return indices of heads, all by default; negative ones count from the end.

    Raises:
        ValueError: If one does not exist, or none is given.
    """
    chosen = range(count) if heads is None else heads
    if not len(chosen) or not all(-count <= head < count for head in chosen):
        raise ValueError(f"heads must be from 0 to {count - 1}, got {list(chosen)}")
    return [head % count for head in chosen]


def _length(tokens: list[int], special_ids: frozenset[int]) -> int:
    """Return the number of tokens up to the first of the special tokens at the end."""
    count = len(tokens)
    while count > 1 and tokens[count - 1] in special_ids and tokens[count - 2] in special_ids:
        count -= 1
    return count
