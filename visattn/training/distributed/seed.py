"""What a step of training draws at random, from the run's seed and the step's number alone."""

import torch

from visattn.data.loading.sample_seed import mixed


def reseed(seed: int, step: int, rank: int, device: torch.device) -> None:
    """Let all that is drawn from now on, on the CPU and on a device, depend on three numbers.

    A run that is taken up again at a step draws what it would have drawn.

    Args:
        seed: Of the run.
        step: Which of the run's batches it is.
        rank: Of the process; each draws numbers of its own.
        device: Where the model computes.

    Example:
        >>> reseed(3, 7, 0, torch.device("cpu"))
        >>> first = torch.rand(2)
        >>> reseed(3, 7, 0, torch.device("cpu"))
        >>> bool((torch.rand(2) == first).all())
        True
    """
    number = mixed(seed, step, rank)
    torch.default_generator.manual_seed(number)  # torch.manual_seed costs a hundred times as much
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(number)
