"""Attention among positions against loops over them, in float64."""

import pytest
import torch
from named_weights import fill
from random_numbers import numbers
from torch import Tensor, nn

from visattn.blocks import BoTNetAttention, CrissCrossAttention, DANet, DoubleAttention, NonLocal
from visattn.recording.recorder import record

GRID = [(row, column) for row in range(3) for column in range(5)]


def at(block: nn.Module, name: str, pixel: Tensor) -> Tensor:
    """Return a 1 x 1 convolution of one position."""
    state = block.get_submodule(name).state_dict()
    return state["weight"][:, :, 0, 0] @ pixel + state["bias"]


def attended(block: nn.Module, image: Tensor, scale: float = 1.0, *, cross: bool = False) -> Tensor:
    """Return the weighted values at each position of an image, over its row and column if cross."""
    output = []
    for i in GRID:
        seen = [j for j in GRID if not cross or i[0] == j[0] or i[1] == j[1]]
        query = at(block, "query", image[:, *i])
        scores = torch.stack([query @ at(block, "key", image[:, *j]) * scale for j in seen])
        values = torch.stack([at(block, "value", image[:, *j]) for j in seen])
        output.append((scores.softmax(0)[:, None] * values).sum(0))
    return torch.stack(output, 1).unflatten(1, (3, 5))


def channel_attention(image: Tensor, sign: int) -> Tensor:
    output = []
    for channel in image:
        weights = torch.stack([sign * (channel * other).sum() for other in image]).softmax(0)
        output.append((weights[:, None, None] * image).sum(0))
    return torch.stack(output)


def test_non_local_block_matches_the_equation() -> None:
    x = numbers(2, 6, 3, 5)
    for scale in (False, True):
        block = fill(NonLocal(6, scale=scale).double())
        for image, y in zip(x, block(x), strict=True):
            z = attended(block, image, 3**-0.5 if scale else 1.0)
            projected = torch.stack([at(block, "project", z[:, *i]) for i in GRID], 1)
            norm = block.norm.state_dict()
            added = (projected.T - norm["running_mean"]) / (norm["running_var"] + 1e-5).sqrt()
            added = (added * norm["weight"] + norm["bias"]).T.unflatten(1, (3, 5))
            torch.testing.assert_close(y, image + added, rtol=0, atol=1e-10)


def test_dual_attention_matches_the_equation() -> None:
    x = numbers(2, 8, 3, 5) / 4
    for inverted in (False, True):
        block = fill(DANet(8, reduction=4, invert_channel_affinity=inverted).double())
        for image, y in zip(x, block(x), strict=True):
            expected = image + block.position_gain * attended(block, image)
            expected = expected + block.channel_gain * channel_attention(image, 1 - 2 * inverted)
            torch.testing.assert_close(y, expected, rtol=0, atol=1e-10)


def test_channel_scores_in_half_precision_do_not_overflow_over_many_positions() -> None:
    loud = 6 * numbers(1, 3, 40, 100).half()  # sums of squares of 144 000, float16 ends at 65 504
    soft = numbers(1, 3, 40, 100).float() / 40
    block = DANet(3)
    with torch.autocast("cpu", torch.bfloat16), record(block) as recording:
        block(soft)
    exact = torch.einsum("bcyx,bdyx->bcd", soft.double(), soft.double()).softmax(-1)
    torch.testing.assert_close(recording.maps[1].values.double(), exact, rtol=1e-5, atol=1e-5)
    with record(block.half()) as recording:
        block(loud)
    assert torch.equal(recording.maps[1].values[0], torch.eye(3, dtype=torch.float16))


@pytest.mark.parametrize("recurrence", [1, 2, 3])
def test_criss_cross_attention_matches_the_equation_applied_recurrently(recurrence: int) -> None:
    block, x = fill(CrissCrossAttention(8, recurrence=recurrence).double()), numbers(2, 8, 3, 5)
    with record(block) as recording:
        y = block(x)
    for image, result in zip(x, y, strict=True):
        for _ in range(recurrence):
            image = image + block.gain * attended(block, image, cross=True)
        torch.testing.assert_close(result, image, rtol=0, atol=1e-10)
    assert [recorded.values.shape for recorded in recording.maps] == [(2, 15, 3, 5)] * recurrence
    assert ((recording.maps[0].values > 0).sum((-2, -1)) == 3 + 5 - 1).all()


def test_double_attention_matches_the_equation() -> None:
    block, x = fill(DoubleAttention(6, num_descriptors=4).double()), numbers(2, 6, 3, 5)
    with record(block) as recording:
        y = block(x)
    for image, result in zip(x, y, strict=True):
        features, gather, distribute = (
            torch.stack([at(block, name, image[:, *i]) for i in GRID])
            for name in ("feature", "gather", "distribute")
        )
        descriptors = [(gather[:, k].softmax(0)[:, None] * features).sum(0) for k in range(4)]
        for n, i in enumerate(GRID):
            shares = zip(distribute[n].softmax(0), descriptors, strict=True)
            read = sum((share * descriptor for share, descriptor in shares), features[0] * 0)
            expected = image[:, *i] + at(block, "project", read)
            torch.testing.assert_close(result[:, *i], expected, rtol=0, atol=1e-10)
    gathering, distributing = (recorded.values for recorded in recording.maps)
    assert gathering.shape == distributing.shape == (2, 4, 3, 5)
    torch.testing.assert_close(gathering.sum((2, 3)), torch.ones(2, 4).double())
    torch.testing.assert_close(distributing.sum(1), torch.ones(2, 3, 5).double())


def test_botnet_attention_matches_the_equation() -> None:
    x = numbers(2, 12, 3, 5)
    for heads, dim, reach in ((4, 3, 13), (3, 5, 1)):
        block = fill(
            BoTNetAttention(12, num_heads=heads, head_dim=dim, max_relative_position=reach).double()
        )
        parts = block.project.weight[:, :, 0, 0].split((heads * dim, heads * dim, 12))
        wq, wk, wv = (part.unflatten(0, (heads, -1)) for part in parts)
        for image, y in zip(x, block(x), strict=True):
            for h, result in enumerate(y.unflatten(0, (heads, -1))):
                for i in GRID:
                    scores = []
                    for j in GRID:
                        down = reach + max(-reach, min(reach, j[0] - i[0]))
                        across = reach + max(-reach, min(reach, j[1] - i[1]))
                        key = wk[h] @ image[:, *j] + block.rows[down] + block.columns[across]
                        scores.append(wq[h] @ image[:, *i] @ key / dim**0.5)
                    values = torch.stack([wv[h] @ image[:, *j] for j in GRID])
                    expected = (torch.stack(scores).softmax(0)[:, None] * values).sum(0)
                    torch.testing.assert_close(result[:, *i], expected, rtol=0, atol=1e-10)
