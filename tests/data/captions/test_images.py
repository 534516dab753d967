"""Data set of captioned photos: samples, geometry and missing files."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from caption_data import CaptionPaths, write_caption_data
from PIL import Image

from visattn.data.captions.dataset import CaptionedPhotos, check_photos
from visattn.data.captions.files import CaptionEntry, read_captions, read_split_file, select_listed
from visattn.images.reader import ImageError, read_image
from visattn.images.resize import ResizeSpec, resize_to_input

FRAMING = ResizeSpec((23, 19), shorter=29)


@pytest.fixture
def paths(tmp_path: Path) -> CaptionPaths:
    return write_caption_data(tmp_path / "data", photos=7, size=41)


@pytest.fixture
def photos(paths: CaptionPaths) -> CaptionedPhotos:
    return CaptionedPhotos(read_captions(paths.captions), paths.photos, FRAMING)


def test_sample_has_the_resized_photo_and_its_annotations(
    paths: CaptionPaths, photos: CaptionedPhotos
) -> None:
    entries = read_captions(paths.captions)
    assert len(photos) == 7
    for index, entry in enumerate(entries):
        sample = photos[index]
        pixels, geometry = resize_to_input(read_image(paths.photos / entry.file), FRAMING)
        assert sample.image is not None
        assert sample.image.shape == (3, 23, 19)
        assert torch.equal(sample.image, pixels)
        assert (sample.id, sample.captions, sample.references) == (
            entry.id,
            entry.captions,
            entry.captions,
        )
        assert torch.equal(photos.load_input(index)[0], pixels)
        assert photos.load_input(index)[1] == geometry


def test_photos_are_in_the_order_of_their_list(paths: CaptionPaths) -> None:
    names = read_split_file(paths.validation)[::-1]
    entries = select_listed(read_captions(paths.captions), names)
    photos = CaptionedPhotos(entries, paths.photos, FRAMING)
    assert [photos[index].id for index in range(len(photos))] == names


@pytest.mark.parametrize("form", ["JPEG", "PNG", "TIFF"])
@pytest.mark.parametrize("code", range(1, 9))
def test_geometry_is_available_without_reading_pixels(form: str, code: int, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = code
    pixels = np.random.default_rng(5).integers(0, 256, (31, 47, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a", form, exif=exif)
    photos = CaptionedPhotos([CaptionEntry("a", "a", ("A",))], tmp_path, FRAMING)
    assert photos.geometry(0) == photos.load_input(0)[1]
    assert photos.geometry(0).image_size == ((31, 47) if code < 5 else (47, 31))


def test_dataset_can_be_pickled(photos: CaptionedPhotos) -> None:
    again = pickle.loads(pickle.dumps(photos))
    assert torch.equal(again.load_input(5)[0], photos.load_input(5)[0])
    assert again[5].captions == photos[5].captions


def test_missing_photos_are_counted_before_reading(paths: CaptionPaths) -> None:
    entries = read_captions(paths.captions)
    for path in paths.photos.iterdir():
        path.write_bytes(b"no photo")  # found only by reading it
    assert len(CaptionedPhotos(entries, paths.photos, FRAMING)) == 7
    gone = [entry.file for entry in entries[1:6]]
    (paths.photos / gone[0]).write_bytes(b"")
    for name in gone[1:]:
        (paths.photos / name).unlink()
    reason = (
        rf"5 of 7 photos are missing or empty in .*photos: {', '.join(gone[:3])}, \.\.\.; add them"
    )
    with pytest.raises(FileNotFoundError, match=reason):
        CaptionedPhotos(entries, paths.photos, FRAMING)


def test_folder_in_place_of_a_photo_is_missing(paths: CaptionPaths) -> None:
    entries = read_captions(paths.captions)
    (paths.photos / entries[3].file).unlink()
    (paths.photos / entries[3].file).mkdir()
    with pytest.raises(FileNotFoundError, match=f"1 of 7 photos .*: {entries[3].file}; add them"):
        check_photos(entries, paths.photos)


def test_missing_folder_is_reported(paths: CaptionPaths) -> None:
    with pytest.raises(FileNotFoundError, match="gone is not a folder; give the folder of the ph"):
        CaptionedPhotos(read_captions(paths.captions), paths.photos.parent / "gone", FRAMING)


def test_unreadable_photo_is_named(paths: CaptionPaths, photos: CaptionedPhotos) -> None:
    path = paths.photos / photos.entries[3].file
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(ImageError, match=rf"{path.name}: .*truncated"):
        photos[3]
    path.write_bytes(b"<html>404</html>")
    for reading in (photos.load_input, photos.geometry):
        with pytest.raises(ImageError, match=rf"{path.name}: not an image of a known format"):
            reading(3)


def test_link_out_of_the_folder_is_refused(paths: CaptionPaths) -> None:
    entries = read_captions(paths.captions)
    photo = paths.photos / entries[3].file
    photo.rename(paths.photos.parent / "elsewhere.jpg")
    photo.symlink_to("../elsewhere.jpg")
    with pytest.raises(ValueError, match=rf"'{photo.name}' is a link to .*elsewhere\.jpg, outside"):
        CaptionedPhotos(entries, paths.photos, FRAMING)
    with pytest.raises(ValueError, match=r"must be a path inside its directory, got '/etc/passwd'"):
        check_photos([CaptionEntry("a", "/etc/passwd", ("A",))], paths.photos)


@pytest.mark.data
@pytest.mark.parametrize(
    ("captions", "folder", "count"),
    [
        ("flickr8k/captions.txt", "flickr8k/Images", 7000),
        ("coco/annotations/captions_train2017.json", "coco/train2017", 80),
    ],
)
def test_real_photos_are_complete(captions: str, folder: str, count: int) -> None:
    data = Path(os.environ["VISATTN_DATA"])
    photos = CaptionedPhotos(read_captions(data / captions), data / folder, FRAMING)
    assert len(photos) == count
    for index in range(0, count, count // 7):
        pixels, geometry = photos.load_input(index)
        assert pixels.shape == (3, 23, 19)
        assert geometry == photos.geometry(index)
