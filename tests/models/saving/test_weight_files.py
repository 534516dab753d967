"""Untrusted weight files: addresses, headers, shapes and memory limits."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from visattn.models.backbones.timm_classifier import load_weights
from visattn.models.saving.weight_files import (
    check_memory,
    open_safetensors,
    require_local_file,
    tensor_shapes,
)


@pytest.mark.parametrize(
    "address", ["https://a.b/m.safetensors", "http://a", "s3://a/b", "hf://a/b", "file://x/y"]
)
def test_url_is_not_a_file(address: str) -> None:
    for named in (address, Path(address)):
        with pytest.raises(ValueError, match=f"{address} lies on another machine, and nothing is"):
            require_local_file(named, missing="none")
        with pytest.raises(ValueError, match="download it, see that it is what you want"):
            load_weights(nn.Linear(2, 3), Path(named))


@pytest.mark.parametrize("name", ["nowhere", "a\0b", "x" * 5000, ".", "/dev/zero"])
def test_missing_files_are_reported(name: str) -> None:
    with pytest.raises(FileNotFoundError, match="none there"):
        require_local_file(name, missing="none there")


def test_windows_drive_is_not_a_url(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        require_local_file("C:/x", missing="none")


def written(path: Path, header: dict[str, Any] | bytes, length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text)
    return path


def promised(*shape: int, end: int) -> dict[str, Any]:
    return {"weight": {"dtype": "F32", "shape": list(shape), "data_offsets": [0, end]}}


@pytest.mark.parametrize(
    ("header", "length"),
    [
        (b"{}", 2**60),
        (b"{}" + b" " * 100, 2**25 + 1),
        (promised(10**12, end=4 * 10**12), None),
        (promised(2**63, 2**63, end=8), None),
        (promised(10**6, end=8), None),
        (promised(-1, end=8), None),
        (b'{"weight": ' + b"[" * 100_000, None),
        (b"\xff" * 8, None),
    ],
)
def test_header_beyond_the_file_size_is_refused(
    header: Any, length: int | None, tmp_path: Path
) -> None:
    file = written(tmp_path / "hostile.safetensors", header, length)
    with pytest.raises(ValueError, match=r"hostile\.safetensors is damaged or no safetensors file"):
        load_weights(nn.Linear(2, 3), file)


def test_mismatching_shapes_are_refused_before_reading(tmp_path: Path) -> None:
    """The file has its full length but is sparse on the disk."""
    count = 10**9
    file = written(tmp_path / "sparse.safetensors", promised(count, end=4 * count))
    with file.open("ab") as opened:
        opened.truncate(file.stat().st_size + 4 * count)
    with open_safetensors(file) as weights:
        assert tensor_shapes(weights) == {"weight": (count,)}
    with pytest.raises(ValueError, match=r"does not fit Linear: 1 missing keys .* 1 of another"):
        load_weights(nn.Linear(2, 3), file)


def test_weights_beyond_memory_are_refused() -> None:
    check_memory(1, "x")
    with pytest.raises(ValueError, match=r"x holds 1,000,000\.0 GB, but this machine has a memory"):
        check_memory(10**15, "x")


def test_matching_weights_are_read(tmp_path: Path) -> None:
    model, other = nn.Linear(2, 3), nn.Linear(2, 3)
    save_file(dict(other.state_dict()), tmp_path / "w.safetensors")
    load_weights(model, tmp_path / "w.safetensors")
    assert torch.equal(model.weight, other.weight)


def test_weights_of_another_kind_of_number_are_refused(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 5)
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        weights = {name: tensor.to(dtype) for name, tensor in model.state_dict().items()}
        torch.save(weights, tmp_path / "w.pt")
        load_weights(model, tmp_path / "w.pt")
    for dtype in (torch.int8, torch.uint8, torch.bool, torch.complex64, torch.float8_e4m3fn):
        weights = {name: tensor.detach().to(dtype) for name, tensor in model.named_parameters()}
        torch.save(weights, tmp_path / "w.pt")
        name = str(dtype).removeprefix("torch.")
        with pytest.raises(ValueError, match=rf"holds \w+ as {name}, but the model has float32"):
            load_weights(model, tmp_path / "w.pt")
