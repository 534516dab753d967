"""Exponential moving average of the weights, used for validation, checkpoints and export."""

# pyright: reportPrivateImportUsage=false

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import compress
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import WeightAveraging
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from visattn.models.saving.weight_files import all_finite
from visattn.training.distributed.fsdp import gather_state, local_shards, shard_state


class EMA(WeightAveraging):
    """Exponential moving average of the weights.

    Unlike with Lightning's `EMAWeightAveraging`, frozen weights stay bit-identical, so that cached
    features remain valid, and a run that is stopped during validation saves its trained weights.
    A step takes a few operations for all weights together, and never waits for a GPU.

    Args:
        decay: Decay per step; the average covers about `1 / (1 - decay)` steps.
        use_warmup: Whether the decay is lower in the first steps, at most `(1 + n) / (10 + n)`
            after n steps. Without, it is constant, as in Lightning.

    Raises:
        ValueError: If decay is not between 0 and 1.
    """

    def __init__(self, decay: float = 0.998, *, use_warmup: bool = True) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"decay must be at least 0 and below 1, got {decay}")
        super().__init__()
        self.decay = decay
        self.use_warmup = use_warmup
        self._swapped = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Create the averaged copy of the model when training begins."""
        if stage == "fit":
            average = AveragedWeights(pl_module, decay=self.decay, use_warmup=self.use_warmup)
            copied: Any = average.module
            copied.configure_model()  # shards it, like the model itself
            self._average_model = average

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Save the averages as the weights, whole also where they are sharded."""
        super().on_save_checkpoint(trainer, pl_module, checkpoint)
        keep = pl_module._device_mesh is None or trainer.is_global_zero  # noqa: SLF001
        # Lightning has moved the trained weights to `current_model_state` and put the averages
        # here. With FSDP2 these are shards, which the strategy has not gathered.
        checkpoint["state_dict"] = gather_state(checkpoint["state_dict"], keep=keep)

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Swap in the averaged weights."""
        super().on_validation_epoch_start(trainer, pl_module)
        self._swapped = True

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Swap back the trained weights."""
        super().on_validation_epoch_end(trainer, pl_module)
        self._swapped = False

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Swap back the trained weights, for the checkpoint of a run that is stopped."""
        if self._swapped:
            self.on_validation_epoch_end(trainer, pl_module)


class AveragedWeights(AveragedModel):
    """Copy of a model that holds the moving averages of its weights and buffers.

    All weights of a dtype are averaged by one operation. The number of updates is in host memory
    and the copy on the device of the model, so that no step waits for a GPU. Weights that were
    frozen all the time are left out, and so are buffers that hold infinities, such as attention
    masks. For the options see `EMA`.

    Example:
        >>> model = nn.Linear(1, 1, bias=False)
        >>> average = AveragedWeights(model, decay=0.75, use_warmup=False)
        >>> for weight in (0.0, 1.0):
        ...     _ = model.weight.data.fill_(weight)
        ...     average.update_parameters(model)
        >>> average.module.weight.tolist()
        [[0.25]]
    """

    def __init__(self, model: nn.Module, *, decay: float, use_warmup: bool = True) -> None:
        super().__init__(model, use_buffers=True)
        self.decay = decay
        self.use_warmup = use_warmup
        # In the order of `_tensors`: parameters, then buffers.
        self._averaged = [tensor.requires_grad for tensor in model.parameters()]
        self._averaged += [all_finite([tensor]) for tensor in model.buffers()]
        self._walked: tuple[nn.Module, list[nn.Module], list[nn.Module]] | None = None

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **options: Any) -> Any:
        """Load whole averages; each process takes its shards of them."""
        return super().load_state_dict(shard_state(state_dict, self), *args, **options)

    def update_parameters(self, model: nn.Module) -> None:
        """Update the averages after a step of the model; the first update copies its weights."""
        if self._walked is None or self._walked[0] is not model:
            self._walked = (model, list(model.modules()), list(self.module.modules()))
        _, modules, averaged = self._walked
        current = _tensors(modules)
        averages = _tensors(averaged)
        if averages and averages[0].device != current[0].device:  # Lightning copies it on the CPU
            self.module.to(current[0].device)
            averages = _tensors(averaged)
        pairs = list(zip(averages, current, strict=True))
        updates = int(self.n_averaged)
        if updates:
            # Weights that are unfrozen in the middle of a run are averaged from then on.
            for index, tensor in enumerate(current):
                self._averaged[index] |= tensor.requires_grad
            pairs = list(compress(pairs, self._averaged))
        pairs = [(average, value) for average, value in map(local_shards, pairs) if average.numel()]
        decay = ema_decay(updates, self.decay) if self.use_warmup else self.decay
        with torch.no_grad():
            ema_update(pairs, decay if updates else 0.0)
        self.n_averaged += 1


def _tensors(modules: list[nn.Module]) -> list[Tensor]:
    """Return parameters and buffers, each once; to walk through the modules takes much longer."""
    parameters = [weight for module in modules for weight in module._parameters.values()]  # noqa: SLF001
    buffers = [buffer for module in modules for buffer in module._buffers.values()]  # noqa: SLF001
    tensors = {id(tensor): tensor for tensor in (*parameters, *buffers)}
    return [tensor for tensor in tensors.values() if tensor is not None]


def ema_decay(updates: int, decay: float) -> float:
    """Return the decay of a step in warmup: at most `(1 + updates) / (10 + updates)`.

    Example:
        >>> ema_decay(2, 0.75), ema_decay(10**6, 0.75)
        (0.25, 0.75)
    """
    return min(decay, (1 + updates) / (10 + updates))


def ema_update(pairs: Iterable[tuple[Tensor, Tensor]], decay: float) -> None:
    """Update averages in place with the values that they follow, by one operation per dtype.

    Integers are copied, and so are all values if the decay is 0.

    Example:
        >>> average = torch.tensor(0.0)
        >>> ema_update([(average, torch.tensor(1.0))], decay=0.75)
        >>> average
        tensor(0.2500)
    """
    groups: dict[torch.dtype, list[tuple[Tensor, Tensor]]] = defaultdict(list)
    for average, value in pairs:
        groups[average.dtype].append((average, value))
    for dtype, group in groups.items():
        averages, values = map(list, zip(*group, strict=True))
        if decay and dtype.is_floating_point:
            torch._foreach_lerp_(averages, values, 1 - decay)  # exact for equal values
        else:
            torch._foreach_copy_(averages, values)
