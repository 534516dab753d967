"""Inserted blocks and the module they are attached to."""

from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.fx import Proxy, Tracer

from visattn.insertion.gating_signal import GatingSignal, accepts_signal

CHILD_NAME = "visattn"
"""Name of the child module that holds the blocks inserted after a module."""


class InsertedBlock(nn.Module):
    """Sequence of inserted blocks, each optionally with an identity scale initialized to zero.

    With an identity scale a block computes x + scale (block(x) - x), which is x at initialization.

    Args:
        blocks: Blocks by name.
        identity_init: Names of the blocks that get an identity scale.
        channels_last: Whether features are channels-last.
        signal: Gating signal for the blocks that take one.

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
    inserted = [module for module in model.modules() if isinstance(module, InsertedBlock)]
    hidden = (
        set[int]()
        if include_inserted
        else {id(part) for inserted in inserted for part in inserted.modules()}
    )
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
