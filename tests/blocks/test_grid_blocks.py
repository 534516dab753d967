"""Properties of all self-attention blocks on grids: recorded maps, equivariance, dtypes."""

import pytest
import torch
from torch import Tensor

from visattn.blocks.base import Block
from visattn.blocks.botnet import BoTNetAttention
from visattn.blocks.criss_cross import CrissCrossAttention
from visattn.blocks.danet import DANet
from visattn.blocks.double_attention import DoubleAttention
from visattn.blocks.non_local import NonLocal
from visattn.recording.recorder import record

BLOCKS = (NonLocal, DANet, CrissCrossAttention, DoubleAttention, BoTNetAttention)
BY_ROWS = (NonLocal, DANet, CrissCrossAttention, BoTNetAttention)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=random)


def awake(kind: type[Block]) -> Block:
    """Return a block with nonzero output: parameters initialized with zero are set to 0.5."""
    block = kind(12).eval()
    with torch.no_grad():
        for parameter in block.parameters():
            if not parameter.any():
                parameter.fill_(0.5)
    return block


@pytest.mark.parametrize("kind", BLOCKS)
def test_recording_does_not_change_the_output(kind: type[Block]) -> None:
    block, x = awake(kind), numbers(2, 12, 5, 7)
    unseen = block(x)
    assert not torch.equal(unseen, x)
    with record(block) as recording:
        attended = block(x)
    torch.testing.assert_close(attended, unseen, atol=1e-6, rtol=0)
    assert torch.equal(block(x), unseen)
    assert all(
        attention_map.values.shape[-2:] == (5, 7)
        for attention_map in recording.maps
        if attention_map.kind != "channel"
    )


@pytest.mark.parametrize("kind", BY_ROWS)
def test_recorded_rows_sum_to_one_on_any_grid(kind: type[Block]) -> None:
    block = awake(kind)
    for height, width in ((5, 7), (3, 11), (1, 1)):
        with record(block) as recording:
            block(numbers(2, 12, height, width))
        maps = [attention_map for attention_map in recording.maps if attention_map.kind == "tokens"]
        assert maps
        for attention_map in maps:
            assert attention_map.values.shape[-3:] == (height * width, height, width)
            total = attention_map.values.sum((-1, -2))
            torch.testing.assert_close(total, torch.ones_like(total))


def test_channel_affinities_are_recorded_as_channel_maps() -> None:
    block = awake(DANet)
    with record(block) as recording:
        block(numbers(2, 12, 5, 7))
    assert {attention_map.site: attention_map.kind for attention_map in recording.maps} == {
        "position_tap": "tokens",
        "channel_tap": "channel",
    }
    [channels] = [
        attention_map for attention_map in recording.maps if attention_map.kind == "channel"
    ]
    torch.testing.assert_close(channels.values.sum(-1), torch.ones(2, 12))
