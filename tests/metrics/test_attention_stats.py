"""Attention statistics of layers."""

import json
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from visattn.blocks.tap import RecordRequest, Tap
from visattn.metrics.attention_stats import diagnose_layers, layer_diagnostics
from visattn.recording.model_info import AttentionLayer, ExplainedModel, ModelInfo
from visattn.results.attention_map import AttentionMap
from visattn.results.info import MapInfo

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


def subject(model: nn.Module) -> ExplainedModel:
    card = ModelInfo("looking", "other", (2, 2), (0.5,) * 3, (0.5,) * 3, "class")
    return ExplainedModel(model, card, model)


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
