"""Checks of copying, device placement, torch.export, torch.fx and torch.compile."""

import copy
from typing import cast

import torch
from torch import nn

from visattn.insertion.inserted_block import InsertedBlock, attach
from visattn.insertion.weights import bake
from visattn.testing.behavior import perturbed_block
from visattn.testing.block_under_test import (
    BlockUnderTest,
    CheckResult,
    checked_forward,
    error_context,
    failed,
    passed,
    relative_error,
)

CLOSE = 1e-5
_OTHER_SIZES = ((1, (7, 7)), (3, (9, 8)), (2, (16, 16)))


def supports_copying(under_test: BlockUnderTest) -> CheckResult:
    """Check that a deep copy and a block with the same state dict give identical outputs.

    Example:
        >>> supports_copying(BlockUnderTest("batch norm", nn.BatchNorm2d)).passed
        True
    """
    block = perturbed_block(under_test).eval()
    x = under_test.features()
    with error_context("deepcopy"):
        copied = copy.deepcopy(block)
    with error_context("load_state_dict"):
        loaded = under_test.block(seed=1).eval()
        loaded.load_state_dict(block.state_dict())
    with torch.no_grad():
        wanted = checked_forward(block, x, "itself")
        for name, other in (("deepcopy", copied), ("load_state_dict", loaded)):
            if not torch.equal(checked_forward(other, x, name), wanted):
                return failed(f"after {name} the output differs")
    return passed("deepcopy, state_dict")


def follows_device(under_test: BlockUnderTest) -> CheckResult:
    """Check that a moved block creates no tensors on the CPU in its forward.

    The device is `meta`, which every machine has.

    Example:
        >>> class Masked(nn.Module):
        ...     def forward(self, x):
        ...         return x * torch.ones(x.shape[2:])
        >>> follows_device(BlockUnderTest("sigmoid", lambda channels: nn.Sigmoid())).passed
        True
    """
    x = under_test.features().to("meta")
    for mode, training in (("eval mode", False), ("training mode", True)):
        output = checked_forward(
            under_test.block().to("meta").train(training), x, f"on meta, {mode}"
        )
        if output.device != x.device:
            return failed(f"{mode}: returns features on {output.device}, not on meta")
    return passed("meta")


def supports_export(under_test: BlockUnderTest) -> CheckResult:
    """Check that `torch.export` supports the block with dynamic batch and size.

    Example:
        >>> supports_export(BlockUnderTest("sigmoid", lambda channels: nn.Sigmoid())).passed
        True
    """
    block = perturbed_block(under_test).eval()
    free = {0: torch.export.Dim("batch", min=1, max=4096)}
    free |= {axis: torch.export.Dim(f"side{axis}", min=7, max=4096) for axis in (2, 3)}
    with error_context("torch.export"), torch.no_grad():
        program = torch.export.export(block, (under_test.features(),), dynamic_shapes=(free,))
    return _compare_outputs(under_test, program.module(), block, "exported")


def supports_fx(under_test: BlockUnderTest) -> CheckResult:
    """Check that `torch.fx` traces a model into which the block was inserted and baked.

    Example:
        >>> supports_fx(BlockUnderTest("sigmoid", lambda channels: nn.Sigmoid())).passed
        True
    """
    model = nn.Sequential(nn.Identity(), nn.Identity()).eval()
    block = perturbed_block(under_test).eval()

    with error_context("insert"):
        attach(model[0], InsertedBlock({"block": block}))
        bake(model)
    with error_context("torch.fx"):
        traced = torch.fx.symbolic_trace(model)
    return _compare_outputs(under_test, traced, block, "traced")


def supports_compile(under_test: BlockUnderTest) -> CheckResult:
    """Check that `torch.compile` captures the block as one graph with the same outputs.

    Runtime shape checks cannot be traced and must be off.
    """
    block = perturbed_block(under_test).eval()
    torch.compiler.reset()
    compiled = cast("nn.Module", torch.compile(block, fullgraph=True, backend="aot_eager"))
    result = _compare_outputs(under_test, compiled, block, "compiled")
    torch.compiler.reset()
    return result


def _compare_outputs(
    under_test: BlockUnderTest, other: nn.Module, block: nn.Module, how: str
) -> CheckResult:
    sizes = (
        _OTHER_SIZES
        if under_test.size == BlockUnderTest.size
        else ((1, under_test.size), (3, under_test.size))
    )
    worst = 0.0
    with torch.no_grad():
        for batch, (height, width) in sizes:
            x = under_test.features(batch, size=(height, width))
            case = f"{batch} of {height}x{width}"
            off = relative_error(
                checked_forward(other, x, f"{how}, {case}"), checked_forward(block, x, case)
            )
            if off > CLOSE:
                return failed(f"{how}, {case}: differs by {off:.2g} of the largest value")
            worst = max(worst, off)
    return passed(f"differs by {worst:.0e}")
