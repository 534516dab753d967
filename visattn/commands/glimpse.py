"""`visattn glimpse`: classify photos with a glimpse model, and draw its scan paths."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from visattn.commands.arguments import Figures, Photos, ResizeModeOrNone
from visattn.commands.loop import (
    Command,
    LoopOptions,
    Made,
    encode_figure,
    run,
)
from visattn.commands.model import ModelOptions

if TYPE_CHECKING:  # imported when the command runs, so that --help is fast
    from visattn.images.reader import LoadedImage
    from visattn.results.values import ScanPath


def glimpse(
    photos: Photos,
    *,
    model: ModelOptions = ModelOptions(),  # noqa: B008 (frozen)
    policy: Literal["greedy", "sampled", "random", "raster", "saliency"] = "greedy",
    seed: int = 0,
    resize_mode: ResizeModeOrNone = None,
    figures: Figures = "png",
    loop: LoopOptions = LoopOptions(Path("visattn-out/glimpse")),  # noqa: B008 (frozen)
) -> int:
    """Classify photos with a glimpse model, and show where it looked.

    Prints class and probability; for models that read several objects, all classes in order and the
    probability of the sequence. Writes NAME.png with the scan path on the photo, the glimpses and
    the class probabilities; NAME.json with locations, boxes in pixels of the photo and
    probabilities after each glimpse; and for several photos coverage.png, the density of fixations
    over all photos of this run.

    Args:
        photos: files, folders, quoted patterns, zip and tar archives, URLs
        policy: glimpse locations: the mean of the learned policy, or samples from it; as baselines
            random locations, a grid, or the peaks of an Itti-Koch saliency map
        seed: seed of random locations and samples
        resize_mode: fit a photo to the input size: center crop, change of aspect ratio, or padding
            (default: as in the training of the model)
        figures: format of the figures
    """
    from visattn.io.atomic import atomic_write
    from visattn.models.glimpses.ram import RecurrentAttentionModel
    from visattn.pipelines.scanpath import glimpses
    from visattn.viz.scanpaths import Coverage

    network, made = model.load(RecurrentAttentionModel, "a glimpse model", "glimpse")
    options = {"policy": policy, "seed": seed, "resize_mode": resize_mode}
    coverage = Coverage()

    def infer(images: "Sequence[LoadedImage]") -> "Sequence[ScanPath]":
        paths = glimpses(network, images, **options)
        for path in paths:
            coverage.add(path)
        return paths

    command = Command(
        "glimpse",
        "Glimpses",
        {**made, **options},
        infer,
        _draw,
        [f"{{}}.{figures}"],
        shared=[f"coverage.{figures}"],
        classes=network.class_names,
    )
    code = run(command, photos, loop, batch_size=1)
    if coverage.count > 1:
        [picture] = command.shared
        atomic_write(loop.out / picture, encode_figure(coverage.figure(), picture))
    return code


def _draw(image: "LoadedImage", result: "ScanPath", files: Sequence[str]) -> Made:
    """Return the scan path, and its panel."""
    from visattn.results.values import format_percent
    from visattn.viz.html.index_page import thumbnail
    from visattn.viz.scanpaths import glimpse_figure, glimpse_overlay

    best = {"class": result.prediction, "probability": result.probability}
    labels = [label._asdict() for label in result.labels]
    record = {"image": image.name, **best, "labels": labels, **result.to_dict()}
    figure = encode_figure(glimpse_figure(image, result), files[0])
    return Made(
        record,
        {files[0]: figure},
        rows=[(result.prediction, f"{result.probability:.3f}")],
        table=[best],
        caption=f"{result.prediction}, {format_percent(result.probability)}",
        thumbnail=thumbnail(glimpse_overlay(image, result)),
    )
