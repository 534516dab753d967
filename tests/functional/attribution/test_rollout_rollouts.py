"""Rollout against the product of plain matrices, and the closed form that even attention has."""

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from visattn.functional.attribution.rollout import attention_rollout, discard_lowest, fuse_heads

B, H, N = 2, 3, 7


def random_layers(count: int, seed: int = 0, heads: int | None = None) -> list[Tensor]:
    drawn = torch.Generator().manual_seed(seed)
    shape = (B, N, N) if heads is None else (B, heads, N, N)
    return [
        (3 * torch.randn(shape, generator=drawn, dtype=torch.float64)).softmax(-1)
        for _ in range(count)
    ]


def plain_rollout(layers: list[Tensor], residual: float) -> Tensor:
    """Return the whole product, written with matrices as the paper has it."""
    found = []
    for image in range(B):
        product = torch.eye(N, dtype=torch.float64)
        for layer in layers:
            mixed = residual * torch.eye(N) + (1 - residual) * layer[image]
            for row in range(N):
                mixed[row] = mixed[row] / mixed[row].sum()
            product = mixed @ product
        found.append(product)
    return torch.stack(found)


@pytest.mark.parametrize("residual", [0.0, 0.3, 0.5, 1.0])
def test_rows_are_those_of_the_product_of_matrices(residual: float) -> None:
    layers = [2.5 * layer for layer in random_layers(5)]  # sums other than 1 are scaled
    identity = torch.eye(N, dtype=torch.float64).expand(B, N, N)
    whole = attention_rollout(layers, identity, residual=residual)
    torch.testing.assert_close(whole, plain_rollout(layers, residual))
    torch.testing.assert_close(
        attention_rollout(layers, identity[:, 2:3], residual=residual), whole[:, 2:3]
    )


@pytest.mark.parametrize("count", [1, 4, 12])
def test_even_attention_has_a_closed_form(count: int) -> None:
    even = torch.full((1, N, N), 1 / N)
    found = attention_rollout([even] * count, torch.eye(N)[None])[0]
    expected = torch.eye(N) / 2**count + (1 - 2.0**-count) / N
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 6), st.floats(0, 0.99), st.sampled_from(["mean", "max", "min"]))
def test_rows_sum_to_one_whatever_was_left_out(count: int, share: float, fusion: str) -> None:
    layers = [
        discard_lowest(fuse_heads(layer, fusion), share, num_kept_columns=1)  # pyright: ignore[reportArgumentType]
        for layer in random_layers(count, heads=H)
    ]
    sums = attention_rollout(layers, torch.eye(N).double().expand(B, N, N)).sum(-1)
    torch.testing.assert_close(sums, torch.ones_like(sums))


def test_a_row_of_nothing_gives_nothing_and_no_nan() -> None:
    layer = torch.eye(3)[None] * torch.tensor([1.0, 0.0, 1.0])[:, None]
    found = attention_rollout([layer], torch.eye(3)[None], residual=0.0)
    assert found[0].tolist() == [[1, 0, 0], [0, 0, 0], [0, 0, 1]]


def test_heads_are_fused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    [layer] = random_layers(1, heads=H)
    assert torch.equal(fuse_heads(layer, "max"), layer.max(1).values)
    assert torch.equal(fuse_heads(layer, "min"), layer.min(1).values)
    torch.testing.assert_close(fuse_heads(layer), layer.sum(1) / H)
    monkeypatch.setattr("jaxtyping.config.jaxtyping_disable", True)  # as in daily use
    with pytest.raises(ValueError, match="fusion must be one of mean, max, min, got 'sum'"):
        fuse_heads(layer, "sum")  # pyright: ignore[reportArgumentType]


def test_the_weakest_leave_each_image_for_itself_and_spare_the_first_columns() -> None:
    [layer] = random_layers(1)
    left = discard_lowest(layer, 0.6, num_kept_columns=2)
    assert torch.equal(left[:, :, :2], layer[:, :, :2])
    count = int(0.6 * N * (N - 2))
    for one, before in zip(left, layer, strict=True):
        gone = one[:, 2:] == 0
        assert gone.sum() == count
        assert before[:, 2:][gone].max() <= before[:, 2:][~gone].min()
        alone = discard_lowest(before[None], 0.6, num_kept_columns=2)[0]
        assert torch.equal(one, alone)
    assert torch.equal(discard_lowest(layer, 0.0), layer)


def test_shares_out_of_range_are_refused() -> None:
    [layer] = random_layers(1)
    with pytest.raises(ValueError, match=r"in \[0, 1\), got 1.0"):
        discard_lowest(layer, 1.0)
    with pytest.raises(ValueError, match=r"residual weight must be in \[0, 1\], got 1.5"):
        attention_rollout([layer], layer, residual=1.5)
