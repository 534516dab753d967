"""Tables of results: parts with fixed names, read back by other libraries."""

from pathlib import Path

import numpy as np
import pytest
import torch
from fsspec import filesystem

import visattn as va
from visattn.results.info import MapInfo

pa = pytest.importorskip("pyarrow")


def heatmap(seed: int, shape: tuple[int, ...] = (2, 3)) -> va.AttentionMap:
    values = torch.rand(shape, generator=torch.Generator().manual_seed(seed))
    geometry = va.Geometry.identity((60, 80)).resized((30, 40))
    info = MapInfo("gradcam", class_name="dog", probability=0.25 + seed)
    return va.AttentionMap(values, "layer4", "gradient", geometry, info)


def test_a_repeated_part_adds_no_rows(tmp_path: Path) -> None:
    from pyarrow import dataset

    for numbers in ((0, 1), (1, 1), (0, 1)):
        for part in numbers:
            rows = [heatmap(2 * part + row).to_row() for row in range(2)]
            va.write_table(tmp_path, rows, part=part)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "part-000000.parquet",
        "part-000001.parquet",
    ]
    table = dataset.dataset(tmp_path).to_table()
    for number, row in enumerate(table.to_pylist()):
        restored = va.AttentionMap.from_row(row)
        assert torch.equal(restored.values, heatmap(number).values)
        assert restored.geometry == heatmap(number).geometry
        assert (restored.info.probability, restored.site) == (0.25 + number, "layer4")


def test_parts_without_results_have_the_types_of_others(tmp_path: Path) -> None:
    empty = {"path": ["a"], "map": [np.empty(0, np.float32)], "words": [[]], "error": ["no file"]}
    full = {"path": ["b"], "map": [np.ones(3, np.float32)], "words": [["dog"]], "error": [""]}
    files = [va.write_table(tmp_path, rows, part=part) for part, rows in enumerate((empty, full))]
    schemas = [pa.parquet.read_schema(file) for file in files]
    assert schemas[0] == schemas[1]
    with pytest.raises(ValueError, match="as many rows, got {'path': 1, 'error': 2}"):
        va.write_table(tmp_path, {"path": ["a"], "error": ["", ""]})


def test_pandas_and_datasets_read_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    pandas, datasets = pytest.importorskip("pandas"), pytest.importorskip("datasets")
    va.write_table(tmp_path / "maps", [heatmap(row).to_row() for row in range(3)])
    frame = pandas.read_parquet(tmp_path / "maps")
    assert va.AttentionMap.from_row(frame.iloc[2]).values.equal(heatmap(2).values)
    cache = {"cache_dir": str(tmp_path / "cache")}
    table = datasets.load_dataset("parquet", data_dir=str(tmp_path / "maps"), **cache)["train"]
    assert va.AttentionMap.from_row(table[2]).values.equal(heatmap(2).values)


def test_a_part_of_a_store_is_one_upload() -> None:
    url = va.write_table("memory://engines/maps/", [heatmap(0).to_row()], part=7)
    assert url == "memory://engines/maps/part-000007.parquet"
    store = filesystem("memory")
    assert store.find("/engines/maps") == ["/engines/maps/part-000007.parquet"]
    table = pa.parquet.read_table(pa.BufferReader(store.cat_file(url)))
    assert va.AttentionMap.from_row(table.to_pylist()[0]).values.equal(heatmap(0).values)
    for url, reason in (
        ("http://a.org/maps", "where nothing can be written"),
        ("moon://a", "no URL"),
    ):
        with pytest.raises(ValueError, match=reason):
            va.write_table(url, [heatmap(0).to_row()])
