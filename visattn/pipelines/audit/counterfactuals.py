"""Counterfactuals of patches: pasted into photos of other classes, replaced in their own."""

import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from jaxtyping import Bool, Float
from scipy.ndimage import gaussian_filter
from torch import Tensor

from visattn.geometry.placement import GridPlacement
from visattn.images.reader import LoadedImage
from visattn.pipelines.audit.cells import CellGrid, box_sums
from visattn.pipelines.audit.clusters import Candidate, Patches
from visattn.pipelines.audit.evidence import PhotoEvidence
from visattn.pipelines.audit.scores import InputScorer
from visattn.pipelines.audit.statistics import crossed_interval
from visattn.results.audit import BESIDE, Effect

_DONORS, _RECIPIENTS, _PAIRS = 24, 24, 72  # photos, and pairs of them: each gets some donors
_ELSEWHERE = 6  # recipients that get them at other places, too
_MIN_DONORS, _MIN_RECIPIENTS, _MIN_CONTROLS = 5, 4, 3
_CELLS = 2.5  # side of a patch, in cells: a larger one would hold the object itself
_STILL, _STILL_PART = 0.3, 0.1  # spread beside that of other photos; part of a cell
_BLUR = 0.08  # standard deviation, of the shorter side
_NEARLY_ALL = 0.85  # share of the photos of a candidate
_MOST_INPUTS = 256  # photos that are kept in memory
_TRIALS = 16  # random places, of which the one with least of the candidate is taken
TEST_IMAGES = 4 * _PAIRS  # that a candidate takes at least
Box = tuple[int, int, int, int]
PASTED, LOCAL, MOVED, REMOVED = (
    "pasted at its place", "beyond other places of its photo", "pasted elsewhere", "replaced",
)  # fmt: skip
_CONTRASTS = {2: np.array([[1, -1]]), 4: np.array([[1, -1, 0, 0], [1, -1, -1, 1]])}
"""Effects of a pair, by the number of its edits: of donor and control, also of other places."""


@dataclass(frozen=True)
class _Patch:
    """Places of a photo whose pixels are pasted: all pixels of each box, or those of its mask."""

    photo: int
    boxes: tuple[Box, ...]
    masks: tuple[Bool[np.ndarray, "_ _"], ...] = ()  # of several sizes
    is_blurred: bool = False


@dataclass(frozen=True, eq=False)
class FixedPixels:
    """Pixels that are the same in many photos of a class: a frame, a text at one place.

    Args:
        pixels: These.
        photos: Photos of the class that have them, of those that were held out.
    """

    pixels: Bool[np.ndarray, "y x"]
    photos: frozenset[int] = frozenset()

    def is_like(self, other: "FixedPixels | None") -> bool:
        """Whether more than half of the pixels of the larger are those of the other.

        Example:
            >>> whole, half = np.ones((2, 4), bool), np.eye(2, 4, dtype=bool)
            >>> [FixedPixels(whole).is_like(each) for each in (FixedPixels(half), None)]
            [False, False]
        """
        if other is None:
            return False
        common = (self.pixels & other.pixels).sum()
        return bool(2 * common > max(self.pixels.sum(), other.pixels.sum()))


@dataclass(frozen=True)
class _Pair:
    """A recipient and a donor, with edits of the recipient: that of interest, then controls.

    An edit is what is pasted, and where.
    """

    recipient: int
    donor: int
    edits: tuple[tuple[_Patch, tuple[Box, ...]], ...]


@dataclass(eq=False)
class PatchEditor:
    """Edits photos by patches of others, and measures the log-odds of a class.

    Args:
        rows: All photos.
        units: What each photo belongs to; photos of a unit are drawn together.
        read: Returns a photo by its name.
        scorer: The model.
        placement: Where the cells of its features lie on the input.
        grid: Rows and columns of the cells.
        seed: Seed of places and intervals.
    """

    rows: Sequence[PhotoEvidence]
    units: Sequence[str]
    read: Callable[[str], LoadedImage]
    scorer: InputScorer
    placement: GridPlacement | None
    grid: tuple[int, int]
    seed: int = 0
    _inputs: dict[int, Float[Tensor, "c y x"]] = field(default_factory=dict, init=False)
    _blurs: dict[int, Float[Tensor, "c y x"]] = field(default_factory=dict, init=False)
    _seen: dict[int, Box] = field(default_factory=dict, init=False)

    def fixed_pixels(
        self, candidate: Candidate, patches: Patches, held_out: Sequence[int]
    ) -> FixedPixels | None:
        """Return the pixels that are the same in photos with the patch; None if there are none.

        A corner of a frame may do little where the whole does much, and photos of whole cells
        would paste much else with it. Pixels count in cells that have many of them, and those
        beside them do; there are none if they lie in more than half of the cells.

        Args:
            candidate: Patches that look alike.
            patches: Cells with the most evidence of the photos that were held out.
            held_out: Indices of these photos.
        """
        donors = [each.photo for each in self._donors(candidate, patches, None)]
        others = self._recipients(candidate.class_index, held_out)[:_RECIPIENTS]
        if len(donors) < _MIN_DONORS or len(others) < _MIN_RECIPIENTS:
            return None
        # Few photos have equal pixels by chance: those that were searched count, too.
        both = [*candidate.photos[:_DONORS], *donors]
        # Photos of the class without the patch are no comparison: half of them have the pixels.
        own, other = (_spread(self._stack(photos)) for photos in (both, others))
        still = (own < _STILL * other).numpy()
        cells = CellGrid.of(self.placement, self.grid, self.rows[donors[0]].geometry)
        boxes = cells.input_boxes
        chosen = box_sums(still, boxes) / box_sums(np.ones(still.shape), boxes) >= _STILL_PART
        if not 0 < 2 * chosen.sum() <= len(boxes):
            return None
        core = np.zeros(still.shape, bool)
        for left, top, right, bottom in map(_whole, boxes[chosen]):
            core[top:bottom, left:right] = still[top:bottom, left:right]
        at = torch.from_numpy(core)
        middle = self._stack(both).median(0).values

        def distance(photo: int) -> float:
            return float((self._input(photo) - middle)[:, at].abs().mean())

        limit = float(np.median([distance(photo) for photo in others])) / 2
        if np.mean([distance(photo) < limit for photo in both]) < _NEARLY_ALL:
            return None  # half of the class has these pixels, whatever the candidate shows
        same = (index for index in held_out if self._is_of(index, candidate.class_index))
        having = frozenset(index for index in same if distance(index) < limit)
        return FixedPixels(core, having)

    def _is_of(self, index: int, class_index: int) -> bool:
        return self.rows[index].prediction == class_index

    def _stack(self, photos: Sequence[int]) -> Float[Tensor, "n c y x"]:
        return torch.stack([self._input(photo) for photo in photos])

    def test(
        self,
        candidate: Candidate,
        patches: Patches,
        held_out: Sequence[int],
        fixed: FixedPixels | None = None,
        times: int = 1,
    ) -> dict[str, Effect] | None:
        """Return the effects of the edits; None without enough photos, or beyond the budget.

        Args:
            candidate: What to test.
            patches: Cells with the most evidence of the photos that were held out.
            held_out: Indices of these photos.
            fixed: Pixels that are pasted from each of its photos, in place of its patches.
            times: How many times as many photos and pairs of them are taken.
        """
        first = zlib.crc32(self.rows[candidate.photos[0]].name.encode())
        generator = np.random.default_rng([self.seed, candidate.class_index, first])
        donors = self._donors(candidate, patches, fixed, times)
        without = [each for each in held_out if fixed is None or each not in fixed.photos]
        controls = self._controls(candidate, patches, without)[: times * _RECIPIENTS]
        recipients = self._recipients(candidate.class_index, held_out)[: times * _RECIPIENTS]
        if len(donors) < _MIN_DONORS or len(recipients) < _MIN_RECIPIENTS or not controls:
            return None
        each = min(-(-times * _PAIRS // len(recipients)), len(donors))
        count = each * (4 * len(recipients) + 2 * _ELSEWHERE) + 2 * len(donors)
        if count > self.scorer.left:
            return None
        # What a photo has everywhere, such as a tint, is in its other places, too; these are
        # compared with those of the control, as they show the object as often.
        others = [replace(each, boxes=self._other_boxes(each, generator)) for each in donors]

        def pairs(recipients: Sequence[int], *, moved: bool) -> Iterator[_Pair]:
            # Each recipient gets some donors: many photos of both average out what is in them.
            for number, photo in enumerate(recipients):
                for turn in range(number * each, (number + 1) * each):
                    donor = donors[turn % len(donors)]
                    same = replace(donor, photo=controls[turn % len(controls)])
                    away = replace(donor, photo=photo)
                    boxes = self._other_boxes(away, generator) if moved else donor.boxes
                    other = others[turn % len(donors)]
                    other_same = replace(other, photo=same.photo)
                    if fixed is not None:
                        same = other_same = replace(away, boxes=boxes, is_blurred=True)
                    sources = [donor, same] if moved else [donor, same, other, other_same]
                    edits = tuple((source, boxes) for source in sources)
                    yield _Pair(photo, donor.photo, edits)

        def replaced() -> Iterator[_Pair]:
            # The place of the patch counts if the class falls further there than beside it.
            for turn, (donor, other) in enumerate(zip(donors, others, strict=True)):
                photo = controls[turn % len(controls)]
                edits = tuple((replace(each, photo=photo), each.boxes) for each in (other, donor))
                yield _Pair(donor.photo, donor.photo, edits)

        class_index = candidate.class_index
        pasted, local = self._effects(class_index, [*pairs(recipients, moved=False)])
        [elsewhere] = self._effects(class_index, [*pairs(recipients[:_ELSEWHERE], moved=True)])
        [removed] = self._effects(class_index, [*replaced()])
        return {PASTED: pasted, LOCAL: local, MOVED: elsewhere, REMOVED: removed}

    def _donors(
        self, candidate: Candidate, patches: Patches, fixed: FixedPixels | None, times: int = 1
    ) -> list[_Patch]:
        own = candidate.members(patches) & (patches.classes == candidate.class_index)
        # What lies beside objects is tested without them, even if some of its patches show one.
        beside = own & ~patches.on_objects
        photos = [len(np.unique(patches.photos[each])) for each in (beside, own)]
        if photos[0] >= max(_MIN_DONORS, BESIDE * photos[1]):
            own = beside
        similar = (patches.vectors @ candidate.centers.T - candidate.radii).max(1, initial=-2)
        order = sorted(
            {int(photo) for photo in patches.photos[own]},
            key=lambda photo: -similar[own & (patches.photos == photo)].max(),
        )
        donors: list[_Patch] = []
        for photo in order[: times * _DONORS]:
            if fixed is not None:
                donors.append(self._fixed_patch(photo, fixed.pixels))
                continue
            cells = patches.cells[own & (patches.photos == photo)]
            donors.append(_Patch(photo, tuple(self._box(photo, cell) for cell in cells)))
        return donors

    def _fixed_patch(self, photo: int, fixed: Bool[np.ndarray, "y x"]) -> _Patch:
        """Return the cells of a photo with fixed pixels, of which these alone are pasted."""
        cells = CellGrid.of(self.placement, self.grid, self.rows[photo].geometry)
        boxes = [self._onto(photo, _whole(box)) for box in cells.input_boxes]
        masks = [fixed[top:bottom, left:right] for left, top, right, bottom in boxes]
        chosen = [place for place, mask in enumerate(masks) if mask.any()]
        return _Patch(
            photo, tuple(boxes[place] for place in chosen), tuple(masks[place] for place in chosen)
        )

    def _controls(
        self, candidate: Candidate, patches: Patches, held_out: Sequence[int]
    ) -> list[int]:
        """Return photos of the class without the patch, else of others; each is used in turn.

        Those come first whose patches are least like it: others may have it, but not at a maximum.
        """
        near = {*patches.photos[candidate.members(patches)].tolist()}
        others = [index for index in held_out if index not in near]
        same = [index for index in others if self.rows[index].prediction == candidate.class_index]
        similar = dict.fromkeys(others, -2.0)
        nearest = (patches.vectors @ candidate.centers.T - candidate.radii).max(1, initial=-2)
        for photo, value in zip(patches.photos.tolist(), nearest.tolist(), strict=True):
            similar[photo] = max(similar.get(photo, -2.0), value)
        chosen = same if len(same) >= _MIN_CONTROLS else others
        return sorted(chosen, key=lambda photo: similar[photo])

    def _recipients(self, class_index: int, held_out: Sequence[int]) -> list[int]:
        """Return photos of other classes, of each in turn."""
        by_class: dict[int, list[int]] = {}
        for index in held_out:
            row = self.rows[index]
            if class_index not in (row.prediction, row.label):
                by_class.setdefault(row.prediction, []).append(index)
        turns = [
            (turn, place, index)
            for place, photos in enumerate(by_class.values())
            for turn, index in enumerate(photos)
        ]
        return [index for *_, index in sorted(turns)]

    def _visible(self, photo: int) -> Box:
        """Return left, top, right, bottom of the photo on the input, without padding."""
        if photo in self._seen:
            return self._seen[photo]
        geometry = self.rows[photo].geometry
        [box] = geometry.boxes_to_input(torch.tensor([geometry.region], dtype=torch.float64))
        height, width = geometry.input_size
        left, top, right, bottom = (box.numpy() * [width, height, width, height]).round()
        self._seen[photo] = int(left), int(top), int(right), int(bottom)
        return self._seen[photo]

    def seen_part(
        self, photo: int, pixels: Bool[np.ndarray, "y x"]
    ) -> Bool[np.ndarray, "seen_y seen_x"]:
        """Return some pixels of the input without its padding."""
        left, top, right, bottom = self._visible(photo)
        return pixels[top:bottom, left:right]

    def _box(self, photo: int, cell: np.ndarray) -> Box:
        """Return the patch around a cell, in pixels of the input."""
        cells = CellGrid.of(self.placement, self.grid, self.rows[photo].geometry)
        [[x, y]] = cells.centers(cell[None])
        height, width = cells.geometry.input_size
        side = round(_CELLS * max(height / self.grid[0], width / self.grid[1]))
        return self._fitted(photo, (round(x - side / 2), round(y - side / 2)), (side, side))

    def _fitted(self, photo: int, corner: tuple[int, int], size: tuple[int, int]) -> Box:
        """Return a box of a size, moved into the visible part of a photo."""
        left, top, right, bottom = self._visible(photo)
        width, height = min(size[0], right - left), min(size[1], bottom - top)
        x = min(max(corner[0], left), right - width)
        y = min(max(corner[1], top), bottom - height)
        return x, y, x + width, y + height

    def _other_boxes(self, patch: _Patch, generator: np.random.Generator) -> tuple[Box, ...]:
        """Return boxes of the same sizes at other places of the visible part of a photo.

        A frame is in most places at random: of some, the one that has least of it is taken.
        """
        left, top, right, bottom = self._visible(patch.photo)
        taken = np.zeros((bottom - top, right - left), bool)
        for box in patch.boxes:
            taken[max(box[1] - top, 0) : box[3] - top, max(box[0] - left, 0) : box[2] - left] = True
        sums = np.pad(taken.cumsum(0).cumsum(1), ((1, 0), (1, 0)))
        moved: list[Box] = []
        for box in patch.boxes:
            width = min(box[2] - box[0], right - left)
            height = min(box[3] - box[1], bottom - top)
            x = generator.integers(0, right - left - width + 1, _TRIALS)
            y = generator.integers(0, bottom - top - height + 1, _TRIALS)
            inside = sums[y + height, x + width] - sums[y, x + width]
            best = int(np.argmin(inside - sums[y + height, x] + sums[y, x]))
            x0, y0 = left + int(x[best]), top + int(y[best])
            moved.append((x0, y0, x0 + width, y0 + height))
        return tuple(moved)

    def _input(self, photo: int) -> Float[Tensor, "c y x"]:
        if photo not in self._inputs:
            if len(self._inputs) >= _MOST_INPUTS:
                self._inputs.clear()
                self._blurs.clear()
            image = self.read(self.rows[photo].name)
            self._inputs[photo] = self.scorer.prepare([image]).inputs[0]
        return self._inputs[photo]

    def _blurred(self, photo: int) -> Float[Tensor, "c y x"]:
        """Return the control of equal pixels: the photo itself, blurred there, as for a stamp.

        Any other photo, through the shape of a frame or a text, is one, too.
        """
        if photo not in self._blurs:
            pixels = self._input(photo)
            spread = _BLUR * min(pixels.shape[1:])
            blurred = gaussian_filter(pixels.numpy(), (0, spread, spread), mode="nearest")
            self._blurs[photo] = torch.from_numpy(blurred)
        return self._blurs[photo]

    def _onto(self, photo: int, box: Box) -> Box:
        return self._fitted(photo, (box[0], box[1]), (box[2] - box[0], box[3] - box[1]))

    def _copy(self, source: _Patch, number: int, edited: Float[Tensor, "c y x"], box: Box) -> None:
        """Copy a patch of a photo into an input; at the margin of a photo it may be smaller."""
        x, y, right, bottom = self._onto(source.photo, source.boxes[number])
        width, height = min(box[2] - box[0], right - x), min(box[3] - box[1], bottom - y)
        inputs = self._blurred(source.photo) if source.is_blurred else self._input(source.photo)
        patch = inputs[:, y : y + height, x : x + width]
        place = edited[:, box[1] : box[1] + height, box[0] : box[0] + width]
        if source.masks:
            mask = torch.from_numpy(source.masks[number][:height, :width])
            patch = torch.where(mask, patch, place)
        place.copy_(patch)

    def _effects(self, class_index: int, pairs: Sequence[_Pair]) -> list[Effect]:
        """Return the effect of the first edits beside that of their controls, by each contrast."""
        edited: list[Tensor] = []
        for pair in pairs:
            for source, boxes in pair.edits:
                image = self._input(pair.recipient).clone()
                for number, box in enumerate(boxes):
                    self._copy(source, number, image, self._onto(pair.recipient, box))
                edited.append(image)
        scores = self.scorer.log_odds(torch.stack(edited))
        odds, shares = (each[:, class_index].reshape(len(pairs), -1) for each in scores)
        is_own = all(pair.recipient == pair.donor for pair in pairs)
        recipients = [pairs[0].recipient if is_own else pair.recipient for pair in pairs]
        rows, row = np.unique(recipients, return_inverse=True)
        columns, column = np.unique([pair.donor for pair in pairs], return_inverse=True)
        of_rows = [self.units[int(photo)] for photo in rows]
        of_columns = [self.units[int(photo)] for photo in columns]
        effects: list[Effect] = []
        for contrast in _CONTRASTS[odds.shape[1]]:
            values = np.full((len(rows), len(columns)), np.nan)
            values[row, column] = differences = odds @ contrast
            low, high, p_value = crossed_interval(values, of_rows, of_columns)
            change = float((shares @ contrast).mean())
            effects.append(
                Effect(float(differences.mean()), low, high, change, p_value, len(pairs))
            )
        return effects


def _spread(inputs: Float[Tensor, "n c y x"]) -> Float[Tensor, "y x"]:
    """Return how far the pixels of photos lie from their median, without outliers."""
    return (inputs - inputs.median(0).values).abs().median(0).values.mean(0)


def _whole(box: Float[np.ndarray, " 4"]) -> Box:
    """Return the pixels that a box touches."""
    left, top, right, bottom = box.tolist()
    return int(left), int(top), math.ceil(right), math.ceil(bottom)
