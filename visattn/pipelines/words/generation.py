"""`model.generate`, and a second pass over the text, with the attention that chose each word.

generate      photo, prompt  ->  text          by any strategy
read again    photo, prompt  ->  first word    logits, and the last row of attention
              cache, text    ->  other words   logits and rows, of many words at once
"""

import itertools
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from visattn.pipelines.words.image_tokens import ImageTokens
from visattn.pipelines.words.language_model import ONE_TEXT, encoded, run_generate
from visattn.recording.attention_call import ALL, AttentionCall
from visattn.recording.frozen import frozen, without_grad
from visattn.recording.interception import attention_calls, in_this_run

_AT_ONCE = 32  # words per pass when a text is read again, so that attention needs little memory
_SAME, _ROUNDING = 1e-3, 4.0  # tolerances when reading again: relative, and in steps of the dtype


@dataclass(frozen=True, eq=False)
class GeneratedText:
    """A generated text.

    Args:
        tokens: Ids of its tokens, including the end token.
        log_probs: Log-probability of each, in nats, before any logits processor; one row per photo
            if there are several.
        sites: Attention layers in which words attend to image tokens, in order.
        rows: Attention to the image tokens when each token was chosen, averaged over heads.
        mixing: If these are learned queries, their attention over the placed tokens, averaged over
            layers and heads.
    """

    tokens: Int[Tensor, " t"]
    log_probs: Float[Tensor, "*b t"]
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

    Only padding may follow one of the special ids.

    Raises:
        ValueError: If the model gives other logits when it reads its text again, or a head does not
            exist.
    """
    apart = not image.between  # else the attention of learned queries must be recorded, too
    inputs = encoded(model, inputs) if apart else inputs
    starts: list[int] = []
    peaks: list[Float[Tensor, " n"]] = []

    def on_scores(ids: Int[Tensor, "b n"], scores: Tensor) -> Tensor:
        starts.append(ids.shape[1])
        return scores

    def on_output(_module: nn.Module, _args: Any, output: Any) -> None:
        if isinstance(logits := getattr(output, "logits", None), Tensor):
            peaks.append(logits.amax(-1).flatten().float().cpu())

    with ExitStack() as hooks:
        for part in model.modules():
            if hasattr(part, "generation_config"):
                hooks.callback(part.register_forward_hook(in_this_run(on_output)).remove)
        output = run_generate(model, inputs, options, on_scores)
    prompt = output.sequences[0, : starts[0]].tolist()
    of_image = {prompt[column] for column in image.columns if column < len(prompt)}
    ends_with_text = bool(prompt) and prompt[-1] not in of_image
    cache = _prompt_cache(output) if apart and ends_with_text else None
    written = _Written(starts[0], torch.cat(peaks), cache)
    results: list[GeneratedText] = []
    for sequence in output.sequences.cpu():
        tokens = sequence[written.start :]
        tokens = tokens[: _length(tokens.tolist(), special_ids)]
        try:
            result = read_text(model, inputs, tokens, image, heads, written=written)
        except ValueError:
            if written.cache is None:
                raise
            # the prompt may end with another id whose embedding comes from the photo, as in Ovis 2
            written = replace(written, cache=None)
            result = read_text(model, inputs, tokens, image, heads, written=written)
        results.append(result)
    return results


@dataclass(frozen=True, eq=False)
class _Written:
    """How a text was generated.

    Args:
        start: Number of ids of the prompt.
        peaks: The largest logit of each position.
        cache: Keys and values that start with the prompt, if they can be cropped to it.
    """

    start: int
    peaks: Float[Tensor, " n"]
    cache: Any


def _prompt_cache(output: Any) -> Any:
    """Return the cache if it has one key per id of the text except the last; else None.

    States of hybrid decoders and sliding windows no longer contain the prompt.
    """
    cache, count = getattr(output, "past_key_values", None), output.sequences.shape[1] - 1
    plain = [type(each).__name__ == "DynamicLayer" and each.get_seq_length() == count
             for each in getattr(cache, "layers", ())]  # fmt: skip
    return cache if plain and all(plain) else None


def read_text(
    model: nn.Module,
    inputs: dict[str, Any],
    tokens: Int[Tensor, " t"],
    image: ImageTokens,
    heads: Sequence[int] | None = None,
    *,
    kind: Literal["attention", "gradients", "none"] = "attention",
    written: _Written | None = None,
) -> GeneratedText:
    """Run a model on a known text, as if it generated it (teacher forcing).

    Args:
        model: The model.
        inputs: Its inputs, for example with other pixels.
        tokens: The text.
        image: Its image tokens.
        heads: Heads to average over; None for all.
        kind: What to return as rows: attention, the positive part of attention times the gradient
            of each word's log-probability, or nothing.
        written: How the text was generated: the cache of the prompt is used, and the largest logits
            are compared.

    Raises:
        ValueError: If these logits differ, or a head does not exist.

    Source:
        Chefer, Gur and Wolf 2021, arXiv:2103.15679, equation 5, for the row of a word.
    """
    log_probs: list[Float[Tensor, "b _n"]] = []
    rows: dict[str, list[Float[Tensor, "_n i"]]] = {}
    mixing: dict[str, Float[Tensor, "_g _q _k"]] = {}
    nodes: dict[str, Float[Tensor, "_g _h _r _m"]] = {}
    gradients = kind == "gradients"
    num_tokens = start = end = 0  # tokens of a pass, and the range of words that it chooses

    def keep(name: str, given: Float[Tensor, "_g _h _r _m"], own: slice) -> None:
        """Keep selected rows, averaged over heads."""
        groups = getattr(model.get_submodule(name.partition("#")[0]), "num_key_value_groups", 1)
        if num_tokens == 1 and given.shape[2] == groups:  # heads that share keys, for one query
            given = given.flatten(1, 2).unsqueeze(2)
        each = given[:, :, own].flatten(0, 1).float()  # bmm has heads on the batch axis
        mean = each[select_heads(heads, len(each))].mean(0)
        rows.setdefault(name, []).append(image.of_row(mean, end - 1).cpu())

    def on_call(call: AttentionCall) -> Tensor | None:
        """Take the rows of words, and the attention of learned queries before them."""
        if call.name in image.between and call.name not in mixing:
            mixing[call.name] = call.proved_weights()[0].float().mean(1).cpu()
        if call.name not in image.sites:
            return None
        if gradients:  # the model continues from weights that require a gradient
            own = call.weights()
            nodes[call.name] = own if own.requires_grad else own.detach().requires_grad_()
            return nodes[call.name]
        last = slice(start - end, None)
        keep(call.name, call.proved_weights(ALL, ALL if num_tokens == 1 else last)[0], last)
        return None

    def decode(own: Any, input_ids: Int[Tensor, "b n"], **kwargs: Any) -> Tensor:
        """Read the prompt, then the words; `generate` calls this as its decoding loop."""
        nonlocal num_tokens, start, end
        for name in ("logits_processor", "stopping_criteria", "generation_config"):
            del kwargs[name]  # the others are inputs of the model
        output: Any = {}
        cache = written and written.cache
        if written and cache:  # without the last id, whose row of attention chooses the first word
            cache.crop(written.start - 1 - cache.get_seq_length())
            cache.batch_select_indices(torch.zeros(1, dtype=torch.long))
            kwargs["past_key_values"] = cache
        ends = range(_AT_ONCE if cache else 1, len(tokens), _AT_ONCE)
        for start, end in itertools.pairwise([0, *ends, len(tokens)]):
            more = tokens[max(start - 1, 0) : end - 1].to(input_ids).expand(len(input_ids), -1)
            input_ids = torch.cat([input_ids, more], 1)
            for _ in range(more.shape[1]):
                kwargs = own._update_model_kwargs_for_generation(  # noqa: SLF001
                    output, kwargs, is_encoder_decoder=own.config.is_encoder_decoder
                )
            if "logits_to_keep" in kwargs:
                kwargs["logits_to_keep"] = end - start
            is_first = not start and not cache
            is_cached = not is_first and kwargs.get("past_key_values") is not None
            given = own.prepare_inputs_for_generation(
                input_ids, next_sequence_length=end - start if is_cached else None,
                is_first_iteration=is_first, **kwargs,
            )  # fmt: skip
            ids = (given.get(name) for name in ("decoder_input_ids", "input_ids", "inputs_embeds"))
            num_tokens = next(each.shape[1] for each in ids if each is not None)
            with torch.set_grad_enabled(gradients):  # `generate` turns it off
                output = own(**given, return_dict=True)
                logits = output.logits[:, start - end :].float().cpu()
                ids = tokens[start:end, None].expand(len(logits), -1, 1)
                chosen = logits.log_softmax(-1).gather(2, ids)[..., 0]
                for index, log_prob in enumerate(chosen[0] if gradients else (), start - end):
                    found = torch.autograd.grad(
                        log_prob, list(nodes.values()), retain_graph=True, materialize_grads=True
                    )
                    for (name, node), gradient in zip(nodes.items(), found, strict=True):
                        product = (node.detach() * gradient).clamp(min=0)
                        keep(name, product, slice(index, index + 1 or None))
            log_probs.append(chosen.detach())
            if written:
                _check_peaks(model, logits[0].amax(-1), written.peaks, output.logits.dtype)
        return input_ids

    with ExitStack() as around:
        around.enter_context(frozen(model) if gradients else without_grad(model))
        if gradients:  # hybrid decoders modify the states in their caches in place
            around.enter_context(torch.autograd.graph.allow_mutation_on_saved_tensors())
        if kind != "none":
            around.enter_context(attention_calls(model, on_call))
        options = {**ONE_TEXT, "max_new_tokens": len(tokens), "custom_generate": decode}
        run_generate(model, inputs, options)
    every = [torch.cat(own) for own in rows.values()]
    mixed = None
    if mixing:  # with several images, each query reads only the keys of its own
        own = [torch.block_diag(*mixing[name]) for name in image.between]
        mixed = torch.stack(own).mean(0)[:, image.placement.columns]
    each = torch.stack(every) if every else torch.zeros(0, len(tokens), len(image.columns))
    return GeneratedText(tokens, torch.cat(log_probs, 1).squeeze(0), tuple(rows), each, mixed)


def _check_peaks(
    model: nn.Module, own: Float[Tensor, " n"], heard: Float[Tensor, " m"], dtype: torch.dtype
) -> None:
    """Check that the largest logit of each word also occurred during generation."""
    limit = max(_SAME, _ROUNDING * torch.finfo(dtype).eps) * own.abs().clamp(min=1)
    if not bool(((own[:, None] - heard).abs().amin(1) <= limit).all()):
        raise ValueError(
            f"the logits of {type(model).__name__} must be the same when it reads its text again, "
            "or its maps would be wrong, but they differ; please report this model"
        )


def select_heads(heads: Sequence[int] | None, count: int) -> list[int]:
    """Return indices of heads, all by default; negative ones count from the end.

    Raises:
        ValueError: If a head does not exist, or none is selected.
    """
    chosen = range(count) if heads is None else heads
    if not len(chosen) or not all(-count <= head < count for head in chosen):
        raise ValueError(f"heads must be from 0 to {count - 1}, got {list(chosen)}")
    return [head % count for head in chosen]


def _length(tokens: list[int], special_ids: frozenset[int]) -> int:
    """Return the number of tokens up to and including the first of the trailing special tokens.

    Example:
        >>> _length([5, 2, 5, 2, 0, 0], frozenset({0, 2}))
        4
    """
    count = len(tokens)
    while count > 1 and tokens[count - 1] in special_ids and tokens[count - 2] in special_ids:
        count -= 1
    return count
