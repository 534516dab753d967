"""What a step of training draws at random, from the run's seed and the step's number alone."""

import torch


def reseed(seed: int, number: int, device: torch.device) -> None:
    """Let all that is drawn from now on, on the CPU and on a device, depend on two numbers.

    A run that is taken up again at a step draws what it would have drawn.

    Args:
        seed: Of the run.
        number: Of the step; of the processes of a run, each counts its own.
        device: Where the model computes.

    Example:
        >>> reseed(3, 7, torch.device("cpu"))
        >>> first = torch.rand(2)
        >>> reseed(3, 7, torch.device("cpu"))
        >>> bool((torch.rand(2) == first).all())
        True
    """
    mixed = (seed * 1_000_003 + number) % 2**63
    torch.default_generator.manual_seed(mixed)  # torch.manual_seed costs a hundred times as much
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(mixed)
