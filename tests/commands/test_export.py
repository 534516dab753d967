"""`visattn export` converts a training checkpoint to a safetensors file."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import visattn
from visattn.cli import main
from visattn.models.base import SmallEncoder
from visattn.models.captioning.show_attend_tell import ShowAttendTell
from visattn.models.config import model_config
from visattn.results.kinds import SPECIAL_TOKENS

Capsys = pytest.CaptureFixture[str]
Change = Callable[[dict[str, Any]], object]


@pytest.fixture
def model() -> ShowAttendTell:
    encoder = SmallEncoder((24, 40), channels=12)
    words = (*SPECIAL_TOKENS, "red", "blue")
    return ShowAttendTell(words, encoder, embed_dim=5, hidden_size=11, attention_dim=3)


def checkpoint(model: nn.Module) -> dict[str, Any]:
    """The part of a checkpoint that a task saves; the rest is Lightning's."""
    weights = {f"model.{name}": value for name, value in model.state_dict().items()}
    weights["scores.total"] = torch.zeros(1)
    return {"state_dict": weights, "visattn": {"model": model_config(model)}, "epoch": 3}


@pytest.fixture
def saved(model: ShowAttendTell, tmp_path: Path) -> Path:
    torch.save(checkpoint(model), tmp_path / "best.ckpt")
    return tmp_path / "best.ckpt"


def test_the_exported_model_matches_the_trained_model(
    model: ShowAttendTell, saved: Path, tmp_path: Path, capsys: Capsys
) -> None:
    out = tmp_path / "new" / "m.safetensors"
    assert main(["export", str(saved), "--out", str(out)]) == 0
    parameters = sum(parameter.numel() for parameter in model.parameters())
    record = f"{out}\tShowAttendTell, {parameters:,} parameters\n"
    assert capsys.readouterr().out == record
    image = np.random.default_rng(2).integers(0, 256, (31, 53, 3), dtype=np.uint8)
    loaded = visattn.load(out)
    assert isinstance(loaded, ShowAttendTell)
    [before], [after] = visattn.caption(model, image), visattn.caption(loaded, image)
    assert after.words == before.words
    assert after.log_probs == before.log_probs
    torch.testing.assert_close(after.maps.values, before.maps.values, rtol=0, atol=0)


def test_a_bundled_model_is_exported_already(tmp_path: Path, capsys: Capsys) -> None:
    assert main(["export", "scenes-captioner", "--out", str(tmp_path / "m.safetensors")]) == 1
    assert "exported already" in capsys.readouterr().err


def test_an_interrupted_export_leaves_no_file(saved: Path, tmp_path: Path) -> None:
    assert main(["export", str(saved), "--out", str(tmp_path / "m.safetensors")]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"best.ckpt", "m.safetensors"}


@pytest.mark.parametrize("content", [b"", b"no checkpoint", b"PK\x03\x04 cut short"])
def test_a_damaged_checkpoint_is_refused(content: bytes, tmp_path: Path, capsys: Capsys) -> None:
    (tmp_path / "bad.ckpt").write_bytes(content)
    words = ["export", str(tmp_path / "bad.ckpt"), "--out", str(tmp_path / "m.safetensors")]
    assert main(words) == 1
    assert "bad.ckpt is damaged, or holds code" in capsys.readouterr().err


class Payload:
    """Would leave a file behind if it were unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return Path.touch, (self.mark,)


def test_a_malicious_checkpoint_executes_nothing(
    model: ShowAttendTell, tmp_path: Path, capsys: Capsys
) -> None:
    hostile = {**checkpoint(model), "payload": Payload(tmp_path / "ran")}
    torch.save(hostile, tmp_path / "bad.ckpt")
    words = ["export", str(tmp_path / "bad.ckpt"), "--out", str(tmp_path / "m.safetensors")]
    assert main(words) == 1
    assert "bad.ckpt" in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()


def drop_a_weight(content: dict[str, Any]) -> None:
    del content["state_dict"]["model.decoder.attention.gate.weight"]


@pytest.mark.parametrize(
    "change",
    [lambda content: content.pop("visattn"), drop_a_weight],
    ids=["not ours", "weights missing"],
)
def test_an_incomplete_checkpoint_is_refused(
    change: Change, model: ShowAttendTell, tmp_path: Path, capsys: Capsys
) -> None:
    content = checkpoint(model)
    change(content)
    torch.save(content, tmp_path / "bad.ckpt")
    words = ["export", str(tmp_path / "bad.ckpt"), "--out", str(tmp_path / "m.safetensors")]
    assert main(words) == 1
    assert "bad.ckpt" in capsys.readouterr().err
    assert not (tmp_path / "m.safetensors").exists()


def test_an_unwritable_folder_is_refused(saved: Path, tmp_path: Path, capsys: Capsys) -> None:
    (tmp_path / "file").touch()
    words = ["export", str(saved), "--out", str(tmp_path / "file" / "m.safetensors")]
    assert main(words) == 1
    assert "cannot be written" in capsys.readouterr().err


def test_a_foreign_file_is_not_replaced(saved: Path, tmp_path: Path, capsys: Capsys) -> None:
    file = tmp_path / "m.safetensors"
    file.write_bytes(b"another model")
    assert main(["export", str(saved), "--out", str(file)]) == 1
    assert "m.safetensors exists: choose another --out" in capsys.readouterr().err
    assert file.read_bytes() == b"another model"
    assert main(["export", str(saved), "--out", str(file), "--overwrite"]) == 0


def test_a_run_gets_its_model_and_gives_the_same_output(
    sandbox: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(sandbox / "runs", "runs")
    photos = ["caption", str(sandbox / "photos"), "--model"]
    assert main([*photos, "runs/tried", "--out", "a"]) == 0
    expected = capsys.readouterr().out
    assert len(expected.splitlines()) == 2
    assert main(["export", "runs/tried"]) == 0
    assert capsys.readouterr().out.startswith("runs/tried/1/model.safetensors\tShowAttendTell")
    for spec in ("runs/tried/1/", "runs/tried/1/model.safetensors"):
        assert main([*photos, spec, "--out", spec.replace("/", "_")]) == 0
        assert capsys.readouterr().out == expected
    shutil.copytree("runs/tried/1", "runs/tried/2")
    assert main(["export", "runs/tried"]) == 1
    assert "runs/tried holds 2 runs; choose one, the newest last" in capsys.readouterr().err
