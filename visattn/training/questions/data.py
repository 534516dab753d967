"""Data module of photos with questions."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from visattn.data.captions.batch import Vocabulary, split_words
from visattn.data.questions.batch import (
    QuestionBatch,
    QuestionSample,
    collate_questions,
    question_input,
)
from visattn.data.questions.vqa_files import frequent_answers
from visattn.data.source import AnySource
from visattn.results.kinds import Split
from visattn.training.data_module import DataModule


class QuestionData(DataModule):
    """Photos with questions: samples are a photo and (question, answer) pairs, or `QuestionSample`.

    Each image comes with all of its questions. Words and answers are those of the training
    questions.

    Args:
        source: Returns the samples of a split, such as `VQAFiles`.
        max_answers: Number of most frequent answers that the model can give.
        min_word_freq: Less frequent words become the unknown word.
        blank_images: Whether all images are replaced by a gray one, in training and evaluation, as
            a control for answers from questions alone.
        options: Options of `DataModule`.
    """

    group_size = 2
    sample_type = QuestionSample
    default_resize = "squash"

    def __init__(
        self,
        source: AnySource,
        *,
        max_answers: int = 3000,
        min_word_freq: int = 1,
        blank_images: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(source, **options)
        self.blank_images = blank_images
        self.num_steps: int = getattr(source, "num_steps", 0)
        asked = [question for s in self.listed("train") for question in s.questions]
        self._texts: list[str] = getattr(source, "texts", None) or [q.text for q in asked]
        self.answers: tuple[str, ...] = getattr(source, "answers", None) or frequent_answers(
            self.listed("train"), max_answers
        )
        self.types: dict[str, str] = getattr(source, "types", None) or dict.fromkeys(
            sorted({q.type for s in self.listed("validation") for q in s.questions}
                   | {q.type for q in asked}), ""
        )  # fmt: skip
        self.vocabulary = Vocabulary.from_captions(self._texts, min_word_freq=min_word_freq)

    @property
    def data_info(self) -> dict[str, Any]:
        """Words, answers, question types, and the first words of the training questions."""
        return {
            "words": list(self.vocabulary.words),
            "answers": list(self.answers),
            "question_types": dict(self.types),
            "num_steps": self.num_steps,
            "question_beginnings": sorted({" ".join(split_words(t)[:2]) for t in self._texts}),
        }

    def prepare(self, split: Split) -> Callable[[Any, int], Any]:
        """Return the function from a sample to an image."""
        return partial(question_input, resize=self.resize, value_range=self.value_range)

    def collate(self, split: Split) -> Callable[[list[Any]], Any]:
        """Return the function that batches images and questions."""
        return partial(
            _collate, vocabulary=self.vocabulary, answers=self.answers, blank=self.blank_images
        )

    def count_targets(self, split: Split) -> tuple[str, Counter[str]] | None:
        """Return the number of questions of each type whose answer the model knows."""
        if not (samples := self.listed(split)):
            return None
        known = {*self.answers}
        types = Counter(dict.fromkeys(self.types, 0) if split == "train" else {})
        types.update(q.type for s in samples for q in s.questions if q.answer in known)
        return "questions with an answer of the model", types


def _collate(
    samples: Sequence[QuestionSample],
    vocabulary: Vocabulary,
    answers: Sequence[str],
    *,
    blank: bool,
) -> QuestionBatch:
    batch = collate_questions(samples, vocabulary, answers)
    return batch.without_images() if blank else batch
