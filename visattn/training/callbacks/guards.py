"""Guards of training: signals, and steps that are not finite."""

import os
import signal
import threading
from types import FrameType
from typing import Any

# pyright: reportPrivateImportUsage=false
import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor, nn
from torch.optim import Optimizer

from visattn.training.checkpoint import all_finite

_MESSAGE = b"\nvisattn: stopping after this step; send the signal again to stop at once\n"


class GracefulExit(SystemExit):
    """Exit after a signal, with the code 128 plus the number of the signal.

    Example:
        >>> GracefulExit(signal.SIGTERM).code
        143
    """

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number

    def __str__(self) -> str:
        return signal.Signals(self.number).name


class ExitOnSignal(Callback):
    """Exit `validate` and `test` at SIGTERM; Lightning would continue and exit with code 0."""

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Install the handler, unless validation is part of training."""
        if trainer.state.fn == "validate":
            signal.signal(signal.SIGTERM, _exit)

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Install the handler."""
        signal.signal(signal.SIGTERM, _exit)


def _exit(number: int, _: FrameType | None) -> None:
    raise GracefulExit(number)


class SignalHandler:
    """Record SIGTERM and Ctrl-C, so that a step is finished first; a second signal ends at once.

    Example:
        >>> handler = SignalHandler()
        >>> handler.install()
        >>> signal.raise_signal(signal.SIGTERM)
        >>> handler.restore()
        >>> handler.received == signal.SIGTERM
        True
    """

    def __init__(self) -> None:
        self.received = 0
        self._previous: dict[int, Any] = {}

    def install(self) -> None:
        """Handle both signals, unless they are ignored; only the main thread may."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGTERM, signal.SIGINT):
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._record)

    def restore(self) -> None:
        """Restore the previous handlers."""
        while self._previous:
            signal.signal(*self._previous.popitem())

    def _record(self, number: int, _: FrameType | None) -> None:
        if self.received:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.received = number
        os.write(2, _MESSAGE)


class SkipNonFiniteSteps(Callback):
    """Skip optimizer steps with infinite or NaN gradients; stop after too many in a row.

    Parameters and buffers, such as the running statistics of normalization, stay as they were
    before the step. All processes decide alike, because DDP averages the gradient. Steps that only
    lower the loss scale of mixed precision do not count as consecutive.

    Args:
        max_steps: Consecutive skipped steps after which training stops.

    Raises:
        ValueError: If the number is below 1.
    """

    def __init__(self, max_steps: int = 10) -> None:
        if max_steps < 1:
            raise ValueError(f"max_nonfinite_steps must be at least 1, got {max_steps}")
        self.max_steps = max_steps
        self.consecutive = 0
        self.skipped = 0
        self._loss = torch.tensor(torch.nan)
        self._buffers: dict[str, Tensor] = {}
        self._saved: list[Tensor] = []

    def state_dict(self) -> dict[str, int]:
        """Return the numbers of skipped steps."""
        return {"consecutive": self.consecutive, "skipped": self.skipped}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Restore the numbers of skipped steps."""
        self.consecutive = state_dict["consecutive"]
        self.skipped = state_dict["skipped"]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """List the buffers that a step may change; attention masks hold infinities and do not."""
        named = dict(pl_module.named_buffers())
        self._buffers = {name: buffer for name, buffer in named.items() if all_finite([buffer])}
        self._saved = [buffer.detach().clone() for buffer in self._buffers.values()]

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Save the buffers."""
        # Before the first batch of a step only: all the batches that it accumulates are skipped
        # together.
        if self._saved and batch_idx % trainer.accumulate_grad_batches == 0:
            torch._foreach_copy_(self._saved, list(self._buffers.values()))

    def on_before_backward(
        self, trainer: Trainer, pl_module: LightningModule, loss: Tensor
    ) -> None:
        """Keep the loss for the message."""
        self._loss = loss.detach()

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        """Skip the step if a gradient or a buffer is not finite.

        Raises:
            FloatingPointError: If this is the last of `max_steps` consecutive steps.
        """
        unscale_gradients(trainer, optimizer)
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"]]
        gradients = [gradient for gradient in gradients if gradient is not None]
        if all_finite([*gradients, *self._buffers.values()]):
            self.consecutive = 0
            return
        message = self._message(trainer, pl_module)
        # Optimizers leave parameters without a gradient alone. A gradient of 0 would still move
        # them, by momentum and weight decay.
        optimizer.zero_grad(set_to_none=True)
        if self._saved:
            torch._foreach_copy_(list(self._buffers.values()), self._saved)
        scaler: Any = getattr(trainer.precision_plugin, "scaler", None)
        # With a larger scale, the scaled gradients may have overflowed in half precision while
        # those of the loss are finite; the scaler then lowers it.
        self.consecutive += scaler is None or scaler.get_scale() <= 1
        self.skipped += 1
        if self.consecutive >= self.max_steps:
            raise FloatingPointError(
                f"{message}. Training stops after {self.consecutive} consecutive steps; the "
                "weights are still finite. Lower the learning rate, clip gradients "
                "(--trainer.gradient_clip_val), or check the data of these steps"
            )
        rank_zero_info(f"{message}; the step is skipped")

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print the number of skipped steps."""
        if self.skipped:
            rank_zero_info(
                f"{self.skipped} of {trainer.global_step} steps were skipped because their "
                "gradients were not finite"
            )

    def _message(self, trainer: Trainer, task: nn.Module) -> str:
        """Return the loss, and the first gradient that is not finite."""
        tensors = {name: p.grad for name, p in task.named_parameters() if p.grad is not None}
        tensors |= self._buffers
        first = next((name for name, t in tensors.items() if not all_finite([t])), "unknown")
        return (
            f"step {trainer.global_step}: the gradients are not finite (loss "
            f"{float(self._loss):g}); first tensor: {first}"
        )


def unscale_gradients(trainer: Trainer, optimizer: Optimizer) -> None:
    """Divide the gradients of a fused optimizer by the loss scale of float16, once a step.

    Lightning leaves that to its step, which is too late for whoever looks at gradients, clips them
    or drops them; those of other optimizers are divided before this is called.
    """
    scaler: Any = getattr(trainer.precision_plugin, "scaler", None)
    if scaler is None or not getattr(optimizer, "_step_supports_amp_scaling", False):
        return
    try:
        scaler.unscale_(optimizer)
    except RuntimeError as error:
        if "already been called" not in str(error):
            raise
