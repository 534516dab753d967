"""Counts the operations at which the host would wait for a GPU."""

from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

SYNCS = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "bincount", "lift_fresh"}
"""Operations that read a value of a GPU on the host, or copy one there from pageable memory."""
READS = {Tensor.tolist: "tolist", Tensor.numpy: "numpy", Tensor.cpu: "cpu"}


class SyncCounter(TorchDispatchMode):
    """Counts host syncs by name in `syncs`, those of the backward pass included."""

    def __init__(self) -> None:
        super().__init__()
        self.syncs: Counter[str] = Counter()
        self._reads = _Reads(self.syncs)

    def __enter__(self) -> Any:
        self._reads.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._reads.__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        # A mask has a size that only the device knows.
        by_mask = name in ("index", "index_put", "index_put_", "_index_put_impl_") and any(
            isinstance(index, Tensor) and index.dtype == torch.bool for index in args[1]
        )
        if name in SYNCS or name.startswith(("unique", "_unique")) or by_mask:
            self.syncs[name] += 1
        return func(*args, **(kwargs or {}))


class _Reads(TorchFunctionMode):
    """Counts methods that read a tensor without an operation on a CPU."""

    def __init__(self, syncs: Counter[str]) -> None:
        super().__init__()
        self.syncs = syncs

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if name := READS.get(func):
            self.syncs[name] += 1
        return func(*args, **(kwargs or {}))
