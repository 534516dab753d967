"""Models are restored from checkpoints; invalid files are refused."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from visattn.models.base import SmallEncoder
from visattn.models.captioning.show_attend_tell import ShowAttendTell
from visattn.models.saving.checkpoint import read_model
from visattn.models.saving.config import model_config
from visattn.results.kinds import SPECIAL_TOKENS


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run directory with a checkpoint as training writes it."""
    model = ShowAttendTell((*SPECIAL_TOKENS, "red"), SmallEncoder((24, 24), channels=8))
    state = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    folder = tmp_path / "run"
    (folder / "checkpoints").mkdir(parents=True)
    checkpoint = {"visattn": {"model": model_config(model)}, "state_dict": state}
    torch.save(checkpoint, folder / "checkpoints" / "last.ckpt")
    return folder


def test_the_trained_model_is_restored(run: Path) -> None:
    path = run / "checkpoints" / "last.ckpt"
    model = read_model(path)
    assert isinstance(model, ShowAttendTell)
    assert not model.training
    weights = torch.load(path)["state_dict"]
    assert all(torch.equal(weights[f"model.{name}"], t) for name, t in model.state_dict().items())


class Trap:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.mkdir, (str(self.mark),)


def test_invalid_checkpoint_files_are_refused(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.ckpt"
    with pytest.raises(FileNotFoundError, match=r"no checkpoint at .*x\.ckpt; `visattn fit` says"):
        read_model(path)
    whole = (run / "checkpoints" / "last.ckpt").read_bytes()
    for content in (b"", b"rubbish", whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"x\.ckpt is damaged or no checkpoint"):
            read_model(path)
    for other in ({"state_dict": {}}, [1, 2], {"visattn": None}):
        torch.save(other, path)
        with pytest.raises(ValueError, match="is no checkpoint of visattn's"):
            read_model(path)
    torch.save({"visattn": Trap(tmp_path / "mark")}, path)
    with pytest.raises(ValueError, match="is damaged or no checkpoint"):
        read_model(path)
    assert not (tmp_path / "mark").exists()
