"""`visattn ask`: answer questions about photos, and show where the model looked."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import arg

from visattn.commands.arguments import Photos, ResizeModeOrNone
from visattn.commands.loop import Command, LoopOptions, Made, run
from visattn.commands.model import ModelOptions
from visattn.io.safe_text import print_message

if TYPE_CHECKING:  # imported when the command runs, so that --help is fast
    import numpy as np

    from visattn.images.reader import LoadedImage
    from visattn.results.values import Answer


def ask(
    photos: Photos,
    *,
    questions: Annotated[tuple[str, ...], arg(aliases=["-q"], metavar="QUESTION ...")],
    model: ModelOptions = ModelOptions(),  # noqa: B008 (frozen)
    num_answers: int = 5,
    resize_mode: ResizeModeOrNone = None,
    loop: LoopOptions = LoopOptions(Path("visattn-out/ask")),  # noqa: B008 (frozen)
) -> int:
    """Answer questions about photos, with the attention of each hop.

    Prints each question with its answer and probability. Writes NAME.html, a page with all
    questions about the photo: answers, the map of each hop, and the words that each hop attended
    to; and NAME.json with answers, probabilities, maps, their geometry and word weights. To ask a
    vision-language model, use visattn caption --model hf:DIRECTORY --prompt QUESTION.

    Args:
        photos: files, folders, quoted patterns, zip and tar archives, URLs
        questions: in quotes, such as "what color is the ring?"
        num_answers: maximum number of answers to list
        resize_mode: fit a photo to the input size: center crop, change of aspect ratio, or padding
            (default: as in the training of the model)
    """
    from visattn.data.captions.batch import Vocabulary
    from visattn.models.vqa.model import VQAModel
    from visattn.pipelines.answering import ask as ask_model, check_question

    network, made = model.load(VQAModel, "a model that answers questions", "ask")
    words = Vocabulary(network.words)
    for question in questions:  # report unknown words once, not for each photo
        for note in check_question(question, words, network.question_beginnings):
            print_message(note)

    def infer(images: "Sequence[LoadedImage]") -> "list[list[Answer]]":
        options = {"num_answers": num_answers, "resize_mode": resize_mode}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # unknown words have been reported
            return [ask_model(network, image, questions, **options) for image in images]

    settings = {**made, "questions": questions, "num_answers": num_answers}
    settings["resize_mode"] = resize_mode
    command = Command("ask", "Questions", settings, infer, _draw, ["{}.html"])
    return run(command, photos, loop, batch_size=1)


def _draw(image: "LoadedImage", result: "list[Answer]", files: Sequence[str]) -> Made:
    """Return answers and maps, and their page."""
    from visattn.commands.loop import index_link
    from visattn.viz.html.index_page import thumbnail
    from visattn.viz.html.question_page import answer_html

    height, width = image.size
    record = {
        "image": image.name,
        "width": width,
        "height": height,
        "questions": [answer.to_dict() for answer in result],
    }
    page = answer_html(image, result, index=index_link(files[0]))
    best = [(answer.question, *answer.answers[0]) for answer in result]
    return Made(
        record,
        {files[0]: page.encode()},
        rows=[(asked, f"{text} ({100 * share:.0f} %)") for asked, text, share in best],
        table=[
            {"question": asked, "answer": text, "probability": share} for asked, text, share in best
        ],
        caption="; ".join(f"{answer.question} {answer.text}" for answer in result),
        thumbnail=thumbnail(_first_overlay(image, result)),
    )


def _first_overlay(image: "LoadedImage", answers: "Sequence[Answer]") -> "np.ndarray":
    """Return the photo with the last map of the first answer that has maps."""
    import numpy as np

    from visattn.viz.maps import overlay

    maps = next((each.maps for each in answers if each.maps is not None and len(each.maps)), None)
    return image.pixels if maps is None else np.array(overlay(image, maps[-1]))
