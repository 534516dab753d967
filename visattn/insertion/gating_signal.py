"""Gating signal of an inserted block: the output of another module, carried by a hook."""

import inspect
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from visattn.insertion.feature_layout import Grid


class GatingSignal:
    """Output of a module, stored until the blocks of a site use it in the same forward pass.

    A forward hook of the module stores it; `deepcopy` and `pickle` copy the hook.

    Args:
        name: Name of the module in its model.
        source: The module.
        channels_last: Whether its output is channels-last.

    Example:
        >>> relu = nn.ReLU()
        >>> signal = GatingSignal("relu", relu, channels_last=False)
        >>> signal.attach()
        >>> _ = relu(torch.ones(1, 1, 1, 1))
        >>> signal.pop(torch.zeros(1, 1, 1, 1), "up")
        tensor([[[[1.]]]])
    """

    def __init__(self, name: str, source: nn.Module, *, channels_last: bool) -> None:
        self.name, self.source, self.channels_last = name, source, channels_last
        # By device: replicas of a model on several devices share this object.
        self.outputs: dict[torch.device, Tensor] = {}

    def attach(self) -> None:
        """Register the forward hook of the source module."""
        self.source.register_forward_hook(self.store)

    def detach(self) -> None:
        """Remove the forward hook of the source module."""
        hooks = cast("dict[int, Any]", vars(self.source)["_forward_hooks"])
        for key in [k for k, hook in hooks.items() if getattr(hook, "__self__", None) is self]:
            del hooks[key]

    def store(self, _: nn.Module, __: object, output: object) -> None:
        """Store the output of the source module (forward hook)."""
        if isinstance(output, Tensor):
            self.outputs[output.device] = output

    def pop(self, x: Tensor, site: str) -> Tensor:
        """Return the signal for features, channels-first, and discard it.

        Raises:
            RuntimeError: If the source module did not run before the site.
        """
        signal = self.outputs.pop(x.device, None)
        if signal is None:
            raise RuntimeError(
                f"the signal of {site} is missing: {self.name} must run before it, in the same "
                f"forward pass, once per call, and on the device of its features ({x.device}); "
                "running part of the model or recomputing it in torch.utils.checkpoint is not "
                "supported"
            )
        return signal.movedim(-1, 1) if self.channels_last else signal

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without stored outputs, for copies."""
        return {**vars(self), "kept": {}}


def accepts_signal(block: nn.Module) -> bool:
    """Return whether the forward of a block has a parameter `signal`.

    Example:
        >>> accepts_signal(nn.ReLU())
        False
    """
    return "signal" in inspect.signature(block.forward).parameters


def check_aspect_ratio(features: Grid, signal: Grid, names: Mapping[str, str]) -> None:
    """Raise unless two feature maps can cover the same image, with one scale factor for both axes.

    Args:
        features: Height and width of the features.
        signal: Height and width of the signal, up to one position per axis.
        names: Names of the `site` and the `signal`, for the message.

    Raises:
        ValueError: If the aspect ratios differ.

    Example:
        >>> check_aspect_ratio((20, 28), (10, 14), {})
    """
    low = max((s - 1) / f for s, f in zip(signal, features, strict=True))
    high = min((s + 1) / f for s, f in zip(signal, features, strict=True))
    if low > high:
        raise ValueError(
            f"the signal of {names['site']} must cover the same image: features of "
            f"{features[0]} x {features[1]} and a signal of {signal[0]} x {signal[1]} from "
            f"{names['signal']} have different aspect ratios; choose another module"
        )
