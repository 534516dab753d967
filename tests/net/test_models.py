"""Keys, shapes, configs and outputs of every class of models."""

import copy

import pytest
import torch
from kept_values import Keep
from model_examples import EXAMPLES
from named_weights import fill
from net_cases import outputs

from visattn.models.config import model_config


@pytest.mark.parametrize("name", EXAMPLES)
def test_keys_configs_and_outputs(name: str, keep: Keep) -> None:
    model = EXAMPLES[name]
    state = {key: list(value.shape) for key, value in model.state_dict().items()}
    torch.manual_seed(0)
    with torch.no_grad():
        output = outputs(fill(copy.deepcopy(model)))
    keep(f"models/{name}", {"config": model_config(model), "state": state, "output": output})
