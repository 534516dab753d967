"""The base class of training tasks."""

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from lightning import Callback, LightningModule
from lightning.pytorch.callbacks import GradientAccumulationScheduler, WeightAveraging
from lightning.pytorch.plugins.precision import MixedPrecision, Precision
from lightning.pytorch.utilities import GradClipAlgorithmType, rank_zero_info
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from visattn.data.loading import StatefulDataLoader
from visattn.models.base import ImageClassifier
from visattn.models.config import model_config
from visattn.models.saving import load
from visattn.models.weights import describe_mismatch
from visattn.training.checkpoint import check_weights_before_saving, normalize_loop_state
from visattn.training.data_module import DataModule, InputSpec
from visattn.training.metrics import Evaluation
from visattn.training.optim import OptimConfig, parameters_by_part, undecayed
from visattn.training.reduce import all_gather_union, seed_step

_OPTIM = OptimConfig()
_LOWER_IS_BETTER = {"loss", "error", "calibration"}


class Task(LightningModule, ABC):
    """A model with its losses, metrics and optimizer.

    A checkpoint has only plain values and weights. The random numbers of a training step depend
    only on the seed of the run, the step and the process, so that a resumed run continues exactly
    as without the interruption.

    Validation and test call `evaluate` for each batch. The `evaluations` that it updates are logged
    and reset at the end of the epoch. A task that builds its model from the data has an argument
    `data_info` with plain values from the data module; `training/cli.py` links them.

    Args:
        model: The network that is trained and saved.
        optim: The optimizer and its schedule.
        monitor: The validation metric that selects the best checkpoint.
    """

    default_optimizer = staticmethod(partial(AdamW, lr=1e-3, weight_decay=1e-2))
    """Builds the optimizer if `optim` has none."""

    saved_names: ClassVar[Mapping[str, str]] = {
        "class_names": "classes",
        "words": "words",
        "answers": "answers",
    }
    """Attributes of the model that must equal those of a checkpoint, with names for errors."""

    monitor: tuple[str, Literal["min", "max"]]
    """The metric that selects the best checkpoint, and `max` or `min`."""

    data: DataModule | None
    """The data of the run, after `connect`."""

    idle_parameters = False
    """Whether some steps leave parameters without a gradient (DDP's `find_unused_parameters`)."""

    def __init__(
        self, model: nn.Module, optim: OptimConfig = _OPTIM, monitor: str = "val/loss"
    ) -> None:
        super().__init__()
        self.model = model
        self.optim = optim
        self.monitor = monitor_with_mode(monitor)
        self.evaluations = nn.ModuleDict()
        self.data = None
        self.seed: int | None = None
        self.notes: dict[str, Any] = {}
        self._updated: set[str] = set()
        self._loader_state: dict[str, int] | None = None

    @property
    def input_spec(self) -> InputSpec | None:
        """The input that the model or its encoder expects; None if unknown."""
        for part in (getattr(self.model, "encoder", None), self.model):
            if all(hasattr(part, name) for name in ("img_size", "mean", "std")):
                found: Any = part
                return InputSpec(found.img_size, found.mean, found.std)
        return None

    @property
    def val_scores(self) -> Sequence[str]:
        """The metrics that validation logs during training; empty if unknown."""
        names = self.evaluations["val"].names if "val" in self.evaluations else ()
        return tuple(f"val/{name}" for name in names)  # type: ignore[union-attr]

    @property
    def fitting(self) -> bool:
        """Whether validation is part of `fit`, without controls and notes."""
        return self.trainer.state.fn == "fit"

    def configure_callbacks(self) -> Sequence[Callback]:
        """Connect the data of a script's own `Trainer`; Lightning calls this before `setup`."""
        data = getattr(self.trainer, "datamodule", None)
        data = data if isinstance(data, DataModule) else None
        if data is not self.data:
            connect(self, data)
        return []

    def parts(self) -> Mapping[str, Sequence[nn.Parameter]]:
        """Return the trainable parameters of each part, for `optim.lr_mults`."""
        return parameters_by_part(self.model)

    def configure_optimizers(self) -> Any:
        """Return the optimizer with its learning-rate schedule, which advances at each step."""
        return self.optim.build(
            self.parts(),
            total_steps=self._total_steps(),
            default=self.default_optimizer,
            no_weight_decay=undecayed(self.model),
        )

    @property
    def lr(self) -> float:
        """The learning rate, which Lightning's `LearningRateFinder` sets before the first step."""
        return self.trainer.optimizers[0].defaults["lr"]

    @lr.setter
    def lr(self, value: float) -> None:
        groups = self.trainer.optimizers[0].param_groups
        scheduler: Any = self.trainer.lr_scheduler_configs[0].scheduler
        scheduler.base_lrs = [value * group["lr_mult"] for group in groups]

    def _total_steps(self) -> float:
        """Return the optimizer steps of the run; infinite for one without an end."""
        trainer: Any = self.trainer
        steps = trainer.estimated_stepping_batches
        for callback in trainer.callbacks:
            # Lightning uses the accumulation factor of the first epoch for all.
            if isinstance(callback, GradientAccumulationScheduler) and trainer.max_epochs > 0:
                factors = map(callback.get_accumulate_grad_batches, range(trainer.max_epochs))
                steps = sum(math.ceil(trainer.num_training_batches / each) for each in factors)
                steps = min(steps, trainer.max_steps if trainer.max_steps > 0 else steps)
        return steps

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip the gradients, also for fused optimizers in mixed precision, unlike Lightning.

        In bfloat16 there is no loss scale that the fused step would undo after clipping.
        """
        plugin = self.trainer.precision_plugin
        if isinstance(plugin, MixedPrecision) and plugin.scaler is None and gradient_clip_val:
            algorithm = GradClipAlgorithmType(gradient_clip_algorithm or "norm")
            Precision.clip_gradients(plugin, optimizer, gradient_clip_val, algorithm)
        else:
            super().configure_gradient_clipping(
                optimizer, gradient_clip_val, gradient_clip_algorithm
            )

    @abstractmethod
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Return the loss of a batch."""

    def add_evaluations(self, build: Callable[[], Evaluation]) -> None:
        """Add the metrics of validation, test and the second test set, `novel`."""
        self.evaluations.update({split: build() for split in ("val", "test", "novel")})

    def evaluation(self, split: str) -> Any:
        """Return the metrics of a split to update them; the end of the epoch logs them."""
        self._updated.add(split)
        return self.evaluations[split]

    def evaluate(self, batch: Any, split: str) -> Any:
        """Update the metrics of a split.

        Args:
            batch: A batch of the split.
            split: `val`; `test`; or `novel`, the second test set.
        """
        raise NotImplementedError(f"{type(self).__name__} has no metrics")

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Update the metrics of the validation data."""
        self.evaluate(batch, "val")

    def test_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Update the metrics of a test set."""
        self.evaluate(batch, "novel" if dataloader_idx else "test")

    def on_validation_epoch_end(self) -> None:
        """Log, in every process, metrics that any process updated, so that none hangs."""
        for split in all_gather_union(self._updated):
            evaluation: Any = self.evaluations[split]
            for name, value in evaluation.compute().items():
                shown = name == self.monitor[0].rpartition("/")[2]
                self.log(f"{split}/{name}", value, prog_bar=shown, sync_dist=True)
            if not self.fitting:
                self.notes |= evaluation.notes(split)
            evaluation.reset()
        self._updated.clear()

    on_test_epoch_end = on_validation_epoch_end

    def check_training(self) -> None:
        """Raise a ValueError if the task can test its model, but not train it."""

    def initialize(self, checkpoint: str | os.PathLike[str]) -> None:
        """Load only the weights of the model of another run.

        Args:
            checkpoint: A checkpoint of a model with the same architecture and words. The last layer
                of a classifier for other classes is not loaded.

        Raises:
            FileNotFoundError: If there is none.
            ValueError: If it is not a checkpoint, or is of another model.
        """
        model = load(checkpoint)
        saved = {name: getattr(model, name, None) for name in self.saved_names}
        own = self.model
        left: set[str] = set()
        if isinstance(own, ImageClassifier) and saved.pop("class_names") != own.class_names:
            last: Any = own.head
            head = {id(weight) for weight in last.parameters()}
            left = {f"model.{name}" for name, each in own.named_parameters() if id(each) in head}
            rank_zero_info(f"{checkpoint} has other classes: the last layer starts randomly")
        check_same(saved, own, self.saved_names)
        weights = {f"model.{name}": value for name, value in model.state_dict().items()}
        weights |= {name: self.state_dict()[name] for name in left}
        rest = {k: v for k, v in self.state_dict().items() if not k.startswith("model.")}
        self.load_state_dict(rest | weights)

    def on_fit_start(self) -> None:
        """Report statistics of the data, and check the model."""
        self.check_training()
        for line in self.data.report() if self.data else ():
            rank_zero_info(line)
        self._report_frozen()
        self.seed = torch.initial_seed() if self.seed is None else self.seed

    def _report_frozen(self) -> None:
        """Print a message if frozen weights of a backbone are random."""
        kept = 0 in (self.optim.lr_mults.get(name) for name in ("backbone", "encoder"))
        for part in self.model.modules():
            frozen = kept or any(not weight.requires_grad for weight in part.parameters())
            if getattr(part, "random_weights", False) and frozen:
                rank_zero_info(
                    f"the frozen weights of {type(part).__name__} are random: set pretrained: true "
                    "or weights: FILE of it, or train them"
                )

    def on_train_start(self) -> None:
        """Restore the loader's state, which Lightning loses if a scheduler creates the loader."""
        loader = self.trainer.train_dataloader
        if self._loader_state and isinstance(loader, StatefulDataLoader):
            loader.load_state_dict(self._loader_state)
        self._loader_state = None

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Seed the random numbers of this step."""
        # By batch, not optimizer step, since accumulated batches need different numbers.
        loop = self.trainer.fit_loop
        step = loop.total_batch_idx
        # The x axis of logs, which Lightning resumes with an offset of a step.
        loop.epoch_loop._batches_that_stepped = self.global_step  # noqa: SLF001
        seed_step(self.seed or 0, step, self.global_rank, self.device)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the model's description, the seed and the exact position in the run.

        Raises:
            FloatingPointError: If a weight is not finite.
        """
        names = dict(self.named_parameters())
        check_weights_before_saving(checkpoint["state_dict"], names)
        mode = getattr(self.data, "resize_mode", None)
        config = {**model_config(self.model), "resize_mode": mode}
        checkpoint["visattn"] = {"model": config, "seed": self.seed}
        if "loops" in checkpoint:
            normalize_loop_state(checkpoint["loops"]["fit_loop"], self.trainer)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the seed of the run, and keep the state of its loader for later.

        Raises an error for a model that was trained for other classes, words or answers.
        """
        # Lightning calls this before loading the weights, whose shapes may fit other classes too.
        saved = checkpoint.get("visattn", {})
        check_same(saved.get("model", {}).get("arguments", {}), self.model, self.saved_names)
        self.seed = saved.get("seed")
        if "current_model_state" in checkpoint and self.fitting:
            callbacks = getattr(self.trainer, "callbacks", ())
            if not any(isinstance(each, WeightAveraging) for each in callbacks):
                raise ValueError(
                    "the checkpoint has averaged weights: keep the callback EMA of its "
                    "run, or start a run from them with --init_from"
                )
        loops = checkpoint.get("loops", {}).get("fit_loop", {}).get("state_dict", {})
        (self._loader_state,) = loops.get("combined_loader") or [None]

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load weights; raise an error for those of another model."""
        # Runs of 0.1.0 with hard attention or glimpses saved a moving average of the reward.
        kept = {key: each for key, each in state_dict.items() if key != "average_reward"}
        try:
            return super().load_state_dict(kept, strict=strict, assign=assign)
        except RuntimeError as error:
            raise ValueError(
                "the checkpoint does not fit the model that the config and the command line "
                f"describe: {describe_mismatch(self.state_dict(), kept) or error}"
            ) from error


def connect(task: Task, data: DataModule | None) -> None:
    """Give a data module the input spec of the model, and a task its data.

    `visattn fit`, `validate` and `test` do this after building both. In a script with its own
    `Trainer`, the task does it when training starts.

    Args:
        task: The task.
        data: Its data; None for other loaders.

    Example:
        >>> from visattn.models import AttentionResNet
        >>> from visattn.data import SingleObjects
        >>> from visattn.training import ClassificationData, ClassificationTask
        >>> data = ClassificationData(SingleObjects(train=3))
        >>> task = ClassificationTask(lambda names: AttentionResNet(names, depth=8), data.data_info)
        >>> connect(task, data)
        >>> data.input_spec.image_size
        (32, 32)
    """
    task.data = data
    if data is not None:
        data.input_spec = task.input_spec


def monitor_with_mode(metric: str) -> tuple[str, Literal["min", "max"]]:
    """Return a metric and its `mode` for Lightning's `ModelCheckpoint`.

    Example:
        >>> monitor_with_mode("val/loss"), monitor_with_mode("val/cider-d")
        (('val/loss', 'min'), ('val/cider-d', 'max'))
    """
    words = metric.rpartition("/")[2].split("_")
    return metric, "min" if _LOWER_IS_BETTER.intersection(words) else "max"


def check_same(saved: Mapping[str, Any], model: nn.Module, names: Mapping[str, str]) -> None:
    """Check that a saved model was trained for the same classes or words, not just as many.

    `names` are the attributes that must be equal if both have them, with names for the error.

    Example:
        >>> model = nn.Linear(2, 2)
        >>> model.class_names = ("cat", "dog")
        >>> check_same({"class_names": ["cat", "hen"]}, model, {"class_names": "classes"})
        Traceback (most recent call last):
        ValueError: the checkpoint was trained with other classes; use the same data options...
    """
    for name, title in names.items():
        old = saved.get(name)
        new = getattr(model, name, None)
        if old is None or new is None or tuple(old) == tuple(new):
            continue
        only = sorted(set(old) ^ set(new))[:5]
        difference = f"only one of the two has {only}" if only else "their order differs"
        raise ValueError(
            f"the checkpoint was trained with other {title}; use the same data options: "
            f"{difference}"
        )
