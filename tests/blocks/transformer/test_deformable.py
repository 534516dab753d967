"""Deformable attention: its points at first, its recorded splat, and marked cells."""

import pytest
import torch
from torch import Tensor

from visattn.blocks.transformer.deformable import DeformableAttention
from visattn.recording.recorder import record

BOXES = torch.tensor([[[0.3, 0.6, 0.2, 0.4], [0.7, 0.5, 0.4, 0.2], [0.9, 0.9, 1.0, 1.0]]]).double()


def block(**options: int) -> DeformableAttention:
    torch.manual_seed(5)
    return DeformableAttention(12, num_heads=3, num_points=4, kdim=5, **options).double()


def randomized() -> DeformableAttention:
    attention = block()
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.normal_()
    return attention


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_points_start_on_rays_from_the_center_to_the_edge_of_the_box() -> None:
    _, points = block()(numbers(1, 3, 12), BOXES, numbers(1, 5, 7, 11))
    assert points.weights.unique().tolist() == [0.25]
    away = (points.locations - BOXES[:, :, None, None, :2]) / (BOXES[:, :, None, None, 2:] / 2)
    reach = away.abs().amax(-1)  # 1 on the edge
    torch.testing.assert_close(reach, torch.arange(1, 5).double().div(4).expand_as(reach))
    torch.testing.assert_close(
        away[..., 0, 0, :], torch.tensor([0.25, 0.0]).double().expand(1, 3, 2)
    )


@pytest.mark.parametrize("differentiable", [False, True])
def test_recorded_splat_gives_the_output(differentiable: bool) -> None:
    attention, query, features = randomized(), numbers(1, 3, 12) / 9, numbers(1, 5, 7, 11)
    plain, _ = attention(query, BOXES, features)
    with record(attention, differentiable=differentiable) as recording:
        output, points = attention(query, BOXES, features)
    [splat] = recording.maps
    assert (splat.kind, tuple(splat.values.shape)) == ("queries", (1, 3, 3, 7, 11))
    assert splat.values.requires_grad == differentiable
    torch.testing.assert_close(output, plain)
    values = attention.value(features).unflatten(1, (3, -1))
    summed = torch.einsum("bhnyx,bhdyx->bnhd", splat.values, values).flatten(2)
    torch.testing.assert_close(attention.out(summed), output)
    outside = ((points.locations < 0) | (points.locations > 1)).any(-1)
    assert bool(outside.any())
    assert float(splat.values.detach().sum((-1, -2)).min()) < 0.99


def test_a_marked_cell_changes_the_queries_whose_splat_has_it() -> None:
    attention, query, features = randomized(), numbers(1, 3, 12) / 9, numbers(1, 5, 7, 11)
    with record(attention) as recording:
        before, _ = attention(query, BOXES, features)
    weights = recording.maps[0].values[0].sum(0)
    for y, x in ((0, 0), (3, 4), (6, 10)):
        marked = features.clone()
        marked[:, :, y, x] += 100
        changed = (attention(query, BOXES, marked)[0] - before)[0].abs().amax(-1) > 1e-6
        assert changed.tolist() == (weights[:, y, x] > 1e-9).tolist()


def test_gradients_reach_query_box_and_features() -> None:
    parts = numbers(1, 2, 12), BOXES[:, :2].clone(), numbers(1, 5, 3, 2)
    parts = tuple(part.requires_grad_() for part in parts)
    output, _ = randomized()(*parts)
    for gradient in torch.autograd.grad(output.sum(), parts):
        assert bool(gradient.isfinite().all())
        assert float(gradient.abs().sum()) > 0


def test_heads_must_divide_the_dimension() -> None:
    with pytest.raises(ValueError, match="num_heads must divide embed_dim"):
        DeformableAttention(10, num_heads=3)
