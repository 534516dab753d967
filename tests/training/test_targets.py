"""Targets that reach the loss: counted before the first step, and refused if there are none."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from caption_data import write_caption_data
from PIL import Image
from segmentation_data import write_instances, write_mask_folder

from visattn.data.captions.batch import Vocabulary
from visattn.models.base import SmallEncoder
from visattn.training.captioning.data import CaptionDataModule
from visattn.training.classification.data import FolderDataModule
from visattn.training.data_module import DataModule, InputSpec
from visattn.training.detection.data import CocoDetectionDataModule
from visattn.training.questions.data import VQADataModule
from visattn.training.segmentation.data import CocoSegmentationDataModule, MaskFolderDataModule
from visattn.training.segmentation.metrics import SegmentationScores
from visattn.training.task import Task

SPEC = InputSpec((31, 47), (0.5,) * 3, (0.5,) * 3)


def opened(data: DataModule) -> Any:
    data.input_spec = SPEC
    data.setup("fit")
    return data


def changed(file: Path, **annotation: Any) -> Path:
    """Change the first annotation of an instances file."""
    content = json.loads(file.read_text())
    content["annotations"][0] |= annotation
    file.write_text(json.dumps(content))
    return file


def test_objects_are_counted_as_the_loss_reads_them(tmp_path: Path) -> None:
    file = write_instances(tmp_path, "train2017", 3)  # a cat and a dog on each photo
    options: dict[str, Any] = {"train": str(file), "val": str(file), "num_workers": 0}
    data = opened(CocoDetectionDataModule(**options))
    assert data.count_targets("train") == ("objects", Counter(cat=3, dog=3))
    changed(file, iscrowd=1, segmentation=[])
    data = opened(CocoDetectionDataModule(**options))
    assert data.count_targets("train") == ("objects", Counter(cat=2, dog=3))


def test_segmentation_counts_objects_with_masks_and_ignores_others(tmp_path: Path) -> None:
    for split in ("train2017", "val2017"):
        file = write_instances(tmp_path, split, 3)
    changed(tmp_path / "annotations/instances_train2017.json", segmentation=None)
    pattern = str(file).replace("val2017", "{split}2017")
    data = opened(CocoSegmentationDataModule(pattern, num_workers=0))
    assert data.count_targets("train") == ("objects with a mask", Counter(cat=2, dog=3))
    labels = data.datasets["train"].load(0).labels
    assert labels[8, 6] == 255
    assert labels[8, 35] == 2


def masks_of(folder: Path, object_number: int, count: int = 5) -> MaskFolderDataModule:
    write_mask_folder(folder, count)
    for file in (folder / "masks").iterdir():
        numbers = np.zeros((31, 47), np.uint8)
        numbers[5:20, 3:20] = object_number
        Image.fromarray(numbers).save(file)
    return MaskFolderDataModule(
        str(folder / "images"), str(folder / "masks"), ["background", "pet"], num_workers=0
    )


def test_masks_of_0_and_255_are_refused_with_the_class_map(tmp_path: Path) -> None:
    data = masks_of(tmp_path, 255)
    with pytest.raises(ValueError, match=r"255 is ignored by default: set class_map: \{0: 0, 255"):
        opened(data)
    data.class_map = {0: 0, 255: 1}
    assert opened(data).datasets["train"].load(0).labels.max() == 1


@pytest.mark.parametrize(
    ("pixels", "message"),
    [
        (np.full((31, 47), 7, np.uint8), r"has the numbers \[7\], which are no classes"),
        (np.zeros((31, 45), np.uint8), r"is \(31, 45\), the upright image \(31, 47\)"),
        (np.zeros((31, 47, 3), np.uint8), "must have one channel"),
    ],
)
def test_wrong_masks_are_refused(
    pixels: np.ndarray[Any, Any], message: str, tmp_path: Path
) -> None:
    data = opened(masks_of(tmp_path, 1))
    Image.fromarray(pixels).save(data._files("train")[2][1])
    with pytest.raises(ValueError, match=message):
        data.datasets["train"].load(2)


def test_a_class_without_a_pixel_is_not_a_perfect_score() -> None:
    scores = SegmentationScores(3, background=True)
    labels = torch.zeros(2, 5, 7, dtype=torch.uint8)
    scores.update(labels.long(), labels)
    assert scores.compute()["miou"].isnan()
    scores.update(labels.long() + 1, labels)  # now there is something to confuse
    assert scores.compute()["miou"] == pytest.approx(0.25)


def test_captions_are_counted_with_their_unknown_words_and_phrases(tmp_path: Path) -> None:
    paths = write_caption_data(tmp_path)
    data = CaptionDataModule(
        str(paths.captions), str(paths.photos), train=str(paths.train), val=str(paths.validation),
        min_word_freq=1, num_workers=0,
    )  # fmt: skip
    data.input_spec = replace(SPEC, encoder=SmallEncoder((24, 24), channels=8))
    data.setup("fit")
    unit, counts = data.count_targets("train") or ("", Counter())
    assert (unit, counts.total()) == ("captions, 0.0% of their words unknown", 15)
    data.vocabulary = Vocabulary.from_captions(["a"])
    data.phrases = {"other.jpg": {}}
    data.datasets["train"].phrases = data.phrases
    counted = data.count_targets("train")
    assert counted is not None
    assert counted[0].endswith("of their words unknown, 0.0% of them with phrases")
    assert not counted[0].startswith("captions, 0.0%")


def test_questions_with_answers_that_the_model_has_not_are_counted(tmp_path: Path) -> None:
    words = ["red", "red", "blue", "blue", "green"]
    for split in ("train", "val"):
        questions = [
            {"question_id": k, "image_id": 1, "question": f"what color {k} ?"} for k in range(5)
        ]
        answers = [
            {"question_id": k, "answer_type": "other", "answers": [{"answer": word}]}
            for k, word in enumerate(words)
        ]
        (tmp_path / f"q_{split}.json").write_text(json.dumps({"questions": questions}))
        (tmp_path / f"a_{split}.json").write_text(json.dumps({"annotations": answers}))
    data = VQADataModule(
        f"{tmp_path}/q_{{split}}.json", str(tmp_path), annotations=f"{tmp_path}/a_{{split}}.json",
        image_name="{id}.jpg", max_answers=2,
    )  # fmt: skip
    unit, counts = data.count_targets("train")
    assert (unit, counts) == ("questions with an answer of the model", Counter(other=4))


def test_a_validation_folder_may_lack_a_class_if_that_is_allowed(tmp_path: Path) -> None:
    for name in ("train/cat", "train/dog", "val/dog"):
        (tmp_path / name).mkdir(parents=True)
        Image.new("RGB", (7, 5)).save(tmp_path / name / "1.png")
    with pytest.raises(
        FileNotFoundError, match="val has no photos of cat; .*allow_missing_classes"
    ):
        opened(FolderDataModule(str(tmp_path)))
    data = FolderDataModule(str(tmp_path), allow_missing_classes=True)
    assert opened(data).count_targets("validation") == ("images", Counter(cat=0, dog=1))
    assert data.datasets["validation"].labels.tolist() == [1]


def test_each_split_is_one_line_and_one_without_targets_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Counts:
        def __init__(self, **counts: int) -> None:
            self.counts = Counter(counts)

        def count_targets(self, split: str) -> tuple[str, Counter[str]] | None:
            return ("objects", self.counts) if split == "train" else None

    lines: list[str] = []
    monkeypatch.setattr("visattn.training.task.rank_zero_info", lines.append)
    for counts in (Counts(cat=3, dog=0, yak=2000), Counts(captions=7)):
        Task.report_targets(SimpleNamespace(data=counts))  # type: ignore[arg-type]
    assert lines == [
        "train: 2,003 objects, of 3 classes from dog (0) to yak (2,000)", "train: 7 objects",
    ]  # fmt: skip
    with pytest.raises(ValueError, match="the train split has no objects"):
        Task.report_targets(SimpleNamespace(data=Counts(cat=0)))  # type: ignore[arg-type]
