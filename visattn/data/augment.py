"""Seeded torchvision transforms, applied jointly to an image, its masks and its boxes.

Also finds captions that say left or right, which mirroring would make wrong.
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
    """Apply transforms to an image and, jointly, to its masks and boxes.

    The result depends on the seed alone, not on the global random state.

    Args:
        transforms: Applied in order.
        seed: Seed of the random transforms.
        image: Not modified.
        masks: Label maps, or one mask per object, at the size of the image.
        boxes: Left, top, right, bottom in pixels. They are clipped to the new image; a box outside
            of it has zero area.

    Raises:
        TypeError: If a transform does not return uint8; the model normalizes its input.
        ValueError: If a transform removes boxes.

    Example:
        >>> row = torch.tensor([[[1, 2, 3]]], dtype=torch.uint8)
        >>> augment([v2.RandomHorizontalFlip(p=1.0)], 0, row)[0].flatten().tolist()
        [3, 2, 1]
    """
    if not transforms:
        return image, masks, boxes
    size = (image.shape[1], image.shape[2])
    box_type: Any = tv_tensors.BoundingBoxes  # its constructor is untyped
    parts: dict[str, Any] = {
        "image": tv_tensors.Image(image),
        "masks": None if masks is None else tv_tensors.Mask(masks),
        "boxes": None if boxes is None else box_type(boxes, format="XYXY", canvas_size=size),
    }
    # v2 treats a bare tensor as an image, without the overhead of tv_tensors.
    moved: Any = image if masks is None and boxes is None else parts
    # Transforms run on the CPU: without devices=[] the state of every GPU would be saved.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        for transform in transforms:
            moved = transform(moved)
    parts = {"image": moved} if isinstance(moved, Tensor) else moved
    if parts["image"].dtype != torch.uint8:
        raise TypeError(
            f"transforms must return uint8, got {parts['image'].dtype}: the model normalizes its "
            "input, so remove v2.ToDtype, v2.Normalize and similar"
        )
    if boxes is not None:
        if len(parts["boxes"]) != len(boxes):
            raise ValueError(
                f"transforms must keep the {len(boxes)} boxes of an image, got "
                f"{len(parts['boxes'])}: remove SanitizeBoundingBoxes and similar; boxes "
                "outside the image are excluded from the targets anyway"
            )
        parts["boxes"] = v2.functional.clamp_bounding_boxes(parts["boxes"])
    plain: dict[str, Any] = {
        name: part if part is None else part.as_subclass(Tensor) for name, part in parts.items()
    }
    return plain["image"], plain.get("masks"), plain.get("boxes")


def fill_outside(
    transforms: Sequence[v2.Transform], mask_fill: int = IGNORE_CLASS
) -> Sequence[v2.Transform]:
    """Set the fill of transforms: gray for images, `mask_fill` for masks.

    The default of torchvision is 0 for both, which is a class in label maps.

    Example:
        >>> [rotation] = fill_outside([v2.RandomRotation((90, 90))])
        >>> image = torch.zeros(3, 1, 3, dtype=torch.uint8)
        >>> augment([rotation], 0, image, masks=image[:1])[1].tolist()
        [[[255, 0, 255]]]
    """
    for each in transforms:
        transform: Any = each
        if hasattr(transform, "_fill"):  # YAML cannot set `fill` per type
            fill = transform._fill  # noqa: SLF001
            transform._fill = {"others": fill.get("others") or _GRAY, tv_tensors.Mask: mask_fill}  # noqa: SLF001
    return transforms


# Words or stems; the word boundary excludes "bright".
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
    """Return whether a text mentions left or right in one of twelve languages.

    The languages are English, German, Dutch, French, Spanish, Italian, Portuguese, Russian, Arabic,
    Chinese, Japanese and Korean. Other senses match too, as in "no seats left".

    Example:
        >>> [text for text in ("a left-hand drive", "狗在右边", "a bright day") if says_side(text)]
        ['a left-hand drive', '狗在右边']
    """
    return _SIDES.search(unicodedata.normalize("NFKC", text)) is not None
