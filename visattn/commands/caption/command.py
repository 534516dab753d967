"""`visattn caption`: caption images, with the attention of each word."""

import argparse
import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from visattn.commands.caption.gallery import SUFFIXES, Gallery
from visattn.commands.caption.huggingface import (
    add_huggingface,
    check_model_options,
    dry_run_huggingface,
    run_huggingface,
)
from visattn.commands.options.arguments import (
    WORD_METHODS,
    CommandParser,
    add_images,
    add_resize_mode,
    batch_size,
    real_number,
    whole_number,
)
from visattn.commands.options.dry_run import (
    add_dry_run,
    describe_images,
    describe_model,
    print_dry_run,
)
from visattn.commands.options.folders import check_no_overwrite, file_digest, unique_names
from visattn.commands.options.image_index import INDEX, read_index_entries
from visattn.commands.options.images import (
    PIXELS_PER_BATCH,
    batched,
    count_on_interrupt,
    find_input_images,
    read_images,
    report_failures,
)
from visattn.commands.options.models import add_weights, check_weights, load_trained_model
from visattn.commands.options.output_streams import print_row, progress_bar
from visattn.commands.options.videos import (
    VIDEO_SUFFIXES,
    VideoJob,
    add_video,
    has_videos,
    run_videos,
    video_record,
    video_sources,
)

if TYPE_CHECKING:  # torch and Pillow are imported when the command runs, not for its help
    from visattn.data.images.reader import LoadedImage
    from visattn.data.phrases.phrases import Phrase
    from visattn.models.captioner import Captioner

_NO_WEIGHTS = """\
--weights is missing: captions need a trained model. Train one:
  in a few minutes     make demo, then --weights runs/demo/model.safetensors
  with your config     visattn fit --config FILE.yaml, then --run FOLDER with its run directory
Or pass a vision-language model of transformers with --model hf:DIRECTORY."""

_EPILOG = """\
Prints a line per image: its name, a tab, its caption. With --out it also writes
  DIR/NAME.html   page for the browser: choose a word, see its attention on the image
  DIR/NAME.png    the image and one overlay per word, all on one color scale
  DIR/NAME.json   words, log-probabilities, gates, maps, and their geometry on the image
  DIR/NAME.npz    the same as NumPy arrays
  DIR/NAME.alignment.png  (with --alignment) words by columns of the image, below the image
  DIR/index.html  index of all pages
Each page is self-contained and works offline.
Unreadable images are skipped and reported at the end; the exit code is then 1.
A video or camera needs --out and gives a row per frame: its name, the second, the caption; the map
of a frame is the mean of those of its words. Use --every 25 for a caption per second."""

_LARGEST_SEED = 2**31 - 1
_MAX_NUM_CAPTIONS = 5  # default for files, if the beam is at least as wide

_PIXELS_PER_BATCH = PIXELS_PER_BATCH
_STILL_ONLY = ("gif", "alignment", "phrase_boxes", "num_captions", "model")


def build_parser() -> argparse.ArgumentParser:
    """Return the argument parser of the command."""
    parser = CommandParser(
        prog="visattn caption",
        description="Caption images, and show where the model attends for each word.",
        epilog=_EPILOG,
    )
    add_images(parser, videos=True)
    add_weights(parser)
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="output folder for pages, panels and arrays"
    )
    _add_search(parser)
    _add_places(parser)
    _add_method(parser)
    parser.add_argument(
        "--gif", action="store_true", help="also write a GIF that shows the maps word by word"
    )
    parser.add_argument(
        "--alignment",
        action="store_true",
        help="also write the alignment matrix: words by columns of the image, below the image",
    )
    parser.add_argument(
        "--phrase-boxes",
        type=Path,
        metavar="FILE",
        help="phrases with boxes (JSON, or JSON compressed with gzip): pages compare the attention "
        "of a phrase with its boxes",
    )
    add_resize_mode(parser)
    parser.add_argument(
        "--batch-size", type=batch_size, help="images per batch (default: 16; 1 with --model)"
    )
    add_huggingface(parser)
    add_video(parser, "NAME.caption")
    add_dry_run(parser)
    return parser


def _add_method(parser: argparse.ArgumentParser) -> None:
    """Add the choice of what the maps of words show."""
    parser.add_argument(
        "--method",
        choices=WORD_METHODS,
        default="attention",
        metavar="METHOD",
        help=f"what the maps of words show: {', '.join(WORD_METHODS)} (default: attention)",
    )


def _add_search(parser: argparse.ArgumentParser) -> None:
    """Add the options of beam search."""
    beams = whole_number(1, 1000)
    parser.add_argument("--beam-size", type=beams, default=5, help="width of the beam (default: 5)")
    parser.add_argument(
        "--length-penalty",
        type=real_number(-10, 10),  # exponent of the caption length
        default=0.0,
        metavar="ALPHA",
        help="exponent of the length penalty; above 0 prefers longer captions (default: 0)",
    )
    parser.add_argument(
        "--num-captions",
        type=beams,
        metavar="N",
        help=f"captions per image in the files (default: beam size, at most {_MAX_NUM_CAPTIONS})",
    )


def _add_places(parser: argparse.ArgumentParser) -> None:
    """Add the options of hard attention."""
    parser.add_argument(
        "--places",
        choices=("argmax", "sample", "expectation"),
        help="for models with hard attention: read the most probable place before each word, a "
        "sampled one, or the expectation over all places (default: as configured, argmax)",
    )
    parser.add_argument(
        "--seed",
        type=whole_number(0, _LARGEST_SEED),
        default=0,
        help="seed of sampled places (default: 0)",
    )


def main(argv: Sequence[str]) -> int:
    """Caption images; return 0, or 1 if an image could not be read.

    Raises:
        FileNotFoundError: If an image, a folder, the weights or the run do not exist.
        ValueError: If the weights are not a visattn captioner, the device is not available, an
            output file would overwrite an image or an index that visattn did not write, the phrase
            boxes belong to other images, or an image cannot be read with `--strict`.
        OSError: If the output folder cannot be written.
    """
    parser = build_parser()
    args = parser.parse_args(argv)
    if args.weights is None and args.run is None and args.model is None:
        parser.error(_NO_WEIGHTS)
    if not args.images and args.camera is None:
        parser.error("name the photos or videos: files, folders, or --camera 0")
    if has_videos(args):
        if args.out is None:
            parser.error("a video needs an output folder, --out DIR")
        return _caption_videos(args)
    check_model_options(parser, args)
    _check_options(parser, args)
    skipped: list[str] = []
    names = unique_names(find_input_images(args.images, args.out, skipped))
    if args.dry_run:
        return _dry_run(args, names)
    gallery = _open_gallery(args, names)
    if args.model is not None:
        return run_huggingface(args, names, gallery, skipped)
    model, _ = _load_captioner(args)
    not_written: list[str] = []
    done: list[str] = []
    with (
        count_on_interrupt(done, len(names)),
        gallery or nullcontext(),
        progress_bar(len(names)) as progress,
    ):
        paths = progress.track(names) if progress else names
        for batch in _read_batches(
            paths, names, args.batch_size or 16, skipped, strict=args.strict
        ):
            not_written += _caption_batch(model, batch, args, gallery)
            done += [name for name, _ in batch]
    return report_failures(skipped, not_written, len(names))


def _caption_videos(args: argparse.Namespace) -> int:
    """Caption the frames of videos; return the exit code."""
    if args.method != "attention":
        raise ValueError("--method is for photos; a video shows the attention of the captioner")
    reason = "a video takes a captioner of visattn, and gives one caption per frame"
    sources = video_sources(args, _STILL_ONLY, reason)
    check_weights(args)
    files = [f"{name}.caption{end}" for name in sources.values() for end in VIDEO_SUFFIXES]
    check_no_overwrite(args.out, files, [path for path in sources if isinstance(path, Path)])
    model, weights = _load_captioner(args)
    if args.dry_run:
        reads = [f"{len(sources)} videos", describe_model(model, weights)]
        return print_dry_run(reads, args.out, files)
    from visattn.pipelines.video_frames import FrameCaptions

    options = ("beam_size", "length_penalty", "resize_mode", "places", "seed")
    frames = FrameCaptions(model, **{name: getattr(args, name) for name in options})
    arguments = {"explainer": frames, "method": "caption", "batch_size": args.batch_size or 8}
    file = file_digest(Path(weights))
    jobs = [
        VideoJob(
            source, f"{name}.caption", "", video_record(args, source, options, weights=file),
            arguments,
        )
        for source, name in sources.items()
    ]  # fmt: skip
    return run_videos(args, jobs, overwrite=False)


def _check_options(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Exit with a usage error if options contradict each other; fill in dependent defaults."""
    if args.out is None:
        for name in ("num_captions", "gif", "alignment", "phrase_boxes"):
            if getattr(args, name):
                parser.error(f"--{name.replace('_', '-')} needs an output folder, --out DIR")
        if args.method != "attention":
            parser.error("--method needs an output folder, --out DIR")
    if args.model is not None:
        return
    check_weights(args)  # reports a missing run before torch is imported
    args.num_captions = args.num_captions or min(args.beam_size, _MAX_NUM_CAPTIONS)
    if args.num_captions > args.beam_size:
        parser.error(
            f"--num-captions {args.num_captions} needs a --beam-size at least as large, got "
            f"{args.beam_size}"
        )


def _dry_run(args: argparse.Namespace, names: dict[Path, str]) -> int:
    """Run all checks and print what would be read and written; return 0."""
    files: list[str] = []
    if args.out is not None:
        optional = {".gif": args.gif, ".alignment.png": args.alignment}
        suffixes = [suffix for suffix in SUFFIXES if optional.get(suffix, True)]
        files = [f"{name}{suffix}" for name in names.values() for suffix in suffixes] + [INDEX]
        check_no_overwrite(args.out, files, names)
        read_index_entries(args.out / INDEX)
        _check_alignment_names(args, names)
        _read_phrase_boxes(args.phrase_boxes, names)
    if args.model is not None:
        return dry_run_huggingface(args, names, files)
    model, source = _load_captioner(args)
    reads = [describe_images([*names]), describe_model(model, source)]
    return print_dry_run(reads, args.out, files)


def _open_gallery(args: argparse.Namespace, names: dict[Path, str]) -> "Gallery | None":
    """Return the output folder, or None without --out, after checking that no image is replaced."""
    if args.out is None:
        return None
    files = (f"{name}{suffix}" for name in names.values() for suffix in SUFFIXES)
    check_no_overwrite(args.out, files, names)
    _check_alignment_names(args, names)
    return Gallery(
        args.out,
        gif=args.gif,
        alignment=args.alignment,
        phrase_boxes=_read_phrase_boxes(args.phrase_boxes, names),
    )


def _check_alignment_names(args: argparse.Namespace, names: dict[Path, str]) -> None:
    """Refuse an alignment matrix that would have the name of the panel of another image."""
    if not args.alignment:
        return
    for path, name in names.items():
        if name.endswith(".alignment") and name.removesuffix(".alignment") in names.values():
            raise ValueError(
                f"the panel of {path} and an alignment matrix would both be {name}.png; rename "
                f"{path.name}, or leave out --alignment"
            )


def _read_phrase_boxes(file: Path | None, paths: Iterable[Path]) -> "dict[str, tuple[Phrase, ...]]":
    """Return the phrases of the input images by file name, of all their captions."""
    if file is None:
        return {}
    from visattn.data.phrases.phrases import read_phrases

    phrases = read_phrases(file)
    matches = {name: phrases[name] for name in {path.name for path in paths} & phrases.keys()}
    if not matches:
        raise ValueError(
            f"{file} has phrases for none of the images; its file names begin with "
            f"{', '.join(itertools.islice(phrases, 3))} ..."
        )
    return {name: tuple(chain.from_iterable(each.values())) for name, each in matches.items()}


def _load_captioner(args: argparse.Namespace) -> "tuple[Captioner, str]":
    """Return the selected model on its device, and its file."""
    from visattn.models.captioner import Captioner
    from visattn.models.captioning.show_attend_tell import has_hard_attention

    loaded = load_trained_model(args)
    if not isinstance(loaded.model, Captioner):
        kind = type(loaded.model).__name__
        raise ValueError(f"{loaded.weights} holds a {kind}, which is not a captioner")  # noqa: TRY004 (the file is wrong)
    if args.places is not None and not has_hard_attention(loaded.model):
        raise ValueError(
            f"--places needs a captioner with hard attention; that of {loaded.weights} does not "
            "select places: leave out the option"
        )
    return loaded.model, loaded.weights


def _read_batches(
    paths: Iterable[Path], names: dict[Path, str], size: int, skipped: list[str], *, strict: bool
) -> Iterator[list[tuple[str, "LoadedImage"]]]:
    """Yield batches of names and images; the reasons for unreadable images go to `skipped`."""
    named = ((names[path], image) for path, image in read_images(paths, skipped, strict=strict))
    return batched(named, size, pixels=_PIXELS_PER_BATCH)


def _caption_batch(
    model: "Captioner",
    batch: list[tuple[str, "LoadedImage"]],
    args: argparse.Namespace,
    gallery: "Gallery | None",
) -> list[str]:
    """Caption a batch, print its rows and write its files; return reasons for missing files.

    A file that cannot be written does not affect the other images.
    """
    from visattn.pipelines.captioning import caption as caption_images
    from visattn.pipelines.explain_words import explain_captions

    images = [image for _, image in batch]
    captions = caption_images(
        model,
        images,
        beam_size=args.beam_size,
        num_captions=args.num_captions if gallery else 1,
        length_penalty=args.length_penalty,
        resize_mode=args.resize_mode,
        places=args.places,
        seed=args.seed,
    )
    if gallery is not None:  # the maps are only needed in files
        captions = explain_captions(
            model, images, captions, args.method, resize_mode=args.resize_mode
        )
    not_written: list[str] = []
    for (name, image), caption in zip(batch, captions, strict=True):
        print_row(name, caption.text)
        if gallery is not None:
            try:
                gallery.add(name, image, caption)
            except (OSError, ValueError) as error:
                not_written.append(f"{image.name}: {error}")
    return not_written
