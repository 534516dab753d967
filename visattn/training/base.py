"""What every task and every data module has in common."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import torch
from lightning import LightningDataModule, LightningModule
from torch import nn

from visattn.data.loading.samplers import LengthBucketBatchSampler
from visattn.data.loading.stateful_loader import StatefulDataLoader
from visattn.models.serialization.config import describe
from visattn.models.serialization.finite_weights import check_weights
from visattn.training.checkpoint.loop_state import settle
from visattn.training.checkpoint.resume_checks import check_schedules
from visattn.training.distributed.seed import reseed


class Task(LightningModule, ABC):
    """Something to be trained. A checkpoint of it holds plain values and weights, nothing else.

    What is drawn at a step depends on the seed of the run, the step and the process alone, so that
    a run that goes on from a checkpoint goes where it would have gone without a break.

    Args:
        model: The network that is trained and, in the end, saved.
    """

    monitor: tuple[str, str]
    """The score by which the best checkpoint is chosen, and whether its `max` or `min` is best."""

    val_scores: Sequence[str] = ()
    """The scores that validation logs during training; empty if they are not known before."""

    idle_parameters = False
    """Whether some parameters have no part in some steps, which several processes must know."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.seed: int | None = None
        self._place: dict[str, int] | None = None
        self._schedules: list[Any] | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Copy modules and values, not the trainer; functions are shared, as Python shares its own.

        What the command line makes of `--model.optimizer` is a partial that refers to the command
        line itself, and so to the data, the trainer and the processes that it started.
        """
        functions = [value for value in vars(self).values() if callable(value)]
        memo |= {id(value): value for value in functions if not isinstance(value, nn.Module)}
        copied = memo[id(self)] = type(self).__new__(type(self))
        copied.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        return copied

    def on_fit_start(self) -> None:
        """Remember the seed of the run, and check the schedules that are about to be restored.

        Raises:
            ValueError: If the checkpoint was written with other learning-rate schedules.
        """
        self.seed = torch.initial_seed() if self.seed is None else self.seed
        if self._schedules is not None:
            schedulers = [config.scheduler for config in self.trainer.lr_scheduler_configs]
            check_schedules(self._schedules, [one.state_dict() for one in schedulers])
        self._schedules = None

    def on_train_start(self) -> None:
        """Let the loader go on where it was; Lightning forgets that if a schedule asked for it."""
        loader = self.trainer.train_dataloader
        if self._place and isinstance(loader, StatefulDataLoader):
            loader.load_state_dict(self._place)
        self._place = None

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Draw as this step does, whatever was drawn before."""
        reseed(self.seed or 0, self.trainer.fit_loop.total_batch_idx, self.global_rank, self.device)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add what is needed to build the model again, and to go on exactly.

        Raises:
            FloatingPointError: If a weight is no number.
        """
        check_weights(checkpoint["state_dict"], dict(self.named_parameters()))
        checkpoint["visattn"] = {"model": describe(self.model), "seed": self.seed}
        if "loops" in checkpoint:
            settle(checkpoint["loops"]["fit_loop"], self.trainer)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Go on with the seed of the run that wrote the checkpoint, and where its loader was."""
        self.seed = checkpoint.get("visattn", {}).get("seed")
        self._schedules = checkpoint.get("lr_schedulers")
        loops = checkpoint.get("loops", {}).get("fit_loop", {}).get("state_dict", {})
        (self._place,) = loops.get("combined_loader") or [None]

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Take over weights.

        Raises:
            ValueError: If they are those of another model.
        """
        try:
            return super().load_state_dict(state_dict, strict=strict, assign=assign)
        except RuntimeError as error:
            raise ValueError(
                "the checkpoint does not fit the model that the config and the command line "
                f"describe: {error}"
            ) from error


class DataModule(LightningDataModule, ABC):
    """Where samples come from."""

    batch: int
    """Samples per training batch and process."""
    seed: int
    """Of the order in which training samples come."""

    @property
    @abstractmethod
    def data_info(self) -> dict[str, Any]:
        """Plain facts that a task needs before it can build its model; cheap to know."""

    def examples(self, count: int) -> list[Any]:
        """Return the first validation images, as `read_image` takes them."""
        raise NotImplementedError(f"{type(self).__name__} has no images to show")

    @property
    def rank(self) -> int:
        """Which process this is."""
        return self.trainer.global_rank if self.trainer else 0

    @property
    def world(self) -> int:
        """How many processes there are."""
        return self.trainer.world_size if self.trainer else 1

    def order(
        self, count: int, *, length: Callable[[int], int] = lambda _: 0, pool: int = 1
    ) -> LengthBucketBatchSampler:
        """Return the order in which training samples come, each process its share of them.

        Args:
            count: How many samples there are.
            length: The length of a sample; those of a batch are of similar length.
            pool: Batches that are sorted together.
        """
        return LengthBucketBatchSampler(
            count,
            length,
            batch=self.batch,
            pool=pool,
            seed=self.seed,
            rank=self.rank,
            world=self.world,
        )

    def transfer_batch_to_device(
        self, batch: Any, device: torch.device, dataloader_idx: int
    ) -> Any:
        """Move the tensors of a batch; every batch of ours knows which those are."""
        return batch.to(device)
