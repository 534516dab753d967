"""From pictures to words, panels and numbers, and what happens when something is wrong."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import visattn
from visattn.cli import main
from visattn.commands import caption as command
from visattn.models.captioners import SPECIALS
from visattn.models.encoders import SmallEncoder
from visattn.models.soft_attention import SoftAttentionCaptioner

Capsys = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A captioner that has learnt nothing: its words mean nothing, its maps lie as all maps do."""
    torch.manual_seed(4)
    encoder = SmallEncoder((24, 40), channels=12, coordinates=1.0)
    words = (*SPECIALS, "red", "green", "blue", "circle")
    path = tmp_path_factory.mktemp("weights") / "model.safetensors"
    model = SoftAttentionCaptioner(words, encoder, word_width=5, hidden=11, attention=3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)  # opinions, so that other pictures get other words
    visattn.save(model, path)
    return path


def draw(path: Path, size: tuple[int, int] = (31, 53), shade: int = 90) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (size[1], size[0]), (shade, 140, 60)).save(path)
    return path


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Three pictures of several shapes in a folder, and something that is none."""
    draw(tmp_path / "in" / "tall.png", (59, 29))
    draw(tmp_path / "in" / "wide.jpg", (23, 101))
    draw(tmp_path / "in" / "deeper" / "small.png", (13, 11), shade=200)
    (tmp_path / "in" / "notes.txt").write_text("no picture")
    return tmp_path / "in"


def test_a_folder_becomes_lines_panels_and_numbers(
    weights: Path, pictures: Path, tmp_path: Path, capsys: Capsys
) -> None:
    out = tmp_path / "new" / "out"
    assert main(["caption", str(pictures), "--weights", str(weights), "--out", str(out)]) == 0
    lines = dict(line.split("\t") for line in capsys.readouterr().out.splitlines())
    assert set(lines) == {"tall", "wide", "small"}
    written = {f"{name}.{kind}" for name in lines for kind in ("png", "json")}
    assert {path.name for path in out.iterdir()} == written
    for name, said in lines.items():
        with Image.open(out / f"{name}.png") as panel:
            assert panel.width == 1200
        assert json.loads((out / f"{name}.json").read_text())["caption"] == said


def test_numbers_of_a_picture_are_what_the_library_returns(
    weights: Path, pictures: Path, tmp_path: Path
) -> None:
    words = ["--weights", str(weights), "--out", str(tmp_path), "--beam", "1"]
    assert main(["caption", str(pictures / "wide.jpg"), *words]) == 0
    told = json.loads((tmp_path / "wide.json").read_text())
    model = visattn.load(weights)
    assert isinstance(model, SoftAttentionCaptioner)
    [known] = visattn.caption(model, pictures / "wide.jpg", beam=1)
    [wider] = visattn.caption(model, pictures / "wide.jpg")
    assert known.score < wider.score
    assert told["tokens"] == list(known.words)
    assert told["log_probabilities"] == pytest.approx(known.log_probabilities)
    assert told["gates"] == pytest.approx(known.gates)
    assert told["score"] == pytest.approx(known.score)
    assert told["finished"] is known.finished
    torch.testing.assert_close(torch.tensor(told["maps"]), known.maps.values)
    assert visattn.Geometry.from_dict(told["geometry"]) == known.maps.geometry
    assert told["picture"] == str(pictures / "wide.jpg")


def test_maps_are_shares_and_one_for_each_word(
    weights: Path, pictures: Path, tmp_path: Path
) -> None:
    assert main(["caption", str(pictures), "--weights", str(weights), "--out", str(tmp_path)]) == 0
    for path in tmp_path.glob("*.json"):
        told = json.loads(path.read_text())
        maps = np.array(told["maps"])
        assert len(maps) == len(told["tokens"]) == len(told["gates"])
        np.testing.assert_allclose(maps.sum(axis=(1, 2)), 1, atol=1e-5)


def test_geometry_tells_how_the_picture_was_seen(
    weights: Path, pictures: Path, tmp_path: Path
) -> None:
    words = ["caption", str(pictures / "tall.png"), "--weights", str(weights)]
    seen = {}
    for fit in ("crop", "squash", "pad"):
        assert main([*words, "--fit", fit, "--out", str(tmp_path / fit)]) == 0
        told = json.loads((tmp_path / fit / "tall.json").read_text())
        assert told["geometry"]["picture_size"] == [59, 29]
        seen[fit] = told["geometry"]["region"]
    assert seen["squash"] == seen["pad"] == [0, 0, 29, 59]
    left, top, right, bottom = seen["crop"]
    assert (left, right) == (0, 29)
    assert 10 < top < bottom < 49


@pytest.mark.parametrize("batch", ["1", "2", "16"])
def test_the_batch_changes_nothing(
    batch: str, weights: Path, pictures: Path, capsys: Capsys
) -> None:
    assert main(["caption", str(pictures), "--weights", str(weights)]) == 0
    whole = capsys.readouterr().out
    assert main(["caption", str(pictures), "--weights", str(weights), "--batch", batch]) == 0
    assert capsys.readouterr().out == whole


def test_large_pictures_do_not_wait_for_a_full_batch(
    weights: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    sizes: list[int] = []
    told = command._caption
    monkeypatch.setattr(command, "_PIXELS_PER_BATCH", 2500)
    monkeypatch.setattr(
        command, "_caption", lambda *given: sizes.append(len(given[1])) or told(*given)
    )
    assert main(["caption", str(pictures), "--weights", str(weights)]) == 0
    assert sizes == [2, 1]  # 59 * 29 + 23 * 101 pixels are too many to wait for 13 * 11 more
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_without_out_nothing_is_written(
    weights: Path, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.chdir(tmp_path)
    assert main(["caption", str(pictures), "--weights", str(weights)]) == 0
    assert sorted(tmp_path.rglob("*")) == before


def test_bad_pictures_are_passed_over_and_listed(
    weights: Path, pictures: Path, capsys: Capsys
) -> None:
    (pictures / "empty.png").touch()
    (pictures / "wrong.jpg").write_text("<html>")
    assert main(["caption", str(pictures), "--weights", str(weights)]) == 1
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 3
    empty, wrong, total = err.splitlines()
    assert empty.startswith(f"visattn: skipped {pictures / 'empty.png'}: ")
    assert wrong.startswith(f"visattn: skipped {pictures / 'wrong.jpg'}: ")
    assert total == "visattn: 2 of 5 pictures skipped"


def test_strict_stops_at_the_first_bad_picture(
    weights: Path, pictures: Path, capsys: Capsys
) -> None:
    (pictures / "big.png").touch()
    (pictures / "wrong.jpg").write_text("<html>")
    words = ["caption", str(pictures), "--weights", str(weights), "--strict"]
    assert main(words) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"visattn: {pictures / 'big.png'}: ")
    assert len(err.splitlines()) == 1


def test_only_bad_pictures_give_no_words(weights: Path, tmp_path: Path, capsys: Capsys) -> None:
    (tmp_path / "a.png").touch()
    assert main(["caption", str(tmp_path), "--weights", str(weights)]) == 1
    assert capsys.readouterr().out == ""


def test_without_weights_it_says_how_to_get_some(pictures: Path, capsys: Capsys) -> None:
    assert main(["caption", str(pictures)]) == 2
    err = capsys.readouterr().err
    assert "--weights is missing" in err
    assert "make demo" in err
    assert "visattn export" in err


def test_pictures_that_do_not_exist(weights: Path, tmp_path: Path, capsys: Capsys) -> None:
    assert main(["caption", str(tmp_path / "no.png"), "--weights", str(weights)]) == 1
    assert "no.png does not exist" in capsys.readouterr().err


def test_weights_that_do_not_exist(pictures: Path, tmp_path: Path, capsys: Capsys) -> None:
    words = ["caption", str(pictures), "--weights", str(tmp_path / "no.safetensors")]
    assert main(words) == 1
    assert "no.safetensors" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff" * 99, b"PK\x03\x04 a pickle in a zip"])
def test_weights_that_are_none(
    content: bytes, pictures: Path, tmp_path: Path, capsys: Capsys
) -> None:
    (tmp_path / "m.safetensors").write_bytes(content)
    words = ["caption", str(pictures), "--weights", str(tmp_path / "m.safetensors")]
    assert main(words) == 1
    assert "m.safetensors is damaged or no safetensors file" in capsys.readouterr().err


def test_weights_that_were_cut_short(
    weights: Path, pictures: Path, tmp_path: Path, capsys: Capsys
) -> None:
    (tmp_path / "m.safetensors").write_bytes(weights.read_bytes()[:-7])
    words = ["caption", str(pictures), "--weights", str(tmp_path / "m.safetensors")]
    assert main(words) == 1
    assert "m.safetensors is damaged" in capsys.readouterr().err


def test_a_model_that_says_no_words(pictures: Path, tmp_path: Path, capsys: Capsys) -> None:
    visattn.save(SmallEncoder((24, 24), channels=12), tmp_path / "m.safetensors")
    words = ["caption", str(pictures), "--weights", str(tmp_path / "m.safetensors")]
    assert main(words) == 1
    assert "holds a SmallEncoder, which says no words" in capsys.readouterr().err


@pytest.mark.parametrize("device", ["meteor", "cuda:97"])
def test_a_device_that_is_not_there(
    device: str, weights: Path, pictures: Path, capsys: Capsys
) -> None:
    words = ["caption", str(pictures), "--weights", str(weights), "--device", device]
    assert main(words) == 1
    assert f"--device {device} cannot be used here: " in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--beam", "0"], ["--batch", "-1"], ["--beam", "two"]])
def test_numbers_without_sense_are_usage_errors(
    words: list[str], weights: Path, pictures: Path, capsys: Capsys
) -> None:
    assert main(["caption", str(pictures), "--weights", str(weights), *words]) == 2
    assert "must be a whole number from 1" in capsys.readouterr().err


def test_a_folder_that_cannot_be_is_named_before_the_work(
    weights: Path, pictures: Path, tmp_path: Path, capsys: Capsys
) -> None:
    (tmp_path / "file").touch()
    words = ["--weights", str(weights), "--out", str(tmp_path / "file" / "out")]
    assert main(["caption", str(pictures), *words]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "cannot be written: Not a directory" in err


@pytest.mark.parametrize("out", [".", "../in", "deeper/.."])
def test_a_panel_never_takes_the_place_of_a_picture(
    out: str, weights: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    before = (pictures / "tall.png").read_bytes()
    monkeypatch.chdir(pictures)
    assert main(["caption", "tall.png", "--weights", str(weights), "--out", out]) == 1
    assert "in place of the picture" in capsys.readouterr().err
    assert (pictures / "tall.png").read_bytes() == before


def test_pictures_of_the_same_name_keep_apart(
    weights: Path, tmp_path: Path, capsys: Capsys
) -> None:
    for folder in ("a", "b"):
        for name in ("beach.png", "beach.jpg", f"only_{folder}.png"):
            draw(tmp_path / folder / name)
    words = ["--weights", str(weights), "--out", str(tmp_path / "out")]
    assert main(["caption", str(tmp_path / "a"), str(tmp_path / "b"), *words]) == 0
    names = [line.split("\t")[0] for line in capsys.readouterr().out.splitlines()]
    assert len(set(names)) == 6
    assert {"only_a", "only_b"} <= set(names)
    assert {path.stem for path in (tmp_path / "out").glob("*.png")} == set(names)


parts = st.sampled_from(["a", "A", "b", "..", "a_b", "a_2", "A_2"])
files = st.builds(
    lambda folders, stem, suffix: Path(*folders, stem + suffix),
    st.lists(parts, max_size=3),
    parts.filter(lambda part: part != ".."),
    st.sampled_from([".png", ".jpg"]),
)


@given(st.lists(files, min_size=1, max_size=12, unique=True))
def test_every_picture_gets_a_file_of_its_own(paths: list[Path]) -> None:
    names = command._names(paths)
    assert list(names) == paths
    assert len({name.casefold() for name in names.values()}) == len(paths)
    assert not any(os.sep in name for name in names.values())


def test_a_name_alone_of_its_kind_is_kept() -> None:
    names = command._names([Path("x/dog.png"), Path("y/cat.png"), Path("z/cat.png")])
    assert list(names.values()) == ["dog", "y_cat", "z_cat"]


def test_a_name_is_one_line_of_print() -> None:
    assert list(command._names([Path("two\nlines\tand\udcff.png")]).values()) == ["two_lines_and_"]


@pytest.mark.parametrize(
    ("count", "err", "out", "shown"),
    [
        (2, True, False, True),
        (1, True, False, False),
        (2, False, False, False),
        (2, True, True, False),
    ],
)
def test_progress_shows_only_where_it_helps(
    count: int, err: bool, out: bool, shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: err)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: out)
    with command._progress(count) as progress:
        assert (progress is not None) is shown


def test_progress_stays_off_stdout(
    weights: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main(["caption", str(pictures), "--weights", str(weights)]) == 0
    out = capsys.readouterr().out
    assert sorted(line.split("\t")[0] for line in out.splitlines()) == ["small", "tall", "wide"]
