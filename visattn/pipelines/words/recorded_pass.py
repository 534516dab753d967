"""The recorded pass of a replay, over prompt and words, with the proof that it is theirs."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from visattn.pipelines.words.image_tokens import ImageTokens, text_decoder
from visattn.pipelines.words.language_model import GeneratedText, weight_dtype
from visattn.recording.attention_call import (
    ALL,
    RECORDABLE,
    AttentionCall,
    fused_kernels,
    recordable_attention,
)
from visattn.recording.frozen import exclusive, frozen
from visattn.recording.interception import attention_calls

_CHECKED = 32  # last words whose log-probabilities are compared
_ROUNDED_RUNS = 3  # with other rounding errors
_ROUNDING = 8.0  # times their effect
_PRODUCTS = frozenset({F.linear, torch.matmul, torch.bmm, torch.addmm, Tensor.matmul,
                       Tensor.__matmul__, F.scaled_dot_product_attention})  # fmt: skip


class Rounding(TorchFunctionMode):
    """Changes each result of a matrix product in its last digit, at random.

    Another order of the terms, as in another kernel or batch size, does the same.

    Example:
        >>> ones = torch.ones(2, 3)
        >>> with Rounding():
        ...     product = ones @ ones.T
        >>> bool((product != 3).any()), torch.allclose(product, torch.tensor(3.0))
        (True, True)
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run a torch function, and change its result if it is a product."""
        result = func(*args, **(kwargs or {}))
        if func in _PRODUCTS and result.is_floating_point():
            sign = torch.randint(0, 2, result.shape, device=result.device) * 2 - 1
            result = result * (1 + torch.finfo(result.dtype).eps * sign).to(result.dtype)
        return result


class Recorder:
    """Attention of the generated tokens over image tokens, in one forward pass.

    Args:
        model: The model.
        located: Its image tokens.
        count: Number of generated tokens.
        kernel: Attention implementation of parts that hide their weights.
    """

    def __init__(
        self, model: nn.Module, located: ImageTokens, count: int, kernel: str, *, keep_heads: bool
    ) -> None:
        self.located, self.count, self.kernel, self.keep_heads = located, count, kernel, keep_heads
        self.decoder = text_decoder(model)[0]
        self.columns = located.columns
        self.rows: dict[str, Tensor] = {}
        self.heads: dict[str, Tensor] = {}
        self.mixing: list[Float[Tensor, "l i"]] = []
        self.log_probs = torch.full((count,), torch.nan)

    def on_call(self, call: AttentionCall) -> None:
        """Keep the rows of the words, or what learned queries read."""
        located, (_, _, num_queries, num_keys) = self.located, call.shape
        of_words = call.name in located.sites if located.sites is not None else (
            call.name.startswith(self.decoder) and num_queries == num_keys)  # fmt: skip
        if not of_words and call.name not in located.between:
            return
        if call.unsupported:
            raise ValueError(f"the attention of {call.name} cannot be recorded: {call.unsupported}")
        rows = slice(-self.count, None) if of_words else ALL
        weights = heads_as_axis(call.proved_weights(ALL, rows)[0])
        if not of_words:  # of several images, each reads its own keys alone
            mixing = torch.block_diag(*weights.float().mean(1))
            self.mixing.append(mixing[:, located.placement.columns.to(mixing.device)].cpu())
            return
        if located.num_keys is not None:  # image tokens behind the words
            self.columns = located.columns + num_keys - located.num_keys
        own = weights[0][..., self.columns.to(weights.device)]
        self.rows[call.name] = own.float().mean(0).cpu()
        if self.keep_heads:
            self.heads[call.name] = own.half().cpu()


def record_words(
    model: nn.Module, inputs: dict[str, Any], text: GeneratedText, located: ImageTokens, *,
    keep_heads: bool,
) -> Recorder:  # fmt: skip
    """Return the recorded pass over a text, which must have its log-probabilities.

    Parts of the model with flash or flex attention run `sdpa` meanwhile, or `eager` if that
    differs.

    Raises:
        ValueError: If the attention cannot be recorded, or the log-probabilities differ.
    """
    count = text.num_generated
    kept = count if bool(text.log_probs.isnan().any()) else min(count, _CHECKED)
    tokens = text.sequence[len(text.sequence) - kept :]

    def attempt(kernel: str) -> Recorder:
        recorder = Recorder(model, located, count, kernel, keep_heads=keep_heads)
        with recordable_attention(model, kernel), frozen(model), torch.no_grad():
            with attention_calls(model, recorder.on_call):
                logits = forward_logits(model, inputs, kept)
            if not recorder.rows:
                raise ValueError(
                    f"no attention of words was found in {type(model).__name__}: its kernels "
                    "cannot be recorded; use model.set_attn_implementation('sdpa')"
                )
            log_probs = token_log_probs(logits, tokens).cpu()

            def rounded() -> Tensor:
                with Rounding():
                    return token_log_probs(forward_logits(model, inputs, kept), tokens).cpu()

            known = ~text.log_probs[-kept:].isnan()
            check_log_probs(log_probs[known], text.log_probs[-kept:][known], logits,
                            computing_dtype(model), lambda: rounded()[known])  # fmt: skip
        recorder.log_probs[-kept:] = log_probs
        return recorder

    with exclusive(model):  # another thread may have switched the kernels meanwhile
        if fused_kernels(model):
            with suppress(ValueError):
                return attempt(RECORDABLE[0])
            return attempt(RECORDABLE[1])
        return attempt(RECORDABLE[0])


def heads_as_axis(weights: Tensor) -> Tensor:
    """Return weights of one caption as `[1 h r m]`; bmm has the heads on the batch axis."""
    return weights.transpose(0, 1) if weights.shape[1] == 1 else weights


def forward_logits(model: nn.Module, inputs: dict[str, Any], count: int) -> Float[Tensor, "t v"]:
    """Return the logits of the last `count` positions."""
    if "logits_to_keep" in inputs:
        inputs = {**inputs, "logits_to_keep": count}
    output: Any = model(**inputs)
    return output.logits[0, -count:]


def token_log_probs(logits: Float[Tensor, "t v"], tokens: Int[Tensor, " t"]) -> Float[Tensor, " t"]:
    """Return the log-probability of each token."""
    return logits.float().log_softmax(-1).gather(1, tokens.to(logits.device)[:, None])[:, 0]


def computing_dtype(model: nn.Module) -> torch.dtype:
    """Return the type in which a model computes: that of its weights, or of autocast.

    float16 for float32 weights on a GPU that may use TensorFloat-32, whose fraction is as short.
    """
    device = next(model.parameters()).device.type
    if device != "meta" and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    dtype = weight_dtype(model)
    short = device == "cuda" and torch.get_float32_matmul_precision() != "highest"
    return torch.float16 if short and dtype == torch.float32 else dtype


def check_log_probs(
    replayed: Tensor,
    generated: Tensor,
    logits: Tensor,
    dtype: torch.dtype,
    rounded: Callable[[], Tensor],
) -> None:
    """Refuse a replay whose log-probabilities differ from those of the generation.

    How much rounding alone changes them is measured if they differ at all: `rounded` returns those
    of a replay with other rounding errors.

    Raises:
        ValueError: If they differ by more than rounding explains.
    """
    if not len(generated):
        return
    # Logits round in proportion to their size, and a log-probability is a difference of logits.
    tolerance = max(1e-4, 4 * torch.finfo(dtype).eps * float(logits.abs().max()))
    deviation = float((replayed - generated).abs().max())
    # A run with other rounding costs as much as the replay: there is none if the default tolerance
    # is enough, else a few, as a single one may differ little by chance.
    for _ in range(_ROUNDED_RUNS):
        if deviation <= tolerance:
            return
        tolerance = max(tolerance, _ROUNDING * float((rounded() - replayed).abs().max()))
    # Written in this way, NaN is refused, too.
    if not deviation <= tolerance:
        raise ValueError(
            "a forward pass over prompt and words must give the log-probabilities of the "
            f"generation, but they differ by {deviation:.2g}, more than rounding explains "
            f"({tolerance:.2g}): the maps would not be those of this caption; please report this "
            "model"
        )
