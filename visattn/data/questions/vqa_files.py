"""Readers of the question files of VQA v2 and GQA."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch.utils.data import Dataset

from visattn.data.captions.batch import split_words
from visattn.data.loading.loader import ReadFallback
from visattn.data.questions.batch import Question, QuestionSample
from visattn.images.reader import read_image
from visattn.images.resize import ResizeSpec, resize_to_input
from visattn.io.safe_paths import check_relative_path
from visattn.io.safe_text import read_json_object, short_repr
from visattn.io.sources import Source

_MAX_BYTES = 4 << 30  # the questions of GQA are over a gigabyte
_TEMPLATE_FIELD = re.compile(r"\{id(?::0?\d{1,2})?\}")  # a width of at most 99
_PUNCTUATION = ';/[]"{}()=+\\_-><@`,?!'
_NUMBERS = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_DIGITS = {"zero": "0", **{word: str(number) for number, word in enumerate(_NUMBERS)}}


class QuestionPhoto(NamedTuple):
    """A photo with the questions about it."""

    file: str
    """Path relative to the folder of photos."""
    questions: tuple[Question, ...]


def read_vqa(questions: Path, annotations: Path, image_name: str) -> list[QuestionPhoto]:
    """Read questions and answers in the format of VQA (v1 and v2), photo by photo.

    The type of a question is its answer type: yes/no, number or other. The ten answers are
    normalized by `normalize_answer`.

    Args:
        questions: JSON with `questions`: `image_id`, `question`, `question_id`.
        annotations: JSON with `annotations`: `question_id`, `answer_type`, `answers` and
            `multiple_choice_answer`.
        image_name: Name of the photo of an image id, such as `COCO_train2014_{id:012}.jpg`.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the content is invalid; the message names the entry.

    Source:
        Goyal et al. 2017, arXiv:1612.00837; the format of https://visualqa.org/download.html.
    """
    answered: dict[Any, dict[str, Any]] = {}
    for location, entry in _entries(annotations, "annotations"):
        number = _field(entry, "question_id", (int, str), location)
        _check_new(number, answered, location)
        answered[number] = entry
    photos: dict[str, list[Question]] = {}
    read_ids: set[int | str] = set()
    for location, entry in _entries(questions, "questions"):
        text = _field(entry, "question", (str,), location)
        number = _field(entry, "question_id", (int, str), location)
        if number not in answered:
            raise ValueError(f"{location}: {annotations} has no answers to question {number}")
        _check_new(number, read_ids, location)
        read_ids.add(number)
        image = _field(entry, "image_id", (int, str), location)
        file = _file_name(image_name, image, location)
        other = answered[number].get("image_id", image)
        if other != image:
            raise ValueError(
                f"{location}: question {short_repr(number)} is about image {short_repr(image)}, "
                f"but in {annotations} about {short_repr(other)}"
            )
        _check_words(text, location)
        question = _vqa_question(text, answered[number], f"answers to question {number}")
        photos.setdefault(file, []).append(question)
    return [QuestionPhoto(file, tuple(group)) for file, group in photos.items()]


def read_gqa(questions: Path, image_name: str) -> list[QuestionPhoto]:
    """Read questions and answers in the format of GQA, photo by photo.

    The type of a question is its structural type: verify, query, choose, logical or compare.

    Args:
        questions: JSON object of questions by id: `question`, `answer`, `imageId` and `types`.
        image_name: Name of the photo of an image id, such as `{id}.jpg`.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the content is invalid; the message names the question.

    Source:
        Hudson and Manning 2019, arXiv:1902.09506; the format of
        https://cs.stanford.edu/people/dorarad/gqa/download.html.
    """
    photos: dict[str, list[Question]] = {}
    for number, entry in _read_object(questions).items():
        location = f"{questions}, question {short_repr(number)}"
        if not isinstance(entry, dict):
            raise ValueError(f"{location} must be an object, got {short_repr(entry)}")  # noqa: TRY004
        types = entry.get("types")
        type_ = types.get("structural") if isinstance(types, dict) else None
        text = _field(entry, "question", (str,), location)
        _check_words(text, location)
        question = Question(
            text,
            _field(entry, "answer", (str,), location).lower().strip(),
            type_ if isinstance(type_, str) else "other",
        )
        file = _file_name(image_name, _field(entry, "imageId", (int, str), location), location)
        photos.setdefault(file, []).append(question)
    return [QuestionPhoto(file, tuple(group)) for file, group in photos.items()]


def normalize_answer(answer: str) -> str:
    """Return an answer as the evaluation of VQA compares it.

    Lower case; without punctuation, articles and periods that no digit follows; number words as
    digits. Apostrophes that are missing in contractions are not restored.

    Example:
        >>> normalize_answer("Two, on the left."), normalize_answer("1,000.")
        ('2 on left', '1000')

    Source:
        https://github.com/GT-Vision-Lab/VQA, PythonEvaluationTools/vqaEvaluation/vqaEval.py.
    """
    text = " ".join(answer.split())
    # As the official code does it: marks are looked for in the unchanged text, and one comma
    # between digits has all marks removed, which else become spaces: "1,000 - 2" -> "1000 2".
    in_number = re.search(r"\d,\d", text) is not None
    result = text
    for mark in _PUNCTUATION:
        beside_space = f"{mark} " in text or f" {mark}" in text
        result = result.replace(mark, "" if beside_space or in_number else " ")
    result = re.sub(r"\.(?!\d)", "", result).lower()
    words = (_DIGITS.get(word, word) for word in result.split())
    return " ".join(word for word in words if word not in ("a", "an", "the"))


def frequent_answers(photos: Iterable[QuestionPhoto], max_answers: int) -> tuple[str, ...]:
    """Return the most frequent answers to the training questions, ties in alphabetical order.

    An answer of which nothing is left after normalization, such as the letter a, is none of them.

    Raises:
        ValueError: If `max_answers` is below 2, or there are fewer than two answers.

    Example:
        >>> questions = [Question("?", answer, "other") for answer in ("red", "2", "red")]
        >>> frequent_answers([QuestionPhoto("a.jpg", tuple(questions))], 5)
        ('red', '2')
    """
    counts = Counter(question.answer for photo in photos for question in photo.questions)
    del counts[""]
    if max_answers < 2 or len(counts) < 2:
        raise ValueError(
            f"max_answers must be at least 2, and so must the number of different answers in the "
            f"training questions; got {max_answers} and {len(counts)}"
        )
    return tuple(sorted(counts, key=lambda answer: (-counts[answer], answer))[:max_answers])


class QuestionPhotos(Dataset[QuestionSample]):
    """Photos with questions, resized to the input of a network.

    Indices beyond the length begin again, so that `EpochIndexSampler` can number epochs.

    Args:
        photos: The questions of each photo.
        sources: The photos.
        resize: Resizing to the network's input.
        fallback: Replaces photos that cannot be read; None raises.
    """

    def __init__(
        self,
        photos: Sequence[QuestionPhoto],
        sources: Sequence[Source],
        resize: ResizeSpec,
        *,
        fallback: ReadFallback | None = None,
    ) -> None:
        self.photos = photos
        self.sources = sources
        self.resize = resize
        self.fallback = fallback

    def __len__(self) -> int:
        return len(self.photos)

    def __getitem__(self, index: int) -> QuestionSample:
        number = index % len(self.photos)
        return self.fallback.read(number, self._load) if self.fallback else self._load(number)

    def _load(self, number: int) -> QuestionSample:
        photo = self.photos[number]
        image, _ = resize_to_input(read_image(self.sources[number]), self.resize)
        return QuestionSample(photo.file, image, photo.questions)


def _vqa_question(text: str, entry: dict[str, Any], location: str) -> Question:
    """Return a question with the answers of an annotation."""
    raw = _field(entry, "answers", (list,), location)
    answers = [answer.get("answer") for answer in raw if isinstance(answer, dict)]
    texts = [answer for answer in answers if isinstance(answer, str)]
    if not texts or len(texts) < len(raw):
        raise ValueError(f"{location} must be a list of objects with an answer: {short_repr(raw)}")
    type_ = entry.get("answer_type")
    best = entry.get("multiple_choice_answer")
    question = answered_question(text, texts, type_ if isinstance(type_, str) else "other")
    return question._replace(answer=normalize_answer(best)) if isinstance(best, str) else question


def answered_question(text: str, answers: Sequence[str], type_: str = "other") -> Question:
    """Return a question with the answers of several people, as VQA compares them.

    Example:
        >>> answered_question("What color?", ["Red.", "red", "dark red"]).answer
        'red'
    """
    normalized = tuple(map(normalize_answer, answers))
    [(most_frequent, _)] = Counter(normalized).most_common(1)
    return Question(text, most_frequent, type_, answers=normalized)


def _check_new(number: int | str, known: Collection[int | str], location: str) -> None:
    if number in known:
        raise ValueError(f"{location}: question_id {short_repr(number)} is there already")


def _check_words(text: str, location: str) -> None:
    if not split_words(text):
        raise ValueError(f"{location}: a question must have a word, got {short_repr(text)}")


def _file_name(template: str, number: int | str, location: str) -> str:
    """Return the name of the photo of an image id."""
    rest, count = _TEMPLATE_FIELD.subn("", template)
    if not count or "{" in rest or "}" in rest:
        raise ValueError(
            "the name of photos must contain {id} or {id:012} and no other field, got "
            f"{short_repr(template)}"
        )
    padded = "{id:" in template
    value = int(number) if padded and isinstance(number, str) and number.isdecimal() else number
    try:
        name = template.format(id=value)
    except (ValueError, KeyError, IndexError):
        name = ""
    if not name or name == template or (padded and not isinstance(value, int)):
        raise ValueError(
            "the name of photos must contain the id, as in COCO_train2014_{id:012}.jpg; "
            f"{template!r} does not fit the id {short_repr(number)} ({location})"
        )
    check_relative_path(name)
    return name


def _entries(path: Path, key: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the location and the content of each entry of a list in a JSON file."""
    document = _read_object(path)
    entries = document.get(key)
    if not isinstance(entries, list):
        raise ValueError(f"{path} must have a list of {key}, got {short_repr(entries)}")  # noqa: TRY004
    for index, entry in enumerate(entries):
        location = f"{path}, {key}[{index}]"
        if not isinstance(entry, dict):
            raise ValueError(f"{location} must be an object, got {short_repr(entry)}")  # noqa: TRY004
        yield location, entry


def _read_object(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise FileNotFoundError(f"no question file at {path}")
    return read_json_object(path, _MAX_BYTES)


def _field(entry: dict[str, Any], key: str, kinds: tuple[type, ...], location: str) -> Any:
    """Return a field of an entry, of one of some types."""
    value = entry.get(key)
    if not isinstance(value, kinds) or isinstance(value, bool) or value == "":
        names = " or ".join(kind.__name__ for kind in kinds)
        raise ValueError(f"{location}: {key} must be a {names}, got {short_repr(value)}")
    return value
