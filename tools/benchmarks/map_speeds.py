"""How fast maps come about and get onto photos, beside the ways of others."""

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

from benchmarks.clocks import in_turn
from benchmarks.map_memories import WAYS, look_of, map_memory
from benchmarks.transformer_speeds import SECONDS, Figure, watched_rows
from visattn.attribution.cam import gradcam
from visattn.attribution.explained_model import subject_of
from visattn.geometry.affine import Geometry
from visattn.recording.attention_map import AttentionMap
from visattn.viz.maps.heatmap import overlay

PARTS = ("gradcam", "rows", "extraction", "overlay")
CNN, IMAGES, SIDE = "resnet50", 16, 224
VIT, LOOKED_AT = "vit_base_patch16_224", 8
PHOTO = (3024, 4032)  # 12 megapixels


def map_figures(parts: Sequence[str], *, rounds: int) -> Iterator[Figure]:
    """Measure one part after the other.

    Raises:
        AssertionError: If two ways do not give the same maps.
    """
    torch.manual_seed(0)
    if "gradcam" in parts:
        yield from gradient_maps(rounds)
    if "rows" in parts:
        yield watched_rows(rounds)
    if {"rows", "extraction"} & set(parts):
        yield from looks(parts, rounds)
    if "overlay" in parts:
        yield overlaid(rounds)


# ------------------------------------------------------------------ Grad-CAM


def gradient_maps(rounds: int) -> Iterator[Figure]:
    """Time Grad-CAM of a class, up to maps of the images' size between 0 and 1."""
    model = get_model(CNN, weights=None).eval()
    subject, images = subject_of(model, (SIDE, SIDE)), torch.randn(IMAGES, 3, SIDE, SIDE)

    def ours() -> Tensor:
        return shown(gradcam(subject, images, lambda scores: scores[:, 1]))

    ways: dict[str, Callable[[], object]] = {"ours": ours, **rivals(model, images)}
    maps = ours()
    for name, run in ways.items():
        torch.testing.assert_close(torch.as_tensor(run()), maps, atol=1e-3, rtol=0, msg=name)
    timings = in_turn(ways, rounds, seconds_at_least=SECONDS)
    for name in list(ways)[1:]:
        seconds = {way: timings[way].seconds for way in ("ours", name)}
        meant = "at least 2 is meant" if name == "grad-cam" else "no floor"
        title = f"Grad-CAM, {CNN}, {IMAGES} images, s; {name} / ours"
        yield Figure(title, seconds, *timings[name][1:], meant)


def shown(maps: Tensor) -> Tensor:
    """Return maps between 0 and 1, at the size of the images, as pytorch-grad-cam gives them."""
    large = interpolate(spread(maps)[:, None], (SIDE, SIDE), mode="bilinear", align_corners=False)
    return spread(large[:, 0])


def spread(maps: Tensor) -> Tensor:
    """Return each map from 0 to 1."""
    flat = maps.flatten(1)
    low = flat.amin(1)[:, None, None]
    return (maps - low) / (1e-7 + flat.amax(1)[:, None, None] - low)


def rivals(model: nn.Module, images: Tensor) -> dict[str, Callable[[], object]]:
    """Return the loop that one writes first and, where it is installed, pytorch-grad-cam."""
    made = {"plain": plain_gradcam(copy.deepcopy(model), images)}
    if importlib.util.find_spec("pytorch_grad_cam"):
        library: Any = importlib.import_module("pytorch_grad_cam")
        targets: Any = importlib.import_module("pytorch_grad_cam.utils.model_targets")
        theirs = copy.deepcopy(model)
        cam = library.GradCAM(model=theirs, target_layers=[cast("Any", theirs).layer4[-1]])
        wanted = [targets.ClassifierOutputTarget(1)] * len(images)
        made["grad-cam"] = lambda: cam(input_tensor=images, targets=wanted)
    return made


def plain_gradcam(model: nn.Module, images: Tensor) -> Callable[[], object]:
    """Return Grad-CAM by a hook and a whole backward pass."""
    kept: list[Tensor] = []

    def keep(_module: nn.Module, _given: Any, output: Tensor) -> None:
        output.retain_grad()
        kept[:] = [output]

    cast("Any", model).layer4[-1].register_forward_hook(keep)

    def run() -> Tensor:
        model.zero_grad()
        model(images)[:, 1].sum().backward()
        (features,) = kept
        weights = cast("Tensor", features.grad).mean((2, 3), keepdim=True)
        return shown((weights * features.detach()).sum(1).relu())

    return run


# ------------------------------------------------------------------ attention


def looks(parts: Sequence[str], rounds: int) -> Iterator[Figure]:
    """Time a look of timm's model: as it is, recorded by ours, extracted by timm's."""
    model = timm.create_model(VIT).eval()
    images = torch.randn(LOOKED_AT, *cast("Any", model).pretrained_cfg["input_size"])
    ways = {way: torch.no_grad()(look_of(way, copy.deepcopy(model))) for way in WAYS}
    ours, theirs = ways["recorded"](images), ways["extracted"](images)
    for own, whole in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own, whole[:, :, :1], atol=1e-6, rtol=1e-5)
    runs: dict[str, Callable[[], object]] = {
        {"recorded": "ours"}.get(way, way): lambda look=look: look(images)
        for way, look in ways.items()
    }
    timings = in_turn(runs, rounds, seconds_at_least=SECONDS)
    seconds = {way: timing.seconds for way, timing in timings.items()}
    title = f"{VIT}, {LOOKED_AT} images"
    if "rows" in parts:  # the ratio of the clock is that of the others to ours
        _, ratio, least, most = timings["plain"]
        yield Figure(
            f"{title}, s; class rows of all layers recorded / not",
            {way: seconds[way] for way in ("ours", "plain")},
            *(1 / ratio, 1 / most, 1 / least),
            "at most 1.1 is meant",
        )
    if "extraction" in parts:
        told = {way: seconds[way] for way in ("ours", "extracted")}
        yield Figure(
            f"{title}, s; timm's unfused extraction / ours",
            told,
            *timings["extracted"][1:],
            "at least 2 is meant",
        )
        more = {way: seconds[way] - seconds["plain"] for way in told}
        ratio = more["extracted"] / more["ours"]
        yield Figure(
            f"{title}, s more than plain; timm's unfused extraction / ours",
            more,
            *(ratio, ratio, ratio),
            "no floor",
        )
        yield from memories(title, sum(w.nbytes for w in ours), sum(w.nbytes for w in theirs))


def memories(title: str, ours: int, theirs: int) -> Iterator[Figure]:
    """Weigh what both keep, and what they hold at most beyond a look without maps."""
    kept = {"ours": ours / 2**20, "extracted": theirs / 2**20}
    ratio = theirs / ours
    told = "at least 10 is meant"
    yield Figure(f"{title}, MB kept; extracted / ours", kept, ratio, ratio, ratio, told)
    held = {way: map_memory(way, VIT, LOOKED_AT) for way in WAYS}
    known = {way: amount for way, amount in held.items() if amount is not None}
    if len(known) == len(WAYS):
        ratio = known["extracted"] / known["recorded"]
        yield Figure(
            f"{title}, MB at most; extracted / ours", known, ratio, ratio, ratio, "no floor"
        )


# ------------------------------------------------------------------ overlays


def overlaid(rounds: int) -> Figure:
    """Time a map onto a photo, from array to array."""
    height, width = PHOTO
    photo = torch.randint(0, 256, (height, width, 3), dtype=torch.uint8).numpy()
    geometry = Geometry.identity(PHOTO).resized((256, 341)).cropped(16, 58, (224, 224))
    attention_map = AttentionMap(torch.rand(7, 7), "layer4", "gradient", geometry)

    def run() -> None:
        overlay(photo, attention_map.on_image().numpy(), high=1.0)

    seconds = in_turn({"ours": run}, rounds)["ours"].seconds
    title = f"overlay, {height * width / 1e6:.1f} megapixels, array to array, s"
    return Figure(title, {"ours": seconds}, seconds, seconds, seconds, "at most 0.5 is meant")
