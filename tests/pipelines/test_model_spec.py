"""A model by what people call it."""

from pathlib import Path
from typing import Any

import pytest
import torch

from visattn.attribution.explained_model import subject_of
from visattn.models.resnet.attention_resnet import AttentionResNet
from visattn.pipelines.model_spec import named_model
from visattn.pipelines.save_load import save


def test_each_form_finds_its_model(tmp_path: Path) -> None:
    ours = AttentionResNet(("cat", "dog"), size=(32, 32))
    save(ours, tmp_path / "m.safetensors")
    named = named_model(str(tmp_path / "m.safetensors"))
    assert (type(named.model), named.classes) == (AttentionResNet, ("cat", "dog"))
    assert torch.equal(
        named.model.get_parameter("conv1.weight"), ours.get_parameter("conv1.weight")
    )
    arguments = {"num_classes": 3}
    assert type(named_model("timm:test_resnet", arguments=arguments).model).__name__ == "ResNet"
    found = named_model("torchvision:squeezenet1_1", arguments=arguments)
    assert type(found.model).__name__ == "SqueezeNet"


@pytest.mark.parametrize(
    ("spec", "options", "reason"),
    [
        ("timn:resnet18", {}, r"named timm:NAME, .* got 'timn:resnet18'; did you mean timm\?"),
        ("resnet18", {}, "did you mean timm:resnet18 or torchvision:resnet18"),
        (".", {}, r"did you mean hf:\., or at the command line run:\.\?"),
        ("a/b/c.pth", {}, r"got 'a/b/c.pth'; .* --model timm:NAME --weights a/b/c\.pth"),
        ("a/b/c.txt", {}, r"got 'a/b/c\.txt'$"),
        ("m.safetensors", {"pretrained": True}, "m.safetensors brings its own"),
        ("hf:somewhere", {"weights": Path("w")}, "hf:somewhere brings its own"),
    ],
)
def test_mistakes_end_with_a_sentence(spec: str, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        named_model(spec, **options)


def test_what_is_not_there_is_said() -> None:
    with pytest.raises(FileNotFoundError, match=r"no model at nowhere.safetensors"):
        named_model("nowhere.safetensors")
    with pytest.raises(FileNotFoundError, match=r"nowhere is no directory"):
        named_model("hf:nowhere")


CODE = '''
import dataclasses
from torch import nn
import torch
from beside_it import WIDTH

@dataclasses.dataclass
class Options:
    """Looks for its module while it is made."""
    width: int = WIDTH

class Net(nn.Module):
    classes = ("cat", "dog")
    def __init__(self, width: int = Options().width) -> None:
        super().__init__()
        if width > 100:
            raise RuntimeError("too wide")
        self.first, self.last = nn.Conv2d(3, width, 2), nn.Linear(width, 2)
    def forward(self, x):
        return self.last(self.first(x).relu().mean((2, 3)))

class Broken(Net):
    def forward(self, x):
        return super().forward(x).view(77, 77)

def make(width=3):
    from beside_it import WIDTH  # found while it is built, too
    return nn.Sequential(Net(width))

ready = Net(5)
number = 7
unmade = lambda: {}
'''


@pytest.fixture
def code(tmp_path: Path) -> Path:
    (tmp_path / "beside_it.py").write_text("WIDTH = 3\n")
    (tmp_path / "my_net.py").write_text(CODE)
    return tmp_path / "my_net.py"


def test_a_model_of_own_code_is_built(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = named_model(f"{code}:Net", arguments={"width": 5})
    assert (type(named.model).__name__, named.model.training) == ("Net", False)
    assert named.classes == ("cat", "dog")
    assert named.model.get_parameter("first.weight").shape[0] == 5
    torch.save({"state_dict": named.model.state_dict()}, code.parent / "w.pth")
    again = named_model(f"{code}:Net", arguments={"width": 5}, weights=code.parent / "w.pth")
    assert again.notes == ("the weights are those in state_dict",)
    assert torch.equal(
        again.model.get_parameter("last.bias"), named.model.get_parameter("last.bias")
    )
    assert len(list(named_model(f"{code}:make").model.children())) == 1
    assert named_model(f"{code}:ready").model.get_parameter("first.bias").shape == (5,)
    monkeypatch.chdir(code.parent)
    (code.parent / "rooms").mkdir()
    (code.parent / "rooms" / "nets.py").write_text("from my_net import Net\n")
    before = list(__import__("sys").path)
    assert type(named_model("rooms.nets:Net").model).__name__ == "Net"
    assert __import__("sys").path == before


def test_errors_in_own_code_name_its_file_and_line(code: Path) -> None:
    def refused(spec: str, reason: str, **options: Any) -> None:
        with pytest.raises(ValueError, match=reason):
            named_model(spec, **options)

    at = rf"failed in .*my_net\.py, line {CODE[: CODE.index('raise')].count(chr(10)) + 1}, in __in"
    refused(f"{code}:Net", rf"{at}it__: RuntimeError: too wide", arguments={"width": 101})
    refused(f"{code}:Net", "TypeError: .*unexpected keyword .*'wide'", arguments={"wide": 2})
    refused(f"{code}:Nett", r"has no 'Nett'; did you mean Net")
    refused(f"{code}:number", "must be a class, a function or a model, got int")
    refused(f"{code}:unmade", "must build an nn.Module, got dict")
    refused(f"{code}:ready", "is a model already", arguments={"width": 2})
    refused(f"{code}:Net", "pretrained belongs to", pretrained=True)
    broken = named_model(f"{code}:Broken").model
    with pytest.raises(ValueError, match=r"RuntimeError in .*my_net\.py, line \d+, in forward: "):
        subject_of(broken, (32, 32))
    for text, reason in {
        "x = (": r"failed in .*my_net\.py, line 1: SyntaxError",
        "import no_such_room": r"my_net\.py, line 1, in <module>: ModuleNotFoundError: No module",
        "\nraise SystemExit(3)": r"my_net\.py, line 2, in <module>: SystemExit: 3",
    }.items():
        code.write_text(text)
        refused(f"{code}:Net", reason)
    with pytest.raises(FileNotFoundError, match=r"nowhere\.py does not exist"):
        named_model("nowhere.py:Net")
