"""Models by file, run, library name and user code."""

from pathlib import Path
from typing import Any

import pytest
import torch
from command_sandbox import add_run
from killed_steps import killed_at

from visattn.attribution.explained_model import analyze_model
from visattn.models.resnet import AttentionResNet
from visattn.models.saving.card import ModelCard
from visattn.models.saving.load import load, load_model, save


def test_specs_load_their_models(tmp_path: Path) -> None:
    model = AttentionResNet(("cat", "dog"), img_size=(32, 32))
    save(model, tmp_path / "m.safetensors")
    loaded = load_model(str(tmp_path / "m.safetensors"))
    assert (type(loaded.model), loaded.class_names) == (AttentionResNet, ("cat", "dog"))
    assert torch.equal(
        loaded.model.get_parameter("conv1.weight"), model.get_parameter("conv1.weight")
    )
    arguments = {"num_classes": 3}
    assert type(load_model("timm:test_resnet", model_kwargs=arguments).model).__name__ == "ResNet"
    classifier = load_model("torchvision:squeezenet1_1", model_kwargs=arguments)
    assert type(classifier.model).__name__ == "SqueezeNet"


def test_a_killed_save_leaves_the_old_or_the_new_model(tmp_path: Path) -> None:
    file, step, loaded = tmp_path / "m.safetensors", 0, []
    models = {}
    for name in ("old", "new"):
        models[name] = AttentionResNet(("cat", "dog"), img_size=(32, 32), depth=8, stem_width=4)
        models[name].get_parameter("conv1.weight").data.fill_({"old": 1.0, "new": 2.0}[name])

    def write(name: str) -> None:
        save(models[name], file, card=ModelCard(f"The {name} one."))

    write("old")
    while killed_at(step, lambda: write("new")):
        weight = load(file).state_dict()["conv1.weight"]
        name = "old" if float(weight.flatten()[0]) == 1 else "new"
        loaded.append(name)
        write("old")
        step += 1
    assert set(loaded) == {"old", "new"}


def test_a_module_and_a_run_directory_are_specs(tmp_path: Path) -> None:
    model = AttentionResNet(("cat", "dog"), depth=8, stem_width=4)
    loaded = load_model(model)
    assert (loaded.model, loaded.class_names) == (model, ("cat", "dog"))
    torch.save(model.state_dict(), tmp_path / "w.pth")
    assert load_model(model, weights=tmp_path / "w.pth").weights == str(tmp_path / "w.pth")
    with pytest.raises(ValueError, match="is built already"):
        load_model(model, pretrained=True)
    add_run(tmp_path / "runs" / "1", model)
    for spec in (tmp_path / "runs", str(tmp_path / "runs" / "1"), f"run:{tmp_path}/runs"):
        loaded = load_model(spec)
        assert loaded.weights == str(tmp_path / "runs" / "1" / "checkpoints" / "best.ckpt")
        assert torch.equal(loaded.model.get_parameter("fc.bias"), model.get_parameter("fc.bias"))
    for path in (tmp_path / "runs" / "1", tmp_path / "runs" / "1" / "checkpoints" / "best.ckpt"):
        with pytest.raises(
            ValueError, match=r"is no exported model: va\.load_model loads the best"
        ):
            load(path)


@pytest.mark.parametrize(
    ("spec", "options", "reason"),
    [
        ("timn:resnet18", {}, r"named timm:NAME, .* got 'timn:resnet18'; did you mean timm\?"),
        ("resnet18", {}, "did you mean timm:resnet18 or torchvision:resnet18"),
        (".", {}, r"did you mean hf:\. or run:\.\?"),
        ("a/b/c.pth", {}, r"got 'a/b/c.pth'; .* --model timm:NAME --weights a/b/c\.pth"),
        ("a/b/c.txt", {}, r"got 'a/b/c\.txt'$"),
        ("m.safetensors", {"pretrained": True}, "m.safetensors brings its own"),
        ("hf:somewhere", {"weights": Path("w")}, "hf:somewhere brings its own"),
    ],
)
def test_invalid_specs_are_refused_with_a_hint(
    spec: str, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        load_model(spec, **options)


def test_missing_files_are_refused() -> None:
    with pytest.raises(FileNotFoundError, match=r"no model at nowhere.safetensors"):
        load_model("nowhere.safetensors")
    with pytest.raises(FileNotFoundError, match=r"nowhere must be a directory"):
        load_model("hf:nowhere")


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
        if width > 100:
            raise RuntimeError("too wide")
        self.first, self.last = nn.Conv2d(3, width, 2), nn.Linear(width, 2)
    def forward(self, x):
        return self.last(self.first(x).relu().mean((2, 3)))

class Broken(Net):
    def forward(self, x):
        return super().forward(x).view(77, 77)

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
    loaded = load_model(f"{code}:Net", model_kwargs={"width": 5})
    assert (type(loaded.model).__name__, loaded.model.training) == ("Net", False)
    assert loaded.class_names == ("cat", "dog")
    assert loaded.model.get_parameter("first.weight").shape[0] == 5
    torch.save({"state_dict": loaded.model.state_dict()}, code.parent / "w.pth")
    again = load_model(f"{code}:Net", model_kwargs={"width": 5}, weights=code.parent / "w.pth")
    assert again.notes == ("the weights are those in state_dict",)
    assert torch.equal(
        again.model.get_parameter("last.bias"), loaded.model.get_parameter("last.bias")
    )
    assert len(list(load_model(f"{code}:make").model.children())) == 1
    assert load_model(f"{code}:ready").model.get_parameter("first.bias").shape == (5,)
    monkeypatch.chdir(code.parent)
    (code.parent / "rooms").mkdir()
    (code.parent / "rooms" / "nets.py").write_text("from my_net import Net\n")
    before = list(__import__("sys").path)
    assert type(load_model("rooms.nets:Net").model).__name__ == "Net"
    assert __import__("sys").path == before


def test_errors_in_user_code_name_file_and_line(code: Path) -> None:
    def refused(spec: str, reason: str, **options: Any) -> None:
        with pytest.raises(ValueError, match=reason):
            load_model(spec, **options)

    at = rf"failed in .*my_net\.py, line {CODE[: CODE.index('raise')].count(chr(10)) + 1}, in __in"
    refused(f"{code}:Net", rf"{at}it__: RuntimeError: too wide", model_kwargs={"width": 101})
    refused(f"{code}:Net", "TypeError: .*unexpected keyword .*'wide'", model_kwargs={"wide": 2})
    refused(f"{code}:Nett", r"has no 'Nett'; did you mean Net")
    refused(f"{code}:number", "must be a class, a function or a model, got int")
    refused(f"{code}:not_a_model", "must build an nn.Module, got dict")
    refused(f"{code}:ready", "is already a model", model_kwargs={"width": 2})
    refused(f"{code}:Net", "pretrained belongs to", pretrained=True)
    broken = load_model(f"{code}:Broken").model
    with pytest.raises(ValueError, match=r"RuntimeError in .*my_net\.py, line \d+, in forward: "):
        analyze_model(broken, (32, 32))
    for text, reason in {
        "x = (": r"failed in .*my_net\.py, line 1: SyntaxError",
        "import no_such_room": r"my_net\.py, line 1, in <module>: ModuleNotFoundError: No module",
        "\nraise SystemExit(3)": r"my_net\.py, line 2, in <module>: SystemExit: 3",
    }.items():
        code.write_text(text)
        refused(f"{code}:Net", reason)
    with pytest.raises(FileNotFoundError, match=r"nowhere\.py does not exist"):
        load_model("nowhere.py:Net")


@pytest.mark.parametrize("spec", ["timm:resnet18", "torchvision:resnet18"])
def test_a_failed_download_says_what_to_do(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError("Name or service not known")

    monkeypatch.setattr("timm.create_model", fail)
    monkeypatch.setattr("torchvision.models.get_model", fail)
    with pytest.raises(ConnectionError, match=rf"of {spec} are not in .* \(--weights FILE\)"):
        load_model(spec, pretrained=True)
