"""`visattn glimpse`: predictions, scanpaths, arrays and errors."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from index_cards import parse_index_page
from PIL import Image

import visattn
from visattn.cli import main
from visattn.models.base import SmallEncoder
from visattn.models.glimpses.dram import DRAM
from visattn.models.glimpses.ram import RecurrentAttentionModel
from visattn.pipelines.scanpath import glimpses
from visattn.results.values import ScanPath, format_percent

Capsys = pytest.CaptureFixture[str]


def write_model(path: Path, channels: int = 3, factor: float = 3.0) -> Path:
    """Write an untrained glimpse model."""
    torch.manual_seed(4)
    mean, std = (0.5,) * channels, (0.3,) * channels
    model = RecurrentAttentionModel(
        ("cat", "dog", "bird"),
        (24, 40),
        mean,
        std,
        glimpse_size=7,
        num_scales=2,
        num_glimpses=3,
        hidden_size=11,
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(factor)
    visattn.save(model, path)
    return path


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("weights") / "model.safetensors")


def draw(path: Path, size: tuple[int, int], seed: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


@pytest.fixture
def images(tmp_path: Path) -> Path:
    draw(tmp_path / "in" / "tall.png", (59, 29))
    draw(tmp_path / "in" / "wide.jpg", (23, 101), 1)
    draw(tmp_path / "in" / "deeper" / "small.png", (1, 1), 2)
    (tmp_path / "in" / "notes.txt").write_text("no image")
    return tmp_path / "in"


def test_a_folder_yields_lines_images_and_arrays(
    weights: Path, images: Path, tmp_path: Path, capsys: Capsys
) -> None:
    out = tmp_path / "new" / "out"
    assert main(["glimpse", str(images), "--weights", str(weights), "--out", str(out)]) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert {name for name, _, _ in lines} == {"tall", "wide", "deeper/small"}
    written = {f"{name}.{kind}" for name, _, _ in lines for kind in ("png", "json")}
    files = {path.relative_to(out) for path in out.rglob("*") if path.is_file()}
    files = {path.as_posix() for path in files}
    assert files == {*written, "coverage.png", "index.html", "glimpse.csv"}
    cards = parse_index_page((out / "index.html").read_text())
    assert [(card.name, card.page) for card in cards] == [
        (name, f"{name}.png") for name in ("deeper/small", "tall", "wide")
    ]
    records = [json.loads((out / f"{name}.json").read_text()) for name, *_ in lines]
    output = {
        line[0]: f"{line[1]}, {format_percent(record['probability'])}"
        for line, record in zip(lines, records, strict=True)
    }
    assert {card.name: card.caption for card in cards} == output
    for name, answer, chance in lines:
        record = json.loads((out / f"{name}.json").read_text())
        assert (record["class"], f"{record['probability']:.3f}") == (answer, chance)
        with Image.open(out / f"{name}.png") as panel:
            assert panel.width == 1400


def test_saved_arrays_match_the_library(weights: Path, images: Path, tmp_path: Path) -> None:
    words = [
        "--weights",
        str(weights),
        "--out",
        str(tmp_path),
        "--policy",
        "sampled",
        "--seed",
        "7",
    ]
    assert main(["glimpse", str(images / "wide.jpg"), *words, "--resize-mode", "pad"]) == 0
    record = json.loads((tmp_path / "wide.json").read_text())
    [known] = glimpses(
        visattn.load(weights), images / "wide.jpg", policy="sampled", seed=7, resize_mode="pad"
    )
    assert record["image"] == str(images / "wide.jpg")
    assert (record["class"], record["class_names"]) == (known.prediction, ["cat", "dog", "bird"])
    assert (record["info"]["policy"], record["info"]["seed"]) == ("sampled", 7)
    again = ScanPath.from_dict(record)
    assert torch.equal(again.patches, known.patches)
    assert record["locations"] == known.locations.tolist()
    assert record["boxes"] == known.boxes.tolist()
    assert record["probabilities"] == known.probabilities.tolist()
    assert again.geometry == known.maps.geometry


def test_a_model_of_sequences_names_each_label_that_it_read(
    images: Path, tmp_path: Path, capsys: Capsys
) -> None:
    torch.manual_seed(0)
    model = DRAM(
        "379", (24, 40), (0.5,), (0.3,), max_objects=3, num_glimpses_per_object=2, end_class="end",
        hidden_size=11,
    )  # fmt: skip
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
        model.classifier.weight.mul_(5)
    weights, out = tmp_path / "model.safetensors", tmp_path / "out"
    visattn.save(model, weights)
    assert main(["glimpse", str(images), "--weights", str(weights), "--out", str(out)]) == 0
    lengths = set()
    for line in capsys.readouterr().out.splitlines():
        name, answer, chance = line.split("\t")
        record = json.loads((out / f"{name}.json").read_text())
        labels = record["labels"]
        assert [label["glimpse"] for label in labels] == [1, 3, 5, 7][: len(labels)]
        read = [np.argmax(record["probabilities"][label["glimpse"]]) for label in labels]
        assert [record["class_names"][index] for index in read] == [x["name"] for x in labels]
        assert "end" not in [label["name"] for label in labels[:-1]]
        names = [label["name"] for label in labels if label["name"] != "end"]
        assert answer == " ".join(names or ["end"])
        product = math.prod(label["probability"] for label in labels)
        assert chance == f"{product:.3f}"
        assert len(record["locations"]) == 8  # all glimpses are written, those up to the end drawn
        lengths.add(len(labels))
    assert len(lengths) > 1


def test_one_image_has_no_coverage(weights: Path, images: Path, tmp_path: Path) -> None:
    words = ["--weights", str(weights), "--out", str(tmp_path / "out")]
    assert main(["glimpse", str(images / "tall.png"), *words]) == 0
    assert not (tmp_path / "out" / "coverage.png").exists()


@pytest.mark.parametrize("policy", ["greedy", "sampled", "random", "raster", "saliency"])
def test_every_policy_predicts_a_class(
    policy: str, weights: Path, images: Path, capsys: Capsys
) -> None:
    assert main(["glimpse", str(images), "--weights", str(weights), "--policy", policy]) == 0
    first = capsys.readouterr().out
    assert len(first.splitlines()) == 3
    assert main(["glimpse", str(images), "--weights", str(weights), "--policy", policy]) == 0
    assert capsys.readouterr().out == first  # random, but seeded


def test_the_seed_changes_a_random_initial_location(
    weights: Path, images: Path, tmp_path: Path
) -> None:
    places = []
    for seed in ("0", "1"):
        words = ["--weights", str(weights), "--out", str(tmp_path / seed), "--seed", seed]
        assert main(["glimpse", str(images / "tall.png"), *words]) == 0
        places.append(json.loads((tmp_path / seed / "tall.json").read_text())["locations"])
    assert places[0][0] != places[1][0]


def test_without_out_nothing_is_written(
    weights: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.chdir(tmp_path)
    assert main(["glimpse", str(images), "--weights", str(weights)]) == 0
    assert sorted(tmp_path.rglob("*")) == before


def test_grayscale_and_color_images_are_converted(
    weights: Path, images: Path, tmp_path: Path
) -> None:
    gray = write_model(tmp_path / "gray.safetensors", channels=1)
    words = ["--weights", str(gray), "--out", str(tmp_path)]
    assert main(["glimpse", str(images / "tall.png"), *words]) == 0
    Image.new("L", (30, 20), 77).save(tmp_path / "in" / "gray.png")
    assert main(["glimpse", str(tmp_path / "in" / "gray.png"), "--weights", str(weights)]) == 0


def test_an_image_named_coverage_keeps_its_page(
    weights: Path, images: Path, tmp_path: Path, capsys: Capsys
) -> None:
    values = [str(draw(images / "coverage.png", (20, 20))), str(images / "deeper")]
    out = tmp_path / "out"
    assert main(["glimpse", *values, "--weights", str(weights), "--out", str(out)]) == 0
    assert "coverage_2\t" in capsys.readouterr().out
    assert {"coverage.png", "coverage_2.png"} <= {path.name for path in out.iterdir()}


def test_no_image_is_replaced(weights: Path, images: Path, capsys: Capsys) -> None:
    kept = (images / "tall.png").read_bytes()
    words = ["--weights", str(weights), "--out", str(images)]
    assert main(["glimpse", str(images / "tall.png"), *words]) == 1
    assert "would overwrite the input image tall.png" in capsys.readouterr().err
    assert (images / "tall.png").read_bytes() == kept


def test_weights_must_be_a_glimpse_model(images: Path, tmp_path: Path, capsys: Capsys) -> None:
    visattn.save(SmallEncoder((24, 24)), tmp_path / "other.safetensors")
    words = ["glimpse", str(images), "--weights"]
    assert main([*words, str(tmp_path / "other.safetensors")]) == 1
    assert "holds a SmallEncoder, which is not a glimpse model" in capsys.readouterr().err
    assert main([*words, str(tmp_path / "none.safetensors")]) == 1
    assert "no model is named" in capsys.readouterr().err


def test_nonfinite_weights_yield_no_prediction(
    images: Path, tmp_path: Path, capsys: Capsys
) -> None:
    nothing = write_model(tmp_path / "nan.safetensors", factor=float("nan"))
    assert main(["glimpse", str(images), "--weights", str(nothing)]) == 1
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "--model is missing"),
        (["--weights", "x", "--seed", "-1"], "must be a whole number from 0"),
        (["--weights", "x", "--seed", "2147483648"], "must be a whole number from 0"),
        (["--weights", "x", "--policy", "best"], "invalid choice: 'best'"),
    ],
)
def test_invalid_command_lines_are_usage_errors(
    words: list[str], reason: str, images: Path, capsys: Capsys
) -> None:
    assert main(["glimpse", str(images), *words]) == 2
    assert reason in capsys.readouterr().err
