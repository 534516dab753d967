"""What every task and every data module has in common."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from lightning import LightningDataModule, LightningModule
from torch import nn

from visattn.models.descriptions import describe


class Task(LightningModule, ABC):
    """Something to be trained. A checkpoint of it holds plain values and weights, nothing else.

    Args:
        model: The network that is trained and, in the end, saved.
    """

    monitor: tuple[str, str]
    """The score by which the best checkpoint is chosen, and whether its `max` or `min` is best."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add what `visattn.tasks.checkpoints.read_model` needs to build the model again."""
        checkpoint["visattn"] = {"model": describe(self.model)}

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


class Data(LightningDataModule, ABC):
    """Where samples come from."""

    @property
    @abstractmethod
    def data_info(self) -> dict[str, Any]:
        """Plain facts that a task needs before it can build its model; cheap to know."""

    def examples(self, count: int) -> list[Any]:
        """Return the first validation pictures, as `read_picture` takes them."""
        raise NotImplementedError(f"{type(self).__name__} has no pictures to show")

    @property
    def rank(self) -> int:
        """Which process this is."""
        return self.trainer.global_rank if self.trainer else 0

    @property
    def world(self) -> int:
        """How many processes there are."""
        return self.trainer.world_size if self.trainer else 1

    def transfer_batch_to_device(
        self, batch: Any, device: torch.device, dataloader_idx: int
    ) -> Any:
        """Move the tensors of a batch; every batch of ours knows which those are."""
        return batch.to(device)
