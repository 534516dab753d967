"""From a model and images to words and placed maps; a model saved and loaded."""

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import visattn
from visattn.data.images.reader import ImageError, read_image
from visattn.geometry.affine import Geometry
from visattn.models.backbones.timm_encoder import TimmEncoder
from visattn.models.captioner import SPECIAL_TOKENS
from visattn.models.captioning.show_attend_tell import ShowAttendTell
from visattn.models.encoder import SmallEncoder
from visattn.models.ram.ram import RecurrentAttentionModel
from visattn.models.serialization.config import model_config
from visattn.models.serialization.safetensors_file import read_safetensors, write_safetensors
from visattn.pipelines.captioning import Caption, ResizeMode, caption
from visattn.pipelines.draw_captions import caption_figure, overlay
from visattn.pipelines.model_io import load, save
from visattn.pipelines.scanpath import glimpses
from visattn.recording.attention_map import AttentionMap
from visattn.recording.recorder import Recording

WORDS = (*SPECIAL_TOKENS, *"abcdefghijk")


@pytest.fixture
def model() -> ShowAttendTell:
    encoder = SmallEncoder((24, 40), channels=12)
    made = ShowAttendTell(WORDS, encoder, embed_dim=11, hidden_size=17, attention_dim=7)
    with torch.no_grad():
        for weight in (
            made.decoder.output.weight,
            made.decoder.output_hidden.weight,
            made.decoder.attention.scorer.vector,
        ):
            weight.mul_(7)
    return made.eval()


def noise(y: int = 53, x: int = 83, *, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (y, x, 3), dtype=np.uint8)


def same(one: Caption, other: Caption) -> None:
    assert one.words == other.words
    assert one.finished == other.finished
    assert one.score == pytest.approx(other.score, abs=1e-4)
    assert one.log_probs == pytest.approx(other.log_probs, abs=1e-4)
    torch.testing.assert_close(one.maps.values, other.maps.values, atol=1e-5, rtol=0)
    assert one.maps.geometry == other.maps.geometry


def test_a_image_may_come_in_any_way(model: ShowAttendTell, tmp_path: Path) -> None:
    pixels, buffer = noise(), BytesIO()
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    Image.fromarray(pixels).save(buffer, format="png")
    (expected,) = caption(model, pixels)
    ways = [
        tmp_path / "photo.png",
        str(tmp_path / "photo.png"),
        Image.fromarray(pixels),
        buffer.getvalue(),
        read_image(pixels),
    ]
    for way in ways:
        (alone,) = caption(model, way)
        same(alone, expected)
    for several in (ways, tuple(ways), iter(ways)):
        captions = caption(model, several)
        assert len(captions) == len(ways)
        for one in captions:
            same(one, expected)
    assert caption(model, []) == []


def test_a_caption_is_whole(model: ShowAttendTell) -> None:
    (one,) = caption(model, noise(), max_length=7)
    count = len(one.words)
    assert one.text == " ".join(one.words)
    assert set(one.words) <= set(WORDS[4:])
    assert len(one.log_probs) == len(one.gates) == len(one.maps) == count > 0
    assert one.maps.labels == one.words
    assert one.maps.kind == "words"
    assert one.maps.values.shape == (count, *model.encoder.grid_size)
    torch.testing.assert_close(one.maps.values.sum((1, 2)), torch.ones(count))
    assert all(0 < gate < 1 for gate in one.gates)
    assert all(spoken < 0 for spoken in one.log_probs)
    made = {"model": "ShowAttendTell", "beam_size": 5, "resize_mode": "crop", "image": "image"}
    assert one.maps.metadata == made


def test_alternatives_are_other_captions_best_first(model: ShowAttendTell) -> None:
    for one in caption(model, [noise(), noise(31, 97, seed=1)], num_captions=4, max_length=9):
        every = [one, *one.alternatives]
        assert len(every) == 4
        assert len({other.words for other in every}) == 4
        ranked = [(other.finished, other.score) for other in every]
        assert ranked == sorted(ranked, reverse=True)
        assert not any(other.alternatives for other in one.alternatives)
        assert all(len(other.maps) == len(other.words) for other in every)


def test_a_image_does_not_feel_the_others(model: ShowAttendTell) -> None:
    images = [noise(20 + 7 * i, 90 - 11 * i, seed=i) for i in range(7)]
    for together, image in zip(caption(model, images), images, strict=True):
        (alone,) = caption(model, image)
        same(together, alone)


@pytest.mark.parametrize(
    ("fit", "region"),
    # The network sees 24 × 40. An image of 50 × 200 is cut to its middle 83.3 columns.
    [("crop", (58.33, 0, 141.67, 50)), ("squash", (0, 0, 200, 50)), ("pad", (0, 0, 200, 50))],
)
def test_maps_lie_on_the_original(
    model: ShowAttendTell, fit: ResizeMode, region: tuple[float, ...]
) -> None:
    (one,) = caption(model, noise(50, 200), resize_mode=fit, max_length=3)
    assert one.maps.geometry is not None
    assert one.maps.geometry.image_size == (50, 200)
    assert one.maps.geometry.seen() == pytest.approx(region, abs=0.5)
    placed = one.maps.resize_to_image()
    assert placed.shape == (len(one.words), 50, 200)
    seen = ~placed[0].isnan()
    assert seen[25].sum() == pytest.approx(region[2] - region[0], abs=2)
    assert seen[:, 100].all()


def test_a_turned_photo_is_seen_upright(model: ShowAttendTell, tmp_path: Path) -> None:
    upright = Image.fromarray(noise(53, 83))
    exif = Image.Exif()
    exif[274] = 6  # the camera was turned: the file lies on its side
    upright.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "turned.png", exif=exif)
    (turned,), (straight,) = caption(model, tmp_path / "turned.png"), caption(model, upright)
    assert turned.words == straight.words
    assert turned.maps.geometry is not None
    assert turned.maps.geometry.image_size == (53, 83)
    assert turned.maps.geometry.orientation == 6
    torch.testing.assert_close(
        turned.maps.resize_to_image(), straight.maps.resize_to_image(), equal_nan=True
    )


def test_the_model_comes_back_as_it_was(model: ShowAttendTell) -> None:
    model.train()
    model.encoder.get_submodule("stem").eval()
    modes = {name: module.training for name, module in model.named_modules()}
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    torch.manual_seed(3)
    state = torch.get_rng_state()
    (first,) = caption(model, noise())
    (again,) = caption(model, noise())
    same(first, again)  # no dropout, no batch statistics
    assert torch.equal(torch.get_rng_state(), state)
    assert {name: module.training for name, module in model.named_modules()} == modes
    assert all(torch.equal(weights[name], t) for name, t in model.state_dict().items())
    with pytest.raises(ValueError, match="num_captions must be at least 1"):
        caption(model, noise(), num_captions=7)
    assert {name: module.training for name, module in model.named_modules()} == modes
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert torch.is_grad_enabled()


def test_lengths_are_kept(model: ShowAttendTell) -> None:
    for longest in (1, 2, 3):
        (one,) = caption(model, noise(), min_length=longest, max_length=longest)
        assert len(one.words) == longest
    with torch.no_grad():
        model.decoder.output.bias[2] = -100.0
    (cut,) = caption(model, noise(), max_length=5)
    assert len(cut.words) == 5
    assert not cut.finished


def test_what_cannot_be_read_is_named(model: ShowAttendTell, tmp_path: Path) -> None:
    (tmp_path / "bad.jpg").write_bytes(b"<html>")
    with pytest.raises(ImageError, match=r"bad\.jpg: not an image"):
        caption(model, [noise(), tmp_path / "bad.jpg"])


def test_a_model_without_words_says_so() -> None:
    mute = ShowAttendTell(SPECIAL_TOKENS, SmallEncoder((24, 24), channels=8), hidden_size=7)
    with pytest.raises(ValueError, match="no caption of these lengths is possible"):
        caption(mute, noise())


def test_a_broken_model_says_so(model: ShowAttendTell) -> None:
    with torch.no_grad():
        model.decoder.output.weight[5, 3] = torch.nan
    with pytest.raises(ValueError, match="NaN"):
        caption(model, noise())


def test_overlay_is_the_images_size(model: ShowAttendTell) -> None:
    pixels = noise(53, 131)
    (one,) = caption(model, pixels, resize_mode="pad", max_length=3)
    for smooth in (True, False):
        drawn = overlay(pixels, one.maps[0], smooth=smooth, vmax=0.2)
        assert drawn.size == (131, 53)
        assert (np.asarray(drawn) != pixels).any()
    assert visattn.overlay is overlay


def test_overlay_shows_the_place() -> None:
    pixels = np.full((60, 120, 3), 20, np.uint8)
    values = torch.zeros(2, 4)
    values[1, 3] = 1.0
    spot = AttentionMap(values, "gate", "gate", Geometry.identity((60, 120)))
    drawn = np.asarray(overlay(pixels, spot, smooth=False)).astype(int)
    changed = np.abs(drawn - 20).max(-1) > 40
    assert changed[30:, 90:].all()
    assert not changed[:29, :].any()
    assert not changed[:, :89].any()


def test_overlay_refuses_what_cannot_lie_there(model: ShowAttendTell) -> None:
    pixels = noise()
    (one,) = caption(model, pixels, max_length=3)
    with pytest.raises(ValueError, match=r"draws one map, got .*; select one: maps\[0\]"):
        overlay(pixels, one.maps)
    with pytest.raises(ValueError, match=r"lies on an image of \(53, 83\) .* has \(54, 83\)"):
        overlay(noise(54, 83), one.maps[0])
    lost = AttentionMap(torch.eye(3), "here", "gate")
    with pytest.raises(ValueError, match="here does not know its image"):
        overlay(pixels, lost)


def test_plain_arrays_lie_on_the_whole_image() -> None:
    image, values = noise(30, 40), torch.rand(3, 5)
    placed = AttentionMap(values, "x", "gradient", Geometry.identity((30, 40)))
    expected = np.array(overlay(image, placed))
    for way in (values, values.numpy(), values.tolist(), values.double(), values.half().float()):
        drawn = np.array(overlay(image, way)).astype(int)
        assert np.abs(drawn - expected).max() <= (0 if way is values else 2)
    signed = {"signed": True}
    expected = overlay(image, AttentionMap(values - 0.5, "x", "gradient", placed.geometry, signed))
    assert expected.tobytes() == overlay(image, values - 0.5).tobytes()
    middle = Geometry.identity((30, 40)).cropped(5, 5, (20, 20))
    shown = overlay(image, values, geometry=middle)
    assert shown.tobytes() == overlay(image, placed, geometry=middle).tobytes()
    assert shown.tobytes() != overlay(image, values).tobytes()
    for wrong in (torch.rand(2, 3, 5), torch.full((2, 2), torch.nan), [[1.0], [1.0, 2.0]]):
        with pytest.raises(ValueError, match=r"a map must be an array"):
            overlay(image, wrong)  # pyright: ignore[reportArgumentType]


def test_a_folder_is_captioned_as_the_command_line_does(
    model: ShowAttendTell, tmp_path: Path
) -> None:
    (tmp_path / "in" / "deep").mkdir(parents=True)
    for at, name in enumerate(("b.png", "a.png", "deep/c.png")):
        Image.fromarray(noise(seed=at)).save(tmp_path / "in" / name)
    (tmp_path / "in" / "broken.png").write_bytes(b"no image")
    one = tmp_path / "one.png"
    Image.fromarray(noise(seed=7)).save(one)
    folder = tmp_path / "in"
    names = [str(folder / name) for name in ("a.png", "b.png", "deep/c.png")]
    with pytest.warns(UserWarning, match=r"skipped .*broken.png: ") as warned:
        found = caption(model, folder, batch_size=2, max_length=3)
    assert len(warned) == 1
    assert [each.image for each in found] == names
    with pytest.warns(UserWarning, match="skipped"):
        mixed = caption(model, [one, str(folder), noise()], max_length=3)
    assert [each.image for each in mixed] == [str(one), *names, "image"]
    for each, other in zip(found, mixed[1:], strict=False):
        same(each, other)
    with pytest.raises(ImageError, match=r"broken.png"):
        caption(model, [one, folder / "broken.png"], max_length=3)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        caption(model, [folder, tmp_path / "gone"], max_length=3)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="no image in"):
        caption(model, tmp_path / "empty", max_length=3)
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        caption(model, one, batch_size=0)


def test_what_is_printed_is_one_line(model: ShowAttendTell) -> None:
    (told,) = caption(model, noise(), num_captions=2, max_length=5)
    glimpsed = RecurrentAttentionModel(
        ("cat", "dog"), (24, 24), (0.5,), (0.5,), glimpse_size=5, num_glimpses=3
    )
    [scan] = glimpses(glimpsed, noise())
    recording = Recording([told.maps] * 3, [told.maps.values] * 3, {"a": "b"})
    for thing in (told, told.maps, told.maps[0], scan, recording, read_image(noise())):
        for text in (str(thing), repr(thing), repr([thing])):
            assert "\n" not in text
            assert len(text) < 200
            assert type(thing).__name__ in text
    assert told.text in repr(told)
    assert repr(told.maps[0]).startswith(
        "AttentionMap(decoder.attention.scorer.tap, words, 3 x 5, "
    )


@pytest.mark.parametrize("size", [(53, 211), (211, 53), (7, 5)])
def test_a_panel_is_a_page(model: ShowAttendTell, size: tuple[int, int]) -> None:
    pixels = noise(*size)
    (one,) = caption(model, pixels, max_length=7)
    page = caption_figure(pixels, one, width=600)
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
def test_a_loaded_model_is_the_saved_one(name: str, tmp_path: Path) -> None:
    made: nn.Module = SAVED[name]()
    for _, buffer in made.named_buffers():  # statistics as after training
        if buffer.is_floating_point() and buffer.ndim == 1:
            buffer.uniform_(0.5, 1.5)
    save(made.train(), tmp_path / "m.safetensors")
    loaded = load(tmp_path / "m.safetensors")
    assert model_config(loaded) == model_config(made)
    assert not any(module.training for module in loaded.modules())
    assert made.training
    if isinstance(made, ShowAttendTell) and isinstance(loaded, ShowAttendTell):
        same(*caption(made, noise(), max_length=7), *caption(loaded, noise(), max_length=7))
        images = torch.randint(256, (2, 3, *made.encoder.img_size), dtype=torch.uint8)
        made, loaded = made.encoder, loaded.encoder
    else:
        size: Any = made.img_size
        images = torch.randint(256, (2, 3, *size), dtype=torch.uint8)
    assert torch.equal(made.eval()(images), loaded(images))


def test_only_our_own_models_are_saved(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"can be described and saved, got Linear; .*\.state_dict\(\)"
    ):
        save(nn.Linear(2, 3), tmp_path / "m.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_nan_weights_are_refused_with_their_name(tmp_path: Path) -> None:
    encoder = SmallEncoder((24, 40), channels=8)
    save(encoder, tmp_path / "whole.safetensors")
    torch.nn.init.constant_(encoder.get_parameter("refine.1.0.weight"), float("nan"))
    save(encoder, tmp_path / "broken.safetensors")
    load(tmp_path / "whole.safetensors")
    with pytest.raises(ValueError, match=r"broken.*NaN or infinity in refine\.1\.0\.weight: "):
        load(tmp_path / "broken.safetensors")


def test_weights_must_fit_their_description(tmp_path: Path) -> None:
    encoder, path = SmallEncoder((24, 24), channels=8), tmp_path / "m.safetensors"
    other = model_config(SmallEncoder((24, 24), channels=12))
    write_safetensors(path, encoder.state_dict(), other)
    with pytest.raises(ValueError, match="its weights do not fit its model config"):
        load(path)
    some = dict(list(encoder.state_dict().items())[1:])
    write_safetensors(path, some, model_config(encoder))
    with pytest.raises(ValueError, match="do not fit"):
        load(path)
    write_safetensors(path, {}, {"class": "os.system", "arguments": {"command": "true"}})
    with pytest.raises(ValueError, match="names one of SmallEncoder"):
        load(path)


def test_a_file_tells_what_it_holds(model: ShowAttendTell, tmp_path: Path) -> None:
    save(model, tmp_path / "m.safetensors")
    _, description = read_safetensors(tmp_path / "m.safetensors")
    assert description["class"] == "ShowAttendTell"
    assert description["arguments"]["words"] == list(WORDS)
