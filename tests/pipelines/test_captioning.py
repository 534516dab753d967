"""Captions of photos, and overlays of their maps."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from random_numbers import photo

from visattn.geometry.affine import Geometry
from visattn.images.reader import ImageError
from visattn.images.resize import ResizeSpec
from visattn.models.base import SmallEncoder
from visattn.models.captioning.show_attend_tell import ShowAttendTell
from visattn.pipelines.captioning import caption, ground_phrases
from visattn.results.attention_map import AttentionMap
from visattn.results.captions import Caption, Phrase
from visattn.results.info import MapInfo
from visattn.results.kinds import SPECIAL_TOKENS
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


def assert_same(result: Caption, other: Caption) -> None:
    assert result.words == other.words
    assert result.finished == other.finished
    assert result.score == pytest.approx(other.score, abs=1e-4)
    assert result.log_probs == pytest.approx(other.log_probs, abs=1e-4)
    torch.testing.assert_close(result.maps.values, other.maps.values, atol=1e-5, rtol=0)
    assert result.maps.geometry == other.maps.geometry


def test_photos_of_a_batch_have_the_captions_that_they_have_alone(model: ShowAttendTell) -> None:
    images = [photo(20 + 7 * i, 90 - 11 * i, seed=i) for i in range(7)]
    for together, image in zip(caption(model, images), images, strict=True):
        (alone,) = caption(model, image)
        assert_same(together, alone)


def test_caption_fields_are_consistent(model: ShowAttendTell) -> None:
    (result,) = caption(model, photo(), max_length=7)
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
    model.decoder.output.bias.data[2] = -100.0  # never the end
    (cut,) = caption(model, photo(), max_length=5)
    assert (len(cut.words), cut.finished) == (5, False)


def test_alternatives_are_ranked(model: ShowAttendTell) -> None:
    for best in caption(model, [photo(), photo(31, 97, seed=1)], num_captions=4, max_length=9):
        every = [best, *best.alternatives]
        assert len(every) == 4
        assert len({other.words for other in every}) == 4
        ranked = [(other.finished, other.score) for other in every]
        assert ranked == sorted(ranked, reverse=True)
        assert not any(other.alternatives for other in best.alternatives)
        assert all(len(other.maps) == len(other.words) for other in every)


def test_model_and_random_state_are_restored(model: ShowAttendTell) -> None:
    model.train()
    model.encoder.get_submodule("stem").eval()
    modes = {name: module.training for name, module in model.named_modules()}
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    torch.manual_seed(3)
    state = torch.get_rng_state()
    (first,) = caption(model, photo())
    (again,) = caption(model, photo())
    assert_same(first, again)  # no dropout, no batch statistics
    assert torch.equal(torch.get_rng_state(), state)
    with pytest.raises(ValueError, match="1 <= num_captions <= beam_size"):
        caption(model, photo(), num_captions=7)
    assert {name: module.training for name, module in model.named_modules()} == modes
    assert all(torch.equal(weights[name], t) for name, t in model.state_dict().items())
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_folders_are_searched_and_unreadable_files_skipped(
    model: ShowAttendTell, tmp_path: Path
) -> None:
    folder, single = tmp_path / "in", tmp_path / "one.png"
    (folder / "deep").mkdir(parents=True)
    for index, name in enumerate(("b.png", "a.png", "deep/c.png")):
        Image.fromarray(photo(seed=index)).save(folder / name)
    (folder / "broken.png").write_bytes(b"no image")
    Image.fromarray(photo(seed=7)).save(single)
    names = [str(folder / name) for name in ("a.png", "b.png", "deep/c.png")]
    with pytest.warns(UserWarning, match=r"skipped .*broken.png: ") as warned:
        mixed = caption(model, [single, str(folder), photo()], batch_size=2, max_length=3)
    assert len(warned) == 1
    assert [each.image for each in mixed] == [str(single), *names, "image"]
    with pytest.raises(ImageError, match=r"broken.png"):
        caption(model, [single, folder / "broken.png"], max_length=3)


def test_overlay_refuses_maps_that_do_not_fit(model: ShowAttendTell) -> None:
    pixels = photo()
    (result,) = caption(model, pixels, max_length=3)
    with pytest.raises(ValueError, match=r"draws one map, got .*; select one: maps\[0\]"):
        overlay(pixels, result.maps)
    with pytest.raises(ValueError, match=r"belongs to an image of \(61, 83\) .* has \(62, 83\)"):
        overlay(photo(62, 83), result.maps[0])
    unplaced = AttentionMap(torch.eye(3), "here", "gate")
    with pytest.raises(ValueError, match="here has none; call with_geometry"):
        overlay(pixels, unplaced)


def test_plain_arrays_cover_the_whole_image() -> None:
    image, values = photo(30, 40), torch.rand(3, 5)
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
        with pytest.raises(ValueError, match=r"a map must be an array|inhomogeneous shape"):
            overlay(image, invalid)  # pyright: ignore[reportArgumentType]


def test_reference_phrases_are_scored_on_the_visible_part_of_their_boxes() -> None:
    words, values = ("a", "red", "dog"), torch.zeros(3, 2, 4)
    values[range(3), 0, range(3)] = 1.0  # the maps peak further to the right with each word
    middle = ResizeSpec((24, 24)).geometry((40, 100))  # 30 to 70 of 100 columns
    maps = AttentionMap(values, "look", "words", middle, labels=words)
    said = Caption(words, (-0.5,) * 3, (0.5,) * 3, maps, -1.5, finished=True)
    # The box covers the left half of the visible region: the first two columns of the grid.
    dog = Phrase(4, 2, ((0.3, 0.0, 0.5, 1.0),), ("animals",), "red dog")
    hidden = Phrase(0, 1, ((0.0, 0.0, 0.2, 1.0),), ("other",), "a")
    first, second = ground_phrases(said, [dog, hidden]).phrases
    assert (second.first, second.words, second.boxes) == (1, 2, dog.boxes)
    assert second.correctness == pytest.approx((1.0, 0.0))
    assert second.baseline == pytest.approx(0.5)
    assert (first.first, first.boxes, first.correctness) == (0, hidden.boxes, ())
    assert ground_phrases(replace(said, words=("dogs",)), [dog]).phrases == ()
