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

PLACE = Geometry.identity((30, 40))


def make_caption() -> Caption:
    values = torch.arange(8.0).view(2, 2, 2) / 8
    maps = AttentionMap(values, "decoder", "words", PLACE, MapInfo(image="a.jpg"), ("a", "dog"))
    phrase = GroundedPhrase(0, 2, ((0.0, 0.0, 0.5, 1.0),), (0.5, 0.25), 0.5, pointed=True)
    best = Caption(("a", "dog"), (-0.1, -0.5), (1.0, 0.5), maps, -0.3, finished=True, image="a.jpg",
                   phrases=(phrase,))  # fmt: skip
    other = replace(best, words=("dog", "a"), score=-0.4, phrases=())
    return replace(best, alternatives=(other,))


def test_notebooks_show_what_the_table_names() -> None:
    import visattn.pipelines  # noqa: F401 (fills the table)

    assert set(show) == {"AttentionMap", "Caption", "ScanPath"}
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
