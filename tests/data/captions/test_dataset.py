"""Captioned photos with cached features and phrases, also when flipped."""

from pathlib import Path

import pytest
import torch
from caption_data import CaptionPaths, write_caption_data

from visattn.data.captions.dataset import CaptionDataset, CaptionedPhotos
from visattn.data.captions.files import read_captions
from visattn.data.feature_cache import FeatureCache
from visattn.data.loading.loader import ReadFallback
from visattn.data.phrases import read_phrases
from visattn.images.reader import ImageError
from visattn.images.resize import ResizeSpec
from visattn.models.backbones.timm_encoder import TimmEncoder

ENCODER = TimmEncoder("test_resnet", img_size=(64, 96)).eval()


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> CaptionPaths:
    return write_caption_data(tmp_path_factory.mktemp("mini"), photos=7, sides=False)


@pytest.fixture(scope="module")
def photos(paths: CaptionPaths) -> CaptionedPhotos:
    framing = ResizeSpec(ENCODER.img_size, mode="squash")
    return CaptionedPhotos(read_captions(paths.captions), paths.photos, framing)


@pytest.fixture(scope="module")
def cache(photos: CaptionedPhotos, tmp_path_factory: pytest.TempPathFactory) -> FeatureCache:
    ids = [entry.id for entry in photos.entries]
    folder = tmp_path_factory.mktemp("features")
    return FeatureCache.prepare(folder, ENCODER, photos, ids=ids, views=("plain", "mirrored"))


def test_cached_features_belong_to_their_photo(
    photos: CaptionedPhotos, cache: FeatureCache
) -> None:
    looked, kept = CaptionDataset(photos)[3], CaptionDataset(photos, feature_cache=cache)[3]
    assert looked.image is not None
    assert kept.image is None
    (grid,) = ENCODER.stage_features(looked.image[None])
    torch.testing.assert_close(kept.grids[0].float(), grid[0].detach(), atol=2e-2, rtol=2e-3)
    assert (looked.id, looked.captions) == (kept.id, kept.captions)
    assert kept.references == photos.entries[3].captions


def test_half_of_the_photos_are_flipped_with_their_features_and_boxes(
    paths: CaptionPaths, photos: CaptionedPhotos, cache: FeatureCache
) -> None:
    content = CaptionDataset(
        photos, feature_cache=cache, phrases=read_phrases(paths.phrases), hflip=True
    )
    [[plain], *_] = CaptionDataset(photos, phrases=read_phrases(paths.phrases))[0].phrases
    turned = 0
    for epoch in range(40):
        sample = content[epoch * len(content)]
        mirrored = torch.equal(sample.grids[0], cache.read(0, 1)[0])
        assert mirrored or torch.equal(sample.grids[0], cache.read(0, 0)[0])
        ((left, top, right, bottom),) = plain.boxes
        boxes = ((1 - right, top, 1 - left, bottom),) if mirrored else plain.boxes
        assert sample.phrases[0] == (plain._replace(boxes=boxes),)
        assert sample.captions == photos.entries[0].captions
        turned += mirrored
    assert 10 < turned < 30


def test_flips_depend_on_seed_and_index_only(photos: CaptionedPhotos) -> None:
    def flips(seed: int) -> list[bool]:
        content = CaptionDataset(photos, hflip=True, seed=seed)
        plain = [sample.image for sample in CaptionDataset(photos)] * 6
        return [not torch.equal(content[n].image, image) for n, image in enumerate(plain)]  # type: ignore[arg-type]

    torch.manual_seed(0)
    first = flips(0)
    torch.manual_seed(1)
    assert flips(0) == first != flips(1)
    assert [sample.id for sample in CaptionDataset(photos)] == [
        entry.id for entry in photos.entries
    ]


def test_images_are_flipped_like_features(photos: CaptionedPhotos) -> None:
    plain, content = CaptionDataset(photos)[0].image, CaptionDataset(photos, hflip=True)
    shown = [content[epoch * len(content)].image for epoch in range(20)]
    assert plain is not None
    kinds = {
        (torch.equal(item, plain), torch.equal(item, plain.flip(-1)))
        for item in shown
        if item is not None
    }
    assert kinds == {(True, False), (False, True)}


def test_captions_have_their_own_phrases(paths: CaptionPaths, photos: CaptionedPhotos) -> None:
    content = CaptionDataset(photos, phrases=read_phrases(paths.phrases))
    assert content.phrase_coverage() == 1.0
    sample = content[1]
    assert [len(phrases) for phrases in sample.phrases] == [1] * 5
    assert sample.phrases[4][0].text == "the grass"
    assert sample.phrases[4][0].boxes == ((0.0, pytest.approx(0.7), 1.0, 1.0),)


def test_boxes_follow_the_crop(paths: CaptionPaths) -> None:
    """The center crop of an 80 x 64 photo shows the middle 64 columns; grass fills its width."""
    entries = read_captions(paths.captions)
    photos = CaptionedPhotos(entries, paths.photos, ResizeSpec((64, 64), mode="crop"))
    (ball,) = CaptionDataset(photos, phrases=read_phrases(paths.phrases))[0].phrases[0]
    x0, _, x1, _ = ball.boxes[0]
    assert (x0, x1) == (0.0, pytest.approx((0.45 * 80 - 8) / 64))


def test_photo_without_phrases_has_none(photos: CaptionedPhotos) -> None:
    content = CaptionDataset(photos, phrases={"another.jpg": {}})
    assert content[0].phrases == ()
    assert content.phrase_coverage() == 0.0


def test_replacement_photo_has_its_own_captions_phrases_and_sides(tmp_path: Path) -> None:
    """A photo that may be mirrored is replaced by one whose captions say a side."""
    paths = write_caption_data(tmp_path, photos=7)
    entries = [*read_captions(paths.captions)]
    entries[2] = entries[2]._replace(captions=("A dog .",))
    broken = paths.photos / entries[2].file
    broken.write_bytes(broken.read_bytes()[:-100])
    photos = CaptionedPhotos(entries, paths.photos, ResizeSpec(ENCODER.img_size, mode="squash"))
    phrases = read_phrases(paths.phrases)
    substitutes = ReadFallback(7)
    content = CaptionDataset(photos, phrases=phrases, hflip=True, fallback=substitutes)
    other = next(substitutes.candidates(2))
    assert content[2].id == content[2 + 7].id == entries[other].id
    assert content[2].references == entries[other].captions
    shown = CaptionDataset(photos)[other].image
    assert shown is not None
    assert all(torch.equal(shown, content[2 + 7 * epoch].image) for epoch in range(20))  # type: ignore[arg-type]
    assert len(content[2].phrases) == 5
    assert substitutes.unreadable == [2]
    with pytest.raises(ImageError, match="truncated"):
        _ = CaptionDataset(photos, phrases=phrases)[2]
