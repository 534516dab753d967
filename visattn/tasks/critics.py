"""What reward is to be expected, learned beside the policy that earns it."""

import torch
from jaxtyping import Float
from torch import Tensor, nn


class Critic(nn.Module):
    """Read the reward to expect from what was known before an action.

    What it knows must not depend on the action; else the policy's gradient is biased. What is
    remembered does not. Nor does what training knows and the model does not: how probable the
    model held the true class to be. Of how a rollout will end, that tells most.

    Args:
        width: Numbers that are remembered.
        value: What it expects before it has learned anything.
        informed: Let it know the log probability of the true class, and read it by a hidden layer.

    Example:
        >>> Critic(5, value=0.1)(torch.zeros(2, 3, 4, 5), torch.zeros(2, 3, 4))[0, 0]
        tensor([0.1000, 0.1000, 0.1000, 0.1000], grad_fn=<SelectBackward0>)
    """

    def __init__(self, width: int, *, value: float, informed: bool = False) -> None:
        super().__init__()
        self.informed = informed
        self.hidden = nn.Linear(width + 2, 64) if informed else None
        self.reading = nn.Linear(64 if informed else width, 1)
        nn.init.zeros_(self.reading.weight)
        nn.init.constant_(self.reading.bias, value)

    def forward(
        self, states: Float[Tensor, "b m a d"], told: Float[Tensor, "b m a"]
    ) -> Float[Tensor, "b m a"]:
        """Return the expected reward before each action.

        Args:
            states: What was remembered; no gradient flows into it.
            told: The log probability of the true class, in nats.
        """
        read = states.detach()
        if self.hidden is not None:
            sure = torch.stack([told, told.exp()], -1).detach()
            read = self.hidden(torch.cat([read, sure], -1)).relu()
        return self.reading(read).squeeze(-1)
