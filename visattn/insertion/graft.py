"""What stands beside a module of a model once blocks were inserted after it."""

from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.fx import Proxy, Tracer

from visattn.insertion.gating_signal import Signal, takes_signal

CHILD = "visattn"
"""The name of the child under which an inserted block is found at its host."""


class InsertedBlock(nn.Module):
    """Blocks, one after another, as they are or eased in by a scale that starts at zero.

    An eased block gives x + scale (block(x) - x), which is x at the start.

    Args:
        blocks: By the names under which they are kept.
        eased: Those that get a scale.
        last: Whether features carry their channels on the last axis.
        signal: What the blocks that take a gating signal get.

    Example:
        >>> graft = InsertedBlock({"relu": torch.nn.ReLU()}, eased=["relu"])
        >>> graft(torch.tensor([[[[-1.0, 2.0]]]]))
        tensor([[[[-1.,  2.]]]], grad_fn=<AddBackward0>)
    """

    def __init__(
        self,
        blocks: dict[str, nn.Module],
        *,
        eased: Sequence[str] = (),
        last: bool = False,
        signal: Signal | None = None,
    ) -> None:
        super().__init__()
        self.names = tuple(blocks)
        self.last = last
        self.signal = signal
        self.gated = tuple(name for name in blocks if signal and takes_signal(blocks[name]))
        for name, block in blocks.items():
            self.add_module(name, block)
            scale = nn.Parameter(torch.zeros(1)) if name in eased else None
            self.register_parameter(scale_name(name), scale)

    def forward(self, x: Float[Tensor, "b i j k"] | Proxy) -> Float[Tensor, "b i j k"] | Proxy:
        """Return the features under attention.

        To `torch.fx` it is one node, whatever its blocks decide by the shapes that they are given.
        """
        if isinstance(x, Proxy):
            if self.signal:
                raise RuntimeError(
                    f"torch.fx cannot carry the signal of {self.signal.name} to "
                    f"{' + '.join(self.names)}; torch.export can"
                )
            return x.tracer.create_proxy("call_module", path_in(x, self), (x,), {})
        y = x.movedim(-1, 1) if self.last else x
        signal = self.signal.take(x, " + ".join(self.names)) if self.signal else None
        for name in self.names:
            y = self._passed(name, y, signal if name in self.gated else None)
        return y.movedim(1, -1).contiguous() if self.last else y

    def _passed(
        self, name: str, x: Float[Tensor, "b c y x"], signal: Float[Tensor, "b g _y _x"] | None
    ) -> Float[Tensor, "b c y x"]:
        block = cast("nn.Module", getattr(self, name))
        # Under autocast a block may answer in another precision than it was asked in.
        y = (block(x) if signal is None else block(x, signal)).to(x.dtype)
        scale = cast("nn.Parameter | None", getattr(self, scale_name(name)))
        return y if scale is None else x + scale.to(x.dtype) * (y - x)

    @property
    def scales(self) -> list[nn.Parameter]:
        """The identity scales, which no paper has."""
        found = (getattr(self, scale_name(name)) for name in self.names)
        return [scale for scale in found if scale is not None]


def path_in(x: Proxy, module: nn.Module) -> str:
    """Return the name of a module in the model that is being traced."""
    return cast("Tracer", x.tracer).path_of_module(module)


def scale_name(block: str) -> str:
    """Return the name of the scale of a block."""
    return f"{block}_scale"


def attend(host: nn.Module, _: Any, output: Tensor | Proxy) -> Tensor | Proxy:
    """Return what a host gave, under the attention of its graft: the hook that all hosts share.

    It finds the graft at the host, so that a copy of a model uses its own.
    """
    return cast("InsertedBlock", getattr(host, CHILD))(output)


def modules_of(model: nn.Module, *, ours: bool = True) -> dict[str, nn.Module]:
    """Return the modules of a model by name, with what was inserted or without."""
    grafts = [module for module in model.modules() if isinstance(module, InsertedBlock)]
    hidden = set[int]() if ours else {id(part) for graft in grafts for part in graft.modules()}
    named = cast("Iterable[tuple[str, nn.Module]]", model.named_modules())
    return {name: module for name, module in named if id(module) not in hidden}


def graft_of(host: nn.Module) -> InsertedBlock | None:
    """Return what was inserted after a module."""
    child = getattr(host, CHILD, None)
    return child if isinstance(child, InsertedBlock) else None


def place(host: nn.Module, graft: InsertedBlock) -> None:
    """Set a graft after a host: a `Sequential` gets it as its last part, all others by a hook."""
    host.add_module(CHILD, graft)
    if not isinstance(host, nn.Sequential):
        host.register_forward_hook(attend)
    if graft.signal:
        graft.signal.listen()


def displace(host: nn.Module) -> None:
    """Take the graft of a host away, with its hook and that of its signal."""
    graft = graft_of(host)
    if graft and graft.signal:
        graft.signal.release()
    delattr(host, CHILD)
    # The handle that registering gave is not kept: a copy of the model could not use it.
    hooks = cast("dict[int, object]", vars(host)["_forward_hooks"])
    for key in [key for key, hook in hooks.items() if hook is attend]:
        del hooks[key]


def runs_its_own_loop(module: nn.Module) -> bool:
    """Return whether a container runs its parts by itself, and would run a block as one of them."""
    home = next(home for home in type(module).__mro__ if "forward" in vars(home))
    return isinstance(module, (nn.ModuleDict, nn.ModuleList)) or (
        isinstance(module, nn.Sequential) and home is not nn.Sequential
    )
