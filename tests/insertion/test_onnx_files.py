"""Baked models as ONNX files, run by ONNX Runtime."""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from host_models import image, residual_net
from torch import Tensor, nn
from torch.export import Dim

from visattn.insertion.insertion import insert
from visattn.insertion.weights import bake

MISSING = [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]

pytestmark = [
    pytest.mark.compile,
    pytest.mark.skipif(
        bool(MISSING), reason=f"no {', '.join(MISSING)}: pip install 'visattn[onnx]'"
    ),
]


def written(model: nn.Module, path: Path) -> Any:
    """Export a model for any batch and size; return a session that runs the file."""
    sizes = {0: Dim.DYNAMIC, 2: Dim.DYNAMIC, 3: Dim.DYNAMIC}
    torch.onnx.export(model, (image(),), path, dynamo=True, dynamic_shapes=(sizes,), verbose=False)
    import_module("onnx").checker.check_model(path)
    return import_module("onnxruntime").InferenceSession(path, providers=["CPUExecutionProvider"])


def computed(session: Any, x: Tensor) -> np.ndarray:
    [model_input] = session.get_inputs()
    [made] = session.run(None, {model_input.name: x.numpy()})
    return made


@pytest.mark.parametrize("name", ["se", "eca", "cbam", "coordinate", "gc"])
def test_baked_model_exports_to_onnx_for_any_batch_and_size(name: str, tmp_path: Path) -> None:
    model, plain = residual_net().eval(), residual_net().eval()
    insert(model, name, position="residual", example=image(), init="paper")
    for key, parameter in model.named_parameters():
        if ".visattn." in key:  # nonzero, so that a missing block changes the output
            nn.init.normal_(parameter, std=0.5)
    bake(model)
    session = written(model, tmp_path / "model.onnx")
    for x in (image(), torch.randn(5, 3, 34, 22)):
        with torch.no_grad():
            expected, without = model(x).numpy(), plain(x).numpy()
        assert np.abs(expected - without).max() > 1e-2
        np.testing.assert_allclose(computed(session, x), expected, rtol=0, atol=1e-5)
