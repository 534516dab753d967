"""Metrics of captions, and of attention maps against scenes and the boxes of phrases."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torchmetrics import SumMetric
from torchmetrics.classification import BinaryAUROC
from torchmetrics.utilities import dim_zero_cat

from visattn.data.captions.batch import CaptionSample
from visattn.data.phrases import GroundingResult, score_phrases
from visattn.data.scenes.language import is_visual_word, score_caption
from visattn.data.scenes.world import World
from visattn.metrics.captions import CaptionScores, caption_scores
from visattn.results.captions import Phrase
from visattn.training.metrics import Means
from visattn.training.reduce import all_gather

REFERENCE_METRICS = ("bleu-1", "bleu-2", "bleu-3", "bleu-4", "rouge-l", "cider-d")
SCENE_CAPTION_METRICS = ("caption_accuracy", "parsed")
SCENE_MAP_METRICS = ("pointing_game", "correctness", "lift", "gate_auc")


class ReferenceScores:
    """BLEU, ROUGE-L and CIDEr-D of the captions of a split.

    These are corpus metrics, not means over batches: the captions of all processes are gathered
    before scoring, and repeated images count once.
    """

    def __init__(self) -> None:
        self.captions: dict[str, str] = {}
        self.references: dict[str, tuple[str, ...]] = {}

    def update(self, samples: Sequence[CaptionSample], captions: Sequence[str]) -> None:
        """Add one caption per sample."""
        for sample, caption in zip(samples, captions, strict=True):
            self.captions[sample.id] = caption
            self.references[sample.id] = sample.references

    def compute(self) -> tuple[dict[str, str], CaptionScores]:
        """Return the captions of all processes by image id, sorted by id, and their scores."""
        captions: dict[str, str] = {}
        references: dict[str, tuple[str, ...]] = {}
        for own_captions, own_references in all_gather((self.captions, self.references)):
            captions |= own_captions
            references |= own_references
        captions = dict(sorted(captions.items()))
        return captions, caption_scores(captions, dict(sorted(references.items())))

    def reset(self) -> None:
        """Remove all captions."""
        self.captions.clear()
        self.references.clear()


class GateAUC(BinaryAUROC):
    """Area under the ROC curve of the gates of visual words against those of all others.

    Words with a target of -1 are ignored. It is NaN if there are no visual words, or only these.
    """

    def compute(self) -> Tensor:
        """Return the area."""
        # torchmetrics would return 0, as if all gates were wrong.
        if len(dim_zero_cat(self.target).unique()) < 2:
            return torch.tensor(torch.nan, device=self.device)
        return super().compute()


class SceneScores(Means):
    """Metrics of captions of scenes, and of the attention of their words.

    `caption_accuracy`: fraction of the captions whose claims are all true. `parsed`: fraction that
    the grammar covers. Over the visual words of true captions: `pointing_game`, how often the
    maximum of the map is in the box of the object's pixels; `correctness`, the attention inside;
    `lift`, the correctness minus that of uniform attention. Over the words of all captions:
    `gate_auc`, how often the gate of a visual word is higher than that of a word that needs no
    image (area under the ROC curve; 0.5 for a gate that does not depend on the word). Words of
    spatial relations are ignored, since models differ in whether they look again for them.
    """

    def __init__(self) -> None:
        super().__init__(*SCENE_CAPTION_METRICS, *SCENE_MAP_METRICS[:-1])
        self.means["gate_auc"] = GateAUC(ignore_index=-1)

    def update(
        self,
        captions: Sequence[str],
        maps: Sequence[Float[Tensor, "_t gy gx"]],
        worlds: Sequence[World],
        gates: Sequence[Float[Tensor, " _t"]],
        *,
        size: int,
    ) -> None:
        """Add captions with their maps, the scenes at their size in pixels, and the gates."""
        scores = [
            score_caption(caption, words, world, size=size)
            for caption, words, world in zip(captions, maps, worlds, strict=True)
        ]
        count, num_visual = len(scores), sum(score.num_visual_words for score in scores)
        correctness = float(sum(score.correctness for score in scores))
        baseline = float(sum(score.baseline for score in scores))
        self.add(
            caption_accuracy=(sum(score.true for score in scores), count),
            parsed=(sum(score.parsed for score in scores), count),
            pointing_game=(float(sum(score.hits for score in scores)), num_visual),
            correctness=(correctness, num_visual),
            lift=(correctness - baseline, num_visual),
        )
        visual = [is_visual_word(word) for text in captions for word in text.split()]
        targets = [-1 if value is None else value for value in visual]
        values = torch.cat([torch.empty(0), *gates]).float()
        self["gate_auc"].update(values, torch.tensor(targets, dtype=torch.long))


class PhraseScores(Means):
    """Metrics of attention maps against the boxes of phrases; each phrase counts once.

    `correctness`: attention inside the boxes, the mean over the words of a phrase.
    `uniform_baseline`: the boxes' share of the image, which is the correctness of uniform
    attention. `lift`: correctness minus the baseline. `enrichment`: correctness divided by the
    baseline. `max_*`: the highest correctness among the words of a phrase, as in the paper; it
    increases with the number of words even for uninformative attention, so compare it with that of
    shuffled images. `last_word_*`: that of the last word, which is usually the noun.
    `pointing_game`: how often the maximum of a phrase's summed maps is in a box; uninformative
    attention reaches about the baseline. `paper_correctness` and `paper_baseline`: by the authors'
    procedure, on upsampled maps, the maximum over the words, each a mean over values strictly
    between 0 and 1. `num_phrases`: number of phrases.

    Source:
        Liu et al. 2017, arXiv:1605.09553, section 3.
    """

    def __init__(self) -> None:
        super().__init__(*PHRASE_METRICS[:-1])
        self.means["num_phrases"] = SumMetric()

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
        self.add(**_sums(results))
        self["num_phrases"].update(len(results))


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


PHRASE_METRICS = (*_sums([]), "num_phrases")
