"""Captions, overlays and saved models of the public API."""

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import visattn
from visattn.geometry.affine import Geometry
from visattn.images.reader import ImageError, read_image
from visattn.images.resize import ResizeMode
from visattn.models.backbones.timm_encoder import TimmEncoder
from visattn.models.base import SmallEncoder
from visattn.models.captioning.show_attend_tell import ShowAttendTell
from visattn.models.config import model_config
from visattn.models.glimpses.ram import RecurrentAttentionModel
from visattn.models.saving import load, save
from visattn.pipelines.captioning import caption
from visattn.pipelines.scanpath import glimpses
from visattn.recording.recorder import Recording
from visattn.results.attention_map import AttentionMap
from visattn.results.captions import Caption
from visattn.results.info import MapInfo
from visattn.results.kinds import SPECIAL_TOKENS
from visattn.viz.captions import caption_figure
from visattn.viz.maps import overlay

WORDS = (*SPECIAL_TOKENS, *"abcdefghijk")


@pytest.fixture
def model() -> ShowAttendTell:
    encoder = SmallEncoder((24, 40), channels=12)
    captioner = ShowAttendTell(WORDS, encoder, embed_dim=11, hidden_size=17, attention_dim=7)
    with torch.no_grad():
        for weight in (
            captioner.decoder.output.weight,
            captioner.decoder.output_hidden.weight,
            captioner.decoder.get_parameter("attention.scorer.vector"),
        ):
            weight.mul_(7)
    return captioner.eval()


def noise(y: int = 53, x: int = 83, *, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (y, x, 3), dtype=np.uint8)


def assert_same(result: Caption, other: Caption) -> None:
    assert result.words == other.words
    assert result.finished == other.finished
    assert result.score == pytest.approx(other.score, abs=1e-4)
    assert result.log_probs == pytest.approx(other.log_probs, abs=1e-4)
    torch.testing.assert_close(result.maps.values, other.maps.values, atol=1e-5, rtol=0)
    assert result.maps.geometry == other.maps.geometry


def test_images_are_accepted_in_all_forms(model: ShowAttendTell, tmp_path: Path) -> None:
    pixels, buffer = noise(), BytesIO()
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    Image.fromarray(pixels).save(buffer, format="png")
    (expected,) = caption(model, pixels)
    sources = [
        tmp_path / "photo.png",
        str(tmp_path / "photo.png"),
        Image.fromarray(pixels),
        buffer.getvalue(),
        read_image(pixels),
    ]
    for source in sources:
        (alone,) = caption(model, source)
        assert_same(alone, expected)
    for several in (sources, tuple(sources), iter(sources)):
        captions = caption(model, several)
        assert len(captions) == len(sources)
        for result in captions:
            assert_same(result, expected)
    with pytest.raises(ValueError, match="at least one image"):
        caption(model, [])


def test_caption_fields_are_consistent(model: ShowAttendTell) -> None:
    (result,) = caption(model, noise(), max_length=7)
    count = len(result.words)
    assert result.text == " ".join(result.words)
    assert set(result.words) <= set(WORDS[4:])
    assert len(result.log_probs) == len(result.gates) == len(result.maps) == count > 0
    assert result.maps.labels == result.words
    assert result.maps.kind == "words"
    assert result.maps.values.shape == (count, *model.encoder.grid_size)
    torch.testing.assert_close(result.maps.values.sum((1, 2)), torch.ones(count))
    assert all(0 < gate < 1 for gate in result.gates)
    assert all(log_prob < 0 for log_prob in result.log_probs)
    assert (result.maps.info.model, result.maps.info.image) == ("ShowAttendTell", "image")
    assert result.maps.info.more == {"beam_size": 5, "resize_mode": "crop"}


def test_alternatives_are_ranked(model: ShowAttendTell) -> None:
    for best in caption(model, [noise(), noise(31, 97, seed=1)], num_captions=4, max_length=9):
        every = [best, *best.alternatives]
        assert len(every) == 4
        assert len({other.words for other in every}) == 4
        ranked = [(other.finished, other.score) for other in every]
        assert ranked == sorted(ranked, reverse=True)
        assert not any(other.alternatives for other in best.alternatives)
        assert all(len(other.maps) == len(other.words) for other in every)


def test_captions_do_not_depend_on_the_batch(model: ShowAttendTell) -> None:
    images = [noise(20 + 7 * i, 90 - 11 * i, seed=i) for i in range(7)]
    for together, image in zip(caption(model, images), images, strict=True):
        (alone,) = caption(model, image)
        assert_same(together, alone)


@pytest.mark.parametrize(
    ("resize_mode", "region"),
    # The input is 24 x 40: an image of 50 x 200 is cropped to its central 83.3 columns.
    [("crop", (58.33, 0, 141.67, 50)), ("squash", (0, 0, 200, 50)), ("pad", (0, 0, 200, 50))],
)
def test_maps_are_placed_on_the_original(
    model: ShowAttendTell, resize_mode: ResizeMode, region: tuple[float, ...]
) -> None:
    (result,) = caption(model, noise(50, 200), resize_mode=resize_mode, max_length=3)
    assert result.maps.geometry is not None
    assert result.maps.geometry.image_size == (50, 200)
    assert result.maps.geometry.region == pytest.approx(region, abs=0.5)
    placed = result.maps.resize_to_image()
    assert placed.shape == (len(result.words), 50, 200)
    visible = ~placed[0].isnan()
    assert visible[25].sum() == pytest.approx(region[2] - region[0], abs=2)
    assert visible[:, 100].all()


def test_exif_orientation_is_applied(model: ShowAttendTell, tmp_path: Path) -> None:
    upright = Image.fromarray(noise(53, 83))
    exif = Image.Exif()
    exif[274] = 6  # the camera was rotated: the file lies on its side
    upright.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "rotated.png", exif=exif)
    (rotated,), (straight,) = caption(model, tmp_path / "rotated.png"), caption(model, upright)
    assert rotated.words == straight.words
    assert rotated.maps.geometry is not None
    assert rotated.maps.geometry.image_size == (53, 83)
    torch.testing.assert_close(
        rotated.maps.resize_to_image(), straight.maps.resize_to_image(), equal_nan=True
    )


def test_model_and_random_state_are_restored(model: ShowAttendTell) -> None:
    model.train()
    model.encoder.get_submodule("stem").eval()
    modes = {name: module.training for name, module in model.named_modules()}
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    torch.manual_seed(3)
    state = torch.get_rng_state()
    (first,) = caption(model, noise())
    (again,) = caption(model, noise())
    assert_same(first, again)  # no dropout, no batch statistics
    assert torch.equal(torch.get_rng_state(), state)
    assert {name: module.training for name, module in model.named_modules()} == modes
    assert all(torch.equal(weights[name], t) for name, t in model.state_dict().items())
    with pytest.raises(ValueError, match="1 <= num_captions <= beam_size"):
        caption(model, noise(), num_captions=7)
    assert {name: module.training for name, module in model.named_modules()} == modes
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert torch.is_grad_enabled()


def test_length_limits_are_kept(model: ShowAttendTell) -> None:
    for longest in (1, 2, 3):
        (result,) = caption(model, noise(), min_length=longest, max_length=longest)
        assert len(result.words) == longest
    with torch.no_grad():
        model.decoder.output.bias[2] = -100.0
    (cut,) = caption(model, noise(), max_length=5)
    assert len(cut.words) == 5
    assert not cut.finished


def test_unreadable_images_are_refused(model: ShowAttendTell, tmp_path: Path) -> None:
    (tmp_path / "bad.jpg").write_bytes(b"<html>")
    with pytest.raises(ImageError, match=r"bad\.jpg: not an image"):
        caption(model, [noise(), tmp_path / "bad.jpg"])


def test_model_without_words_is_refused() -> None:
    empty_vocabulary = ShowAttendTell(
        SPECIAL_TOKENS, SmallEncoder((24, 24), channels=8), hidden_size=7
    )
    with pytest.raises(ValueError, match="no caption of these lengths is possible"):
        caption(empty_vocabulary, noise())


def test_nan_weights_are_refused(model: ShowAttendTell) -> None:
    with torch.no_grad():
        model.decoder.output.weight[5, 3] = torch.nan
    with pytest.raises(ValueError, match="NaN"):
        caption(model, noise())


def test_overlay_has_the_size_of_the_image(model: ShowAttendTell) -> None:
    pixels = noise(53, 131)
    (result,) = caption(model, pixels, resize_mode="pad", max_length=3)
    for smooth in (True, False):
        drawn = overlay(pixels, result.maps[0], smooth=smooth, vmax=0.2)
        assert drawn.size == (131, 53)
        assert (np.asarray(drawn) != pixels).any()
    assert visattn.overlay is overlay


def test_overlay_colors_the_attended_region() -> None:
    pixels = np.full((60, 120, 3), 20, np.uint8)
    values = torch.zeros(2, 4)
    values[1, 3] = 1.0
    spot = AttentionMap(values, "gate", "gate", Geometry.identity((60, 120)))
    drawn = np.asarray(overlay(pixels, spot, smooth=False)).astype(int)
    changed = np.abs(drawn - 20).max(-1) > 40
    assert changed[30:, 90:].all()
    assert not changed[:29, :].any()
    assert not changed[:, :89].any()


def test_overlay_refuses_maps_that_do_not_fit(model: ShowAttendTell) -> None:
    pixels = noise()
    (result,) = caption(model, pixels, max_length=3)
    with pytest.raises(ValueError, match=r"draws one map, got .*; select one: maps\[0\]"):
        overlay(pixels, result.maps)
    with pytest.raises(ValueError, match=r"lies on an image of \(53, 83\) .* has \(54, 83\)"):
        overlay(noise(54, 83), result.maps[0])
    unplaced = AttentionMap(torch.eye(3), "here", "gate")
    with pytest.raises(ValueError, match="here has none; call with_geometry"):
        overlay(pixels, unplaced)


def test_plain_arrays_cover_the_whole_image() -> None:
    image, values = noise(30, 40), torch.rand(3, 5)
    placed = AttentionMap(values, "x", "gradient", Geometry.identity((30, 40)))
    expected = np.array(overlay(image, placed))
    for array in (values, values.numpy(), values.tolist(), values.double(), values.half().float()):
        drawn = np.array(overlay(image, array)).astype(int)
        assert np.abs(drawn - expected).max() <= (0 if array is values else 2)
    signed = MapInfo(signed=True)
    expected = overlay(image, AttentionMap(values - 0.5, "x", "gradient", placed.geometry, signed))
    assert expected.tobytes() == overlay(image, values - 0.5).tobytes()
    middle = Geometry.identity((30, 40)).cropped(5, 5, (20, 20))
    shown = overlay(image, values, geometry=middle)
    assert shown.tobytes() == overlay(image, placed, geometry=middle).tobytes()
    assert shown.tobytes() != overlay(image, values).tobytes()
    for invalid in (torch.rand(2, 3, 5), torch.full((2, 2), torch.nan), [[1.0], [1.0, 2.0]]):
        with pytest.raises(ValueError, match=r"a map must be an array"):
            overlay(image, invalid)  # pyright: ignore[reportArgumentType]


def test_folders_are_searched_and_unreadable_files_skipped(
    model: ShowAttendTell, tmp_path: Path
) -> None:
    (tmp_path / "in" / "deep").mkdir(parents=True)
    for index, name in enumerate(("b.png", "a.png", "deep/c.png")):
        Image.fromarray(noise(seed=index)).save(tmp_path / "in" / name)
    (tmp_path / "in" / "broken.png").write_bytes(b"no image")
    single = tmp_path / "one.png"
    Image.fromarray(noise(seed=7)).save(single)
    folder = tmp_path / "in"
    names = [str(folder / name) for name in ("a.png", "b.png", "deep/c.png")]
    with pytest.warns(UserWarning, match=r"skipped .*broken.png: ") as warned:
        captions = caption(model, folder, batch_size=2, max_length=3)
    assert len(warned) == 1
    assert [each.image for each in captions] == names
    with pytest.warns(UserWarning, match="skipped"):
        mixed = caption(model, [single, str(folder), noise()], max_length=3)
    assert [each.image for each in mixed] == [str(single), *names, "image"]
    for each, other in zip(captions, mixed[1:], strict=False):
        assert_same(each, other)
    with pytest.raises(ImageError, match=r"broken.png"):
        caption(model, [single, folder / "broken.png"], max_length=3)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        caption(model, [folder, tmp_path / "gone"], max_length=3)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="no image in"):
        caption(model, tmp_path / "empty", max_length=3)


def test_repr_is_one_line(model: ShowAttendTell) -> None:
    (result,) = caption(model, noise(), num_captions=2, max_length=5)
    glimpsed = RecurrentAttentionModel(
        ("cat", "dog"), (24, 24), (0.5,), (0.5,), glimpse_size=5, num_glimpses=3
    )
    [scan] = glimpses(glimpsed, noise())
    recording = Recording([result.maps] * 3, [result.maps.values] * 3, {"a": "b"})
    for thing in (result, result.maps, result.maps[0], scan, recording, read_image(noise())):
        for text in (str(thing), repr(thing), repr([thing])):
            assert "\n" not in text
            assert len(text) < 200
            assert type(thing).__name__ in text
    assert result.text in repr(result)
    assert repr(result.maps[0]).startswith(
        "AttentionMap(decoder.attention.scorer.tap, words, 3 x 5, "
    )


@pytest.mark.parametrize("size", [(53, 211), (211, 53), (7, 5)])
def test_caption_figure_has_the_requested_width(
    model: ShowAttendTell, size: tuple[int, int]
) -> None:
    pixels = noise(*size)
    (result,) = caption(model, pixels, max_length=7)
    page = np.asarray(caption_figure(pixels, result, width=600).image)
    assert page.dtype == np.uint8
    assert page.shape[1:] == (600, 3)
    assert len(np.unique(page)) > 50


SAVED = {
    "small": lambda: SmallEncoder((24, 40), channels=12, coord_scale=False),
    "timm": lambda: TimmEncoder("test_resnet", img_size=(64, 96), stage=2, unfreeze_from_stage=1),
    "captioner": lambda: ShowAttendTell(WORDS, SmallEncoder((24, 40), channels=12), hidden_size=17),
    "captioner of timm": lambda: ShowAttendTell(
        WORDS, TimmEncoder("test_efficientnet", img_size=(64, 96)), hidden_size=17
    ),
}


@pytest.mark.parametrize("name", SAVED)
def test_loaded_models_match_the_saved_ones(name: str, tmp_path: Path) -> None:
    original: nn.Module = SAVED[name]()
    for _, buffer in original.named_buffers():  # statistics as after training
        if buffer.is_floating_point() and buffer.ndim == 1:
            buffer.uniform_(0.5, 1.5)
    save(original.train(), tmp_path / "m.safetensors")
    loaded = load(tmp_path / "m.safetensors")
    assert model_config(loaded) == model_config(original)
    assert not any(module.training for module in loaded.modules())
    assert original.training
    if isinstance(original, ShowAttendTell) and isinstance(loaded, ShowAttendTell):
        assert_same(
            *caption(original, noise(), max_length=7), *caption(loaded, noise(), max_length=7)
        )
        images = torch.randint(256, (2, 3, *original.encoder.img_size), dtype=torch.uint8)
        original, loaded = original.encoder, loaded.encoder
    else:
        size: Any = original.img_size
        images = torch.randint(256, (2, 3, *size), dtype=torch.uint8)
    assert torch.equal(original.eval()(images), loaded(images))
