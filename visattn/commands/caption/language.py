"""`visattn caption --model hf:DIRECTORY`: captions of vision-language models of transformers."""

import argparse
import itertools
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from visattn.commands.boxes import BOX_OPTIONS
from visattn.commands.caption.job import OPTIONS, CaptionJob
from visattn.commands.files import check_no_overwrite
from visattn.commands.model_option import file_digest, is_transformers
from visattn.commands.options import real_number, whole_number
from visattn.commands.videos import has_videos
from visattn.io.safe_text import print_message
from visattn.io.sources import Source
from visattn.results.kinds import TRANSFORMERS_WORD_METHODS

if TYPE_CHECKING:
    from torch import nn

    from visattn.images.reader import LoadedImage
    from visattn.pipelines.words.captions import WordOptions
    from visattn.pipelines.words.prompts import PromptImages
    from visattn.results.captions import Caption
    from visattn.results.map_boxes import MapBoxes

_GENERATION = (
    "max_new_tokens", "num_beams", "do_sample", "temperature", "top_p", "top_k",
    "num_return_sequences",
)  # fmt: skip
_CONTROLS = ("layers", "heads", "relative", "without_sinks", "contrast")
_STATISTICS = ("text_attention", "head_overview")
ONLY_TRANSFORMERS = (
    "prompt", "dtype", "device_map", *_GENERATION, *_CONTROLS, *_STATISTICS, "per_token",
    "together", "num_frames",
)  # fmt: skip
"""Options that only models of transformers have."""
_OF_ONE_PHOTO = ("gif", "alignment", "phrase_boxes", "contrast", "head_overview", *BOX_OPTIONS)
_OF_EACH_FRAME = ("every", "max_frames", "smoothing", "clip_scale", "camera")
"""Options of videos that are captioned frame by frame."""
_OF_SEVERAL = ("attention", "gradient_attention", "relevance", "gradient_embedding", "gradcam")
"""Methods for several photos in one prompt, and for videos."""
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
_ALL_WEIGHTS = ("gradient_attention", "relevance", "gradient_embedding", "gradcam")
"""Methods that need all attention weights of a forward pass."""
_MAX_NEW_TOKENS = 30
_LARGE = 10**9  # bytes


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
    group.add_argument(
        "--together",
        action="store_true",
        help="show all photos in one prompt: one caption, with the maps of each word on all photos",
    )
    group.add_argument(
        "--num-frames",
        type=whole_number(1, 10_000),
        metavar="N",
        help="number of frames of a video, evenly spaced (default: those that the processor of the "
        "model samples, or 8)",
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
            help=f"mean over these {name}; negative indices count from the end (default: all)",
        )
    group.add_argument(
        "--relative",
        action="store_true",
        help="divide the attention of each word by the mean of the other words",
    )
    group.add_argument(
        "--without-sinks",
        action="store_true",
        help="remove image tokens that draw much attention for every word",
    )
    group.add_argument(
        "--contrast",
        metavar="TEXT",
        help="divide the attention of each word by that of the same word behind another prompt, "
        "such as 'Write a general description of the image.'",
    )
    group.add_argument(
        "--text-attention",
        action="store_true",
        help="also show which words of the prompt and of the caption each word attends to",
    )
    group.add_argument(
        "--head-overview",
        action="store_true",
        help="also show for each layer and head how it reads the photo, and rank the heads",
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
        if args.method in TRANSFORMERS_WORD_METHODS:
            parser.error(
                f"--method {args.method} needs a model of transformers, --model hf:DIRECTORY; for "
                "captioners of visattn, gradcam reads the features of the encoder"
            )
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
    _check_images(parser, args, passed)
    _check_generation(parser, args, passed)
    _check_controls(parser, args, passed)


def _check_images(
    parser: argparse.ArgumentParser, args: argparse.Namespace, passed: set[str]
) -> None:
    """Exit with a usage error if options do not fit photos, photos together, or a video."""
    video = has_videos(args)
    for name in _OF_EACH_FRAME:
        if name in passed:
            parser.error(
                f"{_option(name)} is for captioners of visattn, which caption frame by frame; a "
                "model of transformers gets the frames of a video file at once, see --num-frames"
            )
    if "num_frames" in passed and not video:
        parser.error("--num-frames is for videos, got photos")
    if args.together and video:
        parser.error("--together is for photos; each video has a prompt of its own")
    if args.together and "shard" in passed:
        parser.error("--together makes one caption, of which --shard leaves no part")
    for name in _OF_ONE_PHOTO:
        if name in passed and (video or args.together):
            other = "a video" if video else "--together"
            parser.error(f"{_option(name)} is for single photos, not for {other}")
    if args.method not in _OF_SEVERAL and (video or args.together):
        parser.error(
            f"--method {args.method} is for single photos; choose {', '.join(_OF_SEVERAL)}"
        )


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
    controls = [name for name in _CONTROLS if name in passed]
    shown = [*controls, *(name for name in _STATISTICS if name in passed)]
    if args.out is None and shown:
        parser.error(f"{_option(shown[0])} needs an output folder, --out DIR")
    for name in controls:
        selects = name in ("layers", "heads")
        methods = _SELECTABLE if selects else _SELECTABLE[:1]
        if args.method not in methods and not (selects and args.text_attention):
            parser.error(f"{_option(name)} needs --method {' or '.join(methods)}")
        if args.contrast is not None and name in ("relative", "without_sinks"):
            parser.error(f"{_option(name)} cannot be combined with --contrast: pass one of them")


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


class TransformersJob(CaptionJob):
    """Images that a vision-language model of transformers describes.

    With `--together` all photos are one prompt, listed by the first of them. Videos have one
    caption each, and a movie.
    """

    options = (
        "prompt", "dtype", *_GENERATION, *_CONTROLS, *_STATISTICS, "per_token", "together",
        "num_frames", *OPTIONS,
    )  # fmt: skip

    def __init__(self, args: argparse.Namespace) -> None:
        self._is_first = True
        self.videos = has_videos(args)
        self.photos: list[Source] = []
        super().__init__(args, (".caption.mp4", ".caption.png") if self.videos else ())
        if self.out is not None and args.together:
            check_no_overwrite(args.out, self.output_files(), self.photos)

    def find(self) -> Sequence[Source]:
        """Return the photos or videos of the command line; of photos together the first."""
        if self.videos:
            for path in self.args.images:
                if not path.is_file():
                    raise FileNotFoundError(f"{path} does not exist; give video files")
            return list(dict.fromkeys(self.args.images))
        self.photos = [*super().find()]
        return self.photos[:1] if self.args.together else self.photos

    def read(self, path: Source) -> "LoadedImage | PromptImages":
        """Read a photo, all photos, or the frames of a video."""
        from visattn.images.reader import read_image
        from visattn.pipelines.words.prompts import PromptImages, read_video

        if self.videos and isinstance(path, Path):
            return read_video(path, self.processor, self.args.num_frames)
        if self.args.together:
            return PromptImages(tuple(map(read_image, self.photos)))
        return read_image(path)

    def digests(self, path: Source) -> dict[str, Any]:
        """Return what tells whether a photo, or one of all photos, has changed."""
        if not self.args.together:
            return super().digests(path)
        return {"image_sha256": [file_digest(photo) for photo in self.photos]}

    def _draw(
        self,
        name: str,
        image: "LoadedImage | PromptImages",
        result: "Caption",
        outlined: "MapBoxes | None",
    ) -> "Iterator[tuple[str, bytes | Path]]":
        """Yield endings and contents of the files of photos, or of a video."""
        from visattn.pipelines.video import caption_video

        yield from super()._draw(name, image, result, outlined)
        if self.videos:
            with tempfile.TemporaryDirectory() as folder:
                caption_video(image.name, result, Path(folder, "movie"))
                for ending in (".mp4", ".png"):
                    yield f".caption{ending}", Path(folder, f"movie{ending}").read_bytes()

    def load_transformers(self, directory: Path) -> "tuple[nn.Module, Any]":
        """Return a model of transformers that generates text from images, and its processor."""
        from visattn.pipelines.words.checks import check_captioner
        from visattn.pipelines.words.language_model import load_word_model

        options = {"dtype": self.args.dtype, "device_map": self.args.device_map}
        loading = {name: value for name, value in options.items() if value is not None}
        model, processor, notes = load_word_model(directory, **loading)
        try:
            check_captioner(model)
        except TypeError as error:
            raise ValueError(f"{directory} cannot caption images: {error}") from error
        for note in notes:
            print_message(note)
        return model, processor

    def notes(self) -> list[str]:
        """Return the memory of attention."""
        from visattn.images.reader import ImageError
        from visattn.images.video import VideoError

        for path in itertools.islice(self.names, 1):
            try:
                image = self.read(path)
            except (ImageError, VideoError):
                continue  # the run itself reports it
            return [_describe_memory(_memory(self.model, self.processor, image, self.args), image)]
        return []

    def infer(
        self, images: "Sequence[LoadedImage | PromptImages]"
    ) -> "Sequence[Caption | Exception]":
        """Return the captions of images; after the first batch, errors of the model skip images."""
        # A failure on the first photo is mostly one of the model, and ends the command; a later one
        # is of its photo.
        first, self._is_first = self._is_first, False
        try:
            if first:
                _report_memory(self.model, self.processor, images[0], self.args)
            return self._captions(list(images))
        except (ValueError, IndexError, RuntimeError) as error:  # of the model's own code, too
            reason = str(error)
            if not isinstance(error, ValueError):
                reason = f"{type(self.model).__name__} fails on this photo: {error}"
            if first or self.args.strict:
                raise ValueError(f"{images[0].name}: {reason}") from error
            return [ValueError(f"{image.name}: {reason}") for image in images]

    def _captions(self, images: "list[LoadedImage | PromptImages]") -> "list[Caption]":
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
            batch_size=len(images),
            keep_heads=args.heads is not None and args.method == "attention",
            per_token=args.per_token,
            **_generate_kwargs(args),
        )
        captions: list[Caption] = []
        for image, each in zip(images, replays, strict=True):
            best, *others = (
                caption_replay(replay, _word_options(args), phrases=self._phrases(image))
                for replay in each
            )
            captions.append(replace(best, alternatives=tuple(others)))
        return captions


def _word_options(args: argparse.Namespace) -> "WordOptions":
    from visattn.pipelines.words.captions import WordOptions
    from visattn.pipelines.words.controls import Controls

    layers, heads = (None if each is None else tuple(each) for each in (args.layers, args.heads))
    controls = Controls(layers, heads, relative=args.relative, without_sinks=args.without_sinks)
    return WordOptions(
        args.method, controls, args.contrast, args.text_attention, args.head_overview
    )


def _generate_kwargs(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options of `generate` that were set."""
    options = {name: getattr(args, name) for name in _GENERATION if getattr(args, name)}
    if (args.num_beams or 1) > 1 and args.length_penalty:
        options["length_penalty"] = args.length_penalty
    return {"max_new_tokens": _MAX_NEW_TOKENS, **options}


def _memory(
    model: "nn.Module",
    processor: Any,
    image: "LoadedImage | PromptImages",
    args: argparse.Namespace,
) -> Mapping[str, int]:
    """Return the bytes of attention for one image: those that are kept, and those in a graph."""
    from PIL import Image

    from visattn.pipelines.words.checks import check_prompt_length, replay_memory
    from visattn.pipelines.words.language_model import PhotoProcessor
    from visattn.pipelines.words.prompts import as_prompt_images

    options = _generate_kwargs(args)
    shown = as_prompt_images(image)
    process = PhotoProcessor(
        model, processor, args.prompt, num_photos=len(shown.images), clip=shown.clip
    )
    inputs = process([[Image.fromarray(each.pixels) for each in shown.images]])
    check_prompt_length(model, [inputs], options)
    count = int(options["max_new_tokens"])
    memory = replay_memory(model, inputs, count, heads=args.heads is not None)
    complete = args.method in _ALL_WEIGHTS
    return {"kept": memory["eager"] if complete else memory["kept"], "eager": memory["eager"]}


def _describe_memory(memory: Mapping[str, int], image: "LoadedImage | PromptImages") -> str:
    return (
        f"attention of {Path(image.name).name}: at most {memory['kept'] / 10**6:,.1f} MB per "
        f"caption; all weights have {memory['eager'] / 10**6:,.1f} MB"
    )


def _report_memory(
    model: "nn.Module",
    processor: Any,
    image: "LoadedImage | PromptImages",
    args: argparse.Namespace,
) -> None:
    """Print the memory of attention on stderr if it is large."""
    memory = _memory(model, processor, image, args)
    if memory["kept"] > _LARGE:
        print_message(_describe_memory(memory, image))
