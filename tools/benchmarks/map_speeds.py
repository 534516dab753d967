"""Speed of attention maps and overlays, compared with other libraries."""

import copy
import importlib
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import timm
import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate
from torchvision.models import get_model

from benchmarks.cam_speeds import cam_speed
from benchmarks.changed_shares import ChangedShare, changed_share
from benchmarks.clocks import in_turn
from benchmarks.map_memories import METHODS, forward_with_maps, map_memory
from benchmarks.perturbation_speeds import NETWORKS, network, perturbation_figures
from benchmarks.transformer_speeds import SECONDS, SpeedFigure, recording_speed
from visattn.attribution.cam import gradcam
from visattn.attribution.explained_model import analyze_model
from visattn.geometry.affine import Geometry
from visattn.results.attention_map import AttentionMap
from visattn.viz.heatmap import overlay

PARTS = ("gradcam", "channels", "rows", "extraction", "overlay", "perturbation", "changed")
CNN, IMAGES, SIDE = "resnet50", 16, 224
VIT, VIT_IMAGES = "vit_base_patch16_224", 8
PHOTO = (3024, 4032)  # 12 megapixels
WINDOW = 32  # pixels, that of occlusion by default


def map_figures(parts: Sequence[str], *, rounds: int) -> Iterator[SpeedFigure | ChangedShare]:
    """Measure one part after the other.

    Raises:
        AssertionError: If two implementations give different maps.
    """
    torch.manual_seed(0)
    if "gradcam" in parts:
        yield from gradcam_speed(rounds)
    if "channels" in parts:
        yield from cam_speed(rounds)
    if "rows" in parts:
        yield recording_speed(rounds)
    if {"rows", "extraction"} & set(parts):
        yield from attention_maps(parts, rounds)
    if "overlay" in parts:
        yield overlay_speed(rounds)
    if "perturbation" in parts:
        yield from perturbation_figures(rounds=rounds)
    if "changed" in parts:
        for name in NETWORKS:
            yield changed_share(name, *network(name, 1), WINDOW)


# ------------------------------------------------------------------ Grad-CAM


def gradcam_speed(
    rounds: int, device: str = "cpu", name: str | None = None, count: int | None = None
) -> Iterator[SpeedFigure]:
    """Time Grad-CAM of a class, including resizing to the images and normalization."""
    name, count = name or CNN, count or IMAGES
    model = get_model(name, weights=None).eval().to(device)
    explained = analyze_model(model, (SIDE, SIDE))
    images = torch.randn(count, 3, SIDE, SIDE, device=device)

    def ours() -> Tensor:  # on the host, as grad-cam returns it
        return resize_maps(gradcam(explained, images, lambda scores: scores[:, 1])).cpu()

    runs: dict[str, Callable[[], object]] = {"ours": ours, **rivals(model, images)}
    maps = ours()
    for way, run in runs.items():
        torch.testing.assert_close(torch.as_tensor(run()), maps, atol=1e-3, rtol=0, msg=way)
    timings = in_turn(runs, rounds, seconds_at_least=SECONDS)
    for way in list(runs)[1:]:
        seconds = {each: timings[each].seconds for each in ("ours", way)}
        target = "target: at least 2" if way == "grad-cam" else "no floor"
        title = f"Grad-CAM, {name}, {count} images, s; {way} / ours"
        yield SpeedFigure(title, seconds, *timings[way][1:], target)


def resize_maps(maps: Tensor) -> Tensor:
    """Return maps in [0, 1] at the size of the images, as pytorch-grad-cam does."""
    large = interpolate(
        min_max_normalize(maps)[:, None], (SIDE, SIDE), mode="bilinear", align_corners=False
    )
    return min_max_normalize(large[:, 0])


def min_max_normalize(maps: Tensor) -> Tensor:
    """Normalize each map to [0, 1]."""
    flat = maps.flatten(1)
    low = flat.amin(1)[:, None, None]
    return (maps - low) / (1e-7 + flat.amax(1)[:, None, None] - low)


def rivals(model: nn.Module, images: Tensor) -> dict[str, Callable[[], object]]:
    """Return a plain Grad-CAM and, if installed, that of pytorch-grad-cam."""
    methods = {"plain": plain_gradcam(copy.deepcopy(model), images)}
    if importlib.util.find_spec("pytorch_grad_cam"):
        library: Any = importlib.import_module("pytorch_grad_cam")
        targets: Any = importlib.import_module("pytorch_grad_cam.utils.model_targets")
        theirs = copy.deepcopy(model)
        cam = library.GradCAM(model=theirs, target_layers=[cast("Any", theirs).layer4[-1]])
        class_targets = [targets.ClassifierOutputTarget(1)] * len(images)
        methods["grad-cam"] = lambda: cam(input_tensor=images, targets=class_targets)
    return methods


def plain_gradcam(model: nn.Module, images: Tensor) -> Callable[[], object]:
    """Return a Grad-CAM with a hook and a full backward pass."""
    stored: list[Tensor] = []

    def keep(_module: nn.Module, _inputs: Any, output: Tensor) -> None:
        output.retain_grad()
        stored[:] = [output]

    cast("Any", model).layer4[-1].register_forward_hook(keep)

    def run() -> Tensor:
        model.zero_grad()
        model(images)[:, 1].sum().backward()
        (features,) = stored
        weights = cast("Tensor", features.grad).mean((2, 3), keepdim=True)
        return resize_maps((weights * features.detach()).sum(1).relu()).cpu()

    return run


# ------------------------------------------------------------------ attention


def attention_maps(parts: Sequence[str], rounds: int) -> Iterator[SpeedFigure]:
    """Time a forward pass of a timm model: plain, recorded by visattn, extracted by timm."""
    model = timm.create_model(VIT).eval()
    images = torch.randn(VIT_IMAGES, *cast("Any", model).pretrained_cfg["input_size"])
    calls = {way: torch.no_grad()(forward_with_maps(way, copy.deepcopy(model))) for way in METHODS}
    ours, theirs = calls["recorded"](images), calls["extracted"](images)
    for own, whole in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own, whole[:, :, :1], atol=1e-6, rtol=1e-5)
    runs: dict[str, Callable[[], object]] = {
        {"recorded": "ours"}.get(way, way): lambda look=look: look(images)
        for way, look in calls.items()
    }
    timings = in_turn(runs, rounds, seconds_at_least=SECONDS)
    seconds = {way: timing.seconds for way, timing in timings.items()}
    title = f"{VIT}, {VIT_IMAGES} images"
    if "rows" in parts:  # the ratio of the clock is that of the others to ours
        _, ratio, least, most = timings["plain"]
        yield SpeedFigure(
            f"{title}, s; class rows of all layers recorded / not",
            {way: seconds[way] for way in ("ours", "plain")},
            *(1 / ratio, 1 / most, 1 / least),
            "target: at most 1.1",
        )
    if "extraction" in parts:
        amounts = {way: seconds[way] for way in ("ours", "extracted")}
        yield SpeedFigure(
            f"{title}, s; timm's unfused extraction / ours",
            amounts,
            *timings["extracted"][1:],
            "target: at least 2",
        )
        overhead = {way: seconds[way] - seconds["plain"] for way in amounts}
        ratio = overhead["extracted"] / overhead["ours"]
        yield SpeedFigure(
            f"{title}, s beyond plain; timm's unfused extraction / ours",
            overhead,
            *(ratio, ratio, ratio),
            "no floor",
        )
        yield from memories(title, sum(w.nbytes for w in ours), sum(w.nbytes for w in theirs))


def memories(title: str, ours: int, theirs: int) -> Iterator[SpeedFigure]:
    """Measure the memory of the weights, and peak memory beyond a plain forward pass."""
    stored = {"ours": ours / 2**20, "extracted": theirs / 2**20}
    ratio = theirs / ours
    target = "target: at least 10"
    yield SpeedFigure(f"{title}, MB stored; extracted / ours", stored, ratio, ratio, ratio, target)
    peaks = {way: map_memory(way, VIT, VIT_IMAGES) for way in METHODS}
    measured = {way: amount for way, amount in peaks.items() if amount is not None}
    if len(measured) == len(METHODS):
        ratio = measured["extracted"] / measured["recorded"]
        yield SpeedFigure(
            f"{title}, MB at most; extracted / ours", measured, ratio, ratio, ratio, "no floor"
        )


# ------------------------------------------------------------------ overlays


def overlay_speed(rounds: int) -> SpeedFigure:
    """Time drawing a map on a photo, from array to array."""
    height, width = PHOTO
    photo = torch.randint(0, 256, (height, width, 3), dtype=torch.uint8).numpy()
    geometry = Geometry.identity(PHOTO).resized((256, 341)).cropped(16, 58, (224, 224))
    attention_map = AttentionMap(torch.rand(7, 7), "layer4", "gradient", geometry)

    def run() -> None:
        overlay(photo, attention_map.resize_to_image().numpy(), vmax=1.0)

    seconds = in_turn({"ours": run}, rounds)["ours"].seconds
    title = f"overlay, {height * width / 1e6:.1f} megapixels, array to array, s"
    return SpeedFigure(title, {"ours": seconds}, seconds, seconds, seconds, "target: at most 0.5")
