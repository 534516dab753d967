"""`visattn caption` and `visattn glimpse` over many images: shards, threads, resume, autocast."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import visattn
from visattn.cli import main
from visattn.commands import files as image_options
from visattn.commands.caption.job import BeamSearchJob
from visattn.commands.glimpse import GlimpseJob
from visattn.commands.run import Job
from visattn.models.base import SmallEncoder
from visattn.models.captioning.show_attend_tell import ShowAttendTell
from visattn.models.glimpses.ram import RecurrentAttentionModel
from visattn.results.kinds import SPECIAL_TOKENS

Capsys = pytest.CaptureFixture[str]
JOBS: dict[str, type[Job[Any]]] = {"caption": BeamSearchJob, "glimpse": GlimpseJob}


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    torch.manual_seed(4)
    folder = tmp_path_factory.mktemp("weights")
    encoder = SmallEncoder((24, 40), channels=12, coord_scale=1.0)
    words = (*SPECIAL_TOKENS, "red", "green", "blue", "circle")
    models = {
        "caption": ShowAttendTell(words, encoder, embed_dim=5, hidden_size=11, attention_dim=3),
        "glimpse": RecurrentAttentionModel(
            "abc", (24, 40), (0.5,) * 3, (0.3,) * 3, glimpse_size=7, num_glimpses=3, hidden_size=11
        ),
    }
    for name, model in models.items():
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(3)
        visattn.save(model, folder / f"{name}.safetensors")
    return {name: folder / f"{name}.safetensors" for name in models}


@pytest.fixture(params=["caption", "glimpse"])
def command(
    request: pytest.FixtureRequest, weights: dict[str, Path], bulk_photos: Path
) -> Callable[..., int]:
    def run(out: Path, *words: str) -> int:
        options = ["--weights", str(weights[request.param]), "--out", str(out)]
        return main([request.param, str(bulk_photos), *options, *words])

    return run


@pytest.fixture
def inferred(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the images that a model has received."""
    names: list[str] = []
    for kind in JOBS.values():

        def infer(run: Any, images: Any, known: Any = kind.infer) -> Any:
            names.extend(Path(image.name).stem for image in images)
            return known(run, images)

        monkeypatch.setattr(kind, "infer", infer)
    return names


def streams(capsys: Capsys, out: Path) -> tuple[str, str]:
    """Return rows and messages, without the name of the output folder."""
    printed = capsys.readouterr()
    return printed.out, printed.err.replace(str(out), "OUT")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_shards_together_write_the_files_of_one_run(
    command: Callable[..., int], tmp_path: Path, capsys: Capsys
) -> None:
    batches = ("--batch-size", "1")  # sums of other batches may round differently
    assert command(tmp_path / "whole", *batches) == 1  # one photo cannot be read
    rows = capsys.readouterr().out
    assert command(tmp_path / "parts", *batches, "--shard", "1/2") == 0
    first = capsys.readouterr()
    assert "of the 3 images of other shards 3 have no results yet" in first.err
    assert command(tmp_path / "parts", *batches, "--shard", "2/2") == 1
    second = capsys.readouterr()
    assert "of the 2 images of other shards all have results" in second.err
    assert first.out + second.out == rows
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")


def test_threads_and_batches_do_not_change_the_results(
    command: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    rows = []
    for count, size in ((1, 1), (5, 3)):
        monkeypatch.setattr(image_options, "thread_count", lambda count=count: count)
        command(tmp_path / str(size), "--batch-size", str(size))
        rows.append(streams(capsys, tmp_path / str(size)))
    assert rows[0] == rows[1]
    for path in (tmp_path / "1").glob("[!.]*.json"):
        [single, many] = (json.loads((tmp_path / size / path.name).read_text()) for size in "13")
        first, other = (each["maps"]["values"] if "maps" in each else each["locations"]
                        for each in (single, many))  # fmt: skip
        np.testing.assert_allclose(first, other, atol=1e-5)


def test_an_interrupted_run_resumes(
    command: Callable[..., int], tmp_path: Path, capsys: Capsys, inferred: list[str]
) -> None:
    command(tmp_path / "whole", "--batch-size", "1")
    first = streams(capsys, tmp_path / "whole")
    out = tmp_path / "out"
    command(out, "--batch-size", "1")
    for path in out.glob("1.*"):  # as if the run had ended before
        path.unlink()
    (out / "3.png").unlink()
    capsys.readouterr()
    inferred.clear()
    assert command(out, "--batch-size", "1") == 1
    assert inferred[:2] == ["1", "3"]  # glimpse computes all again for their mean, without drawing
    assert streams(capsys, out) == first
    assert contents(out) == contents(tmp_path / "whole")


@pytest.mark.parametrize("change", ["photo", "option", "overwrite"])
def test_what_was_made_otherwise_is_computed_again(
    change: str,
    command: Callable[..., int],
    bulk_photos: Path,
    tmp_path: Path,
    inferred: list[str],
) -> None:
    out = tmp_path / "out"
    command(out)
    inferred.clear()
    words = {"option": ["--resize-mode", "pad"], "overwrite": ["--overwrite"]}.get(change, [])
    if change == "photo":
        Image.new("RGB", (50, 40)).save(bulk_photos / "3.png")
    assert command(out, *words) == 1
    assert inferred[:4] == (["3", *inferred[1:4]] if change == "photo" else ["0", "1", "3", "4"])
    record = json.loads((out / "3.json").read_text())
    geometry = record["maps"]["geometry"] if "maps" in record else record["geometry"]
    assert geometry["image_size"] == ([40, 50] if change == "photo" else [34, 47])


def test_autocast_gives_nearly_the_same_maps(command: Callable[..., int], tmp_path: Path) -> None:
    command(tmp_path / "full")
    assert command(tmp_path / "half", "--autocast", "bfloat16") == 1
    differs = False
    for path in (tmp_path / "full").glob("[!.]*.json"):
        [full, half] = (
            json.loads((tmp_path / x / path.name).read_text()) for x in ("full", "half")
        )
        assert half["provenance"]["settings"]["autocast"] == "bfloat16"
        one, other = (each["maps"]["values"] if "maps" in each else each["probabilities"]
                      for each in (half, full))  # fmt: skip
        np.testing.assert_allclose(one[0], other[0], atol=0.05)
        differs |= one != other
    assert differs
