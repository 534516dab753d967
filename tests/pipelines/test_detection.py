"""Detection in photos: boxes and maps in the coordinates of the original, and figures."""

import pytest
import torch
from question_models import small_detector
from random_numbers import photo

from visattn.functional.boxes import center_to_corners
from visattn.images.resize import ResizeMode, ResizeSpec
from visattn.pipelines.detection import detect, detector_attention
from visattn.viz.detections import detection_figure


@pytest.mark.parametrize("size", [(48, 80), (3, 200), (97, 31), (24, 40)])
@pytest.mark.parametrize("mode", ["pad", "squash", "crop"])
def test_boxes_and_maps_lie_on_the_photo(size: tuple[int, int], mode: ResizeMode) -> None:
    [result] = detect(small_detector(), photo(*size), threshold=0.0, resize_mode=mode)
    assert result.objects or size == (3, 200)  # a row of the input, beside all of the boxes
    spec = ResizeSpec(small_detector().img_size, mode=mode)
    assert result.maps.geometry == spec.geometry(size)
    assert len(result.maps) == len(result.objects)
    for each in result.objects:
        left, top, right, bottom = each.box
        assert 0 <= left < right <= size[1]
        assert 0 <= top < bottom <= size[0]
    scores = [each.score for each in result.objects]
    assert scores == sorted(scores, reverse=True)


def test_boxes_are_those_of_the_model() -> None:
    model, image = small_detector(), photo(24, 40)
    prediction = model(torch.from_numpy(image).permute(2, 0, 1)[None])
    boxes = center_to_corners(prediction.boxes[0]).clamp(0, 1) * torch.tensor([40, 24, 40, 24])
    [result] = detect(model, image, threshold=0.0)
    for each in result.objects:
        assert each.box == pytest.approx(boxes[each.query].tolist(), abs=1e-3)
        label = model.class_names.index(each.label)
        probability = prediction.logits[0, each.query].softmax(-1)[label].detach()
        assert each.score == pytest.approx(float(probability), abs=1e-5)


def test_threshold_and_number_of_detections() -> None:
    model, image = small_detector(), photo(24, 40)
    [everything] = detect(model, image, threshold=0.0)
    scores = [each.score for each in everything.objects]
    [selected] = detect(model, image, threshold=scores[2])
    assert [each.score for each in selected.objects] == pytest.approx(scores[:3])
    [two] = detect(model, image, threshold=0.0, max_detections=2)
    assert len(two.objects) == 2
    [none] = detect(model, image, threshold=1.0)
    assert none.objects == ()
    assert detection_figure(image, none).axes


def test_maps_are_the_recorded_attention() -> None:
    model, image = small_detector(), photo(24, 40)
    looked = detector_attention(model, torch.from_numpy(image).permute(2, 0, 1)[None])
    [result] = detect(model, image, threshold=0.0)
    queries = [each.query for each in result.objects]
    torch.testing.assert_close(result.maps.values, looked.maps[0, queries], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(result.maps.values.sum((1, 2)), torch.ones(len(queries)))


def test_layers_have_their_own_maps_and_the_model_is_restored() -> None:
    model, image = small_detector().train(), photo(24, 40)
    [last], [first], [mean] = (
        detect(model, image, threshold=0.0, layers=layers) for layers in (-1, [0], (0, 1))
    )
    for one, other in zip(first.objects, last.objects, strict=True):
        assert (one.label, one.query) == (other.label, other.query)
        assert one.box == pytest.approx(other.box, abs=1e-4)  # recorded weights are not fused
    assert (first.maps.info.layer, mean.maps.info.layer) == ("0", "0, 1")
    expected = (first.maps.values + last.maps.values) / 2
    torch.testing.assert_close(mean.maps.values, expected, atol=1e-5, rtol=1e-4)
    assert not torch.allclose(first.maps.values, last.maps.values)
    assert model.training
