"""The recorded forward pass of a replay: over the words alone, or over prompt and words."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from visattn.pipelines.words.image_tokens import ImageTokens
from visattn.pipelines.words.language_model import GeneratedText, weight_dtype
from visattn.recording.attention_call import RECORDABLE, fused_kernels, recordable_attention
from visattn.recording.frozen import frozen
from visattn.recording.score_evidence import Rounding
from visattn.recording.word_rows import ReusedOutputs, WordRows

_ROUNDED_RUNS = 3  # with other rounding errors
_ROUNDING = 8.0  # times their effect


@dataclass(frozen=True, eq=False)
class RecordedRows:
    """Attention of generated tokens over image tokens.

    Args:
        rows: Mean over the heads, on the CPU.
        heads: The rows of each head, float16, if they were kept.
        mixing: Share of each placed token in each learned query that words read, mean over layers
            and heads; None if words read the placed tokens.
        whole: Whether the pass read the prompt too, and gave the log-probabilities of the words.
        kernel: Attention implementation of the pass, for parts of the model that hide weights.
    """

    rows: Float[Tensor, "site t i"]
    heads: Float[Tensor, "site h t i"] | None
    mixing: Float[Tensor, "i _p"] | None
    whole: bool
    kernel: str


def record_rows(
    model: nn.Module,
    inputs: dict[str, Any],
    text: GeneratedText,
    located: ImageTokens,
    *,
    keep_heads: bool = False,
    towers: ReusedOutputs | None = None,
) -> RecordedRows:
    """Return the attention of generated tokens, of a pass with the log-probabilities of these.

    With the keys and values that the generation computed for the prompt, the pass reads the words
    only. It reads prompt and words if there are none, or if the log-probabilities are others. Parts
    of the model with flash or flex attention run `sdpa` meanwhile, or `eager` if that differs.
    Vision towers that ran on the same photo do not have to run again.

    Raises:
        ValueError: If the attention cannot be recorded, or the log-probabilities differ.
    """
    recording = _Recording(model, text, located, keep_heads=keep_heads)

    def attempt(kernel: str) -> RecordedRows:
        with recordable_attention(model, kernel):
            return recording.result(kernel, whole=recording.record(inputs, towers))

    if fused_kernels(model):
        with suppress(ValueError):
            return attempt(RECORDABLE[0])
        return attempt(RECORDABLE[1])
    return attempt(RECORDABLE[0])


class _Recording:
    """Records one forward pass after the other, until one gives the log-probabilities."""

    def __init__(
        self, model: nn.Module, text: GeneratedText, located: ImageTokens, *, keep_heads: bool
    ) -> None:
        self.model = model
        self.text = text
        self.located = located
        self.keep_heads = keep_heads
        self.tokens = text.sequence[len(text.sequence) - text.num_generated :]
        self.rows: dict[str, Tensor] = {}
        self.heads: dict[str, Tensor] = {}

    def record(self, inputs: dict[str, Any], towers: ReusedOutputs | None) -> bool:
        """Record a pass over the words if that suffices, else over prompt and words.

        Returns:
            Whether it read the prompt.
        """
        text = self.text
        # A pass over the words shows no pixels to the model, so that its resampler does not run.
        if text.prompt is not None and not self.located.resampler_sites:
            shorter = text.prompt.replay_inputs(inputs, text.num_generated)
            if shorter is not None and self.succeeds(shorter, towers):
                return False
        log_probs, logits = self.run(inputs, towers)

        def rounded() -> Tensor:
            with self._reusing(towers), Rounding():
                logits = _logits(self.model, inputs, text.num_generated)
                return token_log_probs(logits, self.tokens).cpu()

        dtype = computing_dtype(self.model)
        check_log_probs(log_probs, text.log_probs, logits, dtype, rounded)
        return True

    def succeeds(self, inputs: dict[str, Any], towers: ReusedOutputs | None) -> bool:
        """Whether a pass over the words runs, and gives their log-probabilities."""
        try:
            log_probs, logits = self.run(inputs, towers)
        except Exception:  # noqa: BLE001 (of a model that reads words only one by one)
            return False
        deviation = (log_probs - self.text.log_probs).abs().max()
        return float(deviation) <= rounding_tolerance(logits, computing_dtype(self.model))

    def run(
        self, inputs: dict[str, Any], towers: ReusedOutputs | None
    ) -> tuple[Float[Tensor, " t"], Float[Tensor, "t v"]]:
        """Record a pass; return the log-probability of each token, and the logits."""
        count = self.text.num_generated
        located = self.located
        recorded = dict.fromkeys(located.sites, count) | dict.fromkeys(located.resampler_sites)
        recorder = WordRows(self.model, recorded, keep=self._keep)
        with self._reusing(towers), recorder.recording():
            logits = _logits(self.model, inputs, count)
        unheard = (
            (site, "its kernel is not known") for site in recorded if site not in recorder.rows
        )
        if unsupported := [*recorder.unsupported.items(), *unheard]:
            site, reason = unsupported[0]
            raise ValueError(f"the attention of {site} cannot be recorded: {reason}")
        self.rows = recorder.rows
        return token_log_probs(logits, self.tokens).cpu(), logits

    def _reusing(self, towers: ReusedOutputs | None) -> AbstractContextManager[None]:
        """Return the outputs of towers, but of those around layers to record."""
        sites = (*self.located.sites, *self.located.resampler_sites)
        return nullcontext() if towers is None else towers.reusing(except_sites=sites)

    def _keep(self, site: str, weights: Tensor) -> Tensor:
        if site in self.located.resampler_sites:  # of several images, each reads its own keys alone
            mixing = torch.block_diag(*weights.float().mean(1))
            return mixing[:, self.located.placement.columns.to(weights.device)].cpu()
        weights = weights[0][..., self.located.columns.to(weights.device)]
        if self.keep_heads:
            self.heads[site] = weights.half().cpu()
        return weights.float().mean(0).cpu()

    def result(self, kernel: str, *, whole: bool) -> RecordedRows:
        """Return what the last pass recorded."""
        sites = self.located.sites
        between = self.located.resampler_sites
        return RecordedRows(
            torch.stack([self.rows[site] for site in sites]),
            torch.stack([self.heads[site] for site in sites]) if self.keep_heads else None,
            torch.stack([self.rows[site] for site in between]).mean(0) if between else None,
            whole,
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
