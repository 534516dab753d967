"""DETR: shapes, layers, selection of detections, and the variants."""

from typing import Any

import pytest
import torch
from torch import Tensor

from visattn.functional.boxes import center_to_corners
from visattn.models.base import SmallEncoder
from visattn.models.detr import DETR, BoxPrediction
from visattn.recording.recorder import record
from visattn.results.kinds import NO_OBJECT

PLAIN: dict[str, Any] = {
    "queries": "learned",
    "cross_attention": "dense",
    "class_probability": "softmax",
    "num_encoder_layers": 1,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": PLAIN,
    "anchors": {"cross_attention": "dense"},
    "deformable": {},
    "two_stage": {"two_stage": True},
    "denoising": {"num_denoising_groups": 2},
    "all": {"two_stage": True, "num_denoising_groups": 3, "num_encoder_layers": 1},
}
LABELS = torch.tensor([[2, 0], [1, NO_OBJECT]])
BOXES = torch.tensor([[0.3, 0.5, 0.2, 0.4], [0.7, 0.4, 0.3, 0.2]]).expand(2, 2, 4)


def images(seed: int = 0) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (2, 3, 24, 40), generator=random, dtype=torch.uint8)


def detector(**options: Any) -> DETR:
    torch.manual_seed(7)
    options = {"num_decoder_layers": 3, **options}
    encoder = SmallEncoder((24, 40), channels=8)
    model = DETR(("cat", "dog", "owl"), encoder, dim=16, num_queries=5, num_heads=2, **options)
    with torch.no_grad():  # the last box layer starts at 0
        heads: Any
        for heads in filter(None, (model.heads, model.first_stage)):
            heads.boxes[-1].weight.normal_(std=0.3)
    return model


@pytest.mark.parametrize("variant", VARIANTS)
def test_layers_and_training_outputs_of_each_variant(variant: str) -> None:
    options = VARIANTS[variant]
    model = detector(**options)
    output = model.decode(model.encode(images()), (LABELS, BOXES))
    classes = 3 + (options.get("class_probability") == "softmax")
    assert output.layers.logits.shape == (3, 2, 5, classes)
    assert output.layers.boxes.shape == (3, 2, 5, 4)
    assert bool(((output.layers.boxes >= 0) & (output.layers.boxes <= 1)).all())
    groups = options.get("num_denoising_groups", 0)
    assert (output.denoising is not None) == bool(groups)
    assert output.denoising is None or output.denoising.boxes.shape == (3, 2, 2 * groups, 4)
    assert (output.proposals is not None) == options.get("two_stage", False)
    assert len(output.points) == (0 if options.get("cross_attention") == "dense" else 3)
    parts = [output.layers, *filter(None, (output.denoising, output.proposals))]
    losses = [part.logits.square().sum() + part.boxes.sum() for part in parts]
    torch.stack(losses).sum().backward()
    unused = [name for name, weight in model.named_parameters() if weight.grad is None]
    assert unused == []


@pytest.mark.parametrize("variant", VARIANTS)
def test_boxes_of_a_query_do_not_depend_on_other_images(variant: str) -> None:
    model = detector(**VARIANTS[variant]).eval()
    both = model(images())
    alone = model(images()[1:])
    torch.testing.assert_close(both.boxes[1:], alone.boxes, rtol=1e-4, atol=1e-5)


def test_object_queries_never_see_denoising_queries() -> None:
    model = detector(**VARIANTS["denoising"]).eval()
    memory = model.encode(images())
    without = model.decode(memory)
    for boxes in (BOXES, BOXES.flip(1) / 2):
        output = model.decode(memory, (LABELS, boxes))
        torch.testing.assert_close(output.layers, without.layers, rtol=1e-4, atol=1e-5)
    assert without.denoising is None


def test_denoising_groups_see_neither_each_other_nor_padding() -> None:
    model = detector(**VARIANTS["denoising"]).eval()
    assert model.denoising is not None
    memory, (own, _) = model.encode(images()), model._initial_queries(model.encode(images()))
    added = model.denoising(LABELS, BOXES)
    before = model._run_decoder(own.append(added), memory)[0].boxes[-1]
    changed = added.content.clone()
    changed[0, 2] += 5  # first object of the second group
    changed[1, 1] += 5  # padding of the first group
    after = model._run_decoder(own.append(added._replace(content=changed)), memory)[0].boxes[-1]
    moved = (after - before).abs().amax(-1) > 1e-4
    assert moved.tolist() == [[False] * 7 + [True] * 2, [False] * 6 + [True] + [False] * 2]


def test_denoising_is_off_without_targets_and_without_objects() -> None:
    model = detector(**VARIANTS["denoising"]).train()
    memory = model.encode(images())
    assert model.decode(memory).denoising is None
    nothing = torch.zeros(2, 0, dtype=torch.int64), torch.zeros(2, 0, 4)
    assert model.decode(memory, nothing).denoising is None


def test_each_layer_refines_the_detached_box_before_it() -> None:
    model = detector()
    memory = model.encode(images())
    boxes = model.decode(memory).layers.boxes
    assert model.anchors is not None
    [gradient] = torch.autograd.grad(boxes[0].sum(), model.anchors, retain_graph=True)
    assert float(gradient.abs().sum()) > 0
    # Later boxes depend on the anchors through the positions of the first layer only.
    with torch.no_grad():
        for parameter in model.heads.boxes.parameters():
            parameter.zero_()
    anchors = model.anchors.sigmoid().expand(2, -1, -1)
    for layer in model.decode(memory).layers.boxes:
        torch.testing.assert_close(layer, anchors, rtol=1e-4, atol=1e-5)


def test_two_stages_start_from_the_best_cells() -> None:
    model = detector(two_stage=True).eval()
    memory = model.encode(images())
    queries, proposals = model._initial_queries(memory)
    assert proposals is not None
    scores = proposals.logits.sigmoid().amax(-1)
    for row in range(2):
        best = scores[row].argsort(descending=True)[:5]
        torch.testing.assert_close(queries.boxes[row], proposals.boxes[row, best])
    assert not queries.boxes.requires_grad


def test_sigmoid_selects_among_queries_and_classes() -> None:
    model = detector()
    logits = torch.tensor([[[3.0, 2.0, -9], [-9, -9, -9], [1, -9, -9], *[[-9, -9, -9]] * 2]])
    boxes = torch.rand(1, 5, 4, generator=torch.Generator().manual_seed(0))
    predicted = model.select(BoxPrediction(logits, boxes), max_detections=3)
    assert (predicted.labels.tolist(), predicted.queries.tolist()) == ([[0, 1, 0]], [[0, 0, 2]])
    torch.testing.assert_close(predicted.scores[0], torch.tensor([3.0, 2.0, 1.0]).sigmoid())
    expected = center_to_corners(boxes[0, [0, 0, 2]]).clamp(0, 1)
    torch.testing.assert_close(predicted.boxes[0], expected)


def test_softmax_selects_one_class_per_query_and_never_no_object() -> None:
    model = detector(**PLAIN)
    logits = torch.tensor([[[3.0, 2, 0, 9], [0, 1, 0, 0], *[[0.0, 0, 0, 0]] * 3]])
    predicted = model.select(BoxPrediction(logits, torch.full((1, 5, 4), 0.5)), max_detections=99)
    assert predicted.queries.shape == (1, 5)
    assert (int(predicted.queries[0, 0]), int(predicted.labels[0, 0])) == (1, 1)
    assert (int(predicted.queries[0, -1]), int(predicted.labels[0, -1])) == (0, 0)


@pytest.mark.parametrize(("variant", "grid"), [("deformable", (3, 5)), ("plain", (3, 5))])
def test_cross_attention_is_recorded_and_does_not_change_the_output(
    variant: str, grid: tuple[int, int]
) -> None:
    model = detector(**VARIANTS[variant]).eval()
    before = model(images())
    with record(model, layers="decoder_layers.*.cross_attn.tap") as recording:
        after = model(images())
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-5)
    assert [each.kind for each in recording.maps] == ["queries"] * 3
    for weights in recording.maps:
        assert weights.values.shape == (2, 2, 5, *grid)
        assert float(weights.values.sum((-1, -2)).max()) <= 1 + 1e-5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"queries": "learned"}, "need queries='anchors'"),
        ({**PLAIN, "two_stage": True}, "need queries='anchors'"),
        ({"cross_attention": "sparse"}, "cross_attention"),
        ({"class_probability": "none"}, "class_probability"),
        ({"num_decoder_layers": 0}, "at least 1"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        detector(**options)


def test_more_queries_than_cells_are_refused_with_two_stages() -> None:
    encoder = SmallEncoder((16, 16), channels=8)
    model = DETR(("cat",), encoder, dim=8, num_queries=5, two_stage=True)
    with pytest.raises(ValueError, match="at least as many cells as queries"):
        model(torch.zeros(1, 3, 16, 16, dtype=torch.uint8))
