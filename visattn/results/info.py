"""Info of maps: typed fields of how they were made, and their form in records."""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from visattn.geometry.affine import Box

_KEYS = {"class_name": "class"}  # of fields whose name in JSON is a keyword of Python
_TEXTS = (
    "method", "model", "image", "title", "note", "label", "class_name", "empty",
    "places", "quantity", "policy",
)  # fmt: skip
_NUMBERS = ("score", "probability", "cosine")  # JSON has no NaN, records hold its name


@dataclass(frozen=True)
class Thing:
    """What of an output a map explains: a pixel, a region, a box, a query or a token.

    Args:
        kind: `pixel`, `region`, `box`, `query` or `token`.
        part: Which number of a box: its `score` or a side.
        runs: Lengths of its runs of cells, outside and inside by turns, row by row.

    Example:
        >>> Thing("pixel", point=(132, 52)).to_dict()
        {'kind': 'pixel', 'x': 132, 'y': 52}
    """

    kind: str
    point: tuple[float, float] | None = None
    index: int | None = None
    part: str = ""
    box: Box | None = None
    grid: tuple[int, int] | None = None
    runs: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return what is known of it as plain values for JSON."""
        point = {} if self.point is None else {"x": self.point[0], "y": self.point[1]}
        entries: dict[str, Any] = {
            "index": self.index,
            "part": self.part or None,
            "box": None if self.box is None else list(self.box),
            "grid": None if self.grid is None else list(self.grid),
            "runs": None if self.grid is None else list(self.runs),
        }
        known = {key: value for key, value in entries.items() if value is not None}
        return {"kind": self.kind, **point, **known}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> "Thing":
        """Return the thing of a record.

        Example:
            >>> Thing.from_dict({"kind": "box", "box": [5, 5, 25, 25], "part": "score"}).box
            (5, 5, 25, 25)
        """
        box = record.get("box")
        grid = record.get("grid")
        return cls(
            str(record["kind"]),
            (record["x"], record["y"]) if "x" in record else None,
            record.get("index"),
            str(record.get("part") or ""),
            None if box is None else _box(box),
            None if grid is None else (int(grid[0]), int(grid[1])),
            tuple(record.get("runs", ())),
        )


def _box(values: Sequence[float]) -> Box:
    left, top, right, bottom = values
    return left, top, right, bottom


@dataclass(frozen=True)
class MapInfo:
    """How a map was made.

    What a method, a recorder or a pipeline says besides is in `more`. Maps of several texts have a
    list of targets, scores and cosine similarities.

    Args:
        method: Name of the method.
        options: Its arguments.
        model: Name of the model.
        layer: Name of the layer, or its index among recorded ones.
        call: Which call of a recorded module, from 0.
        prefix_tokens: Kinds of the tokens before those on the grid of a recorded layer; None for
            what is not attention among tokens.
        image: Name of the image.
        title: Title in figures, if it is not that of the method.
        note: What a reader of the figure should know.
        label: Of one map out of several.
        target: Index of the explained class; None for none.
        class_name: Its name; "" if it is unknown.
        score: Its score.
        probability: Its probability.
        cosine: Cosine similarity of image and text.
        thing: The explained pixel, region, box, query or token.
        signed: Whether negative values count against the target.
        empty: Why the map is empty; "" if it is not.
        failed: Whether it is empty because its method failed.
        texts: Texts whose maps share one scale.
        places: How hard attention selects places: `argmax`, `sample`, `expectation`.
        quantity: What the values are; "" for attention.
        policy: Which policy placed the glimpses.
        seed: Its seed.
        outside: For each query, the share of its weight outside of the image.
        more: Further entries, plain values by the keys that they have in JSON.
        written: Keys that `to_dict` writes even if their values are the defaults.

    Raises:
        ValueError: If `more` has the key of a field.

    Example:
        >>> info = MapInfo("gradcam", target=1, class_name="dog", score=2.5, written=("empty",))
        >>> info.to_dict()
        {'method': 'gradcam', 'target': 1, 'class': 'dog', 'score': 2.5, 'empty': ''}
    """

    method: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    model: str = ""
    layer: str | int | None = None
    call: int | None = None
    prefix_tokens: tuple[str, ...] | None = None
    image: str = ""
    title: str = ""
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
    failed: bool = False
    texts: Sequence[str] = ()
    places: str = ""
    quantity: str = ""
    policy: str = ""
    seed: int | None = None
    outside: Sequence[float] = ()
    more: Mapping[str, Any] = field(default_factory=dict)
    written: tuple[str, ...] = field(default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        """Refuse a second place for a field."""
        if double := [key for key in self.more if key in _FIELDS]:
            raise ValueError(f"more must not have the keys of fields, got {', '.join(double)}")

    def __or__(self, other: "MapInfo") -> "MapInfo":
        """Return what both say; where both say something, the other one counts.

        Example:
            >>> MapInfo("gradcam", layer="layer3") | MapInfo(layer="layer4", score=2.5)
            MapInfo(method='gradcam', ..., layer='layer4', ..., score=2.5, ...)
        """
        return MapInfo.from_dict({**self.to_dict(), **other.to_dict()})

    @property
    def target_name(self) -> str:
        """Name of the explained class or its index; "" without one."""
        return self.class_name or ("" if self.target is None else f"class {self.target}")

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that are known and `more` as plain values, by their keys in JSON."""
        record: dict[str, Any] = {}
        for key, name in _FIELDS.items():
            value = getattr(self, name)
            if key in self.written or value != _DEFAULTS[name]:
                record[key] = value.to_dict() if isinstance(value, Thing) else value
        return {**record, **self.more}

    @property
    def input_text(self) -> str:
        """Size and colors of the input in words; "" if they are not known.

        Example:
            >>> made = {"size": [32, 40], "mean": [0.5], "std": [0.25], "source": "assumed: none"}
            >>> MapInfo(more={"preprocessing": made}).input_text
            'input 32 × 40, mean 0.5, std 0.25 (assumed)'
        """
        made = self.more.get("preprocessing", {})
        size = " \N{MULTIPLICATION SIGN} ".join(map(str, made.get("size", ())))
        colors = [
            f"{name} {' '.join(f'{value:.3g}' for value in made[name])}"
            for name in ("mean", "std")
            if made.get(name)
        ]
        parts = [f"input {size}" if size else "", *colors]
        assumed = " (assumed)" * str(made.get("source", "")).startswith("assumed")
        return ", ".join(filter(None, parts)) + assumed

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> "MapInfo":
        """Return the info of a record.

        Args:
            record: What `to_dict` returned; unknown keys become `more`.

        Example:
            >>> record = {"method": "gradcam", "class": "", "score": None, "rows": "class"}
            >>> info = MapInfo.from_dict(record)
            >>> info.more, info.to_dict() == record
            ({'rows': 'class'}, True)
        """
        values = {_FIELDS[key]: value for key, value in record.items() if key in _FIELDS}
        # What is written although it is a default is written again: a record is returned as it was
        # read.
        written = tuple(key for key, name in _FIELDS.items() if key in record
                        and record[key] in (_DEFAULTS[name], None))  # fmt: skip
        for name, value in values.items():
            if name in _TEXTS:
                values[name] = "" if value is None else str(value)
            elif name in _NUMBERS and isinstance(value, str):
                values[name] = float(value)
        if "options" in values:
            values["options"] = dict(values["options"])
        if values.get("thing") is not None:
            values["thing"] = Thing.from_dict(values["thing"])
        more = {key: value for key, value in record.items() if key not in _FIELDS}
        return cls(**values, more=more, written=written)


_FIELDS = {_KEYS.get(named.name, named.name): named.name for named in fields(MapInfo)
           if named.name not in ("more", "written")}  # fmt: skip
# Mappings, which have a factory instead of a default, are empty by default.
_DEFAULTS = {
    named.name: {} if named.default is MISSING else named.default for named in fields(MapInfo)
}
