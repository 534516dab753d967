"""Records of results: read back, they are what was written."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from visattn.geometry.affine import Geometry
from visattn.results.attention_map import AttentionMap
from visattn.results.captions import Caption, GroundedPhrase
from visattn.results.display import show, shown
from visattn.results.info import MapInfo
from visattn.results.records import read_saved_maps
from visattn.results.values import Answer

PLACE = Geometry.identity((30, 40))


def make_caption() -> Caption:
    values = torch.arange(8.0).view(2, 2, 2) / 8
    maps = AttentionMap(values, "decoder", "words", PLACE, MapInfo(image="a.jpg"), ("a", "dog"))
    phrase = GroundedPhrase(0, 2, ((0.0, 0.0, 0.5, 1.0),), (0.5, 0.25), 0.5, pointed=True)
    best = Caption(("a", "dog"), (-0.1, -0.5), (1.0, 0.5), maps, -0.3, finished=True, image="a.jpg",
                   phrases=(phrase,))  # fmt: skip
    other = replace(best, words=("dog", "a"), score=-0.4, phrases=())
    return replace(best, alternatives=(other,))


def of_two_photos() -> Caption:
    caption = replace(make_caption(), alternatives=(), image="a.jpg, b.jpg")
    return replace(caption, further_maps=(caption.maps,))


def of_a_video() -> Caption:
    caption = replace(make_caption(), alternatives=())
    info = MapInfo(frames=[0, 5], seconds=[0.0, 0.2])
    values = caption.maps.values[:, None].repeat(1, 2, 1, 1)
    return replace(caption, maps=replace(caption.maps, values=values, info=info))


@pytest.mark.parametrize("make", [make_caption, of_two_photos, of_a_video])
def test_caption_is_read_back_from_its_record(make: type) -> None:
    record = json.loads(json.dumps(make().to_dict()))
    if isinstance(record["geometry"], list):
        record["image"] = record["image"].split(", ")  # as the command names them
    again = Caption.from_dict(record)
    assert again.to_dict() == json.loads(json.dumps(make().to_dict()))
    assert again.maps.labels == ("a", "dog")


def test_answer_is_read_back_from_its_record() -> None:
    maps = AttentionMap(torch.rand(2, 2, 3), "hops", "tokens", PLACE, labels=("hop 1", "hop 2"))
    weights = torch.rand(2, 1)
    answer = Answer(
        "Red?", ("red",), (("yes", 0.9), ("no", 0.1)), maps, weights, (), "", ("a note",)
    )
    record = json.loads(json.dumps(answer.to_dict()))
    assert Answer.from_dict(record).to_dict() == record


def test_notebooks_show_what_the_table_names() -> None:
    import visattn.pipelines  # noqa: F401 (fills the table)

    assert set(show) == {"Caption", "ScanPath"}
    assert shown(make_caption()) is None  # it has no thumbnail


def test_saved_maps_are_read_and_drawn(tmp_path: Path) -> None:
    values = torch.rand(2, 3, 5, generator=torch.Generator().manual_seed(0))
    geometry = Geometry.identity((11, 17))
    maps = AttentionMap(values, "head", "words", geometry, MapInfo("gradcam"), ("a", "dog"))
    maps.save(tmp_path / "maps.json")
    record = json.loads((tmp_path / "maps.json").read_text())
    again = AttentionMap.from_dict(record)
    torch.testing.assert_close(again.values, values)
    assert (again.site, again.kind, again.labels) == ("head", "words", ("a", "dog"))
    assert (again.geometry, again.info) == (geometry, maps.info)
    saved = read_saved_maps(tmp_path / "maps.json")
    assert saved.words == ["a", "dog"]
    assert saved.geometry == geometry.to_dict()
    with pytest.raises(ValueError, match="not JSON compliant"):
        replace(maps, values=values / 0).save(tmp_path / "maps.json")
    assert json.loads((tmp_path / "maps.json").read_text()) == record
