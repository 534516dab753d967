"""Share of a network that an occluding window changes: the limit of recomputing only that.

Every module without children is timed, and its output with a window is compared with that without:
the share of the rows and columns that changed is what would have to be computed again. All else
that local recomputation costs (copies, borders, smaller tensors) is left out.
"""

import time
from collections.abc import Iterator, Mapping
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from visattn.attribution.perturbation import occlusion_windows


class ChangedShare(NamedTuple):
    """The part of a forward pass that depends on a window.

    Args:
        network: Name of the network.
        window: Side of the window in pixels.
        changed: Share of the time of all modules whose results change, mean over windows.
        limit: Its inverse: at most as many times as fast is local recomputation.
    """

    network: str
    window: int
    changed: float
    limit: float


@torch.no_grad()
def changed_share(name: str, model: nn.Module, image: Tensor, window: int) -> ChangedShare:
    """Measure a network on an image `[1, c, y, x]`, with every sixth window of occlusion.

    Its scales (weights of norms, layer scale) are set to 1: at their initial 0 a branch hides what
    changes in it.
    """
    for site, parameter in model.named_parameters():
        if parameter.ndim == 1 and site.rpartition(".")[2] in ("weight", "gamma"):
            parameter.fill_(1)
    seconds = module_seconds(model, image)
    original = dict(outputs(model, image))
    size = (image.shape[2], image.shape[3])
    step = max(1, window // 2)
    boxes = occlusion_windows(size, window_size=(window, window), stride=(step, step))
    shares: list[float] = []
    for left, top, right, bottom in boxes[::6].tolist():
        hidden = image.clone()
        hidden[..., top:bottom, left:right] = 0
        changed = {
            site: changed_area(original[site], output) for site, output in outputs(model, hidden)
        }
        shares.append(sum(seconds[site] * changed[site] for site in changed))
    share = sum(shares) / len(shares) / sum(seconds.values())
    return ChangedShare(name, window, share, 1 / share)


def module_seconds(model: nn.Module, image: Tensor, rounds: int = 5) -> Mapping[str, float]:
    """Return the CPU seconds of each module without children, median over passes."""
    measured: dict[str, list[float]] = {}
    begun: dict[str, float] = {}

    def begin(site: str, *_: Any) -> None:
        begun[site] = time.thread_time()

    def end(site: str, *_: Any) -> None:
        measured.setdefault(site, []).append(time.thread_time() - begun[site])

    handles = []
    for site, module in leaves(model):
        handles.append(module.register_forward_pre_hook(partial(begin, site)))
        handles.append(module.register_forward_hook(partial(end, site)))
    for _ in range(rounds + 1):
        model(image)
    for handle in handles:
        handle.remove()
    return {site: median(values[1:]) for site, values in measured.items()}


def outputs(model: nn.Module, image: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield the output of each module without children."""
    kept: dict[str, Tensor] = {}

    def keep(site: str, _: nn.Module, __: Any, output: Tensor) -> None:
        kept[site] = output.clone()

    handles = [m.register_forward_hook(partial(keep, site)) for site, m in leaves(model)]
    model(image)
    for handle in handles:
        handle.remove()
    yield from kept.items()


def leaves(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules without children, by name."""
    return ((site, m) for site, m in model.named_modules() if not [*m.children()])


def changed_area(before: Tensor, after: Tensor) -> float:
    """Return the share of a feature map `[1, c, y, x]` in the smallest box of all changes.

    Example:
        >>> before, after = torch.zeros(1, 2, 4, 5), torch.zeros(1, 2, 4, 5)
        >>> after[0, 1, 1, 2] = after[0, 0, 2, 2] = 1
        >>> changed_area(before, after)  # 2 rows, 1 column
        0.1
    """
    different = before != after
    if different.ndim != 4:
        return float(different.any())
    places = different[0].any(0).nonzero()
    if not len(places):
        return 0.0
    rows, columns = (places.amax(0) - places.amin(0) + 1).tolist()
    return rows * columns / different[0, 0].numel()
