"""Reductions over all processes of a run: loss scale, mean, maximum, standard deviation, union."""

from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor, distributed


def world_size() -> int:
    """Return the number of processes.

    Example:
        >>> world_size()
        1
    """
    initialized = distributed.is_available() and distributed.is_initialized()
    return distributed.get_world_size() if initialized else 1


def ddp_loss_scale(count: int | Tensor, device: torch.device) -> float | Float[Tensor, ""]:
    """Return the factor of a local mean loss, so that the DDP average is the mean over all samples.

    DDP averages gradients over processes with equal weights, although their losses are means over
    different numbers of words or samples. The factor is `count * world_size / total count`.

    Args:
        count: Number of values in the mean of this process.
        device: Device for communication.

    Example:
        >>> ddp_loss_scale(3, torch.device("cpu"))
        1.0
    """
    if world_size() == 1:
        return 1.0
    # `full` needs no copy from the host, which would wait for the device.
    own = count if isinstance(count, Tensor) else torch.full((), float(count), device=device)
    gathered = own.to(device, torch.float32, copy=True)
    distributed.all_reduce(gathered)
    return count * world_size() / gathered.clamp(min=1)


def all_reduce_mean(value: Float[Tensor, ""]) -> Float[Tensor, ""]:
    """Return the mean of a scalar over all processes.

    Example:
        >>> all_reduce_mean(torch.tensor(3.0))
        tensor(3.)
    """
    if world_size() == 1:
        return value
    gathered = value.detach().clone()
    distributed.all_reduce(gathered)
    return gathered / world_size()


def all_reduce_max(count: int, device: torch.device) -> int:
    """Return the largest of the counts of all processes, such as the length of a caption.

    Example:
        >>> all_reduce_max(3, torch.device("cpu"))
        3
    """
    if world_size() == 1:
        return count
    gathered = torch.tensor(count, device=device)
    distributed.all_reduce(gathered, op=distributed.ReduceOp.MAX)
    return int(gathered)


def all_reduce_std(values: Float[Tensor, "*n"]) -> Float[Tensor, ""]:
    """Return the unbiased standard deviation of the values of all processes.

    Example:
        >>> all_reduce_std(torch.tensor([1.0, 3.0]))
        tensor(1.4142)
    """
    if world_size() == 1:
        return values.std()
    local = values.detach().double()
    sums = torch.stack([local.new_tensor(local.numel()), local.sum(), local.square().sum()])
    distributed.all_reduce(sums)
    count, total, squares = sums.unbind()
    variance = (squares - total.square() / count).clamp(min=0) / (count - 1)
    return variance.sqrt().to(values.dtype)


def all_gather_union(names: Iterable[str]) -> list[str]:
    """Return the sorted union of names over all processes, such as the metrics to log.

    A metric that only some processes log would let these wait for the others.

    Example:
        >>> all_gather_union({"b", "a"})
        ['a', 'b']
    """
    own = set(names)
    if world_size() > 1:
        gathered: list[set[str]] = [set()] * world_size()
        distributed.all_gather_object(gathered, own)
        own = set().union(*gathered)
    return sorted(own)
