"""What to watch while a policy learns: accuracy does not tell a broken one from a good one."""

from collections.abc import Iterable, Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.functional.reinforce import explained_variance, gaussian_entropy
from visattn.models.ram.rollout import GlimpseRollout
from visattn.training.tasks.glimpse_losses import GlimpseLosses


@torch.no_grad()
def policy_figures(
    looks: GlimpseRollout, losses: GlimpseLosses, spread: Float[Tensor, ""]
) -> dict[str, Tensor]:
    """Return what tells a policy that learns from one that does not.

    Returns:
        `reward`; `advantage` and `advantage_spread`; `baseline_explains`, the share of the
        reward's variance that the baseline foresaw; `spread` and `entropy` (nats) of the policy;
        `clamped`, the share of samples beyond the edge; `places_differ`, the standard deviation of
        the policy's means between images: near 0, every image is looked at in the same way;
        and, for several rollouts, `signal`, that of the policy's gradient to its noise.
    """
    figures = {"spread": spread, "entropy": gaussian_entropy(spread)}
    if not losses.rewards.numel():
        return figures
    figures |= {
        "reward": losses.rewards.mean(),
        "advantage": losses.advantages.mean(),
        "advantage_spread": losses.advantages.std(correction=0),
        "baseline_explains": explained_variance(losses.expected, losses.rewards).nan_to_num(0.0),
        "clamped": (looks.samples.abs() > 1).any(-1).to(spread).mean(),
        "places_differ": looks.means.mean(1).std(0, correction=0).mean(),
    }
    if looks.means.shape[1] > 1:
        figures["signal"] = gradient_signal(looks, losses.advantages, spread)
    return figures


@torch.no_grad()
def gradient_signal(
    looks: GlimpseRollout, advantages: Float[Tensor, "b m a"], spread: Float[Tensor, ""]
) -> Float[Tensor, ""]:
    """Return the square of the policy's mean gradient over the variance between rollouts.

    The gradient is that of the mean's weights, had each batch only one of the rollouts. At 1, the
    gradient of a single rollout is as much noise as it is signal.
    """
    states = looks.states[:, :, :-1]
    pushes = (looks.samples - looks.means) / spread**2 * advantages.unsqueeze(-1)
    pushes = pushes[:, :, pushes.shape[2] - states.shape[2] :]  # a first place is read off nothing
    each = torch.einsum("bmap, bmad -> mpd", pushes, states) / len(pushes)
    noise = each.var(0).sum()
    return (each.mean(0).square().sum() - noise / len(each)).clamp(min=0) / noise.clamp(min=1e-20)


def gradient_norms(parts: Mapping[str, nn.Module | None]) -> dict[str, Tensor]:
    """Return the length of the gradient of each part that has one.

    Example:
        >>> layer = nn.Linear(1, 1, bias=False)
        >>> layer(torch.tensor([3.0])).backward()
        >>> gradient_norms({"layer": layer, "nothing": None})
        {'layer': tensor(3.)}
    """
    norms = {}
    for name, part in parts.items():
        slopes = _slopes(part.parameters() if part is not None else ())
        if slopes:
            norms[name] = torch.stack([slope.norm() for slope in slopes]).norm()
    return norms


def _slopes(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    return [one.grad.detach() for one in parameters if one.grad is not None]
