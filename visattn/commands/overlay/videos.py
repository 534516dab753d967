"""`visattn overlay` on video files and cameras: an MP4 with maps, and a contact sheet."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from visattn.commands.files import check_no_overwrite
from visattn.commands.model_option import (
    file_digest,
    load_any_model,
    model_settings,
    read_class_names,
)
from visattn.commands.options import describe_model, print_dry_run
from visattn.commands.overlay.methods import MapRunner, MapSpec, class_targets
from visattn.commands.streams import activity
from visattn.commands.videos import (
    VIDEO_SUFFIXES,
    VideoJob,
    run_videos,
    video_settings,
    video_sources,
)
from visattn.io.safe_text import print_message

if TYPE_CHECKING:
    from visattn.commands.videos import VideoSource

_CLIP_ONLY = ("layer", "layers", "heads", "method_args", "mean", "std")
_RECORDED = ("resize_mode", "input_size", "style", "colormap", "opacity")


class VideoRunner:
    """A model of clips with the maps to compute from it, in place of a `MapRunner`."""

    def __init__(self, args: argparse.Namespace) -> None:
        import torch

        from visattn.pipelines.video_models import VideoExplainer

        if used := [name for name in _CLIP_ONLY if getattr(args, name)]:
            raise ValueError(
                f"--{used[0].replace('_', '-')} does not apply to video models, whose methods have "
                "no arguments, and whose transform has mean and std"
            )
        torch.manual_seed(0)  # random weights are the same in every run
        self.loaded = load_any_model(args)
        names = () if args.classes is None else list(read_class_names(args.classes))
        self.explainer: VideoExplainer = VideoExplainer(
            self.loaded,
            img_size=args.input_size,
            class_names=names,
            resize_mode=args.resize_mode,
        )
        known = self.explainer.methods
        methods = list(args.method or known[:1])
        methods = list(known) if methods == ["all"] else list(dict.fromkeys(methods))
        if wrong := [name for name in methods if name not in known]:
            raise ValueError(
                f"{wrong[0]} does not fit the video model {type(self.loaded.model).__name__}; "
                f"supported methods: {', '.join(known)}"
            )
        self.specs = [MapSpec(name, name, name) for name in methods]


def overlay_videos(args: argparse.Namespace) -> int:
    """Draw maps on videos; return 0, or 1 if a video or a map failed.

    Args:
        args: Options of `visattn overlay`.
    """
    from visattn.models.backbones.pretrained import names_video_model
    from visattn.viz.heatmap import colormap_lut

    sources = video_sources(args)
    colormap_lut(args.colormap)
    if args.dry_run:
        args.pretrained = False
    with activity("loading the model"):
        runner = VideoRunner(args) if names_video_model(args.model) else MapRunner(args)
    targets = [(path, name, spec) for path, name in sources.items() for spec in runner.specs]
    endings = (*VIDEO_SUFFIXES, ".json")
    files = [f"{name}.{spec.key}{end}" for _, name, spec in targets for end in endings]
    videos = [path for path in sources if isinstance(path, Path)]
    check_no_overwrite(args.out, files, videos)
    if args.dry_run:
        reads = [f"{len(sources)} videos", describe_model(runner.loaded.model, args.model)]
        return print_dry_run(reads, args.out, files)
    if runner.loaded.weights == "random":
        print_message("the weights are random: the maps have no meaning")
    jobs = [_job(args, runner, *each) for each in targets]
    return run_videos(args, jobs, "overlay")


def _job(
    args: argparse.Namespace,
    runner: "MapRunner | VideoRunner",
    source: "VideoSource",
    name: str,
    spec: MapSpec,
) -> VideoJob:
    settings = {
        **model_settings(args, runner.loaded.weights),
        **video_settings(args, _RECORDED),
        "target": args.target and args.target[0],
        "classes": args.classes and file_digest(args.classes),
        "method": spec.method,
        "method_args": dict(spec.method_args),
    }
    targets = class_targets(args, ())
    arguments: dict[str, Any] = {
        "explainer": runner.explainer,
        "method": spec.method,
        "target": targets[0] if targets else None,
        "batch_size": args.batch_size or 16,
        "drawing": {"style": args.style, "colormap": args.colormap, "opacity": args.opacity},
        **spec.method_args,
    }
    return VideoJob(source, f"{name}.{spec.key}", spec.key, settings, arguments)
