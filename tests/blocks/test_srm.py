"""Style-based recalibration against its equations in evaluation and training."""

import math

import pytest
import torch
from random_numbers import numbers

from visattn.blocks.srm import SRM


def scores(block: SRM, x: torch.Tensor) -> list[list[float]]:
    rows: list[list[float]] = []
    for image in x:
        row: list[float] = []
        for channel, (first, second) in zip(image, block.weight.tolist(), strict=True):
            places = channel.flatten().tolist()
            mean = sum(places) / len(places)
            variance = sum((place - mean) ** 2 for place in places) / len(places)
            row.append(first * mean + second * math.sqrt(variance + 1e-5))
        rows.append(row)
    return rows


@pytest.mark.parametrize("training", [True, False])
def test_matches_the_equation(training: bool) -> None:
    block = SRM(3).double().train(training)
    with torch.no_grad():
        state = block.norm.state_dict()
        for seed, name in enumerate(("weight", "bias", "running_mean", "running_var")):
            state[name].copy_(numbers(3, seed=seed).abs())
    x = numbers(5, 3, 7, 11)
    scored = scores(block, x)
    means, variances = (state[f"running_{part}"].tolist() for part in ("mean", "var"))
    if training:
        columns = list(zip(*scored, strict=True))
        means = [sum(column) / 5 for column in columns]
        variances = [
            sum((z - mean) ** 2 for z in column) / 5
            for column, mean in zip(columns, means, strict=True)
        ]
    y = block(x)
    for b in range(5):
        for c in range(3):
            z = (scored[b][c] - means[c]) / math.sqrt(variances[c] + block.norm.eps)
            z = z * float(block.norm.weight[c].detach()) + float(block.norm.bias[c].detach())
            torch.testing.assert_close(y[b, c], x[b, c] / (1 + math.exp(-z)), rtol=0, atol=1e-10)


def test_single_position_has_a_gate() -> None:
    block, x = SRM(5), torch.randn(2, 5, 1, 1)
    assert block(x).isfinite().all()
    assert block.eval()(x[:1]).isfinite().all()


def test_single_image_is_refused_in_training() -> None:
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        SRM(5)(torch.randn(1, 5, 7, 7))
