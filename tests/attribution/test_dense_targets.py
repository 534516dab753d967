"""Dense targets: pixels, regions, boxes, queries and tokens, in coordinates of the photo."""

from typing import Any

import pytest
import torch
from dense_models import CLASSES, PatchDetector, QueryDetector, Segmenter
from hypothesis import given, strategies as st
from torch import Tensor, nn
from torch.nn.functional import interpolate

from visattn import BoxTarget, Geometry, PixelTarget, QueryTarget, RegionTarget
from visattn.attribution.cam import activations_and_gradients
from visattn.attribution.dense_targets import mask_from_runs, mask_on_grid, mask_to_runs
from visattn.attribution.targets import DenseTarget
from visattn.recording.model_info import FeatureLayer
from visattn.recording.subject import describe_model
from visattn.results.info import Thing

LAYER = FeatureLayer("encoder", "b c y x", (6, 10))


def images(count: int = 1, size: tuple[int, int] = (24, 40)) -> Tensor:
    return torch.rand(count, 3, *size, generator=torch.Generator().manual_seed(3))


def bound(target: DenseTarget, model: nn.Module, *geometries: Geometry) -> Any:
    subject = describe_model(model, (24, 40), CLASSES)
    return target.bind(subject, geometries or (Geometry.identity((24, 40)),))


def test_a_pixel_is_the_logit_of_the_upsampled_map() -> None:
    coarse, fine = Segmenter()(images())["out"], Segmenter(upsample=True)(images())["out"]
    target = bound(PixelTarget("cat", x=33, y=5), Segmenter())
    assert target({"out": fine}).item() == pytest.approx(fine[0, 1, 5, 33].item(), abs=1e-5)
    assert target({"out": coarse}).item() == pytest.approx(fine[0, 1, 5, 33].item(), abs=1e-5)


def test_coordinates_are_those_of_the_photo_after_any_preprocessing() -> None:
    photo = torch.zeros(1, 3, 30, 50)
    photo[0, 1, 20, 40] = 60.0  # the logits are the photo itself
    flipped = Geometry.identity((30, 50)).cropped(10, 8, (20, 42)).flipped()
    shown = photo[:, :, 10:, 8:].flip(3)
    target = bound(PixelTarget("cat", x=40, y=20), nn.Identity(), flipped)
    assert target(shown).item() == pytest.approx(60.0, abs=1e-4)
    large = Geometry.identity((30, 50)).resized((60, 100))
    target = bound(PixelTarget(1, x=40, y=20), nn.Identity(), large)
    assert target(interpolate(photo, scale_factor=2)).item() == pytest.approx(60.0, abs=1e-4)


def test_the_cam_of_a_region_is_the_sum_over_its_pixels() -> None:
    subject, batch = describe_model(Segmenter(), (24, 40), CLASSES), images()
    mask = torch.zeros(24, 40)
    mask[4:12, 8:16] = 1  # 2 x 2 cells
    total = torch.zeros(6, 10)
    for y in (5, 9):
        for x in (9, 13):  # a pixel of each cell; the center of a cell of 4 x 4 is between pixels
            pixel = PixelTarget("cat", x=x + 0.5, y=y + 0.5)
            target = pixel.bind(subject, (Geometry.identity((24, 40)),))
            [(activations, gradients)] = activations_and_gradients(subject, batch, target, LAYER)
            total += (activations * gradients.mean((2, 3), keepdim=True)).sum(1)[0]
    region = RegionTarget("cat", mask).bind(subject, (Geometry.identity((24, 40)),))
    [(activations, gradients)] = activations_and_gradients(subject, batch, region, LAYER)
    cam = (activations * gradients.mean((2, 3), keepdim=True)).sum(1)[0]
    assert torch.allclose(cam, total, atol=1e-5)
    elementwise = (activations * gradients).sum(1)[0]  # HiResCAM through a head of 1 x 1
    inside = torch.zeros(6, 10, dtype=torch.bool)
    inside[1:3, 2:4] = True
    assert not bool(elementwise[~inside].any())
    assert bool(elementwise[inside].all())


def test_the_predicted_region_is_chosen_once_and_padding_is_no_part_of_it() -> None:
    geometry = Geometry.identity((4, 6)).padded(0, 0, (4, 8))
    target = bound(RegionTarget("cat"), nn.Identity(), geometry)
    logits = torch.zeros(1, 3, 4, 8)
    logits[0, 1, :, 5:] = 2.0
    assert target(logits).item() == 8.0  # 4 cells of the photo, 8 of the padding
    assert target(logits * 3 - 4).item() == 8.0
    thing = target.describe(0, CLASSES).thing
    assert thing is not None
    assert sum(thing.runs) == 32


def test_a_box_does_not_depend_on_the_order_of_detections() -> None:
    box = (8, 4, 24, 16)
    values = [
        bound(BoxTarget((8, 4, 24, 12), "dog"), detector)(detector(images()))
        for detector in (PatchDetector(box), PatchDetector(box, reverse=True))
    ]
    assert torch.equal(*values)
    score = images()[0, :, 4:16, 8:24].mean()
    assert values[0].item() == pytest.approx((2 / 3) ** 2 * score.item(), abs=1e-5)


def test_the_best_box_and_class_are_chosen_in_the_first_call() -> None:
    detector = PatchDetector((8, 4, 24, 16))
    target = bound(BoxTarget(None), detector)
    target(detector(images()))  # brightness 0.5, below the cat's 0.7
    assert target.describe(0, CLASSES).thing == Thing("box", box=(1.0, 1.0, 4.0, 4.0))
    assert target.class_indices == (1,)
    with pytest.raises(ValueError, match=r"no dog that .* detects cat at \(1, 1, 4, 4\)"):
        bound(BoxTarget((30, 18, 39, 23), "dog"), detector)(detector(images()))


@pytest.mark.parametrize("extra", [0, 1])
def test_queries_of_a_detr_have_logits_boxes_and_detections(extra: int) -> None:
    model = QueryDetector(extra=extra)
    output = model(images())
    target = bound(QueryTarget(1, "dog"), model)
    assert target(output).item() == output["logits"][0, 1, 2].item()
    thing = target.describe(0, CLASSES).thing
    assert thing is not None
    assert thing.box == (20, 0, 40, 12)
    scores = output["logits"].softmax(2) if extra else output["logits"].sigmoid()
    box = bound(BoxTarget((20, 0, 40, 12), "dog"), model)
    assert box(output).item() == pytest.approx(scores[0, 1, 2].item(), abs=1e-6)


@given(bits=st.lists(st.booleans(), min_size=6, max_size=6))
def test_runs_give_the_mask_back(bits: list[bool]) -> None:
    mask = torch.tensor(bits).view(2, 3)
    assert torch.equal(mask_from_runs(*mask_to_runs(mask)), mask)


def test_a_pixel_lies_in_the_cell_around_it() -> None:
    for y, x in ((0, 0), (0, 7), (3, 0), (3, 7), (2, 5)):
        mask = torch.zeros(4, 8)
        mask[y, x] = 1
        for grid in ((4, 8), (2, 4)):
            [cell] = mask_on_grid(mask, Geometry.identity((4, 8)), grid).nonzero().tolist()
            assert cell == [y * grid[0] // 4, x * grid[1] // 8]
