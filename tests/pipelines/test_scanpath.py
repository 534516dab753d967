"""From a glimpse model and images to a path on the images: what was fed is what is told."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from visattn.data.images.reader import ImageError, LoadedImage
from visattn.data.images.resize import ResizeSpec, frame
from visattn.functional.glimpses.paths import raster_paths
from visattn.models.encoder import SmallEncoder
from visattn.models.ram.ram import RecurrentAttentionModel
from visattn.pipelines.scanpath import ScanPath, glimpses

CLASSES = ("cat", "dog", "bird")
RNG = np.random.default_rng(11)
PHOTO = RNG.integers(0, 256, (37, 53, 3), dtype=np.uint8)
OTHER = RNG.integers(0, 256, (61, 29, 3), dtype=np.uint8)


def small_model(channels: int = 3, **options: Any) -> RecurrentAttentionModel:
    torch.manual_seed(5)
    given = {"glimpse": 5, "scales": 2, "glimpses": 4, "width": 13, "what": 7, "where": 11}
    mean, std = (0.4,) * channels, (0.3,) * channels
    model = RecurrentAttentionModel(CLASSES, (23, 31), mean, std, **{**given, **options})
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if weights.ndim > 1:  # opinions, so that other images get other paths
                weights.mul_(9 if name.startswith("policy") else 2)
    return model.eval()


def cut(
    pixels: np.ndarray, left: int, top: int, side: int, cells: int, around: float
) -> np.ndarray:
    """Return the means over cells of a window of `[c, y, x]`, one pixel after the other."""
    channels, height, width = pixels.shape
    found = np.zeros((channels, cells, cells))
    wide = side // cells
    for channel in range(channels):
        for row in range(cells):
            for column in range(cells):
                total = 0.0
                for y in range(top + row * wide, top + (row + 1) * wide):
                    for x in range(left + column * wide, left + (column + 1) * wide):
                        inside = 0 <= y < height and 0 <= x < width
                        total += float(pixels[channel, y, x]) if inside else around
                found[channel, row, column] = total / wide**2
    return found


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("policy", ["mean", "sampled", "random", "raster", "saliency"])
def test_the_path_that_is_told_is_the_one_that_was_fed(
    channels: int, policy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = small_model(channels, background=0.2)
    fed: list[torch.Tensor] = []
    model.glimpse_net.register_forward_pre_hook(lambda _, given: fed.append(given[0]))
    [found] = glimpses(model, PHOTO, policy=policy, seed=3)
    assert len(fed) == len(found.patches) == 4  # the first included, none after the last
    for index, (x, y) in enumerate(found.places.tolist()):
        for scale in range(2):
            side = 5 * 2**scale
            left = math.floor((np.float32(x) + 1) / 2 * 31 - side / 2 + 0.5)
            top = math.floor((np.float32(y) + 1) / 2 * 23 - side / 2 + 0.5)
            window = cut(found.pixels.numpy(), left, top, side, 5, 0.2 * 255)
            seen = (fed[index][0, scale] * model.scale + model.shift).numpy()
            np.testing.assert_allclose(seen, window, atol=1e-3)
            np.testing.assert_allclose(found.patches[index, scale].numpy(), window, atol=0.51)


def test_the_network_input_is_the_framed_image() -> None:
    framed, geometry = frame(LoadedImage(PHOTO), ResizeSpec((23, 31)))
    [color], [gray] = glimpses(small_model(), PHOTO), glimpses(small_model(1), PHOTO)
    torch.testing.assert_close(color.pixels, framed)
    by_pillow = np.array(Image.fromarray(framed.permute(1, 2, 0).numpy()).convert("L"))
    np.testing.assert_array_equal(gray.pixels[0].numpy(), by_pillow)
    assert color.maps.geometry == gray.maps.geometry == geometry


def test_a_gray_image_and_a_model_for_colors_and_the_other_way_round() -> None:
    gray = PHOTO[..., 0]
    [one] = glimpses(small_model(), gray)
    [two] = glimpses(small_model(), np.repeat(gray[..., None], 3, 2))
    torch.testing.assert_close(one.probabilities, two.probabilities)
    [three] = glimpses(small_model(1), gray)
    assert three.patches.shape == (4, 2, 1, 5, 5)


def test_boxes_lie_on_the_original_image() -> None:
    image = RNG.integers(0, 256, (46, 86, 3), dtype=np.uint8)  # 46 x 62 of it are seen
    model = small_model()
    [found] = glimpses(model, image, policy="raster")
    windows = model.boxes(raster_paths(1, 4)[0])
    expected = windows.double() * 2 + torch.tensor([12, 0, 12, 0])
    torch.testing.assert_close(found.boxes, expected)


def test_maps_say_how_sharply_each_pixel_was_seen() -> None:
    model = small_model()
    [found] = glimpses(model, PHOTO, policy="random", seed=8)
    assert found.maps.kind == "glimpse"
    assert found.maps.labels == ("1", "2", "3", "4")
    windows = model.boxes(found.places).long().tolist()
    for value, (fine, wide) in zip(found.maps.values, windows, strict=True):
        for y in range(23):
            for x in range(31):
                within = [b[0] <= x < b[2] and b[1] <= y < b[3] for b in (fine, wide)]
                assert value[y, x] == (1 if within[0] else 0.5 if within[1] else 0)


def test_probabilities_are_those_of_the_model() -> None:
    model = small_model(start="center")
    [found] = glimpses(model, PHOTO)
    framed, _ = frame(LoadedImage(PHOTO), ResizeSpec((23, 31)))
    with torch.no_grad():
        scores = model(framed[None])[0]
        looks = model.look(framed[None])
    torch.testing.assert_close(found.probabilities[-1], scores.double().softmax(-1))
    torch.testing.assert_close(found.probabilities, looks.scores[0, 0].double().softmax(-1))
    torch.testing.assert_close(found.places, looks.places[0, 0])
    best = int(scores.argmax())
    assert (found.answer, found.probability) == (
        CLASSES[best],
        float(found.probabilities[-1].max()),
    )


def paths(found: list[ScanPath]) -> list[list[list[float]]]:
    return [one.places.tolist() for one in found]


@pytest.mark.parametrize("policy", ["mean", "sampled", "random"])
def test_chance_belongs_to_the_seed_and_the_image(policy: Any) -> None:
    model = small_model()
    both = paths(glimpses(model, [PHOTO, OTHER], policy=policy, seed=2))
    assert paths(glimpses(model, [OTHER, PHOTO], policy=policy, seed=2)) == both[::-1]
    assert paths(glimpses(model, OTHER, policy=policy, seed=2)) == both[1:]
    assert both[0][0] != both[1][0]
    again = paths(glimpses(model, PHOTO, policy=policy, seed=3))
    assert again[0] != both[0]


def test_policies_go_their_own_ways() -> None:
    model = small_model(start="center")
    found = {
        policy: paths(glimpses(model, PHOTO, policy=policy))[0]
        for policy in ("mean", "sampled", "random", "raster", "saliency")
    }
    assert found["raster"] == raster_paths(1, 4)[0].tolist()
    assert found["mean"][0] == found["sampled"][0] == [0, 0]
    assert len({str(path) for path in found.values()}) == 5


def test_model_and_random_state_come_back_as_they_were() -> None:
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


@pytest.mark.parametrize("fit", ["crop", "squash", "pad"])
@pytest.mark.parametrize("size", [(1, 1), (1, 90), (90, 1), (300, 200), (23, 31)])
def test_any_image_can_be_looked_at(size: tuple[int, int], fit: Any) -> None:
    [found] = glimpses(small_model(), np.zeros((*size, 3), np.uint8), fit=fit)
    assert found.maps.on_image().shape == (4, *size)
    assert found.boxes.isfinite().all()


def test_bars_beside_a_image_are_background() -> None:
    white = np.full((23, 11, 3), 255, np.uint8)
    [found] = glimpses(small_model(background=0.5), white, fit="pad")
    assert set(found.pixels[0, 7].tolist()) == {128, 255}


def test_a_glimpse_may_be_larger_than_the_image() -> None:
    [found] = glimpses(small_model(glimpse=41, scales=1), PHOTO)
    assert found.patches.shape == (4, 1, 3, 41, 41)


def test_files_turned_by_their_camera_are_looked_at_upright(tmp_path: Path) -> None:
    turned = Image.fromarray(PHOTO)
    exif = turned.getexif()
    exif[0x0112] = 6
    turned.save(tmp_path / "a.png", exif=exif)
    [found] = glimpses(small_model(), tmp_path / "a.png", policy="raster")
    [upright] = glimpses(small_model(), np.rot90(PHOTO, -1).copy(), policy="raster")
    torch.testing.assert_close(found.patches, upright.patches)
    torch.testing.assert_close(found.boxes, upright.boxes)
    assert found.maps.geometry is not None
    assert found.maps.geometry.orientation == 6


def broken(value: float) -> RecurrentAttentionModel:
    model = small_model()
    with torch.no_grad():
        model.classifier.bias.fill_(value)
    return model


@pytest.mark.parametrize(
    ("call", "error", "reason"),
    [
        (lambda: glimpses(SmallEncoder((24, 24)), PHOTO), TypeError, "got SmallEncoder"),
        (lambda: glimpses(broken(math.nan), PHOTO), ValueError, "gives NaN or infinity"),
        (lambda: glimpses(broken(math.inf), PHOTO), ValueError, "gives NaN or infinity"),
    ],
    ids=["kind", "nan", "infinity"],
)
def test_what_cannot_look_is_refused(
    call: Callable[[], object], error: type[Exception], reason: str
) -> None:
    with pytest.raises(error, match=reason):
        call()


def test_no_images_no_scans() -> None:
    assert glimpses(small_model(), []) == []
