"""Sanity checks of maps by cascading randomization of the model's weights."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import interpolate

from visattn.metrics.faithfulness import spearman_correlation


def cascading_module_groups(model: nn.Module, num_groups: int) -> list[tuple[str, ...]]:
    """Return the modules with weights in groups of equal size, from the logits to the input.

    There are fewer groups if there are fewer modules.

    Example:
        >>> layers = [nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2), nn.Linear(2, 2)]
        >>> cascading_module_groups(nn.Sequential(*layers), 2)
        [('3', '2'), ('0',)]
    """
    sites = [
        site
        for site, module in model.named_modules()
        if next(module.parameters(recurse=False), None) is not None
    ][::-1]
    count = min(num_groups, len(sites))
    ends = [-(-len(sites) * group // count) for group in range(count + 1)]
    return [tuple(sites[a:b]) for a, b in pairwise(ends)]


@contextmanager
def shuffle_weights(model: nn.Module, sites: Sequence[str], seed: int = 0) -> Iterator[None]:
    """Shuffle the own weights of modules inside the `with` block, in place.

    They are restored exactly afterwards, also after an exception.

    Example:
        >>> model = nn.Linear(3, 1)
        >>> before = model.weight.tolist()
        >>> with shuffle_weights(model, [""]):
        ...     sorted(model.weight.tolist()[0]) == sorted(before[0])
        True
        >>> model.weight.tolist() == before
        True
    """
    weights = [
        weight for site in sites for weight in model.get_submodule(site).parameters(recurse=False)
    ]
    originals = [weight.detach().clone() for weight in weights]
    generator = torch.Generator().manual_seed(seed)
    try:
        with torch.no_grad():
            for weight in weights:
                order = torch.randperm(weight.numel(), generator=generator).to(weight.device)
                weight.copy_(weight.flatten()[order].view_as(weight))
        yield
    finally:
        with torch.no_grad():
            for weight, original in zip(weights, originals, strict=True):
                weight.copy_(original)


def cascading_randomization(
    model: nn.Module,
    maps: Callable[[], Float[Tensor, "b y x"]],
    *,
    num_steps: int = 6,
    seed: int = 0,
) -> Float[Tensor, "b s"]:
    """Return the similarity of maps to their originals under cascading randomization.

    Weights are shuffled from the logits towards the input, cumulatively. The maps of a method that
    explains the model change with it; a similarity that stays near 1 means that the maps depend
    only on the image.

    Args:
        model: Model whose weights are shuffled and restored.
        maps: Computes the maps with the current weights, for the same classes at each call.
        num_steps: Number of randomization steps.
        seed: Random seed.

    Returns:
        Rank correlation with the maps of the intact model after each step.

    Example:
        >>> model = nn.Conv2d(1, 1, 2)
        >>> image = torch.arange(16.0).view(1, 1, 4, 4)
        >>> cascading_randomization(model, lambda: image[0], num_steps=1)
        tensor([[1.]])

    Source:
        Adebayo et al. 2018, arXiv:1810.03292, section 3.1, cascading randomization. Deviation:
        the values of each weight are shuffled instead of sampled, which keeps their distribution
        and needs no initialization scheme.
    """
    intact = maps()
    likeness: list[Tensor] = []
    done: tuple[str, ...] = ()
    for group in cascading_module_groups(model, num_steps):
        done += group
        # Earlier groups come first in `done`, so the same seed shuffles them equally.
        with shuffle_weights(model, done, seed):
            likeness.append(map_similarity(intact, maps()))
    return torch.stack(likeness, 1)


def map_similarity(
    maps: Float[Tensor, "b y x"], others: Float[Tensor, "b gy gx"]
) -> Float[Tensor, " b"]:
    """Return the rank correlation of maps; the second ones are resampled to the grid of the first.

    NaN counts as 0, since a randomized model may output it.

    Example:
        >>> rising = torch.tensor([[[0.0, 1.0, 2.0]]])
        >>> map_similarity(rising, rising.exp()), map_similarity(rising, torch.zeros(1, 1, 3))
        (tensor([1.]), tensor([0.]))
    """
    size = (maps.shape[1], maps.shape[2])
    if others.shape[1:] != maps.shape[1:]:
        others = interpolate(others[:, None], size, mode="bilinear", align_corners=False)[:, 0]
    finite = (values.nan_to_num(0.0, 0.0, 0.0).flatten(1) for values in (maps, others))
    return spearman_correlation(*finite)
