"""Sums and means over all processes of a run, so that several learn what one would."""

from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor, distributed


def processes() -> int:
    """Return how many processes train or evaluate together.

    Example:
        >>> processes()
        1
    """
    known = distributed.is_available() and distributed.is_initialized()
    return distributed.get_world_size() if known else 1


def fair_share(count: int | Tensor, device: torch.device) -> float | Float[Tensor, ""]:
    """Return by what a process multiplies its mean, so that the mean over processes is that of all.

    Gradients are averaged over processes as if each had as many words, or whatever its loss is a
    mean of; a process with more of them must count for more.

    Args:
        count: Of what this process's mean is taken.
        device: Where the processes meet.

    Example:
        >>> fair_share(3, torch.device("cpu"))
        1.0
    """
    if processes() == 1:
        return 1.0
    own = torch.as_tensor(count, dtype=torch.float32, device=device)
    every = own.clone()
    distributed.all_reduce(every)
    return own * processes() / every.clamp(min=1)


def mean_of_all(value: Float[Tensor, ""]) -> Float[Tensor, ""]:
    """Return the mean of a number that each process has.

    Example:
        >>> mean_of_all(torch.tensor(3.0))
        tensor(3.)
    """
    if processes() == 1:
        return value
    every = value.detach().clone()
    distributed.all_reduce(every)
    return every / processes()


def spread_of_all(values: Float[Tensor, "*n"]) -> Float[Tensor, ""]:
    """Return the standard deviation of all values that the processes have, unbiased.

    Example:
        >>> spread_of_all(torch.tensor([1.0, 3.0]))
        tensor(1.4142)
    """
    if processes() == 1:
        return values.std()
    given = values.detach().double()
    sums = torch.stack([given.new_tensor(given.numel()), given.sum(), given.square().sum()])
    distributed.all_reduce(sums)
    count, total, squares = sums.unbind()
    variance = (squares - total.square() / count).clamp(min=0) / (count - 1)
    return variance.sqrt().to(values.dtype)


def known_anywhere(names: Iterable[str]) -> list[str]:
    """Return the names that any process knows, the same list in each.

    What only some processes have must be told by all: else those that tell wait for the others.

    Example:
        >>> known_anywhere({"b", "a"})
        ['a', 'b']
    """
    own = set(names)
    if processes() > 1:
        every: list[set[str]] = [set()] * processes()
        distributed.all_gather_object(every, own)
        own = set().union(*every)
    return sorted(own)
