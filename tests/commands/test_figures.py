"""`--width` and `--cropped`: figures of commands."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from question_models import small_mac

import visattn
from visattn.cli import main
from visattn.models import RecurrentAttentionModel
from visattn.models.base import SmallEncoder
from visattn.models.detr import DETR
from visattn.models.unet import UNet

Capsys = pytest.CaptureFixture[str]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    for name, size in {"one.png": (24, 40), "two.png": (48, 40)}.items():
        path = tmp_path / "in" / name
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(random.integers(0, 256, (*size, 3), dtype=np.uint8)).save(path)
    return tmp_path / "in"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    torch.manual_seed(4)
    encoder = SmallEncoder((24, 40), channels=8)
    visattn.save(UNet(("background", "cat"), encoder, block="gate"), folder / "segment.safetensors")
    detector = DETR(("cat",), SmallEncoder((24, 40), channels=8), dim=8, num_queries=3)
    visattn.save(detector, folder / "detect.safetensors")
    glimpses = RecurrentAttentionModel(
        ("cat", "dog"), (24, 24), (0.5,), (0.5,), glimpse_size=5, num_glimpses=3
    )
    visattn.save(glimpses, folder / "glimpse.safetensors")
    visattn.save(small_mac(), folder / "ask.safetensors")
    return folder


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_width_sets_the_size_and_another_one_draws_again(
    photos: Path, models: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    arguments = ["segment", str(photos), "--model", str(models / "segment.safetensors"),
                 "--out", str(out)]  # fmt: skip
    for options, width in (
        (["--width", "900"], 900),
        (["--width", "84mm"], 661),
    ):
        assert main([*arguments, *options]) == 0
        with Image.open(out / "one.png") as image:
            assert image.width == width
    drawn = (out / "one.png").stat().st_mtime_ns
    assert main([*arguments, "--width", "84mm"]) == 0
    assert (out / "one.png").stat().st_mtime_ns == drawn  # resumed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--width", "10cm"], "must be a width such as 84mm"),
        (["--width", "20mm"], "from 1 to 40 inches"),
    ],
)
def test_figures_that_cannot_be_drawn_are_refused(
    options: list[str], message: str, photos: Path, tmp_path: Path, capsys: Capsys
) -> None:
    arguments = [
        "segment",
        str(photos),
        "--model",
        "m.safetensors",
        "--out",
        str(tmp_path / "out"),
        *options,
    ]
    assert main(arguments) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_options_of_figures_need_a_figure(photos: Path, tmp_path: Path, capsys: Capsys) -> None:
    for options in (["--width", "900"],):
        arguments = [
            "overlay",
            str(photos),
            "--model",
            "timm:test_resnet",
            "--method",
            "gradcam",
            "--save",
            "overlay",
            "--out",
            str(tmp_path / "out"),
            *options,
        ]
        assert main(arguments) == 2
        assert f"{options[0]} needs --save sheet" in capsys.readouterr().err


def test_saved_maps_are_drawn_in_one_file_or_a_folder(photos: Path, tmp_path: Path) -> None:
    maps = tmp_path / "maps.npy"
    np.save(maps, np.random.default_rng(1).random((2, 3, 5)))
    photo = str(photos / "one.png")
    words = ["overlay", photo, "--maps", str(maps), "--out"]
    assert main([*words, str(tmp_path / "panel.png")]) == 0
    assert main([*words, str(tmp_path / "panel.svg")]) == 1
    assert main([*words, str(tmp_path / "drawn")]) == 0
    assert names(tmp_path / "drawn") == {"01_1.png", "02_2.png", "panel.png"}


def test_cropped_tiles_show_what_was_seen_alone(photos: Path, models: Path, tmp_path: Path) -> None:
    """A center crop of 24 x 40 from 48 x 40 pixels, so that tiles are lower."""
    out = tmp_path / "out"
    arguments = ["detect", str(photos / "two.png"), "--model", str(models / "detect.safetensors"),
                 "--threshold", "0", "--resize-mode", "crop", "--out", str(out)]  # fmt: skip
    heights = []
    for options in ([], ["--cropped"], []):
        assert main([*arguments, *options]) == 0
        with Image.open(out / "two.queries.png") as figure:
            heights.append(figure.height)
    whole, cropped, again = heights
    assert whole == again  # the same folder, drawn again
    assert cropped < whole - 20
