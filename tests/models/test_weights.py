"""Weights of any origin: wrappers, prefixes, class names beside them, and one error."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from visattn.models.weights import Weights, load_weights, read_weights


class Net(nn.Module):
    """A model with its own parameter names."""

    def __init__(self, classes: int = 7) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 5, 2)
        self.norm = nn.BatchNorm2d(5)
        self.fc = nn.Linear(5, classes)


def net(seed: int = 3, **options: Any) -> Net:
    torch.manual_seed(seed)
    return Net(**options)


def put(model: Net, file: Path) -> Weights:
    weights = read_weights(file, model.state_dict())
    load_weights(model, weights, file)
    return weights


def named(prefix: str = "", state: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
    tensors = dict(net().state_dict()) if state is None else state
    return {prefix + name: tensor for name, tensor in tensors.items()}


OTHER = dict(net(5).state_dict())
WRAPPED: dict[str, tuple[Callable[[], Any], str]] = {
    "plain": (named, ""),
    "state_dict": (lambda: {"state_dict": named(), "epoch": 3}, "those in state_dict"),
    "model": (lambda: {"model": named(), "args": argparse.Namespace(lr=0.1)}, "those in model"),
    "model_state_dict": (
        lambda: {"model_state_dict": named(), "loss": torch.tensor(0.3)}, "those in model_state_d",
    ),
    "averaged": (
        lambda: {"state_dict": OTHER, "state_dict_ema": named("module.")},
        "those in state_dict_ema; the prefix module. is removed",
    ),
    "ema": (lambda: {"model": OTHER, "ema": {"state_dict": named()}}, "those in ema.state_dict"),
    "backbone": (
        lambda: {**named("backbone."), "head.mlp.weight": torch.ones(3)},
        "the prefix backbone. is removed, 1 tensors without it are ignored",
    ),
    "compiled": (lambda: named("module._orig_mod."), "the prefix module. is removed"),
    "Lightning": (
        lambda: {
            "loops": {"fit_loop": {}},
            "optimizer_states": [{"state": {0: {"exp_avg": torch.ones(2)}}}],
            "state_dict": {**named("model.", OTHER), **named("ema_model.module.")},
        },
        "the prefix ema_model.module. is removed, 9 tensors",
    ),
    "self-distilled": (
        lambda: {"student": named("module.", OTHER), "teacher": named("backbone.")},
        "those in teacher",
    ),
    "under a name of its own": (lambda: {"mine": named()}, "those in mine"),
    "without batch counters": (
        lambda: {k: v for k, v in named().items() if "batches" not in k}, "",
    ),
    "of half precision": (lambda: {k: v.bfloat16() for k, v in named().items()}, ""),
}  # fmt: skip


@pytest.mark.parametrize("legacy", [False, True])
def test_wrappers_and_prefixes_are_removed_and_reported(legacy: bool, tmp_path: Path) -> None:
    right = net().state_dict()
    for case, (make, said) in WRAPPED.items():
        torch.save(make(), tmp_path / "w.pth", _use_new_zipfile_serialization=not legacy)
        model = net(7)
        notes = put(model, tmp_path / "w.pth").notes
        assert said in "; ".join(notes), case
        assert bool(notes) == bool(said), case
        atol = 1e-2 if "half" in case else 0
        for name, tensor in model.state_dict().items():
            torch.testing.assert_close(tensor, right[name], atol=atol, rtol=atol)
    save_file(dict(right), tmp_path / "w.safetensors")
    put(model := net(7), tmp_path / "w.safetensors")
    assert torch.equal(model.fc.weight, right["fc.weight"])


def test_class_names_that_are_packed_beside_weights_are_used_and_said(tmp_path: Path) -> None:
    packed: dict[str, Any] = {
        "classes": ["ant", "bee"], "class_names": ("ant", "bee"),
        "class_to_idx": {"bee": 1, "ant": 0},
    }  # fmt: skip
    for key, names in packed.items():
        torch.save({"model": named(), key: names}, tmp_path / "w.pth")
        read = put(net(7), tmp_path / "w.pth")
        assert read.class_names == ("ant", "bee")
        assert read.notes[-1] == f"the class names are those in {key}"
    for names in (7, {"ant": 1, "bee": 2}, [3, 4], torch.ones(2)):
        torch.save({"model": named(), "classes": names}, tmp_path / "w.pth")
        assert put(net(7), tmp_path / "w.pth").class_names == ()


def recursive() -> Any:
    itself: dict[str, Any] = {}
    itself["model"] = itself
    return itself


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "itself": (recursive, "has no weights, or several sets of them"),
    "two": (lambda: {"two": {"one": named(), "other": named()}}, "or several sets of them"),
    "none": (lambda: {"none": {"a": 3}}, "has no weights"),
    "other classes": (
        lambda: dict(net(classes=11).state_dict()),
        r"does not fit Net: 0 missing .* 2 of another shape \['fc.weight \[11, 5\] instead of \[7",
    ),
    "other keys": (
        lambda: {"odd": torch.ones(2)}, r"8 missing keys \['stem.* 1 unexpected keys \['odd'\]",
    ),
    "quantized": (
        lambda: {k: v.to(torch.int8) for k, v in named().items()}, "int8: quantized weights",
    ),
    "8 bits": (
        lambda: {k: v.to(torch.float8_e4m3fn) for k, v in named().items()}, "float8.*: quantized",
    ),
    "bytes": (lambda: b"<!doctype html>", "w.pth is damaged, or holds code"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_in_one_message(name: str, tmp_path: Path) -> None:
    make, reason = REFUSED[name]
    file = tmp_path / "w.pth"
    if isinstance(content := make(), bytes):
        file.write_bytes(content)
    else:
        torch.save(content, file)
    with pytest.raises(ValueError, match=reason):
        put(net(), file)


@pytest.mark.parametrize("address", ["https://a.b/m.pth", "s3://a/b.pth", "hf://a/b.safetensors"])
def test_nothing_is_fetched(address: str) -> None:
    with pytest.raises(FileNotFoundError):
        put(net(), Path(address))
