"""Boxes of maps as COCO JSON are read by our reader and by pycocotools."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from visattn.data.regions.coco_instances import category_name, coco_boxes
from visattn.data.regions.readers import read_coco_images
from visattn.geometry.affine import Geometry
from visattn.results.attention_map import AttentionMap


def document() -> dict[str, Any]:
    """Two photos of 6 x 4 pixels; the words of the first are "a dog.", of the second "dog"."""
    place = Geometry.identity((6, 4))
    first = AttentionMap(torch.tensor([[[1.0, 0.0]], [[0.0, 3.0]]]), "x", "words", place,
                         labels=("a", "dog."))  # fmt: skip
    second = AttentionMap(torch.tensor([[[1.0], [3.0]]]), "x", "words", place, labels=("dog",))
    result = (first.boxes(smooth=False), second.boxes(smooth=False))
    return coco_boxes(zip(("a.png", "b/c.png"), result, strict=True))


def test_our_reader_finds_the_boxes(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    for name in ("a.png", "b/c.png"):
        Image.new("RGB", (4, 6)).save(tmp_path / name)
    (tmp_path / "boxes.json").write_text(json.dumps(document()))
    first, second = read_coco_images(tmp_path / "boxes.json", tmp_path)
    assert [(each.category, each.box) for each in first.objects] == [
        ("a", (0.0, 0.0, 2.0, 6.0)), ("dog", (2.0, 0.0, 4.0, 6.0))
    ]  # fmt: skip
    assert [(each.category, each.box) for each in second.objects] == [("dog", (0.0, 3.0, 4.0, 6.0))]
    assert document()["info"]["rules"] == [{"threshold": 0.5}]


def test_pycocotools_reads_document_and_results(tmp_path: Path) -> None:
    coco: Any = pytest.importorskip("pycocotools.coco")
    written = document()
    (tmp_path / "boxes.json").write_text(json.dumps(written))
    read = coco.COCO(str(tmp_path / "boxes.json"))
    results = read.loadRes(written["annotations"])
    dogs = results.getAnnIds(catIds=read.getCatIds(catNms=["dog"]))
    assert [each["bbox"] for each in results.loadAnns(dogs)] == [[2.0, 0.0, 2.0, 6.0],
                                                                 [0.0, 3.0, 4.0, 3.0]]  # fmt: skip
    assert [each["score"] for each in results.loadAnns(dogs)] == [1.0, 0.75]


@pytest.mark.parametrize(
    ("label", "name"),
    [("dog", "dog"), ("(dog),", "dog"), ("dog's", "dog's"), ("\t", "map"), ("。", "。"),
     ("a\nred  dog", "a red dog"), ("€5", "€5")],
)  # fmt: skip
def test_categories_are_words_without_punctuation_around_them(label: str, name: str) -> None:
    assert category_name(label) == name
