"""Attention pools of CNNs, in which the mean or the maximum of the cells queries the cells."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from timm.layers.attention_pool2d import AttentionPool2d
from torch import Tensor, nn
from torch.nn import functional as F

from visattn.attribution.methods import METHODS, supported_methods
from visattn.attribution.targets import resolve_target
from visattn.recording.recorder import record
from visattn.recording.subject import analyze_model

GRID, WIDTH, HEADS = (5, 7), 12, 3


def mean(cells: Tensor) -> Tensor:
    return cells.mean(1, keepdim=True)


class FunctionPool(nn.Module):
    """A pool that calls `multi_head_attention_forward` itself, as that of CLIP's ResNets.

    Args:
        token: From the cells to the first token.
        alone: Whether the first token is the only query.
    """

    def __init__(self, token: Callable[[Tensor], Tensor] = mean, *, alone: bool = False) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.pos = nn.Parameter(torch.randn(GRID[0] * GRID[1] + 1, WIDTH) / 3)
        self.token, self.alone = token, alone

    def tokens(self, x: Tensor) -> Tensor:
        cells = x.flatten(2).mT
        return torch.cat((self.token(cells), cells), 1) + self.pos

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.tokens(x).transpose(0, 1)
        query = tokens[:1] if self.alone else tokens
        biases = torch.cat([layer.bias for layer in (self.q, self.k, self.v)])
        pooled, _ = F.multi_head_attention_forward(
            query, tokens, tokens, WIDTH, HEADS, None, biases, None, None,
            add_zero_attn=False, dropout_p=0.0,
            out_proj_weight=self.out.weight, out_proj_bias=self.out.bias, need_weights=False,
            use_separate_proj_weight=True, q_proj_weight=self.q.weight,
            k_proj_weight=self.k.weight, v_proj_weight=self.v.weight,
        )  # fmt: skip
        return pooled[0]

    def queries_and_keys(self, x: Tensor) -> tuple[Tensor, Tensor]:
        tokens = self.tokens(x)
        return self.q(tokens), self.k(tokens)


class TimmPool(AttentionPool2d):
    def __init__(self) -> None:
        super().__init__(WIDTH, GRID, num_heads=HEADS)

    def queries_and_keys(self, x: Tensor) -> tuple[Tensor, Tensor]:
        cells = x.flatten(2).mT
        assert self.qkv is not None
        tokens = torch.cat((mean(cells), cells), 1) + self.pos_embed
        q, k, _ = self.qkv(tokens).chunk(3, -1)
        return q, k


class Net(nn.Module):
    def __init__(self, pool: Any) -> None:
        super().__init__()
        stem = (nn.Conv2d(3, WIDTH, 5, 2, 2), nn.ReLU(), nn.Conv2d(WIDTH, WIDTH, 5, 4, 2))
        self.stem, self.pool = nn.Sequential(*stem, nn.ReLU()), pool
        self.fc = nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.pool(self.stem(x)))


POOLS: dict[str, Callable[[], Any]] = {
    "function": lambda: FunctionPool(lambda cells: cells.amax(1, keepdim=True)),
    "one query": lambda: FunctionPool(alone=True),
    "timm": TimmPool,
}  # fmt: skip


@pytest.mark.parametrize("name", POOLS)
def test_the_map_is_the_row_of_the_token_that_is_read(name: str) -> None:
    torch.manual_seed(3)
    net = Net(POOLS[name]()).eval()
    with torch.no_grad():
        for weight in net.pool.parameters():
            weight.mul_(3)  # attention that is not even
    size = (8 * GRID[0], 8 * GRID[1])
    subject = analyze_model(net, size)
    info = subject.info
    [layer] = info.attention_layers
    assert (layer.site, layer.key_grid or layer.grid) == ("pool", GRID), name
    assert info.feature_layers[-1].site == "stem"
    x = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        q, k = net.pool.queries_and_keys(net.stem(x))
    q, k = (tokens.unflatten(-1, (HEADS, -1)).transpose(1, 2).double() for tokens in (q, k))
    rows = (q @ k.mT / (WIDTH / HEADS) ** 0.5).softmax(-1)
    right = rows[:, :, 0, 1:].mean(1).unflatten(1, GRID).float()
    assert float(right.std()) > 0.003
    before = net(x)
    with record(net, differentiable=True) as recording:
        output = net(x)
    torch.testing.assert_close(output, before)
    assert torch.autograd.grad(output[:, 1].sum(), recording.weights)[0].any()
    with record(net) as recording:
        assert torch.equal(net(x), before)
    [weights] = recording.weights
    weights = weights[:, :, 0] if weights.ndim == 4 else weights  # of several queries, or one
    torch.testing.assert_close(weights, rows[:, :, 0].float())
    target = resolve_target(1, subject)
    torch.testing.assert_close(METHODS["attention"].function(subject, x, target), right)
    assert "legrad" not in supported_methods(subject)
    for method in supported_methods(subject):
        if METHODS[method].needs in ("tokens", "features") and method != "legrad":
            values = METHODS[method].function(subject, x, target)
            assert values.shape == (2, *GRID), method
            assert values.isfinite().all(), method
    assert METHODS["hirescam"].function(subject, x, target, signed=True).any()
    assert "fullgrad" not in supported_methods(subject)
