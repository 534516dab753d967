"""Supervision of a location policy by the known centers of objects."""

from jaxtyping import Float
from torch import Tensor

from visattn.data.classification.digit_sequences import DigitSequenceBatch
from visattn.functional.reinforce import gaussian_log_prob
from visattn.models.ram.glimpse_model import GlimpseModel
from visattn.models.ram.paths import object_scanpaths
from visattn.models.ram.rollout import GlimpseRollout


def digit_scanpaths(model: GlimpseModel, batch: DigitSequenceBatch) -> Float[Tensor, "b t 2"]:
    """Return scanpaths over the centers of the digits on each canvas, from left to right."""
    return object_scanpaths(
        batch.centers, batch.num_digits, model.num_glimpses, has_end=model.end_class is not None
    )


def supervised_rollout(
    model: GlimpseModel,
    images: Float[Tensor, "b c y x"],
    batch: object,
    noise: Float[Tensor, "b m t 2"],
) -> tuple[GlimpseRollout, Float[Tensor, "b t 2"]]:
    """Return rollouts whose glimpses lie around the centers of the objects, and these centers.

    The core gets no gradient from the policy, since the locations of objects would outweigh what
    it learns about their classes.

    Args:
        model: The model.
        images: Normalized images.
        batch: The batch that they come from.
        noise: Noise of each location of m rollouts per image, in units of the standard deviation
            of the policy.

    Raises:
        TypeError: If the batch does not know the centers of the objects.
    """
    if not isinstance(batch, DigitSequenceBatch):
        raise TypeError(
            "supervised_location_epochs needs data that know the centers of the objects, such as "
            f"DigitSequenceDataModule; got a batch of type {type(batch).__name__}"
        )
    path = digit_scanpaths(model, batch).to(images)
    samples = path.unsqueeze(1) + model.policy.std.detach() * noise
    return model.rollout(images, num_rollouts=noise.shape[1], samples=samples), path


def supervised_policy_loss(
    rollout: GlimpseRollout, locations: Float[Tensor, "b t 2"], policy_std: Float[Tensor, ""]
) -> Float[Tensor, ""]:
    """Return the negative log-density of known locations under the policy, in nats per rollout.

    Args:
        rollout: Rollouts whose samples lie near the locations.
        locations: Where each glimpse should lie; the last ones belong to the actions.
        policy_std: Standard deviation of the policy, a constant here.
    """
    num_actions = rollout.policy_means.shape[2]
    targets = locations[:, None, locations.shape[1] - num_actions :]
    log_probs = gaussian_log_prob(
        targets.expand_as(rollout.policy_means), rollout.policy_means, policy_std.detach()
    )
    return -log_probs.sum(-1).mean()
