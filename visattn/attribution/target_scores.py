"""What a model makes of images and of variants of them, as numbers that a target asks for."""

from collections.abc import Iterator
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from visattn.attribution.targets import ClassTarget, Target
from visattn.recording.model_info import ExplainedModel

Of = Literal["probabilities", "scores"]


def target_values(
    subject: ExplainedModel, images: Float[Tensor, "b c y x"], target: Target
) -> Float[Tensor, " b"]:
    """Return the target of each image.

    Args:
        subject: The model.
        images: Normalized.
        target: What is asked.

    Raises:
        ValueError: If the target does not make one number for each image.
    """
    return _one_each(target(subject.forward(images)), len(images))


def _one_each(values: Float[Tensor, " b"], count: int) -> Float[Tensor, " b"]:
    if len(values) != count:
        raise ValueError(
            f"a target must make one number for each of the {count} images, got {len(values)}"
        )
    return values


def answers(
    subject: ExplainedModel,
    variants: Float[Tensor, "m b c y x"],
    target: Target,
    *,
    of: Of = "scores",
) -> Float[Tensor, "m b"]:
    """Return the target of each variant of each image, all of which the model sees at once.

    Args:
        subject: The model.
        variants: Of b images, normalized.
        target: What is asked.
        of: Whether the target of a class is its score or its probability; functions are always
            given what the model returns.

    Raises:
        ValueError: If it is to be made of anything else.
    """
    if of not in ("probabilities", "scores"):
        raise ValueError(f"the target is made of probabilities or of scores, got {of!r}")
    if not isinstance(target, ClassTarget):
        count = variants.shape[1]
        return torch.stack([_one_each(target(one), count) for one in _outputs(subject, variants)])
    scores = subject.scores(variants.flatten(0, 1))
    given = probabilities(scores) if of == "probabilities" else scores
    return torch.stack([target(one) for one in given.unflatten(0, variants.shape[:2])])


def _outputs(subject: ExplainedModel, variants: Float[Tensor, "m b c y x"]) -> Iterator[Any]:
    """Go over what the model returns for each variant; all at once if that is one tensor each."""
    if subject.card.output.scores or subject.card.output.refusal:
        yield from map(subject.forward, variants)
        return
    output = subject.forward(variants.flatten(0, 1))
    yield from output.unflatten(0, variants.shape[:2])


def probabilities(scores: Float[Tensor, "b k"]) -> Float[Tensor, "b k"]:
    """Return the probability of each class; of a single one, how likely it is against its absence.

    Example:
        >>> probabilities(torch.zeros(1, 4)), probabilities(torch.zeros(1, 1))
        (tensor([[0.2500, 0.2500, 0.2500, 0.2500]]), tensor([[0.5000]]))
    """
    return scores.softmax(1) if scores.shape[1] > 1 else scores.sigmoid()


def variants_at_once(chunk: int, images: Float[Tensor, "b c y x"]) -> int:
    """Return how many variants of all images fit into what the model sees at once, at least one.

    Args:
        chunk: Images that it sees at once.
        images: Each of which has variants.

    Raises:
        ValueError: If it sees none.

    Example:
        >>> import torch
        >>> variants_at_once(32, torch.zeros(3, 1, 2, 2))
        10
    """
    if chunk < 1:
        raise ValueError(f"the model must see at least 1 image at once, got chunk={chunk}")
    return max(1, chunk // len(images))
