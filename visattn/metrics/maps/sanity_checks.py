"""Does a map depend on what the model learned? It is made again with ever more of it destroyed."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import interpolate

from visattn.functional.evaluation.faithfulness import rank_correlation


def parts_from_the_top(model: nn.Module, steps: int) -> list[tuple[str, ...]]:
    """Return the modules that hold weights, from the scores down, in so many parts of like size.

    Args:
        model: Its modules are taken to be listed from the image to the scores.
        steps: Parts; fewer if there are fewer modules.

    Raises:
        ValueError: If steps are below 1, or the model has no weights.

    Example:
        >>> layers = [nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2), nn.Linear(2, 2)]
        >>> parts_from_the_top(nn.Sequential(*layers), 2)
        [('3', '2'), ('0',)]
    """
    sites = [
        site
        for site, module in model.named_modules()
        if next(module.parameters(recurse=False), None) is not None
    ][::-1]
    if steps < 1 or not sites:
        raise ValueError(f"steps must be at least 1, and the model have weights; got {steps=}")
    count = min(steps, len(sites))
    ends = [-(-len(sites) * part // count) for part in range(count + 1)]
    return [tuple(sites[a:b]) for a, b in pairwise(ends)]


@contextmanager
def shuffled_weights(model: nn.Module, sites: Sequence[str], seed: int = 0) -> Iterator[None]:
    """Shuffle the weights of some modules inside the `with` block; after it they are as before.

    Args:
        model: Is changed in place, and restored to the bit, also after an exception.
        sites: Paths of modules, whose own weights are meant and not those of modules in them.
        seed: Of the order.

    Example:
        >>> model = nn.Linear(3, 1)
        >>> before = model.weight.tolist()
        >>> with shuffled_weights(model, [""]):
        ...     sorted(model.weight.tolist()[0]) == sorted(before[0])
        True
        >>> model.weight.tolist() == before
        True
    """
    weights = [one for site in sites for one in model.get_submodule(site).parameters(recurse=False)]
    kept = [one.detach().clone() for one in weights]
    generator = torch.Generator().manual_seed(seed)
    try:
        with torch.no_grad():
            for one in weights:
                order = torch.randperm(one.numel(), generator=generator).to(one.device)
                one.copy_(one.flatten()[order].view_as(one))
        yield
    finally:
        with torch.no_grad():
            for one, before in zip(weights, kept, strict=True):
                one.copy_(before)


def randomized_likeness(
    model: nn.Module,
    maps: Callable[[], Float[Tensor, "b y x"]],
    *,
    steps: int = 6,
    seed: int = 0,
) -> Float[Tensor, "b s"]:
    """Return how much maps are still like themselves while the model loses what it learned.

    Its weights are shuffled from the scores down to the image, each step adding to those
    before. A method that explains the model forgets with it: what stays near 1 to the end shows
    the image, not the model.

    Args:
        model: Whose weights are shuffled, and restored.
        maps: Makes the maps with the weights as they are, of the same classes at each call.
        steps: How many times more is shuffled.
        seed: Of the order.

    Returns:
        Rank correlation with the maps of the intact model after each step.

    Example:
        >>> model = nn.Conv2d(1, 1, 2)
        >>> image = torch.arange(16.0).view(1, 1, 4, 4)
        >>> randomized_likeness(model, lambda: image[0], steps=1)
        tensor([[1.]])

    Source:
        Adebayo et al. 2018, arXiv:1810.03292, section 3.1, cascading randomization. Deviation:
        the numbers of each weight are shuffled rather than drawn anew, so that their spread stays
        and no initialization has to be known.
    """
    intact = maps()
    likeness: list[Tensor] = []
    done: tuple[str, ...] = ()
    for part in parts_from_the_top(model, steps):
        done += part
        with shuffled_weights(model, done, seed):
            likeness.append(map_likeness(intact, maps()))
    return torch.stack(likeness, 1)


def map_likeness(
    maps: Float[Tensor, "b y x"], others: Float[Tensor, "b gy gx"]
) -> Float[Tensor, " b"]:
    """Return the rank correlation of maps, the second ones brought to the grid of the first.

    What is not a number counts as 0: a model without its weights may give anything.

    Example:
        >>> rising = torch.tensor([[[0.0, 1.0, 2.0]]])
        >>> map_likeness(rising, rising.exp()), map_likeness(rising, torch.zeros(1, 1, 3))
        (tensor([1.]), tensor([0.]))
    """
    size = (maps.shape[1], maps.shape[2])
    if others.shape[1:] != maps.shape[1:]:
        others = interpolate(others[:, None], size, mode="bilinear", align_corners=False)[:, 0]
    a, b = (one.nan_to_num(0.0, 0.0, 0.0).flatten(1) for one in (maps, others))
    return rank_correlation(a, b)
