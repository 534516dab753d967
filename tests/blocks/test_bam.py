"""BAM: equation of both fusions, parameter counts, recorded map, batch of one."""

import pytest
import torch
from torch import Tensor, nn

from visattn.blocks.bam import BAM, CombineMode
from visattn.recording.recorder import record


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def shaken(block: nn.Module) -> nn.Module:
    """Return the block with batch statistics as after some training."""
    random = torch.Generator().manual_seed(0)
    for name, value in block.named_buffers():
        if name.endswith("running_mean"):
            value.copy_(torch.randn(value.shape, generator=random))
        if name.endswith("running_var"):
            value.copy_(torch.rand(value.shape, generator=random) + 0.5)
    return block


def normalized(x: Tensor, norm: nn.Module) -> Tensor:
    state = norm.state_dict()
    scale = state["weight"] / (state["running_var"] + 1e-5).sqrt()
    return ((x - state["running_mean"]) * scale + state["bias"]).clamp_min(0)


def place_scores(x: Tensor, layers: nn.Sequential) -> Tensor:
    """The spatial branch in float64, every convolution as a sum over shifts."""
    for conv, norm in ((layers[0], layers[1]), (layers[3], layers[4]), (layers[6], layers[7])):
        weight, bias = conv.state_dict()["weight"], conv.state_dict()["bias"]
        reach = 0 if weight.shape[-1] == 1 else 4
        height, width = x.shape[2:]
        padded = nn.functional.pad(x, (reach,) * 4)
        total = bias[:, None, None].expand(len(x), -1, height, width)
        for m in range(weight.shape[2]):
            for n in range(weight.shape[3]):
                shift = padded[:, :, m * reach : m * reach + height, n * reach : n * reach + width]
                total = total + torch.einsum("hc,bcyx->bhyx", weight[:, :, m, n], shift)
        x = normalized(total.movedim(1, -1), norm).movedim(-1, 1)
    last = layers[9].state_dict()
    return torch.einsum("h,bhyx->byx", last["weight"][0, :, 0, 0], x) + last["bias"]


@pytest.mark.parametrize("combine", ["add", "mul"])
def test_matches_the_equation(combine: CombineMode) -> None:
    block = BAM(32, combine=combine).double().eval()
    shaken(block)
    x = torch.randn(2, 32, 11, 13, generator=torch.Generator().manual_seed(1)).double()
    first, last = block.channel[0].state_dict(), block.channel[3].state_dict()
    pooled = x.sum((2, 3)) / (11 * 13)
    hidden = normalized(pooled @ first["weight"].T + first["bias"], block.channel[1])
    channel = (hidden @ last["weight"].T + last["bias"])[:, :, None, None]
    place = place_scores(x, block.spatial)[:, None]
    score = channel + place if combine == "add" else channel * place
    expected = x * (1 + 1 / (1 + torch.exp(-score)))
    torch.testing.assert_close(block(x), expected, rtol=0, atol=1e-10)


def test_parameter_counts_match_the_paper() -> None:
    added = [count(BAM(channels)) for channels in (256, 512, 1024)]
    assert added == [17_361, 68_513, 272_193]
    assert sum(added) == 25_915_099 - 25_557_032
    resnet18 = sum(count(BAM(channels)) for channels in (64, 128, 256))
    assert resnet18 == 11_712_503 - 11_689_512


@pytest.mark.parametrize("dilation", [1, 2, 4])
@pytest.mark.parametrize("size", [(7, 7), (1, 1), (3, 13)])
def test_recorded_map_has_the_size_of_the_features(dilation: int, size: tuple[int, int]) -> None:
    block, x = BAM(16, dilation=dilation), torch.rand(2, 16, *size)
    with record(block) as recording:
        y = block(x)
    [gate] = recording.maps
    assert gate.values.shape == x.shape
    assert gate.kind == "gate"
    torch.testing.assert_close(x + x * gate.values, y)


def test_batch_of_one_is_refused_in_training() -> None:
    block, x = BAM(16), torch.rand(1, 16, 5, 7)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        block(x)
    assert block.eval()(x).shape == x.shape


def test_dilation_must_be_positive() -> None:
    with pytest.raises(ValueError, match="dilation must be at least 1, got 0"):
        BAM(16, dilation=0)
