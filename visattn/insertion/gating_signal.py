"""The gating signal of an inserted block: what another module returned, carried to the block."""

import inspect
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from visattn.insertion.feature_layout import Grid


class Signal:
    """The output of a module, kept until the blocks of a site take it, in the same forward pass.

    A hook of the module hands it over; `deepcopy` and `pickle` take the hook along.

    Args:
        name: Of the module in its model.
        source: The module.
        last: Whether it returns its channels on the last axis.

    Example:
        >>> relu = nn.ReLU()
        >>> signal = Signal("relu", relu, last=False)
        >>> signal.listen()
        >>> _ = relu(torch.ones(1, 1, 1, 1))
        >>> signal.take(torch.zeros(1, 1, 1, 1), "up")
        tensor([[[[1.]]]])
    """

    def __init__(self, name: str, source: nn.Module, *, last: bool) -> None:
        self.name, self.source, self.last = name, source, last
        # By device: replicas of a model on several devices share this object.
        self.kept: dict[torch.device, Tensor] = {}

    def listen(self) -> None:
        """Let the module hand over what it returns."""
        self.source.register_forward_hook(self.keep)

    def release(self) -> None:
        """Take the hook away from the module."""
        hooks = cast("dict[int, Any]", vars(self.source)["_forward_hooks"])
        for key in [k for k, hook in hooks.items() if getattr(hook, "__self__", None) is self]:
            del hooks[key]

    def keep(self, _: nn.Module, __: object, output: object) -> None:
        """Keep what the module returned: its hook."""
        if isinstance(output, Tensor):
            self.kept[output.device] = output

    def take(self, x: Tensor, site: str) -> Tensor:
        """Return the signal for features, channels first; it is kept no longer.

        Raises:
            RuntimeError: If the module did not run before the site.
        """
        signal = self.kept.pop(x.device, None)
        if signal is None:
            raise RuntimeError(
                f"the signal of {site} is not there: {self.name} must run before it, in the same "
                f"forward pass, once for each time, and on the same device as its features "
                f"({x.device}); part of a model does not do, nor recomputed segments of "
                "torch.utils.checkpoint"
            )
        return signal.movedim(-1, 1) if self.last else signal

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy gets: everything but what is kept for the moment."""
        return {**vars(self), "kept": {}}


def takes_signal(block: nn.Module) -> bool:
    """Return whether a block's forward has a parameter `signal`.

    Example:
        >>> takes_signal(nn.ReLU())
        False
    """
    return "signal" in inspect.signature(block.forward).parameters


def check_proportion(features: Grid, signal: Grid, names: Mapping[str, str]) -> None:
    """Raise unless two grids can lie over the same image: one factor leads to either side.

    Args:
        features: Height and width of the features.
        signal: Height and width of the signal; a place more or less on either side will do.
        names: Of the `site` and the `signal`, for the error.

    Raises:
        ValueError: If no resampling brings one over the other without stretching it.

    Example:
        >>> check_proportion((20, 28), (10, 14), {})
    """
    low = max((s - 1) / f for s, f in zip(signal, features, strict=True))
    high = min((s + 1) / f for s, f in zip(signal, features, strict=True))
    if low > high:
        raise ValueError(
            f"the signal of {names['site']} must cover the same image: features of "
            f"{features[0]} x {features[1]} and a signal of {signal[0]} x {signal[1]} from "
            f"{names['signal']} have other proportions; choose another module"
        )
