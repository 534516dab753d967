"""What a model computes: multiplications, counted where torch makes them."""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from visattn.blocks.surgery.traces import Example, resting, run


@dataclass
class Work:
    """Multiplications, by what they are for.

    Args:
        weighted: With weights: in convolutions, linear layers, matrix products with a parameter.
        attention: Of features with features: in batched matrix products and scaled dot products.
        gates: One for each element of a product of two tensors, neither of them a single number.
    """

    weighted: int = 0
    attention: int = 0
    gates: int = 0

    @property
    def macs(self) -> int:
        """All of them."""
        return self.weighted + self.attention + self.gates

    def add(self, other: "Work") -> None:
        """Count the work of another here too."""
        self.weighted += other.weighted
        self.attention += other.attention
        self.gates += other.gates


def work(model: nn.Module, example: Example, sites: Mapping[str, nn.Module]) -> dict[str, Work]:
    """Return what is computed at sites in one run, and elsewhere, under the name "".

    If the model itself is a site, which then has that name, there is no elsewhere. Any device will
    do, `meta` among them, on which nothing is computed and all is counted.

    Example:
        >>> work(nn.Linear(3, 5), torch.zeros(2, 3), {})
        {'': Work(weighted=30, attention=0, gates=0)}
    """
    counter = _Counter(model)
    counted = {"": counter.work}
    with resting(model), _entered(sites, counter, counted), counter:
        run(model, example)
    return counted


@contextmanager
def _entered(
    sites: Mapping[str, nn.Module], counter: "_Counter", counted: dict[str, Work]
) -> Generator[None]:
    def watcher(name: str) -> tuple[Callable[..., None], Callable[..., None]]:
        def enter(*_: object) -> None:
            counter.work = counted[name]

        def leave(*_: object) -> None:
            counter.work = counted[""]

        return enter, leave

    handles: list[Any] = []
    try:
        for name, module in sites.items():
            counted[name] = Work()
            enter, leave = watcher(name)
            handles.append(module.register_forward_pre_hook(enter))
            handles.append(module.register_forward_hook(leave))
        yield
    finally:
        for handle in handles:
            handle.remove()


class _Counter(TorchDispatchMode):
    """Count the multiplications of all that is dispatched."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.work = Work()
        self.weights = {_memory(weight) for weight in model.parameters()}

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run an operation of torch and count it."""
        result = func(*args, **(kwargs or {}))
        name = str(func.overloadpacket).removeprefix("aten.")
        if isinstance(result, Tensor) or "scaled_dot_product" in name:
            self.work.add(_counted(name, args, result, self.weights))
        return result


def _memory(x: Tensor) -> int:
    """Return what tells memory apart, on the meta device too; views share it."""
    return cast("Any", StorageWeakRef(x.untyped_storage())).cdata


def _counted(name: str, args: tuple[Any, ...], result: Any, weights: set[int]) -> Work:
    tensors = [arg for arg in args if isinstance(arg, Tensor)]
    if name in ("convolution", "_convolution"):
        moved = tensors[0] if args[6] else result  # a transposed one uses each input as often
        return Work(weighted=moved.numel() * tensors[1].shape[1:].numel())
    if name in ("mm", "addmm", "mv", "addmv", "linear"):
        inner = tensors[0 if name in ("mm", "mv", "linear") else 1].shape[-1]
        return Work(weighted=result.numel() * inner)
    if name in ("bmm", "baddbmm"):
        products = result.numel() * tensors[-1].shape[-2]
        weighted = any(_memory(x) in weights for x in tensors[-2:])
        return Work(weighted=products) if weighted else Work(attention=products)
    if "scaled_dot_product" in name:
        query, key, value = tensors[:3]
        rows = query.shape[:-1].numel() * key.shape[-2]
        return Work(attention=rows * (query.shape[-1] + value.shape[-1]))
    if name in ("mul", "mul_") and len(tensors) == 2 and min(t.numel() for t in tensors) > 1:
        return Work(gates=result.numel())
    return Work()
