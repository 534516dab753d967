"""`visattn ask`: answer questions about photos, and show where the model looked."""

import argparse
import json
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from visattn.commands.options.arguments import (
    CommandParser,
    add_resize_mode,
    output_path,
    whole_number,
)
from visattn.commands.options.boxes import BoxFile, add_boxes, boxes_of, check_boxes, join_boxes
from visattn.commands.options.dry_run import (
    add_dry_run,
    describe_images,
    describe_model,
    print_dry_run,
)
from visattn.commands.options.folders import check_no_overwrite, create_folder, unique_names
from visattn.commands.options.image_index import INDEX, ImageIndex, card_image, read_index_entries
from visattn.commands.options.images import (
    count_on_interrupt,
    find_input_images,
    read_images,
    report_failures,
)
from visattn.commands.options.models import (
    add_weights,
    check_weights,
    load_trained_model,
    move_to_device,
)
from visattn.commands.options.modes import refuse_without
from visattn.commands.options.output_streams import print_row, progress_bar
from visattn.io.atomic import atomic_write
from visattn.io.terminal import print_message

if TYPE_CHECKING:  # torch and Pillow are imported when the command runs, not for its help
    from torch import nn

    from visattn.images.reader import LoadedImage
    from visattn.results.map_boxes import MapBoxes
    from visattn.results.values import Answer

PREFIX = "hf:"
_NO_WEIGHTS = """\
a model is missing: questions need a trained model. Train one:
  visattn fit --config configs/sort_of_clevr_cross.yaml
then pass --run FOLDER with its run directory, or --weights FILE of visattn export; or pass
--model hf:DIRECTORY of transformers"""

_EPILOG = """\
Prints a line per question: the image and the question, a tab, the answer and its probability.
With --out it also writes
  DIR/NAME.html  a page with all questions about the photo: answers, the map of each hop as a tab,
                 all on one scale, and the words that each hop attended to
  DIR/NAME.json  answers with probabilities, maps with their geometry, weights of the words
and for several images DIR/index.html, an index of all pages.
With --boxes FILE, FILE holds the boxes of each map: COCO JSON, whose categories are the answers, or
the words of written answers.
Words that the model does not know are reported with similar words that it knows.
Unreadable images are skipped and reported at the end; the exit code is then 1."""


def build_parser() -> argparse.ArgumentParser:
    """Return the argument parser of the command."""
    parser = CommandParser(
        prog="visattn ask",
        description="Answer questions about photos, and show where the model looked.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "image", type=Path, metavar="IMAGE_OR_FOLDER", help="an image file, or a folder of images"
    )
    parser.add_argument(
        "questions", nargs="+", metavar="QUESTION", help='such as "what color is the ring?"'
    )
    parser.add_argument(
        "--strict", action="store_true", help="stop at the first unreadable image (default: skip)"
    )
    add_weights(parser)
    parser.add_argument(
        "--model",
        metavar="hf:DIRECTORY",
        help="directory with a model of transformers that answers questions or generates text, and "
        "its processor, as written by save_pretrained; instead of --weights and --run",
    )
    parser.add_argument(
        "--out", type=output_path, metavar="DIR", help="output folder for pages and JSON files"
    )
    parser.add_argument(
        "--num-answers",
        type=whole_number(1, 1000),
        default=5,
        metavar="N",
        help="largest number of answers with their probabilities (default: 5)",
    )
    add_boxes(parser)
    add_resize_mode(parser, default="pad")
    add_dry_run(parser)
    return parser


def main(argv: Sequence[str]) -> int:
    """Answer questions; return 0, or 1 if an image or file failed.

    Raises:
        FileNotFoundError: If the image, the folder, the weights or the run do not exist.
        ValueError: If the weights do not answer questions, the model cannot read a question, the
            device is not available, an output file would overwrite an image, or an image cannot be
            read with `--strict`.
        OSError: If the output folder cannot be written.
    """
    parser = build_parser()
    args = parser.parse_args(argv)
    _check_model_options(parser, args)
    check_boxes(parser, args)
    if args.out is None:
        refuse_without(parser, args, ["num_answers"])
    skipped: list[str] = []
    names = unique_names(find_input_images([args.image], args.out, skipped))
    files = [f"{name}{suffix}" for name in names.values() for suffix in (".html", ".json")]
    files += [INDEX] if len(names) > 1 else []
    if args.out is not None:
        check_no_overwrite(args.out, files, names)
        if len(names) > 1:
            read_index_entries(args.out)
    box_file = BoxFile(args, names)
    files += [] if args.boxes is None else [str(args.boxes.absolute())]
    model, processor, source = _load(args)
    _check_questions(model, args.questions)
    if args.dry_run:
        reads = [describe_images([*names]), describe_model(model, source)]
        return print_dry_run(reads, args.out, files)
    if args.out is not None:
        create_folder(args.out)
    code = _ask_images(model, processor, args, names, skipped, box_file)
    box_file.write()
    return code


def _check_model_options(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Exit with a usage error unless exactly one model is selected."""
    if args.model is None:
        if args.weights is None and args.run is None:
            parser.error(_NO_WEIGHTS)
        check_weights(args)  # reports a missing run before torch is imported
        return
    if args.weights is not None or args.run is not None:
        parser.error("--model cannot be combined with --weights or --run: pass one model")
    if not args.model.startswith(PREFIX) or args.model == PREFIX:
        parser.error(
            f"--model must be hf:DIRECTORY, got {args.model!r}; pass a model of visattn with "
            "--weights or --run"
        )


def _load(args: argparse.Namespace) -> "tuple[nn.Module, Any, str]":
    """Return the selected model on its device, its processor if it has one, and its source."""
    from visattn.models.vqa_model import VQAModel

    if args.model is not None:
        from visattn.pipelines.words.loading import load_word_model

        directory = Path(args.model.removeprefix(PREFIX)).expanduser()
        model, processor, notes = load_word_model(directory, answers=True)
        for note in notes:
            print_message(note)
        move_to_device(model, args.device)
        return model, processor, args.model
    trained, weights = load_trained_model(args, VQAModel, "a model that answers questions")
    return trained, None, weights


def _check_questions(model: "nn.Module", questions: Sequence[str]) -> None:
    """Report words that the model does not know, once, before images are read."""
    from visattn.data.captions.vocabulary import Vocabulary
    from visattn.models.vqa_model import VQAModel
    from visattn.pipelines.question_answering import check_question

    if isinstance(model, VQAModel):
        for question in questions:
            for note in check_question(
                question, Vocabulary(model.words), model.question_beginnings
            ):
                print_message(note)


def _ask_images(
    model: "nn.Module",
    processor: Any,
    args: argparse.Namespace,
    names: Mapping[Path, str],
    skipped: list[str],
    box_file: BoxFile,
) -> int:
    """Ask about one image after the other; return the exit code."""
    index = None
    if args.out is not None and len(names) > 1:
        index = ImageIndex(args.out, "Questions")
    not_written: list[str] = []
    done: list[Path] = []
    with (
        count_on_interrupt(done, len(names)),
        index or nullcontext(),
        progress_bar(len(names)) as progress,
    ):
        paths = progress.track(names) if progress else names
        for path, image in read_images(paths, skipped, strict=args.strict):
            answers = _answers(model, processor, image, args)
            boxes = [_answer_boxes(each, args) for each in answers]
            box_file.add(path, join_boxes(boxes))
            not_written += _write_answers(names[path], image, answers, boxes, args, index)
            done.append(path)
    return report_failures(skipped, not_written, len(names))


def _answers(
    model: "nn.Module", processor: Any, image: "LoadedImage", args: argparse.Namespace
) -> "list[Answer]":
    """Return the answers to all questions about an image."""
    from visattn.pipelines.question_answering import ask

    options = {} if processor is None else {"processor": processor}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # unknown words were reported already
        return ask(
            model,
            image,
            args.questions,
            num_answers=args.num_answers,
            resize_mode=args.resize_mode,
            **options,
        )


def _answer_boxes(answer: "Answer", args: argparse.Namespace) -> "MapBoxes | None":
    """Return the boxes of an answer; those of hops and layers have the answer as their label."""
    boxes = None if answer.maps is None else boxes_of(answer.maps, args)
    if boxes is None or answer.maps is None or answer.maps.kind == "words":
        return boxes
    return replace(boxes, boxes=tuple(each._replace(label=answer.text) for each in boxes))


def _write_answers(
    name: str,
    image: "LoadedImage",
    answers: "Sequence[Answer]",
    boxes: "Sequence[MapBoxes | None]",
    args: argparse.Namespace,
    index: ImageIndex | None,
) -> list[str]:
    """Print rows and write the files of an image; return reasons for missing files."""
    from visattn.viz.html.question_page import answer_html

    for answer in answers:
        text, probability = answer.answers[0]
        print_row(f"{name}: {answer.question}", f"{text} ({100 * probability:.0f} %)")
    if args.out is None:
        return []
    try:
        page = answer_html(image, answers, boxes=boxes, index=None if index is None else INDEX)
        atomic_write(args.out / f"{name}.html", page.encode())
        atomic_write(args.out / f"{name}.json", _json_record(image, answers))
        if index is not None:
            text = "; ".join(f"{answer.question} {answer.text}" for answer in answers)
            index.add(name, f"{name}.html", text, card_image([image.pixels]))
    except OSError as error:
        return [f"{image.name}: {error}"]
    return []


def _json_record(image: "LoadedImage", answers: "Sequence[Answer]") -> bytes:
    """Return the answers and maps of one image as JSON, complete enough to draw them again."""
    height, width = image.size
    record = {
        "image": image.name,
        "width": width,
        "height": height,
        "questions": [answer.to_dict() for answer in answers],
    }
    return json.dumps(record, allow_nan=False).encode() + b"\n"
