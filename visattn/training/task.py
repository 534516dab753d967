"""The base class of training tasks."""

import copy
from abc import ABC
from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from lightning import Callback, LightningModule
from lightning.pytorch.utilities import rank_zero_info
from torch import nn
from torch.distributed.fsdp import FSDPModule

from visattn.data.loading.stateful_loader import StatefulDataLoader
from visattn.models.serialization.config import model_config
from visattn.models.serialization.finite_weights import check_weights_before_saving
from visattn.training.callbacks.even_forwards import EvenForwards
from visattn.training.checkpoint.loop_state import normalize_loop_state
from visattn.training.checkpoint.resume_checks import check_scheduler_states
from visattn.training.data_module import DataModule, InputSpec
from visattn.training.distributed.fsdp import FSDP2Strategy, shard_model, shard_state
from visattn.training.distributed.rng import seed_step
from visattn.training.optim import (
    OptimizerFactory,
    OptimizerGroup,
    Schedule,
    build_optimizer,
    constant,
)
from visattn.training.targets import TargetCounts


class Task(LightningModule, ABC):
    """A model with its losses, metrics and optimizer.

    A checkpoint holds plain values and weights only. The random numbers of a training step depend
    only on the seed of the run, the step and the process, so that a resumed run continues exactly
    as it would have without the interruption.

    Args:
        model: The network that is trained and saved.
    """

    monitor: tuple[str, str]
    """The metric that selects the best checkpoint, and `max` or `min`."""

    val_scores: Sequence[str] = ()
    """The metrics that validation logs during training; empty if they are not known beforehand."""

    idle_parameters = False
    """Whether some steps leave parameters without a gradient (DDP's `find_unused_parameters`)."""

    optimizer: OptimizerFactory
    """Builds the optimizer from parameter groups."""

    can_shard = False
    """Whether the task trains with FSDP2, which needs that `training_forward` has all of the model
    that has weights."""

    training_forward = ""
    """The method of the model that a training step runs, which `--compile` compiles; empty if the
    task has none that compiles."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.seed: int | None = None
        self.notes: dict[str, Any] = {}
        self._loader_state: dict[str, int] | None = None
        self._scheduler_states: list[Any] | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Copy modules and values, but not the trainer; functions are shared.

        The partial that jsonargparse makes of `--model.optimizer` refers to the command line, and
        through it to the data, the trainer and the worker processes.
        """
        functions = [value for value in vars(self).values() if callable(value)]
        memo |= {id(value): value for value in functions if not isinstance(value, nn.Module)}
        memo[id(self._device_mesh)] = self._device_mesh
        copied = memo[id(self)] = type(self).__new__(type(self))
        copied.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        return copied

    def configure_model(self) -> None:
        """Shard the model if the strategy is `fsdp2`."""
        if self._device_mesh is not None and not isinstance(self.model, FSDPModule):
            shard_model(self.model, self._device_mesh["data_parallel"], self.training_forward)

    def compile_training(self, mode: str) -> None:
        """Compile what a training step runs; weights and checkpoints stay as they are.

        Args:
            mode: `default`, or `reduce-overhead`, which also records CUDA graphs.

        Raises:
            ValueError: If the task has nothing that compiles.
        """
        if not self.training_forward:
            raise ValueError(f"compile must be no for {type(self).__name__}, got {mode}")
        forward = getattr(self.model, self.training_forward)
        setattr(self.model, self.training_forward, torch.compile(forward, mode=mode))

    @property
    def input_spec(self) -> InputSpec | None:
        """The input that the model expects; None if the task does not know it."""
        return None

    def configure_callbacks(self) -> Sequence[Callback]:
        """Hand the input specification to the data module, and return the callbacks of FSDP2.

        Lightning calls this before `setup`.
        """
        data = getattr(self.trainer, "datamodule", None)
        if isinstance(data, DataModule):
            data.input_spec = self.input_spec
        return [EvenForwards()] if isinstance(self.trainer.strategy, FSDP2Strategy) else []

    def parameter_groups(self) -> list[OptimizerGroup]:
        """Return the trained parameters, in groups with their own learning-rate multiplier."""
        return [OptimizerGroup(list(self.model.parameters()))]

    def lr_schedule(self) -> Schedule:
        """Return the learning-rate schedule."""
        return constant

    def configure_optimizers(self) -> Any:
        """Return the optimizer with its learning-rate schedule, which advances at each step."""
        total_steps = int(self.trainer.estimated_stepping_batches)
        return build_optimizer(
            self.optimizer, self.parameter_groups(), self.lr_schedule(), total_steps=total_steps
        )

    def check_training(self) -> None:
        """Raise a ValueError if the task can test its model, but not train it."""

    def target_remarks(self, split: str, counts: TargetCounts) -> list[str]:
        """Return what the model leaves out of the targets of a split.

        Args:
            split: `train` or `validation`.
            counts: Targets of the split.

        Raises:
            ValueError: If the model cannot read them.
        """
        return []

    def report_targets(self) -> None:
        """Print what the loss will read of the training and validation data.

        Raises:
            ValueError: If it is nothing, or the model cannot read it; on all processes.
        """
        data = getattr(self.trainer, "datamodule", None)
        if not isinstance(data, DataModule):
            return
        lines: list[str] = []
        error = ""
        if self.trainer.is_global_zero:
            try:
                for split in ("train", "validation"):
                    if (counts := data.count_targets(split)) is not None:
                        lines += counts.lines(split) + self.target_remarks(split, counts)
            except ValueError as caught:
                error = str(caught)
        if error := self.trainer.strategy.broadcast(error):
            raise ValueError(error)
        for line in lines:
            rank_zero_info(line)

    def on_fit_start(self) -> None:
        """Report the targets, and check the model and the schedulers to be restored.

        Raises:
            ValueError: If the checkpoint was written with other learning-rate schedules, or the
                data have nothing to learn from.
        """
        self.check_training()
        self.report_targets()
        self.seed = torch.initial_seed() if self.seed is None else self.seed
        if self._scheduler_states is not None:
            schedulers = [config.scheduler for config in self.trainer.lr_scheduler_configs]
            states = [scheduler.state_dict() for scheduler in schedulers]
            check_scheduler_states(self._scheduler_states, states)
        self._scheduler_states = None

    def on_train_start(self) -> None:
        """Restore the loader's state, which Lightning loses if a scheduler creates the loader."""
        loader = self.trainer.train_dataloader
        if self._loader_state and isinstance(loader, StatefulDataLoader):
            loader.load_state_dict(self._loader_state)
        self._loader_state = None

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Seed the random numbers of this step."""
        step = self.trainer.fit_loop.total_batch_idx
        seed_step(self.seed or 0, step, self.global_rank, self.device)

    def on_test_start(self) -> None:
        """Add what the data module reports about the test images to the results."""
        data = getattr(self.trainer, "datamodule", None)
        if isinstance(data, DataModule):
            self.notes |= data.test_notes()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the model's description, the seed and the exact position in the run.

        Raises:
            FloatingPointError: If a weight is not finite.
        """
        names, sharded = dict(self.named_parameters()), self._device_mesh is not None
        agree = self.trainer.strategy.broadcast if sharded else list  # rank 0 has whole weights
        check_weights_before_saving(checkpoint["state_dict"], names, agree=agree)
        checkpoint["visattn"] = {"model": model_config(self.model), "seed": self.seed}
        if "loops" in checkpoint:
            normalize_loop_state(checkpoint["loops"]["fit_loop"], self.trainer)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the seed of the run, and keep the states of its loader and schedulers."""
        self.seed = checkpoint.get("visattn", {}).get("seed")
        self._scheduler_states = checkpoint.get("lr_schedulers")
        loops = checkpoint.get("loops", {}).get("fit_loop", {}).get("state_dict", {})
        (self._loader_state,) = loops.get("combined_loader") or [None]

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load weights.

        Raises:
            ValueError: If they belong to another model.
        """
        try:
            return super().load_state_dict(
                shard_state(state_dict, self), strict=strict, assign=assign
            )
        except RuntimeError as error:
            raise ValueError(
                "the checkpoint does not fit the model that the config and the command line "
                f"describe: {error}"
            ) from error


def check_class_names(checkpoint: Mapping[str, Any], class_names: Sequence[str]) -> None:
    """Refuse a checkpoint whose model was trained for other classes, even if there are as many.

    Args:
        checkpoint: Content of the checkpoint.
        class_names: Classes of the task.

    Raises:
        ValueError: If the classes differ.
    """
    arguments = checkpoint.get("visattn", {}).get("model", {}).get("arguments", {})
    names = arguments.get("class_names")
    if names is not None and tuple(names) != tuple(class_names):
        raise ValueError(
            "the checkpoint was trained with other classes; use the same data options. It has "
            f"{list(names)[:5]}, the data {list(class_names)[:5]}"
        )
