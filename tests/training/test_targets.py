"""Targets that reach the loss: counted before the first step, and refused if there are none."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from caption_data import write_caption_data
from PIL import Image
from segmentation_data import write_instances, write_mask_folder

from visattn.cli import main
from visattn.data.captions.batch import Vocabulary
from visattn.models.base import SmallEncoder
from visattn.results.kinds import Split
from visattn.training.captioning.data import CaptionDataModule
from visattn.training.classification.data import FolderDataModule
from visattn.training.data_module import DataModule, InputSpec
from visattn.training.detection.data import CocoDetectionDataModule
from visattn.training.questions.data import VQADataModule
from visattn.training.segmentation.data import CocoSegmentationDataModule, MaskFolderDataModule
from visattn.training.segmentation.metrics import SegmentationScores
from visattn.training.targets import TargetCounts

SPEC = InputSpec((31, 47), (0.5,) * 3, (0.5,) * 3)


def report(data: DataModule, split: Split = "train", spec: InputSpec = SPEC) -> list[str]:
    data.input_spec = spec
    data.setup("fit")
    counts = data.count_targets(split)
    assert counts is not None
    return counts.lines(split)


def changed(file: Path, **annotation: Any) -> Path:
    """Change the first annotation of an instances file."""
    content = json.loads(file.read_text())
    content["annotations"][0] |= annotation
    file.write_text(json.dumps(content))
    return file


def detection(file: Path, **options: Any) -> CocoDetectionDataModule:
    return CocoDetectionDataModule(train=str(file), val=str(file), num_workers=0, **options)


def test_objects_are_counted_as_the_loss_reads_them(tmp_path: Path) -> None:
    file = write_instances(tmp_path, "train2017", 3)  # a cat and a dog on each photo
    assert report(detection(file)) == [
        "training targets: 3 images, 6 objects, 2 classes from cat (3) to dog (3)"
    ]
    lines = report(detection(changed(file, iscrowd=1, segmentation=[])))
    assert lines[0].endswith("5 objects, 2 classes from cat (2) to dog (3)")
    assert lines[1] == "1 crowds (iscrowd), which are no targets"
    lines = report(detection(changed(file, iscrowd=0, bbox=[5, 5, 0, 7])))
    assert lines[1] == "1 objects whose boxes have no area, which are left out: correct bbox"
    square = InputSpec((11, 11), (0.5,) * 3, (0.5,) * 3)  # sees the columns from 6 to 46
    data = detection(changed(file, bbox=[0, 5, 5, 7]), resize_mode="crop")
    assert report(data, spec=square)[1].startswith("1 objects outside of the center crop, which")


def test_a_transform_that_moves_all_targets_away_is_refused(tmp_path: Path) -> None:
    away: Any = [{"CenterCrop": {"size": [2, 4]}}]  # between cat and dog
    file = write_instances(tmp_path, "train2017", 3)
    with pytest.raises(ValueError, match="no target is left in 3 images of the train split"):
        report(detection(file, train_transforms=away))
    pattern = str(file).replace("train2017", "{split}2017")
    write_instances(tmp_path, "val2017", 3)
    data = CocoSegmentationDataModule(pattern, train_transforms=away, num_workers=0)
    with pytest.raises(ValueError, match="train_transforms and resize_mode move them out"):
        report(data)


def test_photos_of_another_size_are_named_before_training(tmp_path: Path) -> None:
    file = write_instances(tmp_path, "train2017", 3)
    Image.new("RGB", (104, 80)).save(tmp_path / "train2017" / f"{1:012}.png")
    with pytest.raises(ValueError, match=r"1\.png is 104 x 80 pixels .* annotations say 52 x 40"):
        report(detection(file))


def test_segmentation_counts_objects_with_masks_and_ignores_others(tmp_path: Path) -> None:
    for split in ("train2017", "val2017"):
        file = write_instances(tmp_path, split, 3)
    changed(tmp_path / "annotations/instances_train2017.json", segmentation=None)
    pattern = str(file).replace("val2017", "{split}2017")
    data = CocoSegmentationDataModule(pattern, num_workers=0)
    assert report(data) == [
        "training targets: 3 images, 5 objects with a mask, 2 classes from cat (2) to dog (3)",
        "1 objects without a mask, whose boxes are ignored: add segmentation",
    ]
    labels = data.datasets["train"].load(0).labels
    assert labels[8, 6] == 255
    assert labels[8, 35] == 2
    lines = report(CocoSegmentationDataModule(pattern, categories=["dog"], num_workers=0))
    assert lines[1] == "3 objects of other categories are background: name them in categories"


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
    message = r"training split has no pixels of classes besides background .*class_map: \{0: 0, 255"
    with pytest.raises(ValueError, match=message):
        report(data)
    data.class_map, data.datasets = {0: 0, 255: 1}, {}
    assert "2 classes from pet (1,020)" in report(data)[0]


def test_masks_are_checked_before_training(tmp_path: Path) -> None:
    data = masks_of(tmp_path, 1)
    assert report(data)[0] == (
        "training targets: 4 images, 1,020 pixels of classes besides background, 2 classes from "
        "pet (1,020) to background (4,808)"
    )
    file = data._files("train")[2][1]
    for pixels, message in (
        (np.full((31, 47), 7, np.uint8), r"has the numbers \[7\], which are no classes"),
        (np.zeros((31, 45), np.uint8), r"is \(31, 45\), the upright image \(31, 47\)"),
        (np.zeros((31, 47, 3), np.uint8), "has one channel, got RGB"),
    ):
        Image.fromarray(pixels).save(file)
        with pytest.raises(ValueError, match=message):
            report(data)


def test_a_class_without_a_pixel_is_not_a_perfect_score() -> None:
    scores = SegmentationScores(3, background=True)
    labels = torch.zeros(2, 5, 7, dtype=torch.uint8)
    scores.update(labels.long(), labels)
    assert scores.compute()["miou"].isnan()
    scores.update(labels.long() + 1, labels)  # now there is something to confuse
    assert scores.compute()["miou"] == pytest.approx(0.25)


def test_cut_captions_and_those_without_words_are_counted(tmp_path: Path) -> None:
    paths = write_caption_data(tmp_path)
    text = paths.captions.read_text()
    first = text.index("\t") + 1
    paths.captions.write_text(text[:first] + "!!" + text[text.index("\n") :])
    data = CaptionDataModule(
        str(paths.captions), str(paths.photos), train=str(paths.train), val=str(paths.validation),
        max_words=4, min_word_freq=1, num_workers=0,
    )  # fmt: skip
    encoder = SmallEncoder((24, 24), channels=8)
    spec = InputSpec((24, 24), (0.5,) * 3, (0.5,) * 3, encoder)
    first_line, *remarks = report(data, spec=spec)
    assert first_line == "training targets: 3 images, 14 captions"
    assert any(
        "have more than 4 words and are cut, without an end: max_words: " in r for r in remarks
    )
    assert "1 captions have no word, only symbols: remove them" in remarks
    assert not any("are cut" in line for line in report(data, "validation", spec))
    assert not any("unknown" in remark for remark in remarks)
    data.vocabulary = Vocabulary.from_captions(["a ball"])
    cure = "of the words are unknown: captions hardly ever share words. Lower min_word_freq"
    assert any(cure in remark for remark in report(data, "validation", spec))
    data.phrases = {"other.jpg": {}}
    assert report(data, spec=spec)[-1] == "0.0% of the captions have phrases with boxes"


def test_captions_longer_than_the_positions_are_refused_before_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = write_caption_data(tmp_path)
    words = " ".join(["ball"] * 17)
    lines = paths.captions.read_text().splitlines()
    validation = paths.validation.read_text().split()[0]
    index = next(i for i, line in enumerate(lines) if line.startswith(validation))
    lines[index] = lines[index].partition("\t")[0] + "\t" + words
    paths.captions.write_text("\n".join(lines))
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps(captioning(paths)))
    run = tmp_path / "run"
    assert main(["fit", "--config", str(config), "--run", str(run)]) == 1
    error = capsys.readouterr().err
    assert "the longest validation caption needs 18 positions, 17 words and the start" in error
    assert "the model has 13: set max_length of the captioner to at least 18" in error
    assert not list(run.rglob("*.ckpt"))


def captioning(paths: Any) -> dict[str, Any]:
    """Return the config of a transformer that reads 13 positions."""
    encoder = {"class_path": "SmallEncoder", "init_args": {"img_size": [24, 24], "channels": 8}}
    captioner = {"encoder": encoder, "embed_dim": 8, "num_heads": 2, "max_length": 13}
    data = {
        "captions": str(paths.captions), "photos": str(paths.photos), "train": str(paths.train),
        "val": str(paths.validation), "min_word_freq": 1, "num_workers": 0,
    }  # fmt: skip
    return {
        "trainer": {"accelerator": "cpu", "max_steps": 1, "enable_model_summary": False},
        "model": {
            "class_path": "CaptioningTask",
            "init_args": {
                "captioner": {"class_path": "TransformerCaptioner", "init_args": captioner}
            },
        },
        "data": {"class_path": "CaptionDataModule", "init_args": data},
    }


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
    first, remark = report(data)
    assert first == "training targets: 1 images, 4 questions, 1 classes from other (4) to other (4)"
    assert remark.startswith("1 of 5 questions have another answer than the 2 of the model and are")
    assert "count as wrong" in report(data, "validation")[1]


def test_a_validation_folder_may_lack_a_class_if_that_is_allowed(tmp_path: Path) -> None:
    for name in ("train/cat", "train/dog", "val/dog"):
        (tmp_path / name).mkdir(parents=True)
        Image.new("RGB", (7, 5)).save(tmp_path / name / "1.png")
    with pytest.raises(
        FileNotFoundError, match="val has no photos of cat; .*allow_missing_classes"
    ):
        report(FolderDataModule(str(tmp_path)), "validation")
    data = FolderDataModule(str(tmp_path), allow_missing_classes=True)
    assert report(data, "validation")[1] == (
        "no labels of cat in validation, so its scores leave the class out: remove the class, or "
        "add images of it"
    )
    assert data.datasets["validation"].labels.tolist() == [1]


def test_a_split_without_targets_is_refused_and_missing_classes_are_named() -> None:
    none = TargetCounts(7, "objects", 0, cure="draw some")
    with pytest.raises(
        ValueError, match="the validation split has no objects .* 7 images: draw some"
    ):
        none.lines("validation")
    counts = TargetCounts(7, "objects", 3, {"cat": 3, "dog": 0, "yak": 0}, cure="draw some")
    assert counts.lines("train")[-1] == (
        "no objects of dog, yak in training, so the model cannot learn the classes: draw some"
    )
