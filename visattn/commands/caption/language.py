"""`visattn caption --model hf:DIRECTORY`: captions of vision-language models of transformers."""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from visattn.commands.caption.job import OPTIONS, CaptionJob
from visattn.commands.model_option import is_transformers, move_to_device
from visattn.commands.options import real_number, whole_number

if TYPE_CHECKING:
    from torch import nn

    from visattn.images.reader import LoadedImage
    from visattn.pipelines.words.image_tokens import Kept
    from visattn.pipelines.words.replay import Controls
    from visattn.results.captions import Caption

_GENERATION = (
    "max_new_tokens", "num_beams", "do_sample", "temperature", "top_p", "top_k",
    "num_return_sequences",
)  # fmt: skip
_CONTROLS = ("layers", "heads", "relative")
ONLY_TRANSFORMERS = ("prompt", "dtype", "device_map", *_GENERATION, *_CONTROLS, "per_token")
"""Options that only models of transformers have."""
_ONLY_VISATTN = {
    "beam_size": "--num-beams",
    "num_captions": "--num-return-sequences",
    "places": "",
    "maps": "--layers and --heads",
    "resize_mode": "",
    "autocast": "--dtype",
}
"""Options of visattn's captioners, and their counterparts."""
_SELECTABLE = ("attention", "gradient_attention")
_MAX_NEW_TOKENS = 30


def add_huggingface(parser: argparse.ArgumentParser) -> None:
    """Add the options of models of transformers."""
    group = parser.add_argument_group("vision-language models of transformers")
    group.add_argument(
        "--prompt",
        metavar="TEXT",
        help="instruction of a chat model, beginning of the caption for others (default: that of "
        "the model)",
    )
    group.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "float16"),
        help="type of the weights (default: as saved)",
    )
    group.add_argument(
        "--device-map",
        metavar="MAP",
        help="distribute large models over devices, as device_map of from_pretrained: auto, "
        "balanced, sequential, or one device (needs accelerate)",
    )
    _add_generation(group)
    _add_controls(group)


def _add_generation(group: "argparse._ArgumentGroup") -> None:
    """Add the options of `generate`, under its names."""
    group.add_argument(
        "--max-new-tokens",
        type=whole_number(1, 100_000),
        metavar="N",
        help=f"largest number of generated tokens (default: {_MAX_NEW_TOKENS})",
    )
    beams = whole_number(1, 1000)
    group.add_argument("--num-beams", type=beams, metavar="N", help="width of the beam")
    group.add_argument("--do-sample", action="store_true", help="sample words, with --seed")
    positive = real_number(1e-6, 1000)
    group.add_argument("--temperature", type=positive, metavar="T", help="with --do-sample")
    group.add_argument("--top-p", type=real_number(0, 1), metavar="P", help="with --do-sample")
    group.add_argument("--top-k", type=beams, metavar="K", help="with --do-sample")
    group.add_argument(
        "--num-return-sequences",
        type=beams,
        metavar="N",
        help="captions per image in the files (default: 1)",
    )


def _add_controls(group: "argparse._ArgumentGroup") -> None:
    """Add the controls of the maps."""
    indices = whole_number(-1000, 1000)
    for name in ("layers", "heads"):
        group.add_argument(
            f"--{name}",
            type=indices,
            nargs="+",
            metavar="INDEX",
            help=f"mean over these {name}, as the model counts; negative ones from the end "
            "(default: all)",
        )
    group.add_argument(
        "--relative",
        action="store_true",
        help="divide the attention of each word by that of a neutral prompt",
    )
    group.add_argument(
        "--per-token",
        action="store_true",
        help="a map for each token instead of each word (always so in scripts without spaces)",
    )


def check_model_options(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Exit with a usage error if options belong to another kind of model or contradict each other.

    Args:
        parser: Parser of the command.
        args: Its options.
    """
    passed = {name for name, value in vars(args).items() if value != parser.get_default(name)}
    if not is_transformers(args.model):
        for name in ONLY_TRANSFORMERS:
            if name in passed:
                parser.error(f"{_option(name)} needs a model of transformers, --model hf:DIRECTORY")
        return
    for name, counterpart in _ONLY_VISATTN.items():
        if name in passed:
            instead = f"; use {counterpart}" if counterpart else ""
            parser.error(
                f"{_option(name)} is for captioners of visattn, not for hf:DIRECTORY{instead}"
            )
    if args.prompt == "":
        parser.error("--prompt must be a text, got ''; leave it out for a caption without one")
    if {"device", "device_map"} <= passed:
        parser.error("--device-map cannot be combined with --device: pass one of them")
    _check_generation(parser, args, passed)
    _check_controls(parser, args, passed)


def _check_generation(
    parser: argparse.ArgumentParser, args: argparse.Namespace, passed: set[str]
) -> None:
    for name in ("temperature", "top_p", "top_k", "seed"):
        if name in passed and not args.do_sample:
            parser.error(f"{_option(name)} needs --do-sample")
    if "length_penalty" in passed and (args.num_beams or 1) < 2:
        parser.error("--length-penalty needs --num-beams of at least 2")
    count = args.num_return_sequences or 1
    beams = args.num_beams or 1
    if count > beams and not args.do_sample:
        parser.error(f"--num-return-sequences {count} needs --num-beams {count} or --do-sample")
    if args.out is None and count > 1:
        parser.error("--num-return-sequences needs an output folder, --out DIR")


def _check_controls(
    parser: argparse.ArgumentParser, args: argparse.Namespace, passed: set[str]
) -> None:
    for name in (name for name in _CONTROLS if name in passed):
        if args.out is None:
            parser.error(f"{_option(name)} needs an output folder, --out DIR")
        methods = _SELECTABLE if name in ("layers", "heads") else _SELECTABLE[:1]
        if args.method not in methods:
            parser.error(f"{_option(name)} needs --method {' or '.join(methods)}")


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


class TransformersJob(CaptionJob):
    """Images that a vision-language model of transformers describes."""

    options = ("prompt", "dtype", *_GENERATION, *_CONTROLS, "per_token", *OPTIONS)

    def __init__(self, args: argparse.Namespace) -> None:
        self._is_first = True
        self._kept: Kept = {}
        super().__init__(args)

    def load(self) -> "tuple[nn.Module, str]":
        """Load a model of transformers that generates text from images, with its processor."""
        from visattn.models.loaded import loaded_with
        from visattn.models.saving import load
        from visattn.pipelines.words.checks import as_captioner

        options = {"dtype": self.args.dtype, "device_map": self.args.device_map}
        loading = {name: value for name, value in options.items() if value is not None}
        self.model = load(self.args.model, model_kwargs=loading)
        loaded = loaded_with(self.model)
        try:
            as_captioner(self.model)
        except TypeError as error:
            raise ValueError(f"{loaded.weights} cannot caption images: {error}") from error
        for note in loaded.notes:  # the processor is missing
            raise ValueError(note)
        self.processor, self.weights = loaded.processor, loaded.weights
        self.resizes = False  # the processor does
        if self.args.device_map is None:
            move_to_device(self.model, self.args.device)
        return self.model, self.args.model

    def infer(self, images: "Sequence[LoadedImage]") -> "Sequence[Caption | Exception]":
        """Return the captions of images; after the first batch, errors of the model skip images."""
        # A failure on the first photo is mostly one of the model, and ends the command; a later one
        # is of its photo.
        first, self._is_first = self._is_first, False
        try:
            return self._captions(list(images))
        except (ValueError, IndexError, RuntimeError) as error:  # of the model's own code, too
            reason = str(error)
            if not isinstance(error, ValueError):
                reason = f"{type(self.model).__name__} fails on this photo: {error}"
            if first or self.args.strict:
                raise ValueError(f"{images[0].name}: {reason}") from error
            return [ValueError(f"{image.name}: {reason}") for image in images]

    def _captions(self, images: "list[LoadedImage]") -> "list[Caption]":
        """Return the caption of each image, with its alternatives."""
        import torch

        from visattn.pipelines.words.captions import caption_replay
        from visattn.pipelines.words.replay import generate_and_replay

        args = self.args
        if args.do_sample:
            torch.manual_seed(args.seed)
        replays = generate_and_replay(
            self.model,
            images,
            processor=self.processor,
            prompt=args.prompt,
            keep_heads=args.heads is not None and args.method == "attention",
            per_token=args.per_token,
            kept=self._kept,
            **_generate_kwargs(args),
        )
        captions: list[Caption] = []
        for each in replays:
            best, *others = (
                caption_replay(replay, args.method, _controls(args)) for replay in each
            )
            captions.append(replace(best, alternatives=tuple(others)))
        return captions


def _controls(args: argparse.Namespace) -> "Controls":
    from visattn.pipelines.words.replay import Controls

    layers, heads = (None if each is None else tuple(each) for each in (args.layers, args.heads))
    return Controls(layers, heads, relative=args.relative)


def _generate_kwargs(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options of `generate` that were set."""
    options = {name: getattr(args, name) for name in _GENERATION if getattr(args, name)}
    if (args.num_beams or 1) > 1 and args.length_penalty:
        options["length_penalty"] = args.length_penalty
    return {"max_new_tokens": _MAX_NEW_TOKENS, **options}
