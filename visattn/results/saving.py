"""Results as JSON files."""

import json
import os
from abc import ABC, abstractmethod
from typing import Any

from visattn.io.atomic import atomic_write


class SavedAsJson(ABC):
    """A result that can be written to a file."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return the result as values of JSON."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the result as JSON; `visattn overlay PHOTO --maps FILE` draws its maps.

        Args:
            path: The file; it is replaced.

        Raises:
            OSError: If it cannot be written.
            ValueError: If a value is NaN or infinite.

        Example:
            >>> import torch
            >>> from visattn import AttentionMap
            >>> file = getfixture("tmp_path") / "map.json"
            >>> AttentionMap(torch.eye(2), "gate", "gate").save(file)
            >>> AttentionMap.from_dict(json.loads(file.read_text())).values.tolist()
            [[1.0, 0.0], [0.0, 1.0]]
        """
        atomic_write(path, json.dumps(self.to_dict(), allow_nan=False, default=str) + "\n")
