"""Steps whose gradient is no number are left out, and a run of which many are is stopped."""

from typing import Any

from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from visattn.models.serialization.finite_weights import all_finite


class SkipNonFiniteSteps(Callback):
    """Leave out steps whose gradient is infinite or NaN; stop after so many in a row.

    The weights stay as they were, and so do running statistics, which such a batch would have
    spoilt. All processes decide alike, since they share the gradient. Where precision is mixed and
    the loss is scaled up, steps are left out until the scale fits; these do not count.

    Args:
        most: Steps in a row that are left out before the run is stopped.

    Raises:
        ValueError: If the number is below 1.
    """

    def __init__(self, most: int = 10) -> None:
        if most < 1:
            raise ValueError(f"a run is stopped after at least 1 bad step, got {most}")
        self.most, self.row, self.left_out = most, 0, 0
        self._loss: Tensor | None = None
        self._stale = True
        self._kept: list[tuple[str, Tensor, Tensor]] = []
        self._watch = OutputProbe()

    def state_dict(self) -> dict[str, int]:
        """Return how many steps were left out, in a row and in all."""
        return {"row": self.row, "left_out": self.left_out}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Count on from there."""
        self.row, self.left_out = state_dict["row"], state_dict["left_out"]

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Look anew what is in training."""
        self._stale = True

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Look anew what is in training."""
        self._stale = True

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Keep what the batch changes in passing; after a bad step, look where it comes from."""
        if batch_idx % trainer.accumulate_grad_batches == 0:
            self._keep(pl_module)
        if self.row:
            self._watch.watch(pl_module)

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Any) -> None:
        """Remember the loss, to be told if it is no number."""
        self._loss = loss.detach()

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        """Leave out the step if its gradient is no number.

        Raises:
            FloatingPointError: If that were too many in a row.
        """
        self._watch.rest()
        weights = [one for group in optimizer.param_groups for one in group["params"]]
        slopes = [one.grad for one in weights if one.grad is not None]
        if all_finite(slopes) and all_finite([buffer for _, _, buffer in self._kept]):
            self.row = 0
            return
        first = self._first(pl_module)
        optimizer.zero_grad(set_to_none=True)
        for _, kept, buffer in self._kept:
            buffer.copy_(kept)
        self.left_out += 1
        self.row += not _still_scaling(trainer)
        self._tell(trainer, first)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say how many steps were left out."""
        if self.left_out:
            rank_zero_info(
                f"{self.left_out} of {trainer.global_step} steps were left out, since their "
                "gradients were not finite"
            )

    def _keep(self, task: nn.Module) -> None:
        """Keep what modules in training mode change in passing, such as running statistics."""
        if self._stale:
            self._stale = False
            self._kept = [
                (f"{place}.{name}", buffer.detach().clone(), buffer)
                for place, module in task.named_modules()
                if module.training
                for name, buffer in module.named_buffers(recurse=False)
                if all_finite([buffer])  # masks may hold infinities
            ]
        for _, kept, buffer in self._kept:
            kept.copy_(buffer)

    def _first(self, task: nn.Module) -> str:
        """Return the first weights whose gradient is not finite, or the first such statistics."""
        named = {name: one.grad for name, one in task.named_parameters() if one.grad is not None}
        named |= {name: buffer for name, _, buffer in self._kept}
        return next((name for name, one in named.items() if not all_finite([one])), "unknown")

    def _tell(self, trainer: Trainer, first: str) -> None:
        loss = "unknown" if self._loss is None else f"{float(self._loss):g}"
        said = (
            f"step {trainer.global_step}: the gradients are not finite (loss {loss}); the first "
            f"weights concerned are {first}{self._watch.found}"
        )
        if self.row >= self.most:
            raise FloatingPointError(
                f"{said}. That is {self.row} steps in a row, and training is stopped; the weights "
                "are still finite. Lower the learning rate, clip gradients "
                "(--trainer.gradient_clip_val), or look at the data of these steps"
            )
        rank_zero_info(f"{said}; the step is left out")


class OutputProbe:
    """Finds the first layer that gives no numbers, while it is asked to look."""

    def __init__(self) -> None:
        self.found = ""
        self._handles: list[RemovableHandle] = []

    def watch(self, task: nn.Module) -> None:
        """Look at what the layers of a task give until it is told to rest."""
        self.rest()
        self.found = ""
        for name, module in task.named_modules():
            if not list(module.children()):
                self._handles.append(module.register_forward_hook(_Noting(self, name)))

    def rest(self) -> None:
        """Look no more."""
        while self._handles:
            self._handles.pop().remove()


class _Noting:
    """Notes a layer whose output is not finite, if it is the first."""

    def __init__(self, watch: OutputProbe, name: str) -> None:
        self.watch, self.name = watch, name

    def __call__(self, module: nn.Module, given: Any, output: Any) -> None:
        told = isinstance(output, Tensor) and not self.watch.found
        if told and not all_finite([output.detach()]):
            kind = type(module).__name__
            self.watch.found = f", the first layer that gives no numbers is {self.name} ({kind})"


def _still_scaling(trainer: Trainer) -> bool:
    """Return whether the loss is scaled up, and the scale may still be found too large."""
    scaler: Any = getattr(trainer.precision_plugin, "scaler", None)
    return scaler is not None and scaler.get_scale() > 1
