"""A module followed by inserted blocks, which replaces that module."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn


class InsertedBlock(nn.Module):
    """A sequence of blocks, each with or without an identity scale that starts at zero.

    With a scale, a block computes x + scale (block(x) - x), which is exactly x at initialization.

    Args:
        blocks: The blocks by name.
        scaled: Names of the blocks with an identity scale.
        channels_last: Whether features are [batch, height, width, channels].

    Example:
        >>> InsertedBlock({"relu": nn.ReLU()}, ["relu"])(torch.tensor([[[[-1.0, 2.0]]]]))
        tensor([[[[-1.,  2.]]]], grad_fn=<AddBackward0>)
    """

    def __init__(
        self,
        blocks: Mapping[str, nn.Module],
        scaled: Collection[str] = (),
        *,
        channels_last: bool = False,
    ) -> None:
        super().__init__()
        self.channels_last = channels_last
        for name, block in blocks.items():
            self.add_module(name, block)
            scale = nn.Parameter(torch.zeros(1)) if name in scaled else None
            self.register_parameter(f"{name}_scale", scale)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the blocks, in their order."""
        return tuple(name for name, _ in self.named_children())

    def forward(self, x: Float[Tensor, "b i j k"]) -> Float[Tensor, "b i j k"]:
        """Return the features after attention."""
        y = x.movedim(-1, 1) if self.channels_last else x
        for name, block in self.named_children():
            scale = cast("nn.Parameter | None", getattr(self, f"{name}_scale"))
            attended = block(y).to(y.dtype)  # under autocast a block may return another dtype
            y = attended if scale is None else y + scale.to(y.dtype) * (attended - y)
        return y.movedim(1, -1).contiguous() if self.channels_last else y


class WithBlock(nn.Module):
    """A host module and the blocks after it, which replaces the host.

        model.layer1[0]:  conv2 -> WithBlock(bn2, cbam) -> + ->
                                   '-> host -> visattn -'

    State dicts keep the keys of the network without blocks (`bn2.weight`) and add those of the
    blocks (`bn2.visattn.cbam.conv.weight`). Attributes, items and children of the host remain
    accessible (`bn2.num_features`, `layer1[0]`).
    """

    def __init__(self, host: nn.Module, blocks: InsertedBlock) -> None:
        super().__init__()
        self.host, self.visattn = host, blocks
        self.training = host.training
        self.register_state_dict_post_hook(_without_host)  # pyright: ignore[reportUnknownMemberType]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the output of the host after attention."""
        return self.visattn(self.host(*args, **kwargs))

    def __getattr__(self, name: str) -> Any:
        """Look up missing attributes in the host."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name in ("host", "visattn"):  # in a copy that is not complete yet
                raise
            return getattr(self.host, name)

    def __getitem__(self, index: Any) -> nn.Module:
        """Return a child of a host such as `Sequential`."""
        return cast("Any", self.host)[index]

    def __iter__(self) -> Iterator[nn.Module]:
        """Yield the children of a host such as `Sequential`, and then the blocks.

        Code that runs children one by one, such as gradient checkpointing, thus runs the blocks.
        """
        yield from cast("Any", self.host)
        yield self.visattn

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        own = (f"{prefix}host.", f"{prefix}visattn.")
        for key in [k for k in state_dict if k.startswith(prefix) and not k.startswith(own)]:
            state_dict[f"{prefix}host.{key.removeprefix(prefix)}"] = state_dict.pop(key)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)  # pyright: ignore[reportUnknownMemberType]


def _without_host(_: nn.Module, state: dict[str, Any], prefix: str, __: object) -> None:
    """State-dict hook: give the weights of the host the keys that they have without blocks."""
    for key in [key for key in state if key.startswith(prefix)]:  # reinserted to keep the order
        state[prefix + key.removeprefix(prefix).removeprefix("host.")] = state.pop(key)


def plain_modules(model: nn.Module) -> dict[str, nn.Module]:
    """Return the modules of a model, by the names that they have without inserted blocks.

    A host with blocks is represented by the `WithBlock` around it.
    """
    found: dict[int, tuple[str, nn.Module]] = {}

    def visit(name: str, module: nn.Module) -> None:
        if id(module) not in found:
            found[id(module)] = name, module
            host = module.host if isinstance(module, WithBlock) else module
            for child_name, child in host.named_children():
                visit(f"{name}.{child_name}" if name else child_name, child)

    visit("", model)
    return dict(found.values())
