"""`visattn ask`: answer questions about photos, and show where the model looked."""

import argparse
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from visattn.commands.boxes import (
    add_boxes,
    box_settings,
    boxes_of,
    check_boxes,
    join_boxes,
    without_folder,
)
from visattn.commands.image_options import add_images, image_source, resolve_images
from visattn.commands.index import Row, card_image
from visattn.commands.model_job import ModelJob
from visattn.commands.model_option import add_model, resolve_model
from visattn.commands.options import (
    BULK,
    OUTPUT,
    PHOTO_FIGURES,
    CommandParser,
    add_options,
    add_resize_mode,
    refuse_without,
    whole_number,
)
from visattn.commands.records import Part, Record
from visattn.commands.run import run_job
from visattn.io.safe_text import print_message
from visattn.results.cards import Card

if TYPE_CHECKING:  # torch and Pillow are imported when the command runs, not for its help
    import numpy as np

    from visattn.geometry.affine import Box
    from visattn.images.reader import LoadedImage
    from visattn.results.map_boxes import MapBoxes
    from visattn.results.values import Answer

_NO_MODEL = """\
a model is missing: questions need a trained model. Train one:
  visattn fit --config configs/sort_of_clevr_cross.yaml
then pass --model FOLDER with its run directory, or --model FILE of visattn export; ask models of
transformers by visattn caption --model hf:DIRECTORY --prompt QUESTION"""

_EPILOG = """\
Prints a row per question: the image and the question, a tab, the answer and its probability.
With --out it also writes
  DIR/NAME.html  a page with all questions about the photo: answers, the map of each hop as a tab,
                 all on one scale, and the words that each hop attended to
  DIR/NAME.png   the photo and the map of each hop, question by question
  DIR/NAME.json  answers with probabilities, maps with their geometry, weights of the words
and for several images DIR/index.html, an index of all pages.
With --boxes FILE, FILE holds the boxes of each map: COCO JSON, whose categories are the answers, or
the words of written answers.
Words that the model does not know are reported with similar words that it knows.
Unreadable images are skipped and reported at the end; the exit code is then 1."""


_IN_FOLDER = (
    "num_answers",
    "overwrite",
)  # options without effect if nothing is written
_EXAMPLES = (
    'visattn ask photos "what color is the ring?" --model runs/sort_of_clevr_cross/1 --out answers',
)


def build_parser() -> argparse.ArgumentParser:
    """Return the argument parser of the command."""
    parser = CommandParser(
        examples=_EXAMPLES,
        prog="visattn ask",
        description="Answer questions about photos, and show where the model looked.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "image",
        nargs="?",
        type=image_source,
        metavar="PHOTOS",
        help="photos: a file, folder, pattern in quotes, archive or URL; not with --files-from",
    )
    parser.add_argument(
        "questions", nargs="*", metavar="QUESTION", help='such as "what color is the ring?"'
    )
    add_images(parser, positional=False)
    add_model(parser)
    add_options(parser, "out", out={"help": "output folder for pages and JSON files"})
    parser.group(OUTPUT).add_argument(
        "--num-answers",
        type=whole_number(1, 1000),
        default=5,
        metavar="N",
        help="largest number of answers with their probabilities (default: 5)",
    )
    add_boxes(parser)
    add_resize_mode(parser, "pad")
    add_options(parser, *PHOTO_FIGURES, *BULK, "dry-run")
    return parser


def main(argv: Sequence[str]) -> int:
    """Answer questions; return 0, or 1 if an image or file failed."""
    parser = build_parser()
    args = parser.parse_args(argv)
    if args.files_from is not None and args.image is not None:  # then all words are questions
        args.questions = [str(args.image), *args.questions]
    args.images = [args.image] if args.image is not None and args.files_from is None else []
    resolve_images(parser, args)
    if not args.questions:
        parser.error("ask a question, in quotes, behind the photos")
    resolve_model(parser, args, _NO_MODEL)
    check_boxes(parser, args)
    if args.out is None:
        refuse_without(parser, args, without_folder(args, [*_IN_FOLDER, *PHOTO_FIGURES]))
    return run_job(AnswersJob, args)


class AnswersJob(ModelJob["list[Answer]"]):
    """Answers to questions about images, each with a page."""

    command = "ask"
    title = "Questions"
    work = "answering about"
    kind = "visattn.models.vqa.model:VQAModel"
    noun = "a model that answers questions"
    options = ("questions", "num_answers", "resize_mode")

    kinds = ("{}.html", "{}.png")

    @classmethod
    def check_model(cls, model: Any, weights: str, args: argparse.Namespace) -> None:
        """Report words that the model does not know, once, before images are read."""
        from visattn.data.captions.batch import Vocabulary
        from visattn.pipelines.answering import check_question

        del weights
        words = Vocabulary(model.words)
        for question in args.questions:
            for note in check_question(question, words, model.question_beginnings):
                print_message(note)

    def settings(self) -> dict[str, Any]:
        """Return model, questions and options."""
        return {**super().settings(), **box_settings(self.args)}

    def infer(self, images: "Sequence[LoadedImage]") -> "list[list[Answer]]":
        """Return the answers to all questions about images."""
        from visattn.pipelines.answering import ask

        args = self.args
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # unknown words were reported already
            return [
                ask(
                    self.model,
                    image,
                    args.questions,
                    num_answers=args.num_answers,
                    resize_mode=args.resize_mode,
                )
                for image in images
            ]

    def parts(self, name: str, image: "LoadedImage", result: "list[Answer]") -> Iterable[Part]:
        """Return answers and maps, and their page."""
        from visattn.viz.answers import answer_figure
        from visattn.viz.figures import png
        from visattn.viz.html.question_page import answer_html

        boxes = [_answer_boxes(answer, self.args) for answer in result]
        record = _json_record(image, result)
        if (joined := join_boxes(boxes)) is not None:
            record["boxes"] = joined.to_dict()
        if self.out is None:
            return [Part(name, record)]
        panel, index = f"{name}.png", self.index_link(name)
        page = answer_html(image, result, boxes=boxes, index=index, panel=panel)
        crop, width = self.args.cropped, self.args.width
        drawn = png(answer_figure(image, result, boxes=boxes, crop=crop, width=width))
        text = "; ".join(f"{answer.question} {answer.text}" for answer in result)
        card = Card(name, f"{name}.html", text, card_image(*_first_overlay(image, result)))
        return [Part(name, record, {f"{name}.html": page.encode(), panel: drawn}, card)]

    def rows(self, record: Record) -> Iterable[Sequence[object]]:
        """Yield each question, with its answer and probability."""
        for answer in record["questions"]:
            best = answer["answers"][0]
            yield answer["question"], f"{best[0]} ({100 * best[1]:.0f} %)"

    @staticmethod
    def geometry(record: Record) -> Any:
        """Return the geometry of the maps of a photo, which is that of all of them."""
        answers = record["questions"]
        return next((answer["maps"].get("geometry") for answer in answers if answer["maps"]), None)

    @staticmethod
    def table(record: Record) -> Iterable[Row]:
        """Yield each question, with its answer and probability."""
        for answer in record["questions"]:
            best, probability = answer["answers"][0]
            yield {"question": answer["question"], "answer": best, "probability": probability}


def _first_overlay(
    image: "LoadedImage", answers: "list[Answer]"
) -> "tuple[np.ndarray, Box | None]":
    """Return the photo with the last map of the first answer that has maps, and its seen region."""
    import numpy as np

    from visattn.viz.maps import overlay

    maps = next((answer.maps for answer in answers if answer.maps is not None), None)
    if maps is None or not len(maps):
        return image.pixels, None
    region = None if maps.geometry is None else maps.geometry.region
    return np.array(overlay(image, maps[-1])), region


def _answer_boxes(answer: "Answer", args: argparse.Namespace) -> "MapBoxes | None":
    """Return the boxes of an answer; those of hops and layers have the answer as their label."""
    boxes = None if answer.maps is None else boxes_of(answer.maps, args)
    if boxes is None or answer.maps is None or answer.maps.kind == "words":
        return boxes
    return replace(boxes, boxes=tuple(replace(each, label=answer.text) for each in boxes))


def _json_record(image: "LoadedImage", answers: "Sequence[Answer]") -> dict[str, Any]:
    """Return the answers and maps of one image as values of JSON, enough to draw them again."""
    height, width = image.size
    return {
        "image": image.name,
        "width": width,
        "height": height,
        "questions": [answer.to_dict() for answer in answers],
    }
