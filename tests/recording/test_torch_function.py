"""Following a softmax to the product with the values, whatever lies between the two."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from visattn.attribution.explained_model import subject_of
from visattn.recording.recorder import record

GRID = (3, 5)


class Eager(nn.Module):
    """Attention that is written out, over the cells of a grid, in one of several ways."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.stem = nn.Conv2d(3, 14, 4, 4)
        self.qkv = nn.Linear(14, 42)
        self.mix = nn.Linear(2, 2, bias=False)
        self.used: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.stem(x).flatten(2).mT
        q, k, v = self.qkv(tokens).unflatten(-1, (3, 2, 7)).permute(2, 0, 3, 1, 4).unbind(0)
        return getattr(self, f"_{self.way}")(q, k, v).transpose(1, 2).flatten(2).mean(1)

    def _left(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.used = nn.functional.softmax(q @ k.mT, dim=-1, dtype=torch.float64)
        return nn.functional.dropout(self.used, 0.3, self.training).to(v.dtype) @ v

    def _right(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.used = (q @ k.mT).softmax(-1)
        return (v.mT @ self.used.transpose(-2, -1)).mT

    def _batched(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.used = torch.softmax(q[:, :1] @ k[:, :1].mT, -1)
        return torch.bmm(self.used[:, 0], v[:, 0]).unsqueeze(1)

    def _blended(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        near = torch.softmax(torch.eye(15).expand(len(q), 2, 15, 15), dim=-1)
        self.used = 0.25 * (q @ k.mT).softmax(dim=-1) + 0.75 * near
        self.used /= self.used.sum(-1, keepdim=True)
        return self.used @ v

    def _talking(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.used = (q @ k.mT).softmax(-1)
        return self.mix(self.used.permute(0, 2, 3, 1)).permute(0, 3, 1, 2) @ v

    def _gated(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (0.5 * (q @ k.mT).softmax(-1)) @ v

    def _difference(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.mT).softmax(-1) @ v - 0.5 * (((q * 2) @ k.mT).softmax(-1) @ v)

    def _sums(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return q @ (k.softmax(dim=-2).mT @ v)

    def _channels(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return ((q.mT @ k).softmax(-1) @ v.mT).mT

    def _grouped(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (part.unflatten(2, (3, 5)) for part in (q, k, v))
        return ((q @ k.mT).softmax(-1) @ v).flatten(2, 3)

    def _folded(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (part.unflatten(2, (3, 5)).transpose(1, 2).flatten(0, 1) for part in (q, k, v))
        seen = nn.functional.scaled_dot_product_attention(q, k, v)
        return seen.unflatten(0, (-1, 3)).transpose(1, 2).flatten(2, 3)


def model(way: str) -> Eager:
    torch.manual_seed(3)
    return Eager(way).eval()


X = torch.randn(2, 3, 12, 20, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("way", ["left", "right", "batched", "blended", "talking"])
def test_what_is_shown_is_what_the_values_are_multiplied_by(way: str) -> None:
    eager = model(way)
    expected = eager(X)
    with record(eager) as seen:
        assert torch.equal(eager(X), expected)
    assert eager.used is not None
    torch.testing.assert_close(seen.weights[0], eager.used.to(seen.weights[0].dtype))
    assert seen.maps[0].values.shape[-2:] == GRID
    assert ("mixed" in seen.maps[0].made) == (way == "talking")
    with record(eager, differentiable=True) as woven:
        after = eager(X)
    torch.testing.assert_close(after, expected)
    [gradient] = torch.autograd.grad(after.sum(), woven.weights)
    assert float(gradient.abs().max()) > 0


@pytest.mark.parametrize(("way", "reason"), [
    ("gated", "do not sum to 1"),
    ("difference", "combines several softmaxes"),
    ("sums", "runs over axis -2"),
    ("channels", "7 tokens are no grid of the image"),
    ("grouped", "groups that are laid out along axes of their own"),
    ("folded", "could not be followed"),
])  # fmt: skip
def test_what_is_no_attention_among_places_is_refused(way: str, reason: str) -> None:
    eager = model(way)
    assert reason in subject_of(eager, (12, 20)).card.refusal
    with pytest.raises(ValueError, match=f"the model: .*{reason}"), record(eager):
        eager(X)


class Wide(nn.Module):
    """Attention among channels, of which there are as many as a coarser grid has cells."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 15, 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.stem(x).flatten(2).unsqueeze(1)
        return ((tokens @ tokens.mT).softmax(-1) @ tokens).squeeze(1).mT


def test_channels_that_could_be_cells_are_told_by_what_comes_out() -> None:
    assert "does not lie on the places" in subject_of(Wide(), (12, 20)).card.refusal


class Wrong(nn.Module):
    """Fused attention whose output somebody exchanges on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 14, 4, 4)

    def forward(self, x: Tensor) -> Any:
        tokens = self.stem(x).flatten(2).mT.unsqueeze(1)
        return nn.functional.scaled_dot_product_attention(tokens, tokens, tokens)[:, 0]


def test_weights_that_do_not_give_the_output_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(3)
    broken = Wrong()
    fused = nn.functional.scaled_dot_product_attention
    with record(broken) as seen:
        broken(X)
    assert seen.maps[0].made["deviation"] < 2e-6
    monkeypatch.setattr(
        "visattn.recording.attention_call.attention_weights",
        lambda queries, keys, **_: torch.eye(15).expand(len(queries), 1, 15, 15),
    )
    with pytest.raises(ValueError, match="miss what it put out"), record(broken):
        broken(X)
    assert nn.functional.scaled_dot_product_attention is fused
