"""Mapping of ImageNet classes to COCO categories."""

import re

import pytest
from timm.data.imagenet_info import ImageNetInfo

from visattn.data.regions.readers import IMAGENET_CATEGORIES, matching_classes

NAMES = """\
airplane: airliner, warplane
apple: Granny Smith
backpack: backpack
banana: banana
bear: brown bear, American black bear, ice bear, sloth bear
bed: four-poster
bench: park bench
bicycle: bicycle-built-for-two, mountain bike
boat: canoe, catamaran, fireboat, gondola, lifeboat, schooner, speedboat, trimaran, yawl
bottle: beer bottle, pill bottle, pop bottle, water bottle, wine bottle
bowl: mixing bowl, soup bowl
broccoli: broccoli
bus: minibus, school bus, trolleybus
car: ambulance, beach wagon, cab, convertible, jeep, limousine, minivan, Model T, racer, sports car
cat: tabby, tiger cat, Persian cat, Siamese cat, Egyptian cat
cell phone: cellular telephone
chair: barber chair, folding chair, rocking chair
clock: analog clock, digital clock, wall clock
couch: studio couch
cow: ox, water buffalo, bison
cup: coffee mug, cup
dining table: dining table
elephant: tusker, Indian elephant, African elephant
hair drier: hand blower
handbag: purse
horse: sorrel
hot dog: hotdog
keyboard: computer keyboard, typewriter keyboard
laptop: laptop, notebook
microwave: microwave
motorcycle: moped, motor scooter
mouse: mouse
orange: orange
parking meter: parking meter
pizza: pizza
potted plant: pot
refrigerator: refrigerator
remote: remote control
sheep: ram, bighorn
sink: washbasin
skis: ski
sports ball: baseball, basketball, croquet ball, golf ball, ping-pong ball, rugby ball, soccer \
ball, tennis ball, volleyball
spoon: wooden spoon
teddy bear: teddy
tennis racket: racket
tie: bolo tie, bow tie, Windsor tie
toaster: toaster
toilet: toilet seat
traffic light: traffic light
train: bullet train, electric locomotive, passenger car, steam locomotive
truck: fire engine, garbage truck, moving van, pickup, tow truck, trailer truck
tv: monitor, screen, television
umbrella: umbrella
vase: vase
wine glass: goblet
zebra: zebra
"""
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


def test_class_names_match_their_category(names: list[str]) -> None:
    content = {line.split(": ")[0]: line.split(": ")[1] for line in NAMES.splitlines()}
    assert {*content, *ENDS} == set(IMAGENET_CATEGORIES)
    assert {category: ", ".join(first_names(names, category)) for category in content} == content


def test_class_ranges_have_correct_bounds(names: list[str]) -> None:
    for category, wanted in ENDS.items():
        result = first_names(names, category)
        assert set(wanted) <= set(result)
        assert not set(NEXT[category]) & set(result)


def test_classes_have_at_most_a_single_category() -> None:
    every = [number for numbers in IMAGENET_CATEGORIES.values() for number in numbers]
    assert len(every) == len(set(every))


def test_other_models_are_matched_by_class_name() -> None:
    classes = ("Dog, hound", "cat", "dog")
    assert matching_classes("dog", classes, 3) == (0, 2)
    assert matching_classes("zebra", classes, 3) == ()
    assert matching_classes("no such thing", (), 1000) == ()
