"""Functions of batches of columns, as engines call them: equal to the pipelines, errors in rows."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from random_numbers import photo, png

import visattn as va
from visattn.results.captions import Caption

PHOTOS = [photo(40 + 3 * seed, 53, seed) for seed in range(5)]


@pytest.fixture(scope="module")
def cnn(sandbox: Path) -> str:
    return str(sandbox / "cnn.safetensors")


@pytest.fixture(scope="module")
def expected(cnn: str) -> list[va.AttentionMap]:
    return va.explain(va.load(cnn), PHOTOS, "gradcam", batch_size=2)


def check(batch: Any, expected: list[va.AttentionMap]) -> None:
    """Rows restore the maps to the bit."""
    assert list(batch["error"]) == [""] * len(expected)
    for number, heatmap in enumerate(expected):
        restored = va.AttentionMap.from_dict(json.loads(batch["map"][number]))
        assert torch.equal(restored.values, heatmap.values)
        assert restored.geometry == heatmap.geometry
        assert restored.info.class_name == batch["class"][number] == heatmap.info.class_name
        assert batch["score"][number] == heatmap.info.score


def test_maps_of_a_plain_loop_are_those_of_explain(
    cnn: str, expected: list[va.AttentionMap]
) -> None:
    maps = va.MapImages(cnn, "gradcam", batch_size=2)
    content = pickle.dumps(maps)
    assert len(content) < 1000
    maps({"id": [0], "image": [PHOTOS[0]]})
    assert len(pickle.dumps(maps)) < 1000  # the model was loaded and stays here
    batch = pickle.loads(content)({"id": [*range(5)], "image": [png(each) for each in PHOTOS]})
    assert batch.pop("id") == [0, 1, 2, 3, 4]
    check(batch, expected)


def test_datasets_map_gives_the_maps_of_explain(
    cnn: str, expected: list[va.AttentionMap], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_dict({"image": [png(each) for each in PHOTOS]})
    maps = va.MapImages(cnn, "gradcam")
    table = table.map(maps, batched=True, batch_size=2, remove_columns="image")
    check(table[:], expected)


def test_cells_hold_bytes_paths_and_arrays_and_an_error_stays_in_its_row(
    cnn: str, tmp_path: Path
) -> None:
    content = png(PHOTOS[0])
    path = tmp_path / "a.png"
    path.write_bytes(content)
    hostile = {"bytes": None, "path": str(path)}
    cells = [content, str(path), path, PHOTOS[0],
             {"bytes": content, "path": "b.png"}, Image.open(path),
             b"no image", "gone.png", hostile, None]  # fmt: skip
    batch = va.MapImages(cnn, "gradcam", batch_size=1)({"image": cells})
    assert batch["error"][:6] == [""] * 6
    shown = [json.loads(cell)["values"] for cell in batch["map"][:6]]
    assert all(each == shown[0] for each in shown)
    for number, reason in enumerate(
        ("not an image", "gone.png: no such file", "NoneType", "NoneType"), 6
    ):
        assert reason in batch["error"][number]
        assert batch["map"][number] == batch["class"][number] == ""


def test_a_batch_that_fails_is_explained_photo_by_photo(
    cnn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def explain(explainer: va.Explainer, images: list[Any], *args: Any, **options: Any) -> Any:
        if any(image.size[0] == PHOTOS[1].shape[0] for image in images):
            raise ValueError("the model outputs NaN")
        return known(explainer, images, *args, **options)

    known = va.Explainer.explain
    monkeypatch.setattr(va.Explainer, "explain", explain)
    batch = va.MapImages(cnn, "gradcam")({"image": PHOTOS[:3]})
    assert batch["error"] == ["", "the model outputs NaN", ""]
    assert [bool(cell) for cell in batch["map"]] == [True, False, True]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"method": "gradkam"}, "got 'gradkam'; did you mean"),
        ({"method": "gradcam", "stride": 3}, "stride"),
        ({"target": "cow"}, "cow"),
    ],
)
def test_what_no_photo_could_repair_is_an_error(
    cnn: str, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        va.MapImages(cnn, **{"method": "gradcam", **options})({"image": PHOTOS[:1]})


def test_models_in_memory_are_refused_and_random_weights_are_named(cnn: str) -> None:
    with pytest.raises(TypeError, match="not JSON serializable"):
        va.MapImages(va.load(cnn), "gradcam")  # pyright: ignore[reportArgumentType]
    with pytest.warns(UserWarning, match="the weights of timm:test_resnet are random"):
        va.MapImages("timm:test_resnet", "gradcam")({"image": PHOTOS[:1]})


def test_captions_are_those_of_caption() -> None:
    captions = va.CaptionImages("scenes-captioner", max_length=4)
    batch = captions({"image": PHOTOS[:2], "id": ["the first", "the second"]})
    expected = va.caption(va.load("scenes-captioner"), PHOTOS[:2], max_length=4)
    assert batch["id"] == ["the first", "the second"]
    assert batch["caption"] == [each.text for each in expected]
    assert batch["score"] == [each.score for each in expected]
    for cell, made in zip(batch["result"], expected, strict=True):
        restored = Caption.from_dict(json.loads(cell))
        assert restored.words == made.words
        assert torch.equal(restored.maps.values, made.maps.values)
