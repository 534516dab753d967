"""Models of timm, torchvision and user code by name: weights, classes, preprocessing."""

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file

import visattn as va
from visattn.models import TimmEncoder
from visattn.models.loaded import loaded_with, unique_names

PHOTO = np.random.default_rng(0).integers(0, 256, (61, 83, 3), np.uint8)


def test_a_loaded_model_is_explained_with_its_own_preprocessing_and_classes() -> None:
    model: Any = va.load("torchvision:squeezenet1_1")
    transform = loaded_with(model).transform
    assert (transform.crop_size, transform.resize_size) == ([224], [256])
    [heatmap] = va.explain(model, PHOTO, "gradcam", "tabby")
    assert heatmap.info.class_name == "tabby"
    assert heatmap.info.more["preprocessing"]["size"] == [224, 224]
    [heatmap] = va.explain(va.load("timm:test_resnet"), PHOTO, "gradcam", "tabby")
    assert heatmap.info.class_name == "tabby"
    assert type(model).__name__ == "SqueezeNet"


def test_imagenet_class_names_are_used_when_the_count_matches() -> None:
    for count, length in ((1000, 1000), (11821, 11821), (7, 0)):
        model = va.load("timm:test_resnet", model_kwargs={"num_classes": count})
        assert len(set(loaded_with(model).class_names)) == length
    assert loaded_with(va.load("timm:test_resnet.r160_in1k")).weights == "random"
    assert unique_names(["a", "b", "a"]) == ("a (0)", "b", "a (2)")
    small = va.load("torchvision:vit_b_32", model_kwargs={"image_size": 64, "num_classes": 3})
    assert (loaded_with(small).transform, loaded_with(small).class_names) == (None, ())


@pytest.mark.parametrize("spec", ["timm:test_resnet", "torchvision:squeezenet1_1", "net.py:build"])
def test_models_have_as_many_classes_as_their_weights(spec: str, tmp_path: Path) -> None:
    code = "import timm\ndef build(num_classes): return timm.create_model('test_vit', False, "
    (tmp_path / "net.py").write_text(f"{code}num_classes=num_classes)")
    spec = f"{tmp_path}/{spec}" if spec == "net.py:build" else spec
    trained = va.load(spec, model_kwargs={"num_classes": 7})
    file, state = tmp_path / "w.safetensors", trained.state_dict()
    save_file({name: value.contiguous() for name, value in state.items()}, file)
    loaded = va.load(spec, weights=file)
    images = torch.randn(2, 3, 160, 160)
    assert trained(images).shape == (2, 7)
    assert torch.equal(loaded(images), trained(images))
    assert (loaded_with(loaded).class_names, loaded_with(loaded).weights) == ((), str(file))


def test_original_keys_are_converted_by_timm(tmp_path: Path) -> None:
    arguments = {"embed_dim": 24, "depths": (1, 1), "num_heads": (1, 2), "num_classes": 5}
    arguments |= {"img_size": 56}
    name = "swin_tiny_patch4_window7_224"
    right: Any = timm.create_model(name, **arguments).eval()
    old = {
        re.sub("layers.1.downsample", "layers.0.downsample", key).replace("head.fc.", "head."): v
        for key, v in right.state_dict().items()
    }
    torch.save({"model": old}, file := tmp_path / "swin.pth")
    images = torch.randn(1, 3, 56, 56)
    loaded = va.load(f"timm:{name}", weights=file, model_kwargs=arguments)
    assert torch.equal(loaded(images), right(images))
    assert loaded_with(loaded).notes[-1] == "timm converted the weights from their original keys"
    del arguments["num_classes"]
    encoder: Any = TimmEncoder(name, img_size=(56, 56), weights=str(file), timm_kwargs=arguments)
    ours = encoder.backbone.eval()
    assert torch.equal(ours.forward_features(images), right.forward_features(images))
    counted = va.load(f"timm:{name}", weights=file, model_kwargs=arguments)
    assert torch.equal(counted(images), right(images))  # the classes are those of the weights


CODE = '''
import dataclasses
from torch import nn
import torch
from beside_it import WIDTH

@dataclasses.dataclass
class Options:
    """A dataclass, which looks up its module when it is defined."""
    width: int = WIDTH

class Net(nn.Module):
    classes = ("cat", "dog")
    def __init__(self, width: int = Options().width) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, width, 2), nn.Linear(width, 2)
    def forward(self, x):
        return self.last(self.first(x).relu().mean((2, 3)))

def make(width=3):
    from beside_it import WIDTH  # importable in the call, too
    return nn.Sequential(Net(width))

ready = Net(5)
number = 7
not_a_model = lambda: {}
'''


@pytest.fixture
def code(tmp_path: Path) -> Path:
    (tmp_path / "beside_it.py").write_text("WIDTH = 3\n")
    (tmp_path / "my_net.py").write_text(CODE)
    return tmp_path / "my_net.py"


def test_user_code_builds_a_model(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = va.load(f"{code}:Net", model_kwargs={"width": 5})
    assert (type(model).__name__, model.training) == ("Net", False)
    assert loaded_with(model).class_names == ("cat", "dog")
    torch.save({"state_dict": model.state_dict()}, code.parent / "w.pth")
    again = va.load(f"{code}:Net", model_kwargs={"width": 5}, weights=code.parent / "w.pth")
    assert loaded_with(again).notes == ("the weights are those in state_dict",)
    assert torch.equal(again.get_parameter("last.bias"), model.get_parameter("last.bias"))
    assert len(list(va.load(f"{code}:make").children())) == 1
    assert va.load(f"{code}:ready").get_parameter("first.bias").shape == (5,)
    monkeypatch.chdir(code.parent)
    (code.parent / "rooms").mkdir()
    (code.parent / "rooms" / "nets.py").write_text("from my_net import Net\n")
    before = list(sys.path)
    assert type(va.load("rooms.nets:Net")).__name__ == "Net"
    assert sys.path == before


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("Nett", {}, "has no 'Nett'; did you mean Net"),
        ("not_a_model", {}, "must build an nn.Module, got dict"),
        ("Net", {"pretrained": True}, "comes with its own"),
    ],
)
def test_refused(name: str, options: dict[str, Any], reason: str, code: Path) -> None:
    with pytest.raises(ValueError, match=reason):
        va.load(f"{code}:{name}", **options)


def test_nothing_is_downloaded_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a connection was opened to the network")

    monkeypatch.setattr("socket.socket.connect", refuse)
    for name in ("timm:test_resnet", "torchvision:squeezenet1_1", "torchvision:fcn_resnet50"):
        assert loaded_with(va.load(name)).weights == "random"
