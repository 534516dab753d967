"""Scan paths of glimpse models on images."""

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from visattn.images.reader import ImageError, LoadedImage
from visattn.images.resize import ResizeSpec, resize_to_input
from visattn.models.glimpses.ram import RecurrentAttentionModel
from visattn.pipelines.scanpath import glimpses, raster_scanpaths
from visattn.results.values import ScanPath

CLASSES = ("cat", "dog", "bird")
RNG = np.random.default_rng(11)
PHOTO = RNG.integers(0, 256, (37, 53, 3), dtype=np.uint8)
OTHER = RNG.integers(0, 256, (61, 29, 3), dtype=np.uint8)


def small_model(channels: int = 3, **options: Any) -> RecurrentAttentionModel:
    torch.manual_seed(5)
    defaults = {
        "glimpse_size": 5, "num_scales": 2, "num_glimpses": 4,
        "hidden_size": 13, "what_dim": 7, "where_dim": 11,
    }  # fmt: skip
    mean, std = (0.4,) * channels, (0.3,) * channels
    model = RecurrentAttentionModel(CLASSES, (23, 31), mean, std, **{**defaults, **options})
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if weights.ndim > 1:  # so that paths differ between images
                weights.mul_(9 if name.startswith("policy") else 2)
    return model.eval()


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("policy", ["greedy", "sampled", "random", "raster", "saliency"])
def test_patches_and_locations_match_the_network_input(
    channels: int, policy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = small_model(channels, pad_value=0.2)
    fed: list[torch.Tensor] = []
    model.glimpse_net.register_forward_pre_hook(lambda _, inputs: fed.append(inputs[0]))
    [scan] = glimpses(model, PHOTO, policy=policy, seed=3)
    assert len(fed) == len(scan.patches) == 4  # the first included, none after the last
    pyramid = model.retina.pyramid(model.normalize(scan.pixels[None]))
    for patches, windows, place in zip(scan.patches, fed, scan.locations, strict=True):
        known = model.retina(pyramid, place[None].float(), torch.tensor([0]))
        torch.testing.assert_close(windows, known)
        actual = windows[0] * model.scale + model.shift
        torch.testing.assert_close(patches.float(), actual, atol=0.51, rtol=0)


def test_network_input_is_the_resized_image() -> None:
    resized, geometry = resize_to_input(LoadedImage(PHOTO), ResizeSpec((23, 31)))
    [color], [gray] = glimpses(small_model(), PHOTO), glimpses(small_model(1), PHOTO)
    torch.testing.assert_close(color.pixels, resized)
    by_pillow = np.array(Image.fromarray(resized.permute(1, 2, 0).numpy()).convert("L"))
    np.testing.assert_array_equal(gray.pixels[0].numpy(), by_pillow)
    assert color.maps.geometry == gray.maps.geometry == geometry


def test_boxes_are_placed_on_the_original() -> None:
    image = RNG.integers(0, 256, (46, 86, 3), dtype=np.uint8)  # of which 46 x 62 are visible
    model = small_model()
    [scan] = glimpses(model, image, policy="raster")
    windows = model.retina.boxes(raster_scanpaths(1, 4)[0], model.img_size)
    expected = windows.double() * 2 + torch.tensor([12, 0, 12, 0])
    torch.testing.assert_close(scan.boxes, expected)


def test_maps_hold_the_resolution_of_each_pixel() -> None:
    model = small_model()
    [scan] = glimpses(model, PHOTO, policy="random", seed=8)
    assert scan.maps.kind == "glimpse"
    assert scan.maps.labels == ("1", "2", "3", "4")
    windows = model.retina.boxes(scan.locations, model.img_size).long().tolist()
    for value, (fine, wide) in zip(scan.maps.values, windows, strict=True):
        for y in range(23):
            for x in range(31):
                within = [b[0] <= x < b[2] and b[1] <= y < b[3] for b in (fine, wide)]
                assert value[y, x] == (1 if within[0] else 0.5 if within[1] else 0)


def test_probabilities_match_the_model() -> None:
    model = small_model()
    model.random_start = False  # type: ignore[misc] (as that of DRAM)
    [scan] = glimpses(model, PHOTO)
    resized, _ = resize_to_input(LoadedImage(PHOTO), ResizeSpec((23, 31)))
    with torch.no_grad():
        scores = model(resized[None])[0]
        rollout = model.rollout(model.normalize(resized[None]))
    torch.testing.assert_close(scan.probabilities[-1], scores.double().softmax(-1))
    torch.testing.assert_close(scan.probabilities, rollout.logits[0, 0].double().softmax(-1))
    torch.testing.assert_close(scan.locations, rollout.locations[0, 0])
    best = int(scores.argmax())
    assert (scan.prediction, scan.probability) == (
        CLASSES[best],
        float(scan.probabilities[-1].max()),
    )


def paths(scans: list[ScanPath]) -> list[list[list[float]]]:
    return [scan.locations.tolist() for scan in scans]


@pytest.mark.parametrize("policy", ["greedy", "sampled", "random"])
def test_random_locations_depend_on_seed_and_image_only(policy: Any) -> None:
    model = small_model()
    both = paths(glimpses(model, [PHOTO, OTHER], policy=policy, seed=2))
    assert paths(glimpses(model, OTHER, policy=policy, seed=2)) == both[1:]
    assert both[0][0] != both[1][0]
    assert paths(glimpses(model, PHOTO, policy=policy, seed=3))[0] != both[0]


def test_policies_differ() -> None:
    model = small_model()
    model.random_start = False  # type: ignore[misc] (as that of DRAM)
    by_policy = {
        policy: paths(glimpses(model, PHOTO, policy=policy))[0]
        for policy in ("greedy", "sampled", "random", "raster", "saliency")
    }
    assert by_policy["raster"] == raster_scanpaths(1, 4)[0].tolist()
    assert by_policy["greedy"][0] != by_policy["sampled"][0]
    assert len({str(path) for path in by_policy.values()}) == 5


def test_training_mode_and_random_state_are_restored() -> None:
    model = small_model().train()
    model.glimpse_net.eval()
    before = torch.get_rng_state()
    glimpses(model, PHOTO, policy="sampled")
    torch.testing.assert_close(torch.get_rng_state(), before)
    assert model.training
    assert not model.glimpse_net.training
    with pytest.raises(ImageError, match="not an image"):
        glimpses(model, b"nothing")
    assert model.training


@pytest.mark.parametrize("resize_mode", ["crop", "squash", "pad"])
@pytest.mark.parametrize("size", [(1, 1), (1, 90), (90, 1), (300, 200), (23, 31)])
def test_images_of_any_size(size: tuple[int, int], resize_mode: Any) -> None:
    [scan] = glimpses(small_model(), np.zeros((*size, 3), np.uint8), resize_mode=resize_mode)
    assert scan.maps.resize_to_image().shape == (4, *size)
    assert scan.boxes.isfinite().all()


def test_padding_has_the_pad_value() -> None:
    white = np.full((23, 11, 3), 255, np.uint8)
    [scan] = glimpses(small_model(pad_value=0.5), white, resize_mode="pad")
    assert set(scan.pixels[0, 7].tolist()) == {128, 255}


@pytest.mark.parametrize("glimpses", [1, 2, 5, 6, 13])
def test_raster_scans_row_by_row(glimpses: int) -> None:
    path = raster_scanpaths(3, glimpses)
    assert path.shape == (3, glimpses, 2)
    assert torch.equal(path[0], path[2])
    places = [tuple(place) for place in path[0].tolist()]
    assert places == sorted(places, key=lambda place: (place[1], place[0]))
    rows = [[x for x, y in places if y == row] for row in sorted({y for _, y in places})]
    lengths = [len(row) for row in rows]
    assert lengths == sorted(lengths, reverse=True)
    assert abs(len(rows) - lengths[0]) <= 1 >= lengths[0] - lengths[-1]  # about as many of both
    for row in rows:  # each is spread over the whole width
        assert row == pytest.approx([(2 * i + 1) / len(row) - 1 for i in range(len(row))])
