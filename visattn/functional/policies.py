"""Learning from rewards: what is sampled and turns out well becomes likelier."""

from jaxtyping import Float
from torch import Tensor


def leave_one_out(rewards: Float[Tensor, "b k"]) -> Float[Tensor, "b k"]:
    """Return how much better each of k samples did than the others of the same picture on average.

    The mean of the others does not depend on the sample itself, so taking it off leaves the
    expected gradient as it is and makes it far less noisy. The advantages of a picture sum to 0.

    Args:
        rewards: Of k samples for each of b pictures.

    Raises:
        ValueError: If there is only one sample: it has nothing to be compared with.

    Example:
        >>> import torch
        >>> leave_one_out(torch.tensor([[1.0, 0.0, 0.5]]))
        tensor([[ 0.7500, -0.7500,  0.0000]])

    Source:
        Kool et al. 2019, "Buy 4 REINFORCE samples, get a baseline for free!", equation 8.
    """
    count = rewards.shape[-1]
    if count < 2:
        raise ValueError(f"at least 2 samples per picture can be compared, got {count}")
    return (rewards - rewards.mean(-1, keepdim=True)) * (count / (count - 1))


def policy_loss(
    log_probabilities: Float[Tensor, " p"], advantages: Float[Tensor, " p"]
) -> Float[Tensor, ""]:
    """Return a loss whose gradient makes words likelier as far as their sample did better.

    Its value means nothing; its gradient is that of the expected reward, turned round, per word.

    Args:
        log_probabilities: Of the words of all samples, in nats.
        advantages: Of the sample that each word belongs to; no gradient flows into them.

    Example:
        >>> import torch
        >>> policy_loss(torch.tensor([-1.0, -2.0]), torch.tensor([0.5, -0.5]))
        tensor(-0.2500)

    Source:
        Williams 1992, REINFORCE; for captions Rennie et al. 2017, arXiv:1612.00563, equation 7.
    """
    return -(log_probabilities * advantages.detach()).mean()
