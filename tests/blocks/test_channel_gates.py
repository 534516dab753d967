"""Gates of channels against timm and the equations of their papers, in float64."""

import math

import pytest
import torch
from named_weights import fill
from random_numbers import numbers
from timm.layers.eca import EcaModule
from timm.layers.squeeze_excite import EffectiveSEModule, SEModule
from torch import nn

from visattn.blocks import ECA, GCT, SRM, EffectiveSE, GlobalContext, SqueezeExcite


def of_timm(theirs: nn.Module, ours: nn.Module) -> tuple[nn.Module, nn.Module]:
    """Return both in float64, ours with the weights of theirs in the same order."""
    fill(theirs.double())
    shaped = zip(ours.double().state_dict().items(), theirs.state_dict().values(), strict=True)
    ours.load_state_dict({name: new.reshape(old.shape) for (name, old), new in shaped})
    return theirs, ours.eval()


@pytest.mark.parametrize("channels", [8, 24, 64])
def test_se_effective_se_and_eca_match_timm(channels: int) -> None:
    x = 3 * numbers(3, channels, 5, 7)
    for theirs, ours in (
        of_timm(
            SEModule(channels, rd_ratio=1 / 4, rd_divisor=1), SqueezeExcite(channels, reduction=4)
        ),
        of_timm(
            SEModule(channels, rd_ratio=1 / 4, rd_divisor=1, bias=False),
            SqueezeExcite(channels, reduction=4, bias=False),
        ),
        of_timm(EffectiveSEModule(channels), EffectiveSE(channels)),
        of_timm(EcaModule(channels), ECA(channels)),
        of_timm(EcaModule(None, kernel_size=9), ECA(channels, kernel_size=9)),
    ):
        torch.testing.assert_close(ours(x), theirs(x), rtol=0, atol=1e-12)


def test_eca_kernel_size_follows_the_formula() -> None:
    widths = [1, 4, 7, 8, 24, 64, 128, 256, 1024, 2048]
    sizes = [ECA(width).conv.kernel_size[0] for width in widths]
    assert sizes == [1, 1, 1, 3, 3, 3, 5, 5, 5, 7]


@pytest.mark.parametrize("training", [True, False])
def test_srm_matches_the_equation(training: bool) -> None:
    block, x = fill(SRM(3).double()).train(training), numbers(5, 3, 7, 11)
    norm = {name: value.clone() for name, value in block.norm.state_dict().items()}
    pixels = x.flatten(2)
    variance = (pixels - pixels.mean(2, keepdim=True)).square().mean(2)
    scores = block.weight[:, 0] * pixels.mean(2) + block.weight[:, 1] * (variance + 1e-5).sqrt()
    mean, spread = norm["running_mean"], norm["running_var"]
    if training:
        mean, spread = scores.mean(0), scores.var(0, correction=0)
    gate = (scores - mean) / (spread + block.norm.eps).sqrt() * norm["weight"] + norm["bias"]
    expected = x / (1 + torch.exp(-gate))[:, :, None, None]
    torch.testing.assert_close(block(x), expected, rtol=0, atol=1e-10)


def test_gct_matches_the_equation() -> None:
    block, x = fill(GCT(5).double()), numbers(2, 5, 7, 11)
    alpha, gamma, beta = (p.tolist() for p in (block.alpha, block.gamma, block.beta))
    y = block(x)
    for image, gated in zip(x, y, strict=True):
        norms = [sum(v * v for v in channel.flatten().tolist()) for channel in image]
        u = [a * math.sqrt(norm + 1e-5) for a, norm in zip(alpha, norms, strict=True)]
        across = math.sqrt(sum(v * v for v in u) / 5 + 1e-5)
        for c in range(5):
            gate = 1 + math.tanh(gamma[c] * u[c] / across + beta[c])
            torch.testing.assert_close(gated[c], image[c] * gate, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.bfloat16])
def test_gct_and_global_context_start_as_the_exact_identity(kind: torch.dtype) -> None:
    for scale in (0.0, 1e-4, 1.0, 1e4):
        x = (scale * numbers(2, 24, 5, 7)).to(kind)
        for block in (GCT(24), GlobalContext(24)):
            assert torch.equal(block.to(kind)(x), x)


@pytest.mark.parametrize("channels", [1, 4, 16, 32])
def test_added_context_matches_the_equation_at_any_width(channels: int) -> None:
    """Layer norm over one or two hidden channels would remove the input."""
    block, x = fill(GlobalContext(channels).double()), numbers(7, channels, 3, 5)
    state = block.state_dict()
    for image, y in zip(x, block(x), strict=True):
        pixels = image.flatten(1).T
        context = (pixels @ state["score.weight"][0]).softmax(0) @ pixels
        hidden = state["squeeze.weight"] @ context + state["squeeze.bias"]
        hidden = (hidden * state["norm.weight"] + state["norm.bias"]).clamp_min(0)
        added = state["excite.weight"] @ hidden + state["excite.bias"]
        torch.testing.assert_close(y, image + added[:, None, None], rtol=0, atol=1e-12)
