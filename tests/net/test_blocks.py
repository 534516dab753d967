"""Keys, output and maps of every block."""

import dataclasses

import pytest
import torch
from kept_values import Keep
from named_weights import fill, waves

import visattn as va
from visattn.blocks.registry import block_class, block_info


@pytest.mark.parametrize("name", va.list_blocks())
def test_info_output_and_maps(name: str, keep: Keep) -> None:
    block = fill(va.create_block(name, 24))
    with torch.no_grad(), va.record(block) as recording:
        output = block(waves(2, 24, 13, 11).float() / 64 - 2)
    keep(
        f"blocks/{name}",
        {
            "info": dataclasses.asdict(block_info(block_class(name))),
            "state": {key: list(value.shape) for key, value in block.state_dict().items()},
            "output": output[:, ::5, ::3, ::3],
            "maps": {each.site: _few(each.values) for each in recording.maps},
        },
    )


def _few(values: torch.Tensor) -> torch.Tensor:
    """Return at most a few hundred values."""
    return values if values.numel() < 300 else values.flatten()[:: values.numel() // 197]
