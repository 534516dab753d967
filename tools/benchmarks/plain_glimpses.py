"""Plain recurrent attention model: a loop over images, without precomputation."""

import math
from collections.abc import Iterator

import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, cross_entropy, mse_loss, pad
from torchvision.transforms.functional import normalize, to_tensor

from visattn.models.glimpses.ram import RecurrentAttentionModel


def looped_glimpses(
    images: Tensor, locations: Tensor, *, glimpse: int, scales: int, pad_value: float = 0.0
) -> Tensor:
    """Return the glimpse at one location of each image, [b s c g g]."""
    size = torch.tensor([images.shape[3], images.shape[2]])
    levels = []
    for scale in range(scales):
        window = glimpse * 2**scale
        padded = pad(images, (window,) * 4, value=pad_value)
        starts = ((locations + 1) / 2 * size - window / 2 + 0.5).floor().long() + window
        crops = []
        for index in range(len(images)):
            left, top = starts[index, 0].item(), starts[index, 1].item()
            crops.append(padded[index, :, top : top + window, left : left + window])
        levels.append(avg_pool2d(torch.stack(crops), 2**scale))
    return torch.stack(levels, 1)


def plain_retina(
    images: Tensor, path: Tensor, *, glimpse: int, scales: int, rollouts: int
) -> list[Tensor]:
    """Return the glimpses along a path, [b·m t 2], with images copied for each rollout."""
    copies = images.repeat_interleave(rollouts, 0)
    return [
        looped_glimpses(copies, locations, glimpse=glimpse, scales=scales)
        for locations in path.unbind(1)
    ]


def plain_loss(
    model: RecurrentAttentionModel,
    baseline: nn.Module,
    images: Tensor,
    labels: Tensor,
    init_location: Tensor,
    noise: Tensor,
) -> Tensor:
    """Return the loss of one rollout per image: classification, REINFORCE and learned baseline.

    The layers are those of the model; the operations between them are plain.
    """
    pad_value = float((model.pad_value - model.mean[0]) / model.std[0])
    location, state = init_location, images.new_zeros(len(images), model.hidden_size)
    log_probs: list[Tensor] = []
    expected_rewards: list[Tensor] = []
    for step in range(model.num_glimpses):
        if step:
            mean = model.policy.mean(state.detach())
            expected_rewards.append(baseline(state.detach()).squeeze(1))
            sample = (mean + model.policy.std * noise[:, step]).detach()
            deviation = (sample - mean) / model.policy.std
            density = -deviation.square() / 2 - model.policy.std.log() - math.log(2 * math.pi) / 2
            log_probs.append(density.sum(1))
            location = sample.clamp(-1, 1)
        glimpse = looped_glimpses(
            images,
            location,
            glimpse=model.glimpse_size,
            scales=model.num_scales,
            pad_value=pad_value,
        )
        (state,) = model.rnn(model.glimpse_net(glimpse, location), (state,))
    scores = model.classifier(state)
    reward = (scores.argmax(1) == labels).float()
    loss = cross_entropy(scores, labels)
    for log_prob, expected_reward in zip(log_probs, expected_rewards, strict=True):
        loss = loss - (log_prob * (reward - expected_reward.detach())).mean()
        loss = loss + mse_loss(expected_reward, reward) / len(log_probs)
    return loss


def plain_batches(
    digits: Tensor, labels: Tensor, batch: int, mean: float, std: float
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield all digits in random order, read one by one as by torchvision's data sets."""
    for indices in torch.randperm(len(digits)).split(batch):
        inputs = [
            normalize(to_tensor(Image.fromarray(digits[index, 0].numpy())), [mean], [std])
            for index in indices.tolist()
        ]
        yield torch.stack(inputs), labels[indices]


def plain_epoch(
    model: RecurrentAttentionModel, baseline: nn.Module, digits: Tensor, labels: Tensor, batch: int
) -> None:
    """Train for an epoch."""
    parameters = [*model.parameters(), *baseline.parameters()]
    optimizer = torch.optim.Adam([p for p in parameters if p.requires_grad], lr=1e-3)
    for images, classes in plain_batches(digits, labels, batch, model.mean[0], model.std[0]):
        init_location = torch.rand(len(images), 2) * 2 - 1
        noise = torch.randn(len(images), model.num_glimpses, 2)
        optimizer.zero_grad()
        plain_loss(model, baseline, images, classes, init_location, noise).backward()
        optimizer.step()
