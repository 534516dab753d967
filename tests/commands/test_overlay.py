"""`visattn overlay`: maps of any model on photos."""

import csv
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from image_text_models import clip_processor, tiny_clip, tiny_tokenizer
from index_cards import parse_index_page
from PIL import Image

import visattn as va
from visattn import BoxTarget, PixelTarget, QueryTarget, RegionTarget
from visattn.attribution.methods import METHODS
from visattn.cli import main
from visattn.commands.overlay import _dense_target, _peak, _Runner, _share, overlay
from visattn.geometry.affine import Geometry
from visattn.images.resize import ResizeSpec
from visattn.models import AttentionResNet
from visattn.pipelines.explainer import methods_for
from visattn.results.attention_map import AttentionMap
from visattn.results.records import from_dict
from visattn.viz.heatmap import overlay as draw_overlay

Run = Callable[..., int]
Capsys = pytest.CaptureFixture[str]
CNN, VIT = "--model cnn.safetensors", "--model vit.safetensors"


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def record_of(out: Path, name: str, number: int = 0) -> dict[str, Any]:
    """Return what the record of a photo says of one of its maps."""
    return json.loads((out / f"{name}.json").read_text())["maps"][number]


def table(out: Path) -> list[dict[str, str]]:
    return [*csv.DictReader((out / "overlay.csv").read_text().splitlines())]


def saved_with(path: Path, change: Callable[[torch.Tensor], Any]) -> Path:
    """Save a small CNN whose head is changed."""
    model = AttentionResNet(("ant", "bee", "cat"), depth=8, stem_width=4, img_size=(32, 40))
    with torch.no_grad():
        for parameter in model.head.parameters():
            change(parameter)
    va.save(model, path)
    return path


def test_a_folder_yields_rows_pages_maps_and_a_table(
    run: Run, photos: Path, tmp_path: Path, capsys: Capsys
) -> None:
    out = tmp_path / "new" / "out"
    command = f"overlay {CNN} --method gradcam itti_koch --figures pdf --out"
    assert run(command, out, photos) == 0
    printed = capsys.readouterr()
    lines = [line.split("\t") for line in printed.out.splitlines()]
    photo_names, methods = ("tall", "wide", "deeper/dot"), ("gradcam", "itti_koch")
    assert [line[:2] for line in lines] == [[n, m] for n in photo_names for m in methods]
    assert printed.err.endswith(f"visattn: open in a browser: {out / 'index.html'}\n")
    ends = ("html", "gradcam.png", "itti_koch.png", "methods.pdf", "npz", "json")
    assert names(out) == {f"{n}.{end}" for n in photo_names for end in ends} | {
        "index.html", "overlay.csv",
    }  # fmt: skip
    cards = parse_index_page((out / "index.html").read_text())
    assert {card.page for card in cards} == {f"{name}.html" for name in photo_names}
    assert all(card.caption.endswith("Grad-CAM, Itti\N{EN DASH}Koch") for card in cards)
    assert len({card.thumbnail for card in cards}) == 3
    assert 'href="./../index.html"' in (out / "deeper/dot.html").read_text()
    rows = {(Path(row["photo"]).stem, row["method"]): row for row in table(out)}
    # The shorter side gets 32 pixels, of the others the model sees 32 high and 40 wide.
    for name, share in (("tall", 29 / 59), ("wide", 23 * 40 / 32 / 101), ("dot", 1.0)):
        assert float(rows[name, "gradcam"]["seen_share"]) == pytest.approx(share, abs=0.02)
    for row, line in zip(table(out)[::-1][:1], lines[-1:], strict=True):
        assert row["class"] != row["runner_up"]
        assert 0 < float(row["runner_up_probability"]) < 1
        assert line[1] == "itti_koch"
    best = rows["tall", "gradcam"]
    assert float(best["probability"]) >= float(best["runner_up_probability"])


def test_files_of_a_map_match_each_other_and_the_library(
    run: Run, photos: Path, tmp_path: Path
) -> None:
    options = "--method gradcam --target bee --resize-mode crop --colormap viridis --boxes"
    assert run(f"overlay {CNN} {options} --out", tmp_path / "out", photos / "wide.png") == 0
    [known] = va.explain(
        va.load("cnn.safetensors"), photos / "wide.png", "gradcam", "bee", resize_mode="crop"
    )
    record = record_of(tmp_path / "out", "wide")
    with np.load(tmp_path / "out" / "wide.npz", allow_pickle=False) as arrays:
        values = arrays["gradcam"]
    np.testing.assert_allclose(values, known.values, rtol=1e-5, atol=1e-7)
    assert from_dict(va.Geometry, record["geometry"]) == known.geometry
    assert (record["info"]["class_name"], record["info"]["target"]) == ("bee", 1)
    assert record["boxes"]["boxes"]
    vmin, vmax = record["scale"]["vmin"], record["scale"]["vmax"]
    assert (vmin, vmax) == (0.0, pytest.approx(float(values.max())))
    plain = tmp_path / "plain"
    assert run(f"overlay {CNN} {options[:-8]} --out", plain, photos / "wide.png") == 0
    image, shown = (np.array(Image.open(folder)) for folder in (
        photos / "wide.png", plain / "wide.gradcam.png",
    ))  # fmt: skip
    wanted = draw_overlay(image, known.resize_to_image().numpy(), vmax=vmax, colormap="viridis")
    np.testing.assert_array_equal(shown, wanted)
    with_boxes = np.array(Image.open(tmp_path / "out" / "wide.gradcam.png"))
    assert 0 < (with_boxes != shown).any(2).mean() < 0.5


def test_runs_are_reproducible_and_depend_on_their_options(
    run: Run, photos: Path, tmp_path: Path, capsys: Capsys
) -> None:
    command = f"overlay {VIT} --method rollout eigencam --out"
    contents = []
    for out in (tmp_path / "one", tmp_path / "two"):
        assert run(command, out, photos) == 0
        contents.append({name: (out / name).read_bytes() for name in names(out)})
    assert contents[0] == contents[1]
    out, line = tmp_path / "changed", f"overlay {CNN} --method gradcam"
    assert run(f"{line} --target ant --out", out, photos / "tall.png") == 0
    for change in (
        "--target ant --opacity 0.3", "--target ant --style light", "--target cat",
        "--target ant --style contour", "--target ant --layers 0", "--target ant --normalize 0.5",
    ):  # fmt: skip
        before = (out / "tall.gradcam.png").read_bytes()
        assert run(f"{line} {change} --out", out, photos / "tall.png") == 0
        assert (out / "tall.gradcam.png").read_bytes() != before, change
    capsys.readouterr()
    random = f"overlay {photos}/tall.png --model timm:test_resnet --model-args pretrained=false"
    maps = []
    for out in (tmp_path / "a", tmp_path / "b"):
        assert run(f"{random} --out", out) == 0
        maps.append((out / "tall.npz").read_bytes())
        assert "the weights are random: the maps have no meaning" in capsys.readouterr().err
    assert maps[0] == maps[1]


def test_layers_and_heads_are_averaged_classes_and_texts_have_a_map_each(
    run: Run, photos: Path, tmp_path: Path, capsys: Capsys
) -> None:
    photo = photos / "wide.png"
    drawn: list[np.ndarray] = []
    for chosen in ("0", "1", "0 1"):
        line = f"overlay {VIT} --method attention --layers {chosen} --heads 1 --out"
        assert run(line, tmp_path / chosen, photo) == 0
        drawn.append(np.load(tmp_path / chosen / "wide.npz")["attention"])
    np.testing.assert_allclose(drawn[2], (drawn[0] + drawn[1]) / 2, rtol=1e-5)
    info = json.loads((tmp_path / "0 1" / "wide.json").read_text())
    assert "blocks.0.attn.tap, blocks.1.attn.tap" in str(info)
    out = tmp_path / "classes"
    words = "--method gradcam itti_koch --target cat 0"
    capsys.readouterr()
    assert run(f"overlay {CNN} {words} --out", out, photo) == 0
    rows = [line.split("\t")[1:3] for line in capsys.readouterr().out.splitlines()]
    assert rows[:2] == [["gradcam.class2", "cat"], ["gradcam.class0", "ant"]]
    [card] = parse_index_page((out / "index.html").read_text())
    assert re.fullmatch("cat, .+ . ant, .+ . Grad-CAM, Itti\N{EN DASH}Koch", card.caption)
    assert "Grad-CAM \\u00b7 ant" in (out / "wide.html").read_text()  # on a button
    assert run(f"overlay {CNN} --method gradcam --target ant --out", tmp_path / "one", photo) == 0
    several, single = record_of(out, "wide", 1), record_of(tmp_path / "one", "wide")
    for key in ("class_name", "probability", "target"):
        assert several["info"][key] == single["info"][key]
    arrays = (
        np.load(out / "wide.npz")["gradcam.class0"],
        np.load(tmp_path / "one/wide.npz")["gradcam"],
    )
    np.testing.assert_allclose(*arrays, atol=1e-6)


def test_texts_share_a_scale(photos: Path, tmp_path: Path, capsys: Capsys) -> None:
    folder, out = tmp_path / "model", tmp_path / "out"
    for part in (tiny_clip(), clip_processor(), tiny_tokenizer()):
        part.save_pretrained(folder)
    words = ["overlay", str(photos), "--model", f"hf:{folder}", "--out", str(out)]
    texts = ["--text", "a red ball", "the sky"]
    assert main([*words, *texts, "--method", "legrad", "gradcam", "rollout"]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    keys = ["legrad.text1", "legrad.text2", "gradcam.text1", "gradcam.text2", "rollout"]
    assert [row[1] for row in rows] == keys * 3
    assert rows[0][4] == rows[1][4] != rows[5][4]  # one scale for the texts of a photo
    info = record_of(out, "tall", 1)["info"]
    assert info["class_name"] == "the sky"
    assert abs(info["cosine"]) <= 1
    assert main([*words, "--text", "ball " * 20]) == 1
    assert "at most 11 tokens" in capsys.readouterr().err


def test_all_are_the_methods_that_fit(
    run: Run, photos: Path, tmp_path: Path, capsys: Capsys
) -> None:
    few = "--method all --method-args num_masks=3 num_samples=2 n_steps=2"
    assert run(f"overlay {CNN} {few} --out", tmp_path, photos / "wide.png") == 0
    shown = [line.split("\t")[1] for line in capsys.readouterr().out.splitlines()]
    assert shown == methods_for(va.load("cnn.safetensors"))


def test_color_scales(run: Run, photos: Path, tmp_path: Path) -> None:
    line = f"overlay {CNN} --method itti_koch --out"
    assert run(line, tmp_path, photos / "tall.png", "--normalize", "percentile") == 0
    scale = record_of(tmp_path, "tall")["scale"]
    ends = np.quantile(np.load(tmp_path / "tall.npz")["itti_koch"].astype(np.float64), [0.01, 0.99])
    assert [scale["vmin"], scale["vmax"]] == pytest.approx(ends.tolist())
    assert run(line, tmp_path / "fixed", photos, "--normalize", "0.25") == 0
    assert {(row["lowest"], row["highest"]) for row in table(tmp_path / "fixed")} == {
        ("0.0", "0.25")
    }


def test_what_a_model_cannot_explain_is_reported_and_not_drawn(
    run: Run, photos: Path, tmp_path: Path, capsys: Capsys
) -> None:
    zero = saved_with(tmp_path / "zero.safetensors", torch.Tensor.zero_)
    out, line = tmp_path / "out", "overlay --method gradcam itti_koch --model"
    for _ in range(2):  # also when the run is repeated
        assert run(line, zero, photos / "wide.png", "--out", out) == 1
        err = capsys.readouterr().err
        assert "not written: wide: gradcam: the map is zero everywhere" in err
        assert "1 of 1 images not written" in err
    assert {"wide.itti_koch.png", "wide.html"} <= names(out)
    assert "wide.gradcam.png" not in names(out)
    empty, drawn = table(out)
    of_values = ("peak_x", "peak_y", "lowest", "highest")
    assert [empty[column] for column in of_values] == [""] * 4
    assert all(drawn[column] for column in of_values)
    nan = saved_with(tmp_path / "nan.safetensors", lambda weight: weight.fill_(torch.nan))
    assert run("overlay --method gradcam --model", nan, photos, "--out", tmp_path / "nan") == 1
    assert "not written: tall: gradcam: the map has NaN" in capsys.readouterr().err
    assert not [*(tmp_path / "nan").glob("*.gradcam.png")]
    assert run("overlay --method gradcam --figures png --model", zero, photos, "--out", out) == 1
    assert "the map is zero everywhere" in capsys.readouterr().err
    assert "tall.json" in names(out)


def test_a_failing_method_does_not_stop_the_others(
    run: Run, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    def broken(*_: object, layers: int = -1) -> torch.Tensor:
        raise RuntimeError("no layer today")

    whole, line = METHODS["gradcam++"], f"overlay {CNN} --resize-mode crop --method"
    monkeypatch.setitem(METHODS, "gradcam++", replace(whole, function=broken))
    out = tmp_path / "out"
    for _ in range(2):
        assert run(f"{line} gradcam++ gradcam --out", out, photos) == 1
        output = capsys.readouterr()
        assert output.err.count("gradcam++: RuntimeError: no layer today") == 3
        assert [each.split("\t")[1] for each in output.out.splitlines()] == ["gradcam"] * 3
    assert "tall.gradcam++.png" not in names(out)
    cards = parse_index_page((out / "index.html").read_text())
    assert all("gradcam++: RuntimeError: no layer" in card.caption for card in cards)
    with pytest.raises(RuntimeError, match="no layer"):
        run(f"{line} gradcam++ --out", tmp_path / "alone", photos)
    failed, drawn = (table(out)[number] for number in (2, 3))
    assert failed["seen_share"] == drawn["seen_share"] != "1.0"  # of the crop, not the photo
    monkeypatch.setitem(METHODS, "gradcam++", whole)  # what failed is tried again
    assert run(f"{line} gradcam++ gradcam --out", out, photos) == 0
    assert "tall.gradcam++.png" in names(out)


def test_the_peak_of_a_map_lies_on_the_photo() -> None:
    values = torch.zeros(4, 4)
    values[0, 0], values[1, 2] = 9.0, 5.0  # the first row of cells lies in the padding
    assert _peak(values, ResizeSpec((40, 40), "pad").geometry((20, 40))) == (25.0, 5.0)


def test_the_share_of_a_map_in_a_box() -> None:
    values = torch.tensor([[1.0, 3.0], [-9.0, 4.0]])  # what is negative has no share
    drawn = AttentionMap(values, "a", "gradient", Geometry.identity((2, 2)))
    assert _share(drawn, (1.0, 0.0, 2.0, 1.0)) == pytest.approx(3 / 8)


def test_targets_of_dense_outputs(tmp_path: Path) -> None:
    assert _dense_target("", ["dog"]) is None
    assert _dense_target("pixel:120,80", ["cat"]) == PixelTarget("cat", 120, 80)
    assert _dense_target("box:1,2,30,40", ["3"]) == BoxTarget((1, 2, 30, 40), 3)
    assert _dense_target("box:best", []) == BoxTarget(None)
    assert _dense_target("query:5", ["star"]) == QueryTarget(5, "star")
    file = tmp_path / "mask.png"
    Image.fromarray(np.eye(6, dtype=np.uint8) * 255).save(file)
    region = _dense_target(f"region:{file}", ["dog"])
    assert isinstance(region, RegionTarget)
    assert np.array_equal(np.asarray(region.mask), np.eye(6, dtype=bool))
    predicted = _dense_target("region:predicted", ["dog"])
    assert isinstance(predicted, RegionTarget)
    assert predicted.mask is None


def test_maps_of_a_detector_and_of_a_segmentation(
    run: Run, photos: Path, tmp_path: Path, capsys: Capsys
) -> None:
    photo, out = photos / "tall.png", tmp_path / "out"
    assert run("overlay --model boxes.safetensors --at query:1 --out", out, photo) == 0
    [drawn] = [name for name in names(out) if name.endswith(".png")]
    at = "--model areas.safetensors --target ant --method gradcam --at"
    assert run(f"overlay {at} pixel:14,30 --out", tmp_path / "pixel", photo) == 0
    [row] = table(tmp_path / "pixel")
    assert row["class"] == "ant"
    before = (out / drawn).read_bytes()
    assert run("overlay --model boxes.safetensors --at query:2 --out", out, photo) == 0
    assert (out / drawn).read_bytes() != before


def test_methods_with_many_passes_take_photos_one_by_one(
    run: Run, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[int] = []
    infer = _Runner.infer
    monkeypatch.setattr(
        _Runner, "infer", lambda self, images: batches.append(len(images)) or infer(self, images)
    )
    for methods, sizes in (("gradcam", [3]), ("gradcam occlusion", [1, 1, 1])):
        batches.clear()
        assert run(f"overlay {CNN} --method {methods} --out", tmp_path / methods[-3:], photos) == 0
        assert batches == sizes


def test_images_of_many_channels_are_drawn_by_their_own_rule(
    tmp_path: Path, capsys: Capsys
) -> None:
    (tmp_path / "net.py").write_text(
        "from torch import nn\n"
        "def build(): return nn.Sequential(nn.Conv2d(6, 3, 4, 4), nn.ReLU(), nn.Flatten(),\n"
        "    nn.Linear(3 * 8 * 8, 2))\n"
    )
    bands = np.random.default_rng(0).integers(-100, 4000, (40, 48, 6), np.int16)
    np.save(tmp_path / "bands.npy", bands)
    line = ["overlay", str(tmp_path / "bands.npy"), "--model", f"{tmp_path}/net.py:build",
            "--input-size", "32", "--method", "occlusion", "--out"]  # fmt: skip
    assert main([*line, str(tmp_path / "a")]) == 1
    assert "leave 0 to 1, and their unit is not known" in capsys.readouterr().err
    passed = ["--mean", "500", "--std", *("250 " * 5 + "125").split()]
    assert main([*line, str(tmp_path / "b"), *passed]) == 0
    made = record_of(tmp_path / "b", "bands")["info"]["more"]["preprocessing"]
    assert (made["mean"], made["std"][-1]) == ([500.0] * 6, 125.0)
    assert made["display"].startswith("channels 0, 1, 2 as red, green, blue, each from its 2nd")


def test_names_and_sizes_of_any_model_in_python_and_on_the_command_line(
    run: Run, photos: Path, tmp_path: Path, capsys: Capsys
) -> None:
    from visattn.commands.loop import LoopOptions
    from visattn.commands.model import BuildOptions

    (tmp_path / "names.json").write_text('{"0": "ant", "2": "cat", "1": "bee"}')
    model = BuildOptions(
        "timm:test_resnet", model_args=("num_classes=3", "pretrained=false"), input_size="64x96",
        class_names=tmp_path / "names.json",
    )  # fmt: skip
    out = tmp_path / "out"
    overlay(
        (str(photos / "wide.png"),), model=model, target=("bee",), resize_mode="squash",
        layers=("layer4.0.act2#1",), loop=LoopOptions(out),
    )  # fmt: skip
    assert [row.split("\t")[2] for row in capsys.readouterr().out.splitlines()] == ["bee"]
    record = record_of(out, "wide")
    assert (record["info"]["layer"], record["info"]["more"]["run"]) == ("layer4.0.act2", 1)
    assert record["geometry"]["input_size"] == [64, 96]


def test_the_default_model_names_those_in_local_caches(
    photos: Path, tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = tmp_path / "hub"
    for folder in ("models--timm--resnet18.a1_in1k/snapshots/1", "models--a--b/snapshots/2"):
        (hub / folder).mkdir(parents=True)
        (hub / folder / "config.json").touch()
    (tmp_path / "torch/checkpoints").mkdir(parents=True)
    (tmp_path / "torch/checkpoints/vgg11-8a719046.pth").touch()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(hub))
    monkeypatch.setattr("torch.hub.get_dir", lambda: str(tmp_path / "torch"))
    assert main(["overlay", str(photos / "wide.png"), "--out", str(tmp_path / "out")]) == 0
    names = f"timm:resnet18.a1_in1k, torchvision:vgg11, hf:{hub / 'models--a--b/snapshots/2'}"
    said = capsys.readouterr().err
    assert "using imagenet-classifier; other models on this machine, for --model:" in said
    assert names in said
