"""Coordinate attention against its equations and timm; transposed inputs."""

import math

import pytest
import torch
from random_numbers import numbers
from timm.layers.coord_attn import CoordAttn

from visattn.blocks.coordinate import CoordinateAttention
from visattn.recording.recorder import record


def trained(channels: int) -> CoordinateAttention:
    block = CoordinateAttention(channels).double().eval()
    hidden = block.norm.num_features
    block.norm.load_state_dict(
        {
            "weight": numbers(hidden, seed=1),
            "bias": numbers(hidden, seed=2),
            "running_mean": numbers(hidden, seed=3),
            "running_var": numbers(hidden, seed=4).exp(),
            "num_batches_tracked": torch.tensor(1),
        }
    )
    return block


def hidden_of(block: CoordinateAttention, strip: torch.Tensor) -> list[float]:
    """Return the hidden units of a row or column from its mean feature."""
    units: list[float] = []
    of = {name: value.tolist() for name, value in block.norm.state_dict().items()}
    layer = block.squeeze.state_dict()
    for unit in range(block.norm.num_features):
        z = float(layer["weight"][unit, :, 0] @ strip + layer["bias"][unit])
        z = (z - of["running_mean"][unit]) / math.sqrt(of["running_var"][unit] + block.norm.eps)
        z = z * of["weight"][unit] + of["bias"][unit]
        units.append(z * min(max(z + 3, 0), 6) / 6)
    return units


@torch.no_grad()
def test_matches_the_equation() -> None:
    block, x = trained(3), numbers(2, 3, 5, 7)
    y = block(x)
    for b in range(2):
        rows = [hidden_of(block, x[b, :, at].mean(1)) for at in range(5)]
        columns = [hidden_of(block, x[b, :, :, at].mean(1)) for at in range(7)]
        for c in range(3):
            for v in range(5):
                for u in range(7):
                    gate = 1.0
                    for conv, hidden in ((block.rows, rows[v]), (block.columns, columns[u])):
                        layer = conv.state_dict()
                        weights = layer["weight"][c, :, 0].tolist()
                        z = sum(w * h for w, h in zip(weights, hidden, strict=True))
                        gate /= 1 + math.exp(-z - float(layer["bias"][c]))
                    assert float(y[b, c, v, u]) == pytest.approx(
                        float(x[b, c, v, u]) * gate, abs=1e-10
                    )


@pytest.mark.parametrize("training", [True, False])
def test_matches_timm_with_biases_and_the_width_of_the_paper(training: bool) -> None:
    theirs = CoordAttn(64, rd_channels=8, bias=True).train(training)
    ours = CoordinateAttention(64).train(training)
    names = {"squeeze": "conv1", "norm": "bn1", "rows": "conv_h", "columns": "conv_w"}
    ours.load_state_dict(
        {
            f"{mine}.{part}": value.squeeze(-1) if value.ndim == 4 else value
            for mine, name in names.items()
            for part, value in theirs.get_submodule(name).state_dict().items()
        }
    )
    x = torch.randn(3, 64, 5, 7)
    torch.testing.assert_close(ours(x), theirs(x), rtol=0, atol=1e-6)


def test_records_the_gate_of_each_position() -> None:
    block, x = CoordinateAttention(5).eval(), torch.randn(2, 5, 3, 7)
    with torch.no_grad():
        plain = block(x)
        with record(block) as recording:
            y = block(x)
    [gate] = recording.maps
    assert ((gate.values > 0) & (gate.values < 1)).all()
    assert torch.equal(y, x * gate.values)
    assert torch.equal(plain, y)
