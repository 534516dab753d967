"""Signal-to-noise ratio of the gradients of hard attention: our estimator and the authors'.

The same weights and the same scenes; the entropy term is left out. The coin of the authors' code
adds gradients of soft attention, which have little noise but another expectation: the rows without
the coin compare the estimators of the bound.
"""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, cast

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from visattn.data.captions.batch import CaptionBatch, Vocabulary, collate_captions
from visattn.data.scenes.dataset import Scenes
from visattn.models.captioning.show_attend_tell import HardAttention, ShowAttendTell
from visattn.models.saving.checkpoint import read_model
from visattn.models.saving.config import build_model, model_config
from visattn.training.captioning.evaluation import encode_images
from visattn.training.captioning.hard import HardAttentionTask
from visattn.training.distributed.reduce import StepGenerator

BATCH, BURN_IN = 32, 10
ESTIMATORS = {
    "default": {"preset": "default"},
    "default, 1 rollout": {"preset": "default", "num_rollouts": 1, "baseline": "moving_average"},
    "authors": {"preset": "authors"},
    "authors, no coin": {"preset": "authors", "coin": "none"},
    "authors, no coin, 4 rollouts": {"preset": "authors", "coin": "none", "num_rollouts": 4},
}


class GradientNoise(NamedTuple):
    """Signal-to-noise ratio of the gradient of an estimator: norm of the mean by deviation."""

    weights: str
    estimator: str
    attention: float
    """Of the parameters of the attention alone."""
    all_weights: float
    cosine: float
    """Of the mean gradient of the attention and that of the default estimator."""

    def __str__(self) -> str:
        """Return the result in one line."""
        return (
            f"{self.weights}, {self.estimator}: attention {self.attention:.3f}, "
            f"all weights {self.all_weights:.3f}, cosine to the default {self.cosine:.2f}"
        )


def gradient_noise(checkpoints: list[Path], *, repeats: int) -> Iterator[GradientNoise]:
    """Yield the signal-to-noise ratio of each estimator for each checkpoint of scenes."""
    for checkpoint in checkpoints:
        model = hard_captioner(checkpoint)
        batch = scene_batch(model)
        reference: Tensor | None = None
        for name, options in ESTIMATORS.items():
            task = HardAttentionTask(
                lambda _, model=model: copy.deepcopy(model),
                {"words": list(model.words)},
                entropy_weight=0.0,
                entropy_until=-1.0,
                **options,
            )
            attention, everything = sample_gradients(task.eval(), batch, repeats)
            mean = attention.mean(0)
            reference = mean if reference is None else reference
            yield GradientNoise(
                checkpoint.parts[-3],
                name,
                signal_to_noise(attention),
                signal_to_noise(everything),
                float(cosine_similarity(mean, reference, dim=0)),
            )


def hard_captioner(checkpoint: Path) -> ShowAttendTell:
    """Return the captioner of a checkpoint, with hard attention in place of soft."""
    trained = read_model(checkpoint)
    config = model_config(trained)
    config["arguments"] |= {"attention": "hard", "dropout": 0.0}
    model = build_model(config)
    model.load_state_dict(trained.state_dict())
    if not isinstance(model, ShowAttendTell):
        raise TypeError(f"{checkpoint} must hold a ShowAttendTell, got {type(model).__name__}")
    return model


def scene_batch(model: ShowAttendTell) -> CaptionBatch:
    """Return test scenes that the model can read, one caption each."""
    scenes = Scenes(BATCH, size=model.encoder.img_size[0], split="test")
    samples = [scenes.single_caption_sample(index, index % 5) for index in range(BATCH)]
    return collate_captions(samples, Vocabulary(model.words))


def sample_gradients(
    task: HardAttentionTask, batch: CaptionBatch, repeats: int
) -> tuple[Tensor, Tensor]:
    """Return gradients, one per row: of the scores of the attention, and of the whole decoder."""
    attention = cast("HardAttention", task.model.decoder.attention)
    scorer = [*attention.scorer.parameters()]
    others = {id(weight) for weight in scorer}
    rest = [weight for weight in task.model.decoder.parameters() if id(weight) not in others]
    repeated = batch.repeat_captions(task.num_rollouts)
    with torch.no_grad():
        features = encode_images(task.model, batch)
    gradients: list[tuple[Tensor, Tensor]] = []
    for repeat in range(BURN_IN + repeats):  # the moving average settles in the first ones
        generator = StepGenerator(0, repeat, features.device)
        losses = task.losses(task.sample_rollouts(features, repeated, generator), repeated)
        if repeat >= BURN_IN:
            parts = torch.autograd.grad(losses.total, [*scorer, *rest], allow_unused=True)
            flat = [torch.zeros(0) if part is None else part.flatten() for part in parts]
            gradients.append((torch.cat(flat[: len(scorer)]), torch.cat(flat)))
    of_scores, of_decoder = zip(*gradients, strict=True)
    return torch.stack(of_scores), torch.stack(of_decoder)


def signal_to_noise(gradients: Tensor) -> float:
    """Return the norm of the mean gradient divided by the root of its total variance.

    The squared norm of the mean of n samples exceeds that of the expectation by variance / n,
    which is subtracted.
    """
    variance = gradients.var(0).sum()
    signal = gradients.mean(0).square().sum() - variance / len(gradients)
    return float((signal.clamp(min=0) / variance).sqrt())
