"""Metrics of recognized sequences, and of the attention of their symbols."""

from collections.abc import Sequence
from typing import cast

from jaxtyping import Float
from torch import Tensor, nn
from torchmetrics.functional.text import edit_distance

from visattn.metrics.maps.grounding import attention_correctness, box_coverage, pointing_hit
from visattn.training.metrics.weighted_mean import WeightedMean

SEQUENCE_METRICS = ("sequence_error", "digit_error", "loss")
SEQUENCE_MAP_METRICS = ("pointing_game", "correctness", "uniform_baseline")


class SequenceScores(nn.Module):
    """Metrics of recognized sequences, and of the attention of their symbols.

    `sequence_error`: fraction of the sequences with a wrong symbol or a wrong length.
    `digit_error`: edit distance to the true sequences per true symbol. `loss`: updated by the task.
    `pointing_game`: how often the maximum cell of a map overlaps the box of its symbol.
    `correctness`: the attention inside the box; `uniform_baseline`: that of uniform attention.

    Example:
        >>> scores = SequenceScores()
        >>> scores.update(["314", "27"], ["314", "2"])
        >>> scores["sequence_error"].compute(), scores["digit_error"].compute()
        (tensor(0.5000), tensor(0.2500))

    Source:
        Pointing: Zhang et al. 2016, arXiv:1608.00507, with half a cell as the tolerance, since a
        narrow digit need not contain the center of a cell.
    """

    def __init__(self) -> None:
        super().__init__()
        names = (*SEQUENCE_METRICS, *SEQUENCE_MAP_METRICS)
        self.metrics = nn.ModuleDict({name: WeightedMean() for name in names})

    def update(self, predicted: Sequence[str], true: Sequence[str]) -> None:
        """Add predicted sequences and the true ones."""
        errors = sum(a != b for a, b in zip(predicted, true, strict=True))
        self["sequence_error"].update(errors, len(true))
        edits = edit_distance(list(predicted), list(true), reduction="sum")
        self["digit_error"].update(edits, sum(map(len, true)))

    def update_map(self, weights: Float[Tensor, "gy gx"], box: Float[Tensor, "4"]) -> None:
        """Add the map of a symbol and its box: left, top, right, bottom, as fractions."""
        rows, columns = weights.shape
        coverage = box_coverage(box[None], (rows, columns))
        reach = box.new_tensor([-0.5 / columns, -0.5 / rows, 0.5 / columns, 0.5 / rows])
        self["pointing_game"].update(pointing_hit(weights, (box + reach)[None]), 1)
        self["correctness"].update(attention_correctness(weights, coverage), 1)
        self["uniform_baseline"].update(coverage.mean(), 1)

    def __getitem__(self, name: str) -> WeightedMean:
        """Return a metric."""
        return cast("WeightedMean", self.metrics[name])
