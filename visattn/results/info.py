"""Info of maps: settings and targets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from visattn.geometry.affine import Box
from visattn.results.records import Result


@dataclass(frozen=True)
class Thing(Result):
    """Target of a map of dense outputs: a pixel, a region, a box or a query.

    Args:
        kind: `pixel`, `region`, `box` or `query`.
        runs: Run-length encoding of its cells in row-major order, alternating outside and inside.

    Example:
        >>> Thing("pixel", point=(132, 52)).kind
        'pixel'
    """

    kind: str
    point: tuple[float, float] | None = None
    index: int | None = None
    box: Box | None = None
    grid: tuple[int, int] | None = None
    runs: tuple[int, ...] = ()


@dataclass(frozen=True)
class MapInfo(Result):
    """Settings and target of a map.

    Other entries of methods, recorders or pipelines are in `more`. Maps of several texts have a
    list of targets, scores and cosine similarities.

    Args:
        method: Name of the method.
        options: Its arguments.
        model: Name of the model.
        layer: Name of the layer, or its index among recorded ones.
        call: Which call of a recorded module, from 0.
        prefix_tokens: Kinds of the tokens before those on the grid of a recorded layer; None if it
            is not attention among tokens.
        image: Name of the image.
        note: Note for figures.
        label: Label of one map of several.
        target: Index of the explained class; None for none.
        class_name: Its name; "" if it is unknown.
        score: Value of the model's output that is explained, such as the logit of the class.
        probability: Probability of the class, from 0 to 1; None if the output has none.
        cosine: Cosine similarity of image and text.
        thing: The explained pixel, region, box or query.
        signed: Whether negative values count against the target.
        empty: Why the map is empty; "" if it is not.
        texts: Texts whose maps share one scale.
        places: How hard attention selects positions: `argmax`, `sample`, `expectation`.
        quantity: Label of the values; "" for attention.
        policy: Which policy placed the glimpses.
        seed: Its seed.
        outside: For each query, the share of its weight outside of the image.
        more: Further entries, plain values.

    Example:
        >>> info = MapInfo("gradcam", target=1, class_name="dog", score=2.5)
        >>> record = info.to_dict()
        >>> record["class_name"], record["cosine"], MapInfo.from_dict(record) == info
        ('dog', None, True)
    """

    method: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    model: str = ""
    layer: str | int | None = None
    call: int | None = None
    prefix_tokens: tuple[str, ...] | None = None
    image: str = ""
    note: str = ""
    label: str = ""
    target: int | Sequence[int] | None = None
    class_name: str = ""
    score: float | Sequence[float | None] | None = None
    probability: float | None = None
    cosine: float | Sequence[float | None] | None = None
    thing: Thing | None = None
    signed: bool = False
    empty: str = ""
    texts: Sequence[str] = ()
    places: str = ""
    quantity: str = ""
    policy: str = ""
    seed: int | None = None
    outside: Sequence[float] = ()
    more: Mapping[str, Any] = field(default_factory=dict)

    def __or__(self, other: "MapInfo") -> "MapInfo":
        """Return the union of both; the other one has priority.

        Example:
            >>> MapInfo("gradcam", layer="layer3") | MapInfo(layer="layer4", score=2.5)
            MapInfo(method='gradcam', ..., layer='layer4', ..., score=2.5, ...)
        """
        names = [each.name for each in fields(self)]
        known = {name: getattr(other, name) for name in names
                 if getattr(other, name) != getattr(_UNKNOWN, name)}  # fmt: skip
        return replace(self, **{**known, "more": {**self.more, **other.more}})

    @property
    def target_name(self) -> str:
        """Name of the explained class or its index; "" without one."""
        return self.class_name or ("" if self.target is None else f"class {self.target}")

    @property
    def input_text(self) -> str:
        """Size and colors of the input in words; "" if they are not known.

        Example:
            >>> made = {"size": [32, 40], "mean": [0.5], "std": [0.25], "source": "assumed: none"}
            >>> MapInfo(more={"preprocessing": made}).input_text
            '32 × 40, mean 0.5, std 0.25 (assumed)'
        """
        made = self.more.get("preprocessing", {})
        size = " \N{MULTIPLICATION SIGN} ".join(map(str, made.get("size", ())))
        colors = [
            f"{name} {' '.join(f'{value:.3g}' for value in made[name])}"
            for name in ("mean", "std")
            if made.get(name)
        ]
        assumed = " (assumed)" * str(made.get("source", "")).startswith("assumed")
        return ", ".join(filter(None, [size, *colors])) + assumed


_UNKNOWN = MapInfo()
