"""Files of weights: addresses, damaged headers, and kinds of numbers."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from visattn.models.backbones.timm_classifier import load_weights
from visattn.models.saving.weight_files import require_local_file


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


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff" * 99, (2**60).to_bytes(8, "little")])
def test_damaged_files_are_refused(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "hostile.safetensors"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"hostile\.safetensors is damaged or no safetensors file"):
        load_weights(nn.Linear(2, 3), file)


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
    for dtype in (torch.int8, torch.bool, torch.complex64, torch.float8_e4m3fn):
        weights = {name: tensor.detach().to(dtype) for name, tensor in model.named_parameters()}
        torch.save(weights, tmp_path / "w.pt")
        name = str(dtype).removeprefix("torch.")
        with pytest.raises(ValueError, match=rf"holds \w+ as {name}, but the model has float32"):
            load_weights(model, tmp_path / "w.pt")
