"""Requests of cached features: caches of other features and invalid requests are refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from feature_cache_data import SIZE, VIEWS, Photos, prepare, small_encoder, unfinished

from visattn.data.feature_cache import request_header
from visattn.images.resize import ResizeSpec
from visattn.models.backbones.timm_encoder import TimmEncoder
from visattn.models.base import ImageEncoder, SmallEncoder


@pytest.fixture(scope="module")
def encoder() -> TimmEncoder:
    return small_encoder()


STALE: dict[str, tuple[Callable[[], TimmEncoder] | None, dict[str, Any], str]] = {
    "weights": (
        lambda: small_encoder(1),
        {},
        r"holds other features: weights is \w{12}\.\.\. there and \w{12}",
    ),
    "size": (
        lambda: TimmEncoder("test_resnet", img_size=(61, 97), stage=[3, None]),
        {},
        r"encoder\.arguments\.img_size is \[97, 61\] there and \[61, 97\] here",
    ),
    "stage": (
        lambda: TimmEncoder("test_resnet", img_size=SIZE, stage=2),
        {},
        r"encoder\.arguments\.stage is \[3, None\] there and 2 here",
    ),
    "colors": (
        lambda: TimmEncoder("test_resnet", img_size=SIZE, stage=[3, None], mean=(0.1, 0.2, 0.3)),
        {},
        r"encoder\.arguments\.mean is",
    ),
    "fit": (
        None,
        {"resize": ResizeSpec(SIZE, mode="pad")},
        "resize.mode is 'crop' there and 'pad'",
    ),
    "no resizing": (None, {"resize": None}, "resize is {.*} there and None here"),
    "views": (None, {"views": VIEWS}, "of 7 photos, plain, but not those of mirrored; remove the"),
}


@pytest.mark.parametrize("what", STALE)
@pytest.mark.parametrize("finished", [True, False])
def test_cache_of_other_features_is_refused_and_untouched(
    tmp_path: Path, encoder: TimmEncoder, what: str, *, finished: bool
) -> None:
    make, options, reason = STALE[what]
    options = {"views": ("plain",), "resize": ResizeSpec(SIZE), **options}
    prepare(tmp_path, encoder, Photos(), resize=ResizeSpec(SIZE), views=("plain",))
    if not finished:
        unfinished(tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    other = make() if make else encoder
    photos = Photos(size=other.img_size)
    with pytest.raises(ValueError, match=f"{reason}.*name another folder"):
        prepare(tmp_path, other, photos, **options)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
    assert not photos.read


def test_missing_photos_are_named(tmp_path: Path, encoder: TimmEncoder) -> None:
    prepare(tmp_path, encoder, Photos(5))
    with pytest.raises(ValueError, match=r"of 5 photos, .* not those of 5\.jpg, 6\.jpg; remove"):
        prepare(tmp_path, encoder, Photos(7))
    unfinished(tmp_path)
    with pytest.raises(
        ValueError, match=r"incomplete .* 5 photos, and resuming needs 3\.jpg, 4\.jpg too"
    ):
        prepare(tmp_path, encoder, Photos(3))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: SmallEncoder((24, 24), channels=8), "this SmallEncoder is trainable: freeze it"),
        (
            lambda: TimmEncoder("test_resnet", img_size=SIZE, unfreeze_from_stage=0),
            "TimmEncoder is trainable",
        ),
    ],
)
def test_trainable_encoder_is_refused(
    tmp_path: Path, make: Callable[[], ImageEncoder], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        prepare(tmp_path, make(), Photos())


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"views": ()}, r"unique and of plain, mirrored; got \[\]"),
        ({"views": ("plain", "plain")}, "views must be unique"),
        ({"views": ("upside down",)}, "upside down"),
        ({"ids": []}, "at least one"),
        ({"ids": ["a", "b", "c", "a", "e", "b", "g"]}, "duplicates: a, b"),
        ({"ids": list("abcdefg")}, r"in their order; photo 0 is 0\.jpg and not a"),
    ],
)
def test_invalid_request_is_refused(
    tmp_path: Path, encoder: TimmEncoder, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        prepare(tmp_path, encoder, Photos(), **options)


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        (None, "got None"),
        (torch.zeros(3, 61, 97, dtype=torch.uint8), r"got torch.uint8 \(3, 61, 97\)"),
        (torch.zeros(3, *SIZE), r"got torch.float32 \(3, 97, 61\)"),
    ],
)
def test_wrong_image_is_named(
    tmp_path: Path, encoder: TimmEncoder, image: torch.Tensor | None, reason: str
) -> None:
    photos = Photos()
    photos.samples[5] = photos.samples[5]._replace(image=image)
    with pytest.raises(ValueError, match=rf"5\.jpg: its image must be uint8 .*{reason}"):
        prepare(tmp_path, encoder, photos)


def test_frozen_stages_are_cached_while_the_rest_trains() -> None:
    encoder = TimmEncoder("test_resnet", img_size=SIZE, unfreeze_from_stage=4)
    request = request_header(encoder, ["a.jpg"], None, ["plain"])
    assert request.shapes == encoder.stage_shapes
    with torch.no_grad():
        encoder.backbone.get_submodule("layer4.0.conv1").get_parameter("weight").add_(1)
    assert request_header(encoder, ["a.jpg"], None, ["plain"]) == request
    with torch.no_grad():
        encoder.backbone.get_submodule("conv1.0").get_parameter("weight").add_(1)
    assert request_header(encoder, ["a.jpg"], None, ["plain"]) != request
