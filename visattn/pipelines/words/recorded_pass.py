"""The recorded forward pass of a replay: over prompt and words."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from visattn.pipelines.words.image_tokens import ImageTokens
from visattn.pipelines.words.language_model import GeneratedText, weight_dtype
from visattn.recording.attention_call import RECORDABLE, fused_kernels, recordable_attention
from visattn.recording.frozen import exclusive, frozen
from visattn.recording.word_rows import WordRows

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


@dataclass(frozen=True, eq=False)
class RecordedRows:
    """Attention of generated tokens over image tokens.

    Args:
        rows: Mean over the heads, on the CPU.
        heads: The rows of each head, float16, if they were kept.
        mixing: Share of each placed token in each learned query that words read, mean over layers
            and heads; None if words read the placed tokens.
        kernel: Attention implementation of the pass, for parts of the model that hide weights.
    """

    rows: Float[Tensor, "site t i"]
    heads: Float[Tensor, "site h t i"] | None
    mixing: Float[Tensor, "i _p"] | None
    kernel: str


def record_rows(
    model: nn.Module,
    inputs: dict[str, Any],
    text: GeneratedText,
    located: ImageTokens,
    *,
    keep_heads: bool = False,
) -> RecordedRows:
    """Return the attention of generated tokens, of a pass with the log-probabilities of these.

    Parts of the model with flash or flex attention run `sdpa` meanwhile, or `eager` if that
    differs.

    Raises:
        ValueError: If the attention cannot be recorded, or the log-probabilities differ.
    """

    def attempt(kernel: str) -> RecordedRows:
        with recordable_attention(model, kernel):
            return _record(model, inputs, text, located, kernel, keep_heads=keep_heads)

    with exclusive(model):  # another thread may have switched the kernels meanwhile
        if fused_kernels(model):
            with suppress(ValueError):
                return attempt(RECORDABLE[0])
            return attempt(RECORDABLE[1])
        return attempt(RECORDABLE[0])


def _record(
    model: nn.Module,
    inputs: dict[str, Any],
    text: GeneratedText,
    located: ImageTokens,
    kernel: str,
    *,
    keep_heads: bool,
) -> RecordedRows:
    count = text.num_generated
    sites = located.sites
    between = located.resampler_sites
    heads: dict[str, Tensor] = {}

    def keep(site: str, weights: Tensor) -> Tensor:
        if site in between:  # of several images, each reads its own keys alone
            mixing = torch.block_diag(*weights.float().mean(1))
            return mixing[:, located.placement.columns.to(weights.device)].cpu()
        weights = weights[0][..., located.columns.to(weights.device)]
        if keep_heads:
            heads[site] = weights.half().cpu()
        return weights.float().mean(0).cpu()

    recorded = dict.fromkeys(sites, count) | dict.fromkeys(between)
    recorder = WordRows(model, recorded, keep=keep)
    with recorder.recording():
        logits = _logits(model, inputs, count)
    unheard = ((site, "its kernel is not known") for site in recorded if site not in recorder.rows)
    if unsupported := [*recorder.unsupported.items(), *unheard]:
        site, reason = unsupported[0]
        raise ValueError(f"the attention of {site} cannot be recorded: {reason}")
    tokens = text.sequence[len(text.sequence) - count :]

    def rounded() -> Tensor:
        with Rounding():
            return token_log_probs(_logits(model, inputs, count), tokens).cpu()

    log_probs = token_log_probs(logits, tokens).cpu()
    check_log_probs(log_probs, text.log_probs, logits, computing_dtype(model), rounded)
    rows = recorder.rows
    return RecordedRows(
        torch.stack([rows[site] for site in sites]),
        torch.stack([heads[site] for site in sites]) if keep_heads else None,
        torch.stack([rows[site] for site in between]).mean(0) if between else None,
        kernel,
    )


def forward_logits(model: nn.Module, inputs: dict[str, Any], count: int) -> Float[Tensor, "b t v"]:
    """Return the logits of the last `count` positions."""
    output: Any = model(**inputs)
    return output.logits[:, -count:].float()


def _logits(model: nn.Module, inputs: dict[str, Any], count: int) -> Float[Tensor, "t v"]:
    with frozen(model), torch.no_grad():
        return forward_logits(model, inputs, count)[0]


def token_log_probs(logits: Float[Tensor, "t v"], tokens: Int[Tensor, " t"]) -> Float[Tensor, " t"]:
    """Return the log-probability of each token."""
    return logits.log_softmax(-1).gather(1, tokens.to(logits.device)[:, None])[:, 0]


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


def rounding_tolerance(logits: Tensor, dtype: torch.dtype) -> float:
    """Return by how much log-probabilities may differ without a measurement of rounding."""
    # Logits round in proportion to their size, and a log-probability is a difference of logits.
    return max(1e-4, 4 * torch.finfo(dtype).eps * float(logits.abs().max()))


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
    tolerance = rounding_tolerance(logits, dtype)
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
