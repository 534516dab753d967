"""Counts the operations of a computation, and those at which the host would wait for a GPU."""

from collections import Counter
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

SYNCS = frozenset(
    {"_local_scalar_dense", "nonzero", "masked_select", "equal", "bincount", "lift_fresh"}
    | {"_unique2", "unique_dim", "unique_consecutive"}
)
"""Operations that read a value of a GPU on the host, or copy one there from pageable memory."""
_VIEWS = frozenset(
    {"detach", "view", "_unsafe_view", "expand", "slice", "select", "transpose", "t", "permute"}
    | {"unsqueeze", "squeeze", "split", "split_with_sizes", "unbind", "alias", "as_strided"}
    | {"unfold", "diagonal", "lift_fresh"}
)
_READS = {"tolist": Tensor.tolist, "numpy": Tensor.numpy, "cpu": Tensor.cpu}


class OpCounter(TorchDispatchMode):
    """Counts operations (`ops`) and host syncs (`syncs`) by name, the backward pass included.

    Views launch no kernel and are left out. The counts are those of a CPU run, so optimizers should
    be `fused`: others keep their step numbers on the CPU, and reading these is no sync on a GPU.

    Example:
        >>> with OpCounter() as counter:
        ...     _ = float((torch.ones(3) + 1).sum())
        >>> sorted(counter.ops), counter.num_syncs
        (['_local_scalar_dense', 'add', 'ones', 'sum'], 1)
    """

    def __init__(self) -> None:
        super().__init__()
        self.ops: Counter[str] = Counter()
        self.syncs: Counter[str] = Counter()
        self._reads = _HostReads(self.syncs)

    @property
    def num_ops(self) -> int:
        """Number of operations."""
        return self.ops.total()

    @property
    def num_syncs(self) -> int:
        """Number of host syncs."""
        return self.syncs.total()

    def reset(self) -> None:
        """Set all counts to 0."""
        self.ops.clear()
        self.syncs.clear()

    def __enter__(self) -> Self:
        """Start to count."""
        self._reads.__enter__()
        return super().__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop counting."""
        super().__exit__(kind, error, trace)
        self._reads.__exit__(kind, error, trace)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Count an operation and run it."""
        name = func.overloadpacket.__name__
        if name not in _VIEWS:
            self.ops[name] += 1
        if name in SYNCS or _selects_by_mask(name, args):
            self.syncs[name] += 1
        return func(*args, **(kwargs or {}))


class _HostReads(TorchFunctionMode):
    """Counts methods that read a tensor without an operation on a CPU, such as `tolist`."""

    def __init__(self, syncs: Counter[str]) -> None:
        super().__init__()
        self._syncs = syncs

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        for name, method in _READS.items():
            if func is method:
                self._syncs[name] += 1
        return func(*args, **(kwargs or {}))


def _selects_by_mask(name: str, args: tuple[Any, ...]) -> bool:
    """Return whether an indexing operation has a mask, whose size only the device knows."""
    if name not in ("index", "index_put", "index_put_", "_index_put_impl_"):
        return name == "repeat_interleave" and isinstance(args[0], Tensor)
    return any(isinstance(i, Tensor) and i.dtype == torch.bool for i in args[1])
