"""Samples and batches of images with questions."""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, Self

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from visattn.data.captions.batch import Vocabulary, image_partners
from visattn.data.source import read_photo, to_device
from visattn.images.resize import ResizeSpec, resize_to_input
from visattn.results.kinds import PAD

_BLANK = 127  # gray value of blank images


class Question(NamedTuple):
    """A question about an image, with its answer."""

    text: str
    answer: str
    """The correct answer; the most frequent one if several people answered."""
    type: str
    """Kind of question, such as `shape` or `closest`; scores are reported per type."""
    group: str = ""
    """Group of types, such as `relational`; empty if types are not grouped."""
    referents: tuple[tuple[int, ...], ...] = ()
    """Indices of the objects to attend to in each reasoning step; empty if unknown."""
    answers: tuple[str, ...] = ()
    """Answers of several annotators, for the VQA accuracy; empty if there is one answer."""


class QuestionSample(NamedTuple):
    """An image with questions about it."""

    id: str
    image: Any
    """The photo; once prepared, the network's input `[3, y, x]`."""
    questions: tuple[Question, ...]
    boxes: Float[Tensor, "o 4"] | None = None
    """Left, top, right and bottom of each object in pixels of `image`; None if unknown."""

    @classmethod
    def of(cls, sample: Any) -> Self:
        """Convert a photo with (question, answer) pairs; a `QuestionSample` is returned as is.

        Example:
            >>> QuestionSample.of(("a.jpg", [("what color is it ?", "red")])).questions[0].answer
            'red'
        """
        if isinstance(sample, cls):
            return sample
        photo, pairs = sample
        questions = (
            pair if isinstance(pair, Question) else Question(pair[0], pair[1], "other")
            for pair in pairs
        )
        return cls(str(photo), photo, tuple(questions))


def question_input(
    sample: Any,
    seed: int,  # noqa: ARG001 (nothing is random)
    *,
    resize: ResizeSpec,
    value_range: tuple[float, float] | None = None,
) -> QuestionSample:
    """Return a sample with its photo resized to the network's input."""
    sample = QuestionSample.of(sample)
    if isinstance(sample.image, Tensor):
        if sample.image.shape[1:] != resize.size:
            raise ValueError(
                f"the model needs images of {resize.size} pixels (height, width), got "
                f"{tuple(sample.image.shape[1:])}: set image_size, or img_size of the encoder"
            )
        return sample
    photo = read_photo(sample.image, value_range)
    return sample._replace(image=resize_to_input(photo, resize)[0])


class QuestionBatch(NamedTuple):
    """A batch of images with tokenized questions, in the order of the images."""

    samples: tuple[QuestionSample, ...]
    """Ids and questions, without images and boxes."""
    images: UInt8[Tensor, "b 3 y x"]
    questions: Int[Tensor, "r t"]
    """Token ids of each question, without start and end, padded with 0."""
    answers: Int[Tensor, " r"]
    """Index of the correct answer; -1 if the model does not have it."""
    image_indices: Int[Tensor, " r"]
    """For each question, the index of its image in the batch."""
    question_indices: tuple[int, ...]
    """For each question, its index among the questions of its image."""
    boxes: Float[Tensor, "b o 4"] | None = None
    """Boxes of the objects of each image, padded with empty boxes; None if unknown."""
    referents: Bool[Tensor, "r s o"] | None = None
    """Objects to attend to in each reasoning step, none in steps that a question does not have;
    None if no question has referents."""
    soft_scores: Float[Tensor, "r k"] | None = None
    """VQA accuracy of each answer of the model; None if each question has one answer."""

    to = to_device

    def rows(self) -> list[Question]:
        """Return the question of each row."""
        pairs = zip(self.image_indices.tolist(), self.question_indices, strict=True)
        return [self.samples[image].questions[question] for image, question in pairs]

    def of_types(self, types: Collection[str]) -> Self:
        """Keep the questions of some types, and all images; if none match, keep all questions.

        Example:
            >>> image = torch.zeros(3, 2, 2, dtype=torch.uint8)
            >>> questions = (Question("red ?", "yes", "exists"), Question("red", "1", "count"))
            >>> words = Vocabulary.from_captions(["red"])
            >>> sample = QuestionSample("0", image, questions)
            >>> batch = collate_questions([sample], words, ["yes", "1"])
            >>> batch.of_types({"count"}).answers
            tensor([1])
        """
        rows = [row for row, question in enumerate(self.rows()) if question.type in types]
        if not rows:
            return self
        fields = ("questions", "answers", "image_indices", "referents", "soft_scores")
        values = {name: getattr(self, name) for name in fields}
        return self._replace(
            question_indices=tuple(self.question_indices[row] for row in rows),
            **{name: value[rows] for name, value in values.items() if value is not None},
        )

    def swap_images(self) -> Self:
        """Swap the images of each pair, as `CaptionBatch.swap_images` does."""
        return self._replace(images=self.images[image_partners(len(self.samples))])

    def without_images(self) -> Self:
        """Replace the images by blank gray ones, as a control for scores."""
        return self._replace(images=torch.full_like(self.images, _BLANK))


def collate_questions(
    samples: Sequence[QuestionSample], vocabulary: Vocabulary, answers: Sequence[str]
) -> QuestionBatch:
    """Collate samples with images of one size into a batch for a model with these answers.

    Raises:
        ValueError: If a sample has no question, or a question no words.

    Example:
        >>> image = torch.zeros(3, 2, 2, dtype=torch.uint8)
        >>> questions = (Question("is it red ?", "no", "exists"), Question("red ?", "1", "count"))
        >>> vocabulary = Vocabulary.from_captions(["is it red"])
        >>> batch = collate_questions([QuestionSample("0", image, questions)], vocabulary, ["no"])
        >>> batch.questions, batch.answers
        (tensor([[4, 5, 6],
                [6, 0, 0]]), tensor([ 0, -1]))
    """
    if without := [sample.id for sample in samples if not sample.questions]:
        raise ValueError(f"every sample needs a question, these have none: {without[:5]}")
    questions = [question for sample in samples for question in sample.questions]
    counts = torch.tensor([len(sample.questions) for sample in samples])
    answer_indices = {answer: index for index, answer in enumerate(answers)}
    boxes = _pad_boxes(samples)
    return QuestionBatch(
        # Each tensor sent by a worker costs a file descriptor: send images and boxes stacked.
        samples=tuple(sample._replace(image=None, boxes=None) for sample in samples),
        images=torch.stack([sample.image for sample in samples]),
        questions=encode_questions([question.text for question in questions], vocabulary),
        answers=torch.tensor([answer_indices.get(question.answer, -1) for question in questions]),
        image_indices=torch.arange(len(samples)).repeat_interleave(counts),
        question_indices=tuple(i for sample in samples for i in range(len(sample.questions))),
        boxes=boxes,
        referents=None if boxes is None else _mark_referents(questions, boxes.shape[1]),
        soft_scores=_soft_scores(questions, answer_indices),
    )


def encode_questions(questions: Sequence[str], vocabulary: Vocabulary) -> Int[Tensor, "r t"]:
    """Return the token ids of questions, padded with 0.

    There are no start and end tokens: position t is the t-th word of `split_words`.

    Raises:
        ValueError: If a question has no words.

    Example:
        >>> encode_questions(["is it red ?", "red ?"], Vocabulary.from_captions(["is it red"]))
        tensor([[4, 5, 6],
                [6, 0, 0]])
    """
    tokens = {text: vocabulary.encode(text)[1:-1] for text in set(questions)}
    if empty := [text for text, row in tokens.items() if not row]:
        raise ValueError(f"a question must have at least one word, got {empty[0]!r}")
    longest = max(map(len, tokens.values()))
    padded = {text: row + [PAD] * (longest - len(row)) for text, row in tokens.items()}
    return torch.tensor([padded[text] for text in questions])


def vqa_accuracy(answers: Sequence[str], predicted: str) -> float:
    """Return the VQA accuracy: min(n / 3, 1), averaged over all subsets that leave one answer out.

    n counts the annotators of the subset who gave the predicted answer.

    Source:
        "VQA: Visual Question Answering", arXiv 1505.00468, section 3 ("Answers"); averaged as in
        the evaluation code, https://visualqa.org/evaluation.html.

    Example:
        >>> round(vqa_accuracy(["red"] * 3 + ["blue"] * 7, "red"), 6)
        0.9
    """
    total = len(answers)
    count = answers.count(predicted)
    if total < 2:
        return float(count)
    # Leaving out a matching answer leaves count - 1 of them, any other leaves all.
    # Two of ten: (2 * 1/3 + 8 * 2/3) / 10 = 0.6.
    matching = count * min((count - 1) / 3, 1) + (total - count) * min(count / 3, 1)
    return matching / total


def _soft_scores(
    questions: Sequence[Question], indices: dict[str, int]
) -> Float[Tensor, "r k"] | None:
    """Return the VQA accuracy of each answer of the model, or None without several answers."""
    if not any(question.answers for question in questions):
        return None
    scores = torch.zeros(len(questions), len(indices))
    for row, question in zip(scores, questions, strict=True):
        answers = question.answers or (question.answer,)
        for answer in Counter(answers):
            if (index := indices.get(answer)) is not None:
                row[index] = vqa_accuracy(answers, answer)
    return scores


def _pad_boxes(samples: Sequence[QuestionSample]) -> Float[Tensor, "b o 4"] | None:
    """Return the boxes of all samples, or None if a sample has none."""
    boxes = [sample.boxes for sample in samples if sample.boxes is not None]
    if len(boxes) < len(samples):
        return None
    return torch.nn.utils.rnn.pad_sequence(boxes, batch_first=True)


def _mark_referents(
    questions: Sequence[Question], num_objects: int
) -> Bool[Tensor, "r s o"] | None:
    """Return the referents of each question and step as a mask over the objects."""
    positions = [
        (row, step, index)
        for row, question in enumerate(questions)
        for step, indices in enumerate(question.referents)
        for index in indices
    ]
    if not positions:
        return None
    rows, steps, objects = torch.tensor(positions).T
    mask = torch.zeros(len(questions), int(steps.max()) + 1, num_objects, dtype=torch.bool)
    mask[rows, steps, objects] = True
    return mask
