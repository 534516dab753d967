"""Plain implementations of gates, after the equations, with the weights of a visattn block."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Plain = Callable[[Any, Tensor], Tensor]


def _dense(layer: nn.Linear, x: Tensor) -> Tensor:
    """Apply a linear layer to vectors [b c 1 1], as a 1 x 1 convolution."""
    return F.conv2d(x, layer.weight[:, :, None, None], layer.bias)


def _bottleneck(block: Any, pooled: Tensor) -> Tensor:
    return _dense(block.excite, F.relu(_dense(block.squeeze, pooled)))


def se(block: Any, x: Tensor) -> Tensor:
    """Squeeze and excitation."""
    return x * torch.sigmoid(_bottleneck(block, F.adaptive_avg_pool2d(x, 1)))


def ese(block: Any, x: Tensor) -> Tensor:
    """Effective squeeze and excitation."""
    return x * F.hardsigmoid(_dense(block.excite, F.adaptive_avg_pool2d(x, 1)))


def eca(block: Any, x: Tensor) -> Tensor:
    """Efficient channel attention."""
    pooled = F.adaptive_avg_pool2d(x, 1).squeeze(-1).transpose(1, 2)
    scores = F.conv1d(pooled, block.conv.weight, padding=block.conv.weight.shape[-1] // 2)
    return x * torch.sigmoid(scores.transpose(1, 2).unsqueeze(-1)).expand_as(x)


def srm(block: Any, x: Tensor) -> Tensor:
    """Style recalibration."""
    flat = x.flatten(2)
    styles = torch.stack((flat.mean(-1), (flat.var(-1, unbiased=False) + 1e-5).sqrt()), -1)
    scores = block.norm((styles * block.weight).sum(-1))
    return x * torch.sigmoid(scores)[:, :, None, None]


def gct(block: Any, x: Tensor) -> Tensor:
    """Gated channel transformation."""
    norms = (x.pow(2).sum((2, 3), keepdim=True) + 1e-5).sqrt()
    embedded = norms * block.alpha[:, None, None]
    scale = block.gamma[:, None, None] / (embedded.pow(2).mean(1, keepdim=True) + 1e-5).sqrt()
    return x * (1 + torch.tanh(embedded * scale + block.beta[:, None, None]))


def gc(block: Any, x: Tensor) -> Tensor:
    """Global context."""
    score = F.conv2d(x, block.score.weight[:, :, None, None], block.score.bias)
    weights = score.flatten(2).softmax(-1)
    context = torch.matmul(x.flatten(2), weights.transpose(1, 2)).unsqueeze(-1)
    hidden = _dense(block.squeeze, context).permute(0, 2, 3, 1)
    hidden = F.relu(block.norm(hidden)).permute(0, 3, 1, 2)
    return x + _dense(block.excite, hidden)


def _pools(x: Tensor, axis: int = 1) -> Tensor:
    peaks, _ = torch.max(x, axis, keepdim=True)
    return torch.cat((peaks, torch.mean(x, axis, keepdim=True)), axis)


def spatial(block: Any, x: Tensor) -> Tensor:
    """CBAM's spatial gate."""
    return x * torch.sigmoid(block.norm(block.conv(_pools(x))))


def sse(block: Any, x: Tensor) -> Tensor:
    """Spatial squeeze and excitation."""
    return x * torch.sigmoid(block.squeeze(x))


def gate(block: Any, x: Tensor) -> Tensor:
    """Attention gate with its input as the gating signal."""
    return x * torch.sigmoid(block.psi(F.relu(block.theta(x) + block.phi(x))))


def stn(block: Any, x: Tensor) -> Tensor:
    """Spatial transformer, with torch's own grid."""
    grid = F.affine_grid(block.localization(x), list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, align_corners=False)


def cbam(block: Any, x: Tensor) -> Tensor:
    """Convolutional block attention module."""
    means, peaks = F.adaptive_avg_pool2d(x, 1), F.adaptive_max_pool2d(x, 1)
    x = x * torch.sigmoid(_bottleneck(block, means) + _bottleneck(block, peaks))
    return spatial(block, x)


def bam(block: Any, x: Tensor) -> Tensor:
    """Bottleneck attention module."""
    channel = block.channel(F.adaptive_avg_pool2d(x, 1).flatten(1))[:, :, None, None]
    return x + x * torch.sigmoid(channel.expand_as(x) + block.spatial(x).expand_as(x))


def scse(block: Any, x: Tensor) -> Tensor:
    """Spatial and channel squeeze and excitation."""
    return se(block, x) + x * torch.sigmoid(block.project(x))


def coordinate(block: Any, x: Tensor) -> Tensor:
    """Coordinate attention."""
    height = x.shape[2]
    rows, columns = x.mean(3, keepdim=True), x.mean(2, keepdim=True).permute(0, 1, 3, 2)
    strips = torch.cat((rows, columns), 2).squeeze(3)
    hidden = F.hardswish(block.norm(block.squeeze(strips)))
    rows, columns = hidden[:, :, :height], hidden[:, :, height:]
    by_row = torch.sigmoid(block.rows(rows)).unsqueeze(3)
    return x * by_row * torch.sigmoid(block.columns(columns)).unsqueeze(2)


def triplet(block: Any, x: Tensor) -> Tensor:
    """Triplet attention, by permuting the features."""

    def gated(part: Any, permuted: Tensor) -> Tensor:
        return permuted * torch.sigmoid(part.norm(part.conv(_pools(permuted))))

    by_row = gated(block.rows, x.permute(0, 3, 2, 1).contiguous()).permute(0, 3, 2, 1)
    by_column = gated(block.columns, x.permute(0, 2, 1, 3).contiguous()).permute(0, 2, 1, 3)
    return (gated(block.places, x) + by_row.contiguous() + by_column.contiguous()) / 3


def simam(_: Any, x: Tensor) -> Tensor:
    """SimAM."""
    squares = (x - x.mean((2, 3), keepdim=True)).pow(2)
    variance = squares.sum((2, 3), keepdim=True) / (x.shape[2] * x.shape[3] - 1)
    return x * torch.sigmoid(squares / (4 * (variance + 1e-4)) + 0.5)


GATES: dict[str, Plain] = {
    plain.__name__: plain
    for plain in (
        *(se, ese, eca, srm, gct, gc, spatial, sse, gate, stn),
        *(cbam, bam, scse, coordinate, triplet, simam),
    )
}
