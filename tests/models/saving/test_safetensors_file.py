"""Model files: roundtrip, permissions, damaged and third-party files."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from safetensors.torch import save_file

from visattn.models.saving.weight_files import read_safetensors, write_safetensors

WEIGHTS = {
    "a.weight": torch.arange(15.0).view(3, 5),
    "a.steps": torch.tensor(7),
    "half": torch.linspace(0, 1, 11, dtype=torch.float16),
    "flags": torch.tensor([True, False]),
    "none": torch.zeros(0, 3),
    "turned": torch.arange(6.0).view(2, 3).T,
}
DESCRIPTION = {"class": "Net", "arguments": {"size": [3, 5], "name": "ünï", "rate": 0.1}}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    write_safetensors(path, WEIGHTS, DESCRIPTION)
    return path


def test_roundtrip_restores_weights_and_config(file: Path) -> None:
    weights, description = read_safetensors(file)
    assert description == DESCRIPTION
    assert set(weights) == set(WEIGHTS)
    for name, tensor in weights.items():
        assert tensor.dtype == WEIGHTS[name].dtype
        assert torch.equal(tensor, WEIGHTS[name])


def test_tied_weights_are_written_separately(tmp_path: Path) -> None:
    shared = torch.ones(3)
    write_safetensors(tmp_path / "m.safetensors", {"a": shared, "b": shared[:2]}, DESCRIPTION)
    weights, _ = read_safetensors(tmp_path / "m.safetensors")
    assert torch.equal(weights["b"], torch.ones(2))


def test_file_has_default_permissions(file: Path, tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"")
    assert file.stat().st_mode == (tmp_path / "other").stat().st_mode


@given(share=st.floats(0, 1, exclude_max=True))
def test_truncated_file_is_refused(tmp_path_factory: pytest.TempPathFactory, share: float) -> None:
    path = tmp_path_factory.mktemp("torn") / "model.safetensors"
    write_safetensors(path, WEIGHTS, DESCRIPTION)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged"):
        read_safetensors(path)


class Trap:
    """Creates a file when its pickle is loaded."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.mkdir, (str(self.mark),)


def test_pickle_is_refused_and_not_executed(tmp_path: Path) -> None:
    path = tmp_path / "evil.safetensors"
    path.write_bytes(pickle.dumps(Trap(tmp_path / "mark")))
    with pytest.raises(ValueError, match="damaged or no safetensors file"):
        read_safetensors(path)
    torch.save({"x": Trap(tmp_path / "mark")}, path)
    with pytest.raises(ValueError, match="damaged or no safetensors file"):
        read_safetensors(path)
    assert not (tmp_path / "mark").exists()
    pickle.loads(pickle.dumps(Trap(tmp_path / "mark")))
    assert (tmp_path / "mark").exists()  # the trap works


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (None, "not an exported visattn model .format visattn-1"),
        ({"format": "pt"}, "not an exported visattn model"),
        ({"visattn": "not JSON"}, "not an exported visattn model"),
        ({"visattn": '{"format": "visattn-1"}'}, "not an exported visattn model"),
        (
            {"visattn": '{"format": "other", "checksum": "", "description": "{}"}'},
            "not an exported visattn model",
        ),
    ],
)
def test_third_party_files_are_refused(
    tmp_path: Path, header: dict[str, str] | None, reason: str
) -> None:
    path = tmp_path / "theirs.safetensors"
    save_file({"w": torch.ones(2)}, path, metadata=header)
    with pytest.raises(ValueError, match=reason):
        read_safetensors(path)


@pytest.mark.parametrize("description", [[], "x", 3, None])
def test_config_must_be_a_mapping(tmp_path: Path, description: Any) -> None:
    path = tmp_path / "m.safetensors"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jaxtyping.config.jaxtyping_disable", True)
        write_safetensors(path, WEIGHTS, description)
    with pytest.raises(ValueError, match="not an exported visattn model"):
        read_safetensors(path)


@pytest.mark.parametrize("name", ["model.pt", "model", "model.safetensors.bak"])
def test_file_suffix_must_be_safetensors(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=rf"must end in \.safetensors, got {name}"):
        write_safetensors(tmp_path / name, WEIGHTS, DESCRIPTION)
    assert list(tmp_path.iterdir()) == []


def test_non_json_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_safetensors(tmp_path / "m.safetensors", WEIGHTS, {"rate": float("nan")})


def test_missing_file_error_names_the_export_command(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no model at .*; `visattn export` writes one"):
        read_safetensors(tmp_path / "nowhere.safetensors")
    with pytest.raises(FileNotFoundError, match="no model at"):
        read_safetensors(tmp_path)


def test_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        write_safetensors(tmp_path / "nowhere" / "m.safetensors", WEIGHTS, DESCRIPTION)


@pytest.mark.parametrize("broken", ["replace", "write_bytes"])
def test_interrupted_write_keeps_the_old_file(
    file: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    before = file.read_bytes()

    def fail(*_: object) -> None:
        raise OSError(28, "no space left")

    monkeypatch.setattr(Path, broken, fail)
    with pytest.raises(OSError, match="no space left"):
        write_safetensors(file, {"other": torch.zeros(3)}, DESCRIPTION)
    assert file.read_bytes() == before
    assert list(file.parent.iterdir()) == [file]
