"""Results of an audit: findings with their effects, tables of regions, groups and stamps."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

FindingKind = Literal["patches", "stamp"]
Status = Literal["confirmed", "reaction", "present, not used", "not confirmed", "not testable"]
SCHEMA = 1
BESIDE = 0.3  # share of patches without an object


@dataclass(frozen=True)
class Effect:
    """What an edit of photos changes for a class, compared with the same edit by its control.

    Args:
        value: Mean change of the log-odds of the class, in nats.
        low: Lower end of its 95 % interval.
        high: Upper end.
        probability: Mean change of the probability.
        p_value: Of no change, by Student's t for patches and by sign flips for stamps; corrected
            for all tests of its kind.
        images: Number of pairs of an edited photo and its control.

    Example:
        >>> Effect(1.5, 0.9, 2.1, 0.04, 0.01, 64).status(0.5)
        'confirmed'
    """

    value: float
    low: float
    high: float
    probability: float
    p_value: float
    images: int

    def status(self, min_effect: float) -> Status:
        """Return whether the effect is above a minimum, below it, or neither is known."""
        if self.low >= min_effect and self.p_value <= 0.05:
            return "confirmed"
        return "present, not used" if self.high < min_effect else "not confirmed"


@dataclass(frozen=True)
class Finding:
    """A candidate for what a model uses, with its measured effect.

    Args:
        kind: `patches` that look alike and hold the evidence of many photos, or a `stamp`, an
            artefact that was put on photos.
        name: Its name in the report.
        class_name: The class that it counts for.
        status: `confirmed` if the effect on photos that were held out is above the minimum, that of
            a stamp in each reference model as well; `reaction` for a stamp that was not compared
            with reference models;
            `present, not used` if the effect is below it, of a stamp too, which is present where it
            was put; `not confirmed` if the interval holds the
            minimum; `not testable` without photos to test it on.
        effect: The effect that decides; None if not testable.
        effects: Effects of all edits, by their names.
        share: Share of the photos of the class that have it; None for a stamp.
        photos: Names of these photos.
        details: More numbers: coherence, purity, score, and the shares of controls.
        places: Where it lies, x and y from 0 to 1 over the visible photo.
        crops: JPEG data URLs of examples; these are not saved as JSON.

    Example:
        >>> tag = Finding("patches", "patches 1", "rose", "not testable")
        >>> Finding.from_dict(tag.to_dict()) == tag
        True
    """

    kind: FindingKind
    name: str
    class_name: str
    status: Status
    effect: Effect | None = None
    effects: Mapping[str, Effect] = field(default_factory=dict)
    share: float | None = None
    photos: tuple[str, ...] = ()
    details: Mapping[str, float] = field(default_factory=dict)
    places: tuple[tuple[float, float], ...] = ()
    crops: tuple[str, ...] = ()

    @property
    def is_beside_objects(self) -> bool:
        """Whether 30 % of its patches or more show no object; True if objects are not known.

        Example:
            >>> petal = Finding("patches", "a", "rose", "confirmed", details={"outside": 0.1})
            >>> petal.is_beside_objects
            False
        """
        return self.details.get("outside", 1.0) >= BESIDE

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as values of JSON."""
        plain = asdict(self)
        del plain["crops"]
        return plain

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "Finding":
        """Return the finding from the dictionary of `to_dict`."""
        values = dict(plain)
        if values["status"] == "no effect":  # the word for it in files before November 27, 2026
            values["status"] = "present, not used"
        values["effect"] = None if values["effect"] is None else Effect(**values["effect"])
        values["effects"] = {name: Effect(**each) for name, each in values["effects"].items()}
        values["photos"] = tuple(values["photos"])
        values["places"] = tuple((x, y) for x, y in values["places"])
        return cls(**values)


@dataclass(frozen=True)
class RegionShare:
    """Share of the evidence for a class that lies in a region, beside four baselines.

    Args:
        class_name: The predicted class; `all photos` for all together.
        region: `objects` (boxes or masks), `border`, `corners` or `center`.
        photos: Number of photos.
        share: Mean share of the evidence.
        area: Share of the area: that of a uniform map.
        center: Share of a Gaussian at the center.
        untrained: Share after the weights behind the features were shuffled; None if not computed.
        shuffled: Share of the maps of other photos.
        p_value: Of no difference to the maps of other photos, corrected; None for regions that
            are the same in all photos.
    """

    class_name: str
    region: str
    photos: int
    share: float
    area: float
    center: float
    untrained: float | None
    shuffled: float
    p_value: float | None

    @property
    def enrichment(self) -> float:
        """Share of the evidence over that of the area; 1 for a uniform map."""
        return self.share / self.area if self.area > 0 else float("nan")


@dataclass(frozen=True)
class GroupDifference:
    """How a group of photos differs from the others of the same classes.

    Args:
        group: Column and value.
        measure: `accuracy`, or the region whose share of the evidence is compared.
        photos: Number of photos in the group.
        others: Number of photos that are not.
        difference: Of the means, within classes.
        p_value: By permutation within classes, corrected.
    """

    group: str
    measure: str
    photos: int
    others: int
    difference: float
    p_value: float


@dataclass(frozen=True)
class RegionShift:
    """How the share of a region differs between two checkpoints on the same photos.

    Args:
        class_name: The class.
        region: The region.
        photos: Number of photos that both predict as the class.
        shift: Difference of the shares, the other checkpoint minus this one.
        spread: Standard deviation of the share over seeds of one recipe; None without seeds.
    """

    class_name: str
    region: str
    photos: int
    shift: float
    spread: float | None

    @property
    def verdict(self) -> str:
        """The shift in units of the spread of seeds, or that it cannot be judged."""
        if self.spread is None:
            return "cannot be judged: no other seeds"
        if self.spread == 0:
            return "cannot be judged: the seeds are equal"
        return f"{abs(self.shift) / self.spread:.1f} times the spread of seeds"


@dataclass(frozen=True, eq=False)
class AuditContent:
    """What a report shows.

    Args:
        model: Name of the model.
        settings: What was computed, and how.
        counts: Number of photos of each predicted class.
        accuracy: Share of labeled photos that are right; None without labels.
        tests: Number of tests of each kind.
        smallest: Smallest effect that would have been confirmed, in nats, of each kind of test.
        findings: Ranked.
        regions: Shares of regions.
        groups: Differences of groups.
        mean_maps: Mean map of each class.
        comparison: Shifts against another checkpoint; None if there is none.
        notes: What was left out, and why.
    """

    model: str
    settings: Mapping[str, Any]
    counts: Mapping[str, int]
    accuracy: float | None
    tests: Mapping[str, int]
    smallest: Mapping[str, float]
    findings: Sequence[Finding] = ()
    regions: Sequence[RegionShare] = ()
    groups: Sequence[GroupDifference] = ()
    mean_maps: Mapping[str, Float[np.ndarray, "gy gx"]] = field(default_factory=dict)
    comparison: Sequence[RegionShift] | None = None
    notes: Sequence[str] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the content as values of JSON, without mean maps and crops."""
        plain: dict[str, Any] = {"schema": SCHEMA}
        for each in fields(self):
            if each.name != "mean_maps":
                plain[each.name] = getattr(self, each.name)
        plain["findings"] = [finding.to_dict() for finding in self.findings]
        for key in ("regions", "groups", "comparison"):
            rows = plain[key]
            plain[key] = None if rows is None else [asdict(row) for row in rows]
        return {**plain, "notes": list(self.notes)}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "AuditContent":
        """Return the content from the dictionary of `to_dict`.

        Raises:
            ValueError: If it is of another version.
        """
        values = dict(plain)
        if (schema := values.pop("schema", None)) != SCHEMA:
            raise ValueError(f"findings must have schema {SCHEMA}, got {schema!r}")
        values["findings"] = tuple(map(Finding.from_dict, values["findings"]))
        values["regions"] = tuple(RegionShare(**row) for row in values["regions"])
        values["groups"] = tuple(GroupDifference(**row) for row in values["groups"])
        if values["comparison"] is not None:
            values["comparison"] = tuple(RegionShift(**row) for row in values["comparison"])
        return cls(**values)
