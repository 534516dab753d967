"""Blocks at a site of a model, with the gating signal of another module."""

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.fx import Proxy, Tracer

from visattn.blocks.tap import refuse_scripting
from visattn.insertion.resolutions import Grid


class GatingSignal:
    """Output of a module, stored until the blocks of a site use it in the same forward pass.

    A forward hook of the module stores it; `deepcopy` and `pickle` copy the hook.

    Example:
        >>> relu = nn.ReLU()
        >>> signal = GatingSignal("relu", relu, channels_last=False)
        >>> signal.attach()
        >>> _ = relu(torch.ones(1, 1, 1, 1))
        >>> signal.pop(torch.zeros(1, 1, 1, 1), "up")
        tensor([[[[1.]]]])
    """

    def __init__(self, name: str, source: nn.Module, *, channels_last: bool) -> None:
        self.name = name
        self.source = source
        self.channels_last = channels_last
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
        return {**vars(self), "outputs": {}}


def accepts_signal(block: nn.Module) -> bool:
    """Return whether the forward of a block has a parameter `signal`.

    Example:
        >>> accepts_signal(nn.ReLU())
        False
    """
    return "signal" in inspect.signature(block.forward).parameters


def check_aspect_ratio(features: Grid, signal: Grid, names: Mapping[str, str]) -> None:
    """Raise unless two feature maps can cover the same image, with one scale factor for both axes.

    The message names the `site` and the `signal`.

    Raises:
        ValueError: If the aspect ratios differ.

    Example:
        >>> check_aspect_ratio((20, 28), (10, 14), {})
    """
    # A side was rounded by less than a cell, either way: s on the signal and f on the features
    # allow factors from (s - 1) / f to (s + 1) / f. One factor must suit both axes.
    low = max((s - 1) / f for s, f in zip(signal, features, strict=True))
    high = min((s + 1) / f for s, f in zip(signal, features, strict=True))
    if low > high:
        raise ValueError(
            f"the signal of {names['site']} must cover the same image: features of "
            f"{features[0]} x {features[1]} and a signal of {signal[0]} x {signal[1]} from "
            f"{names['signal']} have different aspect ratios; choose another module"
        )


CHILD_NAME = "visattn"
"""Name of the child module that holds the blocks inserted after a module."""


class InsertedBlock(nn.Module):
    """Sequence of inserted blocks, each optionally with an identity scale initialized to zero.

    With an identity scale a block computes x + scale (block(x) - x), which is x at initialization.

    Args:
        identity_init: Names of the blocks that get an identity scale.

    Example:
        >>> inserted = InsertedBlock({"relu": torch.nn.ReLU()}, identity_init=["relu"])
        >>> inserted(torch.tensor([[[[-1.0, 2.0]]]]))
        tensor([[[[-1.,  2.]]]], grad_fn=<AddBackward0>)
    """

    def __init__(
        self,
        blocks: dict[str, nn.Module],
        *,
        identity_init: Sequence[str] = (),
        channels_last: bool = False,
        signal: GatingSignal | None = None,
    ) -> None:
        super().__init__()
        self.names = tuple(blocks)
        self.channels_last = channels_last
        self.signal = signal
        self.gated = tuple(name for name in blocks if signal and accepts_signal(blocks[name]))
        for name, block in blocks.items():
            self.add_module(name, block)
            scale = nn.Parameter(torch.zeros(1)) if name in identity_init else None
            self.register_parameter(scale_name(name), scale)

    def remove(self, names: Sequence[str]) -> None:
        """Remove blocks by name; the signal goes with the last block that takes one."""
        self.names = tuple(name for name in self.names if name not in names)
        self.gated = tuple(name for name in self.gated if name in self.names)
        for name in names:
            delattr(self, name)
            delattr(self, scale_name(name))
        if self.signal and not self.gated:
            self.signal.detach()
            self.signal = None

    def __prepare_scriptable__(self) -> None:
        """Refuse `torch.jit.script`, which calls this first."""
        refuse_scripting()

    def forward(self, x: Float[Tensor, "b i j k"] | Proxy) -> Float[Tensor, "b i j k"] | Proxy:
        """Return the features after attention.

        For `torch.fx` it is one node, since blocks may branch on shapes.
        """
        if isinstance(x, Proxy):
            if self.signal:
                raise RuntimeError(
                    f"torch.fx cannot pass the signal of {self.signal.name} to "
                    f"{' + '.join(self.names)}; torch.export can"
                )
            return x.tracer.create_proxy("call_module", module_path(x, self), (x,), {})
        y = x.movedim(-1, 1) if self.channels_last else x
        signal = self.signal.pop(x, " + ".join(self.names)) if self.signal else None
        for name in self.names:
            y = self._apply_block(name, y, signal if name in self.gated else None)
        return y.movedim(1, -1).contiguous() if self.channels_last else y

    def _apply_block(
        self, name: str, x: Float[Tensor, "b c y x"], signal: Float[Tensor, "b g _y _x"] | None
    ) -> Float[Tensor, "b c y x"]:
        block = cast("nn.Module", getattr(self, name))
        # Under autocast the output dtype of a block may differ from its input dtype.
        y = (block(x) if signal is None else block(x, signal)).to(x.dtype)
        scale = cast("nn.Parameter | None", getattr(self, scale_name(name)))
        return y if scale is None else x + scale.to(x.dtype) * (y - x)

    @property
    def identity_scales(self) -> list[nn.Parameter]:
        """Identity scales, which no paper has."""
        scales = (getattr(self, scale_name(name)) for name in self.names)
        return [scale for scale in scales if scale is not None]


def module_path(x: Proxy, module: nn.Module) -> str:
    """Return the name of a module in the model that is being traced."""
    return cast("Tracer", x.tracer).path_of_module(module)


def scale_name(block: str) -> str:
    """Return the parameter name of the identity scale of a block."""
    return f"{block}_scale"


def attention_hook(host: nn.Module, _: Any, output: Tensor | Proxy) -> Tensor | Proxy:
    """Apply the inserted blocks of a module to its output: the forward hook of all hosts.

    It looks the blocks up in the module, so that a copy of a model uses its own.
    """
    return cast("InsertedBlock", getattr(host, CHILD_NAME))(output)


def named_modules(model: nn.Module, *, include_inserted: bool = True) -> dict[str, nn.Module]:
    """Return the modules of a model by name, with or without inserted blocks."""
    hidden = set[int]()
    if not include_inserted:
        for module in model.modules():
            if isinstance(module, InsertedBlock):
                hidden.update(map(id, module.modules()))
    named = cast("Iterable[tuple[str, nn.Module]]", model.named_modules())
    return {name: module for name, module in named if id(module) not in hidden}


def get_inserted(host: nn.Module) -> InsertedBlock | None:
    """Return the blocks inserted after a module, if any."""
    child = getattr(host, CHILD_NAME, None)
    return child if isinstance(child, InsertedBlock) else None


def attach(host: nn.Module, inserted: InsertedBlock) -> None:
    """Insert blocks after a module: as the last child of a `Sequential`, otherwise by a hook."""
    host.add_module(CHILD_NAME, inserted)
    if not isinstance(host, nn.Sequential):
        host.register_forward_hook(attention_hook)
    if inserted.signal:
        inserted.signal.attach()


def detach(host: nn.Module) -> None:
    """Remove the inserted blocks of a module, with its hook and that of its signal."""
    inserted = get_inserted(host)
    if inserted and inserted.signal:
        inserted.signal.detach()
    delattr(host, CHILD_NAME)
    # The hook handle is not stored, since a copy of the model could not use it.
    hooks = cast("dict[int, object]", vars(host)["_forward_hooks"])
    for key in [key for key, hook in hooks.items() if hook is attention_hook]:
        del hooks[key]


def has_custom_loop(module: nn.Module) -> bool:
    """Return whether a container iterates over its children in custom code."""
    cls = next(cls for cls in type(module).__mro__ if "forward" in vars(cls))
    return isinstance(module, (nn.ModuleDict, nn.ModuleList)) or (
        isinstance(module, nn.Sequential) and cls is not nn.Sequential
    )
