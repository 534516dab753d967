"""Values of every attribution method on a CNN, transformers and a detector."""

from typing import Any

import pytest
import torch
from kept_values import Keep
from named_weights import fill, waves
from net_cases import EXPLAINED
from torch import nn

import visattn as va
from visattn.attribution import METHODS


@pytest.mark.parametrize("name", EXPLAINED)
def test_maps_of_every_method(name: str, keep: Keep) -> None:
    create, target = EXPLAINED[name]
    model = fill(create())
    maps = {method: _explained(model, method, target) for method in METHODS}
    assert sum("values" in each for each in maps.values()) > 5
    keep(f"methods/{name}", maps)


def _explained(model: nn.Module, method: str, target: Any) -> dict[str, Any]:
    """Return the map of a photo, or the reason why there is none."""
    photo = waves(1, 3, 61, 83)[0].permute(1, 2, 0).numpy()
    chosen = target if METHODS[method].needs_target else None
    torch.manual_seed(0)
    try:
        [heatmap] = va.explain(model, photo, method, chosen)
    except ValueError as reason:
        return {"refused": str(reason)}
    values = heatmap.values
    return {
        "values": values[tuple(slice(None, None, 1 + side // 12) for side in values.shape)],
        "size": list(values.shape),
        "matrix": heatmap.geometry.matrix if heatmap.geometry else None,
        "info": _known(heatmap.info.to_dict()),
    }


def _known(record: dict[str, Any]) -> dict[str, Any]:
    """Return the entries of a record that are not empty, unknown or false."""
    if record.get("thing"):
        record = {**record, "thing": _known(record["thing"])}
    record = {**record, "note": "", "probability": None}  # newer than what is kept
    return {key: v for key, v in record.items() if v not in (None, "", [], {}) and v is not False}
