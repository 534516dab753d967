"""Model configs: roundtrip for every class, and refused configs."""

import inspect
import json
from typing import Any

import pytest
import torch
from model_examples import EXAMPLES
from torch import nn

from visattn.models.backbones.timm_encoder import TimmEncoder
from visattn.models.base import SmallEncoder
from visattn.models.saving.config import (
    build_model,
    model_classes,
    model_config,
)
from visattn.results.kinds import SPECIAL_TOKENS


def arguments(kind: type) -> list[str]:
    return list(inspect.signature(kind.__init__).parameters)[1:]


def test_every_class_has_an_example() -> None:
    assert set(EXAMPLES) == set(model_classes())


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_argument_is_an_attribute(name: str) -> None:
    for argument in arguments(model_classes()[name]):
        assert hasattr(EXAMPLES[name], argument), argument


@pytest.mark.parametrize("name", EXAMPLES)
def test_config_builds_the_same_model(name: str) -> None:
    model = EXAMPLES[name]
    described = json.loads(json.dumps(model_config(model), allow_nan=False))
    again = build_model(described)
    assert type(again) is type(model)
    assert model_config(again) == model_config(model)
    assert {k: v.shape for k, v in again.state_dict().items()} == {
        k: v.shape for k, v in model.state_dict().items()
    }
    again.load_state_dict(model.state_dict())
    frozen = [n for n, p in model.named_parameters() if not p.requires_grad]
    assert frozen == [n for n, p in again.named_parameters() if not p.requires_grad]
    size = getattr(model, "img_size", (16, 40))
    if isinstance(model, SmallEncoder | TimmEncoder):
        images = torch.randint(256, (2, 3, *size), dtype=torch.uint8)
        assert torch.equal(model.eval()(images), again.eval()(images))


@pytest.mark.parametrize("name", EXAMPLES)
def test_config_contains_every_argument(name: str) -> None:
    described = model_config(EXAMPLES[name])
    assert described["class"] == name
    assert list(described["arguments"]) == arguments(model_classes()[name])


def test_configs_of_foreign_classes_are_refused() -> None:
    class SmallEncoder(nn.Module):  # of the same name as ours
        pass

    for model in (nn.Linear(2, 3), SmallEncoder()):
        with pytest.raises(ValueError, match=f"must be one of .*, got {type(model).__name__}"):
            model_config(model)


def test_config_values_are_plain() -> None:
    encoder = SmallEncoder((16, 16), channels=4)
    encoder.channels = torch.tensor(4)  # type: ignore[assignment]
    with pytest.raises(TypeError, match="plain values only, got Tensor"):
        model_config(encoder)


SMALL: dict[str, Any] = {"class": "SmallEncoder", "arguments": {"img_size": [16, 16]}}


@pytest.mark.parametrize(
    ("description", "reason"),
    [
        ({}, "names one of .*KnowingWhenToLook, .*SmallEncoder"),
        ({"class": "os.system", "arguments": {"command": "true"}}, "got 'os.system'"),
        ({"class": "SmallEncoder"}, "and its arguments"),
        ({"class": "SmallEncoder", "arguments": [3]}, "and its arguments"),
        ({"class": ["SmallEncoder"], "arguments": {}}, "names one of"),
        ({"class": "SmallEncoder", "arguments": {"sise": [8, 8]}}, "no argument sise; it has"),
        ({"class": "SmallEncoder", "arguments": {"img_size": [9, 8]}}, "multiples of 8"),
        ({"class": "SmallEncoder", "arguments": {"img_size": 5}}, "cannot be built"),
        (
            {"class": "TimmEncoder", "arguments": {"name": "test_resnet", "pretrained": True}},
            "may not set pretrained or weights",
        ),
        (
            {"class": "TimmEncoder", "arguments": {"name": "test_resnet", "weights": "/x"}},
            "may not set pretrained or weights",
        ),
        (
            {
                "class": "TimmEncoder",
                "arguments": {"name": "test_resnet", "timm_kwargs": {"checkpoint_path": "/x"}},
            },
            "may not contain checkpoint_path",
        ),
        (
            {"class": "ShowAttendTell", "arguments": {"words": [], "encoder": SMALL}},
            "words must begin with",
        ),
        (
            {
                "class": "ShowAttendTell",
                "arguments": {"words": list(SPECIAL_TOKENS), "encoder": "SmallEncoder"},
            },
            "cannot be built with these arguments",
        ),
        (
            {
                "class": "ShowAttendTell",
                "arguments": {
                    "words": list(SPECIAL_TOKENS),
                    "encoder": {"class": "subprocess.Popen", "arguments": {"args": "true"}},
                },
            },
            "got 'subprocess.Popen'",
        ),
    ],
)
def test_invalid_configs_are_refused(description: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        build_model(description)


def test_a_saved_argument_that_left_is_ignored_at_its_old_default_only() -> None:
    description = model_config(EXAMPLES["VisionTransformer"])
    old = {"attn_type": "full", "window_size": [7, 7], "num_registers": 0, "norm_eps": 1e-6}
    again = build_model({**description, "arguments": {**description["arguments"], **old}})
    assert model_config(again) == description
    old["num_registers"] = 4
    message = r"num_registers=4 of VisionTransformer was last read by visattn 0\.1\.0"
    with pytest.raises(ValueError, match=message):
        build_model({**description, "arguments": {**description["arguments"], **old}})
