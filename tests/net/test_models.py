"""Keys, shapes, configs and outputs of every class of models."""

import copy
from typing import Any

import pytest
import torch
from kept_values import Keep
from model_examples import EXAMPLES
from named_weights import fill, waves
from torch import nn

from visattn.models.base import ImageEncoder
from visattn.models.captioning.captioner import Captioner
from visattn.models.saving.config import model_config
from visattn.models.unet import UNet
from visattn.models.vqa.model import VQAModel

WORDS = torch.tensor([[1, 4, 5, 4], [1, 5, 5, 0]])
LENGTHS = torch.tensor([4, 3])


@pytest.mark.parametrize("name", EXAMPLES)
def test_keys_configs_and_outputs(name: str, keep: Keep) -> None:
    model = EXAMPLES[name]
    state = {key: list(value.shape) for key, value in model.state_dict().items()}
    torch.manual_seed(0)
    with torch.no_grad():
        output = _outputs(fill(copy.deepcopy(model)))
    keep(f"models/{name}", {"config": model_config(model), "state": state, "output": output})


def _outputs(model: nn.Module) -> Any:
    size = getattr(model, "img_size", (16, 40))
    channels = len(getattr(model, "mean", (0,) * 3))
    images = waves(2, channels, *size)
    if isinstance(model, Captioner):
        features = model.encoder(images)
        forced = model.teacher_force(features, WORDS, LENGTHS)
        captions = model.search(features, beam_size=3, max_length=5)
        return {"logits": forced.logits, "tokens": captions.tokens, "log_probs": captions.log_probs}
    if isinstance(model, VQAModel):
        return list(model(images, WORDS))
    if isinstance(model, UNet):
        output = model.segment(images)
        return {"logits": output.logits[..., ::5, ::7], "gates": output.gates}
    if isinstance(model, ImageEncoder):
        features = model(images)
        return list(features) if isinstance(features, tuple) else features
    output: Any = model(images)
    return list(output) if isinstance(output, tuple) else output
