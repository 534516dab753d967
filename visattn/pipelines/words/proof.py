"""A pass over prompt and words must be that of the generation: the proof, by log-probabilities."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from visattn.pipelines.words.language_model import weight_dtype

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
