"""Insertion keeps outputs, names and gradients, or is refused with a reason."""

import copy
import io
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import pytest
import timm
import torch
from host_models import Doubled, Residual, Scaled, image, net, residual_net
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torchvision.models import resnet18

from visattn.blocks.registry import create_block
from visattn.blocks.squeeze_excite import SqueezeExcite
from visattn.insertion.cost import summary
from visattn.insertion.insertion import BlockSpec, insert
from visattn.recording.recorder import record

SMALL = ("resnet", "convnext", "nfnet", "byobnet")


def one_step(model: nn.Module, x: Tensor) -> None:
    """Compute gradients of a loss of five classes."""
    model.zero_grad()
    cross_entropy(model(x), torch.arange(len(x)) % 5).backward()


def grads(model: nn.Module, part: str) -> dict[str, bool]:
    return {
        name: p.grad is not None and bool(p.grad.abs().sum() > 0)
        for name, p in model.named_parameters()
        if part in name
    }


@pytest.mark.parametrize("name", SMALL)
def test_identity_initialization_is_bit_exact(name: str) -> None:
    model = timm.create_model(f"test_{name}").eval()
    x = torch.randn(2, 3, 96, 96)
    with torch.no_grad():
        before = model(x)
        report = insert(model, "se", position="residual", example=x[:1])
        assert torch.equal(model(x), before)
    assert report.num_identity_scales == len(report.sites) > 0


def test_identity_initialization_is_bit_exact_for_resnet_18_in_training() -> None:
    model, x = resnet18(), torch.randn(2, 3, 64, 64)
    bare = copy.deepcopy(model)
    report = insert(model, "cbam", position="residual", example=x)
    assert torch.equal(model(x), bare(x))
    assert [site.name for site in report.sites[:2]] == ["layer1.0.bn2", "layer1.1.bn2"]
    assert (len(report.sites), report.num_identity_scales, report.num_skipped) == (8, 8, 0)
    bare_state = bare.state_dict()
    assert all(torch.equal(model.state_dict()[key], value) for key, value in bare_state.items())


def test_paper_initialization_adds_no_identity_scale() -> None:
    bare, x = net(Residual(16), nn.Identity()).eval(), image()
    model = copy.deepcopy(bare)
    report = insert(model, Doubled, position="1.bn2", example=x, init="paper")
    assert (report.num_parameters, report.num_identity_scales, report.blocks) == (
        16,
        0,
        ("doubled",),
    )
    block, before = bare[1], bare[0](x)
    assert isinstance(block, Residual)
    expected = (2 * block.branch(before) + before).relu()
    torch.testing.assert_close(model[1](model[0](x)), expected)


@pytest.mark.parametrize("name", ["se", "cbam", "coordinate", "simam", "gc", "nonlocal", "botnet"])
def test_every_parameter_changes_by_the_second_step(name: str) -> None:
    model, x = residual_net(), image()
    # A norm over two units is constant, and a single unit may never be active.
    options: dict[str, Any] = {"reduction": 2} if name in ("se", "cbam", "gc") else {}
    report = insert(model, name, position="residual", example=x, **options)
    assert report.num_identity_scales == (0 if name in ("gc", "nonlocal") else 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    one_step(model, x)
    assert all(grads(model, "_scale").values())
    optimizer.step()
    one_step(model, x)
    # A softmax is invariant to a constant added to all scores.
    still = {key for key, moved in grads(model, ".visattn.").items() if not moved}
    assert {key.rpartition(".visattn.")[2] for key in still} <= {"gc.score.bias"}


def test_plain_checkpoints_load_and_state_dicts_roundtrip() -> None:
    plain, model, x = residual_net(), residual_net(), image()
    insert(model, "se", position="residual", example=x)
    missing, unexpected = model.load_state_dict(plain.state_dict(), strict=False)
    assert unexpected == []
    assert all(".visattn.se" in key for key in missing)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other = residual_net()
    insert(other, "se", position="residual", example=x)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(other.eval()(x), model.eval()(x))


def test_deepcopy_uses_its_own_blocks() -> None:
    model, x = residual_net().eval(), image()
    insert(model, Doubled, position="residual", example=x, init="paper")
    twin = copy.deepcopy(model)
    assert torch.equal(twin(x), model(x))
    with torch.no_grad():
        twin.get_parameter("1.bn2.visattn.doubled.weight").fill_(7)
    assert not torch.equal(twin(x), model(x))
    assert not model.get_parameter("1.bn2.visattn.doubled.weight").any()


def test_training_modes_are_unchanged() -> None:
    model, x = residual_net(), image()
    model[1].eval()
    flags = {name: module.training for name, module in model.named_modules()}
    state = {key: value.clone() for key, value in model.state_dict().items()}
    insert(model, "cbam", position="residual", example=x)
    modes = {name: module.training for name, module in model.named_modules()}
    assert {name: modes[name] for name in flags} == flags
    assert not modes["1.bn2.visattn"]
    assert modes["3.bn2.visattn.cbam.norm"]
    assert all(torch.equal(model.state_dict()[key], value) for key, value in state.items())


def test_channels_last_modules_are_supported() -> None:
    model, x = net(Scaled(16), Scaled(24)).eval(), image()
    before = model(x)
    report = insert(model, "se", position="residual", example=x)
    assert [(s.name, s.channels, s.grid, s.channels_last) for s in report.sites] == [
        ("1.mlp", 16, (20, 28), True),
        ("3.mlp", 24, (10, 14), True),
    ]
    assert torch.equal(model(x), before)
    insert(model, Doubled, position="*.conv", example=x, init="paper")
    assert model.get_parameter("1.conv.visattn.doubled.weight").shape == (16,)


def test_block_in_a_sequential_runs_once() -> None:
    model, x = nn.Sequential(nn.Sequential(nn.Conv2d(3, 7, 1), nn.ReLU())), image()
    before = model(x)
    insert(model, Doubled, position="0", example=x, init="paper")
    assert torch.equal(model(x), 2 * before)
    assert list(dict(model[0].named_children())) == ["0", "1", "visattn"]


def test_several_blocks_are_applied_in_order() -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 7, 1)), image()
    before = model(x)
    plus = partial(create_block, "se", reduction=2)
    report = insert(model, [Doubled, plus, Doubled], position="0", example=x, init="paper")
    assert report.blocks == ("doubled", "se", "doubled2")
    block = model.get_submodule("0.visattn.se")
    assert isinstance(block, SqueezeExcite)
    torch.testing.assert_close(model(x), 2 * block(2 * before))


def test_shared_module_shares_its_block() -> None:
    shared = nn.Conv2d(7, 7, 1)
    model, x = nn.Sequential(nn.Conv2d(3, 7, 1), shared, nn.ReLU(), shared), image()
    insert(model, Doubled, position="1", example=x, init="paper")
    first = model[0](x)
    middle = (2 * nn.Conv2d.forward(shared, first)).relu()
    assert torch.equal(model(x), 2 * nn.Conv2d.forward(shared, middle))


def test_gradient_checkpointing_has_equal_gradients() -> None:
    plain, checkpointed, x = residual_net(), residual_net(checkpointed=True), image()
    for model in (plain, checkpointed):
        torch.manual_seed(3)
        insert(model, "se", position="residual", example=x, init="paper")
        one_step(model, x)
    for (name, p), (_, q) in zip(
        plain.named_parameters(), checkpointed.named_parameters(), strict=True
    ):
        torch.testing.assert_close(p.grad, q.grad, msg=name)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_blocks_have_the_dtype_of_the_model(dtype: torch.dtype) -> None:
    model, x = residual_net().to(dtype), image().to(dtype)
    insert(model, "se", position="residual", example=x)
    assert {p.dtype for p in model.parameters()} == {dtype}
    assert model(x).dtype == dtype


def test_identity_initialization_is_exact_under_autocast() -> None:
    model, x = residual_net().eval(), image()
    with torch.autocast("cpu", torch.bfloat16):
        before = model(x)
        insert(model, "cbam", position="residual", example=x)
        assert torch.equal(model(x), before)


def test_maps_of_inserted_blocks_are_recorded() -> None:
    model, x = residual_net(), image()
    insert(model, "cbam", position="residual", example=x)
    with record(model) as recording:
        model(x)
    assert [(m.site, tuple(m.values.shape)) for m in recording.maps[:2]] == [
        ("1.bn2.visattn.cbam.channel_tap", (2, 16)),
        ("1.bn2.visattn.cbam.spatial_tap", (2, 20, 28)),
    ]


def test_report_is_short() -> None:
    report = insert(residual_net(), "se", position="residual", example=image(), reduction=8)
    assert str(report).splitlines() == [
        "se at 2 sites: 255 parameters, 2 of which are identity scales",
        "  1.bn2  16 x 20 x 28",
        "  3.bn2  24 x 10 x 14",
    ]


@pytest.mark.parametrize(
    ("recipe", "reason"),
    [
        (
            create_block("se", 16),
            "pass its name, or a function .* got an instance of SqueezeExcite",
        ),
        (["se", nn.ReLU()], "got an instance of ReLU"),
        (lambda channels: channels, "must return a module for 16 channels, got int"),
    ],
)
def test_each_site_has_a_new_block(recipe: BlockSpec, reason: str) -> None:
    model = residual_net()
    with pytest.raises(TypeError, match=reason):
        insert(model, recipe, position="residual", example=image())
    assert not any("visattn" in key for key in model.state_dict())


def test_shape_changing_block_is_refused() -> None:
    model = residual_net()
    with pytest.raises(ValueError, match=r"must preserve the shape .* Conv2d after 1.bn2 returned"):
        insert(model, lambda c: nn.Conv2d(c, c, 3), position="residual", example=image())
    assert not any("visattn" in key for key in model.state_dict())


def test_shape_instead_of_an_example_is_refused() -> None:
    with pytest.raises(TypeError, match=r"must be an input tensor .*, got \(1, 3, 20, 28\)"):
        insert(residual_net(), "se", position="residual", example=(1, 3, 20, 28))


class TwoImages(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)

    def forward(self, x: Tensor, y: Tensor | None) -> Tensor:
        return self.conv(x if y is None else x + y)


class Detector(TwoImages):
    def forward(self, x: list[Tensor]) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.conv(torch.stack(x))


def test_an_example_may_be_a_list_of_arguments_or_of_images() -> None:
    x = image()
    for model, example in ((TwoImages(), [x, x]), (TwoImages(), [x, None]), (Detector(), [*x])):
        inserted = insert(model, "se", position="conv", example=example)
        assert [site.name for site in inserted.sites] == ["conv"]
        assert summary(model, example).macs == summary(model.conv, x).macs


def compiled() -> nn.Module:
    model = residual_net()
    model.compile(backend="eager")
    return model


@pytest.mark.parametrize(
    ("wrapped", "reason"),
    [
        (compiled, "is compiled"),
        (lambda: torch.compile(residual_net(), backend="eager"), "is compiled"),
        (
            lambda: nn.DataParallel(residual_net()),
            "is wrapped in DataParallel; insert into its mod",
        ),
    ],
)
def test_models_that_bypass_their_modules_are_refused(
    wrapped: Callable[[], nn.Module], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        insert(wrapped(), "se", position="residual", example=image())


@pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning")  # torch.jit.script is deprecated
def test_scripted_model_is_refused() -> None:
    scripted = cast("nn.Module", torch.jit.trace(nn.Conv2d(3, 3, 1), image()))
    with pytest.raises(ValueError, match="1 is scripted or traced"):
        insert(nn.Sequential(nn.ReLU(), scripted), "se", position="0", example=image())


def test_options_must_be_valid_for_every_block() -> None:
    model, x = residual_net(), image()
    with pytest.raises(ValueError, match="eca has no argument reduction"):
        insert(model, ["se", "eca"], position="residual", example=x, reduction=4)
    with pytest.raises(ValueError, match="did you mean sse"):
        insert(model, "ssse", position="residual", example=x)
    assert not any("visattn" in key for key in model.state_dict())
