"""Where the preprocessing of other people's models carries a picture, step by step."""

import copy
from collections.abc import Iterator, Sequence
from typing import Any, cast

from torch import Tensor, nn

from visattn.maps.geometries import Geometry
from visattn.maps.transform_steps import DRAWN_STEPS, FLIPS, STILL_STEPS, SURE_STEPS, Size

_HOMES = ("torchvision.transforms.", "timm.data.")  # elsewhere the same names may mean other things
_CHOICES = ("RandomApply", "RandomChoice", "RandomOrder")
_WAY_OUT = (
    "leave it out, or name the steps yourself, as in "
    "Geometry.identity(size).resized(...).cropped(...), and lay the map by placed(geometry)"
)


def geometry_of(transform: object, size: Size, orientation: int = 1) -> Geometry:
    """Return where a transform without chance carries a picture; `Geometry.of` says more.

    Example:
        >>> from torchvision.transforms import v2
        >>> geometry_of(v2.Resize((5, 10)), (10, 20)).input_size
        (5, 10)
    """
    geometry = Geometry.identity(size, orientation)
    for step in _steps(transform):
        geometry = _moved(step, geometry)
    return geometry


def followed(transform: object, picture: Any, orientation: int = 1) -> tuple[Any, Geometry]:
    """Run a transform, and return what came out and where the picture went, chance included.

    The numbers that are drawn are those that the transform alone would have drawn, and are read
    off its steps while they run. Tensors that are resized by `nearest` may lie up to half a pixel
    of the network's input beside their place.

    Args:
        transform: Of torchvision or timm: a step, or several as `Compose`, `nn.Sequential` or list.
        picture: Upright: an image of Pillow, or a tensor that ends in rows and columns.
        orientation: EXIF code of the picture's file.

    Returns:
        What the transform gives, and its geometry.

    Raises:
        TypeError: If the picture, or what a step gives, is neither.
        ValueError: If a step is unknown, or gives another size than it should.

    Example:
        >>> from torchvision.transforms import v2
        >>> _, geometry = followed(v2.RandomHorizontalFlip(p=1.0), torch.zeros(3, 5, 7))
        >>> geometry.to_picture(torch.tensor([[0.0, 0.0]]))
        tensor([[7., 0.]])
    """
    geometry = Geometry.identity(_size_of(picture, "the picture"), orientation)
    for step in _steps(transform):
        picture, geometry = _run(step, picture, geometry)
        if (size := _size_of(picture, f"what {_title(step)} gives")) != geometry.input_size:
            raise ValueError(
                f"{_title(step)} must give {geometry.input_size} (height, width), gave {size}: "
                f"it is of a version that works otherwise; {_WAY_OUT}"
            )
    return picture, geometry


def _steps(transform: Any) -> Iterator[Any]:
    """Go over the single steps of a transform, in their order."""
    inner = transform.transforms if _known(transform) == "Compose" else transform
    if isinstance(inner, (list, tuple)) or type(inner) is nn.Sequential:
        for step in cast("Sequence[Any]", inner):
            yield from _steps(step)
    else:
        yield transform


def _known(step: object) -> str:
    """Return the name of a step of torchvision or timm, "" for others."""
    kind = type(step)
    if kind is nn.Identity:
        return "Identity"
    return kind.__name__ if kind.__module__.startswith(_HOMES) else ""


def _title(step: object) -> str:
    return str(getattr(step, "__qualname__", type(step).__name__))


def _size_of(picture: Any, source: str) -> Size:
    """Return height and width."""
    if isinstance(picture, Tensor) and picture.ndim >= 2:
        return int(picture.shape[-2]), int(picture.shape[-1])
    if not isinstance(picture, Tensor) and isinstance(size := getattr(picture, "size", 0), tuple):
        width, height = cast("Size", size)
        return height, width
    raise TypeError(
        f"{source} must be an image of Pillow or a tensor [..., y, x], got {type(picture).__name__}"
    )


def _run(step: Any, picture: Any, geometry: Geometry) -> tuple[Any, Geometry]:
    """Run one step on a picture, and return both afterwards."""
    name = _known(step)
    if name in FLIPS:
        after = step(picture)  # it hands on the very same object if it does not flip
        return after, geometry if after is picture else geometry.flipped(vertical=FLIPS[name])
    if name in DRAWN_STEPS:
        after, drawn = _drawn(step, picture)
        return after, geometry if drawn is None else DRAWN_STEPS[name](step, geometry, drawn)
    moved = _moved(step, geometry)
    return step(picture), moved


def _drawn(step: Any, picture: Any) -> tuple[Any, Any]:
    """Return what a random step gives, and what it drew; None if it drew not to act."""
    name = "make_params" if hasattr(step, "make_params") else "get_params"
    twin = copy.copy(step)  # the caller's step stays as it is
    draw, drawn = getattr(step, name), list[Any]()

    def noted(*inputs: Any, **options: Any) -> Any:
        drawn.append(draw(*inputs, **options))
        return drawn[-1]

    vars(twin)[name] = noted
    after = twin(picture)
    return after, drawn[-1] if drawn else None


def _moved(step: Any, geometry: Geometry) -> Geometry:
    """Return the geometry after a step that leaves nothing to chance."""
    name = _known(step)
    if name in STILL_STEPS or (name in _CHOICES and _all_still(step)):
        return geometry
    if name in FLIPS and step.p in (0, 1):
        return geometry.flipped(vertical=FLIPS[name]) if step.p else geometry
    if name in SURE_STEPS and not _jitters(step):
        return SURE_STEPS[name](step, geometry)
    if name in FLIPS or name in DRAWN_STEPS:
        raise ValueError(
            f"{name} moves a picture by chance, so nobody knows where to before it runs; take the "
            "transform of evaluation, or run it by visattn.maps.transform_walks.followed"
        )
    raise ValueError(f"nobody knows where {_title(step)} carries a picture; {_WAY_OUT}")


def _jitters(step: Any) -> bool:
    """Whether a step of timm that can be sure draws at random."""
    return any(getattr(step, f"random_{what}_prob", 0) for what in ("scale", "aspect"))


def _all_still(choice: Any) -> bool:
    return all(_known(step) in STILL_STEPS for step in _steps(list(choice.transforms)))
