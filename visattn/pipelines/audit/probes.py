"""Effects of stamps on photos, as findings, beside those in other models."""

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Float
from scipy.special import stdtr, stdtrit

from visattn.images.reader import LoadedImage
from visattn.pipelines.audit.clusters import (
    MIN_PHOTOS,
)
from visattn.pipelines.audit.counterfactuals import (
    PatchEditor,
)
from visattn.pipelines.audit.evidence import PhotoEvidence
from visattn.pipelines.audit.scores import InputScorer
from visattn.pipelines.audit.stamps import Stamp, reduced
from visattn.pipelines.audit.statistics import (
    benjamini_hochberg,
    crossed_interval,
    holm,
    moderated_variances,
    sign_flip_p,
)
from visattn.results.audit import Effect, Finding

_STAMP_PHOTOS, _MIN_STAMP_PHOTOS = 64, 16
_MOST_CLASSES = 50
_MIN_STAMPS = 5  # of a kind, for a median


@dataclass(eq=False)
class Evidence:
    """Photos of an audit, with what is needed to look at them again.

    Args:
        rows: Evidence of all photos, in the order of their names.
        units: What each photo belongs to, such as a patient; by default the photo itself.
        read: Returns a photo by its name.
        scorer: The model.
        editor: Pastes and removes patches.
        class_name: Returns the name of a class.
        min_effect: Effect that a finding must exceed, in nats.
        seed: Seed of places and intervals.
    """

    rows: Sequence[PhotoEvidence]
    units: Sequence[str]
    read: Callable[[str], LoadedImage]
    scorer: InputScorer
    editor: PatchEditor
    class_name: Callable[[int], str]
    min_effect: float = 0.5
    seed: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def counts(self) -> dict[int, int]:
        """Number of photos of each predicted class."""
        return class_counts(self.rows)


def stamp_findings(evidence: Evidence, stamps: Sequence[Stamp]) -> list[Finding]:
    """Return the effect of each stamp for each class, on photos of other classes.

    A model reacts to what it was not trained on, by chance more with one class than with others,
    and no statistic of one model tells that from what it learned: what passes the test is a
    reaction, which `beyond_references` compares with that of other models.

    Args:
        evidence: The photos.
        stamps: Artefacts to put on them.
    """
    if not stamps:
        return []
    by_count = sorted(evidence.counts.items(), key=lambda item: -item[1])
    classes = [each for each, number in by_count if number >= MIN_PHOTOS][:_MOST_CLASSES]
    if not classes:
        most = f"at most {by_count[0][1]}" if by_count else "none"
        evidence.notes.append(
            f"stamps were not tested: {MIN_PHOTOS} photos at least of a predicted class are "
            f"needed, and there are {most}"
        )
        return []
    cost = 1 + sum(1 + stamp.is_local for stamp in stamps)
    count = min(_STAMP_PHOTOS, evidence.scorer.left // 2 // cost)
    photos = _spread_over_classes(evidence, count)
    if len(photos) < _MIN_STAMP_PHOTOS:
        evidence.notes.append(
            f"stamps were not tested: {_MIN_STAMP_PHOTOS} photos at least take "
            f"{_MIN_STAMP_PHOTOS * cost * 2:,} images of the budget, and there are "
            f"{len(evidence.rows)} photos"
        )
        return []
    pairs = [_stamped_odds(evidence, stamps, index) for index in photos]
    odds, shares = (np.stack([pair[part] for pair in pairs]) for part in (0, 1))
    findings: list[Finding] = []
    for class_index in sorted(classes):
        rows = [
            row
            for row, index in enumerate(photos)
            if class_index not in (evidence.rows[index].prediction, evidence.rows[index].label)
        ]
        if len(rows) < _MIN_STAMP_PHOTOS // 2:
            continue
        units = [evidence.units[photos[row]] for row in rows]
        generator = np.random.default_rng([evidence.seed, class_index])
        changes = [
            _of_class(evidence, odds[row], photos[row], class_index, classes) for row in rows
        ]
        differences = _beyond_others(np.stack(changes), stamps)
        p_values = sign_flip_p(differences, generator)
        probabilities = shares[rows, :, class_index].mean(0)
        name = evidence.class_name(class_index)
        for number, stamp in enumerate(stamps):
            own = differences[:, number]
            low, high, _ = crossed_interval(own[:, None], units)
            effect = Effect(
                float(own.mean()), low, high, float(probabilities[number]), float(p_values[number]),
                len(rows),
            )  # fmt: skip
            findings.append(Finding("stamp", stamp.name, name, "not confirmed", effect))
    return [
        replace(each, status="reaction") if each.status == "confirmed" else each
        for each in with_status(findings, evidence.min_effect)
    ]


def _of_class(
    evidence: Evidence,
    odds: Float[np.ndarray, "stamps k"],
    photo: int,
    class_index: int,
    classes: Sequence[int],
) -> Float[np.ndarray, " stamps"]:
    """Return what stamps change for a class beyond what they change for the other wrong classes.

    Blur takes evidence from the class of a photo, and so raises the log-odds of all others alike.
    """
    row = evidence.rows[photo]
    own = {class_index, row.prediction, row.label}
    others = [each for each in classes if each not in own]
    change = odds[:, class_index]
    return change - odds[:, others].mean(1) if others else change


def _beyond_others(
    changes: Float[np.ndarray, "photos stamps"], stamps: Sequence[Stamp]
) -> Float[np.ndarray, "photos stamps"]:
    """Return what each stamp changes beyond the median of the stamps of its kind.

    Models call photos that are unlike those of their training by few of their classes: there any
    stamp raises these, whatever it looks like.
    """
    specific = changes.copy()
    for is_local in (True, False):
        own = [number for number, stamp in enumerate(stamps) if stamp.is_local == is_local]
        if len(own) >= _MIN_STAMPS:
            specific[:, own] -= np.median(changes[:, own], axis=1, keepdims=True)
    return specific


def _spread_over_classes(evidence: Evidence, count: int) -> list[int]:
    """Return photos of each predicted class in turn, in an order that names decide."""
    by_class: dict[int, list[tuple[int, int]]] = {}
    for index, row in enumerate(evidence.rows):
        by_class.setdefault(row.prediction, []).append((zlib.crc32(row.name.encode()), index))
    turns = [
        (turn, class_index, index)
        for class_index, photos in by_class.items()
        for turn, (_, index) in enumerate(sorted(photos))
    ]
    return [index for *_, index in sorted(turns)][:count]


def _stamped_odds(
    evidence: Evidence, stamps: Sequence[Stamp], index: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return what each stamp changes of log-odds and probabilities of a photo, `[stamps, k]`."""
    row = evidence.rows[index]
    side = 2 * min(row.geometry.input_size)
    image, region = reduced(evidence.read(row.name), row.geometry.region, side)
    generator = np.random.default_rng([evidence.seed, zlib.crc32(row.name.encode())])
    images = [image]
    places: list[tuple[int, int]] = []
    for stamp in stamps:
        stamped, control = stamp.apply(image, region, generator)
        images.append(stamped)
        places.append((len(images) - 1, len(images) if stamp.is_local else 0))
        images += [control] * stamp.is_local
    scores = evidence.scorer.log_odds(evidence.scorer.prepare(images).inputs)
    stamped_at, control_at = ([pair[part] for pair in places] for part in (0, 1))
    odds, shares = (values[stamped_at] - values[control_at] for values in scores)
    return odds, shares


def with_status(findings: Sequence[Finding], min_effect: float) -> list[Finding]:
    """Return findings of one family with corrected p-values and their status."""
    tested = [finding.effect for finding in findings if finding.effect is not None]
    corrected = iter(holm(np.array([effect.p_value for effect in tested])))
    done: list[Finding] = []
    for finding in findings:
        if finding.effect is None:
            done.append(finding)
            continue
        effect = replace(finding.effect, p_value=float(next(corrected)))
        done.append(replace(finding, effect=effect, status=effect.status(min_effect)))
    return done


def beyond_references(
    findings: Sequence[Finding], references: Sequence[Sequence[Finding]], min_effect: float
) -> list[Finding]:
    """Return findings whose stamps are confirmed if their effect is beyond that of other models.

    What a model does that learned nothing of a stamp is another number of those that the reference
    models have: it lies further from their mean than by their spread as often as Student's t says.

    Args:
        findings: Of an audit.
        references: Those of audits of models that did not learn from the photos in question, two
            or more.
        min_effect: Difference to their mean that the interval must exceed, in nats.
    """
    others = [
        {(each.name, each.class_name): each.effect for each in reference if each.kind == "stamp"}
        for reference in references
    ]
    tested: list[Finding] = []
    known: list[list[Effect]] = []
    done: dict[tuple[str, str], Finding] = {}
    for finding in findings:
        if finding.kind != "stamp" or finding.effect is None:
            continue
        key = (finding.name, finding.class_name)
        effects = [effect for each in others if (effect := each.get(key)) is not None]
        if len(effects) < len(references):
            done[key] = replace(finding, status="not testable", effect=None)
            continue
        tested.append(finding)
        known.append(effects)
    for finding, effect in zip(tested, _beyond(tested, known), strict=True):
        own = {} if finding.effect is None else {"without reference": finding.effect}
        status = effect.status(min_effect)
        done[finding.name, finding.class_name] = replace(
            finding, effect=effect, effects=own, status=status
        )
    return [done.get((each.name, each.class_name), each) for each in findings]


def _beyond(tested: Sequence[Finding], known: Sequence[Sequence[Effect]]) -> list[Effect]:
    """Return how far effects of stamps lie from the mean of those in other models."""
    if not tested:
        return []
    effects = [finding.effect for finding in tested if finding.effect is not None]
    values = np.array([[each.value for each in row] for row in known]).T
    variances, free = moderated_variances(values)
    # A finding shall hold for other photos, too: the interval of the effect has that part.
    of_photos = np.array([(each.high - each.low) / 4 for each in effects]) ** 2
    errors = np.sqrt(variances * (1 + 1 / len(values)) + of_photos).clip(1e-9)
    differences = np.array([each.value for each in effects]) - values.mean(0)
    p_values = benjamini_hochberg(stdtr(free, -differences / errors))
    halves = stdtrit(free, 0.975) * errors
    shares = [
        own.probability - float(np.mean([each.probability for each in row]))
        for own, row in zip(effects, known, strict=True)
    ]
    return [
        Effect(value, value - half, value + half, share, p_value, effect.images)
        for value, half, share, p_value, effect in zip(
            differences.tolist(), halves.tolist(), shares, p_values.tolist(), effects, strict=True
        )
    ]


def class_counts(rows: Sequence[PhotoEvidence]) -> dict[int, int]:
    """Return the number of photos of each predicted class."""
    classes, counts = np.unique([row.prediction for row in rows], return_counts=True)
    return dict(zip(classes.tolist(), counts.tolist(), strict=True))


def patch_arrays(rows: Sequence[PhotoEvidence]) -> Mapping[str, np.ndarray]:
    """Return the cells with the most evidence of all photos, with their features, as arrays."""
    counts = [len(row.top.cells) for row in rows]
    filled = [row.top for row in rows if len(row.top.cells)]
    features = [each.features for each in filled] or [np.zeros((0, 1), np.float32)]
    cells = [each.cells for each in filled] or [np.zeros((0, 2), np.int64)]
    return {
        "photo": np.repeat(np.arange(len(rows)), counts),
        "cell": np.concatenate(cells).astype(np.int16),
        "features": np.concatenate(features).astype(np.float16),
    }
