"""Entry points of `torch.hub`, from the checkout as torch.hub loads them."""

import importlib.util
import inspect
from pathlib import Path
from typing import Any

import pytest
import torch

import visattn as va

ROOT = str(Path(__file__).resolve().parents[1])


def load(name: str, *arguments: Any, **options: Any) -> Any:
    return torch.hub.load(ROOT, name, *arguments, source="local", **options)


def test_every_entry_point_is_documented_and_builds() -> None:
    spec = importlib.util.spec_from_file_location("hubconf", f"{ROOT}/hubconf.py")
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(hubconf := importlib.util.module_from_spec(spec))
    names = [name for name in dir(hubconf) if name[0] != "_" and callable(vars(hubconf)[name])]
    arguments: dict[str, tuple[Any, ...]] = {
        "attention_resnet": ("eca",),
        "block": ("cbam", 64),
        "model": ("scenes-glimpses",),
        "scenes_captioner": (),
        "scenes_glimpses": (),
        "vit": ("cct_2_3x2", 3),
    }
    assert names == list(arguments)
    for name in names:
        assert inspect.getdoc(vars(hubconf)[name])
        assert isinstance(load(name, *arguments[name]), torch.nn.Module)


def test_bundled_models_have_trained_or_random_weights() -> None:
    [trained, again, random] = [
        load("scenes_captioner", pretrained=pretrained).state_dict() for pretrained in (1, 1, 0)
    ]
    own = va.load("scenes-captioner").state_dict()
    key = next(name for name in own if name.endswith("embedding.weight"))
    assert torch.equal(trained[key], own[key])
    assert torch.equal(trained[key], again[key])
    assert not torch.equal(trained[key], random[key])


def test_an_unknown_model_is_refused_with_close_names() -> None:
    with pytest.raises(FileNotFoundError, match="did you mean scenes-captioner"):
        load("model", "scene-captioner")
