"""Diagnostics of a policy during training, which accuracy alone does not show."""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.functional.reinforce import explained_variance, gaussian_entropy
from visattn.models.ram.rollout import GlimpseRollout
from visattn.training.tasks.glimpse_losses import GlimpseLosses


@torch.no_grad()
def policy_diagnostics(
    rollout: GlimpseRollout, losses: GlimpseLosses, policy_std: Float[Tensor, ""]
) -> dict[str, Tensor]:
    """Return statistics that show whether a policy learns.

    Returns:
        `std` and `entropy` (nats) of the policy; `reward`; `advantage_mean` and `advantage_std`;
        `explained_variance`, the fraction of the variance of the rewards that the baseline
        explains; `clamped_fraction`, the fraction of samples outside of the image; `mean_std`, the
        standard deviation of the policy's means between images, which is near 0 if the policy
        ignores the image; and, with several rollouts, `gradient_snr`, the signal-to-noise ratio of
        the policy gradient.
    """
    diagnostics = {"std": policy_std, "entropy": gaussian_entropy(policy_std)}
    if not losses.rewards.numel():
        return diagnostics
    explained = explained_variance(losses.expected_rewards, losses.rewards)
    outside = (rollout.policy_samples.abs() > 1).any(-1)
    diagnostics |= {
        "reward": losses.rewards.mean(),
        "advantage_mean": losses.advantages.mean(),
        "advantage_std": losses.advantages.std(correction=0),
        "explained_variance": explained.nan_to_num(0.0),
        "clamped_fraction": outside.to(policy_std).mean(),
        "mean_std": rollout.policy_means.mean(1).std(0, correction=0).mean(),
    }
    if rollout.policy_means.shape[1] > 1:
        snr = gradient_signal_to_noise(rollout, losses.advantages, policy_std)
        diagnostics["gradient_snr"] = snr
    return diagnostics


@torch.no_grad()
def gradient_signal_to_noise(
    rollout: GlimpseRollout, advantages: Float[Tensor, "b m a"], policy_std: Float[Tensor, ""]
) -> Float[Tensor, ""]:
    """Return the squared norm of the mean policy gradient over its variance between rollouts.

    The gradient is that of the weights of the policy's mean, for a batch with one of the rollouts.
    At 1, the gradient of a single rollout has as much noise as signal.
    """
    residuals = (rollout.policy_samples - rollout.policy_means) / policy_std**2
    scores = residuals * advantages.unsqueeze(-1)
    gradients = torch.einsum("bmap, bmad -> mpd", scores, rollout.policy_states) / len(scores)
    noise = gradients.var(0).sum()
    signal = (gradients.mean(0).square().sum() - noise / len(gradients)).clamp(min=0)
    return signal / noise.clamp(min=1e-20)


def gradient_norms(modules: Mapping[str, nn.Module | None]) -> dict[str, Tensor]:
    """Return the norm of the gradient of each module that has one.

    Example:
        >>> layer = nn.Linear(1, 1, bias=False)
        >>> layer(torch.tensor([3.0])).backward()
        >>> gradient_norms({"layer": layer, "nothing": None})
        {'layer': tensor(3.)}
    """
    norms: dict[str, Tensor] = {}
    for name, module in modules.items():
        parameters = module.parameters() if module is not None else ()
        gradients = [weight.grad.detach() for weight in parameters if weight.grad is not None]
        if gradients:
            norms[name] = torch.stack([gradient.norm() for gradient in gradients]).norm()
    return norms
