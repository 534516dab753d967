"""Expected reward of an action, learned from what is known before it."""

import torch
from jaxtyping import Float
from torch import Tensor, nn


class ValueBaseline(nn.Module):
    """Predicts the expected reward from what is known before an action.

    The inputs must not depend on the action, otherwise the policy gradient is biased. The hidden
    state before the action does not. Neither does the probability of the true class at that time,
    which only training knows and which predicts the outcome of a rollout best.

    Before training it predicts `initial_value`. `informed`, it has the log-probability of the true
    class as an input too, and a hidden layer.

    Example:
        >>> baseline = ValueBaseline(5, initial_value=0.1)
        >>> baseline(torch.zeros(2, 3, 4, 5), torch.zeros(2, 3, 4))[0, 0]
        tensor([0.1000, 0.1000, 0.1000, 0.1000], grad_fn=<SelectBackward0>)
    """

    def __init__(self, hidden_size: int, *, initial_value: float, informed: bool = False) -> None:
        super().__init__()
        self.informed = informed
        self.hidden = nn.Linear(hidden_size + 2, 64) if informed else None
        self.output = nn.Linear(64 if informed else hidden_size, 1)
        nn.init.zeros_(self.output.weight)
        nn.init.constant_(self.output.bias, initial_value)

    def forward(
        self, hidden_states: Float[Tensor, "*b d"], log_probs: Float[Tensor, "*b"]
    ) -> Float[Tensor, "*b"]:
        """Return the expected reward before each action; no gradient flows into the inputs."""
        features = hidden_states.detach()
        if self.hidden is not None:
            certainty = torch.stack([log_probs, log_probs.exp()], -1).detach()
            features = self.hidden(torch.cat([features, certainty], -1)).relu()
        return self.output(features).squeeze(-1)
