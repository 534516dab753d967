"""Readers of VQA v2 and GQA: small files in their formats, and broken ones."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from visattn.data.images.resize import ResizeSpec
from visattn.data.questions.vqa_files import (
    QuestionPhotos,
    frequent_answers,
    normalize_answer,
    read_gqa,
    read_vqa,
)

NAME = "COCO_train2014_{id:012}.jpg"


def write(folder: Path, name: str, content: Any) -> Path:
    file = folder / name
    file.write_text(json.dumps(content))
    return file


def vqa_files(folder: Path) -> tuple[Path, Path]:
    """Write two questions about photo 9 and one about photo 25, as on visualqa.org."""
    entries = [(9, "Is it red?", 9001), (25, "How many dogs?", 25000), (9, "What is it?", 9002)]
    people = {
        9001: ["yes"] * 9 + ["no"],
        25000: ["2"] * 4 + ["two"] * 4 + ["Three."] * 2,
        9002: ["a ball"] * 10,
    }
    questions = [{"image_id": i, "question": q, "question_id": n} for i, q, n in entries]
    annotations = [
        {
            "image_id": image,
            "question_id": number,
            "question_type": "is it",
            "answer_type": {9001: "yes/no", 25000: "number", 9002: "other"}[number],
            "multiple_choice_answer": people[number][0],
            "answers": [
                {"answer": answer, "answer_confidence": "yes", "answer_id": index}
                for index, answer in enumerate(people[number], 1)
            ],
        }
        for image, _, number in entries
    ]
    return (
        write(folder, "questions.json", {"questions": questions}),
        write(folder, "annotations.json", {"annotations": annotations}),
    )


def test_vqa_questions_are_grouped_by_photo(tmp_path: Path) -> None:
    photos = read_vqa(*vqa_files(tmp_path), NAME)
    assert [photo.file for photo in photos] == [
        "COCO_train2014_000000000009.jpg",
        "COCO_train2014_000000000025.jpg",
    ]
    assert [(q.text, q.answer, q.type) for photo in photos for q in photo.questions] == [
        ("Is it red?", "yes", "yes/no"),
        ("What is it?", "ball", "other"),
        ("How many dogs?", "2", "number"),
    ]
    (count,) = photos[1].questions
    assert count.answers == ("2",) * 8 + ("3",) * 2
    assert frequent_answers(photos, 2) == ("2", "ball")


def test_gqa_questions_are_grouped_by_photo(tmp_path: Path) -> None:
    types = {"structural": "verify", "semantic": "attr", "detailed": "verifyAttr"}
    entry = {"question": "Is it red?", "answer": "yes", "imageId": "n161313", "types": types}
    other = {"question": "Who is it?", "answer": "Man", "imageId": "2370799", "types": {}}
    file = write(tmp_path, "gqa.json", {"1": entry, "2": other, "3": {**entry, "answer": "no"}})
    photos = read_gqa(file, "{id}.jpg")
    assert [photo.file for photo in photos] == ["n161313.jpg", "2370799.jpg"]
    assert [q.answer for q in photos[0].questions] == ["yes", "no"]
    assert photos[0].questions[0].type == "verify"
    assert photos[1].questions[0][1:3] == ("man", "other")


def test_answers_are_normalized_as_in_the_evaluation_of_vqa() -> None:
    for answer, normalized in (
        ("The red, blue ball!", "red blue ball"),
        ("red/blue", "red blue"),
        ("1,000", "1000"),
        ("3.5", "3.5"),
        ("N.Y.", "ny"),
        ("none", "0"),
        (" Ten\n dogs ", "10 dogs"),
    ):
        assert normalize_answer(answer) == normalized, answer


def test_photos_are_resized_and_begin_again(tmp_path: Path) -> None:
    photos = read_vqa(*vqa_files(tmp_path), NAME)
    for number, photo in enumerate(photos):
        Image.fromarray(np.full((31, 47, 3), 100 * number, np.uint8)).save(tmp_path / photo.file)
    data = QuestionPhotos(photos, tmp_path, ResizeSpec((16, 24), mode="squash"))
    assert len(data) == 2
    assert tuple(data[1].image.shape) == (3, 16, 24)
    assert int(data[3].image[0, 0, 0]) == int(data[1].image[0, 0, 0]) == 100
    assert data[0].questions == photos[0].questions


def test_broken_files_are_refused_with_the_entry(tmp_path: Path) -> None:
    questions, annotations = vqa_files(tmp_path)
    one = [{"image_id": 9, "question": "Is it red?", "question_id": 9001}]
    for content, message in (
        ([], "must hold an object, got a list"),
        ({}, "must have a list of questions"),
        ({"questions": [3]}, r"questions\[0\] must be an object, got 3"),
        ({"questions": [{**one[0], "question": ""}]}, "question must be a str"),
        ({"questions": [{**one[0], "image_id": None}]}, "image_id must be a int or str"),
        ({"questions": [{**one[0], "question_id": 7}]}, "has no answers to question 7"),
        ({"questions": [{**one[0], "image_id": "x"}]}, "must contain the id"),
    ):
        file = write(tmp_path, "broken.json", content)
        with pytest.raises(ValueError, match=message):
            read_vqa(file, annotations, NAME)
    empty = write(tmp_path, "empty.json", {"annotations": [{"question_id": 9001, "answers": []}]})
    with pytest.raises(ValueError, match="answers to question 9001 must be a list of objects"):
        read_vqa(write(tmp_path, "one.json", {"questions": one}), empty, NAME)
    with pytest.raises(FileNotFoundError, match="no question file"):
        read_gqa(tmp_path / "absent.json", "{id}.jpg")
    with pytest.raises(ValueError, match=r"gqa.json, question '1' must be an object"):
        read_gqa(write(tmp_path, "gqa.json", {"1": 2}), "{id}.jpg")
    with pytest.raises(ValueError, match="max_answers must be at least 2"):
        frequent_answers(read_vqa(questions, annotations, NAME), 1)
