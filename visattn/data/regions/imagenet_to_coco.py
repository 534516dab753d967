"""Mapping from COCO categories to ImageNet-1k classes."""

from collections.abc import Sequence
from functools import cache

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
"""Class indices, or first and last index of a range, in the standard order of ImageNet-1k.

Categories without an ImageNet class, such as person, are missing; so are classes that mean much
more: ImageNet's street signs are rarely stop signs."""

IMAGENET_CATEGORIES: dict[str, tuple[int, ...]] = {
    category: tuple(
        number
        for part in parts
        for number in ([part] if isinstance(part, int) else range(part[0], part[1] + 1))
    )
    for category, parts in _RANGES.items()
}
"""Class indices of each category."""


def matching_classes(category: str, classes: Sequence[str], count: int) -> tuple[int, ...]:
    """Return the indices of a model's classes that match a category, or an empty tuple.

    A class matches if its name, or one of its comma-separated names, is that of the category. A
    model with 1000 classes is assumed to have those of ImageNet, whose names may also be WordNet
    ids, such as n02391049.

    Args:
        category: Category name in the dataset.
        classes: Class names of the model; empty if unknown.
        count: Number of classes.

    Example:
        >>> matching_classes("zebra", (), 1000), matching_classes("Ring", ("bar", "ring"), 2)
        ((340,), (1,))
        >>> matching_classes("person", (), 1000), matching_classes("n02391049", (), 1000)
        ((), (340,))
    """
    category = category.casefold()
    if count == 1000 and category in IMAGENET_CATEGORIES:
        return IMAGENET_CATEGORIES[category]
    if count == 1000 and category in _imagenet_indices():
        return (_imagenet_indices()[category],)
    names_of_classes = ({part.strip().casefold() for part in name.split(",")} for name in classes)
    return tuple(index for index, names in enumerate(names_of_classes) if category in names)


@cache
def _imagenet_indices() -> dict[str, int]:
    """Return the class index of each WordNet id of ImageNet-1k."""
    from timm.data.imagenet_info import ImageNetInfo  # slow to import

    return {name: index for index, name in enumerate(ImageNetInfo().label_names())}
