"""Captions and maps of a whole split held against its scenes."""

from collections.abc import Sequence
from typing import cast

from jaxtyping import Float
from torch import Tensor, nn

from visattn.data.scenes.judgements import judge
from visattn.data.scenes.worlds import World
from visattn.tasks.ratios import Ratio

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
        self.ratios = nn.ModuleDict({name: Ratio() for name in (*OF_WORDS, *OF_MAPS)})

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

    def __getitem__(self, name: str) -> Ratio:
        """Return one score."""
        return cast("Ratio", self.ratios[name])
