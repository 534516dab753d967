"""Samples for evaluation, two by two, so that each has another one beside it on any process."""

from collections.abc import Iterator

from torch.utils.data import Sampler


class PairsOnce(Sampler[int]):
    """Every sample once, in order; neighbours 0 and 1, 2 and 3, and so on stay on one process.

    Where a control shows a model the picture of another sample, that is the other one of its pair,
    whatever the number of processes. Batches must hold an even number of samples. Of an odd number
    of samples the last one is alone.

    Args:
        count: How many samples there are.
        rank: Which process this is.
        world: How many there are.

    Raises:
        ValueError: If a process would have nothing to do, which makes the others wait for ever.

    Example:
        >>> list(PairsOnce(7, rank=1, world=2))
        [2, 3, 6]
    """

    def __init__(self, count: int, *, rank: int = 0, world: int = 1) -> None:
        pairs = (count + 1) // 2
        if pairs < world:
            raise ValueError(
                f"each of {world} processes needs a pair of samples to evaluate, got {count} "
                "samples; use fewer processes (--trainer.devices), or more samples"
            )
        numbers = (2 * pair + one for pair in range(rank, pairs, world) for one in (0, 1))
        self.indices = [number for number in numbers if number < count]

    def __len__(self) -> int:
        return len(self.indices)

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices)
