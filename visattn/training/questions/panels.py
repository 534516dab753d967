"""Figures of questions about images: the answer, and the map of each hop on one scale."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from visattn.data.questions.batch import Question, QuestionBatch
from visattn.geometry import Geometry
from visattn.models.vqa.model import AnswerOutput, VQAModel
from visattn.results.attention_map import AttentionMap
from visattn.results.info import MapInfo
from visattn.results.scale import MapScale
from visattn.viz.maps import comparison_figure
from visattn.viz.marks import draw_frame

_MIN_SIDE = 320  # of the drawn image in pixels
_WIDTH = 1000


def question_panels(
    model: VQAModel, batch: QuestionBatch, output: AnswerOutput, rows: Sequence[int]
) -> list[UInt8[np.ndarray, "height width 3"]]:
    """Return a figure of each of some questions: the image, and the map of each hop.

    White frames are the objects of the first step of reasoning, if they are known. All hops of a
    question share one scale, from 0 to their common maximum.

    Args:
        model: The model.
        batch: Questions about images of the input size.
        output: Output of the model for the batch.
        rows: Rows of the questions that are drawn.
    """
    questions, probabilities = batch.rows(), output.logits.detach().float().softmax(1).cpu()
    panels: list[UInt8[np.ndarray, "height width 3"]] = []
    for row in rows:
        index = int(batch.image_indices[row])
        sample, question = batch.samples[index], questions[row]
        image = batch.images[index].permute(1, 2, 0).cpu().numpy()
        pixels = _framed(image, question, sample.boxes)
        maps = None if output.attention is None else output.attention[row].detach().float().cpu()
        hops = _hop_maps(model, maps, pixels)
        panels.append(
            comparison_figure(
                pixels,
                hops,
                scales=_shared_scale(hops),
                title=question.text,
                subtitle=_answer_line(model.answers, probabilities[row], question.answer),
                width=_WIDTH,
                smooth=False,
            )
        )
    return panels


def rows_of_types(batch: QuestionBatch, count: int) -> list[int]:
    """Return up to `count` rows, one per image, in which the types of questions take turns.

    Example:
        >>> from visattn.data.questions.batch import Question, QuestionSample, collate_questions
        >>> from visattn.data import Vocabulary
        >>> image = torch.zeros(3, 2, 2, dtype=torch.uint8)
        >>> questions = (Question("red ?", "no", "color"), Question("big ?", "no", "size"))
        >>> samples = [QuestionSample(str(n), image, questions) for n in range(2)]
        >>> batch = collate_questions(samples, Vocabulary.from_captions(["red big"]), ["no"])
        >>> rows_of_types(batch, 2)
        [0, 3]
    """
    questions, images = batch.rows(), batch.image_indices.tolist()
    types = list(dict.fromkeys(question.type for question in questions))
    chosen: list[int] = []
    for index in range(min(count, len(batch.samples))):
        own = [row for row, image in enumerate(images) if image == index]
        wanted = types[index % len(types)]
        chosen.append(next((row for row in own if questions[row].type == wanted), own[0]))
    return chosen


def _hop_maps(
    model: VQAModel, maps: Float[Tensor, "hops n"] | None, pixels: UInt8[np.ndarray, "y x 3"]
) -> list[AttentionMap]:
    """Return the maps of all hops on the drawn image; one that says so if there are none."""
    drawn = Geometry.identity((pixels.shape[0], pixels.shape[1])).resized(model.img_size)
    if maps is None:
        note = MapInfo(empty="this model has no attention maps")
        return [AttentionMap(torch.zeros(1, 1), "maps", "tokens", drawn, note)]
    placement = model.encoder.placement
    return [
        AttentionMap(values.view(model.grid_size), name, "tokens", drawn, placement=placement)
        for name, values in zip(model.hop_names, maps, strict=True)
    ]


def _shared_scale(hops: Sequence[AttentionMap]) -> list[MapScale]:
    top = max(float(hop.values.max()) for hop in hops) or 1.0
    return [MapScale("global", 0.0, top)] * len(hops)


def _framed(
    image: UInt8[np.ndarray, "y x 3"], question: Question, boxes: Float[Tensor, "o 4"] | None
) -> UInt8[np.ndarray, "y2 x2 3"]:
    """Return the image, enlarged by a whole factor, with frames around the first referents."""
    factor = -(-_MIN_SIDE // min(image.shape[:2]))
    pixels = np.ascontiguousarray(image.repeat(factor, 0).repeat(factor, 1))
    if boxes is not None and question.referents:
        for box in (boxes[list(question.referents[0])] * factor).tolist():
            pixels = draw_frame(pixels, box)
    return pixels


def _answer_line(answers: Sequence[str], probabilities: Float[Tensor, " k"], true: str) -> str:
    """Return the answers with their probabilities, and the correct one."""
    best = probabilities.topk(min(3, len(answers)))
    parts = [
        f"{answers[index]} ({100 * value:.0f} %)"
        for value, index in zip(best.values.tolist(), best.indices.tolist(), strict=True)
    ]
    return f"{', '.join(parts)}; correct: {true}"
