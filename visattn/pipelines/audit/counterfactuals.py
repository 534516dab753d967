"""Counterfactuals of patches: pasted into photos of other classes, and removed from their own."""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from visattn.geometry.placement import GridPlacement
from visattn.images.reader import LoadedImage
from visattn.pipelines.audit.cells import CellGrid
from visattn.pipelines.audit.clusters import Candidate, Patches
from visattn.pipelines.audit.evidence import PhotoEvidence
from visattn.pipelines.audit.scores import InputScorer
from visattn.pipelines.audit.statistics import crossed_interval, sign_flip_p
from visattn.results.audit import Effect

_DONORS, _RECIPIENTS, _ELSEWHERE = 12, 6, 3
_MIN_DONORS, _MIN_RECIPIENTS, _MIN_CONTROLS = 5, 4, 3
_CELLS = 2.5  # side of a patch, in cells: a larger one would hold the object itself
Box = tuple[int, int, int, int]
PASTED, LOCAL, MOVED, REMOVED = (
    "pasted at its place", "beside other places of its photo", "pasted elsewhere", "removed",
)  # fmt: skip


@dataclass(frozen=True)
class _Source:
    """A photo whose patches are pasted: that of a donor, or its control."""

    photo: int
    boxes: tuple[Box, ...]


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
    _seen: dict[int, Box] = field(default_factory=dict, init=False)

    def test(
        self, candidate: Candidate, patches: Patches, held_out: Sequence[int]
    ) -> dict[str, Effect] | None:
        """Return the effects of the edits; None without enough photos, or beyond the budget.

        Args:
            candidate: What to test.
            patches: Cells with the most evidence of the photos that were held out.
            held_out: Indices of these photos.
        """
        first = zlib.crc32(self.rows[candidate.photos[0]].name.encode())
        generator = np.random.default_rng([self.seed, candidate.class_index, first])
        donors = self._donors(candidate, patches)
        controls = self._controls(candidate, patches, held_out, donors)
        recipients = self._recipients(candidate.class_index, held_out)
        few = len(donors) < _MIN_DONORS or len(recipients) < _MIN_RECIPIENTS or not controls
        count = len(donors) * (3 * len(recipients) + 2 * _ELSEWHERE + 2)
        if few or count > self.scorer.left:
            return None
        # What a photo has everywhere, such as a tint, is in its other places, too.
        others = [
            _Source(each.photo, self._random_boxes(each.photo, each.boxes, generator))
            for each in donors
        ]
        same = [_Source(photo, each.boxes) for photo, each in zip(controls, donors, strict=True)]
        fixed = [[donor.boxes for donor in donors] for _ in recipients]
        sources = (donors, same, others)
        class_index = candidate.class_index
        pasted, local = self._paste(class_index, sources, recipients, fixed, generator)
        moved = [
            [self._random_boxes(photo, donor.boxes, generator) for donor in donors]
            for photo in recipients[:_ELSEWHERE]
        ]
        [elsewhere] = self._paste(
            class_index, sources[:2], recipients[:_ELSEWHERE], moved, generator
        )
        removed = self._remove(class_index, donors, generator)
        effects = {PASTED: pasted, LOCAL: local, MOVED: elsewhere, REMOVED: removed}
        self._inputs = {}
        return effects

    def _donors(self, candidate: Candidate, patches: Patches) -> list[_Source]:
        own = candidate.members(patches) & (patches.classes == candidate.class_index)
        similar = (patches.vectors @ candidate.centers.T - candidate.radii).max(1, initial=-2)
        order = sorted(
            {int(photo) for photo in patches.photos[own]},
            key=lambda photo: -similar[own & (patches.photos == photo)].max(),
        )
        return [
            _Source(
                photo,
                tuple(
                    self._box(photo, cell)
                    for cell in patches.cells[own & (patches.photos == photo)]
                ),
            )
            for photo in order[:_DONORS]
        ]

    def _controls(
        self,
        candidate: Candidate,
        patches: Patches,
        held_out: Sequence[int],
        donors: Sequence[_Source],
    ) -> list[int]:
        """Return a photo for each donor: of its class without the patch, else of another class."""
        near = {*patches.photos[candidate.members(patches)].tolist()}
        others = [index for index in held_out if index not in near]
        same = [index for index in others if self.rows[index].prediction == candidate.class_index]
        chosen = same if len(same) >= _MIN_CONTROLS else others
        if not chosen:
            return []
        return [chosen[number % len(chosen)] for number in range(len(donors))]

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
        return [index for *_, index in sorted(turns)][:_RECIPIENTS]

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

    def _random_boxes(
        self, photo: int, boxes: Sequence[Box], generator: np.random.Generator
    ) -> tuple[Box, ...]:
        """Return boxes of the same sizes anywhere on the visible part of a photo."""
        left, top, right, bottom = self._visible(photo)
        moved: list[Box] = []
        for box in boxes:
            width, height = box[2] - box[0], box[3] - box[1]
            x = int(generator.integers(left, max(right - width, left) + 1))
            y = int(generator.integers(top, max(bottom - height, top) + 1))
            moved.append(self._fitted(photo, (x, y), (width, height)))
        return tuple(moved)

    def _input(self, photo: int) -> Float[Tensor, "c y x"]:
        if photo not in self._inputs:
            image = self.read(self.rows[photo].name)
            self._inputs[photo] = self.scorer.prepare([image]).inputs[0]
        return self._inputs[photo]

    def _paste(
        self,
        class_index: int,
        sources: Sequence[Sequence[_Source]],
        recipients: Sequence[int],
        places: Sequence[Sequence[tuple[Box, ...]]],
        generator: np.random.Generator,
    ) -> list[Effect]:
        """Return the effects of patches on recipients, beside those of each kind of control.

        Args:
            class_index: The class.
            sources: Donors, and the controls of each kind, in the same order.
            recipients: Photos of other classes.
            places: Where the patches of each donor go on each recipient.
            generator: Random numbers of intervals.
        """
        pasted: list[Tensor] = []
        for photo, of_donors in zip(recipients, places, strict=True):
            for number, boxes in enumerate(of_donors):
                for source in (each[number] for each in sources):
                    edited = self._input(photo).clone()
                    for origin, box in zip(source.boxes, boxes, strict=True):
                        self._copy(source.photo, origin, edited, self._onto(photo, box))
                    pasted.append(edited)
        shape = (len(recipients), len(sources[0]), len(sources))
        return self._effects(pasted, class_index, shape, sources[0], recipients, generator)

    def _onto(self, photo: int, box: Box) -> Box:
        return self._fitted(photo, (box[0], box[1]), (box[2] - box[0], box[3] - box[1]))

    def _copy(self, source: int, origin: Box, edited: Float[Tensor, "c y x"], box: Box) -> None:
        """Copy a patch of a photo into an input; at the margin of a photo it may be smaller."""
        x, y, right, bottom = self._onto(source, origin)
        width, height = min(box[2] - box[0], right - x), min(box[3] - box[1], bottom - y)
        patch = self._input(source)[:, y : y + height, x : x + width]
        edited[:, box[1] : box[1] + height, box[0] : box[0] + width] = patch

    def _remove(
        self, class_index: int, donors: Sequence[_Source], generator: np.random.Generator
    ) -> Effect:
        """Return how far the log-odds fall without the patches, beside patches of other places."""
        edited: list[Tensor] = []
        for donor in donors:
            other = self._random_boxes(donor.photo, donor.boxes, generator)
            for boxes in (other, donor.boxes):
                image = self._input(donor.photo).clone()
                for box in boxes:
                    fill_smoothly(image, box)
                edited.append(image)
        shape = (1, len(donors), 2)
        recipients = [donors[0].photo]
        return self._effects(edited, class_index, shape, donors, recipients, generator)[0]

    def _effects(
        self,
        inputs: Sequence[Float[Tensor, "c y x"]],
        class_index: int,
        shape: tuple[int, int, int],
        donors: Sequence[_Source],
        recipients: Sequence[int],
        generator: np.random.Generator,
    ) -> list[Effect]:
        """Return the effect of the first edit of each pair beside each of the others."""
        scores = self.scorer.log_odds(torch.stack(list(inputs)))
        odds, shares = (each[:, class_index].reshape(shape) for each in scores)
        rows = [self.units[index] for index in recipients]
        columns = [self.units[donor.photo] for donor in donors]
        effects: list[Effect] = []
        for control in range(1, shape[2]):
            differences = odds[..., 0] - odds[..., control]
            low, high = crossed_interval(differences, generator, rows, columns)
            p_value = float(sign_flip_p(differences.mean(0)[:, None], generator)[0])
            change = float((shares[..., 0] - shares[..., control]).mean())
            effects.append(
                Effect(float(differences.mean()), low, high, change, p_value, differences.size)
            )
        return effects


def fill_smoothly(image: Float[Tensor, "c y x"], box: Box) -> None:
    """Replace a box of an image by what continues its surroundings, in place.

    Example:
        >>> image = torch.arange(5.0).repeat(1, 3, 1)
        >>> image[0, 1, 2] = 99
        >>> fill_smoothly(image, (2, 1, 3, 2))
        >>> image[0, 1]
        tensor([0., 1., 2., 3., 4.])
    """
    left, top, right, bottom = box
    height, width = image.shape[1:]

    def side(index: int, limit: int, axis: int, span: slice) -> Tensor | None:
        if not 0 <= index < limit:
            return None
        return image[:, span, index] if axis == 2 else image[:, index, span]

    rows, columns = slice(top, bottom), slice(left, right)
    filled: list[Tensor] = []
    for first, last, axis in (
        (side(left - 1, width, 2, rows), side(right, width, 2, rows), 2),
        (side(top - 1, height, 1, columns), side(bottom, height, 1, columns), 1),
    ):
        first, last = (last if first is None else first), (first if last is None else last)
        if first is None or last is None:
            continue
        count = right - left if axis == 2 else bottom - top
        at = (torch.arange(count, dtype=image.dtype, device=image.device) + 1) / (count + 1)
        ramp = at.view(1, 1, -1) if axis == 2 else at.view(1, -1, 1)
        filled.append(first.unsqueeze(axis) * (1 - ramp) + last.unsqueeze(axis) * ramp)
    mean = image.mean((1, 2), keepdim=True).expand(-1, bottom - top, right - left)
    image[:, rows, columns] = torch.stack(filled).mean(0) if filled else mean
