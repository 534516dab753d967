"""Law of records: what a result writes, its class reads back, for all results."""

import inspect
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

import visattn.results
from visattn.geometry.affine import Geometry
from visattn.results.attention_map import AttentionMap
from visattn.results.captions import Caption, GroundedPhrase
from visattn.results.info import MapInfo, Thing
from visattn.results.map_boxes import MapBox, MapBoxes
from visattn.results.records import Result, from_dict, show, shown, to_dict
from visattn.results.scale import MapScale
from visattn.results.values import (
    Answer,
    DetectedObject,
    Detections,
    ScanPath,
    Segmentation,
)

PLACE = Geometry.identity((31, 41)).resized((16, 24))
INFO = MapInfo("gradcam", layer=3, image="a.jpg", target=1, class_name="dog", outside=[0.5],
               thing=Thing("box", box=(1.0, 2, 3, 4)), more={"heads": "mean"})  # fmt: skip


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def maps_of(
    count: int, kind: Any = "words", *, info: MapInfo = INFO, seed: int = 0
) -> AttentionMap:
    labels = tuple(f"w{number}" for number in range(count))
    return AttentionMap(numbers(count, 2, 3, seed=seed), "layer", kind, PLACE, info, labels)


def caption(count: int, *, rich: bool = False) -> Caption:
    maps = maps_of(count, info=replace(INFO, outside=(), image="0.jpg"))
    words = maps.labels
    values = numbers(2, count, 3).double()
    phrase = GroundedPhrase(0, 1, ((0.0, 0.0, 0.5, 1.0),), (0.5,), 0.25, pointed=True)
    plain = Caption(words, tuple(values[0, :, 0].tolist()), tuple(values[1, :, 0].tolist()), maps,
                    -1.5, finished=False, image="0.jpg")  # fmt: skip
    if not rich:
        return plain
    return replace(
        plain, notes="relevance", gate_symbol="on photo", spaces=(False,) * count,
        phrases=(phrase,), alternatives=(replace(plain, score=-2.0),),
    )  # fmt: skip


def answer(hops: int) -> Answer:
    maps = maps_of(hops, "tokens") if hops else None
    weights = numbers(hops, 2) if hops else None
    return Answer("Red?", ("red", "it"), (("yes", 0.9),), maps, weights, ("it",), "a.jpg", ("n",))


def scan_path(glimpses: int, channels: int) -> ScanPath:
    start = numbers(glimpses, 1, 2).mul(8).floor()
    windows = torch.cat([start, start + 4], -1).repeat(1, 2, 1)
    windows[:, 1] += torch.tensor([-2.0, -2, 2, 2])
    boxes = PLACE.to_image(windows.double().view(-1, 2)).view(windows.shape)
    patches = numbers(glimpses, 2, channels, 4, 4).mul(255).byte()
    pixels = numbers(channels, 16, 24).mul(255).byte()
    info = MapInfo(model="RAM", policy="greedy", seed=0)
    return ScanPath(("a", "b"), numbers(glimpses, 2).double(), numbers(glimpses, 2), boxes, patches,
                    pixels, PLACE, info, 1, "b")  # fmt: skip


def detections(count: int) -> Detections:
    objects = tuple(DetectedObject(f"w{n}", 0.5, (1.0, 2.0, 3.5, 4.0), n) for n in range(count))
    return Detections(objects, maps_of(count, "queries"))


def segmentation(gates: int) -> Segmentation:
    labels = np.arange(31 * 41, dtype=np.uint8).reshape(31, 41) % 3
    gate = AttentionMap(numbers(2, 3), "gate", "gate", margin=(2, 3))
    return Segmentation(labels, ("sky", "a", "b"), (gate,) * gates, PLACE)


counts = st.integers(0, 3)


def calls(function: Any, *args: Any, **options: Any) -> st.SearchStrategy[Any]:
    """Calls that make results, outside of the strategy: torch draws random numbers."""
    return st.builds(partial, st.just(function), *args, **options)


RESULTS: dict[type, st.SearchStrategy[Any]] = {
    AttentionMap: calls(maps_of, counts) | calls(lambda: segmentation(1).gates[0]),
    Caption: calls(caption, counts, rich=st.booleans()),
    Answer: calls(answer, counts),
    ScanPath: calls(scan_path, st.integers(1, 3), st.sampled_from([0, 1, 3])),
    Detections: calls(detections, counts),
    Segmentation: calls(segmentation, counts),
    MapInfo: calls(lambda: INFO) | calls(MapInfo),
    Thing: calls(lambda: Thing("pixel", (3, 4))) | calls(lambda: Thing("box", box=(1.0, 2, 3, 4))),
    MapBoxes: calls(
        lambda: MapBoxes(
            (MapBox((1.0, 2.0, 3.0, 4.0), 0.5, 0.75, "dog", 1),),
            0.5,
            image_size=(31, 41),
        )
    ),
    MapScale: calls(lambda: MapScale("image", 0.0, 0.25, values=(-1.0, 0.5))),
    Geometry: calls(lambda: PLACE),
}


def equal(expected: Any, actual: Any) -> bool:
    """Whether two values are the same, tensors by their numbers and sequences by their items."""
    if isinstance(expected, Tensor):
        return expected.dtype == actual.dtype and torch.equal(
            expected.nan_to_num(-1), actual.nan_to_num(-1)
        )
    if isinstance(expected, np.ndarray):
        return expected.dtype == actual.dtype and np.array_equal(expected, actual)
    if is_dataclass(expected):
        return type(expected) is type(actual) and all(
            equal(getattr(expected, each.name), getattr(actual, each.name))
            for each in fields(expected)
        )
    if isinstance(expected, Mapping):
        return {*expected} == {*actual} and all(
            equal(expected[key], actual[key]) for key in expected
        )
    if isinstance(expected, Sequence) and not isinstance(expected, str):
        return len(expected) == len(actual) and all(map(equal, expected, actual))
    return expected == actual


def test_all_results_are_here() -> None:
    folder = Path(visattn.results.__file__).parent
    modules = [import_module(f"visattn.results.{path.stem}") for path in folder.glob("[!_]*.py")]
    classes = {
        each
        for module in modules
        for each in vars(module).values()
        if inspect.isclass(each) and each.__module__ == module.__name__
        if issubclass(each, Result) and each is not Result
    }
    assert classes | {Geometry} == {*RESULTS}


@pytest.mark.parametrize("kind", RESULTS)
@given(data=st.data())
def test_a_result_is_read_back_as_it_was(kind: Any, data: st.DataObject) -> None:
    result = data.draw(RESULTS[kind])()
    record = json.loads(json.dumps(to_dict(result), allow_nan=False))
    again = from_dict(kind, {**record, "provenance": {}, "card": {}})
    assert equal(again, result)
    assert json.loads(json.dumps(to_dict(again))) == record


def test_a_record_has_the_fields_by_their_names() -> None:
    maps = replace(maps_of(2, info=MapInfo("rise", target=0)), geometry=None)
    record = maps.to_dict()
    assert {*record["info"]} == {each.name for each in fields(MapInfo)}
    assert (record.pop("info")["method"], record) == ("rise", {
        "values": maps.values.tolist(), "site": "layer", "kind": "words", "geometry": None,
        "labels": ["w0", "w1"], "margin": [0, 0],
    })  # fmt: skip


def test_numbers_that_json_does_not_have_are_saved(tmp_path: Path) -> None:
    """Work is not lost because a map holds NaN."""
    info = MapInfo(score=float("nan"), cosine=[float("-inf"), None])
    maps = replace(maps_of(2, info=info), values=torch.tensor([[[0.0, torch.nan]]] * 2))
    maps.save(tmp_path / "maps.json")
    again = AttentionMap.from_dict(json.loads((tmp_path / "maps.json").read_text()))
    assert equal(again.values, maps.values)
    assert isinstance(again.info.score, float)
    assert math.isnan(again.info.score)
    assert again.info.cosine == (float("-inf"), None)


def test_notebooks_show_what_the_table_names() -> None:
    import visattn.pipelines  # noqa: F401 (fills the table)

    assert set(show) == {"AttentionMap", "Caption", "ScanPath"}
    assert shown(caption(2)) is None  # it has no thumbnail


def test_what_another_info_says_counts() -> None:
    info = MapInfo("gradcam", target=1, score=2.5, more={"rows": "class"})
    both = info | MapInfo(target=0, class_name="dog", more={"run": 1})
    more = {"rows": "class", "run": 1}
    assert both == MapInfo("gradcam", target=0, class_name="dog", score=2.5, more=more)
    names = [replace(both, class_name=name).target_name for name in ("dog", "")]
    assert (*names, MapInfo().target_name) == ("dog", "class 0", "")
