"""Data module of photos with questions: VQA v2 and GQA."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset

from visattn.data.captions.batch import Vocabulary
from visattn.data.loading.loader import OnError
from visattn.data.questions.batch import QuestionSample
from visattn.data.questions.vqa_files import (
    QuestionPhoto,
    QuestionPhotos,
    frequent_answers,
    read_gqa,
    read_vqa,
)
from visattn.images.resize import ResizeMode
from visattn.results.kinds import Split
from visattn.training.data.questions import QuestionDataModule
from visattn.training.targets import TargetCounts


class VQADataModule(QuestionDataModule):
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
        questions: str,
        images: str,
        *,
        annotations: str | None = None,
        image_name: str = "COCO_{split}2014_{id:012}.jpg",
        max_answers: int = 3000,
        min_word_freq: int = 1,
        resize_mode: ResizeMode = "squash",
        on_error: OnError = "raise",
        batch_size: int = 64,
        num_workers: int = 4,
        **options: Any,
    ) -> None:
        super().__init__(batch_size=batch_size, num_workers=num_workers, **options)
        self.questions, self.images, self.annotations = questions, images, annotations
        self.image_name = image_name
        self.resize_mode, self.on_error = resize_mode, on_error
        self._photos = {split: self._read(split) for split in ("train", "val")}
        train = self._photos["train"]
        self.answers = frequent_answers(train, max_answers)
        self.vocabulary = Vocabulary.from_captions(
            (question.text for photo in train for question in photo.questions),
            min_word_freq=min_word_freq,
        )
        types = {q.type for photos in self._photos.values() for photo in photos for q in photo[1]}
        self.types = dict.fromkeys(sorted(types), "")

    def open_dataset(self, split: Split) -> Dataset[QuestionSample]:
        """Return the photos of a split with their questions."""
        name = "train" if split == "train" else "val"
        photos, folder = self._photos[name], Path(self.images.replace("{split}", name))
        fallback = self.read_fallback(split, len(photos), lambda index: photos[index].file)
        return QuestionPhotos(photos, folder, self.resize, fallback=fallback)

    def count_targets(self, split: Split) -> TargetCounts:
        """Return the number of questions whose answer the model can give, by their type."""
        photos, known = self._photos["train" if split == "train" else "val"], set(self.answers)
        questions = [question for photo in photos for question in photo.questions]
        learned = Counter(question.type for question in questions if question.answer in known)
        remarks: list[str] = []
        if rest := len(questions) - learned.total():
            effect = "are not trained on" if split == "train" else "count as wrong"
            remarks.append(
                f"{rest:,} of {len(questions):,} questions have another answer than the "
                f"{len(known):,} of the model and {effect}: a larger max_answers has more of them"
            )
        unknown = self.vocabulary.unknown_fraction(question.text for question in questions)
        if unknown:
            remarks.append(f"{unknown:.1%} of the words of the questions are unknown to the model")
        classes = {type_: learned[type_] for type_ in self.types}
        cure = "check the annotations of these questions, or raise max_answers"
        return TargetCounts(
            len(photos), "questions", learned.total(), classes, remarks=remarks, cure=cure
        )

    def training_questions(self) -> Iterable[str]:
        """Return all questions of the training."""
        return (question.text for photo in self._photos["train"] for question in photo.questions)

    def _read(self, split: str) -> list[QuestionPhoto]:
        questions, name = (
            text.replace("{split}", split) for text in (self.questions, self.image_name)
        )
        if self.annotations is None:
            return read_gqa(Path(questions), name)
        annotations = self.annotations.replace("{split}", split)
        return read_vqa(Path(questions), Path(annotations), name)
