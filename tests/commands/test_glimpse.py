"""From images to the path of an eye, and what happens when something is wrong."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import visattn
from visattn.cli import main
from visattn.models.encoder import SmallEncoder
from visattn.models.ram.ram import RecurrentAttentionModel
from visattn.pipelines.scanpath import glimpses
from visattn.viz.html.index_page import index_entries

Capsys = pytest.CaptureFixture[str]


def write_model(path: Path, channels: int = 3, factor: float = 3.0) -> Path:
    """Write a model that has learnt nothing: its answers mean nothing, its path is a path."""
    torch.manual_seed(4)
    mean, std = (0.5,) * channels, (0.3,) * channels
    model = RecurrentAttentionModel(
        ("cat", "dog", "bird"), (24, 40), mean, std, glimpse=7, scales=2, glimpses=3, width=11
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


def test_a_folder_becomes_lines_images_and_numbers(
    weights: Path, images: Path, tmp_path: Path, capsys: Capsys
) -> None:
    out = tmp_path / "new" / "out"
    assert main(["glimpse", str(images), "--weights", str(weights), "--out", str(out)]) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert {name for name, _, _ in lines} == {"tall", "wide", "small"}
    written = {f"{name}.{kind}" for name, _, _ in lines for kind in ("png", "gif", "json")}
    assert {path.name for path in out.iterdir()} == {*written, "coverage.png", "index.html"}
    cards = index_entries((out / "index.html").read_text())
    assert [(card.name, card.page) for card in cards] == [
        (name, f"{name}.png") for name in ("small", "tall", "wide")
    ]
    said = {name: f"{answer}, {100 * float(chance):.0f} %" for name, answer, chance in lines}
    assert {card.name: card.caption for card in cards} == said
    for name, answer, chance in lines:
        told = json.loads((out / f"{name}.json").read_text())
        assert (told["class"], f"{told['probability']:.3f}") == (answer, chance)
        with Image.open(out / f"{name}.png") as panel, Image.open(out / f"{name}.gif") as moving:
            assert (panel.width, getattr(moving, "n_frames", 1)) == (1200, 5)


def test_numbers_of_a_image_are_what_the_library_returns(
    weights: Path, images: Path, tmp_path: Path
) -> None:
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
    assert main(["glimpse", str(images / "wide.jpg"), *words, "--fit", "pad"]) == 0
    told = json.loads((tmp_path / "wide.json").read_text())
    [known] = glimpses(
        visattn.load(weights), images / "wide.jpg", policy="sampled", seed=7, fit="pad"
    )
    assert told["image"] == str(images / "wide.jpg")
    assert (told["class"], told["classes"]) == (known.answer, ["cat", "dog", "bird"])
    assert (told["policy"], told["seed"], told["glimpse"], told["scales"]) == ("sampled", 7, 7, 2)
    assert told["places"] == known.places.tolist()
    assert told["boxes"] == known.boxes.tolist()
    assert told["probabilities"] == known.probabilities.tolist()
    assert visattn.Geometry.from_dict(told["geometry"]) == known.maps.geometry


def test_one_image_has_no_coverage(weights: Path, images: Path, tmp_path: Path) -> None:
    words = ["--weights", str(weights), "--out", str(tmp_path / "out")]
    assert main(["glimpse", str(images / "tall.png"), *words]) == 0
    assert not (tmp_path / "out" / "coverage.png").exists()


@pytest.mark.parametrize("policy", ["mean", "sampled", "random", "raster", "saliency"])
def test_every_policy_gives_an_answer(
    policy: str, weights: Path, images: Path, capsys: Capsys
) -> None:
    assert main(["glimpse", str(images), "--weights", str(weights), "--policy", policy]) == 0
    first = capsys.readouterr().out
    assert len(first.splitlines()) == 3
    assert main(["glimpse", str(images), "--weights", str(weights), "--policy", policy]) == 0
    assert capsys.readouterr().out == first  # chance has a seed


def test_the_seed_moves_a_random_start(weights: Path, images: Path, tmp_path: Path) -> None:
    places = []
    for seed in ("0", "1"):
        words = ["--weights", str(weights), "--out", str(tmp_path / seed), "--seed", seed]
        assert main(["glimpse", str(images / "tall.png"), *words]) == 0
        places.append(json.loads((tmp_path / seed / "tall.json").read_text())["places"])
    assert places[0][0] != places[1][0]


def test_without_out_nothing_is_written(
    weights: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.chdir(tmp_path)
    assert main(["glimpse", str(images), "--weights", str(weights)]) == 0
    assert sorted(tmp_path.rglob("*")) == before


def test_a_gray_model_looks_at_colors_and_a_color_model_at_gray(
    weights: Path, images: Path, tmp_path: Path
) -> None:
    gray = write_model(tmp_path / "gray.safetensors", channels=1)
    words = ["--weights", str(gray), "--out", str(tmp_path)]
    assert main(["glimpse", str(images / "tall.png"), *words]) == 0
    Image.new("L", (30, 20), 77).save(tmp_path / "in" / "gray.png")
    assert main(["glimpse", str(tmp_path / "in" / "gray.png"), "--weights", str(weights)]) == 0


def test_bad_images_are_passed_over_and_listed(
    weights: Path, images: Path, tmp_path: Path, capsys: Capsys
) -> None:
    (images / "broken.png").write_bytes(b"no image")
    words = ["glimpse", str(images), "--weights", str(weights), "--out", str(tmp_path / "out")]
    assert main(words) == 1
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == 3
    assert "visattn: skipped " in said.err
    assert "broken.png: not an image" in said.err
    assert "1 of 4 images skipped" in said.err
    assert main([*words[:4], "--strict"]) == 1


def test_a_file_that_cannot_be_written_costs_the_others_nothing(
    weights: Path, images: Path, tmp_path: Path, capsys: Capsys
) -> None:
    out = tmp_path / "out"
    (out / "tall.gif").mkdir(parents=True)
    assert main(["glimpse", str(images), "--weights", str(weights), "--out", str(out)]) == 1
    assert "1 of 3 images not written" in capsys.readouterr().err
    assert (out / "wide.json").exists()
    assert (out / "coverage.png").exists()


def test_a_image_called_coverage_keeps_its_page(
    weights: Path, images: Path, tmp_path: Path, capsys: Capsys
) -> None:
    given = [str(draw(images / "coverage.png", (20, 20))), str(images / "deeper")]
    out = tmp_path / "out"
    assert main(["glimpse", *given, "--weights", str(weights), "--out", str(out)]) == 0
    assert "coverage_2\t" in capsys.readouterr().out
    assert {"coverage.png", "coverage_2.png"} <= {path.name for path in out.iterdir()}


def test_no_image_is_replaced(weights: Path, images: Path, capsys: Capsys) -> None:
    kept = (images / "tall.png").read_bytes()
    words = ["--weights", str(weights), "--out", str(images)]
    assert main(["glimpse", str(images / "tall.png"), *words]) == 1
    assert "in place of the image tall.png" in capsys.readouterr().err
    assert (images / "tall.png").read_bytes() == kept


def test_weights_must_be_a_glimpse_model(images: Path, tmp_path: Path, capsys: Capsys) -> None:
    visattn.save(SmallEncoder((24, 24)), tmp_path / "other.safetensors")
    words = ["glimpse", str(images), "--weights"]
    assert main([*words, str(tmp_path / "other.safetensors")]) == 1
    assert "holds a SmallEncoder, which takes no glimpses" in capsys.readouterr().err
    assert main([*words, str(tmp_path / "none.safetensors")]) == 1
    assert "no model at" in capsys.readouterr().err


def test_damaged_weights_are_no_answer(images: Path, tmp_path: Path, capsys: Capsys) -> None:
    nothing = write_model(tmp_path / "nan.safetensors", factor=float("nan"))
    assert main(["glimpse", str(images), "--weights", str(nothing)]) == 1
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "--weights is missing"),
        (["--weights", "x", "--seed", "-1"], "must be a whole number from 0"),
        (["--weights", "x", "--seed", "2147483648"], "must be a whole number from 0"),
        (["--weights", "x", "--policy", "best"], "invalid choice: 'best'"),
    ],
)
def test_a_command_line_that_cannot_be_followed(
    words: list[str], reason: str, images: Path, capsys: Capsys
) -> None:
    assert main(["glimpse", str(images), *words]) == 2
    assert reason in capsys.readouterr().err


def test_a_device_that_is_not_there(weights: Path, images: Path, capsys: Capsys) -> None:
    words = ["glimpse", str(images), "--weights", str(weights), "--device", "nothing"]
    assert main(words) == 1
    assert "--device nothing cannot be used here" in capsys.readouterr().err


def test_images_that_are_not_there(weights: Path, tmp_path: Path, capsys: Capsys) -> None:
    assert main(["glimpse", str(tmp_path / "none"), "--weights", str(weights)]) == 1
    assert "does not exist" in capsys.readouterr().err
