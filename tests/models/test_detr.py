"""DETR: shapes, layers against their equations, and selection of detections."""

from typing import Any

import torch
from random_numbers import pixels

from visattn.models.base import SmallEncoder
from visattn.models.detr import DETR, BoxPrediction, DetrDecoderLayer
from visattn.recording.recorder import record

IMAGES = pixels(2, 3, 24, 40)


def detector(**options: Any) -> DETR:
    torch.manual_seed(7)
    options = {"num_encoder_layers": 1, "num_decoder_layers": 3, **options}
    encoder = SmallEncoder((24, 40), channels=8)
    model = DETR(("cat", "dog", "owl"), encoder, dim=16, num_queries=5, num_heads=2, **options)
    with torch.no_grad():  # the last box layer starts at 0
        heads: Any = model.heads
        heads.boxes[-1].weight.normal_(std=0.3)
    return model


def test_a_decoder_layer_is_that_of_the_paper() -> None:
    """Position embeddings are added to queries and keys alone, as in the authors' code."""
    torch.manual_seed(1)
    ours = DetrDecoderLayer(16, num_heads=2, mlp_ratio=2.0)
    x, position = torch.randn(2, 5, 16), torch.randn(5, 16)
    cells, places = torch.randn(2, 6, 16), torch.randn(6, 16)
    expected = ours.norm1(x + ours.self_attn(x + position, x + position, x)[0])
    read, _ = ours.cross_attn(expected + position, cells + places, cells)
    expected = ours.norm2(expected + read)
    expected = ours.norm3(expected + ours.mlp(expected))
    torch.testing.assert_close(ours(x, position, cells, places, (2, 3)), expected)


def test_softmax_selects_one_class_per_query_and_never_no_object() -> None:
    model = detector()
    logits = torch.tensor([[[3.0, 2, 0, 9], [0, 1, 0, 0], *[[0.0, 0, 0, 0]] * 3]])
    predicted = model.select(BoxPrediction(logits, torch.full((1, 5, 4), 0.5)), max_detections=99)
    assert predicted.queries.shape == (1, 5)
    assert (int(predicted.queries[0, 0]), int(predicted.labels[0, 0])) == (1, 1)
    assert (int(predicted.queries[0, -1]), int(predicted.labels[0, -1])) == (0, 0)


def test_cross_attention_is_recorded_and_does_not_change_the_output() -> None:
    model = detector().eval()
    before = model(IMAGES)
    with record(model, layers="decoder_layers.*.cross_attn.tap") as recording:
        after = model(IMAGES)
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-5)
    assert [each.kind for each in recording.maps] == ["queries"] * 3
    for weights in recording.maps:
        assert weights.values.shape == (2, 2, 5, 3, 5)
        torch.testing.assert_close(weights.values.sum((-1, -2)), torch.ones(2, 2, 5))
