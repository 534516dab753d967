"""Where the output of a module lies on the image, measured by changing blocks of it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.recording.frozen_model import evaluating
from visattn.recording.model_info import ExplainedModel, FeatureLayout, FeatureSite, ModelInfo
from visattn.recording.token_grid import Grid, fits

# Where blocks are changed, as shares of the image: no two lie alike when rows or columns are
# turned, exchanged or moved.
_MARKS = (
    (0.19, 0.24), (0.22, 0.77), (0.80, 0.16), (0.77, 0.81),
    (0.48, 0.36), (0.33, 0.58), (0.64, 0.51), (0.53, 0.86),
)  # fmt: skip
_BLOCK = 7  # blocks to a side of the image
_SLACK = 0.1  # of the image: half a block, and what a layer spreads it
_RIGHT = 6  # blocks that must show at their place; all of them on a grid of few cells
_COARSE = 4  # cells along a side, below which chance would too often be right
_MOST_BEFORE = 128  # tokens beside the grid


def first_tensor(output: Any) -> tuple[Any, Tensor] | None:
    """Return where the activations are in what a module puts out, and the activations.

    They are the output itself, or its first tensor.

    Args:
        output: A tensor, or a tuple, list or mapping of them.
    """
    if isinstance(output, Tensor):
        return None, output
    if isinstance(output, Mapping):
        parts: Iterator[tuple[Any, Any]] = iter(cast("Mapping[Any, Any]", output).items())
    elif isinstance(output, (list, tuple)):
        parts = enumerate(cast("list[Any]", output))
    else:
        return None
    return next(((key, part) for key, part in parts if isinstance(part, Tensor)), None)


@dataclass(frozen=True)
class _Candidate:
    """A way to read a tensor as features on a grid."""

    layout: FeatureLayout
    grid: Grid
    before: int = 0
    after: int = 0

    def site(self, path: str, run: int | None) -> FeatureSite:
        return FeatureSite(path, self.layout, self.grid, self.before, self.after, run)


def measured_site(subject: ExplainedModel, path: str, run: int | None) -> FeatureSite:
    """Return how the output of a module lies on the image, seen from blocks that were changed.

    Args:
        subject: The model.
        path: Of the module.
        run: Which of its runs, from 1; None for the last.

    Raises:
        ValueError: If it does not lie on the image, or there is no such run.

    Example:
        >>> card = ModelInfo("net", "other", (40, 60), (0.5,), (0.5,), "none")
        >>> model = nn.Sequential(nn.AvgPool2d(4), nn.Flatten(2))
        >>> measured_site(ExplainedModel(model, card, model), "1", None).layout
        'b c n'
    """
    outputs = _outputs(subject, path)
    title = f"{path}{f'#{run}' if run else ''} of {subject.card.name}"
    if not outputs:
        raise ValueError(f"{title} does not run, or puts out no tensor; {_others(subject.card)}")
    if run is not None and not 1 <= run <= len(outputs):
        raise ValueError(
            f"{title} must name one of its {len(outputs)} runs, counted from 1: {path}#1 to "
            f"{path}#{len(outputs)}"
        )
    output = outputs[(run or 0) - 1]
    shape = "x".join(map(str, output.shape[1:]))
    if output.shape[0] != len(_MARKS) + 1 or output.ndim not in (3, 4):
        raise ValueError(
            f"{title} puts out {list(output.shape)} for {len(_MARKS) + 1} images, which are no "
            f"features on a grid of each image; {_others(subject.card)}"
        )
    judged = [
        (error, candidate)
        for candidate in _candidates(output, subject.card)
        if (error := _misplacement(output, candidate)) is not None
    ]
    if not judged:
        raise ValueError(
            f"{title} puts out {shape}, in which changed blocks of an image do not show at their "
            f"place, so that its map would be wrong; {_others(subject.card)}"
        )
    number = run or (len(outputs) if len(outputs) > 1 else None)
    return min(judged, key=lambda one: one[0])[1].site(path, number)


def _outputs(subject: ExplainedModel, path: str) -> list[Tensor]:
    """Return what each run of a module puts out for an image and for it with changed blocks."""
    found: list[Tensor] = []

    def hook(_: nn.Module, __: Any, output: Any) -> None:
        if (first := first_tensor(output)) is not None:
            found.append(first[1].detach().float().cpu().clone())

    images = _marked(subject)
    devices = [images.device] if images.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.no_grad(), evaluating(subject.model):
        handle = subject.model.get_submodule(path).register_forward_hook(hook)
        try:
            subject.forward(images)
        finally:
            handle.remove()
    return found


def _marked(subject: ExplainedModel) -> Float[Tensor, "m c y x"]:
    """Return an image of noise, and copies of it, in each of which a block is changed."""
    size, drawn = subject.card.size, torch.Generator().manual_seed(0)
    base, change = torch.randn(2, len(subject.card.mean), *size, generator=drawn)
    images = [0.5 * base]
    for share in _MARKS:
        top, left, bottom, right = _block(share, size)
        images.append(images[0].clone())
        images[-1][:, top:bottom, left:right] = 1 + change[:, top:bottom, left:right]
    weight = next((one for one in subject.model.parameters() if one.is_floating_point()), base)
    return torch.stack(images).to(weight)


def _block(share: tuple[float, float], size: tuple[int, int]) -> tuple[int, int, int, int]:
    sides = [max(1, round(length / _BLOCK)) for length in size]
    top, left = (
        min(max(round(at * length - side / 2), 0), length - side)
        for at, length, side in zip(share, size, sides, strict=True)
    )
    return top, left, top + sides[0], left + sides[1]


def _candidates(output: Tensor, card: ModelInfo) -> Iterator[_Candidate]:
    """Go over the ways in which an output can be read as features on a grid."""
    shape, size = output.shape, card.size
    if output.ndim == 4:
        for layout, grid in (("b c y x", shape[2:]), ("b y x c", shape[1:3])):
            if min(grid) >= 1 and max(grid) > 1 and fits((grid[0], grid[1]), size):
                yield _Candidate(cast("FeatureLayout", layout), (grid[0], grid[1]))
        return
    known = {site.grid for site in card.features} | {
        grid for layer in card.layers for grid in (layer.grid, layer.keys) if grid is not None
    }
    for layout, count in (("b n c", shape[1]), ("b c n", shape[2])):
        grids = known | {(n, count // n) for n in range(1, count + 1) if not count % n}
        for grid in grids:
            beside = count - grid[0] * grid[1]
            if not 0 <= beside <= _MOST_BEFORE or max(grid) < 2 or not fits(grid, size):
                continue
            yield _Candidate(cast("FeatureLayout", layout), grid, beside)
            if beside:
                yield _Candidate(cast("FeatureLayout", layout), grid, 0, beside)


def _misplacement(output: Tensor, candidate: _Candidate) -> float | None:
    """Return how far off blocks show on average, in shares of the image; None if too far."""
    site, grid = candidate.site("", None), candidate.grid
    features = on_grid(output, site)
    changes = (features[1:] - features[:1]).square().sum(1).sqrt()
    if not bool(changes.isfinite().all()):
        return None
    peaks = changes.flatten(1).amax(1).view(-1, 1, 1)
    strong = (changes - peaks / 2).clamp(min=0)
    total = strong.sum((1, 2)).clamp(min=torch.finfo(strong.dtype).tiny)
    centers = [(torch.arange(count) + 0.5) / count for count in grid]
    rows = (strong.sum(2) * centers[0]).sum(1) / total
    columns = (strong.sum(1) * centers[1]).sum(1) / total
    off = (torch.stack((rows, columns), 1) - torch.tensor(_MARKS)).abs()
    allowed = torch.tensor([0.5 / count + _SLACK for count in grid])
    right = ((off <= allowed).all(1) & (peaks.flatten() > 0)).sum()
    needed = len(_MARKS) if min(grid) < _COARSE else _RIGHT
    return float(off.mean()) if int(right) >= needed else None


def on_grid(features: Tensor, site: FeatureSite) -> Float[Tensor, "b d gy gx"]:
    """Return features of any layout with channels first.

    Args:
        features: As the module gives them.
        site: Where they come from.

    Raises:
        ValueError: If they are not of the layout that was said.

    Example:
        >>> on_grid(torch.zeros(7, 2 + 15, 4), FeatureSite("norm", "b n c", (3, 5), 2)).shape
        torch.Size([7, 4, 3, 5])
    """
    axes, count = site.layout.split(), site.grid[0] * site.grid[1]
    if not lies_on_grid(features, site):
        raise ValueError(
            f"{site.site} was said to give [{site.layout}] on {site.grid[0]} x {site.grid[1]} "
            f"places after {site.before} tokens, got {list(features.shape)}"
        )
    if "n" in axes:
        first = features.mT if site.layout == "b n c" else features
        return first[:, :, site.before : site.before + count].unflatten(-1, site.grid)
    return features.movedim(-1, 1) if site.layout == "b y x c" else features


def lies_on_grid(features: Tensor, site: FeatureSite) -> bool:
    """Whether features are of the layout and the grid of a site.

    Args:
        features: As the module gives them.
        site: Where they come from.
    """
    axes = site.layout.split()
    if features.ndim != len(axes):
        return False
    if "n" in axes:
        count = site.before + site.grid[0] * site.grid[1] + site.after
        return features.shape[axes.index("n")] == count
    at = axes.index("y")
    return tuple(features.shape[at : at + 2]) == site.grid


def _others(card: ModelInfo) -> str:
    known = ", ".join(site.site for site in card.features[-3:])
    return f"layers that fit are {known} and others" if known else "no layer of it is known to fit"
