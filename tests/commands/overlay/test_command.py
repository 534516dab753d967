"""From any model and photos to maps on the photos, and what happens when something is wrong."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import visattn
from visattn.attribution.methods import METHODS
from visattn.cli import main
from visattn.commands.overlay import runs as overlay_runs
from visattn.commands.overlay.command import main as overlay_main
from visattn.geometry.affine import Geometry
from visattn.models.resnet.attention_resnet import AttentionResNet
from visattn.models.vit.vision_transformer import VisionTransformer
from visattn.pipelines.explanation import methods_for
from visattn.viz.html.index_page import index_entries
from visattn.viz.maps.heatmap import overlay

Capsys = pytest.CaptureFixture[str]
CLASSES = ("ant", "bee", "cat")
ENDINGS = ("png", "rgba.png", "16bit.png", "npy", "json")


@pytest.fixture(scope="module")
def cnn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(4)
    path = tmp_path_factory.mktemp("weights") / "cnn.safetensors"
    visattn.save(AttentionResNet(CLASSES, depth=8, width=4, size=(32, 40)), path)
    return path


@pytest.fixture(scope="module")
def vit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(5)
    path = tmp_path_factory.mktemp("weights") / "vit.safetensors"
    model = VisionTransformer(CLASSES, size=(24, 40), patch=8, width=16, depth=2, heads=2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    visattn.save(model, path)
    return path


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Three photos of several shapes in a folder."""
    rng = np.random.default_rng(3)
    folder = tmp_path / "in"
    (folder / "deeper").mkdir(parents=True)
    for name, size in (("tall.png", (59, 31)), ("wide.png", (29, 97)), ("deeper/dot.png", (1, 1))):
        Image.fromarray(rng.integers(0, 256, (*size, 3), dtype=np.uint8)).save(folder / name)
    return folder


def run(images: Path, model: Path | str, out: Path, *words: str) -> int:
    return main(["overlay", str(images), "--model", str(model), "--out", str(out), *words])


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_folder_becomes_maps_in_all_their_forms(
    cnn: Path, photos: Path, tmp_path: Path, capsys: Capsys
) -> None:
    out = tmp_path / "new" / "out"
    assert run(photos, cnn, out, "--method", "gradcam", "itti_koch") == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [line[:2] for line in lines] == [
        [name, method] for name in ("tall", "wide", "dot") for method in ("gradcam", "itti_koch")
    ]
    names = {f"{name}.{key}" for name, key, *_ in lines}
    wanted = {f"{name}.{ending}" for name in names for ending in ENDINGS}
    assert set(contents(out)) == wanted | {
        f"{name}.methods.png" for name in ("dot", "tall", "wide")
    } | {"index.html"}
    cards = index_entries(contents(out)["index.html"].decode())
    assert {card.page for card in cards} == {
        f"{one}.methods.png" for one in ("dot", "tall", "wide")
    }
    assert all(card.caption.endswith("Grad-CAM, Itti–Koch") for card in cards)
    assert len({card.thumbnail for card in cards}) == 3
    for _, _, about, chance, scale in lines:
        assert about in CLASSES
        assert 0 < float(chance) < 1
        assert scale.startswith("0 to ")


def test_files_of_a_map_agree_with_each_other_and_with_the_library(
    cnn: Path, photos: Path, tmp_path: Path
) -> None:
    words = ("--method", "gradcam", "--target", "bee", "--fit", "crop", "--colors", "viridis")
    assert run(photos / "wide.png", cnn, tmp_path / "out", *words) == 0
    out = contents(tmp_path / "out")
    told = json.loads(out["wide.gradcam.json"])
    [known] = visattn.explain(visattn.load(cnn), photos / "wide.png", "gradcam", "bee", fit="crop")
    assert known.geometry is not None
    values = np.load(tmp_path / "out" / "wide.gradcam.npy")
    np.testing.assert_allclose(values, known.values, rtol=1e-5, atol=1e-7)
    assert Geometry.from_dict(told["geometry"]) == known.geometry
    assert (told["made"]["class"], told["made"]["target"], told["method"]) == ("bee", 1, "gradcam")
    low, high = told["scale"]["low"], told["scale"]["high"]
    assert (low, high) == (0.0, pytest.approx(float(values.max())))
    drawn = visattn.AttentionMap(
        torch.from_numpy(values), "", "gradient", known.geometry
    ).on_image()
    image = np.array(Image.open(photos / "wide.png"))
    shown = np.array(Image.open(tmp_path / "out" / "wide.gradcam.png"))
    wanted = overlay(image, drawn.numpy(), high=high, colors="viridis")
    np.testing.assert_array_equal(shown, wanted)
    alone = np.array(Image.open(tmp_path / "out" / "wide.gradcam.rgba.png"))
    unseen = np.isnan(drawn.numpy())
    assert unseen.any()
    assert (alone[unseen, 3] == 0).all()
    gray = np.array(Image.open(tmp_path / "out" / "wide.gradcam.16bit.png"))
    assert gray.dtype == np.uint16
    np.testing.assert_allclose(
        gray[~unseen] / 65535 * high, drawn.numpy()[~unseen], atol=high / 60000
    )


def test_a_second_run_gives_the_same_bytes_and_an_interrupted_one_goes_on(
    vit: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    words = ("--method", "rollout", "layercam", "--grid", "--explorer")
    assert run(photos, vit, tmp_path / "one", *words) == 0
    first, said = contents(tmp_path / "one"), capsys.readouterr().out
    assert run(photos, vit, tmp_path / "two", *words) == 0
    assert contents(tmp_path / "two") == first
    for gone in ("tall.rollout.json", "wide.heads.png"):
        (tmp_path / "two" / gone).unlink()
    (tmp_path / "two" / "dot.layercam.json").write_text('{"cut')
    looked: list[str] = []
    looking = overlay_runs.MapRunner.maps
    monkeypatch.setattr(
        overlay_runs.MapRunner, "maps",
        lambda self, images: looked.extend(p.name for p in images) or looking(self, images),
    )  # fmt: skip
    capsys.readouterr()
    assert run(photos, vit, tmp_path / "two", *words) == 0
    assert contents(tmp_path / "two") == first
    assert len(looked) == 3
    looked.clear()
    assert sorted(capsys.readouterr().out.splitlines()) == sorted(said.splitlines())
    assert run(photos, vit, tmp_path / "two", *words) == 0
    assert looked == []
    assert capsys.readouterr().out == said
    assert run(photos, vit, tmp_path / "two", *words, "--again") == 0
    assert (len(looked), contents(tmp_path / "two")) == (3, first)


@pytest.mark.parametrize(
    "change", [("--target", "cat"), ("--style", "light"), ("--option", "layer=0"), ("--cells",)]
)
def test_what_is_asked_otherwise_is_made_anew(
    change: tuple[str, ...], cnn: Path, photos: Path, tmp_path: Path
) -> None:
    words = ("--method", "gradcam", "--target", "ant")
    assert run(photos / "tall.png", cnn, tmp_path / "out", *words) == 0
    before = contents(tmp_path / "out")
    assert run(photos / "tall.png", cnn, tmp_path / "out", *words, *change) == 0
    after = contents(tmp_path / "out")
    assert after["tall.gradcam.json"] != before["tall.gradcam.json"]
    assert after["tall.gradcam.png"] != before["tall.gradcam.png"]


def test_a_photo_that_was_replaced_is_looked_at_again(
    cnn: Path, photos: Path, tmp_path: Path
) -> None:
    assert run(photos / "tall.png", cnn, tmp_path / "out", "--method", "gradcam") == 0
    before = contents(tmp_path / "out")
    Image.open(photos / "wide.png").save(photos / "tall.png")
    assert run(photos / "tall.png", cnn, tmp_path / "out", "--method", "gradcam") == 0
    assert contents(tmp_path / "out")["tall.gradcam.npy"] != before["tall.gradcam.npy"]


def test_one_scale_for_all_is_that_of_the_highest(
    cnn: Path, photos: Path, tmp_path: Path, capsys: Capsys
) -> None:
    # One at a time: what is made once more is then made in the same batch, and is the same.
    words = ("--method", "input_gradient", "--scale", "global", "--batch", "1")
    assert run(photos, cnn, tmp_path / "out", *words) == 0
    tops, highest = set(), 0.0
    for name in ("dot", "tall", "wide"):
        told = json.loads((tmp_path / "out" / f"{name}.input_gradient.json").read_text())
        tops.add(told["scale"]["high"])
        highest = max(highest, told["values"]["highest"])
    assert tops == {highest}
    first, said = contents(tmp_path / "out"), capsys.readouterr().out
    (tmp_path / "out" / "dot.input_gradient.png").unlink()
    assert run(photos, cnn, tmp_path / "out", *words) == 0
    assert contents(tmp_path / "out") == first
    assert capsys.readouterr().out == said


def test_percentiles_show_what_differs(cnn: Path, photos: Path, tmp_path: Path) -> None:
    words = ("--method", "itti_koch", "--scale", "percentile")
    assert run(photos / "tall.png", cnn, tmp_path, *words) == 0
    told = json.loads((tmp_path / "tall.itti_koch.json").read_text())
    values = np.load(tmp_path / "tall.itti_koch.npy").astype(np.float64)
    ends = np.quantile(values, [0.01, 0.99])
    assert [told["scale"]["low"], told["scale"]["high"]] == pytest.approx(ends.tolist())


def test_heads_pages_and_an_index_for_a_model_with_attention(
    vit: Path, photos: Path, tmp_path: Path
) -> None:
    words = ("--method", "attention", "--grid", "--explorer", "--layers", "0", "1", "--heads", "1")
    out = tmp_path / "out"
    assert run(photos, vit, out, *words) == 0
    written = contents(out)
    keys = ("attention.layer0", "attention.layer1")
    assert {f"wide.{key}.png" for key in keys} <= set(written)
    cards = {entry.page for entry in index_entries(written["index.html"].decode())}
    assert cards == {"dot.html", "tall.html", "wide.html"}
    assert run(photos / "wide.png", vit, out, *words, "--again") == 0
    cards = {entry.page for entry in index_entries((out / "index.html").read_text())}
    assert cards == {"dot.html", "tall.html", "wide.html"}


def test_only_the_images_that_are_asked_for(cnn: Path, photos: Path, tmp_path: Path) -> None:
    words = ("--method", "rise", "--option", "masks=3", "--files", "rgba")
    assert run(photos / "wide.png", cnn, tmp_path / "out", *words) == 0
    assert set(contents(tmp_path / "out")) == {
        "wide.rise.rgba.png",
        "wide.rise.npy",
        "wide.rise.json",
    }


@pytest.mark.parametrize(("model", "method"), [("vit", "rollout"), ("cnn", "gradcam")])
def test_without_a_method_the_usual_one_is_taken(
    model: str, method: str, photos: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    assert run(photos / "wide.png", request.getfixturevalue(model), tmp_path / "out") == 0
    assert f"wide.{method}.png" in contents(tmp_path / "out")


def test_all_methods_that_fit(cnn: Path, photos: Path, tmp_path: Path, capsys: Capsys) -> None:
    few = ("--option", "masks=3", "--option", "samples=2", "--option", "steps=2")
    assert run(photos / "wide.png", cnn, tmp_path, "--method", "all", *few) == 0
    methods = [line.split("\t")[1] for line in capsys.readouterr().out.splitlines()]
    assert methods == methods_for(visattn.load(cnn))


def test_a_map_that_is_empty_is_said_and_not_drawn(
    photos: Path, tmp_path: Path, capsys: Capsys
) -> None:
    model = AttentionResNet(CLASSES, depth=8, width=4, size=(32, 40))
    with torch.no_grad():
        for parameter in model.head.parameters():
            parameter.zero_()
    visattn.save(model, tmp_path / "m.safetensors")
    words = ("--method", "gradcam", "itti_koch")
    for _ in range(2):  # also when the run goes on
        assert run(photos / "wide.png", tmp_path / "m.safetensors", tmp_path / "o", *words) == 1
        err = capsys.readouterr().err
        assert "wide.gradcam: the map is zero everywhere" in err
    assert "wide.gradcam.png" not in contents(tmp_path / "o")
    assert "wide.itti_koch.png" in contents(tmp_path / "o")


def test_a_method_that_fails_costs_the_others_nothing(
    cnn: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    def broken(*_: object, layer: int = -1) -> torch.Tensor:
        raise RuntimeError(f"no layer {layer} today")

    whole = METHODS["gradcam++"]
    words = ("--method", "gradcam", "gradcam++", "itti_koch", "--files", "overlay")
    monkeypatch.setitem(METHODS, "gradcam++", replace(whole, function=broken))
    for _ in range(2):  # also when the run goes on
        assert run(photos, cnn, tmp_path / "o", *words) == 1
        said = capsys.readouterr()
        assert said.err.count("gradcam++: RuntimeError: no layer -1 today") == 3
        assert [line.split("\t")[1] for line in said.out.splitlines()] == [
            "gradcam",
            "itti_koch",
        ] * 3
    out = contents(tmp_path / "o")
    assert {"tall.gradcam.png", "tall.itti_koch.png", "tall.methods.png"} <= set(out)
    assert "tall.gradcam++.png" not in out
    cards = index_entries(out["index.html"].decode())
    assert all("Grad-CAM++ not drawn: RuntimeError: no layer" in card.caption for card in cards)
    alone = ["--model", str(cnn), "--out", str(tmp_path / "p"), "--method", "gradcam++"]
    with pytest.raises(RuntimeError, match="no layer"):
        overlay_main([str(photos), *alone])
    monkeypatch.setitem(METHODS, "gradcam++", whole)  # what failed is tried again
    assert run(photos, cnn, tmp_path / "o", *words) == 0
    assert "tall.gradcam++.png" in contents(tmp_path / "o")


def test_layers_sizes_and_names_of_classes_of_any_model(
    photos: Path, tmp_path: Path, capsys: Capsys
) -> None:
    (tmp_path / "names.txt").write_text("ant\nbee\ncat\n")
    (tmp_path / "names.json").write_text('{"0": "ant", "2": "cat", "1": "bee"}')
    words = ["--model", "timm:test_resnet", "--argument", "num_classes=3", "--input-size", "64x96",
             "--layer", "layer4.0.act2#1", "layer2", "--target", "bee"]  # fmt: skip
    for file in ("names.txt", "names.json"):
        out = tmp_path / "out" / file
        line = ["overlay", str(photos / "wide.png"), *words, "--classes", str(tmp_path / file)]
        assert main([*line, "--out", str(out / "o"), "--fit", "squash"]) == 0
        assert all(row.split("\t")[2] == "bee" for row in capsys.readouterr().out.splitlines())
        told = json.loads((out / "o" / "wide.gradcam.layer4.0.act2_run1.json").read_text())
        assert (told["made"]["layer"], told["made"]["run"]) == ("layer4.0.act2", 1)
        assert told["geometry"]["input_size"] == [64, 96]
        assert told["grid"] == [2, 3]
        assert (out / "o" / "wide.gradcam.layer2.png").is_file()
    (tmp_path / "few.txt").write_text("ant\nbee\n")
    line = ["overlay", str(photos), *words[:6], "--out", str(tmp_path / "q")]
    for code, mistake, said in (
        (1, ["--classes", str(tmp_path / "few.txt")], "a name for each of 3 classes, got 2"),
        (1, ["--classes", str(tmp_path / "gone.txt")], "does not exist"),
        (1, ["--layer", "layre2"], "did you mean layer2"),
        (2, ["--layer", "layer2", "--layers", "1"], "give one of them"),
        (1, ["--layer", "layer2", "--method", "rise"], "--layer is for methods that look at one"),
        (2, ["--input-size", "a"], "must be N or HEIGHTxWIDTH"),
    ):
        assert main([*line, *mistake]) == code
        assert said in capsys.readouterr().err


def test_broken_weights_are_said_and_not_drawn(
    photos: Path, tmp_path: Path, capsys: Capsys
) -> None:
    model = AttentionResNet(CLASSES, depth=8, width=4, size=(32, 40))
    with torch.no_grad():
        for parameter in model.head.parameters():
            parameter.fill_(torch.nan)
    visattn.save(model, tmp_path / "m.safetensors")
    words = ("--method", "gradcam")
    assert run(photos, tmp_path / "m.safetensors", tmp_path / "o", *words) == 1
    assert "holds NaN or infinity in " in capsys.readouterr().err
