"""A model by what people call it."""

from pathlib import Path
from typing import Any

import pytest
import torch

from visattn.models.attention_resnets import AttentionResNet
from visattn.seeing import save
from visattn.seeing.named_models import named_model


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
        ("a/b/c.pth", {}, r"got 'a/b/c.pth'$"),
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
