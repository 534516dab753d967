"""Maps of the same images during training: folder, table, page, cost, resume."""

import base64
import csv
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from visattn.models import SPECIAL_TOKENS, ShowAttendTell, SmallEncoder
from visattn.pipelines import attention_history
from visattn.pipelines.attention_history import AttentionHistory
from visattn.viz.html.history_page import HistoryRow, history_page


class Corner(nn.Module):
    """Logits that depend on the mean of one quadrant: of the left top one if `side` is 0."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)
        self.side = 0
        nn.init.ones_(self.conv.weight)

    def forward(self, images: Tensor) -> Tensor:
        features = self.conv(images)
        half = features.shape[-1] // 2
        part = features[..., :half, :half] if self.side == 0 else features[..., half:, half:]
        return part.square().mean((2, 3)) * torch.tensor([1.0, 2.0, 3.0, 4.0])


def photo(height: int = 48, width: int = 64) -> np.ndarray:
    return np.random.default_rng(3).integers(90, 200, (height, width, 3), np.uint8)


def history(folder: Path, **options: object) -> AttentionHistory:
    arguments = {"method": "input_gradient", "img_size": 32, "resize_mode": "squash", **options}
    return AttentionHistory(
        [photo(), photo(64, 40)], folder, class_names=["a", "b", "c", "d"], **arguments
    )


def test_a_list_of_classes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"target must be one class.*\['a', 'b'\].*tensor of labels"
    ):
        history(tmp_path, target=["a", "b"])


def test_the_maximum_follows_the_quadrant_that_the_model_reads(tmp_path: Path) -> None:
    model, followed = Corner().eval(), history(tmp_path, target="b")
    followed.log(model, 0)
    model.side = 1
    followed.log(model, 500, force=True)
    first, _, second, tall = followed.records
    assert (first.x < 32, first.y < 24, second.x > 32, second.y > 24) == (True,) * 4
    assert tall.x > 20
    assert tall.y > 32
    assert first.target == "b"
    assert math.isnan(first.correlation)
    assert second.correlation < 0.5


def test_a_model_that_does_not_change_has_a_correlation_of_one(tmp_path: Path) -> None:
    model, followed = Corner().eval(), history(tmp_path)
    followed.log(model, 0)
    followed.log(model, 500, force=True)
    assert [record.correlation for record in followed.records[2:]] == pytest.approx([1.0, 1.0])


def test_the_folder_has_a_table_a_page_and_all_maps(tmp_path: Path) -> None:
    followed = history(tmp_path)
    panels = followed.log(Corner().eval(), 0)
    assert [panel.shape for panel in panels] == [(48, 64, 3), (64, 40, 3)]
    with (tmp_path / "maps.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["image"] for row in rows] == ["1-image", "2-image"]
    for row in rows:
        path = tmp_path / "step-0000000" / f"{row['image']}.jpg"
        assert path.read_bytes().startswith(b"\xff\xd8")  # a JPEG
    page = (tmp_path / "index.html").read_text()
    assert page.count("<img") == 6  # the photo of the first image, each with its map, a color bar
    assert "step 0" in page
    assert "Attention during training: Input gradient" in page
    assert ", logit " in page
    assert f"colors {rows[0]['range']}" in page


def test_maps_are_drawn_when_they_are_due(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 0.0, 2.0, 2.0, 3.0, 99.0, 99.0, 100.0, 100.0])
    monkeypatch.setattr(attention_history.time, "monotonic", lambda: next(clock))
    followed = history(tmp_path, every_n_steps=5, max_cost=0.1)
    model = Corner().eval()
    # A log takes 2 seconds, so that the next one is due 20 seconds after the begin of the first.
    assert [bool(followed.log(model, step)) for step in (0, 1, 5, 10)] == [True, False, False, True]
    assert followed.seconds == 3.0


def test_a_folder_is_continued_and_later_steps_are_replaced(tmp_path: Path) -> None:
    model = Corner().eval()
    followed = history(tmp_path)
    for step in (0, 500, 1000):
        followed.log(model, step, force=True)
    resumed = history(tmp_path)
    assert [record.step for record in resumed.records] == [0, 0, 500, 500, 1000, 1000]
    resumed.log(model, 500, force=True)
    assert [record.step for record in history(tmp_path).records] == [0, 0, 500, 500]


def test_the_model_is_returned_as_it_was_under_inference_mode(tmp_path: Path) -> None:
    model = Corner().train()
    with torch.inference_mode():
        history(tmp_path).log(model, 0)
        assert torch.is_inference_mode_enabled()
    assert model.training
    assert all(p.grad is None for p in model.parameters())


def test_an_empty_map_is_recorded_with_its_reason(tmp_path: Path) -> None:
    model = Corner().eval()
    nn.init.zeros_(model.conv.weight)
    followed = history(tmp_path)
    followed.log(model, 0)
    assert followed.records[0].note
    assert math.isnan(followed.records[0].x)
    assert "no map" in (tmp_path / "index.html").read_text()


def test_words_of_a_captioner_are_drawn_as_a_panel(tmp_path: Path) -> None:
    words = (*SPECIAL_TOKENS, "red", "ring")
    model = ShowAttendTell(words, SmallEncoder((32, 32), channels=8))
    followed = AttentionHistory(photo(), tmp_path, method="words")
    [panel] = followed.log(model, 0)
    assert panel.shape[1] == 900


def test_the_page_shows_evenly_spaced_steps() -> None:
    steps = attention_history._evenly(range(0, 1000, 10), 24)
    assert (len(steps), steps[0], steps[-1]) == (24, 0, 990)
    row = HistoryRow("<b>", photo(), ["data:,"], ["a 0.5"])
    page = history_page([row], [0], num_steps=100, method="gradcam")
    assert "1 of 100 logged steps" in page
    assert "&lt;b&gt;" in page


def page_data(folder: Path) -> dict[str, Any]:
    page = (folder / "index.html").read_text(encoding="utf-8")
    match = re.search(r'id="page-data">(.*?)</script>', page)
    assert match is not None
    return json.loads(match[1])


def test_the_page_has_the_values_of_all_steps(tmp_path: Path) -> None:
    model, maps = Corner().eval(), history(tmp_path)
    for step, model.side in ((0, 0), (500, 1)):
        maps.log(model, step, force=True)
    data = page_data(tmp_path)
    for row, name in zip(data["rows"], maps.names, strict=True):
        for each in row["steps"]:
            values = np.frombuffer(base64.b64decode(each["values"]), "<f4").reshape(each["grid"])
            kept = np.load(tmp_path / f"step-{each['step']:07}" / f"{name}.npy")
            np.testing.assert_array_equal(values, kept)
        assert row["top"] == max(each["top"] for each in row["steps"])
    for path in tmp_path.glob("step-0000000/*.npy"):  # of an earlier version
        path.unlink()
    maps.log(model, 1000, force=True)
    data = page_data(tmp_path)
    assert [each["values"] is None for each in data["rows"][0]["steps"]] == [True, False, False]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"every_n_steps": 0}, "every_n_steps"), ({"max_cost": 0.0}, "max_cost")],
)
def test_numbers_out_of_range_are_refused(
    arguments: dict[str, float], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        history(tmp_path, **arguments)


def test_no_image_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one image"):
        AttentionHistory([], tmp_path)


def test_a_table_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "maps.csv").write_text("name,size\ncat,3\n")
    with pytest.raises(ValueError, match="choose another folder"):
        history(tmp_path)


def test_a_method_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="rollout does not fit"):
        history(tmp_path, method="rollout").log(Corner().eval(), 0)
