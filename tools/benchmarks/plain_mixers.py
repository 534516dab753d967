"""Plain implementations of branch and self-attention blocks, which store all weights."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .plain_gates import Plain


def sk(block: Any, x: Tensor) -> Tensor:
    """Selective kernel."""
    features = torch.stack([branch(x) for branch in block.branches], 1)
    hidden = F.relu(block.norm(block.squeeze(features.sum(1).mean((2, 3)))))
    weights = block.select(hidden).view(len(x), features.shape[1], -1).softmax(1)
    return (features * weights[..., None, None]).sum(1)


def split(block: Any, x: Tensor) -> Tensor:
    """Split attention, in one group."""
    features = block.split(x).view(len(x), block.radix, *x.shape[1:])
    pooled = F.adaptive_avg_pool2d(features.sum(1), 1)
    scores = block.select(F.relu(block.norm(block.squeeze(pooled))))
    weights = scores.view(len(x), block.radix, -1).softmax(1)
    return (features * weights[..., None, None]).sum(1)


def _rows(block: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return block.query(x).flatten(2), block.key(x).flatten(2), block.value(x).flatten(2)


def nonlocal_(block: Any, x: Tensor) -> Tensor:
    """Non-local means."""
    queries, keys, values = _rows(block, x)
    weights = torch.bmm(queries.transpose(1, 2), keys).softmax(-1)
    output = torch.bmm(weights, values.transpose(1, 2)).transpose(1, 2)
    return x + block.norm(block.project(output.reshape(len(x), -1, *x.shape[2:])))


def danet(block: Any, x: Tensor) -> Tensor:
    """Position and channel attention."""
    queries, keys, values = _rows(block, x)
    weights = torch.bmm(queries.transpose(1, 2), keys).softmax(-1)
    positions = torch.bmm(values, weights.transpose(1, 2)).view_as(x)
    flat = x.flatten(2)
    channels = torch.bmm(torch.bmm(flat, flat.transpose(1, 2)).softmax(-1), flat).view_as(x)
    return (block.position_gain * positions + x) + (block.channel_gain * channels + x) - x


def crisscross(block: Any, x: Tensor) -> Tensor:
    """Criss-cross attention, twice: columns and rows as batches of lines."""
    batch, _, height, width = x.shape
    itself = torch.diag(torch.full((height,), torch.inf))
    for _ in range(block.recurrence):
        query, key, value = block.query(x), block.key(x), block.value(x)
        columns = [part.permute(0, 3, 1, 2).flatten(0, 1) for part in (query, key, value)]
        lines = [part.permute(0, 2, 1, 3).flatten(0, 1) for part in (query, key, value)]
        down = torch.bmm(columns[0].transpose(1, 2), columns[1]) - itself
        down = down.view(batch, width, height, height).permute(0, 2, 1, 3)
        across = torch.bmm(lines[0].transpose(1, 2), lines[1]).view(batch, height, width, width)
        weights = torch.cat((down, across), 3).softmax(3)
        down = weights[..., :height].permute(0, 2, 1, 3).reshape(-1, height, height)
        across = weights[..., height:].reshape(-1, width, width)
        by_column = torch.bmm(columns[2], down.transpose(1, 2)).view(batch, width, -1, height)
        by_line = torch.bmm(lines[2], across.transpose(1, 2)).view(batch, height, -1, width)
        output = by_column.permute(0, 2, 3, 1) + by_line.permute(0, 2, 1, 3)
        x = x + block.gain * output
    return x


def a2(block: Any, x: Tensor) -> Tensor:
    """Double attention."""
    features = block.feature(x).flatten(2)
    gathering = block.gather(x).flatten(2).softmax(-1)
    distributing = block.distribute(x).flatten(2).softmax(1)
    outputs = torch.bmm(torch.bmm(features, gathering.transpose(1, 2)), distributing)
    return x + block.project(outputs.view(len(x), -1, *x.shape[2:]))


def botnet(block: Any, x: Tensor) -> Tensor:
    """Multi-head self-attention with a vector for each pair of offsets."""
    height, width = x.shape[2:]
    parts = block.project(x).flatten(2).split(block.widths, 1)
    queries, keys, values = (
        part.unflatten(1, (block.num_heads, -1)).transpose(2, 3) for part in parts
    )
    down, across = _offsets(block.rows, height), _offsets(block.columns, width)
    table = (down[:, None, :, None] + across[None, :, None, :]).flatten(0, 1).flatten(1, 2)
    scores = queries @ keys.transpose(2, 3) + torch.einsum("bhnd,nmd->bhnm", queries, table)
    output = (scores * block.head_dim**-0.5).softmax(-1) @ values
    return output.transpose(2, 3).reshape(x.shape)


def _offsets(table: Tensor, size: int) -> Tensor:
    reach, positions = len(table) // 2, torch.arange(size)
    return table[(positions[None] - positions[:, None]).clamp(-reach, reach) + reach]


MIXERS: dict[str, Plain] = {
    plain.__name__.rstrip("_"): plain
    for plain in (sk, split, nonlocal_, danet, crisscross, a2, botnet)
}
