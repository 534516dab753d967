"""Reader of the question files of VQA v2."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from visattn.data.captions.batch import split_words
from visattn.data.questions.batch import Question, QuestionSample
from visattn.data.source import Source
from visattn.io.safe_paths import file_below
from visattn.io.safe_text import read_json, reading
from visattn.results.kinds import Split

_MAX_BYTES = 4 << 30
_PUNCTUATION = ';/[]"{}()=+\\_-><@`,?!'
_NUMBERS = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_DIGITS = {"zero": "0", **{word: str(number) for number, word in enumerate(_NUMBERS)}}


def normalize_answer(answer: str) -> str:
    """Normalize an answer as the VQA evaluation does.

    It is lower-cased, punctuation, articles and periods that no digit follows are removed, and
    number words become digits. Missing apostrophes in contractions are not restored.

    Example:
        >>> normalize_answer("Two, on the left."), normalize_answer("1,000.")
        ('2 on left', '1000')

    Source:
        https://github.com/GT-Vision-Lab/VQA, PythonEvaluationTools/vqaEvaluation/vqaEval.py.
    """
    text = " ".join(answer.split())
    # As in the official code: marks are searched in the unchanged text, and if a comma stands
    # between digits, all marks are removed; otherwise they become spaces: "1,000 - 2" -> "1000 2".
    in_number = re.search(r"\d,\d", text) is not None
    result = text
    for mark in _PUNCTUATION:
        beside_space = f"{mark} " in text or f" {mark}" in text
        result = result.replace(mark, "" if beside_space or in_number else " ")
    result = re.sub(r"\.(?!\d)", "", result).lower()
    words = (_DIGITS.get(word, word) for word in result.split())
    return " ".join(word for word in words if word not in ("a", "an", "the"))


def frequent_answers(samples: Iterable[QuestionSample], max_answers: int) -> tuple[str, ...]:
    """Return the most frequent answers to the training questions, ties in alphabetical order.

    Answers that normalization leaves empty, such as the letter a, are excluded.

    Raises:
        ValueError: If `max_answers` is below 2, or there are fewer than two answers.

    Example:
        >>> questions = [Question("?", answer, "other") for answer in ("red", "2", "red")]
        >>> frequent_answers([QuestionSample("a", "a.jpg", tuple(questions))], 5)
        ('red', '2')
    """
    counts = Counter(question.answer for sample in samples for question in sample.questions)
    del counts[""]
    if max_answers < 2 or len(counts) < 2:
        raise ValueError(
            f"max_answers must be at least 2, and so must the number of different answers in the "
            f"training questions; got {max_answers} and {len(counts)}"
        )
    return tuple(sorted(counts, key=lambda answer: (-counts[answer], answer))[:max_answers])


def _question(text: str, answer: dict[str, Any]) -> Question:
    """Return a question with the answers of an annotation."""
    texts = [each["answer"] for each in answer["answers"]]
    question = answered_question(text, texts, answer.get("answer_type", "other"))
    best = answer.get("multiple_choice_answer")
    return question if best is None else question._replace(answer=normalize_answer(best))


def answered_question(text: str, answers: Sequence[str], type_: str = "other") -> Question:
    """Return a question with the normalized answers of several annotators.

    Example:
        >>> answered_question("What color?", ["Red.", "red", "dark red"]).answer
        'red'
    """
    normalized = tuple(map(normalize_answer, answers))
    [(most_frequent, _)] = Counter(normalized).most_common(1)
    return Question(text, most_frequent, type_, answers=normalized)


@dataclass
class VQAFiles(Source):
    """Photos with questions in VQA format (v1 and v2).

    The type of a question is its answer type: yes/no, number or other. The ten answers are
    normalized by `normalize_answer`. `{split}` in a path is replaced by `train` or `val`; the test
    photos are the validation photos.

    Args:
        questions: JSON with `questions`: `image_id`, `question`, `question_id`.
        annotations: JSON with `annotations`: `question_id`, `image_id`, `answer_type`, `answers`
            and `multiple_choice_answer`.
        images: Folder of the photos.
        image_name: Template of the file name of a photo.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the content is invalid; the message names the entry.

    Source:
        Goyal et al. 2017, arXiv:1612.00837; the format of https://visualqa.org/download.html.
    """

    questions: str
    annotations: str
    images: str
    image_name: str = "COCO_{split}2014_{id:012}.jpg"

    def __call__(self, split: Split) -> list[QuestionSample]:
        """Return the photos of a split with their questions."""
        name = "train" if split == "train" else "val"
        questions, annotations, images, image_name = (
            text.replace("{split}", name)
            for text in (self.questions, self.annotations, self.images, self.image_name)
        )
        if "{id" not in image_name:
            raise ValueError(f"image_name must contain {{id}} or {{id:012}}, got {image_name}")
        with reading(annotations):
            entries = read_json(Path(annotations), _MAX_BYTES)["annotations"]
            answered = {entry["question_id"]: entry for entry in entries}
        photos: dict[str, list[Question]] = {}
        with reading(questions):
            for number, entry in enumerate(read_json(Path(questions), _MAX_BYTES)["questions"]):
                with reading(questions, f"questions[{number}]"):
                    answer = answered[entry["question_id"]]
                    if answer.get("image_id", entry["image_id"]) != entry["image_id"]:
                        raise ValueError(f"its answers are for image {answer['image_id']}")
                    if not split_words(entry["question"]):
                        raise ValueError(f"a question must have words, got {entry['question']!r}")
                    file = image_name.format(id=entry["image_id"])
                    photos.setdefault(file, []).append(_question(entry["question"], answer))
            return [
                QuestionSample(file, str(file_below(images, file)), tuple(group))
                for file, group in photos.items()
            ]
