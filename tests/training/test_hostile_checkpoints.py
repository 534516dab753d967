"""Hostile checkpoints: pickled code, memory exhaustion, reads out of bounds, wrong content."""

import io
import os
import pickletools
import re
import resource
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_files import MODEL, checkpoint

from visattn.cli import main
from visattn.models.saving.checkpoint import read_checkpoint, read_model
from visattn.models.saving.config import model_config

NAME = next(name for name, _ in MODEL.named_parameters())
HUGE = 10**12


class Trap:
    """What a pickle of it does when it is loaded: make a folder."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.mkdir, (str(self.mark),)


class Call:
    """A pickle that calls a function with a number."""

    def __init__(self, function: Callable[..., Any], *numbers: int) -> None:
        self.function, self.numbers = function, numbers

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[int, ...]]:
        return self.function, self.numbers


def saved(content: Any, **options: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer, **options)
    return buffer.getvalue()


def packed(whole: bytes, change: Callable[[str, bytes], bytes], kind: int = 0) -> bytes:
    """Return an archive whose parts were changed, and maybe packed."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(whole)) as old, zipfile.ZipFile(buffer, "w", kind) as new:
        for name in old.namelist():
            new.writestr(name, change(name, old.read(name)))
    return buffer.getvalue()


def overlapping() -> bytes:
    """Return an archive in which 200 parts are the same 100 KB."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}.")
        archive.writestr("archive/data/0", bytes(100_000))
        last = archive.infolist()[-1]
        for number in range(1, 200):
            twin = zipfile.ZipInfo(f"archive/data/{number}")
            twin.header_offset, twin.file_size = last.header_offset, last.file_size
            twin.compress_size, twin.CRC = last.compress_size, last.CRC
            archive.filelist.append(twin)
    return buffer.getvalue()


def longer(name: str, part: bytes) -> bytes:
    """Say that a storage and a tensor of 24 numbers hold a million, which the file does not."""
    if name.endswith("data.pkl"):
        for end in (b"t", b"\x85"):  # of the storage's description, and of the tensor's shape
            part = part.replace(b"K\x18" + end, b"J" + struct.pack("<i", 10**6) + end, 1)
    return part


STRETCHED = torch.zeros(1).expand(HUGE)
ATTACKS: dict[str, tuple[Callable[[], bytes], str]] = {
    "a tensor of 10^12 numbers, one of them kept": (
        lambda: saved(checkpoint(more=STRETCHED)), "its tensors would take 4,000,000,0",
    ),
    "the same among the weights": (
        lambda: saved(checkpoint(state_dict={"model.w": STRETCHED})), "its tensors would take",
    ),
    "many that share": (
        lambda: saved(checkpoint(more=[torch.zeros(9**4)[None].expand(999, -1) for _ in "abc"])),
        "its tensors would take",
    ),
    "a storage longer than the file": (
        lambda: packed(saved({"a": torch.arange(24.0)}), longer), "damaged or no checkpoint: Runt",
    ),
    "zeros, packed": (
        lambda: packed(saved(torch.zeros(10**7)), lambda _, part: part, zipfile.ZIP_DEFLATED),
        "unpacks to more than its own size",
    ),
    "weights, packed": (
        lambda: packed(
            saved(checkpoint(more=torch.rand(10**4))), lambda _, part: part, zipfile.ZIP_DEFLATED
        ),
        "it has a compressed entry|unpacks to more",
    ),
    "parts that are one another": (overlapping, "unpacks to more than its own size"),
    "bytes by a number": (
        lambda: saved(checkpoint(more=Call(bytearray, 10**11))), "names .*bytearray, which no",
    ),
    "a tensor by a number": (
        lambda: saved(checkpoint(more=Call(torch.Tensor, 10**6, 10**6))), "names torch Tensor",
    ),
    "the old format": (
        lambda: saved(checkpoint(), _use_new_zipfile_serialization=False), "not a zip file",
    ),
    "a sparse tensor": (
        lambda: saved(checkpoint(more=torch.eye(3).to_sparse())), "damaged or no checkpoint",
    ),
    "a tensor of another device": (
        lambda: saved(checkpoint(more=torch.empty(HUGE, device="meta"))), "damaged or no chec",
    ),
    "another class": (
        lambda: saved(checkpoint(visattn={"model": {"class": "os.system", "arguments": {}}})),
        "got 'os.system'",
    ),
    "a huge width": (
        lambda: saved(
            checkpoint(
                visattn={"model": {"class": "SmallEncoder", "arguments": {"channels": 2**20}}}
            )
        ),
        "a tensor of .* would need",
    ),
    "a huge image": (
        lambda: saved(
            checkpoint(
                visattn={
                    "model": {
                        "class": "TimmEncoder",
                        "arguments": {"name": "test_resnet", "img_size": [2**19, 2**19]},
                    }
                }
            )
        ),
        "at most 16,777,216 pixels",
    ),
    "a huge number": (
        lambda: saved(
            checkpoint(
                visattn={"model": {"class": "SmallEncoder", "arguments": {"channels": 10**400}}}
            )
        ),
        "numbers in a config must be at most 1,048,576, got 10000",
    ),
    "very many layers": (
        lambda: saved(
            checkpoint(
                visattn={
                    "model": {
                        "class": "VisionTransformer",
                        "arguments": {"class_names": ["a", "b"], "depth": 2**20},
                    }
                }
            )
        ),
        "far more layers than weights",
    ),
    "weights of another model": (
        lambda: saved(checkpoint(state_dict={"model.x": torch.zeros(3)})),
        "its weights do not fit its model config",
    ),
    "weights that are none": (
        lambda: saved(checkpoint(state_dict={"model.x": "text"})), "its weights are no tensors",
    ),
    "weights that are NaN": (
        lambda: saved(checkpoint(state_dict={"model.x": torch.tensor([1.0, torch.nan])})),
        r"1 of its 1 weight tensors hold NaN or infinity \(model.x\); name an earlier",
    ),
    "weights that are infinite": (
        lambda: saved(checkpoint(state_dict={
            **checkpoint()["state_dict"], f"model.{NAME}": MODEL.state_dict()[NAME] + torch.inf
        })),
        f"weight tensors hold NaN or infinity .{NAME}.; name",
    ),
    "no weights": (lambda: saved(checkpoint(state_dict=[])), "its weights are no tensors"),
    "no model": (lambda: saved(checkpoint(visattn=["x"])), "does not say what its model is"),
}  # fmt: skip


@pytest.mark.parametrize("name", ATTACKS)
def test_hostile_checkpoints_are_refused_before_memory_is_allocated(
    name: str, tmp_path: Path
) -> None:
    make, reason = ATTACKS[name]
    file = tmp_path / "hostile.ckpt"
    file.write_bytes(make())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=reason) as caught:
        read_model(file)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 200_000, f"{grown / 1e3:.0f} MB"
    assert str(file) in str(caught.value)


def test_an_honest_checkpoint_is_read(tmp_path: Path) -> None:
    shared = torch.rand(5)
    torch.save(checkpoint(tied=[shared, shared[:3]]), tmp_path / "good.ckpt")
    content = read_checkpoint(tmp_path / "good.ckpt")
    assert torch.equal(content["tied"][0], shared)
    content["tied"][0][0] = 7  # what shares its memory still does, and the file is left alone
    assert content["tied"][1][0] == 7
    assert torch.equal(read_checkpoint(tmp_path / "good.ckpt")["tied"][1], shared[:3])
    assert model_config(read_model(tmp_path / "good.ckpt")) == model_config(MODEL)


@pytest.mark.parametrize("options", [{}, {"_use_new_zipfile_serialization": False}])
def test_pickles_do_not_run(tmp_path: Path, options: dict[str, Any]) -> None:
    file, mark = tmp_path / "trap.ckpt", tmp_path / "mark"
    for content in (Trap(mark), checkpoint(more=Trap(mark)), checkpoint(state_dict=[Trap(mark)])):
        file.write_bytes(saved(content, **options))
        with pytest.raises(ValueError, match="is damaged or no checkpoint"):
            read_checkpoint(file)
    assert not mark.exists()
    torch.load(io.BytesIO(saved(Trap(mark))), weights_only=False)
    assert mark.exists()  # the trap works


def test_a_file_larger_than_the_memory_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "large.ckpt"
    with file.open("wb") as opened:
        opened.truncate(10**13)  # takes no room on the disk
    with pytest.raises(
        ValueError, match=r"it holds 10,000\.0 GB, but this machine has a memory of"
    ):
        read_checkpoint(file)


@pytest.mark.parametrize("address", ["https://a.b/c.ckpt", "s3://a/b.ckpt", "hf://a"])
def test_nothing_is_fetched(address: str) -> None:
    with pytest.raises(ValueError, match=f"{address} lies on another machine, and nothing is"):
        read_checkpoint(address)
    with pytest.raises(ValueError, match=f"{address} lies on another machine, and nothing is"):
        read_checkpoint(Path(address))


def test_torch_pickles_name_globals_in_one_opcode() -> None:
    """Names stand in one step of the pickle, `GLOBAL`; otherwise they would be overlooked."""
    whole = saved({"a": Call(bytearray, 3), "b": Call(torch.Tensor, 3)})
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        index = next(archive.read(name) for name in archive.namelist() if "data.pkl" in name)
    named = [value for step, value, _ in pickletools.genops(index) if step.name == "GLOBAL"]
    assert named == ["__builtin__ bytearray", "torch Tensor"]


# What a trainer takes over part by part, and what it says then.
MISFITS: dict[str, tuple[dict[str, Any], str]] = {
    "callback": (
        {"callbacks": {"SkipNonFiniteSteps": {"x": 3}}},
        "cannot be restored.*KeyError: 'consecutive'",
    ),
    "callbacks": ({"callbacks": 3}, "callbacks must be of type dict, got int"),
    "no schedule": ({"lr_schedulers": []}, "it has 0 of them, the config 1; resume with"),
    "empty schedule": ({"lr_schedulers": [{}]}, "schedules of the config: last_epoch is missing"),
    "odd schedule": (
        {"lr_schedulers": [{"last_epoch": "3"}]}, "last_epoch must be an int, and is a str",
    ),
    "short schedule": (
        {"lr_schedulers": [{"last_epoch": 3, "base_lrs": []}]}, "a list of 2, and is a list of 0",
    ),
    "optimizer": (
        {"optimizer_states": [{"state": {}, "param_groups": []}]}, "different number of parameter",
    ),
    "loops": ({"loops": {"fit_loop": 7}}, "loops.fit_loop must be of type dict, got int"),
    "NaN": ({"state_dict": {"model.x": torch.tensor(torch.nan)}}, "hold NaN or infinity .model.x."),
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
    torch.save({**whole, "loops": {}}, file)
    assert main(["validate", *words[:4]]) == 1
    assert "the checkpoint cannot be restored" in capsys.readouterr().err
