"""A glimpse model as one writes it first: image after image, all of it anew at each step."""

import math
from collections.abc import Iterator

import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, cross_entropy, mse_loss, pad
from torchvision.transforms.functional import normalize, to_tensor

from visattn.models.ram.ram import RecurrentAttentionModel


def looped_glimpses(
    images: Tensor, places: Tensor, *, glimpse: int, scales: int, background: float = 0.0
) -> Tensor:
    """Return what is seen at one place of each image, [b s c g g]."""
    size = torch.tensor([images.shape[3], images.shape[2]])
    seen = []
    for scale in range(scales):
        wide = glimpse * 2**scale
        around = pad(images, (wide,) * 4, value=background)
        starts = ((places + 1) / 2 * size - wide / 2 + 0.5).floor().long() + wide
        crops = []
        for index in range(len(images)):
            left, top = starts[index, 0].item(), starts[index, 1].item()
            crops.append(around[index, :, top : top + wide, left : left + wide])
        seen.append(avg_pool2d(torch.stack(crops), 2**scale))
    return torch.stack(seen, 1)


def plain_retina(
    images: Tensor, path: Tensor, *, glimpse: int, scales: int, rollouts: int
) -> list[Tensor]:
    """Return what is seen along a path, [b·m t 2], the images copied for each rollout."""
    copies = images.repeat_interleave(rollouts, 0)
    return [
        looped_glimpses(copies, places, glimpse=glimpse, scales=scales) for places in path.unbind(1)
    ]


def plain_loss(
    model: RecurrentAttentionModel,
    baseline: nn.Module,
    images: Tensor,
    labels: Tensor,
    start: Tensor,
    noise: Tensor,
) -> Tensor:
    """Return the loss of one rollout of each image: answer, REINFORCE, and learned baseline.

    The layers are the model's own; what stands between them is plain.
    """
    background = float((model.background - model.mean[0]) / model.std[0])
    place, state = start, images.new_zeros(len(images), model.width)
    chances: list[Tensor] = []
    expected: list[Tensor] = []
    for step in range(model.glimpses):
        if step:
            mean = model.policy.mean(state.detach())
            expected.append(baseline(state.detach()).squeeze(1))
            sample = (mean + model.policy.spread * noise[:, step]).detach()
            away = (sample - mean) / model.policy.spread
            density = -away.square() / 2 - model.policy.spread.log() - math.log(2 * math.pi) / 2
            chances.append(density.sum(1))
            place = sample.clamp(-1, 1)
        seen = looped_glimpses(
            images, place, glimpse=model.glimpse, scales=model.scales, background=background
        )
        (state,) = model.memory(model.glimpse_net(seen, place), (state,))
    scores = model.classifier(state)
    right = (scores.argmax(1) == labels).float()
    loss = cross_entropy(scores, labels)
    for chance, hope in zip(chances, expected, strict=True):
        loss = loss - (chance * (right - hope.detach())).mean()
        loss = loss + mse_loss(hope, right) / len(chances)
    return loss


def plain_batches(
    digits: Tensor, labels: Tensor, batch: int, mean: float, std: float
) -> Iterator[tuple[Tensor, Tensor]]:
    """Give all digits once in random order, read one by one as torchvision's data sets do."""
    for chosen in torch.randperm(len(digits)).split(batch):
        read = [
            normalize(to_tensor(Image.fromarray(digits[index, 0].numpy())), [mean], [std])
            for index in chosen.tolist()
        ]
        yield torch.stack(read), labels[chosen]


def plain_epoch(
    model: RecurrentAttentionModel, baseline: nn.Module, digits: Tensor, labels: Tensor, batch: int
) -> None:
    """Train for an epoch."""
    learning = [*model.parameters(), *baseline.parameters()]
    optimizer = torch.optim.Adam([one for one in learning if one.requires_grad], lr=1e-3)
    for images, classes in plain_batches(digits, labels, batch, model.mean[0], model.std[0]):
        start = torch.rand(len(images), 2) * 2 - 1
        noise = torch.randn(len(images), model.glimpses, 2)
        optimizer.zero_grad()
        plain_loss(model, baseline, images, classes, start, noise).backward()
        optimizer.step()
