"""How checkpoints get onto the disk and back."""

from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO
from torch import Tensor

from visattn.io.atomic import replacing

_BESIDES = 1.05  # a file holds names and numbers besides the tensors


class AtomicCheckpointIO(TorchCheckpointIO):
    """Write checkpoints whole or not at all; read nothing from them but plain values and weights.

    Lightning's own are written elsewhere and then moved: onto another disk that is full, half of
    one gets the name of a whole one.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        """Write a checkpoint, which takes the place of an older one in one move.

        Raises:
            OSError: If it cannot be written; a full disk is named, with the space that is left.
        """
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        needed = int(_BESIDES * tensor_bytes(checkpoint))
        with replacing(target, needed=needed) as part, part.open("wb") as file:
            torch.save(checkpoint, file)

    def load_checkpoint(
        self, path: Any, map_location: Any = "cpu", weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Return what a checkpoint holds; nothing in it is executed, whatever is asked for."""
        return super().load_checkpoint(path, map_location=map_location, weights_only=True)


def tensor_bytes(held: Any) -> int:
    """Return how many bytes the tensors in nested mappings and lists take.

    Example:
        >>> tensor_bytes({"weights": [torch.zeros(3)], "step": 7})
        12
    """
    if isinstance(held, Tensor):
        return held.numel() * held.element_size()
    if isinstance(held, dict):
        return sum(map(tensor_bytes, held.values()))
    return sum(map(tensor_bytes, held)) if isinstance(held, list | tuple) else 0
