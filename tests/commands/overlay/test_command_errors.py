"""Errors of `visattn overlay`: messages, exit codes and skipped images."""

import re
from pathlib import Path

import pytest
import torch

import visattn
from visattn.cli import main
from visattn.models.base import SmallEncoder
from visattn.models.captioning.show_attend_tell import ShowAttendTell
from visattn.models.resnet import AttentionResNet
from visattn.results.kinds import SPECIAL_TOKENS

Capsys = pytest.CaptureFixture[str]
CLASSES = ("ant", "bee", "cat")


@pytest.fixture(scope="module")
def cnn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(4)
    path = tmp_path_factory.mktemp("weights") / "cnn.safetensors"
    visattn.save(AttentionResNet(CLASSES, depth=8, stem_width=4, img_size=(32, 40)), path)
    return path


def run(images: Path, model: Path | str, out: Path, *words: str) -> int:
    return main(["overlay", str(images), "--model", str(model), "--out", str(out), *words])


def contents(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def test_unreadable_images_are_skipped_and_reported(
    cnn: Path, photos: Path, tmp_path: Path, capsys: Capsys
) -> None:
    (photos / "empty.png").touch()
    (photos / "wrong.jpg").write_text("<html>")
    assert run(photos, cnn, tmp_path / "out", "--method", "gradcam") == 1
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 3
    assert err.splitlines()[-2] == "visattn: 2 of 5 images skipped"
    assert run(photos, cnn, tmp_path / "out", "--method", "gradcam", "--strict") == 1
    assert "empty.png: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--method", "gradcan"], "got 'gradcan'; did you mean gradcam"),
        (["--method", "rollout"], "rollout does not fit .*supported methods: gradcam"),
        (["--method", "gradcam", "--target", "3"], "must be a class index, 0 to 2; got 3"),
        (["--method", "gradcam", "--target", "bees"], "got 'bees'; did you mean bee"),
        (
            ["--method", "gradcam", "--method-arg", "num_masks=3"],
            "none of gradcam has an argument 'num_masks'",
        ),
        (["--method", "gradcam", "--layers", "99"], "99"),
        (["--method", "rise", "--heads", "0"], "--heads is for attention"),
        (["--colormap", "mud"], "unknown colormap 'mud'"),
    ],
)
def test_invalid_requests_end_with_a_message(
    words: list[str], reason: str, cnn: Path, photos: Path, tmp_path: Path, capsys: Capsys
) -> None:
    assert run(photos / "wide.png", cnn, tmp_path, *words) == 1
    err = capsys.readouterr().err
    assert "Traceback" not in err
    assert len(err.splitlines()) == 1
    assert re.search(reason, err)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("timm:resnet81", "unknown timm model 'resnet81'; did you mean resnet18"),
        ("torchvision:vit_b_61", "Unknown model vit_b_61"),
        ("resnet18", "no model is named 'resnet18'; a model is named by"),
        ("no.safetensors", "no.safetensors"),
        ("hf:nowhere", "nowhere must be a directory"),
    ],
)
def test_an_unknown_model_is_refused(
    model: str, reason: str, photos: Path, tmp_path: Path, capsys: Capsys
) -> None:
    assert run(photos, model, tmp_path / "out") == 1
    assert reason in capsys.readouterr().err


def test_random_weights_are_reported_and_reproducible(
    photos: Path, tmp_path: Path, capsys: Capsys
) -> None:
    words = ("--method", "gradcam", "--save", "overlay")
    for out in ("one", "two"):
        assert run(photos / "wide.png", "timm:test_resnet", tmp_path / out, *words) == 0
        assert "the weights are random" in capsys.readouterr().err
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_a_captioner_is_refused_with_a_hint(photos: Path, tmp_path: Path, capsys: Capsys) -> None:
    words = (*SPECIAL_TOKENS, "red")
    model = ShowAttendTell(words, SmallEncoder((24, 24), channels=8), hidden_size=11)
    visattn.save(model, tmp_path / "m.safetensors")
    assert run(photos, tmp_path / "m.safetensors", tmp_path / "out") == 1
    assert "use visattn caption to show the attention of its words" in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["--model", "timm:resnet18", "--maps", "a.npy"]])
def test_model_and_maps_exclude_each_other(
    words: list[str], photos: Path, tmp_path: Path, capsys: Capsys
) -> None:
    assert main(["overlay", str(photos), "--out", str(tmp_path / "out"), *words]) == 2
    assert "name a model or a file of maps, with" in capsys.readouterr().err


def test_the_output_folder_cannot_be_an_input_folder(
    cnn: Path, photos: Path, capsys: Capsys
) -> None:
    assert run(photos, cnn, photos, "--method", "gradcam") == 1
    assert "is searched for images: the next run would read" in capsys.readouterr().err


def test_unwritable_folders_and_foreign_index_pages_are_refused(
    cnn: Path, photos: Path, tmp_path: Path, capsys: Capsys
) -> None:
    (tmp_path / "file").touch()
    assert run(photos, cnn, tmp_path / "file" / "out") == 1
    assert "cannot be written: Not a directory" in capsys.readouterr().err
    (tmp_path / "index.html").write_text("<p>mine")
    assert run(photos, cnn, tmp_path, "--explorer") == 1
    assert "holds index.html, which would be replaced" in capsys.readouterr().err


def test_an_unwritable_file_skips_one_image(
    cnn: Path, photos: Path, tmp_path: Path, capsys: Capsys
) -> None:
    (tmp_path / "out" / "tall.gradcam.npy").mkdir(parents=True)
    words = ("--method", "gradcam", "--overwrite")
    assert run(photos, cnn, tmp_path / "out", *words) == 1
    out, err = capsys.readouterr()
    assert [line.split("\t")[0] for line in out.splitlines()] == ["tall", "wide", "deeper/dot"]
    assert "not written:" in err
    assert "tall.gradcam.npy" in err
