"""Cross-attention of detectors' queries, beside eager attention and bilinear sampling."""

from typing import Any

import pytest
import torch
import transformers

from tests.helpers.image_text_models import tiny_detector, tiny_rt_detr
from visattn.blocks.transformer.deformable import deformable_splat
from visattn.recording.query_attention import overlaps, record_queries

DENSE = ("Detr", "ConditionalDetr", "TableTransformer", "DabDetr")


def images(height: int = 128, width: int = 200) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    return {"pixel_values": torch.randn(1, 3, height, width, generator=generator)}


@pytest.mark.parametrize("kind", ["Detr", "ConditionalDetr"])
def test_weights_are_those_of_eager_attention(kind: str) -> None:
    model = tiny_detector(kind)
    output, layers = record_queries(model, images())
    model.set_attn_implementation("eager")
    with torch.no_grad():
        theirs = model(**images(), output_attentions=True)
    assert len(layers) == len(theirs.cross_attentions) == 2
    for layer, weights in zip(layers, theirs.cross_attentions, strict=True):
        torch.testing.assert_close(layer.weights.flatten(2), weights[0], rtol=1e-4, atol=2e-6)
    torch.testing.assert_close(output.pred_boxes, theirs.pred_boxes, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("kind", [*DENSE, "DeformableDetr"])
def test_every_family_gives_weights_on_its_grid_and_is_left_alone(kind: str) -> None:
    model = tiny_detector(kind).train()
    torch.manual_seed(0)
    _, layers = record_queries(model, images())
    assert model.training
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    sampled = kind == "DeformableDetr"
    for layer in layers:
        assert layer.weights.shape == ((4, 7, 16, 25) if sampled else (3, 7, 4, 7))
        mass = layer.weights.sum((2, 3))
        assert float(mass.max()) <= 1 + 1e-4
        assert sampled or float(mass.min()) >= 1 - 1e-4


def test_a_marked_block_changes_the_cell_at_its_place() -> None:
    """The tokens that queries attend to lie where the grid says; the block is off center."""
    model = tiny_detector("Detr")
    encoded: list[torch.Tensor] = []
    model.model.encoder.register_forward_hook(
        lambda _module, _args, output: encoded.append(output.last_hidden_state[0])
    )
    plain, marked = images(224, 352), images(224, 352)
    marked["pixel_values"][:, :, 128:160, 224:256] += 4.0  # row 4, column 7
    for each in (plain, marked):
        _, layers = record_queries(model, each)
    grid = layers[-1].weights.shape[2:]
    assert tuple(grid) == (7, 11)
    change = (encoded[0] - encoded[1]).norm(dim=1).view(grid)
    row, column = divmod(int(change.argmax()), 11)
    assert abs(row - 4) <= 1
    assert abs(column - 7) <= 1


def test_sampled_weights_are_what_each_cell_contributes() -> None:
    model = tiny_detector("DeformableDetr")
    _, layers = record_queries(model, images())
    points = layers[-1].points
    assert points is not None
    total = torch.zeros(4, 7)
    for level, shape in enumerate(points.level_shapes):
        places, weights = points.places[None, :, :, level], points.weights[None, :, :, level]
        total += deformable_splat(places, weights, shape)[0].sum((2, 3))
    torch.testing.assert_close(layers[-1].weights.sum((2, 3)), total, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(points.weights.sum((2, 3)), torch.ones(7, 4), rtol=1e-4, atol=1e-5)


def test_rt_detr_samples_and_its_successor_is_refused_by_name() -> None:
    inputs = images(128, 192)
    _, layers = record_queries(tiny_rt_detr(), inputs)
    assert layers[-1].points is not None
    assert layers[-1].weights.shape == (3, 7, 16, 24)
    with pytest.raises(ValueError, match="queries of RTDetrV2ForObjectDetection .* occlusion or"):
        record_queries(tiny_rt_detr("RTDetrV2"), inputs)


def test_models_without_boxes_or_cross_attention_are_refused() -> None:
    small: dict[str, Any] = {
        "hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
        "intermediate_size": 31,
    }  # fmt: skip
    yolos = transformers.YolosForObjectDetection(
        transformers.YolosConfig(**small, image_size=[64, 96], num_detection_tokens=5)
    )
    with pytest.raises(ValueError, match="queries are tokens of the encoder"):
        record_queries(yolos, images(64, 96))
    vit = transformers.ViTForImageClassification(transformers.ViTConfig(**small, image_size=64))
    with pytest.raises(ValueError, match="must return logits and pred_boxes"):
        record_queries(vit, images(64, 64))


def test_coarse_cells_keep_their_mass_and_place_on_a_finer_grid() -> None:
    shares = overlaps(5, 13)
    torch.testing.assert_close(shares.sum(0), torch.ones(5))
    centers = (torch.arange(13) + 0.5) / 13
    torch.testing.assert_close(centers @ shares, (torch.arange(5) + 0.5) / 5, rtol=0, atol=0.02)
    torch.testing.assert_close(overlaps(7, 7), torch.eye(7), rtol=0, atol=1e-5)
