"""Spatial and branch blocks compile and export for any batch and size."""

import pytest
import torch

from visattn.blocks.attention_gate import AttentionGate
from visattn.blocks.bam import BAM
from visattn.blocks.base import Block
from visattn.blocks.cbam import CBAM
from visattn.blocks.scse import SCSE
from visattn.blocks.selective_kernel import SelectiveKernel
from visattn.blocks.spatial_gate import SpatialGate, SpatialSE
from visattn.blocks.spatial_transformer import SpatialTransformer
from visattn.blocks.split_attention import SplitAttention

pytestmark = pytest.mark.compile


def test_gate_with_signal_compiles_as_one_graph() -> None:
    gate = AttentionGate(6, signal_channels=5, stride=2).eval()
    compiled = torch.compile(gate, fullgraph=True, backend="aot_eager")
    x, signal = torch.randn(2, 6, 7, 11), torch.randn(2, 5, 3, 2)
    torch.testing.assert_close(compiled(x, signal), gate(x, signal))


@pytest.mark.parametrize(
    "block",
    [
        SpatialGate(12),
        SpatialSE(12),
        AttentionGate(12),
        SpatialTransformer(12, hidden_channels=4, align_corners=True),
        CBAM(12),
        BAM(12),
        SCSE(12, combine="concat"),
        SelectiveKernel(12),
        SplitAttention(12, radix=3, groups=2),
    ],
    ids=lambda block: block.info.name,
)
def test_exports_for_any_batch_and_size(block: Block) -> None:
    sides = {axis: torch.export.Dim(f"side{axis}", min=2, max=4096) for axis in (2, 3)}
    free = {0: torch.export.Dim("batch", min=1, max=4096), **sides}
    exported = torch.export.export(
        block.eval(), (torch.randn(2, 12, 7, 11),), dynamic_shapes=(free,)
    ).module()
    for shape in ((1, 12, 5, 3), (3, 12, 16, 13)):
        x = torch.randn(shape)
        torch.testing.assert_close(exported(x), block(x))
