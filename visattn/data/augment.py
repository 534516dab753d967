"""Transforms of torchvision, drawn from the seed of a sample: image, masks and boxes move alike.

And the words for left and right, which a mirrored photo makes wrong.
"""

import re
import unicodedata
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2

from visattn.results.kinds import IGNORE_CLASS

_GRAY = 127


def augment(
    transforms: Sequence[v2.Transform],
    seed: int,
    image: UInt8[Tensor, "c y x"],
    *,
    masks: Tensor | None = None,
    boxes: Float[Tensor, "n 4"] | None = None,
) -> tuple[UInt8[Tensor, "c y2 x2"], Tensor | None, Float[Tensor, "n 4"] | None]:
    """Return an image after transforms, with its masks and boxes.

    The same seed gives the same result, whatever is drawn before or after in this process.

    Args:
        transforms: Applied in this order.
        seed: Seed of all random numbers.
        image: Not modified.
        masks: Label maps or one mask per object, in the pixels of the image.
        boxes: Left, top, right, bottom in pixels; clipped to the new image, where those that left
            it have no area.

    Raises:
        TypeError: If a transform does not return uint8: the model itself normalizes its input.
        ValueError: If a transform removes boxes.

    Example:
        >>> row = torch.tensor([[[1, 2, 3]]], dtype=torch.uint8)
        >>> augment([v2.RandomHorizontalFlip(p=1.0)], 0, row)[0].flatten().tolist()
        [3, 2, 1]
    """
    if not transforms:
        return image, masks, boxes
    size = (image.shape[1], image.shape[2])
    box_type: Any = tv_tensors.BoundingBoxes  # whose constructor has no types
    parts: dict[str, Any] = {
        "image": tv_tensors.Image(image),
        "masks": None if masks is None else tv_tensors.Mask(masks),
        "boxes": None if boxes is None else box_type(boxes, format="XYXY", canvas_size=size),
    }
    # A bare tensor is transformed as an image, without the costs of the wrappers.
    moved: Any = image if masks is None and boxes is None else parts
    # Without devices, as transforms run on the CPU: else the state of each GPU is saved too.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        for transform in transforms:
            moved = transform(moved)
    parts = {"image": moved} if isinstance(moved, Tensor) else moved
    if parts["image"].dtype != torch.uint8:
        raise TypeError(
            f"transforms must return uint8, got {parts['image'].dtype}: the model normalizes its "
            "input, so remove v2.ToDtype, v2.Normalize and the like"
        )
    if boxes is not None:
        if len(parts["boxes"]) != len(boxes):
            raise ValueError(
                f"transforms must keep the {len(boxes)} boxes of an image, got "
                f"{len(parts['boxes'])}: remove SanitizeBoundingBoxes and the like; objects "
                "outside of the image are no targets"
            )
        parts["boxes"] = v2.functional.clamp_bounding_boxes(parts["boxes"])
    plain: dict[str, Any] = {
        name: part if part is None else part.as_subclass(Tensor) for name, part in parts.items()
    }
    return plain["image"], plain.get("masks"), plain.get("boxes")


def fill_outside(
    transforms: Sequence[v2.Transform], mask_fill: int = IGNORE_CLASS
) -> Sequence[v2.Transform]:
    """Let transforms fill what they uncover with gray in images, and in masks with a value.

    torchvision fills both with 0, which is a class in label maps.

    Example:
        >>> [rotation] = fill_outside([v2.RandomRotation((90, 90))])
        >>> image = torch.zeros(3, 1, 3, dtype=torch.uint8)
        >>> augment([rotation], 0, image, masks=image[:1])[1].tolist()
        [[[255, 0, 255]]]
    """
    for each in transforms:
        transform: Any = each
        if hasattr(transform, "_fill"):  # set from the option `fill`, which YAML cannot divide
            fill = transform._fill  # noqa: SLF001
            transform._fill = {"others": fill.get("others") or _GRAY, tv_tensors.Mask: mask_fill}  # noqa: SLF001
    return transforms


# Words, or how they begin. Where spaces separate words, "bright" is no side.
_SIDES = re.compile(
    r"\b(?:left|right"  # English
    r"|links|linke(?!d)|recht[se]"  # German, Dutch
    r"|gauche|droit"  # French
    r"|izquierd|derech"  # Spanish
    r"|(?:sini|de)str[aeio]\b"  # Italian
    r"|esquerd|direit"  # Portuguese
    r"|слева|справа|(?:в|на)?(?:лев|прав)[ыаоуе])"  # Russian
    r"|يسار|يمين|يسر|يمن"  # Arabic, which writes articles and prepositions before them
    r"|[左右]|ひだり|みぎ"  # Chinese, Japanese
    r"|왼|오른|[좌우]측",  # Korean
    re.IGNORECASE,
)


def says_side(text: str) -> bool:
    """Return whether a text says left or right, in any of twelve languages.

    The languages are English, German, Dutch, French, Spanish, Italian, Portuguese, Russian, Arabic,
    Chinese, Japanese and Korean. Other meanings count as well, as in "no seats left".

    Example:
        >>> [text for text in ("a left-hand drive", "狗在右边", "a bright day") if says_side(text)]
        ['a left-hand drive', '狗在右边']
    """
    return _SIDES.search(unicodedata.normalize("NFKC", text)) is not None
