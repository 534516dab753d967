"""What every attention block must satisfy; each check raises what is wrong."""

import copy
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from visattn.blocks.tap import Tap

Make = Callable[[int], nn.Module]
SIZES = ((32, 32), (20, 33), (7, 7), (5, 3), (1, 9), (1, 1))
WIDTHS = (1, 4, 8, 16, 24)
WIDTH, SIZE = 32, (11, 13)


def made(make: Make, channels: int = WIDTH, *, seed: int = 0, trained: bool = False) -> nn.Module:
    """Return a block; `trained`, none of its parameters is zero."""
    torch.manual_seed(seed)
    block = make(channels)
    with torch.no_grad():
        for weight in block.parameters() if trained else ():
            # Noise as large as a usual initialization: 1 / sqrt(fan-in), and 1/2 for biases.
            fan = max(1, weight.numel() // max(1, len(weight))) if weight.ndim > 1 else 4
            weight.add_(torch.randn_like(weight), alpha=fan**-0.5)
    return block


def features(
    batch: int = 2, channels: int = WIDTH, size: tuple[int, int] = SIZE, *, seed: int = 0
) -> Tensor:
    """Return features with unit variance and different channel means."""
    random = torch.Generator().manual_seed(seed)
    levels = torch.randn(batch, channels, 1, 1, generator=random)
    return levels + torch.randn(batch, channels, *size, generator=random)


def run(block: nn.Module, x: Tensor) -> Tensor:
    y = block(x)
    assert isinstance(y, Tensor)
    assert (y.shape, y.dtype, y.device) == (x.shape, x.dtype, x.device)
    assert y.is_meta or y.isfinite().all()
    return y


def off(actual: Tensor, expected: Tensor) -> float:
    largest = expected.abs().amax().clamp_min(1e-30)
    return float(((actual - expected).abs().amax() / largest).detach())


def keeps_any_shape(make: Make) -> None:
    for training in (False, True):
        for size in SIZES:
            run(made(make).train(training), features(3, size=size))
        for channels in WIDTHS:
            run(made(make, channels).train(training), features(channels=channels))
    run(made(make).to("meta"), features().to("meta"))  # it makes no tensor on the CPU


def is_a_function_of_each_image(make: Make) -> None:
    """No image depends on another; the input, its layout and the state do not matter or change."""
    block, x = made(make, trained=True).eval(), features(3)
    before = {name: value.clone() for name, value in block.state_dict().items()}
    wide = features(3, size=(SIZE[0], 2 * SIZE[1]))
    wide[..., ::2] = x
    with torch.no_grad():
        y = run(block, x.clone())
        assert torch.equal(run(block, x), y)
        alone = torch.cat([run(block, x[[row]]) for row in range(3)])
        last = run(block, x.contiguous(memory_format=torch.channels_last))
        assert max(off(z, y) for z in (alone, last, run(block, wide[..., ::2]))) < 1e-5
        other = made(make, seed=1).eval()
        other.load_state_dict(block.state_dict())
        assert torch.equal(run(other, x), y)
        assert torch.equal(run(copy.deepcopy(block), x), y)
    assert all(torch.equal(before[name], value) for name, value in block.state_dict().items())
    for training in (False, True):
        given = x.clone()
        run(made(make).train(training), given)
        assert torch.equal(given, x)


def is_right_in_half_precision_and_at_any_scale(make: Make) -> None:
    for dtype, bound in ((torch.float16, 0.02), (torch.bfloat16, 0.1)):
        half = made(make, trained=True).eval().to(dtype)
        x = features(1).to(dtype)
        with torch.no_grad():
            assert off(run(half, x).float(), run(copy.deepcopy(half).float(), x.float())) < bound
    # The sum of squares over such features overflows float16; softmax would flip if trained.
    half, x = made(make).eval().half(), (6 * features(1, size=(40, 48))).half()
    with torch.no_grad():
        assert off(run(half, x).float(), run(copy.deepcopy(half).float(), x.float())) < 0.02
    with torch.autocast("cpu", torch.bfloat16):
        y = made(make).train()(features().requires_grad_())
    y.float().square().mean().backward()
    assert y.isfinite().all()
    for scale in (1e-4, 1e-2, 1e2, 1e4):
        for training in (False, True):
            block, x = made(make).train(training), (features() * scale).requires_grad_()
            run(block, x).mean().backward()
            slopes = [x.grad, *(weight.grad for weight in block.parameters())]
            assert all(slope is None or slope.isfinite().all() for slope in slopes), scale


def learns(make: Make) -> None:
    """All parameters get gradients in two steps (identities block some); they are exact."""
    block = made(make).train()
    named = dict(block.named_parameters())
    reached: set[str] = set()
    for step in range(2):
        block.zero_grad()
        y = run(block, features(8, seed=step).requires_grad_())
        (y - features(8, seed=step + 2)).square().mean().backward()
        with torch.no_grad():
            for name, weight in named.items():
                if weight.grad is not None and weight.grad.any():
                    reached.add(name)
                    weight.sub_(weight.grad, alpha=0.1)
    assert reached == set(named) == set(dict(block.named_parameters()))
    double, x = made(make, trained=True).double().eval(), features(2, size=(3, 5)).double()
    assert torch.autograd.gradcheck(
        double, (x.requires_grad_(),), eps=1e-5, atol=1e-4, fast_mode=True
    )


def depends_on_its_input(make: Make, widths: tuple[int, ...] = WIDTHS) -> None:
    """The weights at each tap move with the input; without a tap the output is not linear in it.

    Four images and eight sets of weights: an inactive ReLU may block some. A softmax that saturates
    for large features is tried with small ones too.
    """
    for channels in widths:
        loud, soft = (_moves(make, channels, loudness) for loudness in (1.0, 0.1))
        for site, moved in loud.items():
            assert max(moved, soft[site]) > 1e-2, f"C={channels}: the gate {site} is constant"


def _moves(make: Make, channels: int, loudness: float) -> dict[str, float]:
    moved: dict[str, list[Tensor]] = {}
    for seed in range(8):
        block = made(make, channels, seed=seed, trained=True).double().eval()
        x = loudness * features(4, channels, seed=seed).double()
        step = 0.03 * loudness * features(4, channels, seed=seed + 99).double()
        with torch.no_grad():
            here, there = (dict(_gates(block, each)) for each in (x, x + step))
            for site, gate in here.items():
                change = _rms(there[site] - gate) / _rms(gate).clamp_min(1e-30) / 0.03
                moved.setdefault(site, []).append(change)
            if not here:
                ahead, y, behind = block(x + step), block(x), block(x - step)
                bend = _rms(ahead - 2 * y + behind) / _rms(y).clamp_min(1e-30) / 0.03**2
                moved.setdefault("output", []).append(bend)
    return {site: float(torch.cat(parts).quantile(0.75)) for site, parts in moved.items()}


def _gates(block: nn.Module, x: Tensor) -> Iterator[tuple[str, Tensor]]:
    values: dict[str, Tensor] = {}
    with ExitStack() as hooks:
        for name, tap in block.named_modules():
            if isinstance(tap, Tap):

                def keep(_: Any, __: Any, weights: Tensor, name: str = name) -> None:
                    values[name] = weights

                hooks.callback(tap.register_forward_hook(keep).remove)
        block(x)
    for name, gate in values.items():
        if x.shape[1] > 1 or not bool((gate == 1).all()):  # a softmax over one channel
            yield name, gate


def _rms(values: Tensor) -> Tensor:
    return values.flatten(1).square().mean(1).sqrt()


CHECKS: dict[str, Callable[[Make], None]] = {
    "shape": keeps_any_shape,
    "function": is_a_function_of_each_image,
    "precision": is_right_in_half_precision_and_at_any_scale,
    "learns": learns,
    "depends": depends_on_its_input,
}


def is_traced(make: Make) -> None:
    """`torch.export` takes any batch and size, `torch.compile` makes one graph."""
    block, x = made(make, trained=True).eval(), features()
    free = {0: torch.export.Dim("batch", min=1, max=4096)}
    free |= {axis: torch.export.Dim(f"side{axis}", min=7, max=4096) for axis in (2, 3)}
    with torch.no_grad():
        exported = torch.export.export(block, (x,), dynamic_shapes=(free,)).module()
        for batch, size in ((1, (7, 7)), (3, (9, 8)), (2, (16, 16))):
            y = features(batch, size=size)
            assert off(exported(y), block(y)) < 1e-5
        compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
        assert off(compiled(x), block(x)) < 1e-5
