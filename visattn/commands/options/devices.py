"""Models on the device that a command line names."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # torch is loaded when a command runs, not for its help
    from torch.nn import Module


def move_to_device(model: "Module", device: str) -> None:
    """Move a model to a device, ready to look.

    Args:
        model: Is set to evaluation.
        device: As torch names it: `cpu`, `cuda`, `cuda:1`, `mps`.

    Raises:
        ValueError: If there is no such device here.
    """
    import torch

    try:
        place = torch.device(device)
        torch.ones((), device=place).add(1).item()  # meta, for one, gives shapes and no numbers
        model.eval().to(place)
    except (RuntimeError, AssertionError, ImportError) as error:  # torch asserts that it has CUDA
        reason = str(error).splitlines()[0]
        if "Expected one of" in reason:  # a list of all that torch was ever made for
            reason = "there is cpu, and where it is built in, cuda, cuda:N, mps"
        raise ValueError(f"--device {device} cannot be used here: {reason}") from error
