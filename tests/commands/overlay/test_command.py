"""`visattn overlay`: maps of any model on photos."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from index_cards import parse_index_page
from PIL import Image

import visattn
from visattn.attribution.methods import METHODS
from visattn.cli import main
from visattn.commands.overlay.command import main as overlay_main
from visattn.commands.overlay.map_files import map_record
from visattn.commands.overlay.methods import MapRunner
from visattn.geometry.affine import Geometry
from visattn.images.reader import read_image
from visattn.images.resize import ResizeSpec
from visattn.models.resnet import AttentionResNet
from visattn.models.vit import VisionTransformer
from visattn.pipelines import inputs
from visattn.pipelines.explainer import methods_for
from visattn.results.attention_map import AttentionMap
from visattn.results.records import from_dict
from visattn.viz.heatmap import overlay

Capsys = pytest.CaptureFixture[str]
CLASSES = ("ant", "bee", "cat")
ENDINGS = ("png", "rgba.png", "16bit.png", "npy", "json")


@pytest.fixture(scope="module")
def cnn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(4)
    path = tmp_path_factory.mktemp("weights") / "cnn.safetensors"
    visattn.save(AttentionResNet(CLASSES, depth=8, stem_width=4, img_size=(32, 40)), path)
    return path


@pytest.fixture(scope="module")
def vit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(5)
    path = tmp_path_factory.mktemp("weights") / "vit.safetensors"
    model = VisionTransformer(
        CLASSES, img_size=(24, 40), patch_size=8, embed_dim=16, depth=2, num_heads=2
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    visattn.save(model, path)
    return path


def run(images: Path, model: Path | str, out: Path, *words: str) -> int:
    return main(["overlay", str(images), "--model", str(model), "--out", str(out), *words])


def contents(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def test_maps_of_a_folder_are_written_in_all_formats(
    cnn: Path, photos: Path, tmp_path: Path, capsys: Capsys
) -> None:
    out = tmp_path / "new" / "out"
    kinds = ("--save", "overlay", "rgba", "16bit", "sheet")
    assert run(photos, cnn, out, "--method", "gradcam", "itti_koch", *kinds) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [line[:2] for line in lines] == [
        [name, method]
        for name in ("tall", "wide", "deeper/dot")
        for method in ("gradcam", "itti_koch")
    ]
    names = {f"{name}.{key}" for name, key, *_ in lines}
    wanted = {f"{name}.{ending}" for name in names for ending in ENDINGS}
    assert set(contents(out)) == wanted | {
        f"{name}.methods.png" for name in ("deeper/dot", "tall", "wide")
    } | {"index.html", "overlay.csv"}
    cards = parse_index_page(contents(out)["index.html"].decode())
    assert {card.page for card in cards} == {
        f"{each}.methods.png" for each in ("deeper/dot", "tall", "wide")
    }
    assert all(card.caption.endswith("Grad-CAM, Itti–Koch") for card in cards)
    assert len({card.thumbnail for card in cards}) == 3
    for _, _, about, chance, scale in lines:
        assert about in CLASSES
        assert 0 < float(chance) < 1
        assert scale.startswith("0 to ")


def test_files_of_a_map_match_each_other_and_the_library(
    cnn: Path, photos: Path, tmp_path: Path
) -> None:
    options = "--method gradcam --target bee --resize-mode crop --colormap viridis"
    words = [*options.split(), "--save", "overlay", "rgba", "16bit"]
    assert run(photos / "wide.png", cnn, tmp_path / "out", *words) == 0
    out = contents(tmp_path / "out")
    record = json.loads(out["wide.gradcam.json"])
    [known] = visattn.explain(
        visattn.load(cnn), photos / "wide.png", "gradcam", "bee", resize_mode="crop"
    )
    assert known.geometry is not None
    values = np.load(tmp_path / "out" / "wide.gradcam.npy")
    np.testing.assert_allclose(values, known.values, rtol=1e-5, atol=1e-7)
    assert from_dict(Geometry, record["geometry"]) == known.geometry
    assert (record["info"]["class_name"], record["info"]["target"], record["key"]) == (
        "bee",
        1,
        "gradcam",
    )
    vmin, vmax = record["scale"]["vmin"], record["scale"]["vmax"]
    assert (vmin, vmax) == (0.0, pytest.approx(float(values.max())))
    drawn = visattn.AttentionMap(
        torch.from_numpy(values), "", "gradient", known.geometry
    ).resize_to_image()
    image = np.array(Image.open(photos / "wide.png"))
    shown = np.array(Image.open(tmp_path / "out" / "wide.gradcam.png"))
    wanted = overlay(image, drawn.numpy(), vmax=vmax, colormap="viridis")
    np.testing.assert_array_equal(shown, wanted)
    alone = np.array(Image.open(tmp_path / "out" / "wide.gradcam.rgba.png"))
    unseen = np.isnan(drawn.numpy())
    assert unseen.any()
    assert (alone[unseen, 3] == 0).all()
    gray = np.array(Image.open(tmp_path / "out" / "wide.gradcam.16bit.png"))
    assert gray.dtype == np.uint16
    np.testing.assert_allclose(
        gray[~unseen] / 65535 * vmax, drawn.numpy()[~unseen], atol=vmax / 60000
    )


def test_runs_are_reproducible_and_resumable(
    vit: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    words = ("--method", "rollout", "eigencam", "--explorer")
    assert run(photos, vit, tmp_path / "one", *words) == 0
    first, output = contents(tmp_path / "one"), capsys.readouterr().out
    assert run(photos, vit, tmp_path / "two", *words) == 0
    assert contents(tmp_path / "two") == first
    for gone in [*(tmp_path / "two").glob("tall.*"), tmp_path / "two" / "wide.html"]:
        gone.unlink()
    looked: list[str] = []
    looking = MapRunner.maps
    monkeypatch.setattr(
        MapRunner, "maps",
        lambda self, batch: looked.extend(p.name for p in batch.originals) or looking(self, batch),
    )  # fmt: skip
    capsys.readouterr()
    assert run(photos, vit, tmp_path / "two", *words) == 0
    assert contents(tmp_path / "two") == first
    assert len(looked) == 2
    looked.clear()
    assert sorted(capsys.readouterr().out.splitlines()) == sorted(output.splitlines())
    assert run(photos, vit, tmp_path / "two", *words) == 0
    assert looked == []
    assert capsys.readouterr().out == output
    assert run(photos, vit, tmp_path / "two", *words, "--overwrite") == 0
    assert (len(looked), contents(tmp_path / "two")) == (3, first)


@pytest.mark.parametrize(
    "change",
    [
        ("--opacity", "0.3"),
        ("--style", "light"),
        ("--method-arg", "layer=0"),
        ("--interpolation", "nearest"),
        ("--target", "cat"),
    ],
)
def test_changed_options_recompute_the_maps(
    change: tuple[str, ...], cnn: Path, photos: Path, tmp_path: Path
) -> None:
    words = ("--method", "gradcam")
    target = () if "--target" in change else ("--target", "ant")
    assert run(photos / "tall.png", cnn, tmp_path / "out", *words, "--target", "ant") == 0
    before = contents(tmp_path / "out")
    assert run(photos / "tall.png", cnn, tmp_path / "out", *words, *target, *change) == 0
    after = contents(tmp_path / "out")
    assert after["tall.gradcam.json"] != before["tall.gradcam.json"]
    assert after["tall.gradcam.png"] != before["tall.gradcam.png"]


def test_a_replaced_photo_is_recomputed(cnn: Path, photos: Path, tmp_path: Path) -> None:
    assert run(photos / "tall.png", cnn, tmp_path / "out", "--method", "gradcam") == 0
    before = contents(tmp_path / "out")
    Image.open(photos / "wide.png").save(photos / "tall.png")
    assert run(photos / "tall.png", cnn, tmp_path / "out", "--method", "gradcam") == 0
    assert contents(tmp_path / "out")["tall.gradcam.npy"] != before["tall.gradcam.npy"]


def test_global_normalization_uses_the_highest_maximum(
    cnn: Path, photos: Path, tmp_path: Path, capsys: Capsys
) -> None:
    # Batch size 1, so that a recomputed map has the same batch as before and is identical.
    words = ("--method", "input_gradient", "--normalize", "global", "--batch-size", "1")
    assert run(photos, cnn, tmp_path / "out", *words) == 0
    tops, highest = set(), 0.0
    for name in ("deeper/dot", "tall", "wide"):
        record = json.loads((tmp_path / "out" / f"{name}.input_gradient.json").read_text())
        tops.add(record["scale"]["vmax"])
        highest = max(highest, record["values"]["max"])
    assert tops == {highest}
    first, output = contents(tmp_path / "out"), capsys.readouterr().out
    (tmp_path / "out" / "deeper/dot.input_gradient.png").unlink()
    assert run(photos, cnn, tmp_path / "out", *words) == 0
    assert contents(tmp_path / "out") == first
    assert capsys.readouterr().out == output


def test_percentiles_change_the_image(cnn: Path, photos: Path, tmp_path: Path) -> None:
    words = ("--method", "itti_koch", "--normalize", "percentile")
    assert run(photos / "tall.png", cnn, tmp_path, *words) == 0
    record = json.loads((tmp_path / "tall.itti_koch.json").read_text())
    values = np.load(tmp_path / "tall.itti_koch.npy").astype(np.float64)
    ends = np.quantile(values, [0.01, 0.99])
    assert [record["scale"]["vmin"], record["scale"]["vmax"]] == pytest.approx(ends.tolist())


def test_attention_models_get_heads_pages_and_an_index(
    vit: Path, photos: Path, tmp_path: Path
) -> None:
    words = (
        "--method",
        "attention",
        "--explorer",
        "--layers",
        "0",
        "1",
        "--heads",
        "1",
    )
    out = tmp_path / "out"
    assert run(photos, vit, out, *words) == 0
    written = contents(out)
    keys = ("attention.layer0", "attention.layer1")
    assert {f"wide.{key}.png" for key in keys} <= set(written)
    cards = {entry.page for entry in parse_index_page(written["index.html"].decode())}
    assert cards == {"deeper/dot.html", "tall.html", "wide.html"}
    assert run(photos / "wide.png", vit, out, *words, "--overwrite") == 0
    cards = {entry.page for entry in parse_index_page((out / "index.html").read_text())}
    assert cards == {"deeper/dot.html", "tall.html", "wide.html"}


def test_only_requested_files_are_written(cnn: Path, photos: Path, tmp_path: Path) -> None:
    words = ("--method", "rise", "--method-arg", "num_masks=3", "--save", "rgba")
    assert run(photos / "wide.png", cnn, tmp_path / "out", *words) == 0
    assert set(contents(tmp_path / "out")) == {
        "wide.rise.rgba.png",
        "wide.rise.npy",
        "wide.rise.json",
        "overlay.csv",
    }


@pytest.mark.parametrize(("model", "method"), [("vit", "rollout"), ("cnn", "gradcam")])
def test_the_default_method_is_used(
    model: str, method: str, photos: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    assert run(photos / "wide.png", request.getfixturevalue(model), tmp_path / "out") == 0
    assert f"wide.{method}.png" in contents(tmp_path / "out")


def test_method_all_runs_every_applicable_method(
    cnn: Path, photos: Path, tmp_path: Path, capsys: Capsys
) -> None:
    few = ("--method-arg", "num_masks=3", "num_samples=2", "n_steps=2")
    assert run(photos / "wide.png", cnn, tmp_path, "--method", "all", *few) == 0
    methods = [line.split("\t")[1] for line in capsys.readouterr().out.splitlines()]
    assert methods == methods_for(visattn.load(cnn))


def test_an_empty_map_is_reported_and_not_drawn(
    photos: Path, tmp_path: Path, capsys: Capsys
) -> None:
    model = AttentionResNet(CLASSES, depth=8, stem_width=4, img_size=(32, 40))
    with torch.no_grad():
        for parameter in model.head.parameters():
            parameter.zero_()
    visattn.save(model, tmp_path / "m.safetensors")
    words = ("--method", "gradcam", "layercam", "itti_koch")
    for _ in range(2):  # also after the run continues
        assert run(photos / "wide.png", tmp_path / "m.safetensors", tmp_path / "o", *words) == 1
        err = capsys.readouterr().err
        assert "wide.gradcam: the map is zero everywhere" in err
        assert "1 of 1 images not written" in err
    assert "wide.gradcam.png" not in contents(tmp_path / "o")
    assert "wide.itti_koch.png" in contents(tmp_path / "o")
    empty, drawn, _ = csv.DictReader((tmp_path / "o" / "overlay.csv").read_text().splitlines())
    of_values = ("peak_x", "peak_y", "lowest", "highest")
    assert [empty[column] for column in of_values] == [""] * 4
    assert all(drawn[column] for column in of_values)


def test_the_peak_of_a_map_lies_on_the_photo() -> None:
    photo = read_image(np.zeros((20, 40, 3), np.uint8))
    values = torch.zeros(4, 4)
    values[0, 0], values[1, 2] = 9.0, 5.0  # the first row of cells lies in the padding
    padded = ResizeSpec((40, 40), "pad").geometry((20, 40))
    attention_map = AttentionMap(values, "layer4", "gradient", padded)
    assert map_record("gradcam", photo, attention_map, None)["values"]["argmax"] == [25.0, 5.0]


def test_a_failing_method_does_not_stop_the_others(
    cnn: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    def broken(*_: object, layer: int = -1) -> torch.Tensor:
        raise RuntimeError(f"no layer {layer} today")

    whole = METHODS["gradcam++"]
    words = ("--method", "gradcam", "gradcam++", "itti_koch", "--save", "overlay", "sheet")
    monkeypatch.setitem(METHODS, "gradcam++", replace(whole, function=broken))
    for _ in range(2):  # also after the run continues
        assert run(photos, cnn, tmp_path / "o", *words) == 1
        output = capsys.readouterr()
        assert output.err.count("gradcam++: RuntimeError: no layer -1 today") == 3
        assert [line.split("\t")[1] for line in output.out.splitlines()] == [
            "gradcam",
            "itti_koch",
        ] * 3
    out = contents(tmp_path / "o")
    assert {"tall.gradcam.png", "tall.itti_koch.png", "tall.methods.png"} <= set(out)
    assert "tall.gradcam++.png" not in out
    cards = parse_index_page(out["index.html"].decode())
    assert all("Grad-CAM++ not drawn: RuntimeError: no layer" in card.caption for card in cards)
    alone = ["--model", str(cnn), "--out", str(tmp_path / "p"), "--method", "gradcam++"]
    with pytest.raises(RuntimeError, match="no layer"):
        overlay_main([str(photos), *alone])
    monkeypatch.setitem(METHODS, "gradcam++", whole)  # failed methods are tried again
    assert run(photos, cnn, tmp_path / "o", *words) == 0
    assert "tall.gradcam++.png" in contents(tmp_path / "o")


def test_layers_input_sizes_and_class_names_of_any_model(
    photos: Path, tmp_path: Path, capsys: Capsys
) -> None:
    (tmp_path / "names.txt").write_text("ant\nbee\ncat\n")
    (tmp_path / "names.json").write_text('{"0": "ant", "2": "cat", "1": "bee"}')
    words = ["--model", "timm:test_resnet", "--model-arg", "num_classes=3", "--input-size", "64x96",
             "--layer", "layer4.0.act2#1", "layer2", "--target", "bee"]  # fmt: skip
    for file in ("names.txt", "names.json"):
        out = tmp_path / "out" / file
        line = ["overlay", str(photos / "wide.png"), *words, "--classes", str(tmp_path / file)]
        assert main([*line, "--out", str(out / "o"), "--resize-mode", "squash"]) == 0
        assert all(row.split("\t")[2] == "bee" for row in capsys.readouterr().out.splitlines())
        record = json.loads((out / "o" / "wide.gradcam.layer4.0.act2_run1.json").read_text())
        assert (record["info"]["layer"], record["info"]["more"]["run"]) == ("layer4.0.act2", 1)
        assert record["geometry"]["input_size"] == [64, 96]
        assert record["map_shape"] == [2, 3]
        assert (out / "o" / "wide.gradcam.layer2.png").is_file()
    (tmp_path / "few.txt").write_text("ant\nbee\n")
    line = ["overlay", str(photos), *words[:6], "--out", str(tmp_path / "q")]
    for code, mistake, output in (
        (1, ["--classes", str(tmp_path / "few.txt")], "a name for each of 3 classes, got 2"),
        (1, ["--classes", str(tmp_path / "gone.txt")], "does not exist"),
        (1, ["--layer", "layre2"], "did you mean layer2"),
        (2, ["--layer", "layer2", "--layers", "1"], "use one of them"),
        (
            1,
            ["--layer", "layer2", "--method", "rise"],
            "--layer is for methods that explain one layer",
        ),
        (2, ["--input-size", "a"], "must be N or HEIGHTxWIDTH"),
    ):
        assert main([*line, *mistake]) == code
        assert output in capsys.readouterr().err


def test_nonfinite_weights_are_reported_and_not_drawn(
    photos: Path, tmp_path: Path, capsys: Capsys
) -> None:
    model = AttentionResNet(CLASSES, depth=8, stem_width=4, img_size=(32, 40))
    with torch.no_grad():
        for parameter in model.head.parameters():
            parameter.fill_(torch.nan)
    visattn.save(model, tmp_path / "m.safetensors")
    words = ("--method", "gradcam")
    assert run(photos, tmp_path / "m.safetensors", tmp_path / "o", *words) == 1
    assert "NaN" in capsys.readouterr().err


def test_the_passes_of_maps_also_give_the_probabilities(
    cnn: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores: list[torch.Tensor] = []
    classify, maps = AttentionResNet.classify, MapRunner.maps

    def counted(self: AttentionResNet, images: torch.Tensor) -> torch.Tensor:
        logits = classify(self, images)
        scores.append(logits.detach())
        return logits

    def of_last_batch(self: MapRunner, batch: Any) -> Any:
        scores.clear()
        return maps(self, batch)

    monkeypatch.setattr(AttentionResNet, "classify", counted)
    monkeypatch.setattr(MapRunner, "maps", of_last_batch)
    out = tmp_path / "out"
    assert run(photos, cnn, out, "--method", "gradcam", "layercam", "--batch-size", "2") == 0
    assert len(scores) == 2  # those of the last photo, after the analysis
    record = json.loads((out / "deeper/dot.layercam.json").read_text())["info"]
    share = scores[0].softmax(1)[0, record["target"]]
    assert record["probability"] == float(share)


@pytest.mark.parametrize("library", ["visattn", "timm"])
def test_each_photo_is_preprocessed_once_for_all_methods_and_pages(
    library: str, vit: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def count_calls(name: str) -> None:
        original = getattr(inputs, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            return original(*args, **kwargs)

        monkeypatch.setattr(inputs, name, counted)

    count_calls("resize_to_input")
    count_calls("transform_with_geometry")
    model: Path | str = vit if library == "visattn" else "timm:test_vit"
    options = ("--method", "attention", "rollout", "input_gradient", "--explorer")
    assert run(photos, model, tmp_path / "out", *options, "--batch-size", "2") == 0
    expected = "resize_to_input" if library == "visattn" else "transform_with_geometry"
    assert calls == [expected] * 3


def test_images_of_many_channels_are_drawn_by_their_own_rule(
    tmp_path: Path, capsys: Capsys
) -> None:
    """What is assumed is said, until mean and std, or a transform, say what is right."""
    (tmp_path / "net.py").write_text(
        "from torch import nn\n"
        "from torchvision.transforms import v2\n"
        "def build(): return nn.Sequential(nn.Conv2d(6, 3, 4, 4), nn.ReLU(), nn.Flatten(),\n"
        "    nn.Linear(3 * 8 * 8, 2))\n"
        "def steps(): return v2.Compose([v2.CenterCrop(32), v2.Normalize([500.], [250.])])\n"
    )
    bands = np.random.default_rng(0).integers(-100, 4000, (40, 48, 6), np.int16)
    np.save(tmp_path / "bands.npy", bands)
    line = ["overlay", str(tmp_path / "bands.npy"), "--model", f"{tmp_path}/net.py:build",
            "--method", "occlusion", "--out"]  # fmt: skip
    size = ["--input-size", "32"]
    assert main([*line, str(tmp_path / "a"), *size]) == 1
    assert "leave 0 to 1, and their unit is not known" in capsys.readouterr().err
    passed = ["--mean", "500", "--std", "250,250,250,250,250,125"]
    assert main([*line, str(tmp_path / "b"), *size, *passed]) == 0
    assert "assumed" not in capsys.readouterr().err
    named = ["--transform", f"{tmp_path}/net.py:steps"]
    assert main([*line, str(tmp_path / "c"), *named]) == 0
    made = [
        json.loads((tmp_path / out / "bands.occlusion.json").read_text())["info"]["more"]
        for out in ("b", "c")
    ]
    first, second = (each["preprocessing"] for each in made)
    assert (first["mean"], first["std"][-1]) == ([500.0] * 6, 125.0)
    assert first["display"].startswith("channels 0, 1, 2 as red, green, blue, each from its 2nd")
    assert (second["size"], second["mean"], second["source"]) == ([32, 32], [500.0], "transform")
    assert main([*line, str(tmp_path / "d"), *named, *size]) == 1
    assert "--transform resizes images" in capsys.readouterr().err


def test_several_classes_have_a_map_each(
    cnn: Path, photos: Path, tmp_path: Path, capsys: Capsys
) -> None:
    out = tmp_path / "out"
    words = ("--method", "gradcam", "itti_koch", "--target", "cat", "0", "--save", "overlay")
    assert run(photos, cnn, out, *words) == 0
    rows = [line.split("\t")[:3] for line in capsys.readouterr().out.splitlines()]
    assert [row[1:] for row in rows[:3]] == [
        ["gradcam.class2", "cat"], ["gradcam.class0", "ant"], ["itti_koch", "-"],
    ]  # fmt: skip
    record = json.loads((out / "wide.gradcam.class0.json").read_text())
    single = tmp_path / "single"
    assert run(photos, cnn, single, "--method", "gradcam", "--target", "ant") == 0
    alone = json.loads((single / "wide.gradcam.json").read_text())
    made = [each["info"] for each in (record, alone)]
    assert {made[0][key] == made[1][key] for key in ("class_name", "probability", "target")} == {
        True
    }
    maps = (np.load(out / "wide.gradcam.class0.npy"), np.load(single / "wide.gradcam.npy"))
    np.testing.assert_allclose(*maps, atol=1e-6)
