"""Checks of what is done with a block: copied, kept, moved, exported, traced, compiled."""

import copy
from typing import cast

import torch
from torch import nn

from visattn.insertion.baking import bake
from visattn.insertion.graft import InsertedBlock, place
from visattn.testing.behavior import awakened
from visattn.testing.candidate import (
    BlockUnderTest,
    CheckResult,
    answered,
    distance,
    facing,
    failed,
    stood,
)

CLOSE = 1e-5
_OTHERS = ((1, (7, 7)), (3, (9, 8)), (2, (16, 16)))


def copies_whole(subject: BlockUnderTest) -> CheckResult:
    """Say whether a deep copy, and a new block with the same state, give exactly the same.

    Example:
        >>> copies_whole(BlockUnderTest("batch norm", nn.BatchNorm2d)).passed
        True
    """
    block, x = awakened(subject).eval(), subject.features()
    with facing("deepcopy"):
        copied = copy.deepcopy(block)
    with facing("load_state_dict"):
        loaded = subject.block(seed=1).eval()
        loaded.load_state_dict(block.state_dict())
    with torch.no_grad():
        wanted = answered(block, x, "itself")
        for name, other in (("deepcopy", copied), ("load_state_dict", loaded)):
            if not torch.equal(answered(other, x, name), wanted):
                return failed(f"after {name} it gives something else")
    return stood("deepcopy, state_dict")


def stays_on_device(subject: BlockUnderTest) -> CheckResult:
    """Say whether a block that was moved away makes nothing on the CPU while it runs.

    Nothing is computed there: the device is `meta`, which every machine has.

    Example:
        >>> class Masked(nn.Module):
        ...     def forward(self, x):
        ...         return x * torch.ones(x.shape[2:])
        >>> stays_on_device(BlockUnderTest("sigmoid", lambda channels: nn.Sigmoid())).passed
        True
    """
    x = subject.features().to("meta")
    for mode, training in (("in use", False), ("in training", True)):
        given = answered(subject.block().to("meta").train(training), x, f"on meta, {mode}")
        if given.device != x.device:
            return failed(f"{mode}: gives features on {given.device}, not on meta")
    return stood("meta")


def exports(subject: BlockUnderTest) -> CheckResult:
    """Say whether `torch.export` takes the block with free batch and size, and keeps what it does.

    Example:
        >>> exports(BlockUnderTest("sigmoid", lambda channels: nn.Sigmoid())).passed
        True
    """
    block = awakened(subject).eval()
    free = {0: torch.export.Dim("batch", min=1, max=4096)}
    free |= {axis: torch.export.Dim(f"side{axis}", min=7, max=4096) for axis in (2, 3)}
    with facing("torch.export"), torch.no_grad():
        program = torch.export.export(block, (subject.features(),), dynamic_shapes=(free,))
    return _does_the_same(subject, program.module(), block, "exported")


def traces(subject: BlockUnderTest) -> CheckResult:
    """Say whether `torch.fx` sees the block in a model that it was inserted into and baked.

    Example:
        >>> traces(BlockUnderTest("sigmoid", lambda channels: nn.Sigmoid())).passed
        True
    """
    model = nn.Sequential(nn.Identity(), nn.Identity()).eval()
    awake = awakened(subject).eval()

    with facing("insert"):
        place(model[0], InsertedBlock({"block": awake}))
        bake(model)
    with facing("torch.fx"):
        traced = torch.fx.symbolic_trace(model)
    return _does_the_same(subject, traced, awake, "traced")


def compiles(subject: BlockUnderTest) -> CheckResult:
    """Say whether `torch.compile` takes the block as one graph, and keeps what it does.

    The checks of shapes cannot be traced: they must be off.
    """
    block = awakened(subject).eval()
    torch.compiler.reset()
    compiled = cast("nn.Module", torch.compile(block, fullgraph=True, backend="aot_eager"))
    finding = _does_the_same(subject, compiled, block, "compiled")
    torch.compiler.reset()
    return finding


def _does_the_same(
    subject: BlockUnderTest, other: nn.Module, block: nn.Module, how: str
) -> CheckResult:
    sizes = (
        _OTHERS if subject.size == BlockUnderTest.size else ((1, subject.size), (3, subject.size))
    )
    worst = 0.0
    with torch.no_grad():
        for batch, (height, width) in sizes:
            x = subject.features(batch, size=(height, width))
            case = f"{batch} of {height}x{width}"
            off = distance(answered(other, x, f"{how}, {case}"), answered(block, x, case))
            if off > CLOSE:
                return failed(f"{how}, {case}: differs by {off:.2g} of the largest value")
            worst = max(worst, off)
    return stood(f"differs by {worst:.0e}")
