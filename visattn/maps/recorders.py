"""Listen to a model while it runs, and keep every attention map that it makes."""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.taps import Tap
from visattn.maps.attention_maps import AttentionMap


@dataclass
class Recording:
    """What was seen.

    Args:
        maps: In the order in which they were made. Their first axis is that of the batch; `made`
            holds the number of the `call`, from 0, for sites that run several times.
    """

    maps: list[AttentionMap] = field(default_factory=list)


@contextmanager
def record(model: nn.Module) -> Iterator[Recording]:
    """Record the attention maps of everything that runs inside the `with` block.

    The values are detached, and stay on their device. The model comes back as it was.

    Raises:
        ValueError: If the model holds no `Tap`, if it is compiled or scripted, so that listening
            would be in vain, or if the block ended without any map having been made.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Sigmoid(), Tap("gate"))
        >>> with record(model) as seen:
        ...     _ = model(torch.zeros(1, 1, 2, 2))
        >>> seen.maps[0].site, seen.maps[0].values.unique()
        ('1', tensor([0.5000]))
    """
    _check_runs_hooks(model)
    taps = {site: module for site, module in model.named_modules() if isinstance(module, Tap)}
    if not taps:
        raise ValueError(
            f"{type(model).__name__} holds no Tap, so none of its attention can be seen; "
            "build it of visattn.blocks, or pass the weights through a visattn.blocks.taps.Tap"
        )
    recording = Recording()
    calls: Counter[str] = Counter()
    with ExitStack() as hooks:
        for site, tap in taps.items():
            hooks.enter_context(_listening(tap, site, recording, calls))
        yield recording
    if not recording.maps:
        raise ValueError(
            f"{type(model).__name__} made no map while it was recorded; "
            f"run it inside the with block, and see that it uses its taps: {', '.join(taps)}"
        )


@contextmanager
def _listening(tap: Tap, site: str, recording: Recording, calls: Counter[str]) -> Iterator[None]:
    def keep(tap: nn.Module, _: tuple[Tensor, ...], weights: Tensor) -> None:
        if isinstance(tap, Tap):
            made = {"call": calls[site]}
            calls[site] += 1
            values = _on_grid(weights.detach(), tap, site)
            recording.maps.append(AttentionMap(values, site, tap.kind, made=made))

    handle = tap.register_forward_hook(keep)
    try:
        yield
    finally:
        handle.remove()


def _on_grid(weights: Float[Tensor, "*axes"], tap: Tap, site: str) -> Float[Tensor, "*shaped"]:
    """Return weights over a flattened grid as weights over rows and columns."""
    if tap.grid is None:
        return weights
    rows, columns = tap.grid
    if weights.shape[-1] != rows * columns:
        raise ValueError(
            f"the last axis at {site} must run over its grid of {rows} x {columns} cells, "
            f"got {tuple(weights.shape)}; the block sets tap.grid before it uses its tap"
        )
    return weights.unflatten(-1, (rows, columns))


def _check_runs_hooks(model: nn.Module) -> None:
    for site, module in model.named_modules():
        compiled = getattr(module, "_compiled_call_impl", None) is not None
        wrapped = type(module).__name__ == "OptimizedModule"
        scripted = isinstance(module, torch.jit.ScriptModule)
        if compiled or wrapped or scripted:
            raise ValueError(
                f"{site or 'the model'} is compiled or scripted and does not show its maps; "
                "record the model that it was made from"
            )
