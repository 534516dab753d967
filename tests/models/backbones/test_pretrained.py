"""Pretrained models of timm and torchvision by name."""

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file

from visattn import load_model
from visattn.models.backbones.pretrained import (
    LoadedModel,
    load_timm_model,
    load_torchvision_model,
    unique_names,
)


def written(model: torch.nn.Module, file: Path) -> Path:
    save_file({name: value.contiguous() for name, value in model.state_dict().items()}, file)
    return file


def test_timm_weights_are_loaded_completely(tmp_path: Path) -> None:
    trained: Any = timm.create_model("test_resnet", num_classes=7)
    file = written(trained, tmp_path / "w.safetensors")
    named = load_timm_model("test_resnet", weights=file, timm_kwargs={"num_classes": 7})
    images = torch.randn(2, 3, 64, 64)
    assert torch.equal(named.model(images), trained.eval()(images))
    assert not named.model.training
    assert (named.transform, named.class_names, named.weights) == (None, (), str(file))


def test_imagenet_class_names_are_used_when_the_count_matches() -> None:
    named = load_timm_model("test_resnet", timm_kwargs={"num_classes": 1000})
    assert (len(set(named.class_names)), named.class_names[281]) == (1000, "tabby")
    named = load_timm_model("test_resnet", timm_kwargs={"num_classes": 11821})
    assert (len(set(named.class_names)), named.class_names[0]) == (11821, "benthos (0)")
    assert load_timm_model("test_resnet.r160_in1k").weights == "random"


@pytest.mark.parametrize("spec", ["timm:test_resnet", "torchvision:squeezenet1_1", "net.py:build"])
def test_models_have_as_many_classes_as_their_weights(spec: str, tmp_path: Path) -> None:
    code = "import timm\ndef build(num_classes): return timm.create_model('test_vit', False, "
    (tmp_path / "net.py").write_text(f"{code}num_classes=num_classes)")
    if spec == "net.py:build":
        spec = f"{tmp_path}/{spec}"
    names = [f"class {number}" for number in range(7)]
    trained = load_model(spec, class_names=names).model  # random, of seven classes
    file = written(trained, tmp_path / "w.safetensors")
    loaded = load_model(spec, weights=file)
    images = torch.randn(2, 3, 160, 160)
    assert trained(images).shape == (2, 7)
    assert torch.equal(loaded.model(images), trained(images))
    assert (loaded.class_names, loaded.weights) == ((), str(file))
    assert load_model(spec, weights=file, class_names=names).class_names == tuple(names)
    with pytest.raises(ValueError, match="does not fit"):
        load_model(spec, weights=written(torch.nn.Linear(2, 3), file))


def test_torchvision_weights_define_preprocessing(monkeypatch: pytest.MonkeyPatch) -> None:
    named = load_torchvision_model("squeezenet1_1")
    transform: Any = named.transform
    assert (transform.crop_size, transform.resize_size) == ([224], [256])
    assert (len(set(named.class_names)), named.class_names[281]) == (1000, "tabby")
    monkeypatch.setattr("torchvision.models.get_model", lambda *_, **__: torch.nn.Linear(2, 3))
    small = load_torchvision_model("vit_b_32", model_kwargs={"image_size": 64, "num_classes": 3})
    assert small.transform is None


def test_duplicate_class_names_are_numbered() -> None:
    assert unique_names(["a", "b", "a"]) == ("a (0)", "b", "a (2)")


@pytest.mark.parametrize(
    ("build", "name", "options", "reason"),
    [
        (load_timm_model, "resnet81", {}, "unknown timm model 'resnet81'; did you mean resnet"),
        (
            load_torchvision_model,
            "vit_b_61",
            {},
            "unknown torchvision model 'vit_b_61'; did you mean vit_b_16",
        ),
        (load_torchvision_model, "fasterrcnn_resnet51", {}, "did you mean fasterrcnn_resnet50_fpn"),
        (
            load_timm_model,
            "test_resnet",
            {"timm_kwargs": {"color": 1}},
            "does not take these arguments",
        ),
        (load_timm_model, "test_resnet", {"timm_kwargs": {"std": 0}}, "--mean and --std"),
        (
            load_torchvision_model,
            "squeezenet1_1",
            {"model_kwargs": {"color": 1}},
            "squeezenet1_1 does not take these arguments",
        ),
        (
            load_timm_model,
            "test_resnet",
            {"weights": Path("w"), "pretrained": True},
            "set either pretrained or weights, not both",
        ),
    ],
)
def test_errors_end_with_a_full_sentence(
    build: Any, name: str, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        build(name, **options)


@pytest.mark.parametrize("build", [load_timm_model, load_torchvision_model])
def test_mismatching_weight_files_are_refused(build: Any, tmp_path: Path) -> None:
    name = "test_resnet" if build is load_timm_model else "squeezenet1_1"
    with pytest.raises(FileNotFoundError, match=r"nowhere.safetensors do not exist"):
        build(name, weights=tmp_path / "nowhere.safetensors")
    (tmp_path / "text.safetensors").write_text("text")
    with pytest.raises(ValueError, match="damaged or no safetensors file"):
        build(name, weights=tmp_path / "text.safetensors")
    save_file({"odd": torch.zeros(2)}, tmp_path / "odd.safetensors")
    with pytest.raises(ValueError, match=r"does not fit .* 1 unexpected keys \['odd'\]"):
        build(name, weights=tmp_path / "odd.safetensors")


def test_nothing_is_downloaded_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a connection was opened to the network")

    monkeypatch.setattr("socket.socket.connect", refuse)
    assert isinstance(load_timm_model("test_resnet"), LoadedModel)
    assert isinstance(load_torchvision_model("squeezenet1_1"), LoadedModel)
