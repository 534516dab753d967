"""Metrics of attention maps against the boxes of phrases."""

from collections.abc import Sequence
from typing import cast

from jaxtyping import Float
from torch import Tensor, nn
from torchmetrics import Metric, SumMetric

from visattn.data.phrases.grounding import GroundingResult, score_phrases
from visattn.results.captions import Phrase
from visattn.training.metrics.weighted_mean import WeightedMean

PHRASE_METRICS = (
    "correctness",
    "lift",
    "enrichment",
    "max_correctness",
    "max_lift",
    "last_word_correctness",
    "last_word_lift",
    "uniform_baseline",
    "pointing_game",
    "paper_correctness",
    "paper_baseline",
    "num_phrases",
)


class PhraseScores(nn.Module):
    """Metrics of attention maps against the boxes of phrases; each phrase counts once.

    `correctness`: attention inside the boxes, the mean over the words of a phrase.
    `uniform_baseline`: the boxes' share of the image, which is the correctness of uniform
    attention. `lift`: correctness minus the baseline. `enrichment`: correctness divided by the
    baseline. `max_*`: the greatest correctness among the words of a phrase, as in the paper; it
    rises with the number of words even for uninformative attention, so compare it with that of
    shuffled images. `last_word_*`: that of the last word, which is usually the noun.
    `pointing_game`: how often the maximum of a phrase's summed maps lies in a box; uninformative
    attention reaches about the baseline. `paper_correctness` and `paper_baseline`: by the authors'
    procedure, on upsampled maps, the greatest among the words, each a mean over values strictly
    between 0 and 1. `num_phrases`: number of phrases.

    Source:
        Liu et al. 2017, arXiv:1605.09553, section 3.
    """

    def __init__(self) -> None:
        super().__init__()
        self.metrics = nn.ModuleDict({name: WeightedMean() for name in PHRASE_METRICS[:-1]})
        self.metrics["num_phrases"] = SumMetric()

    def update(
        self, maps: Sequence[Float[Tensor, "_t gy gx"]], phrases: Sequence[Sequence[Phrase]]
    ) -> None:
        """Add the maps of captions, one per word, and the phrases of each caption.

        Boxes are fractions of the model's input, as `phrases_to_input` returns them. For generated
        captions, `match_phrases` finds the phrases.
        """
        results = [
            result
            for caption_maps, caption_phrases in zip(maps, phrases, strict=True)
            for result in score_phrases(caption_maps, caption_phrases)
        ]
        for name, (amount, weight) in _sums(results).items():
            self[name].update(amount, weight)
        self["num_phrases"].update(len(results))

    def __getitem__(self, name: str) -> Metric:
        """Return a metric."""
        return cast("Metric", self.metrics[name])


def _sums(results: Sequence[GroundingResult]) -> dict[str, tuple[float, float]]:
    """Return the numerator and the denominator of each metric."""
    count = len(results)
    mean = sum(result.mean_correctness for result in results)
    greatest = sum(result.max_correctness for result in results)
    last = sum(result.last_correctness for result in results)
    baseline = sum(result.baseline for result in results)
    paper = [r.paper_correctness for r in results if 0 < r.paper_correctness < 1]
    paper_baseline = [r.paper_baseline for r in results if 0 < r.paper_baseline < 1]
    return {
        "correctness": (mean, count),
        "lift": (mean - baseline, count),
        "enrichment": (mean, baseline),
        "max_correctness": (greatest, count),
        "max_lift": (greatest - baseline, count),
        "last_word_correctness": (last, count),
        "last_word_lift": (last - baseline, count),
        "uniform_baseline": (baseline, count),
        "pointing_game": (sum(result.pointing_hit for result in results), count),
        "paper_correctness": (sum(paper), len(paper)),
        "paper_baseline": (sum(paper_baseline), len(paper_baseline)),
    }
