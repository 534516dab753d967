"""Attention statistics of layers and heads, by hand and of recorded models."""

import json
import math
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor, nn

from visattn.blocks.tap import RecordRequest, Tap
from visattn.metrics.attention_stats import (
    attention_entropy,
    diagnose_layers,
    head_diversity,
    layer_diagnostics,
    mean_attention_distance,
    received_attention,
    saturated_fraction,
)
from visattn.recording.model_info import AttentionLayer, ModelInfo
from visattn.recording.subject import Subject
from visattn.results.attention_map import AttentionMap
from visattn.results.info import MapInfo


def rows(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64).mul(2).softmax(-1)


@given(st.integers(2, 13))
def test_entropy_of_rows_uniform_over_a_subset_of_the_keys(keys: int) -> None:
    for used in range(1, keys + 1):
        row = torch.zeros(1, keys, dtype=torch.float64)
        row[0, :used] = 1 / used
        assert attention_entropy(row).item() == pytest.approx(
            math.log(used) / math.log(keys), abs=1e-12
        )
        assert attention_entropy(row, max(used, 2)).item() == pytest.approx(
            float(used > 1), abs=1e-12
        )


def test_single_key_has_zero_entropy() -> None:
    assert attention_entropy(torch.ones(3, 1)).tolist() == [0, 0, 0]


def test_saturated_rows_are_counted() -> None:
    weights = torch.tensor([[[0.91, 0.09], [0.9, 0.1]], [[1.0, 0.0], [0.0, 1.0]]])
    assert saturated_fraction(weights).tolist() == [0.5, 1.0]


def test_distance_matches_a_loop() -> None:
    weights = rows(2, 3, 5, 7)
    queries, keys = torch.rand(5, 2).double(), torch.rand(7, 2).double()
    expected = torch.zeros(2, 3, dtype=torch.float64)
    for q in range(5):
        for k in range(7):
            expected += weights[:, :, q, k] * math.dist(queries[q].tolist(), keys[k].tolist()) / 5
    assert torch.allclose(mean_attention_distance(weights, queries, keys), expected, atol=1e-12)


def test_rows_without_weight_on_patches_are_excluded() -> None:
    weights, places = (
        torch.tensor([[0.0, 0.0], [0.25, 0.25]]),
        torch.tensor([[0.0, 0.0], [0.0, 4.0]]),
    )
    assert mean_attention_distance(weights, places, places).item() == 2
    assert mean_attention_distance(0 * weights, places, places).isnan()


def test_head_diversity_is_the_mean_over_pairs_and_zero_for_a_single_head() -> None:
    weights = rows(2, 3, 5, 7)
    moved = torch.zeros(3, 3, dtype=torch.float64)
    for a in range(3):
        for b in range(3):
            moved[a, b] = (weights[:, a] - weights[:, b]).abs().sum(-1).mean() / 2
    assert torch.allclose(head_diversity(weights), moved.sum(1) / 2, atol=1e-12)
    assert head_diversity(weights[:, :1]).tolist() == [0]


def test_received_attention_sums_to_the_number_of_queries() -> None:
    weights = rows(2, 3, 5, 7)
    received = received_attention(weights)
    assert torch.allclose(received.sum(-1), torch.ones(2, 3, dtype=torch.float64))
    mean = weights[1, 1, :, 4].sum().item() / 5
    assert received[1, 1, 4].item() == pytest.approx(mean, abs=1e-12)


ROLES = ("class", "register", "register")


def layer(weights: Tensor, grid: tuple[int, int], **made: Any) -> AttentionMap:
    values = weights[..., len(ROLES) :].unflatten(-1, grid)
    return AttentionMap(values, "blocks.0", "tokens", info=MapInfo(prefix_tokens=ROLES, **made))


def test_uniform_attention() -> None:
    weights = torch.full((2, 3, 3 + 35, 3 + 35), 1 / 38)
    result = layer_diagnostics(layer(weights, (5, 7)), weights, (80, 112))
    assert torch.allclose(result.entropy, torch.ones(3))
    assert result.saturated.tolist() == result.diversity.tolist() == [0, 0, 0]
    assert result.before["class"].tolist() == pytest.approx([1 / 38] * 3)
    assert result.before["register"].tolist() == pytest.approx([2 / 38] * 3)
    places = [(y, x) for y in range(5) for x in range(7)]
    mean = sum(math.dist(a, b) for a in places for b in places) / 35**2
    assert result.distance.tolist() == pytest.approx([mean] * 3, rel=1e-5)
    assert result.pixels.tolist() == pytest.approx([16 * mean] * 3, rel=1e-5)


def test_shifted_head_and_register_head_by_hand() -> None:
    weights = torch.zeros(1, 2, 38, 38)
    for query in range(38):
        at = query - 3
        weights[0, 0, query, query if at < 0 or at % 7 == 6 else query + 1] = 1.0
        weights[0, 1, query, 2] = 1.0
    result = layer_diagnostics(layer(weights, (5, 7)), weights, (80, 112))
    assert result.distance[0].item() == pytest.approx(6 / 7)
    assert result.pixels[0].item() == pytest.approx(16 * 6 / 7)
    assert result.distance[1].isnan()
    assert result.saturated.tolist() == [1, 1]
    assert result.entropy.tolist() == [0, 0]
    assert result.sink[1].item() == 1
    assert result.before["register"].tolist() == pytest.approx([2 / 38, 1])
    assert result.diversity.tolist() == pytest.approx([37 / 38] * 2)
    plain = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert plain["distance"] == [pytest.approx(6 / 7), None]


def test_windows_and_differing_query_grids() -> None:
    weights = torch.zeros(1, 1, 8, 16)
    weights[..., :4] = 0.25  # a window of 2 x 2 among 4 x 4 keys, for 2 x 4 queries
    attention_map = AttentionMap(
        weights.unflatten(-1, (4, 4)), "a", "tokens", info=MapInfo(prefix_tokens=())
    )
    card = AttentionLayer("a", (2, 4), 1, key_grid=(4, 4), window_size=(2, 2))
    result = layer_diagnostics(attention_map, weights, (32, 64), card)
    assert result.entropy.item() == pytest.approx(1)
    queries = [(8 + 16 * y, 8 + 16 * x) for y in range(2) for x in range(4)]
    keys = [(4, 8 + 16 * x) for x in range(4)]
    mean = sum(math.dist(a, b) for a in queries for b in keys) / 32
    assert result.pixels.item() == pytest.approx(mean, rel=1e-6)
    unplaced = layer_diagnostics(attention_map, weights[:, :, :3], (32, 64))
    assert unplaced.before == {}


class Looking(nn.Module):
    """Attention of a class token and four patches that depends on the brightness of the image."""

    def __init__(self) -> None:
        super().__init__()
        self.tap = Tap("tokens", grid=(2, 2))
        self.tap.roles, self.tap.fulfilled = ("class",), RecordRequest()

    def forward(self, images: Tensor) -> Tensor:
        keys = torch.cat([images.new_zeros(len(images), 1), images[:, 0].flatten(1)], 1)
        weights = keys.softmax(-1)[:, None, None].expand(-1, 3, 5, -1)
        return self.tap(weights).sum((1, 2))


def subject(model: nn.Module) -> Subject:
    card = ModelInfo("looking", "other", (2, 2), (0.5,) * 3, (0.5,) * 3, "class")
    return Subject(model, card, model)


def test_means_over_batches_equal_means_over_images() -> None:
    images = torch.randn(5, 3, 2, 2)
    [whole] = diagnose_layers(subject(Looking()), [images])
    [parts] = diagnose_layers(subject(Looking()), [images[:2], images[2:]])
    assert whole.site == parts.site == "tap"
    for name, values in whole.measures().items():
        assert torch.allclose(parts.measures()[name], values, atol=1e-6), name
    assert list(whole.measures())[-1] == "to class"


def test_model_without_attention_is_refused() -> None:
    model = nn.Sequential(nn.Sigmoid(), Tap("gate"))
    with pytest.raises(ValueError, match="but none was recorded over 1 images"):
        diagnose_layers(subject(model), [torch.zeros(1, 3, 2, 2)])
