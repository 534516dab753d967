"""Checkpoint I/O: atomic writes, and loading without executing pickled code."""

from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO
from torch import Tensor

from visattn.io.atomic import atomic_replace

_SIZE_FACTOR = 1.05  # a file holds names and numbers besides the tensors


class AtomicCheckpointIO(TorchCheckpointIO):
    """Write checkpoints atomically, and load only tensors and plain values.

    Lightning writes a checkpoint to another place and then moves it. If that is a move to another
    disk, which is full, a partial file gets the final name.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        """Write a checkpoint and atomically replace an older one.

        Raises:
            OSError: If it cannot be written; for a full disk, with the free and the needed space.
        """
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        needed = int(_SIZE_FACTOR * tensor_bytes(checkpoint))
        with atomic_replace(target, needed_bytes=needed) as part, part.open("wb") as file:
            torch.save(checkpoint, file)

    def load_checkpoint(
        self, path: Any, map_location: Any = "cpu", weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Return the content of a checkpoint, always with `weights_only=True`."""
        return super().load_checkpoint(path, map_location=map_location, weights_only=True)


def tensor_bytes(content: Any) -> int:
    """Return the size in bytes of the tensors in nested mappings and lists.

    Example:
        >>> tensor_bytes({"weights": [torch.zeros(3)], "step": 7})
        12
    """
    if isinstance(content, Tensor):
        return content.numel() * content.element_size()
    if isinstance(content, dict):
        return sum(map(tensor_bytes, content.values()))
    return sum(map(tensor_bytes, content)) if isinstance(content, list | tuple) else 0
