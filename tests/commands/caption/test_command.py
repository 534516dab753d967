"""`visattn caption`: captions, panels, arrays and errors."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from index_cards import parse_index_page
from PIL import Image
from visattn.commands.caption.job import BeamSearchJob

import visattn
from visattn.cli import main
from visattn.commands import run as engine
from visattn.commands.caption import command
from visattn.models.base import SmallEncoder
from visattn.models.captioning.show_attend_tell import ShowAttendTell
from visattn.models.captioning.transformer import TransformerCaptioner
from visattn.results.kinds import SPECIAL_TOKENS
from visattn.results.records import from_dict
from visattn.viz import text

Capsys = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained captioner."""
    torch.manual_seed(4)
    encoder = SmallEncoder((24, 40), channels=12, coord_scale=1.0)
    words = (*SPECIAL_TOKENS, "red", "green", "blue", "circle")
    path = tmp_path_factory.mktemp("weights") / "model.safetensors"
    model = ShowAttendTell(words, encoder, embed_dim=5, hidden_size=11, attention_dim=3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)  # large weights, so that different images have different captions
    visattn.save(model, path)
    return path


def draw(path: Path, size: tuple[int, int] = (31, 53), shade: int = 90) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (size[1], size[0]), (shade, 140, 60)).save(path)
    return path


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A folder with three images of different shapes and a file that is no image."""
    draw(tmp_path / "in" / "tall.png", (59, 29))
    draw(tmp_path / "in" / "wide.jpg", (23, 101))
    draw(tmp_path / "in" / "deeper" / "small.png", (13, 11), shade=200)
    (tmp_path / "in" / "notes.txt").write_text("no image")
    return tmp_path / "in"


def test_a_folder_yields_lines_pages_panels_and_arrays(
    weights: Path, images: Path, tmp_path: Path, capsys: Capsys
) -> None:
    out = tmp_path / "new" / "out"
    assert main(["caption", str(images), "--weights", str(weights), "--out", str(out)]) == 0
    lines = dict(line.split("\t") for line in capsys.readouterr().out.splitlines())
    assert set(lines) == {"tall", "wide", "deeper/small"}
    written = {f"{name}.{kind}" for name in lines for kind in ("html", "png", "json", "npz")}
    files = {path.relative_to(out) for path in out.rglob("*") if path.is_file()}
    files = {path.as_posix() for path in files}
    assert files == {*written, "index.html", "caption.csv"}
    cards = {
        entry.page: entry.caption for entry in parse_index_page((out / "index.html").read_text())
    }
    assert cards == {f"{name}.html": output for name, output in lines.items()}
    for name, output in lines.items():
        with Image.open(out / f"{name}.png") as panel:
            assert panel.width == 1400
        assert json.loads((out / f"{name}.json").read_text())["caption"] == output
        assert f'lang="" dir="auto">{output}</h1>' in (out / f"{name}.html").read_text()


def test_the_captions_of_a_folder_are_scored(
    weights: Path, images: Path, tmp_path: Path, capsys: Capsys
) -> None:
    out, references = tmp_path / "out", tmp_path / "references.txt"
    assert main(["caption", str(images), "--weights", str(weights), "--out", str(out)]) == 0
    lines = dict(line.split("\t") for line in capsys.readouterr().out.splitlines())
    files = {"tall": "tall.png", "wide": "wide.jpg", "deeper/small": "deeper/small.png"}
    references.write_text("".join(f"{files[name]}#0\t{said}\n" for name, said in lines.items()))
    (out / "other.json").write_text("{}")
    scores = tmp_path / "scores.json"
    assert main(["score", "captions", str(out), str(references), "--out", str(scores)]) == 0
    assert json.loads(scores.read_text())["scores"]["ROUGE-L"] == pytest.approx(1)
    assert main(["score", "captions", str(images), str(references)]) == 1
    assert "in holds no results of visattn caption: give the" in capsys.readouterr().err


def test_saved_arrays_match_the_library(weights: Path, images: Path, tmp_path: Path) -> None:
    words = ["--weights", str(weights), "--out", str(tmp_path), "--beam-size", "1"]
    assert main(["caption", str(images / "wide.jpg"), *words]) == 0
    record = json.loads((tmp_path / "wide.json").read_text())
    model = visattn.load(weights)
    assert isinstance(model, ShowAttendTell)
    [known] = visattn.caption(model, images / "wide.jpg", beam_size=1)
    [wider] = visattn.caption(model, images / "wide.jpg")
    assert known.score < wider.score
    assert record["words"] == list(known.words)
    assert record["log_probs"] == pytest.approx(known.log_probs)
    assert record["gates"] == pytest.approx(known.gates)
    assert record["score"] == pytest.approx(known.score)
    assert record["finished"] is known.finished
    torch.testing.assert_close(torch.tensor(record["maps"]["values"]), known.maps.values)
    assert from_dict(visattn.Geometry, record["maps"]["geometry"]) == known.maps.geometry
    assert record["image"] == str(images / "wide.jpg")


def test_each_word_has_a_map_that_sums_to_one(weights: Path, images: Path, tmp_path: Path) -> None:
    assert main(["caption", str(images), "--weights", str(weights), "--out", str(tmp_path)]) == 0
    for path in tmp_path.glob("*.json"):
        record = json.loads(path.read_text())
        maps = np.array(record["maps"]["values"])
        assert len(maps) == len(record["words"]) == len(record["gates"])
        np.testing.assert_allclose(maps.sum(axis=(1, 2)), 1, atol=1e-5)


def test_geometry_maps_the_input_to_the_image(weights: Path, images: Path, tmp_path: Path) -> None:
    words = ["caption", str(images / "tall.png"), "--weights", str(weights)]
    crops = {}
    for fit in ("crop", "squash", "pad"):
        assert main([*words, "--resize-mode", fit, "--out", str(tmp_path / fit)]) == 0
        record = json.loads((tmp_path / fit / "tall.json").read_text())
        assert record["maps"]["geometry"]["image_size"] == [59, 29]
        crops[fit] = record["maps"]["geometry"]["region"]
    assert crops["squash"] == crops["pad"] == [0, 0, 29, 59]
    left, top, right, bottom = crops["crop"]
    assert (left, right) == (0, 29)
    assert 10 < top < bottom < 49


@pytest.mark.parametrize("batch", ["1", "2", "16"])
def test_captions_do_not_depend_on_the_batch_size(
    batch: str, weights: Path, images: Path, capsys: Capsys
) -> None:
    assert main(["caption", str(images), "--weights", str(weights)]) == 0
    whole = capsys.readouterr().out
    assert main(["caption", str(images), "--weights", str(weights), "--batch-size", batch]) == 0
    assert capsys.readouterr().out == whole


def test_large_images_do_not_wait_for_a_full_batch(
    weights: Path, images: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    sizes: list[int] = []
    infer = BeamSearchJob.infer
    monkeypatch.setattr(engine, "PIXELS_PER_BATCH", 2500)
    monkeypatch.setattr(
        BeamSearchJob, "infer", lambda run, images: sizes.append(len(images)) or infer(run, images)
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


def test_unreadable_images_are_skipped_and_reported(
    weights: Path, images: Path, capsys: Capsys
) -> None:
    (images / "empty.png").touch()
    (images / "wrong.jpg").write_text("<html>")
    assert main(["caption", str(images), "--weights", str(weights)]) == 1
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 3
    _share, empty, wrong, total = err.splitlines()
    assert empty.startswith(f"visattn: skipped {images / 'empty.png'}: ")
    assert wrong.startswith(f"visattn: skipped {images / 'wrong.jpg'}: ")
    assert total == "visattn: 2 of 5 images skipped"


def test_strict_stops_at_the_first_unreadable_image(
    weights: Path, images: Path, capsys: Capsys
) -> None:
    (images / "big.png").touch()
    (images / "wrong.jpg").write_text("<html>")
    words = ["caption", str(images), "--weights", str(weights), "--strict"]
    assert main(words) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"visattn: {images / 'big.png'}: ")
    assert len(err.splitlines()) == 1


def test_unreadable_images_alone_yield_no_caption(
    weights: Path, tmp_path: Path, capsys: Capsys
) -> None:
    (tmp_path / "a.png").touch()
    assert main(["caption", str(tmp_path), "--weights", str(weights)]) == 1
    assert capsys.readouterr().out == ""


def test_missing_weights_option_explains_how_to_get_weights(images: Path, capsys: Capsys) -> None:
    assert main(["caption", str(images)]) == 2
    err = capsys.readouterr().err
    assert "--model is missing" in err
    assert "make demo" in err
    assert "visattn fit --config FILE.yaml, then --model FOLDER" in err


def test_missing_images_are_refused(weights: Path, tmp_path: Path, capsys: Capsys) -> None:
    assert main(["caption", str(tmp_path / "no.png"), "--weights", str(weights)]) == 1
    assert "no.png does not exist" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff" * 99, b"PK\x03\x04 a pickle in a zip"])
def test_files_that_are_not_weights_are_refused(
    content: bytes, images: Path, tmp_path: Path, capsys: Capsys
) -> None:
    (tmp_path / "m.safetensors").write_bytes(content)
    words = ["caption", str(images), "--weights", str(tmp_path / "m.safetensors")]
    assert main(words) == 1
    assert re.search(
        r"m\.safetensors is (damaged or )?no safetensors file", capsys.readouterr().err
    )


def test_a_model_that_is_not_a_captioner_is_refused(
    images: Path, tmp_path: Path, capsys: Capsys
) -> None:
    visattn.save(SmallEncoder((24, 24), channels=12), tmp_path / "m.safetensors")
    words = ["caption", str(images), "--weights", str(tmp_path / "m.safetensors")]
    assert main(words) == 1
    assert "holds a SmallEncoder, which is not a captioner" in capsys.readouterr().err


@pytest.mark.parametrize("device", ["meteor", "cuda:97"])
def test_an_unavailable_device_is_refused(
    device: str, weights: Path, images: Path, capsys: Capsys
) -> None:
    words = ["caption", str(images), "--weights", str(weights), "--device", device]
    assert main(words) == 1
    assert f"--device {device} is not available: " in capsys.readouterr().err


def test_an_unwritable_folder_is_refused_before_captioning(
    weights: Path, images: Path, tmp_path: Path, capsys: Capsys
) -> None:
    (tmp_path / "file").touch()
    words = ["--weights", str(weights), "--out", str(tmp_path / "file" / "out")]
    assert main(["caption", str(images), *words]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "cannot be written: Not a directory" in err


@pytest.mark.parametrize(
    "words", [["--num-captions", "2"], ["--alignment"], ["--phrase-boxes", "boxes.json"]]
)
def test_output_options_need_an_output_folder(
    words: list[str], weights: Path, images: Path, capsys: Capsys
) -> None:
    assert main(["caption", str(images), "--weights", str(weights), *words]) == 2
    assert f"{words[0]} needs an output folder, --out DIR" in capsys.readouterr().err


def test_num_captions_cannot_exceed_the_beam_size(
    weights: Path, images: Path, tmp_path: Path, capsys: Capsys
) -> None:
    words = [
        "--weights",
        str(weights),
        "--out",
        str(tmp_path / "out"),
        "--beam-size",
        "2",
        "--num-captions",
    ]
    assert main(["caption", str(images), *words, "3"]) == 2
    assert (
        "--num-captions 3 needs a --beam-size at least as large, got 2" in capsys.readouterr().err
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("args", "count"),
    [([], 5), (["--num-captions", "2"], 2), (["--beam-size", "3"], 3), (["--beam-size", "6"], 5)],
)
def test_other_candidates_are_shown_beside_the_best_caption(
    args: list[str], count: int, weights: Path, images: Path, tmp_path: Path
) -> None:
    words = ["--weights", str(weights), "--out", str(tmp_path), *args]
    assert main(["caption", str(images / "wide.jpg"), *words]) == 0
    record = json.loads((tmp_path / "wide.json").read_text())
    every = [record, *record["alternatives"]]
    assert len({" ".join(each["words"]) for each in every}) == len(every) == count
    with np.load(tmp_path / "wide.npz", allow_pickle=False) as arrays:
        for number, each in enumerate(every, start=1):
            end = "" if number == 1 else f"_{number}"
            np.testing.assert_allclose(arrays[f"maps{end}"], each["maps"]["values"])
        assert f"maps_{count + 1}" not in arrays


def test_an_alignment_matrix_is_written_with_alignment(
    weights: Path, images: Path, tmp_path: Path, capsys: Capsys
) -> None:
    words = ["--weights", str(weights), "--out", str(tmp_path / "out"), "--alignment"]
    assert main(["caption", str(images / "wide.jpg"), *words, "--dry-run"]) == 0
    assert "wide.alignment.png" in capsys.readouterr().out
    assert main(["caption", str(images / "wide.jpg"), *words]) == 0
    with Image.open(tmp_path / "out" / "wide.alignment.png") as figure:
        assert figure.width == 1000
    draw(images / "wide.alignment.png")  # its panel would have the same name
    assert main(["caption", str(images), *words]) == 1
    assert "wide.alignment.png" in capsys.readouterr().err


def test_phrase_boxes_are_shown_and_scored(weights: Path, images: Path, tmp_path: Path) -> None:
    words = ["--weights", str(weights), "--out", str(tmp_path)]
    assert main(["caption", str(images), *words]) == 0
    record = json.loads((tmp_path / "wide.json").read_text())
    assert record["phrases"] == []
    output = record["words"][0]
    phrase = {"first_word": 0, "words": 1, "types": [], "boxes": [[0, 0, 1, 0.5]]}
    known = {"wide.jpg": [{"sentence": f"{output} thing", "phrases": [phrase]}]}
    (tmp_path / "boxes.json").write_text(json.dumps(known))
    words += ["--phrase-boxes", str(tmp_path / "boxes.json")]
    assert main(["caption", str(images), *words]) == 0
    record = json.loads((tmp_path / "wide.json").read_text())
    results = record["phrases"][0]
    assert (results["words"], results["first"], results["boxes"]) == (
        1,
        0,
        [[0.0, 0.0, 1.0, 0.5]],
    )
    top, middle, _ = np.array(record["maps"]["values"][0]).sum(axis=1).tolist()
    assert results["correctness"] == [pytest.approx(top + middle / 2, abs=1e-4)]
    assert '"boxes":[[0.0,0.0,1.0,0.5]]' in (tmp_path / "wide.html").read_text()
    assert json.loads((tmp_path / "tall.json").read_text())["phrases"] == []


def test_phrase_boxes_of_other_photos_are_an_error(
    weights: Path, images: Path, tmp_path: Path, capsys: Capsys
) -> None:
    (tmp_path / "boxes.json").write_text('{"other.jpg": []}')
    words = ["--weights", str(weights), "--out", str(tmp_path / "out")]
    regions = ["--phrase-boxes", str(tmp_path / "boxes.json")]
    assert main(["caption", str(images), *words, *regions]) == 1
    assert "has phrases for none of the images; its file names begin with other.jpg" in (
        capsys.readouterr().err
    )


def test_an_unwritable_file_does_not_stop_the_others(
    weights: Path, images: Path, tmp_path: Path, capsys: Capsys
) -> None:
    (tmp_path / "deeper" / "small.html").mkdir(parents=True)  # where a page should be
    words = ["--weights", str(weights), "--out", str(tmp_path)]
    assert main(["caption", str(images), *words]) == 1
    assert "small.html, which would be replaced: no record of visattn" in capsys.readouterr().err
    assert main(["caption", str(images), *words, "--overwrite"]) == 1
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 3
    _share, lost, count, _where = err.splitlines()
    assert lost.startswith(f"visattn: not written: {images / 'deeper' / 'small.png'}: ")
    assert count == "visattn: 1 of 3 images not written"
    pages = [entry.page for entry in parse_index_page((tmp_path / "index.html").read_text())]
    assert pages == ["tall.html", "wide.html"]


def test_files_are_complete_and_indexed_after_an_interruption(
    weights: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    infer, left = BeamSearchJob.infer, iter([True, True])

    def interrupted(run: BeamSearchJob, images: Any) -> Any:
        if not next(left, False):
            raise KeyboardInterrupt
        return infer(run, images)

    monkeypatch.setattr(BeamSearchJob, "infer", interrupted)
    words = ["--weights", str(weights), "--out", str(tmp_path), "--batch-size", "1"]
    with pytest.raises(KeyboardInterrupt):
        command.main([str(images), *words])
    pages = [entry.page for entry in parse_index_page((tmp_path / "index.html").read_text())]
    assert len(pages) == 2
    assert {path.name for path in tmp_path.glob("*.html")} == {*pages, "index.html"}
    assert not list(tmp_path.glob(".visattn.*.part"))


def test_a_second_run_adds_to_the_index(weights: Path, images: Path, tmp_path: Path) -> None:
    words = ["--weights", str(weights), "--out", str(tmp_path)]
    for name in ("tall.png", "wide.jpg", "tall.png"):
        assert main(["caption", str(images / name), *words]) == 0
    entries = parse_index_page((tmp_path / "index.html").read_text())
    assert [entry.name for entry in entries] == ["tall", "wide"]
    (tmp_path / "tall.html").unlink()
    assert main(["caption", str(images / "deeper" / "small.png"), *words]) == 0
    entries = parse_index_page((tmp_path / "index.html").read_text())
    assert [entry.name for entry in entries] == ["small", "wide"]


def test_a_foreign_index_page_is_not_replaced(
    weights: Path, images: Path, tmp_path: Path, capsys: Capsys
) -> None:
    (tmp_path / "index.html").write_text("<h1>My site</h1>")
    words = ["--weights", str(weights), "--out", str(tmp_path)]
    assert main(["caption", str(images), *words]) == 1
    assert "holds index.html, which would be replaced" in capsys.readouterr().err
    assert (tmp_path / "index.html").read_text() == "<h1>My site</h1>"
    assert list(tmp_path.glob("*.json")) == []


def test_an_image_named_index_gets_its_own_page(
    weights: Path, tmp_path: Path, capsys: Capsys
) -> None:
    image = draw(tmp_path / "in" / "index.png")
    words = ["--weights", str(weights), "--out", str(tmp_path / "out")]
    assert main(["caption", str(image), *words]) == 0
    assert capsys.readouterr().out.startswith("index_2\t")
    (entry,) = parse_index_page((tmp_path / "out" / "index.html").read_text())
    assert entry.page == "index_2.html"


@pytest.mark.parametrize("out", [".", "../in", "deeper/.."])
def test_a_panel_never_replaces_an_input_image(
    out: str, weights: Path, images: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    before = (images / "tall.png").read_bytes()
    monkeypatch.chdir(images)
    assert main(["caption", "tall.png", "--weights", str(weights), "--out", out]) == 1
    assert "would overwrite the input image" in capsys.readouterr().err
    assert (images / "tall.png").read_bytes() == before


def test_images_with_the_same_name_get_separate_files(
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
    out = tmp_path / "out"
    written = {path.relative_to(out).with_suffix("").as_posix() for path in out.rglob("*.png")}
    assert written == set(names)


def test_progress_is_not_printed_on_stdout(
    weights: Path, images: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main(["caption", str(images), "--weights", str(weights)]) == 0
    out = capsys.readouterr().out
    names = sorted(line.split("\t")[0] for line in out.splitlines())
    assert names == ["deeper/small", "tall", "wide"]


def test_maps_of_a_transformer_captioner(
    weights: Path, images: Path, tmp_path: Path, capsys: Capsys
) -> None:
    torch.manual_seed(4)
    words = (*SPECIAL_TOKENS, "red", "green")
    encoder = SmallEncoder((24, 40), channels=12)
    model = TransformerCaptioner(words, encoder, embed_dim=12, num_layers=2, num_heads=3)
    visattn.save(model, tmp_path / "t.safetensors")
    photo, maps = str(images / "tall.png"), {}
    for choice in ("last", "1,2"):
        out = tmp_path / choice
        options = ["--weights", str(tmp_path / "t.safetensors"), "--maps", choice]
        assert main(["caption", photo, *options, "--out", str(out)]) == 0
        maps[choice] = np.load(out / "tall.npz")["maps"]
    model.maps = (1, 2)
    expected = visattn.caption(model, photo)[0].maps
    np.testing.assert_allclose(maps["1,2"], expected.values, rtol=1e-4, atol=1e-6)
    assert not np.allclose(maps["1,2"], maps["last"])
    capsys.readouterr()
    for file, choice, code, said in (
        ("t.safetensors", "2,0", 1, "a layer from 0 to 1 and a head from 0 to 2, got 2 and 0"),
        ("t.safetensors", "all", 2, "must be last, mean or LAYER,HEAD, got 'all'"),
        (str(weights), "mean", 1, "--maps needs a transformer captioner"),
    ):
        options = ["--weights", str(tmp_path / file), "--maps", choice]
        assert main(["caption", photo, *options, "--out", str(tmp_path / "other")]) == code
        assert said in " ".join(capsys.readouterr().err.split())


def test_letters_that_figures_lack_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = text._fonts()[:1]
    monkeypatch.setattr(text, "_fonts", lambda: ours)
    text._family_with.cache_clear()
    torch.manual_seed(0)
    model = ShowAttendTell((*SPECIAL_TOKENS, *"狗犬"), SmallEncoder((16, 24), channels=8))
    visattn.save(model, tmp_path / "m.safetensors")
    Image.new("RGB", (24, 16), "red").save(tmp_path / "a.png")
    arguments = ["caption", str(tmp_path / "a.png"), "--model", str(tmp_path / "m.safetensors")]
    arguments += ["--out", str(tmp_path / "out")]
    assert main(arguments) == 0
    assert re.search(
        r"boxes for \d letters that no font of this system has, such as [狗犬]",
        capsys.readouterr().err,
    )
    text._family_with.cache_clear()
