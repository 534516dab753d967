"""Cross-attention of the queries of detectors, ours and of transformers: weights and places."""

from typing import Any

import numpy as np
import pytest
import torch
import transformers
from detection_data import small_detector

import visattn as va
from tests.helpers.image_text_models import tiny_detector

SIZE = (128, 192)


def photo() -> np.ndarray:
    return np.random.default_rng(4).integers(0, 256, (*SIZE, 3), dtype=np.uint8)


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
        assert each.values.shape == (2, 3, 2, 4, 6)
        expected = weights[:, :, [5, 2]]
        torch.testing.assert_close(each.values.flatten(3), expected, rtol=1e-4, atol=2e-6)


def test_the_map_of_a_query_is_its_attention_in_the_last_decoder_layer() -> None:
    cases: list[tuple[Any, dict[str, Any]]] = [
        (tiny_detector("Detr"), {"input_size": SIZE}),
        (small_detector(), {}),
    ]
    for model, options in cases:
        explainer = va.Explainer(model, resize_mode="pad", **options)
        with torch.no_grad(), va.record(model, queries=[3, 1]) as recording:
            model(explainer.prepare(photo()).inputs)
        recorded = [each for each in recording.maps if each.kind == "queries"][-2:]
        targets = [va.QueryTarget(3), va.QueryTarget(1)]
        for layer in (-1, 0):
            [maps] = va.explain(model, photo(), "attention", targets, layers=layer, **options)
            for index, each in enumerate(maps):
                expected = recorded[layer].values[0, :, index].mean(0)
                torch.testing.assert_close(each.values, expected, rtol=1e-4, atol=1e-6)
                assert each.site == recorded[layer].site
                assert each.info.thing is not None
                assert each.info.thing.index == targets[index].query
                torch.testing.assert_close(each.values.sum(), torch.tensor(1.0))
                dense = va.Explainer(model, dense=True, **options)  # as the command line does
                batch = dense.prepare(photo())
                [same] = dense.map(batch, "attention", targets[index], layers=layer)
                torch.testing.assert_close(same.values, each.values)
                assert each.resize_to_image().shape == SIZE


def test_a_marked_block_changes_the_weight_of_the_cell_at_its_place() -> None:
    model = tiny_detector("Detr")
    images = torch.randn(1, 3, 224, 352, generator=torch.Generator().manual_seed(1))
    for row, column in ((4, 7), (2, 3)):
        marked = images.clone()
        marked[:, :, row * 32 : row * 32 + 32, column * 32 : column * 32 + 32] += 4.0
        with torch.no_grad(), va.record(model, layers="*encoder_attn") as recording:
            for each in (images, marked):
                model(pixel_values=each)
        first, _, second, _ = (each.values[0].flatten(0, 1).log() for each in recording.maps)
        change = first - second  # of the scores, and by the same number for all cells
        change = (change - change.flatten(1).median(1).values[:, None, None]).norm(dim=0)
        y, x = divmod(int(change.argmax()), 11)
        assert max(abs(y - row), abs(x - column)) <= 1


def test_a_detector_whose_queries_sample_points_is_refused_with_what_to_do() -> None:
    model = tiny_detector("DeformableDetr")
    with pytest.raises(ValueError, match="from its queries .* sample points.*: gradcam"):
        va.explain(model, photo(), "attention", va.QueryTarget(2), input_size=SIZE)
    small: dict[str, Any] = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.YolosConfig(
        **small, intermediate_size=31, image_size=[64, 96], num_detection_tokens=5
    )
    model = transformers.YolosForObjectDetection(config).eval()
    with pytest.raises(ValueError, match="from its queries .* tokens of the encoder; supported"):
        va.explain(model, photo(), "attention", va.QueryTarget(2), input_size=(64, 96))
    with pytest.raises(ValueError, match="numbered from 0, got index 9"):
        va.explain(tiny_detector("Detr"), photo(), "attention", va.QueryTarget(9), input_size=SIZE)
