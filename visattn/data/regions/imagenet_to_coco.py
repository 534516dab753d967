"""Which of the thousand classes of ImageNet are of a category of COCO."""

from collections.abc import Sequence

_FIRST, _LAST = 0, 1  # of a range
_RANGES: dict[str, tuple[int | tuple[int, int], ...]] = {
    "airplane": (404, 895),
    "apple": (948,),
    "backpack": (414,),
    "banana": (954,),
    "bear": ((294, 297),),
    "bed": (564,),
    "bench": (703,),
    "bicycle": (444, 671),
    "bird": ((7, 24), (80, 100), (127, 146)),
    "boat": (472, 484, 554, 576, 625, 780, 814, 871, 914),
    "bottle": (440, 720, 737, 898, 907),
    "bowl": (659, 809),
    "broccoli": (937,),
    "bus": (654, 779, 874),
    "car": (407, 436, 468, 511, 609, 627, 656, 661, 751, 817),
    "cat": ((281, 285),),
    "cell phone": (487,),
    "chair": (423, 559, 765),
    "clock": (409, 530, 892),
    "couch": (831,),
    "cow": ((345, 347),),
    "cup": (504, 968),
    "dining table": (532,),
    "dog": ((151, 268),),
    "elephant": (101, 385, 386),
    "hair drier": (589,),
    "handbag": (748,),
    "horse": (339,),
    "hot dog": (934,),
    "keyboard": (508, 878),
    "laptop": (620, 681),
    "microwave": (651,),
    "motorcycle": (665, 670),
    "mouse": (673,),
    "orange": (950,),
    "parking meter": (704,),
    "pizza": (963,),
    "potted plant": (738,),
    "refrigerator": (760,),
    "remote": (761,),
    "sheep": (348, 349),
    "sink": (896,),
    "skis": (795,),
    "sports ball": ((429, 430), 522, 574, 722, 768, 805, 852, 890),
    "spoon": (910,),
    "teddy bear": (850,),
    "tennis racket": (752,),
    "tie": (451, 457, 906),
    "toaster": (859,),
    "toilet": (861,),
    "traffic light": (920,),
    "train": (466, 547, 705, 820),
    "truck": (555, 569, 675, 717, 864, 867),
    "tv": (664, 782, 851),
    "umbrella": (879,),
    "vase": (883,),
    "wine glass": (572,),
    "zebra": (340,),
}
"""Numbers, or first and last of a range, in the order that all weights for ImageNet-1k use.

What ImageNet has no class for, a person above all, is left out; so is a class that means much more:
its street signs are rarely stop signs."""

IMAGENET_CATEGORIES: dict[str, tuple[int, ...]] = {
    category: tuple(
        number
        for part in parts
        for number in ([part] if isinstance(part, int) else range(part[_FIRST], part[_LAST] + 1))
    )
    for category, parts in _RANGES.items()
}
"""Numbers of the classes of each category."""


def classes_of(category: str, classes: Sequence[str], count: int) -> tuple[int, ...]:
    """Return the numbers of a model's classes that are of a category; none if there are none.

    A class whose name, or one of its names between commas, is that of the category is of it. A
    model of a thousand classes is taken to have those of ImageNet.

    Args:
        category: As the data calls it.
        classes: Names of the classes, or none if nobody said.
        count: Of the classes.

    Example:
        >>> classes_of("zebra", (), 1000), classes_of("Ring", ("bar", "ring"), 2)
        ((340,), (1,))
        >>> classes_of("person", (), 1000)
        ()
    """
    sought = category.casefold()
    if count == 1000 and sought in IMAGENET_CATEGORIES:
        return IMAGENET_CATEGORIES[sought]
    named = ({part.strip().casefold() for part in name.split(",")} for name in classes)
    return tuple(number for number, names in enumerate(named) if sought in names)
