"""State dicts of any origin: wrappers, prefixes, shards, original keys, and errors."""

import argparse
import json
import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from visattn.models.backbones.pretrained import load_timm_model
from visattn.models.backbones.timm_classifier import load_weights
from visattn.models.backbones.timm_encoder import TimmEncoder
from visattn.models.saving.state_dicts import read_archive, read_state_dict


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
        "the prefix backbone. is removed, 1 tensors without it are left out (head.mlp.weight",
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


def sharded(folder: Path, state: dict[str, Tensor], *, kind: str = "safetensors") -> Path:
    names = list(state)
    files = {"part-1." + kind: names[:4], "part-2." + kind: names[4:]}
    for file, keys in files.items():
        part = {name: state[name].contiguous() for name in keys}
        write = save_file if kind == "safetensors" else torch.save
        write(part, folder / file)
    places = {name: file for file, keys in files.items() for name in keys}
    stem = "model" if kind == "safetensors" else "pytorch_model"
    index = folder / f"{stem}.{kind}.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return index


def test_shards_load_as_one_state_dict(tmp_path: Path) -> None:
    right = dict(random_net().state_dict())
    for kind in ("safetensors", "bin"):
        folder = tmp_path / kind
        folder.mkdir()
        index = sharded(folder, right, kind=kind)
        for named_so in (index, folder):
            read = read_state_dict(named_so).tensors
            assert read.keys() == right.keys()
            assert all(torch.equal(read[name], right[name]) for name in right)


@pytest.mark.parametrize("length", [128, 640, 15_392, 19_280])
def test_a_header_whose_length_looks_like_another_format_is_read(
    tmp_path: Path, length: int
) -> None:
    """As bytes, the lengths are those of pickles, of a web page behind a space, and "PK"."""
    file = tmp_path / "model.safetensors"
    rest = len(
        json.dumps(
            {"": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, separators=(",", ":")
        )
    )
    name = "w" * (length - rest)
    save_file({name: torch.ones(1)}, file)
    assert int.from_bytes(file.read_bytes()[:8], "little") == length
    assert read_state_dict(file).tensors == {name: torch.ones(1)}


def test_broken_shard_index_is_refused(tmp_path: Path) -> None:
    index = sharded(tmp_path, named(""))
    places = json.loads(index.read_text())["weight_map"]

    def refused(content: Any, reason: str, error: type[Exception] = ValueError) -> None:
        index.write_text(content if isinstance(content, str) else json.dumps(content))
        with pytest.raises(error, match=reason):
            read_state_dict(index)

    refused("{", "is not valid JSON")
    refused([], "no weight_map")
    refused({"weight_map": {}}, "no weight_map")
    refused({"weight_map": places | {"fc.bias": "../part-1.safetensors"}}, "must be in the folder")
    refused(
        {"weight_map": places | {"fc.bias": "/etc/passwd"}}, "must be in the folder of its index"
    )
    refused({"weight_map": places | {"fc.bias": "no.safetensors"}}, "missing", FileNotFoundError)
    refused({"weight_map": places | {"fc.bias": "part-1.safetensors"}}, "lacks fc.bias")


class Hostile:
    """Would run a command when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.mark}",)


def test_unsafe_pickle_is_refused_by_name(tmp_path: Path) -> None:
    file, mark = tmp_path / "weights.pth", tmp_path / "ran"
    for zipped in (True, False):
        torch.save({"state_dict": Hostile(mark)}, file, _use_new_zipfile_serialization=zipped)
        with pytest.raises(ValueError, match=r"would import and run (posix|nt)\.system, so it is"):
            read_archive(file)
        torch.save(nn.Linear(2, 3), file, _use_new_zipfile_serialization=zipped)
        with pytest.raises(
            ValueError, match=r"run torch\.nn\.modules\.linear\.Linear, .*state_dic"
        ):
            load_weights(nn.Linear(2, 3), file)
    file.write_bytes(pickle.dumps(Hostile(mark)))
    with pytest.raises(ValueError, match="so it is not loaded"):
        load_weights(nn.Linear(2, 3), file)
    assert not mark.exists()


def test_files_without_weights_are_refused_with_a_reason(tmp_path: Path) -> None:
    whole = tmp_path / "whole.pth"
    torch.save(named(""), whole)
    itself: dict[str, Any] = {}
    itself["model"] = itself
    torch.save(itself, tmp_path / "itself.pth")
    torch.save({"one": named(""), "other": named("")}, tmp_path / "two.pth")
    torch.save({"epoch": 3}, tmp_path / "none.pth")
    scripted = tmp_path / "scripted.pt"
    with whole.open("rb") as opened:
        (tmp_path / "cut.pth").write_bytes(opened.read()[:900])
    (tmp_path / "empty.pth").write_bytes(b"")
    (tmp_path / "page.pth").write_text("<!doctype html>")
    (tmp_path / "lfs.pth").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:1\n")
    (tmp_path / "text.bin").write_text("weights " * 9)
    with pytest.warns(FutureWarning):  # torch says that it is old
        torch.jit.save(torch.jit.script(nn.Linear(2, 3)), scripted)
    for name, reason in {
        "itself.pth": "holds no weights",
        "two.pth": "holds several sets of weights, one, other",
        "none.pth": "holds no weights",
        "cut.pth": "its end is missing",
        "empty.pth": "is empty",
        "page.pth": "is a web page",
        "lfs.pth": "run git lfs pull",
        "text.bin": "is damaged or no safetensors file",
        "scripted.pt": "is a TorchScript program",
        ".": "holds 10 files of weights, cut.pth first",
    }.items():
        with pytest.raises(ValueError, match=re.escape(reason)):
            load_weights(random_net(), tmp_path / name)


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
