"""Readers of VQA v2 and GQA: small files in their formats, and broken ones."""

from pathlib import Path

import pytest
from question_data import write_json, write_vqa

from visattn.data.questions.batch import Question
from visattn.data.questions.vqa_files import (
    QuestionPhoto,
    QuestionPhotos,
    frequent_answers,
    normalize_answer,
    read_gqa,
    read_vqa,
)
from visattn.images.resize import ResizeSpec

NAME = "COCO_train2014_{id:012}.jpg"


def test_vqa_questions_are_grouped_by_photo(tmp_path: Path) -> None:
    photos = read_vqa(*write_vqa(tmp_path), NAME)
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
    file = write_json(
        tmp_path, "gqa.json", {"1": entry, "2": other, "3": {**entry, "answer": "no"}}
    )
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


def test_an_answer_without_words_is_no_class() -> None:
    questions = [Question("which?", answer, "other") for answer in ("", "", "", "b", "c", "b")]
    assert frequent_answers([QuestionPhoto("a.jpg", tuple(questions))], 9) == ("b", "c")


def test_photos_are_resized_and_begin_again(tmp_path: Path) -> None:
    photos = read_vqa(*write_vqa(tmp_path), NAME)
    files = [tmp_path / "train2014" / photo.file for photo in photos]
    data = QuestionPhotos(photos, files, ResizeSpec((16, 24), mode="squash"))
    assert len(data) == 2
    assert tuple(data[1].image.shape) == (3, 16, 24)
    assert int(data[3].image[0, 0, 0]) == int(data[1].image[0, 0, 0]) == 100
    assert data[0].questions == photos[0].questions


def test_broken_files_are_refused_with_the_entry(tmp_path: Path) -> None:
    questions, annotations = write_vqa(tmp_path)
    entries = [{"image_id": 9, "question": "Is it red?", "question_id": 9001}]
    for content, message in (
        ([], "must hold an object, got a list"),
        ({}, "must have a list of questions"),
        ({"questions": [3]}, r"questions\[0\] must be an object, got 3"),
        ({"questions": [{**entries[0], "question": ""}]}, "question must be a str"),
        ({"questions": [{**entries[0], "image_id": None}]}, "image_id must be a int or str"),
        ({"questions": [{**entries[0], "question_id": 7}]}, "has no answers to question 7"),
        (
            {"questions": [{**entries[0], "image_id": "x"}]},
            "does not fit the id 'x'",
        ),
    ):
        file = write_json(tmp_path, "broken.json", content)
        with pytest.raises(ValueError, match=message):
            read_vqa(file, annotations, NAME)
    annotation = [{"question_id": 9001, "image_id": 9, "answers": [{"answer": "yes"}]}]
    answers = write_json(tmp_path, "answers.json", {"annotations": annotation})
    for changed, message in (
        ([entries[0], entries[0]], r"questions\[1\]: question_id 9001 is there already"),
        ([{**entries[0], "question": "?!"}], r"questions\[0\]: a question must have a word, got"),
        ([{**entries[0], "image_id": 8}], r"is about image 8, but in .*answers\.json about 9"),
    ):
        file = write_json(tmp_path, "changed.json", {"questions": changed})
        with pytest.raises(ValueError, match=message):
            read_vqa(file, answers, NAME)
    file = write_json(tmp_path, "changed.json", {"annotations": [*annotation, *annotation]})
    with pytest.raises(ValueError, match=r"annotations\[1\]: question_id 9001 is there already"):
        read_vqa(write_json(tmp_path, "one.json", {"questions": entries}), file, NAME)
    for template in ("{id.__class__}.jpg", "{id:2000000000}.jpg", "{id!r}", "a.jpg", "{id}{name}"):
        with pytest.raises(ValueError, match=r"must contain \{id\} or \{id:012\} and no other"):
            read_vqa(questions, annotations, template)
    empty = write_json(
        tmp_path, "empty.json", {"annotations": [{"question_id": 9001, "answers": []}]}
    )
    with pytest.raises(ValueError, match="answers to question 9001 must be a list of objects"):
        read_vqa(write_json(tmp_path, "one.json", {"questions": entries}), empty, NAME)
    with pytest.raises(FileNotFoundError, match="no question file"):
        read_gqa(tmp_path / "absent.json", "{id}.jpg")
    with pytest.raises(ValueError, match=r"gqa.json, question '1' must be an object"):
        read_gqa(write_json(tmp_path, "gqa.json", {"1": 2}), "{id}.jpg")
    with pytest.raises(ValueError, match="max_answers must be at least 2"):
        frequent_answers(read_vqa(questions, annotations, NAME), 1)
