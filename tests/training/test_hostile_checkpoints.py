"""Hostile checkpoints: pickled code and wrong content."""

import io
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_files import MODEL, checkpoint

from visattn.cli import main
from visattn.models.config import model_config
from visattn.models.saving import load
from visattn.training.checkpoint import read_checkpoint


class Trap:
    """What a pickle of it does when it is loaded: make a folder."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.mkdir, (str(self.mark),)


def saved(content: Any, **options: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer, **options)
    return buffer.getvalue()


ATTACKS: dict[str, tuple[Callable[[], bytes], str]] = {
    "another class": (
        lambda: saved(checkpoint(visattn={"model": {"class": "os.system", "arguments": {}}})),
        "'os.system', which is not one of visattn",
    ),
    "weights of another model": (
        lambda: saved(checkpoint(state_dict={"model.x": torch.zeros(3)})),
        "its weights do not fit its config",
    ),
    "weights that are none": (
        lambda: saved(checkpoint(state_dict={"model.x": "text"})), "cannot be loaded",
    ),
    "no weights": (lambda: saved(checkpoint(state_dict=[])), "cannot be loaded"),
    "no model": (lambda: saved(checkpoint(visattn=["x"])), "cannot be loaded"),
}  # fmt: skip


@pytest.mark.parametrize("name", ATTACKS)
def test_wrong_checkpoints_are_refused(name: str, tmp_path: Path) -> None:
    make, reason = ATTACKS[name]
    file = tmp_path / "hostile.ckpt"
    file.write_bytes(make())
    with pytest.raises(ValueError, match=reason) as caught:
        load(file)
    assert str(file) in str(caught.value)


def test_an_honest_checkpoint_is_read(tmp_path: Path) -> None:
    shared = torch.rand(5)
    torch.save(checkpoint(tied=[shared, shared[:3]]), tmp_path / "good.ckpt")
    content = read_checkpoint(tmp_path / "good.ckpt")
    assert torch.equal(content["tied"][0], shared)
    assert model_config(load(tmp_path / "good.ckpt")) == model_config(MODEL)


@pytest.mark.parametrize("options", [{}, {"_use_new_zipfile_serialization": False}])
def test_pickles_do_not_run(tmp_path: Path, options: dict[str, Any]) -> None:
    file, mark = tmp_path / "trap.ckpt", tmp_path / "mark"
    for content in (Trap(mark), checkpoint(more=Trap(mark)), checkpoint(state_dict=[Trap(mark)])):
        file.write_bytes(saved(content, **options))
        with pytest.raises(ValueError, match="is damaged, or holds code"):
            read_checkpoint(file)
    assert not mark.exists()
    torch.load(io.BytesIO(saved(Trap(mark))), weights_only=False)
    assert mark.exists()  # the trap works


@pytest.mark.parametrize("address", ["https://a.b/c.ckpt", "s3://a/b.ckpt", "hf://a"])
def test_nothing_is_fetched(address: str) -> None:
    with pytest.raises(FileNotFoundError, match="No such file"):
        read_checkpoint(address)


MISFITS: dict[str, tuple[dict[str, Any], str]] = {
    "optimizer": (
        {"optimizer_states": [{"state": {}, "param_groups": []}]}, "different number of parameter",
    ),
    "NaN": ({"state_dict": {"model.x": torch.tensor(torch.nan)}}, "1 unexpected keys .'model.x'"),
}  # fmt: skip


def test_state_of_another_run_is_refused_in_a_line(
    run: Path, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)
    file = tmp_path / "odd" / "checkpoints" / "odd.ckpt"
    file.parent.mkdir(parents=True)
    words = ["--config", str(tiny), "--ckpt_path", str(file), "--trainer.logger", "false"]
    for name, (wrong, reason) in MISFITS.items():
        torch.save({**whole, **wrong}, file)
        assert main(["fit", *words]) == 1, name
        assert re.search(f"visattn: .*{reason}", capsys.readouterr().err), name
    del whole["loops"]
    torch.save(whole, file)
    assert main(["fit", *words]) == 1
    assert "odd.ckpt cannot be resumed from: it has only weights" in capsys.readouterr().err
