"""From images to words, panels and numbers, and what happens when something is wrong."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import visattn
from visattn.cli import main
from visattn.commands.caption import command
from visattn.commands.options.progress import progress_bar
from visattn.models.captioner import SPECIALS
from visattn.models.captioning.show_attend_tell import ShowAttendTell
from visattn.models.encoder import SmallEncoder
from visattn.viz.html.index_page import index_entries

Capsys = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A captioner that has learnt nothing: its words mean nothing, its maps lie as all maps do."""
    torch.manual_seed(4)
    encoder = SmallEncoder((24, 40), channels=12, coordinates=1.0)
    words = (*SPECIALS, "red", "green", "blue", "circle")
    path = tmp_path_factory.mktemp("weights") / "model.safetensors"
    model = ShowAttendTell(words, encoder, word_width=5, hidden=11, attention=3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)  # opinions, so that other images get other words
    visattn.save(model, path)
    return path


def draw(path: Path, size: tuple[int, int] = (31, 53), shade: int = 90) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (size[1], size[0]), (shade, 140, 60)).save(path)
    return path


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Three images of several shapes in a folder, and something that is none."""
    draw(tmp_path / "in" / "tall.png", (59, 29))
    draw(tmp_path / "in" / "wide.jpg", (23, 101))
    draw(tmp_path / "in" / "deeper" / "small.png", (13, 11), shade=200)
    (tmp_path / "in" / "notes.txt").write_text("no image")
    return tmp_path / "in"


def test_a_folder_becomes_lines_and_pages_panels_and_numbers(
    weights: Path, images: Path, tmp_path: Path, capsys: Capsys
) -> None:
    out = tmp_path / "new" / "out"
    assert main(["caption", str(images), "--weights", str(weights), "--out", str(out)]) == 0
    lines = dict(line.split("\t") for line in capsys.readouterr().out.splitlines())
    assert set(lines) == {"tall", "wide", "small"}
    written = {f"{name}.{kind}" for name in lines for kind in ("html", "png", "json", "npz")}
    assert {path.name for path in out.iterdir()} == {*written, "index.html"}
    cards = {entry.page: entry.caption for entry in index_entries((out / "index.html").read_text())}
    assert cards == {f"{name}.html": said for name, said in lines.items()}
    for name, said in lines.items():
        with Image.open(out / f"{name}.png") as panel:
            assert panel.width == 1200
        assert json.loads((out / f"{name}.json").read_text())["caption"] == said
        assert f'lang="" dir="auto">{said}</h1>' in (out / f"{name}.html").read_text()


def test_numbers_of_a_image_are_what_the_library_returns(
    weights: Path, images: Path, tmp_path: Path
) -> None:
    words = ["--weights", str(weights), "--out", str(tmp_path), "--beam", "1"]
    assert main(["caption", str(images / "wide.jpg"), *words]) == 0
    told = json.loads((tmp_path / "wide.json").read_text())
    model = visattn.load(weights)
    assert isinstance(model, ShowAttendTell)
    [known] = visattn.caption(model, images / "wide.jpg", beam=1)
    [wider] = visattn.caption(model, images / "wide.jpg")
    assert known.score < wider.score
    assert told["tokens"] == list(known.words)
    assert told["log_probabilities"] == pytest.approx(known.log_probabilities)
    assert told["gates"] == pytest.approx(known.gates)
    assert told["score"] == pytest.approx(known.score)
    assert told["finished"] is known.finished
    torch.testing.assert_close(torch.tensor(told["maps"]), known.maps.values)
    assert visattn.Geometry.from_dict(told["geometry"]) == known.maps.geometry
    assert told["image"] == str(images / "wide.jpg")


def test_maps_are_shares_and_one_for_each_word(weights: Path, images: Path, tmp_path: Path) -> None:
    assert main(["caption", str(images), "--weights", str(weights), "--out", str(tmp_path)]) == 0
    for path in tmp_path.glob("*.json"):
        told = json.loads(path.read_text())
        maps = np.array(told["maps"])
        assert len(maps) == len(told["tokens"]) == len(told["gates"])
        np.testing.assert_allclose(maps.sum(axis=(1, 2)), 1, atol=1e-5)


def test_geometry_tells_how_the_image_was_seen(weights: Path, images: Path, tmp_path: Path) -> None:
    words = ["caption", str(images / "tall.png"), "--weights", str(weights)]
    seen = {}
    for fit in ("crop", "squash", "pad"):
        assert main([*words, "--fit", fit, "--out", str(tmp_path / fit)]) == 0
        told = json.loads((tmp_path / fit / "tall.json").read_text())
        assert told["geometry"]["image_size"] == [59, 29]
        seen[fit] = told["geometry"]["region"]
    assert seen["squash"] == seen["pad"] == [0, 0, 29, 59]
    left, top, right, bottom = seen["crop"]
    assert (left, right) == (0, 29)
    assert 10 < top < bottom < 49


@pytest.mark.parametrize("batch", ["1", "2", "16"])
def test_the_batch_changes_nothing(batch: str, weights: Path, images: Path, capsys: Capsys) -> None:
    assert main(["caption", str(images), "--weights", str(weights)]) == 0
    whole = capsys.readouterr().out
    assert main(["caption", str(images), "--weights", str(weights), "--batch", batch]) == 0
    assert capsys.readouterr().out == whole


def test_large_images_do_not_wait_for_a_full_batch(
    weights: Path, images: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    sizes: list[int] = []
    told = command._caption
    monkeypatch.setattr(command, "_PIXELS_PER_BATCH", 2500)
    monkeypatch.setattr(
        command, "_caption", lambda *given: sizes.append(len(given[1])) or told(*given)
    )
    assert main(["caption", str(images), "--weights", str(weights)]) == 0
    assert sizes == [2, 1]  # 59 * 29 + 23 * 101 pixels are too many to wait for 13 * 11 more
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_without_out_nothing_is_written(
    weights: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.chdir(tmp_path)
    assert main(["caption", str(images), "--weights", str(weights)]) == 0
    assert sorted(tmp_path.rglob("*")) == before


def test_bad_images_are_passed_over_and_listed(weights: Path, images: Path, capsys: Capsys) -> None:
    (images / "empty.png").touch()
    (images / "wrong.jpg").write_text("<html>")
    assert main(["caption", str(images), "--weights", str(weights)]) == 1
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 3
    empty, wrong, total = err.splitlines()
    assert empty.startswith(f"visattn: skipped {images / 'empty.png'}: ")
    assert wrong.startswith(f"visattn: skipped {images / 'wrong.jpg'}: ")
    assert total == "visattn: 2 of 5 images skipped"


def test_strict_stops_at_the_first_bad_image(weights: Path, images: Path, capsys: Capsys) -> None:
    (images / "big.png").touch()
    (images / "wrong.jpg").write_text("<html>")
    words = ["caption", str(images), "--weights", str(weights), "--strict"]
    assert main(words) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"visattn: {images / 'big.png'}: ")
    assert len(err.splitlines()) == 1


def test_only_bad_images_give_no_words(weights: Path, tmp_path: Path, capsys: Capsys) -> None:
    (tmp_path / "a.png").touch()
    assert main(["caption", str(tmp_path), "--weights", str(weights)]) == 1
    assert capsys.readouterr().out == ""


def test_without_weights_it_says_how_to_get_some(images: Path, capsys: Capsys) -> None:
    assert main(["caption", str(images)]) == 2
    err = capsys.readouterr().err
    assert "--weights is missing" in err
    assert "make demo" in err
    assert "visattn fit --config FILE.yaml, then --run FOLDER" in err


def test_images_that_do_not_exist(weights: Path, tmp_path: Path, capsys: Capsys) -> None:
    assert main(["caption", str(tmp_path / "no.png"), "--weights", str(weights)]) == 1
    assert "no.png does not exist" in capsys.readouterr().err


def test_weights_that_do_not_exist(images: Path, tmp_path: Path, capsys: Capsys) -> None:
    words = ["caption", str(images), "--weights", str(tmp_path / "no.safetensors")]
    assert main(words) == 1
    assert "no.safetensors" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff" * 99, b"PK\x03\x04 a pickle in a zip"])
def test_weights_that_are_none(
    content: bytes, images: Path, tmp_path: Path, capsys: Capsys
) -> None:
    (tmp_path / "m.safetensors").write_bytes(content)
    words = ["caption", str(images), "--weights", str(tmp_path / "m.safetensors")]
    assert main(words) == 1
    assert re.search(
        r"m\.safetensors is (damaged or )?no safetensors file", capsys.readouterr().err
    )


def test_weights_that_were_cut_short(
    weights: Path, images: Path, tmp_path: Path, capsys: Capsys
) -> None:
    (tmp_path / "m.safetensors").write_bytes(weights.read_bytes()[:-7])
    words = ["caption", str(images), "--weights", str(tmp_path / "m.safetensors")]
    assert main(words) == 1
    assert "m.safetensors is damaged" in capsys.readouterr().err


def test_a_model_that_says_no_words(images: Path, tmp_path: Path, capsys: Capsys) -> None:
    visattn.save(SmallEncoder((24, 24), channels=12), tmp_path / "m.safetensors")
    words = ["caption", str(images), "--weights", str(tmp_path / "m.safetensors")]
    assert main(words) == 1
    assert "holds a SmallEncoder, which says no words" in capsys.readouterr().err


@pytest.mark.parametrize("device", ["meteor", "cuda:97"])
def test_a_device_that_is_not_there(
    device: str, weights: Path, images: Path, capsys: Capsys
) -> None:
    words = ["caption", str(images), "--weights", str(weights), "--device", device]
    assert main(words) == 1
    assert f"--device {device} cannot be used here: " in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["--beam", "0"], ["--batch", "-1"], ["--beam", "two"], ["--best", "0"]]
)
def test_numbers_without_sense_are_usage_errors(
    words: list[str], weights: Path, images: Path, capsys: Capsys
) -> None:
    assert main(["caption", str(images), "--weights", str(weights), *words]) == 2
    assert "must be a whole number from 1" in capsys.readouterr().err


def test_a_folder_that_cannot_be_is_named_before_the_work(
    weights: Path, images: Path, tmp_path: Path, capsys: Capsys
) -> None:
    (tmp_path / "file").touch()
    words = ["--weights", str(weights), "--out", str(tmp_path / "file" / "out")]
    assert main(["caption", str(images), *words]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "cannot be written: Not a directory" in err


@pytest.mark.parametrize("words", [["--best", "2"], ["--gif"], ["--regions", "boxes.json"]])
def test_what_is_written_needs_a_folder(
    words: list[str], weights: Path, images: Path, capsys: Capsys
) -> None:
    assert main(["caption", str(images), "--weights", str(weights), *words]) == 2
    assert f"{words[0]} is about what is written; --out DIR says where" in capsys.readouterr().err


def test_more_captions_than_are_searched(
    weights: Path, images: Path, tmp_path: Path, capsys: Capsys
) -> None:
    words = ["--weights", str(weights), "--out", str(tmp_path / "out"), "--beam", "2", "--best"]
    assert main(["caption", str(images), *words, "3"]) == 2
    assert "--best 3 captions need a --beam as wide, it is 2" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("asked", "count"), [([], 5), (["--best", "2"], 2), (["--beam", "3"], 3), (["--beam", "6"], 5)]
)
def test_candidates_stand_beside_the_best_caption(
    asked: list[str], count: int, weights: Path, images: Path, tmp_path: Path
) -> None:
    words = ["--weights", str(weights), "--out", str(tmp_path), *asked]
    assert main(["caption", str(images / "wide.jpg"), *words]) == 0
    told = json.loads((tmp_path / "wide.json").read_text())
    every = [told, *told["alternatives"]]
    assert len({one["caption"] for one in every}) == len(every) == count
    with np.load(tmp_path / "wide.npz", allow_pickle=False) as arrays:
        for number, one in enumerate(every, start=1):
            end = "" if number == 1 else f"_{number}"
            assert arrays[f"words{end}"].tolist() == one["tokens"]
            np.testing.assert_allclose(arrays[f"maps{end}"], one["maps"])
            np.testing.assert_allclose(arrays[f"gates{end}"], one["gates"])
            np.testing.assert_allclose(arrays[f"log_probabilities{end}"], one["log_probabilities"])
            assert arrays[f"score{end}"] == pytest.approx(one["score"])
        assert json.loads(str(arrays["geometry"])) == told["geometry"]
        assert f"words_{count + 1}" not in arrays


def test_a_image_may_also_move(weights: Path, images: Path, tmp_path: Path) -> None:
    words = ["--weights", str(weights), "--out", str(tmp_path / "out"), "--gif"]
    assert main(["caption", str(images / "wide.jpg"), *words]) == 0
    count = len(json.loads((tmp_path / "out" / "wide.json").read_text())["tokens"])
    with Image.open(tmp_path / "out" / "wide.gif") as moving:
        assert getattr(moving, "n_frames", 1) == count + 2


def test_regions_are_shown_and_judged_where_a_caption_names_them(
    weights: Path, images: Path, tmp_path: Path
) -> None:
    words = ["--weights", str(weights), "--out", str(tmp_path)]
    assert main(["caption", str(images), *words]) == 0
    told = json.loads((tmp_path / "wide.json").read_text())
    assert told["phrases"] == []
    said = told["tokens"][0]
    phrase = {"first_word": 0, "words": 1, "types": [], "boxes": [[0, 0, 1, 0.5]]}
    known = {"wide.jpg": [{"sentence": f"{said} thing", "phrases": [phrase]}]}
    (tmp_path / "boxes.json").write_text(json.dumps(known))
    words += ["--regions", str(tmp_path / "boxes.json")]
    assert main(["caption", str(images), *words]) == 0
    told = json.loads((tmp_path / "wide.json").read_text())
    found = told["phrases"][0]
    assert (found["text"], found["first"], found["boxes"]) == (said, 0, [[0.0, 0.0, 1.0, 0.5]])
    top, middle, _ = np.array(told["maps"][0]).sum(axis=1).tolist()
    assert found["correctness"] == [pytest.approx(top + middle / 2, abs=1e-4)]
    assert '"boxes":[[0.0,0.0,1.0,0.5]]' in (tmp_path / "wide.html").read_text()
    assert json.loads((tmp_path / "tall.json").read_text())["phrases"] == []


def test_regions_of_other_photos_are_an_error(
    weights: Path, images: Path, tmp_path: Path, capsys: Capsys
) -> None:
    (tmp_path / "boxes.json").write_text('{"other.jpg": []}')
    words = ["--weights", str(weights), "--out", str(tmp_path / "out")]
    regions = ["--regions", str(tmp_path / "boxes.json")]
    assert main(["caption", str(images), *words, *regions]) == 1
    assert "knows none of the images by their file names; it has other.jpg" in (
        capsys.readouterr().err
    )


def test_files_that_cannot_be_written_cost_the_others_nothing(
    weights: Path, images: Path, tmp_path: Path, capsys: Capsys
) -> None:
    (tmp_path / "small.html").mkdir()  # where a page should be
    words = ["--weights", str(weights), "--out", str(tmp_path)]
    assert main(["caption", str(images), *words]) == 1
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 3
    lost, count = err.splitlines()
    assert lost.startswith(f"visattn: not written: {images / 'deeper' / 'small.png'}: ")
    assert count == "visattn: 1 of 3 images not written"
    pages = [entry.page for entry in index_entries((tmp_path / "index.html").read_text())]
    assert pages == ["tall.html", "wide.html"]


def test_what_is_there_when_it_is_interrupted_is_whole_and_in_the_index(
    weights: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, left = command._caption, iter([True, True])

    def interrupted(*given: Any) -> list[str]:
        if not next(left, False):
            raise KeyboardInterrupt
        return told(*given)

    monkeypatch.setattr(command, "_caption", interrupted)
    words = ["--weights", str(weights), "--out", str(tmp_path), "--batch", "1"]
    with pytest.raises(KeyboardInterrupt):
        command.main([str(images), *words])
    pages = [entry.page for entry in index_entries((tmp_path / "index.html").read_text())]
    assert len(pages) == 2
    assert {path.name for path in tmp_path.glob("*.html")} == {*pages, "index.html"}
    assert not list(tmp_path.glob(".visattn*"))


def test_a_second_run_joins_the_first(weights: Path, images: Path, tmp_path: Path) -> None:
    words = ["--weights", str(weights), "--out", str(tmp_path)]
    for name in ("tall.png", "wide.jpg", "tall.png"):
        assert main(["caption", str(images / name), *words]) == 0
    entries = index_entries((tmp_path / "index.html").read_text())
    assert [entry.name for entry in entries] == ["tall", "wide"]
    (tmp_path / "tall.html").unlink()
    assert main(["caption", str(images / "deeper" / "small.png"), *words]) == 0
    entries = index_entries((tmp_path / "index.html").read_text())
    assert [entry.name for entry in entries] == ["small", "wide"]


def test_an_index_that_others_wrote_is_left_alone(
    weights: Path, images: Path, tmp_path: Path, capsys: Capsys
) -> None:
    (tmp_path / "index.html").write_text("<h1>My site</h1>")
    words = ["--weights", str(weights), "--out", str(tmp_path)]
    assert main(["caption", str(images), *words]) == 1
    assert "has an index.html that visattn did not write" in capsys.readouterr().err
    assert (tmp_path / "index.html").read_text() == "<h1>My site</h1>"
    assert list(tmp_path.glob("*.json")) == []


def test_a_image_called_index_gets_a_page_beside_the_index(
    weights: Path, tmp_path: Path, capsys: Capsys
) -> None:
    image = draw(tmp_path / "in" / "index.png")
    words = ["--weights", str(weights), "--out", str(tmp_path / "out")]
    assert main(["caption", str(image), *words]) == 0
    assert capsys.readouterr().out.startswith("index_2\t")
    (entry,) = index_entries((tmp_path / "out" / "index.html").read_text())
    assert entry.page == "index_2.html"


@pytest.mark.parametrize("out", [".", "../in", "deeper/.."])
def test_a_panel_never_takes_the_place_of_a_image(
    out: str, weights: Path, images: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    before = (images / "tall.png").read_bytes()
    monkeypatch.chdir(images)
    assert main(["caption", "tall.png", "--weights", str(weights), "--out", out]) == 1
    assert "in place of the image" in capsys.readouterr().err
    assert (images / "tall.png").read_bytes() == before


def test_images_of_the_same_name_keep_apart(weights: Path, tmp_path: Path, capsys: Capsys) -> None:
    for folder in ("a", "b"):
        for name in ("beach.png", "beach.jpg", f"only_{folder}.png"):
            draw(tmp_path / folder / name)
    words = ["--weights", str(weights), "--out", str(tmp_path / "out")]
    assert main(["caption", str(tmp_path / "a"), str(tmp_path / "b"), *words]) == 0
    names = [line.split("\t")[0] for line in capsys.readouterr().out.splitlines()]
    assert len(set(names)) == 6
    assert {"only_a", "only_b"} <= set(names)
    assert {path.stem for path in (tmp_path / "out").glob("*.png")} == set(names)


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
    with progress_bar(count) as progress:
        assert (progress is not None) is shown


def test_progress_stays_off_stdout(
    weights: Path, images: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main(["caption", str(images), "--weights", str(weights)]) == 0
    out = capsys.readouterr().out
    assert sorted(line.split("\t")[0] for line in out.splitlines()) == ["small", "tall", "wide"]
