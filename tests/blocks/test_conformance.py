"""What every block must satisfy, also the one that the guide adds."""

import copy
import math
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from visattn.blocks.additive import AdditiveAttention
from visattn.blocks.multi_head import MultiHeadAttention
from visattn.blocks.registry import create_block, list_blocks
from visattn.recording.recorder import record

Make = Callable[..., nn.Module]
GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "add_a_block.md"
FILE, LINE = re.findall(r"^```\w+\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)[-2:]


def of_guide() -> Make:
    names: dict[str, Any] = {"__name__": "mean_gate"}
    exec(compile(FILE, "mean_gate.py", "exec"), names)
    return names["MeanGate"]


BLOCKS: dict[str, Make] = {name: partial(create_block, name) for name in list_blocks()}
BLOCKS["guide"] = of_guide()


def trained(make: Make, channels: int = 24, seed: int = 0) -> nn.Module:
    """Return a block in evaluation, none of whose parameters is zero."""
    torch.manual_seed(seed)
    block = make(channels)
    with torch.no_grad():
        for weight in block.parameters():
            # Noise as large as a usual initialization: 1 / sqrt(fan-in), and 1/2 for biases.
            fan = weight[0].numel() if weight.ndim > 1 else 4
            weight.add_(torch.randn_like(weight), alpha=fan**-0.5)
    return block.eval()


def features(batch: int = 2, channels: int = 24, size: tuple[int, int] = (11, 13)) -> Tensor:
    """Return features with unit variance and different channel means."""
    random = torch.Generator().manual_seed(0)
    levels = torch.randn(batch, channels, 1, 1, generator=random)
    return levels + torch.randn(batch, channels, *size, generator=random)


def off(actual: Tensor, expected: Tensor) -> float:
    return float((actual - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("name", BLOCKS)
def test_any_shape_is_kept(name: str) -> None:
    for channels in (1, 4, 8, 24):
        for size in ((7, 7), (20, 33), (1, 9), (1, 1)):
            x = features(3, channels, size)
            for training in (False, True):
                y = BLOCKS[name](channels).train(training)(x)
                assert y.shape == x.shape
                assert y.isfinite().all()
    meta = BLOCKS[name](24).to("meta")(features().to("meta"))  # it makes no tensor on the CPU
    assert (meta.shape, meta.is_meta) == (features().shape, True)


@pytest.mark.parametrize("name", BLOCKS)
@torch.no_grad()
def test_each_image_has_its_own_output_whatever_its_layout(name: str) -> None:
    block, x = trained(BLOCKS[name]), features(3)
    before, given = copy.deepcopy(block.state_dict()), x.clone()
    y = block(x)
    assert torch.equal(x, given)
    alone = torch.cat([block(x[[row]]) for row in range(3)])
    last = block(x.contiguous(memory_format=torch.channels_last))
    assert max(off(alone, y), off(last, y)) < 1e-5
    assert torch.equal(copy.deepcopy(block)(x), y) or name == "guide"  # of `exec`: not copied
    assert all(torch.equal(before[key], value) for key, value in block.state_dict().items())


# Axes over which recorded weights sum to one; those of tokens do over the grid, gates over none.
SUMS: dict[tuple[str, str], Any] = {
    ("sk", "tap"): 1, ("split", "tap"): 1, ("danet", "channel_tap"): -1,
    ("a2", "gather_tap"): (-2, -1), ("a2", "distribute_tap"): 1,
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in list_blocks() if name != "stn"])
@torch.no_grad()
def test_recorded_maps_are_what_the_features_are_weighted_by(name: str) -> None:
    """Gates of channels and positions give the output; rows and branches sum to one."""
    block, x = trained(BLOCKS[name]).double(), features().double()
    y = block(x)
    with record(block) as recording:
        torch.testing.assert_close(block(x), y)
    assert recording.maps
    gates: list[Any] = []
    for each in recording.maps:
        axes = SUMS.get((name, each.site), (-2, -1) if each.kind == "tokens" else None)
        if axes is None:
            shape = (-1, 1, 1) if each.kind == "channel" else (-1, 11, 13)
            gates.append(each.values.reshape(2, *shape))
        else:
            total = each.values.sum(axes)
            torch.testing.assert_close(total, torch.ones_like(total))
    if gates:
        gate = sum(gates) if name == "scse" else math.prod(gates)
        torch.testing.assert_close(y, x * (1 + gate if name == "bam" else gate))


@pytest.mark.parametrize("name", BLOCKS)
@torch.no_grad()
def test_half_precision_is_near_float32(name: str) -> None:
    for dtype, bound in ((torch.float16, 0.02), (torch.bfloat16, 0.1)):
        block, x = trained(BLOCKS[name]).to(dtype), features(1).to(dtype)
        exact = trained(BLOCKS[name])
        exact.load_state_dict(block.state_dict())
        y = block(x)
        assert y.dtype == dtype
        assert off(y.float(), exact(x.float())) < bound
    # The sum of squares over such features overflows float16; softmax would flip if trained.
    torch.manual_seed(0)
    block, x = BLOCKS[name](24).eval().half(), (6 * features(1, size=(40, 48))).half()
    y = block(x).float()
    assert off(y, block.float()(x.float())) < 0.02


@pytest.mark.parametrize("name", BLOCKS)
def test_gradients_are_exact_finite_and_reach_every_parameter(name: str) -> None:
    double, x = trained(BLOCKS[name], 8).double(), features(2, 8, (3, 5)).double().requires_grad_()
    assert torch.autograd.gradcheck(double, (x,), eps=1e-5, atol=1e-4, fast_mode=True)
    for scale in (0.0, 1e-4, 1.0, 1e4):
        for training in (False, True):
            block, x = BLOCKS[name](24).train(training), (scale * features()).requires_grad_()
            block(x).mean().backward()
            slopes = [x.grad, *(weight.grad for weight in block.parameters())]
            assert all(slope is None or slope.isfinite().all() for slope in slopes), scale
    block = trained(BLOCKS[name]).train()
    with torch.autocast("cpu", torch.bfloat16):
        y = block(features(8).requires_grad_())
    (y.float() * torch.randn(y.shape)).sum().backward()
    unread = [key for key, p in block.named_parameters() if p.grad is None or not p.grad.any()]
    # Softmax cancels what is added to all scores of a row.
    assert set(unread) <= {"score.bias", "key.bias"}


@pytest.mark.compile
@pytest.mark.parametrize("name", BLOCKS)
@torch.no_grad()
def test_a_block_exports_for_any_size_and_compiles_as_one_graph(name: str) -> None:
    block, x = trained(BLOCKS[name]), features()
    free = {0: torch.export.Dim("batch", min=1, max=4096)}
    free |= {axis: torch.export.Dim(f"side{axis}", min=7, max=4096) for axis in (2, 3)}
    exported = torch.export.export(block, (x,), dynamic_shapes=(free,)).module()
    for batch, size in ((1, (7, 7)), (3, (9, 8)), (2, (16, 16))):
        other = features(batch, size=size)
        assert off(exported(other), block(other)) < 1e-5
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    assert off(compiled(x), block(x)) < 1e-5


@pytest.mark.compile
@torch.no_grad()
def test_blocks_of_several_inputs_compile_as_one_graph() -> None:
    additive, cells = AdditiveAttention(11, query_dim=7, attention_dim=5), torch.randn(2, 13, 11)
    tokens = torch.randn(2, 11, 12)
    cases: list[tuple[nn.Module, tuple[Tensor, ...], dict[str, Any]]] = [
        (create_block("gate", 6, signal_channels=5, stride=2).eval(),
         (torch.randn(2, 6, 7, 11), torch.randn(2, 5, 3, 2)), {}),
        (additive, (torch.randn(2, 3, 7), cells, additive.key(cells)), {}),
        *((MultiHeadAttention(12, num_heads=3), (tokens,), {"need_weights": need})
          for need in (False, True)),
    ]  # fmt: skip
    for block, inputs, options in cases:
        compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(*inputs, **options), block(*inputs, **options))


def test_the_line_of_the_guide_fits_the_stub() -> None:
    stub = (Path(__file__).parents[2] / "visattn" / "blocks" / "__init__.pyi").read_text()
    assert LINE.replace("mean_gate", "gct").replace("MeanGate", "GCT") in stub
