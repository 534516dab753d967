"""Functions of batches of columns, as engines call them: equal to the pipelines, errors in rows."""

import io
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import visattn as va
from visattn.io.stores import write_url
from visattn.models import SPECIAL_TOKENS, SmallEncoder, StackedAttentionNetwork

PHOTOS = [
    np.random.default_rng(seed).integers(0, 256, (40 + 3 * seed, 53, 3), dtype=np.uint8)
    for seed in range(5)
]


def png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    return file.getvalue()


@pytest.fixture(scope="module")
def expected(cnn: str) -> list[va.AttentionMap]:
    return va.explain(va.load_model(cnn), PHOTOS, "gradcam", batch_size=2)


def check(batch: Any, expected: list[va.AttentionMap]) -> None:
    """Rows restore the maps to the bit."""
    assert list(batch["error"]) == [""] * len(expected)
    rows = [{name: batch[name][number] for name in batch} for number in range(len(expected))]
    for row, heatmap in zip(rows, expected, strict=True):
        restored = va.AttentionMap.from_row(row)
        assert torch.equal(restored.values, heatmap.values)
        assert restored.geometry == heatmap.geometry
        assert restored.info.class_name == row["class"] == heatmap.info.class_name
        assert row["score"] == heatmap.info.score


def test_maps_of_a_plain_loop_are_those_of_explain(
    cnn: str, expected: list[va.AttentionMap]
) -> None:
    maps = va.MapImages(cnn, "gradcam", key="id", batch_size=2)
    content = pickle.dumps(maps)
    assert len(content) < 1000
    maps({"id": [0], "image": [PHOTOS[0]]})
    assert len(pickle.dumps(maps)) < 1000  # the model was loaded and stays here
    batch = pickle.loads(content)({"id": [*range(5)], "image": [png(photo) for photo in PHOTOS]})
    assert batch.pop("id") == [0, 1, 2, 3, 4]
    check(batch, expected)


def test_batches_of_pandas_and_pyarrow_are_answered_in_kind(
    cnn: str, expected: list[va.AttentionMap]
) -> None:
    pandas, pa = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    maps = va.MapImages(cnn, "gradcam", batch_size=2)
    frame = pandas.DataFrame({"image": [png(photo) for photo in PHOTOS]})
    chunks = [maps(frame.iloc[:2]), maps(frame.iloc[2:4]), maps(frame.iloc[4:])]
    check(pandas.concat(chunks).to_dict("list"), expected)
    table = maps(pa.table({"image": [png(photo) for photo in PHOTOS]}))
    assert str(table.schema.field("map").type) == "list<item: float>"
    check(table.to_pydict(), expected)


def test_datasets_map_gives_the_maps_of_explain(
    cnn: str, expected: list[va.AttentionMap], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_dict({"image": [png(photo) for photo in PHOTOS]})
    maps = va.MapImages(cnn, "gradcam")
    table = table.map(maps, batched=True, batch_size=2, remove_columns="image")
    check(table[:], expected)


def test_cells_hold_bytes_paths_urls_and_arrays_and_an_error_stays_in_its_row(
    cnn: str, tmp_path: Path
) -> None:
    content = png(PHOTOS[0])
    path = tmp_path / "a.png"
    path.write_bytes(content)
    write_url("memory://engines/a.png", content)
    hostile = {"bytes": None, "path": str(path)}
    cells = [content, str(path), path, "memory://engines/a.png", PHOTOS[0],
             {"bytes": content, "path": "b.png"}, Image.open(path),
             b"no image", "gone.png", "memory://engines/gone.png", hostile, None]  # fmt: skip
    maps = va.MapImages(cnn, "gradcam", batch_size=1, save=["overlay"])
    batch = maps({"image": cells})
    assert batch["path"][:6] == ["", str(path), str(path), "memory://engines/a.png", "", "b.png"]
    assert batch["error"][:7] == [""] * 7
    assert all(np.array_equal(values, batch["map"][0]) for values in batch["map"][:7])
    for number, reason in enumerate(
        ("not an image", "gone.png: no such file", "gone.png", "has no bytes", "NoneType"), 7
    ):
        assert reason in batch["error"][number]
        assert (len(batch["map"][number]), batch["overlay"][number]) == (0, b"")
    overlay = np.array(Image.open(io.BytesIO(batch["overlay"][0])))
    [heatmap] = va.explain(va.load_model(cnn), PHOTOS[0], "gradcam")
    assert np.array_equal(overlay, np.array(va.overlay(PHOTOS[0], heatmap)))
    with pytest.raises(ValueError, match="the row has no map: gone.png: no such file"):
        va.AttentionMap.from_row({name: cells[8] for name, cells in batch.items()})


def test_a_photo_has_a_row_per_method_and_class(cnn: str) -> None:
    maps = va.MapImages(cnn, ["gradcam", "layercam"], ["cat", "dog"], key="id")
    batch = maps({"id": ["a", "b"], "image": [PHOTOS[0], b"no image"]})
    assert batch["id"] == ["a"] * 4 + ["b"] * 4
    assert batch["method"] == ["gradcam", "gradcam", "layercam", "layercam"] * 2
    assert batch["class"] == ["cat", "dog"] * 2 + [""] * 4
    [[_, [_, heatmap]]] = va.explain(
        va.load_model(cnn), [PHOTOS[0]], ["gradcam", "layercam"], ["cat", "dog"]
    )
    assert batch["map"][3].tolist() == heatmap.values.flatten().tolist()


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
    assert [len(values) for values in batch["map"]] == [80, 0, 80]


@pytest.mark.parametrize(
    ("options", "batch", "reason"),
    [
        ({"method": "gradkam"}, {"image": PHOTOS[:1]}, "there is no method 'gradkam'"),
        ({"method": "gradcam", "stride": 3}, {"image": PHOTOS[:1]}, "stride"),
        ({"target": "cow"}, {"image": PHOTOS[:1]}, "cow"),
        ({"device": "moon"}, {"image": PHOTOS[:1]}, "the device 'moon' is not available"),
        ({}, {"images": PHOTOS[:1]}, "there is no column 'image'; did you mean images?"),
        ({"key": "name"}, {"image": PHOTOS[:1]}, "there is no column 'name'"),
    ],
)
def test_what_no_photo_could_repair_is_an_error(
    cnn: str, options: dict[str, Any], batch: dict[str, Any], reason: str
) -> None:
    maps = va.MapImages(cnn, **{"method": "gradcam", **options})
    with pytest.raises(ValueError, match=reason.replace("?", r"\?")):
        maps(batch)


def test_models_in_memory_and_unknown_drawings_are_refused(cnn: str) -> None:
    with pytest.raises(TypeError, match="model must be made of texts and numbers"):
        va.MapImages(va.load(cnn))  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="target must be made of texts and numbers"):
        va.MapImages(cnn, "gradcam", va.PixelTarget("cat", 1, 2))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="save may hold overlay, got 'page'"):
        va.MapImages(cnn, save="page")
    with pytest.warns(UserWarning, match="the weights of timm:resnet10t are random"):
        va.MapImages("timm:resnet10t", "gradcam").load()


def test_captions_are_those_of_caption() -> None:
    captions = va.CaptionImages("scenes-captioner", key="id", save=["page"], max_length=4)
    batch = captions({"image": PHOTOS[:2], "id": ["the first", "the second"]})
    expected = va.caption(va.load("scenes-captioner"), PHOTOS[:2], max_length=4)
    assert batch["caption"] == [each.text for each in expected]
    assert batch["score"] == [each.score for each in expected]
    for number, caption in enumerate(expected):
        assert batch["map"][number].tolist() == caption.maps.values.flatten().tolist()
        assert batch["map_shape"][number] == list(caption.maps.values.shape)
        assert caption.words[0].encode() in batch["page"][number]
    assert b"the second" in batch["page"][1]


def test_questions_come_from_the_call_or_from_a_column(tmp_path: Path) -> None:
    torch.manual_seed(4)
    words, encoder = (*SPECIAL_TOKENS, "what", "color", "shape"), SmallEncoder((16, 24), channels=8)
    model = StackedAttentionNetwork(words, ("red", "blue"), encoder, dim=8)
    va.save(model, tmp_path / "vqa.safetensors")
    path = str(tmp_path / "vqa.safetensors")
    batch = va.AskImages(path)(
        {"image": PHOTOS[:2], "question": [["What color?", "What shape?"], "What color?"]}
    )
    assert batch["question"] == ["What color?", "What shape?", "What color?"]
    answers = va.ask(model, PHOTOS[0], batch["question"][:2])
    answers += va.ask(model, PHOTOS[1], "What color?")
    assert batch["answer"] == [answer.text for answer in answers]
    assert batch["score"] == [answer.answers[0][1] for answer in answers]
    fixed = va.AskImages(path, "What color?")({"image": [b"no image", PHOTOS[1]]})
    assert fixed["question"] == ["What color?"] * 2
    assert fixed["answer"] == ["", answers[2].text]
    assert json.loads(fixed["geometry"][1])["image_size"] == list(PHOTOS[1].shape[:2])
    with pytest.raises(ValueError, match="there is no column 'question'"):
        va.AskImages(path)({"image": PHOTOS[:1]})
