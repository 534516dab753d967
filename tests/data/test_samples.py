"""Photos with phrases: scenes, phrase files, COCO."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from visattn.data.phrases import annotated_photos, coco_photos, scene_photos
from visattn.data.regions.masks import mask_boxes
from visattn.data.scenes.dataset import Scenes


@pytest.fixture
def images(tmp_path: Path) -> Path:
    (tmp_path / "images").mkdir()
    for name in ("7.jpg", "9.jpg"):
        Image.fromarray(np.zeros((50, 100, 3), np.uint8)).save(tmp_path / "images" / name)
    return tmp_path / "images"


def test_every_visual_word_of_a_scene_has_the_box_of_its_object() -> None:
    scenes = Scenes(3, split="test")
    for index, photo in enumerate(scene_photos(scenes)):
        boxes = mask_boxes(scenes.masks(index).numpy()) / 64
        for (words, phrases), caption in zip(photo.captions, scenes.captions(index), strict=True):
            assert words == caption.words
            named = {phrase.start: phrase.boxes for phrase in phrases}
            for word, thing in enumerate(caption.objects):
                assert (thing is None) == (word not in named)
                if thing is not None:
                    assert tuple(boxes[thing].tolist()) in named[word]
        assert photo.match(["a", "red", "car"]) == ()
        assert photo.load().name == f"test-{index}"


def test_categories_of_coco_are_found_in_singular_and_plural(images: Path, tmp_path: Path) -> None:
    boxes = {1: [10, 5, 20, 25], 2: [50, 0, 50, 50], 3: [0, 0, 10, 10], 4: [0, 0, 100, 50]}
    regions = {
        "images": [
            {"id": number, "file_name": f"{number}.jpg", "width": 100, "height": 50}
            for number in (9, 7, 8)
        ],
        "categories": [{"id": 1, "name": "dog"}, {"id": 2, "name": "hot dog"}],
        "annotations": [
            {"image_id": 7, "category_id": 1 + (number == 3), "bbox": box, "iscrowd": number == 4}
            for number, box in boxes.items()
        ],
    }
    texts = {
        "images": regions["images"][1:2],
        "annotations": [{"image_id": 7, "caption": "Two dogs and a hot dog; doggy."}],
    }
    for name, content in (("instances_a.json", regions), ("captions_a.json", texts)):
        (tmp_path / name).write_text(json.dumps(content))
    photos = list(coco_photos(tmp_path / "instances_a.json", tmp_path / "captions_a.json", images))
    assert [photo.name for photo in photos] == ["7.jpg", "9.jpg"]
    [(words, phrases)] = photos[0].captions
    assert words == ("two", "dogs", "and", "a", "hot", "dog", "doggy")
    dogs = ((0.1, 0.1, 0.3, 0.6), (0.5, 0.0, 1.0, 1.0))
    assert [(p.start, p.num_words, p.boxes) for p in phrases] == [
        (1, 1, dogs),
        (4, 2, ((0.0, 0.0, 0.1, 0.2),)),
    ]
    assert photos[1].captions == ()
    (tmp_path / "captions_a.json").write_text("{}")
    with pytest.raises(ValueError, match=r"captions_a\.json .*images must be a list of objects"):
        list(coco_photos(tmp_path / "instances_a.json", tmp_path / "captions_a.json", images))


def test_generated_captions_match_the_annotated_phrases(images: Path, tmp_path: Path) -> None:
    phrase = {"first_word": 0, "words": 2, "types": [], "boxes": [[0, 0, 0.5, 1]]}
    path = tmp_path / "phrases.json"
    path.write_text(json.dumps({"7.jpg": [{"sentence": "A dog runs", "phrases": [phrase]}]}))
    [photo] = annotated_photos(path, images)
    assert [match.start for match in photo.match(["there", "is", "a", "dog"])] == [2]
    with pytest.raises(FileNotFoundError, match="none of the 1 photos"):
        list(annotated_photos(path, tmp_path))
