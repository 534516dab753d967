"""Generated captions of a whole split held against what people wrote."""

from collections.abc import Sequence
from typing import Any, cast

from jaxtyping import Float
from torch import Tensor, distributed, nn

from visattn.data.captions.batch import CaptionSample
from visattn.data.scenes.verify import judge
from visattn.data.scenes.world import World
from visattn.metrics.captioning.scores import CaptionScores, caption_scores
from visattn.training.metrics.weighted_mean import WeightedMean

OF_REFERENCES = ("bleu-1", "bleu-2", "bleu-3", "bleu-4", "rouge-l", "cider-d")


class ReferenceScores:
    """Captions of a split and their references, scored once, when all are there.

    The scores look at all captions together, so they are no means over batches: captions of all
    processes are gathered first, and an image that came twice counts once.
    """

    def __init__(self) -> None:
        self.captions: dict[str, str] = {}
        self.references: dict[str, tuple[str, ...]] = {}

    def update(self, samples: Sequence[CaptionSample], captions: Sequence[str]) -> None:
        """Take in captions and the samples they tell of."""
        for sample, caption in zip(samples, captions, strict=True):
            self.captions[sample.id] = caption
            self.references[sample.id] = sample.references

    def gathered(self) -> tuple[dict[str, str], dict[str, tuple[str, ...]]]:
        """Return captions and references of all processes, by image, in the order of names."""
        parts: list[Any] = [(self.captions, self.references)]
        if distributed.is_available() and distributed.is_initialized():
            parts = [None] * distributed.get_world_size()
            distributed.all_gather_object(parts, (self.captions, self.references))
        captions = {name: said for told, _ in parts for name, said in told.items()}
        references = {name: written for _, known in parts for name, written in known.items()}
        names = sorted(captions)
        return {n: captions[n] for n in names}, {n: references[n] for n in names}

    def compute(self) -> tuple[dict[str, str], CaptionScores]:
        """Return the captions of all images, by their names, and their scores together."""
        captions, references = self.gathered()
        return captions, caption_scores(captions, references)

    def reset(self) -> None:
        """Forget everything."""
        self.captions.clear()
        self.references.clear()


OF_WORDS = ("truth", "understood")
OF_MAPS = ("pointing", "correctness", "lift")


class SceneScores(nn.Module):
    """Running scores of captions about scenes.

    `truth`: share of captions that hold in every claim. `understood`: share that the grammar
    covers. Over the visual words of true captions: `pointing`, how often the strongest place lies
    in the box; `correctness`, attention inside it; `lift`, how much more that is than evenly
    spread attention would have there.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ratios = nn.ModuleDict({name: WeightedMean() for name in (*OF_WORDS, *OF_MAPS)})

    def update(
        self,
        captions: Sequence[str],
        maps: Sequence[Float[Tensor, "_t gy gx"]],
        worlds: Sequence[World],
    ) -> None:
        """Take in captions with their maps and the scenes they are about."""
        judged = [judge(*each) for each in zip(captions, maps, worlds, strict=True)]
        count, visual = len(judged), sum(one.visual for one in judged)
        correctness = float(sum(one.correctness for one in judged))
        for name, amount, among in (
            ("truth", sum(one.true for one in judged), count),
            ("understood", sum(one.understood for one in judged), count),
            ("pointing", sum(one.hits for one in judged), visual),
            ("correctness", correctness, visual),
            ("lift", correctness - float(sum(one.baseline for one in judged)), visual),
        ):
            self[name].update(float(amount), among)

    def __getitem__(self, name: str) -> WeightedMean:
        """Return one score."""
        return cast("WeightedMean", self.ratios[name])
