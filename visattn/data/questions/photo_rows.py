"""Questions about photos from the rows of tables."""

from typing import Any

from visattn.data.captions.batch import split_words
from visattn.data.photo_tables import PhotoTable
from visattn.data.questions.batch import Question
from visattn.data.questions.vqa_files import QuestionPhoto, answered_question
from visattn.io.safe_text import short_repr

QUESTION_COLUMNS = {
    "image": ("image", "img", "jpg", "png"),
    "question": ("question", "questions", "qa.question", "query"),
    "answer": (
        "answer", "multiple_choice_answer", "answers.answer", "answers", "qa.answer", "label",
    ),
    "type?": ("answer_type", "question_type", "type"),
    "id?": ("id",),
}  # fmt: skip
"""Usual names of columns."""


def question_rows(table: PhotoTable) -> list[QuestionPhoto]:
    """Return the questions about each photo of a table.

    Args:
        table: With the columns `question` and `answer`, and perhaps `type` and `id`.

    Raises:
        ValueError: If a cell holds something else; the message names the row.
    """
    questions, answers = table.values("question"), table.values("answer")
    types = table.values("type") if "type" in table.columns else [None] * len(table)
    photos: list[QuestionPhoto] = []
    rows = zip(table.ids(), questions, answers, types, strict=True)
    for number, (name, asking, answer, type_) in enumerate(rows):
        place = table[number].address
        single = isinstance(asking, str)
        texts = [asking] if single else asking
        replies = [answer] if single else answer
        kinds = [type_] * len(texts or ()) if single or type_ is None else type_
        if not (
            isinstance(texts, list)
            and texts
            and isinstance(replies, list)
            and len(replies) == len(texts) == len(kinds or [])
        ):
            raise ValueError(
                f"{place}: there must be a question, or a list of questions with as many answers, "
                f"got {short_repr(asking)} and {short_repr(answer)}"
            )
        triples = zip(texts, replies, kinds, strict=True)
        photos.append(QuestionPhoto(name, tuple(_question(*each, place) for each in triples)))
    return photos


def _question(text: Any, answers: Any, type_: Any, place: str) -> Question:
    if not isinstance(text, str) or not split_words(text):
        raise ValueError(f"{place}: a question must have a word, got {short_repr(text)}")
    several = [answers] if isinstance(answers, str) else answers
    if not isinstance(several, list) or not several or not all(isinstance(a, str) for a in several):
        raise ValueError(
            f"{place}: an answer must be a text, or a list of the texts of several people, got "
            f"{short_repr(answers)}"
        )
    question = answered_question(text, several, type_ if isinstance(type_, str) else "other")
    return question if len(several) > 1 else question._replace(answers=())
