"""Info of maps: records keep every key, and are read whatever version wrote them."""

from dataclasses import replace
from typing import Any

import pytest

from visattn.results.info import MapInfo

OF_CLASS = {
    "method": "gradcam", "options": {}, "model": "resnet18", "layer": "layer4", "target": 1,
    "class": "", "score": 2.5, "probability": None, "signed": False, "empty": "",
    "rows": "class token", "preprocessing": {"size": [48, 48]},
}  # fmt: skip
RECORDS: dict[str, dict[str, Any]] = {
    "a class": OF_CLASS,
    "no text": {"target": None, "class": "", "probability": None, "cosine": None},
    "a failed method": {"method": "rise", "signed": False, "empty": "no memory", "failed": True},
    "texts": {"target": [0, 1], "class": "", "score": [1.5, None], "texts": ["a cat", "a dog"]},
    "a recorded layer": {"call": 0, "layer": 0, "prefix_tokens": [], "queries": "all"},
    "a video": {"frames": [0, 5], "seconds": [0.0, 0.2], "quantity": "gradient"},
    "glimpses": {"model": "DRAM", "policy": "random", "seed": 0},
    "a pixel": {"score": None, "thing": {"kind": "pixel", "x": 5, "y": 2}},
    "a region": {"thing": {"kind": "region", "grid": [2, 2], "runs": [1, 2, 1]}},
    "a predicted region": {"thing": {"kind": "region"}},
    "a query": {"thing": {"kind": "query", "index": 3, "part": "top", "box": [1, 2, 3, 4]}},
    "a target without a run": {"thing": None},
}  # fmt: skip


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_is_read_and_written_as_it_is(name: str) -> None:
    info = MapInfo.from_dict(RECORDS[name])
    assert info.to_dict() == RECORDS[name]
    assert MapInfo.from_dict(info.to_dict()) == info


def test_the_last_known_value_counts_and_keys_without_a_value_stay() -> None:
    info = MapInfo.from_dict(OF_CLASS)
    assert replace(info, probability=0.5).to_dict() == {**OF_CLASS, "probability": 0.5}
    both = info | MapInfo(class_name="dog", more={"run": 1})
    assert both.to_dict() == {**OF_CLASS, "class": "dog", "run": 1}
    assert MapInfo("rise", written=("signed",)).to_dict() == {"method": "rise", "signed": False}


def test_numbers_that_json_does_not_have_are_numbers_again() -> None:
    score = MapInfo.from_dict({"score": "nan"}).score
    assert score != score
    assert MapInfo.from_dict({"cosine": "-inf"}).cosine == -float("inf")
    with pytest.raises(ValueError, match="could not convert"):
        MapInfo.from_dict({"probability": "high"})


def test_a_field_has_one_place() -> None:
    with pytest.raises(ValueError, match="keys of fields, got class, empty"):
        MapInfo(more={"class": "dog", "rows": "", "empty": ""})


@pytest.mark.parametrize(
    ("info", "name"),
    [(MapInfo(target=3), "class 3"), (MapInfo(target=3, class_name="dog"), "dog"), (MapInfo(), "")],
)
def test_a_class_is_named_by_its_index_if_it_has_no_name(info: MapInfo, name: str) -> None:
    assert info.target_name == name
