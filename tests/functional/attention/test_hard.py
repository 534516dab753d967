"""Hard attention: sampling frequencies match the weights, expected gradients are exact."""

import torch
from hypothesis import given, strategies as st
from torch import Tensor

from visattn.functional.attention.hard import hard_attention, soft_attention


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


WEIGHTS, VALUES = numbers(2, 5, 7).softmax(-1), numbers(2, 7, 3, seed=1)


def test_soft_attention_is_the_weighted_mean() -> None:
    expected = torch.einsum("bnm,bme->bne", WEIGHTS, VALUES)
    torch.testing.assert_close(soft_attention(WEIGHTS, VALUES), expected)


def test_hard_attention_is_the_value_at_the_sampled_position() -> None:
    selected, places, log_probs = hard_attention(WEIGHTS, VALUES, generator=seeded())
    for b in range(2):
        for n in range(5):
            place = int(places[b, n])
            assert torch.equal(selected[b, n], VALUES[b, place])
            torch.testing.assert_close(log_probs[b, n], WEIGHTS[b, n, place].log())


def test_samples_depend_on_the_seed() -> None:
    picks = [hard_attention(WEIGHTS, VALUES, generator=seeded(seed)).indices for seed in (3, 3, 4)]
    assert torch.equal(picks[0], picks[1])
    assert not torch.equal(picks[0], picks[2])


def test_sampling_frequencies_match_the_weights() -> None:
    weights = torch.tensor([0.5, 0.0, 0.3, 0.2]).expand(20011, 4)
    picked = hard_attention(3 * weights, torch.eye(4), generator=seeded())  # whatever its sum
    shares = picked.indices.bincount(minlength=4) / 20011
    torch.testing.assert_close(shares, weights[0], atol=0.015, rtol=0)  # 4 standard deviations
    assert shares[1] == 0
    mean = picked.values.mean(0)
    torch.testing.assert_close(mean, soft_attention(weights, torch.eye(4))[0], atol=0.015, rtol=0)
    torch.testing.assert_close(picked.log_probabilities.exp(), weights[0][picked.indices])


def test_expected_gradient_is_that_of_soft_attention() -> None:
    """REINFORCE: the expected reward-weighted score function is the gradient of the mean."""
    scores = torch.tensor([0.3, -0.5, 0.9, 0.0], requires_grad=True)
    rewards = torch.tensor([1.0, 2.0, -1.0, 0.5])
    (exact,) = torch.autograd.grad(scores.softmax(-1) @ rewards, scores)
    picked = hard_attention(
        scores.softmax(-1).expand(40009, 4), rewards[:, None], generator=seeded()
    )
    gained = (picked.values.squeeze(-1) * picked.log_probabilities).mean()
    (sampled,) = torch.autograd.grad(gained, scores)
    torch.testing.assert_close(sampled, exact, atol=0.02, rtol=0)


@given(seed=st.integers(0, 99))
def test_fully_masked_rows_select_nothing(seed: int) -> None:
    weights = torch.where(torch.arange(5)[:, None] == 2, 0.0, WEIGHTS).requires_grad_()
    values = VALUES.clone().requires_grad_()
    selected, places, log_probs = hard_attention(weights, values, generator=seeded(seed))
    assert (places[:, 2] == -1).all()
    assert (places[:, [0, 1, 3, 4]] >= 0).all()
    assert (selected[:, 2] == 0).all()
    assert (log_probs[:, 2] == 0).all()
    (selected.sum() + log_probs.sum()).backward()
    for part in (weights, values):
        assert part.grad is not None
        assert part.grad.isfinite().all()
    assert weights.grad is not None
    assert (weights.grad[:, 2] == 0).all()


def test_values_are_shared_by_a_leading_axis_of_size_1() -> None:
    shared = hard_attention(WEIGHTS, VALUES[:1], generator=seeded())
    spread = hard_attention(WEIGHTS, VALUES[:1].expand(2, 7, 3), generator=seeded())
    assert torch.equal(shared.values, spread.values)


def test_half_precision_returns_float32_log_probs() -> None:
    picked = hard_attention(WEIGHTS.half(), VALUES.half(), generator=seeded())
    assert picked.values.dtype == torch.float16
    assert picked.log_probabilities.dtype == torch.float32
