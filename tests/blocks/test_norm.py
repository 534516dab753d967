"""Batch normalization equal to that of torch, with a plain error."""

import pytest
import torch
from torch import nn

from visattn.blocks.base import CheckedBatchNorm1d, CheckedBatchNorm2d


def test_norms_match_torch() -> None:
    for ours, theirs, shape in (
        (CheckedBatchNorm1d(3), nn.BatchNorm1d(3), (5, 3)),
        (CheckedBatchNorm2d(3), nn.BatchNorm2d(3), (1, 3, 5, 7)),
    ):
        theirs.load_state_dict(ours.state_dict())
        x = torch.randn(shape)
        assert torch.equal(ours(x), theirs(x))
        assert torch.equal(ours.eval()(x), theirs.eval()(x))


@pytest.mark.parametrize(
    ("norm", "shape", "said"),
    [
        (CheckedBatchNorm1d(3), (1, 3), r"\[1, 3\]"),
        (CheckedBatchNorm2d(3), (1, 3, 1, 1), r"\[1, 3, 1, 1\]"),
    ],
)
def test_single_value_per_channel_is_refused_in_training_only(
    norm: nn.Module, shape: tuple[int, ...], said: str
) -> None:
    x = torch.randn(shape)
    with pytest.raises(ValueError, match=f"more than one value per channel.*{said}.*at least 2"):
        norm(x)
    assert norm.eval()(x).isfinite().all()
