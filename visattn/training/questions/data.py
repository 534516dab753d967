"""Data modules of questions about images: Sort-of-CLEVR, VQA v2."""

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset

from visattn.data.captions.batch import Vocabulary, split_words
from visattn.data.loading.loader import OnError, PathList
from visattn.data.photo_tables import PhotoTable, TableSource, question_photos, read_tables
from visattn.data.questions.batch import QuestionBatch, QuestionSample, collate_questions
from visattn.data.questions.sort_of_clevr import (
    SORT_OF_CLEVR_GROUPS,
    SortOfClevr,
    sort_of_clevr_texts,
)
from visattn.data.questions.vqa_files import (
    QuestionPhoto,
    QuestionPhotos,
    frequent_answers,
    read_gqa,
    read_vqa,
)
from visattn.images.resize import ResizeMode
from visattn.io.sources import Source
from visattn.results.kinds import Split
from visattn.training.data_module import DataModule


class QuestionDataModule(DataModule):
    """Base class of images with questions; an image brings all of its questions.

    Args:
        blank_images: Whether all images are replaced by a gray one, for training and evaluation: a
            model trained like this knows the questions only, and is the control of others.
        options: Options of `DataModule`.
    """

    group_size = 2
    vocabulary: Vocabulary
    """Words of the questions."""
    answers: tuple[str, ...]
    """The answers between which a model chooses."""
    types: dict[str, str]
    """Types of questions, with the group of each; an empty group is none."""
    num_steps: int
    """Largest number of steps of reasoning whose objects are known; 0 if none are."""

    def __init__(self, *, blank_images: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self.blank_images = blank_images

    @property
    def data_info(self) -> dict[str, Any]:
        """Words, beginnings, answers, types of questions with groups, and the number of steps."""
        return {
            "words": list(self.vocabulary.words),
            "answers": list(self.answers),
            "question_types": dict(self.types),
            "num_steps": self.num_steps,
            "question_beginnings": sorted(
                {" ".join(split_words(text)[:2]) for text in self.training_questions()}
            ),
        }

    @abstractmethod
    def training_questions(self) -> Iterable[str]:
        """Return questions that begin in all ways that questions of the training split do."""

    @abstractmethod
    def open_dataset(self, split: Split) -> Dataset[QuestionSample]:
        """Return the images of a split with their questions."""

    def collate_fn(self, split: Split) -> "partial[QuestionBatch]":
        """Return the function that makes a batch of samples."""
        return partial(
            _collate, vocabulary=self.vocabulary, answers=self.answers, blank=self.blank_images
        )


class SortOfClevrDataModule(QuestionDataModule):
    """Sort-of-CLEVR: six colored rectangles and circles, with questions in words; no files needed.

    Images and questions are drawn on the fly, new ones in each epoch. Two groups of questions:
    `non_relational` (shape, left, top) and `relational` (closest, furthest, count).

    Args:
        train: Number of training images per epoch.
        val: Number of validation images.
        test: Number of test images; the original has 200, which gives errors of 1.3 points.
        image_size: Height and width in pixels, at least 75; larger images have white margins.
        questions: Questions per image and group.
        original: Whether answers have the faults of the published generator, for comparison with
            published numbers; see `SortOfClevr`.
        num_workers: Worker processes that draw images; 0 draws them in this process.
        seed: Seed of the images, their questions and their order.
        options: Options of `QuestionDataModule`.
    """

    num_steps = 2

    def __init__(
        self,
        *,
        train: int = 9800,
        val: int = 300,
        test: int = 2000,
        image_size: int = 80,
        questions: int = 10,
        original: bool = False,
        num_workers: int = 0,
        seed: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(num_workers=num_workers, seed=seed, **options)
        self.image_size = image_size
        counts = {"train": train, "validation": val, "test": test}
        self._datasets = {
            split: SortOfClevr(
                count,
                split=split,  # type: ignore[arg-type]
                seed=seed,
                questions=questions,
                original=original,
                size=image_size,
            )
            for split, count in counts.items()
        }
        self._questions = sort_of_clevr_texts()
        self.vocabulary = Vocabulary.from_captions(self._questions)
        self.answers = self._datasets["test"].answers
        self.types = {
            type_: group for group, types in SORT_OF_CLEVR_GROUPS.items() for type_ in types
        }

    def training_questions(self) -> Iterable[str]:
        """Return all questions."""
        return self._questions

    def open_dataset(self, split: Split) -> Dataset[QuestionSample]:
        """Return the images of a split with their questions."""
        self.check_image_size((self.image_size, self.image_size))
        return self._datasets[split]


def _collate(
    samples: Sequence[QuestionSample],
    vocabulary: Vocabulary,
    answers: Sequence[str],
    *,
    blank: bool,
) -> QuestionBatch:
    batch = collate_questions(samples, vocabulary, answers)
    return batch.without_images() if blank else batch


class PhotoQuestionsDataModule(QuestionDataModule):
    """Base class of photos with questions of people; words and answers are those of the training.

    Args:
        photos: The questions about each photo of each split.
        max_answers: Number of answers between which the model chooses, the most frequent ones.
            Questions with another answer are not trained on, and count as wrong in the test.
        min_word_freq: Words that occur less often in the training questions are unknown.
        resize_mode: How a photo is resized to the input of the network: `crop` takes the center
            crop, `pad` adds margins, `squash` ignores the aspect ratio.
        on_error: Whether an unreadable training photo is an error (`raise`), or is always replaced
            by the same other photo, with a warning (`substitute`).
        batch_size: Photos per training batch and process.
        num_workers: Worker processes that load batches; 0 loads them in this process.
        options: Options of `QuestionDataModule`.
    """

    num_steps = 0

    def __init__(
        self,
        photos: Mapping[Split, list[QuestionPhoto]],
        *,
        max_answers: int = 3000,
        min_word_freq: int = 1,
        resize_mode: ResizeMode = "squash",
        on_error: OnError = "raise",
        batch_size: int = 64,
        num_workers: int = 4,
        **options: Any,
    ) -> None:
        super().__init__(batch_size=batch_size, num_workers=num_workers, **options)
        self.resize_mode = resize_mode
        self.on_error = on_error
        self.photos = photos
        train = photos["train"]
        self.answers = frequent_answers(train, max_answers)
        self.vocabulary = Vocabulary.from_captions(
            (question.text for photo in train for question in photo.questions),
            min_word_freq=min_word_freq,
        )
        types = {q.type for of_split in photos.values() for photo in of_split for q in photo[1]}
        self.types = dict.fromkeys(sorted(types), "")

    @abstractmethod
    def sources(self, split: Split) -> Sequence[Source]:
        """Return the photos of a split."""

    def open_dataset(self, split: Split) -> Dataset[QuestionSample]:
        """Return the photos of a split with their questions."""
        photos = self.photos[split]
        fallback = self.read_fallback(split, len(photos), lambda index: photos[index].file)
        return QuestionPhotos(photos, self.sources(split), self.resize, fallback=fallback)

    def count_targets(self, split: Split) -> tuple[str, Counter[str]]:
        """Return the number of questions of each type whose answer the model can give."""
        known = {*self.answers}
        questions = chain.from_iterable(photo.questions for photo in self.photos[split])
        types = Counter(question.type for question in questions if question.answer in known)
        return "questions with an answer of the model", types

    def training_questions(self) -> Iterable[str]:
        """Return all questions of the training."""
        return (question.text for photo in self.photos["train"] for question in photo.questions)


class VQADataModule(PhotoQuestionsDataModule):
    """Photos with questions in the format of VQA (v1 and v2) or GQA.

    Paths may contain `{split}`, which becomes `train` or `val`; validation photos are also the test
    photos, since the answers of the test questions are not public. Words and answers are those of
    the training questions.

    Args:
        questions: Question file, such as
            `v2_OpenEnded_mscoco_{split}2014_questions.json` or `{split}_balanced_questions.json`.
        images: Folder of the photos.
        annotations: Answers of VQA, such as `v2_mscoco_{split}2014_annotations.json`; null for GQA,
            whose question files have the answers.
        image_name: Name of the photo of an image id, such as `COCO_{split}2014_{id:012}.jpg` of
            VQA or `{id}.jpg` of GQA.
        options: Options of `PhotoQuestionsDataModule`, such as `max_answers` and `resize_mode`, and
            of `QuestionDataModule`.
    """

    def __init__(
        self,
        questions: str,
        images: str,
        *,
        annotations: str | None = None,
        image_name: str = "COCO_{split}2014_{id:012}.jpg",
        **options: Any,
    ) -> None:
        self.questions = questions
        self.images = images
        self.annotations = annotations
        self.image_name = image_name
        train, val = (self._read(split) for split in ("train", "val"))
        photos: dict[Split, list[QuestionPhoto]] = {"train": train, "validation": val, "test": val}
        super().__init__(photos, **options)

    def sources(self, split: Split) -> PathList:
        """Return the files of the photos of a split."""
        folder = Path(self.images.replace("{split}", "train" if split == "train" else "val"))
        return PathList(folder / photo.file for photo in self.photos[split])

    def _read(self, split: str) -> list[QuestionPhoto]:
        questions, name = (
            text.replace("{split}", split) for text in (self.questions, self.image_name)
        )
        if self.annotations is None:
            return read_gqa(Path(questions), name)
        annotations = self.annotations.replace("{split}", split)
        return read_vqa(Path(questions), Path(annotations), name)


class HubVQADataModule(PhotoQuestionsDataModule):
    """Photos with questions in tables of Hugging Face; otherwise as `VQADataModule`.

    A row is a photo with a question and its answer, or with a list of questions and as many
    answers. The answers of several people to a question are a list of texts.

    Args:
        table: The data set; its columns are `image`, `question`, `answers` and, if there are any,
            `type` and `id`.
        options: Options of `PhotoQuestionsDataModule`, such as `max_answers` and `resize_mode`, and
            of `QuestionDataModule`.
    """

    def __init__(self, table: TableSource, **options: Any) -> None:
        self.tables = table.open("question", "answers", "type", "id")
        super().__init__(read_tables(self.tables, question_photos), **options)

    def sources(self, split: Split) -> PhotoTable:
        """Return the photos of a split."""
        return self.tables[split]
