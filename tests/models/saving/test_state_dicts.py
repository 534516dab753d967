"""State dicts of any origin: wrappers, prefixes, original keys, and errors."""

import argparse
import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from visattn.models.backbones.pretrained import load_timm_model
from visattn.models.backbones.timm_classifier import load_weights
from visattn.models.backbones.timm_encoder import TimmEncoder


class Net(nn.Module):
    """A model with its own parameter names."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 5, 2)
        self.norm = nn.BatchNorm2d(5)
        self.fc = nn.Linear(5, 7)


def random_net(seed: int = 3) -> Net:
    torch.manual_seed(seed)
    return Net()


def named(prefix: str, state: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
    tensors = dict(random_net().state_dict()) if state is None else state
    return {prefix + name: tensor for name, tensor in tensors.items()}


OTHER = dict(random_net(5).state_dict())
WRAPPED: dict[str, tuple[Callable[[], Any], str]] = {
    "plain": (lambda: named(""), ""),
    "state_dict": (lambda: {"state_dict": named(""), "epoch": 3}, "those in state_dict"),
    "model": (lambda: {"model": named(""), "args": argparse.Namespace(lr=0.1)}, "those in model"),
    "model_state_dict": (
        lambda: {"model_state_dict": named(""), "loss": torch.tensor(0.3)},
        "those in model_state_dict",
    ),
    "averaged": (
        lambda: {"state_dict": OTHER, "state_dict_ema": named("module.")},
        "those in state_dict_ema; the prefix module. is removed",
    ),
    "ema": (lambda: {"model": OTHER, "ema": {"state_dict": named("")}}, "those in ema.state_dict"),
    "backbone": (
        lambda: {**named("backbone."), "head.mlp.weight": torch.ones(3)},
        "the prefix backbone. is removed, 1 tensors without it are left out (['head.mlp.weight'",
    ),
    "compiled": (
        lambda: named("module._orig_mod."),
        "_orig_mod. of torch.compile is removed from the names; the prefix module. is removed",
    ),
    "Lightning": (
        lambda: {
            "pytorch-lightning_version": "2.6.6",
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
    "under a name of its own": (lambda: {"mine": named("")}, "those in mine"),
}


@pytest.mark.parametrize("legacy", [False, True])
def test_wrappers_and_prefixes_are_removed_and_reported(legacy: bool, tmp_path: Path) -> None:
    right = random_net().state_dict()
    for case, (make, said) in WRAPPED.items():
        file = tmp_path / "weights.pth"
        torch.save(make(), file, _use_new_zipfile_serialization=not legacy)
        model = random_net(7)
        notes = load_weights(model, file)
        assert said in "; ".join(notes), case
        assert bool(notes) == bool(said), case
        for name, tensor in model.state_dict().items():
            assert torch.equal(tensor, right[name]), (case, name)


class Hostile:
    """Would run a command when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.mark}",)


def test_pickles_do_not_run(tmp_path: Path) -> None:
    file, mark = tmp_path / "weights.pth", tmp_path / "ran"
    for zipped in (True, False):
        torch.save({"state_dict": Hostile(mark)}, file, _use_new_zipfile_serialization=zipped)
        with pytest.raises(ValueError, match="or hold code, which is not executed"):
            load_weights(nn.Linear(2, 3), file)
    file.write_bytes(pickle.dumps(Hostile(mark)))
    with pytest.raises(ValueError, match="or hold code, which is not executed"):
        load_weights(nn.Linear(2, 3), file)
    assert not mark.exists()


def test_files_without_weights_are_refused(tmp_path: Path) -> None:
    itself: dict[str, Any] = {}
    itself["model"] = itself
    contents = {"itself": itself, "two": {"one": named(""), "other": named("")}, "none": {"a": 3}}
    for name, content in contents.items():
        torch.save(content, tmp_path / f"{name}.pth")
        with pytest.raises(ValueError, match=f"{name}.pth holds no weights, or several sets"):
            load_weights(random_net(), tmp_path / f"{name}.pth")
    for content in (b"", b"<!doctype html>", (tmp_path / "two.pth").read_bytes()[:900]):
        (tmp_path / "cut.pth").write_bytes(content)
        with pytest.raises(ValueError, match=r"cut.pth cannot be read as weights of torch.save"):
            load_weights(random_net(), tmp_path / "cut.pth")


def test_mismatch_error_names_the_likely_reason(tmp_path: Path) -> None:
    file = tmp_path / "weights.pth"
    torch.save(named(""), file)

    def refused(model: nn.Module, reason: str) -> None:
        with pytest.raises(ValueError, match=re.escape(reason)):
            load_weights(model, file)

    model = random_net()
    model.fc = nn.Linear(5, 11)
    refused(
        model,
        "['fc.weight [7, 5] instead of [11, 5]', 'fc.bias [7] instead of [11]']; "
        "the weights are for 7 class",
    )
    model = random_net()
    model.stem = nn.Conv2d(1, 5, 2)
    refused(model, "the weights are for images with 3 channels: set in_chans=3")
    refused(nn.Sequential(nn.Linear(5, 7)), "of another architecture or another library")
    torch.save({**named(""), "fc.bias": torch.full((7,), torch.nan)}, file)
    refused(random_net(), "holds NaN or infinity in fc.bias")


def test_original_keys_are_converted_by_timm(tmp_path: Path) -> None:
    arguments = {"embed_dim": 24, "depths": (1, 1), "num_heads": (1, 2), "num_classes": 5}
    arguments |= {"img_size": 56}
    name = "swin_tiny_patch4_window7_224"
    right = timm.create_model(name, **arguments).eval()
    old = {
        re.sub("layers.1.downsample", "layers.0.downsample", key).replace("head.fc.", "head."): v
        for key, v in right.state_dict().items()
    }
    torch.save({"model": old}, tmp_path / "swin.pth")
    loaded = load_timm_model(name, weights=tmp_path / "swin.pth", timm_kwargs=arguments)
    images = torch.randn(1, 3, 56, 56)
    assert torch.equal(loaded.model(images), right(images))
    assert loaded.notes[-1] == "timm converted the weights from their original keys"
    del arguments["num_classes"]
    encoder = TimmEncoder(
        name, img_size=(56, 56), weights=str(tmp_path / "swin.pth"), timm_kwargs=arguments
    )
    ours: Any = encoder.backbone.eval()
    theirs: Any = right
    assert torch.equal(ours.forward_features(images), theirs.forward_features(images))
    counted = load_timm_model(name, weights=tmp_path / "swin.pth", timm_kwargs=arguments)
    assert torch.equal(counted.model(images), right(images))  # the classes are those of the weights
