"""Laws of models that can be saved: each setting is saved as it is, whatever wraps the model."""

import copy
import inspect
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from model_examples import EXAMPLES
from torch import nn

import visattn
from visattn.models.base import SmallEncoder
from visattn.models.captioning.captioner import Captioner
from visattn.models.captioning.show_attend_tell import ShowAttendTell
from visattn.models.config import build_model, model_classes, model_config
from visattn.models.configurable import CLASSES, Configurable
from visattn.models.vqa.model import VQAModel
from visattn.results.kinds import SPECIAL_TOKENS

WORDS = (*SPECIAL_TOKENS, "red", "blue")
HARD = ShowAttendTell(WORDS, SmallEncoder((16, 24), channels=4), hidden_size=5, attention="hard")
KINDS = EXAMPLES | {"hard attention": HARD}


def test_every_class_has_an_example() -> None:
    assert EXAMPLES.keys() == model_classes().keys()


def output(model: Any) -> Any:
    """What a model computes for fixed images."""
    torch.manual_seed(0)
    encoder = getattr(model, "encoder", model)
    images = torch.rand(2, len(encoder.mean), *encoder.img_size).mul(255).byte()
    with torch.no_grad():
        if isinstance(model, Captioner):
            beams = model.search(model.encoder(images), beam_size=2, max_length=4)
            return beams.tokens, beams.log_probs, beams.attention_steps.weights
        if isinstance(model, VQAModel):
            return tuple(model(images, torch.tensor([[1, 4], [1, 5]])))
        return model(images)


def assert_equal(first: Any, second: Any) -> None:
    torch.testing.assert_close(first, second, rtol=0, atol=0, equal_nan=True)


def frozen(model: nn.Module) -> list[str]:
    return [name for name, weight in model.named_parameters() if not weight.requires_grad]


# What may be set on a model: it is saved as if it had been passed.
SETTINGS: dict[str, dict[str, Any]] = {
    "hard attention": {"places": "expectation"},
    "TransformerCaptioner": {"maps": "all"},
    "MAC": {"question_beginnings": ("what is", "how many")},
    "UNet": {"class_names": ("ant", "bee")},
}


@pytest.mark.parametrize(("name", "settings"), [*((n, {}) for n in KINDS), *SETTINGS.items()])
def test_saved_models_compute_the_same(name: str, settings: dict[str, Any], tmp_path: Path) -> None:
    model: Any = copy.deepcopy(KINDS[name]).eval()
    for setting, value in settings.items():
        setattr(model, setting, value)
    visattn.save(model, tmp_path / "model.safetensors")
    again: Any = visattn.load(tmp_path / "model.safetensors")
    assert (type(again), again.training, frozen(again)) == (type(model), False, frozen(model))
    assert {setting: getattr(again, setting) for setting in settings} == settings
    assert model_config(again) == model_config(model)
    assert_equal(dict(again.state_dict()), dict(model.state_dict()))
    assert_equal(output(again), output(model))


@pytest.mark.parametrize("name", KINDS)
def test_a_config_has_what_the_attributes_are_and_survives_copies(name: str) -> None:
    model: Any = copy.deepcopy(KINDS[name])
    saved = model_config(model)
    assert saved["class"] == type(model).__name__
    assert model_config(pickle.loads(pickle.dumps(model))) == saved
    model.compile(backend="eager")
    assert model_config(model) == saved
    if name != "TimmEncoder":  # its constructor runs timm's network
        with torch.device("meta"):
            assert model_config(build_model(saved)) == saved
    for argument in type(model).argument_names():
        before = getattr(model, argument)
        derived = isinstance(inspect.getattr_static(type(model), argument, None), property)
        if isinstance(before, int | float) and not isinstance(before, bool) and not derived:
            setattr(model, argument, 2 * before)
            assert model_config(model)["arguments"][argument] == 2 * before, argument


def test_classes_of_visattn_cannot_be_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CLASSES, "SmallEncoder", SmallEncoder)  # as it was, afterwards
    namesake = type("SmallEncoder", (SmallEncoder,), {})
    with pytest.raises(ValueError, match="a SmallEncoder is not a model of visattn"):
        model_config(namesake((16, 24)))
    assert type(build_model(model_config(SmallEncoder((16, 24))))) is SmallEncoder
    # or others find two classes of that name, until it is collected
    namesake.__name__ = namesake.__qualname__ = "Namesake"


def test_defaults_of_a_class_are_not_mistaken_for_arguments() -> None:
    class Named(Configurable, nn.Module):
        label = "class"

        def __init__(self, label: str = "none") -> None:
            super().__init__()

    assert Named("mine").saved_arguments() == {"label": "mine"}
    assert Named().saved_arguments() == {"label": "none"}

    class Fixed(Named):
        def __init__(self, label: str) -> None:
            super().__init__()
            self.label = "class"  # whatever was passed

    assert Fixed("mine").saved_arguments() == {"label": "class"}


def test_unnamed_arguments_are_refused_when_saved() -> None:
    class Unnamed(SmallEncoder):
        def __init__(self, **options: Any) -> None:
            super().__init__((16, 24), **options)

    with pytest.raises(TypeError, match="constructor of Unnamed must name its arguments"):
        model_config(Unnamed(channels=8))
