"""Log-odds of changed inputs, counted against the budget of an audit."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from visattn.attribution.targets import probabilities
from visattn.images.reader import LoadedImage
from visattn.pipelines.audit.evidence import class_log_odds
from visattn.pipelines.explainer import Explainer
from visattn.pipelines.inputs import PreparedImages
from visattn.recording.frozen import without_grad
from visattn.recording.model_info import ExplainedModel


@dataclass
class InputScorer:
    """Scores inputs of a model.

    Args:
        explainer: The model.
        batch_size: Inputs per pass.
        budget: Most inputs that may be scored.
        used: Inputs that were scored.
    """

    explainer: Explainer
    batch_size: int = 16
    budget: int = 20_000
    used: int = field(default=0, init=False)
    _explained: ExplainedModel | None = field(default=None, init=False)

    @property
    def left(self) -> int:
        """Inputs that may still be scored."""
        return max(self.budget - self.used, 0)

    def prepare(self, images: Sequence[LoadedImage]) -> PreparedImages:
        """Return photos as the model takes them."""
        return self.explainer.prepare(images)

    def log_odds(self, inputs: Float[Tensor, "n c y x"]) -> tuple[np.ndarray, np.ndarray]:
        """Return log-odds and probabilities of each class, `[n, k]`."""
        explained = self._explained = self._explained or self.explainer.analyze()
        odds: list[Tensor] = []
        shares: list[Tensor] = []
        with without_grad(explained.model):
            for part in inputs.split(self.batch_size):
                scores = explained.scores(part).double().cpu()
                odds.append(class_log_odds(scores, explained.info.output))
                shares.append(probabilities(scores, explained.info.output))
        self.used += len(inputs)
        return torch.cat(odds).numpy(), torch.cat(shares).numpy()
