"""Speed of RISE, occlusion, insertion and deletion, against loops over single masks."""

from collections.abc import Callable, Iterator
from typing import Any

import timm
import torch
from torch import Tensor, nn

from benchmarks.clocks import in_turn
from benchmarks.transformer_speeds import SpeedFigure
from visattn.attribution.explained_model import analyze_model
from visattn.attribution.perturbation import (
    images_per_batch,
    occlusion,
    occlusion_windows,
    rise,
    rise_grids,
    rise_masks,
    window_masks,
)
from visattn.attribution.targets import ClassTarget
from visattn.functional.numerics import gaussian_blur
from visattn.metrics.faithfulness import (
    PerturbationSchedule,
    area_under_curve,
    insertion_deletion,
    pixel_ranks,
)

NETWORKS = (
    "mobilenetv2_100", "resnet18", "resnet50", "densenet121", "efficientnet_b0", "convnext_tiny",
    "vit_tiny_patch16_224",
)  # fmt: skip
PHOTOS, SIDE, MASKS, STEPS, LABEL = 4, 224, 16, 7, 1
WINDOWS = (SIDE // 4, SIDE // 7)
"""Sides of windows of occlusion; the second is its default."""


def perturbation_figures(*, rounds: int) -> Iterator[SpeedFigure]:
    """Time RISE and occlusion of several networks.

    Raises:
        AssertionError: If the maps differ.
    """
    for name in NETWORKS:
        yield rise_figure(name, rounds)
        for window in WINDOWS:
            yield occlusion_figure(name, rounds, window)


def rise_figure(name: str, rounds: int) -> SpeedFigure:
    """Time RISE of a network."""
    model, images = network(name)
    explained, target = analyze_model(model, (SIDE, SIDE)), ClassTarget([LABEL])
    grids = rise_grids(MASKS, num_cells=7, keep_probability=0.5, seed=0)
    visible = rise_masks(*grids, (SIDE, SIDE))

    def plain() -> Tensor:
        return sum_over_masks(model, images, visible, visible) / (MASKS * 0.5)

    title = f"RISE, {name}, {PHOTOS} photos, {MASKS} masks"
    return timed(title, rounds, plain, lambda: rise(explained, images, target, num_masks=MASKS))


def occlusion_figure(name: str, rounds: int, window: int) -> SpeedFigure:
    """Time occlusion of a network with windows side by side."""
    model, images = network(name)
    explained, target = analyze_model(model, (SIDE, SIDE)), ClassTarget([LABEL])
    windows = occlusion_windows((SIDE, SIDE), window_size=(window, window), stride=(window, window))
    hidden = window_masks(windows, (SIDE, SIDE)).float()
    options: dict[str, Any] = {"sliding_window_size": window, "stride": window}

    def plain() -> Tensor:
        original = score(model, images)[:, None, None]
        return original - sum_over_masks(model, images, 1 - hidden, hidden) / hidden.sum(0)

    title = f"occlusion, {name}, {PHOTOS} photos, {len(hidden)} windows of {window} pixels"
    return timed(title, rounds, plain, lambda: occlusion(explained, images, target, **options))


def removal_figure(*, rounds: int) -> SpeedFigure:
    """Time insertion and deletion of photos.

    Raises:
        AssertionError: If the areas differ.
    """
    model, images = network(NETWORKS[0], photos=8)
    schedule = PerturbationSchedule(steps=STEPS)
    ranks = pixel_ranks(torch.rand(len(images), 7, 7), (SIDE, SIDE), range(len(images)))
    count = max(1, images_per_batch(images) // len(images))

    def plain() -> Tensor:
        blurred = gaussian_blur(images, schedule.blur_sigma * SIDE)
        areas = []
        for start, end in ((blurred, images), (images, torch.zeros_like(images))):
            curve = []
            for share in schedule.curve_fractions:
                taken = ranks < round(float(share) * ranks.shape[1])
                mask = taken.view(-1, 1, SIDE, SIDE)
                curve.append(score(model, torch.where(mask, end, start)))
            areas.append(area_under_curve(torch.stack(curve, 1), schedule.curve_fractions))
        return torch.stack(areas)

    def ours() -> Tensor:
        areas = insertion_deletion(
            lambda batch: score(model, batch.contiguous(memory_format=torch.channels_last)),
            images, ranks, schedule, variants_per_batch=count,
        )  # fmt: skip
        return torch.stack([areas["insertion"], areas["deletion"]])

    title = f"insertion and deletion, {NETWORKS[0]}, {len(images)} photos, {STEPS} steps"
    return timed(title, rounds, plain, ours)


def network(name: str, photos: int = PHOTOS) -> tuple[nn.Module, Tensor]:
    """Return a network with random weights, and normalized images."""
    torch.manual_seed(0)
    model: nn.Module = timm.create_model(name).eval()
    return model, torch.randn(photos, 3, SIDE, SIDE)


@torch.no_grad()
def score(model: nn.Module, images: Tensor) -> Tensor:
    """Return the probability of a class."""
    return model(images).softmax(1)[:, LABEL]


def sum_over_masks(model: nn.Module, images: Tensor, visible: Tensor, weights: Tensor) -> Tensor:
    """Return the masks, each weighted by the score of the images that it leaves, one by one."""
    total = torch.zeros_like(images[:, 0])
    for mask, weight in zip(visible, weights, strict=True):
        total += score(model, images * mask)[:, None, None] * weight
    return total


def timed(
    title: str, rounds: int, plain: Callable[[], Tensor], ours: Callable[[], Tensor]
) -> SpeedFigure:
    """Compare two implementations that give the same."""
    torch.testing.assert_close(ours(), plain(), rtol=1e-3, atol=1e-6)
    timings = in_turn({"plain": plain, "ours": ours}, rounds)
    seconds = {way: timing.seconds for way, timing in timings.items()}
    return SpeedFigure(f"{title}, s; plain / ours", seconds, *timings["plain"][1:], "no floor")
