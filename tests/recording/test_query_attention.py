"""Cross-attention of the queries of detectors, ours and of transformers: weights and places."""

from typing import Any

import pytest
import torch
from image_text_models import tiny_detector
from question_models import small_detector
from random_numbers import photo

import visattn as va

SIZE = (64, 96)
PHOTO = photo(*SIZE, seed=4)


@pytest.mark.parametrize("kind", ["Detr", "ConditionalDetr"])
def test_weights_are_those_of_eager_attention(kind: str) -> None:
    model = tiny_detector(kind).train()
    images = torch.randn(2, 3, *SIZE, generator=torch.Generator().manual_seed(1))
    model.eval()
    with torch.no_grad(), va.record(model, queries=[5, 2]) as recording:
        model(pixel_values=images)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        theirs = model(pixel_values=images, output_attentions=True).cross_attentions
    maps = [each for each in recording.maps if each.kind == "queries"]
    assert [each.site for each in maps] == [
        f"model.decoder.layers.{layer}.encoder_attn" for layer in (0, 1)
    ]
    for each, weights in zip(maps, theirs, strict=True):
        assert each.values.shape == (2, 3, 2, 2, 3)
        expected = weights[:, :, [5, 2]]
        torch.testing.assert_close(each.values.flatten(3), expected, rtol=1e-4, atol=2e-6)


def test_the_map_of_a_query_is_its_attention_in_the_last_decoder_layer() -> None:
    cases: list[tuple[Any, dict[str, Any]]] = [
        (tiny_detector("Detr"), {"input_size": SIZE}),
        (small_detector(), {}),
    ]
    targets = [va.QueryTarget(3), va.QueryTarget(1)]
    for model, options in cases:
        explainer = va.Explainer(model, resize_mode="pad", **options)
        with torch.no_grad(), va.record(model, queries=[3, 1]) as recording:
            model(explainer.prepare(PHOTO).inputs)
        recorded = [each for each in recording.maps if each.kind == "queries"][-2:]
        for layer in (-1, 0):
            [maps] = explainer.explain(PHOTO, "attention", targets, layers=layer)
            for index, each in enumerate(maps):
                expected = recorded[layer].values[0, :, index].mean(0)
                torch.testing.assert_close(each.values, expected, rtol=1e-4, atol=1e-6)
                assert each.site == recorded[layer].site
                assert each.info.thing is not None
                assert each.info.thing.index == targets[index].query
                torch.testing.assert_close(each.values.sum(), torch.tensor(1.0))
                assert each.resize_to_image().shape == SIZE
        dense = va.Explainer(model, dense=True, **options)  # as the command line does
        [same] = dense.map(dense.prepare(PHOTO), "attention", targets[1], layers=0)
        torch.testing.assert_close(same.values, maps[1].values)
