"""Generation of text by a model of transformers, with what a replay of it needs."""

import inspect
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from visattn.pipelines.words.prompt_cache import CachedPrompt, PromptWatch

_ONES = ("attention_mask", "text_attention_mask")
_REPEATED = ("cross_attention_mask",)
_OTHER_TEXT = ("qformer_input_ids", "qformer_attention_mask")


@dataclass(frozen=True, eq=False)
class GeneratedText:
    """A generated sequence.

    Args:
        sequence: Ids of the prompt and of the generated tokens.
        num_generated: Number of generated tokens.
        log_probs: Log-probability of each generated token, in nats, before any processing.
        prompt: Keys and values of the prompt; None if the generation did not keep them.
    """

    sequence: Int[Tensor, " n"]
    num_generated: int
    log_probs: Float[Tensor, " t"]
    prompt: CachedPrompt | None = None


@torch.no_grad()
def generate(
    model: nn.Module,
    inputs: dict[str, Any],
    special_ids: frozenset[int],
    generate_kwargs: dict[str, Any],
) -> list[GeneratedText]:
    """Generate text as `model.generate` does, with the log-probability of each token.

    Args:
        model: Model that generates text.
        inputs: Arguments of its `generate`.
        special_ids: Ids after which nothing follows but padding.
        generate_kwargs: Options of `generate`.
    """
    owned = {name: value.clone() if isinstance(value, Tensor) else value
             for name, value in inputs.items()}  # fmt: skip
    kwargs = {**generate_kwargs, "return_dict_in_generate": True, "output_logits": True}
    watch = PromptWatch(model)
    with watch.watching():
        output: Any = model.generate(**owned, **kwargs)  # pyright: ignore[reportCallIssue]
    prompts = None if is_encoder_decoder(model) else watch.prompts(output, inputs)
    sequences, logits = output.sequences, output.logits
    beams = getattr(output, "beam_indices", None)
    length = len(logits) if beams is None else beams.shape[1]
    results: list[GeneratedText] = []
    for row, sequence in enumerate(sequences):
        tokens = sequence[len(sequence) - length :]
        count = _length(tokens.tolist(), special_ids)
        rows = [row] * count if beams is None else beams[row, :count].tolist()
        log_probs = [
            logits[step][at].log_softmax(-1)[token]
            for step, (at, token) in enumerate(zip(rows, tokens[:count], strict=True))
        ]
        kept = sequence[: len(sequence) - length + count]
        prompt = None if prompts is None else prompts[row]
        results.append(GeneratedText(kept.cpu(), count, torch.stack(log_probs).float().cpu(),
                                     prompt))  # fmt: skip
    return results


def _length(tokens: list[int], special_ids: frozenset[int]) -> int:
    """Return the number of tokens up to the first of the special tokens at the end."""
    count = len(tokens)
    while count > 1 and tokens[count - 1] in special_ids and tokens[count - 2] in special_ids:
        count -= 1
    return count


def is_encoder_decoder(model: nn.Module) -> bool:
    """Whether generated tokens are inputs of a decoder with its own `decoder_input_ids`."""
    if getattr(model.config, "is_encoder_decoder", False):
        return True
    language_model = getattr(model, "language_model", None)
    return bool(getattr(getattr(language_model, "config", None), "is_encoder_decoder", False))


def replay_inputs(
    model: nn.Module, inputs: dict[str, Any], sequence: Int[Tensor, " n"], num_generated: int
) -> dict[str, Any]:
    """Return the inputs of one forward pass over the prompt and all generated tokens but the last.

    Args:
        model: The model.
        inputs: The inputs of `generate`, of one photo.
        sequence: Prompt and generated tokens.
        num_generated: Number of generated tokens.
    """
    parameters = inspect.signature(type(model).forward).parameters
    open_ended = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    replay = {name: value for name, value in inputs.items() if name in parameters or open_ended}
    prompt = inputs.get("input_ids")
    if is_encoder_decoder(model):
        device = next(value.device for value in inputs.values() if isinstance(value, Tensor))
        replay["decoder_input_ids"] = sequence[None, :-1].to(device)
        replay.pop("decoder_attention_mask", None)
    elif prompt is None:
        device = next(value.device for value in inputs.values() if isinstance(value, Tensor))
        replay["input_ids"] = sequence[None, :-1].to(device)
    else:
        if len(sequence) == num_generated:  # generated from embeddings: returned without prompt
            sequence = torch.cat([prompt[0].cpu(), sequence])
        replay = {
            name: _extended(model, name, value, prompt.shape[1], len(sequence) - 1)
            for name, value in replay.items()
        }
        replay["input_ids"] = sequence[None, :-1].to(prompt.device)
    if "use_cache" in parameters:
        replay["use_cache"] = False
    if "logits_to_keep" in parameters:
        replay["logits_to_keep"] = num_generated
    return replay


def _extended(model: nn.Module, name: str, value: Any, old: int, new: int) -> Any:
    """Return an input with one entry per prompt token, with entries for the generated tokens."""
    is_text = isinstance(value, Tensor) and value.ndim > 1 and value.shape[1] == old
    if not is_text or value.is_floating_point() or name in _OTHER_TEXT:
        return value
    if new <= old:
        return value[:, :new]
    added = value[:, -1:].expand(-1, new - old, *value.shape[2:])
    if name in _REPEATED:
        return torch.cat([value, added], 1)
    words_are_suffix = "paligemma" in str(getattr(model.config, "model_type", ""))
    is_one = name in _ONES or (name == "token_type_ids" and words_are_suffix)
    return torch.cat([value, torch.full_like(added, int(is_one))], 1)


def without_padding(
    text: GeneratedText, joint: dict[str, Any], single: dict[str, Any]
) -> GeneratedText:
    """Return a text of a batch without the padding at the left of its prompt.

    Args:
        text: The text.
        joint: Inputs of the batch.
        single: Inputs of this photo alone.
    """
    if "input_ids" not in joint or len(text.sequence) == text.num_generated:
        return text
    padding = joint["input_ids"].shape[1] - single["input_ids"].shape[1]
    if padding <= 0 or padding > len(text.sequence) - text.num_generated:
        return text
    prompt = None if text.prompt is None else text.prompt.without_padding(padding)
    return replace(text, sequence=text.sequence[padding:], prompt=prompt)
