"""Maps of a whole split held against the boxes of phrases."""

from collections.abc import Sequence
from typing import cast

from jaxtyping import Float
from torch import Tensor, nn
from torchmetrics import Metric, SumMetric

from visattn.data.phrases.grounding import GroundingResult, judge_phrases
from visattn.data.phrases.phrases import Phrase
from visattn.training.metrics.weighted_mean import WeightedMean

OF_PHRASES = (
    "correctness",
    "lift",
    "ratio",
    "strongest_correctness",
    "strongest_lift",
    "last_correctness",
    "last_lift",
    "baseline",
    "pointing",
    "paper_correctness",
    "paper_baseline",
    "phrases",
)


class PhraseScores(nn.Module):
    """Running scores of maps against the boxes of phrases; each phrase counts once.

    `correctness`: attention inside the boxes, the mean over a phrase's words. `baseline`: the
    boxes' share of the image, which is the correctness of evenly spread attention. `lift` and
    `ratio`: correctness less the baseline, and over it. With `strongest_` the greatest among a
    phrase's words counts in place of the mean, as in the paper: it rises with the number of words
    even where attention is blind, so compare it with that of shuffled images. With `last_` the
    last word counts, mostly the noun. `pointing`: how often a phrase's maps, added up, are
    strongest in a box; blind attention reaches about the baseline. `paper_correctness` and
    `paper_baseline`: by the authors' steps, on enlarged maps, the strongest word, each a mean of
    what lies strictly between 0 and 1. `phrases`: how many were judged.

    Source:
        Liu et al. 2017, arXiv:1605.09553, section 3.
    """

    def __init__(self) -> None:
        super().__init__()
        self.metrics = nn.ModuleDict({name: WeightedMean() for name in OF_PHRASES[:-1]})
        self.metrics["phrases"] = SumMetric()

    def update(
        self, maps: Sequence[Float[Tensor, "_t gy gx"]], phrases: Sequence[Sequence[Phrase]]
    ) -> None:
        """Take in the maps of captions, one per word, and the phrases that each caption says.

        Boxes are shares of what the network sees; `phrases_on_input` makes them so. Of a caption
        that a model made up, `spoken_phrases` finds the phrases.
        """
        judged = [
            one
            for looked, said in zip(maps, phrases, strict=True)
            for one in judge_phrases(looked, said)
        ]
        for name, (amount, count) in _sums(judged).items():
            self[name].update(amount, count)
        self["phrases"].update(len(judged))

    def __getitem__(self, name: str) -> Metric:
        """Return one score."""
        return cast("Metric", self.metrics[name])


def _sums(judged: Sequence[GroundingResult]) -> dict[str, tuple[float, float]]:
    """Return, for each share, what is above and what below its line."""
    count = len(judged)
    mean, strongest = sum(one.mean for one in judged), sum(one.strongest for one in judged)
    last, baseline = sum(one.last for one in judged), sum(one.baseline for one in judged)
    scores = [one.paper for one in judged if 0 < one.paper < 1]
    baselines = [one.paper_baseline for one in judged if 0 < one.paper_baseline < 1]
    return {
        "correctness": (mean, count),
        "lift": (mean - baseline, count),
        "ratio": (mean, baseline),
        "strongest_correctness": (strongest, count),
        "strongest_lift": (strongest - baseline, count),
        "last_correctness": (last, count),
        "last_lift": (last - baseline, count),
        "baseline": (baseline, count),
        "pointing": (sum(one.pointed for one in judged), count),
        "paper_correctness": (sum(scores), len(scores)),
        "paper_baseline": (sum(baselines), len(baselines)),
    }
