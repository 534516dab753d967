"""Mapping of ImageNet classes to COCO categories."""

import re
from hashlib import sha256

import pytest
from timm.data.imagenet_info import ImageNetInfo

from visattn.data.regions.readers import IMAGENET_CATEGORIES, matching_classes

ENDS = {  # the first and the last of each run of numbers
    "bird": ("cock", "great gray owl", "black grouse", "black swan", "white stork", "albatross"),
    "dog": ("Chihuahua", "Mexican hairless"),
}
NEXT = {"bird": ("electric ray", "European fire salamander", "tusker"), "dog": ("timber wolf",)}


@pytest.fixture(scope="module")
def names() -> list[str]:
    info = ImageNetInfo()
    return [re.sub("gr[ae]y", "gray", info.index_to_description(number)) for number in range(1000)]


def first_names(names: list[str], category: str) -> list[str]:
    return [names[number].split(",")[0] for number in IMAGENET_CATEGORIES[category]]


def test_class_names_are_those_that_were_chosen(names: list[str]) -> None:
    """The digest is that of a list that was read word for word: "zebra: zebra", and so on."""
    listed = [f"{name}: {', '.join(first_names(names, name))}" for name in IMAGENET_CATEGORIES]
    digest = sha256(
        "\n".join(line for line in listed if line[:5] not in ("bird:", "dog: ")).encode()
    )
    assert digest.hexdigest()[:16] == "2f4f8852818bca00"
    assert first_names(names, "bicycle") == ["bicycle-built-for-two", "mountain bike"]


def test_class_ranges_have_correct_bounds(names: list[str]) -> None:
    for category, wanted in ENDS.items():
        result = first_names(names, category)
        assert set(wanted) <= set(result)
        assert not set(NEXT[category]) & set(result)


def test_other_models_are_matched_by_class_name() -> None:
    classes = ("Dog, hound", "cat", "dog")
    assert matching_classes("dog", classes, 3) == (0, 2)
    assert matching_classes("zebra", classes, 3) == ()
    assert matching_classes("no such thing", (), 1000) == ()
