"""Insertion keeps outputs, weights and names, exports, compiles, and is undone without a trace."""

import copy
import io
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import timm
import torch
import torchvision.models as vision
from host_models import Doubled, image, residual_net
from timm.optim._param_groups import param_groups_layer_decay
from torch import Tensor, nn
from torch.export import Dim, export
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from visattn.blocks.registry import create_block
from visattn.blocks.squeeze_excite import SqueezeExcite
from visattn.insertion.cost import summary
from visattn.insertion.insertion import insert, remove
from visattn.insertion.with_block import InsertedBlock

TIMM = "byobnet convnext efficientnet efficientnet_gn efficientnet_ln mambaout nfnet resnet"
CNNS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    **{name: (partial(timm.create_model, f"test_{name}"), "stage_end") for name in TIMM.split()},
    "densenet": (partial(timm.create_model, "densenet121", block_config=(2, 2), growth_rate=4), ""),
    "resnet18": (vision.resnet18, "layer?"),
    "shufflenet": (vision.shufflenet_v2_x0_5, "stage*"),
    "squeezenet": (vision.squeezenet1_1, "features.*"),
}


def everything(model: nn.Module) -> dict[str, Any]:
    """All state of a module, with the identity of its tensors and modules."""
    kept: dict[str, Any] = {}
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            inside = key in ("_parameters", "_buffers", "_modules")
            kept[f"{name}:{key}"] = [*map(id, value.values())] if inside else str(value)
        kept[f"{name}:children"] = list(dict(module.named_children()))
    return kept


@pytest.mark.parametrize("name", CNNS)
def test_any_cnn_keeps_outputs_and_weights_and_gets_everything_back(name: str) -> None:
    torch.manual_seed(1)
    make, ends = CNNS[name]
    model, x = make().eval(), torch.randn(2, 3, 64, 96)
    plain = copy.deepcopy(model)
    before, output = everything(model), plain(x)
    residual = name in ("byobnet", "convnext", "mambaout", "nfnet", "resnet", "resnet18")
    for block, position in (("se", "residual" if residual else ends), ("cbam", ends)):
        report = insert(model, block, position=position or "stage_end", example=x[:1])
        assert report.num_identity_scales == len(report.sites) > 0
        with torch.no_grad():
            assert torch.equal(model(x), output)
        state = model.state_dict()
        assert [key for key in state if ".visattn." not in key] == list(plain.state_dict())
        assert not model.load_state_dict(plain.state_dict(), strict=False).unexpected_keys
        model.load_state_dict(state)
        if not residual:  # both at the same sites, one after the other
            remove(model)
    remove(model)
    assert everything(model) == before


def one_step(model: nn.Module, x: Tensor) -> set[str]:
    """Compute gradients of a loss of five classes; return which weights of blocks have one."""
    model.zero_grad()
    cross_entropy(model(x), torch.arange(len(x)) % 5).backward()
    named = [(name, p.grad) for name, p in model.named_parameters() if ".visattn." in name]
    return {name for name, grad in named if grad is not None and grad.any()}


@pytest.mark.parametrize("name", ["se", "cbam", "coordinate", "simam", "gc", "nonlocal", "botnet"])
def test_every_parameter_changes_by_the_second_step(name: str) -> None:
    model, x = residual_net(), image()
    # A norm over two units is constant, and a single unit may never be active.
    options: dict[str, Any] = {"reduction": 2} if name in ("se", "cbam", "gc") else {}
    report = insert(model, name, example=x, **options)
    assert report.num_identity_scales == (0 if name in ("gc", "nonlocal") else 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    moved = one_step(model, x)
    names = {name for name, _ in model.named_parameters() if ".visattn." in name}
    assert {name for name in names if name.endswith("_scale")} <= moved
    optimizer.step()
    # A softmax is invariant to a constant added to all scores.
    still = names - one_step(model, x)
    assert {key.rpartition(".visattn.")[2] for key in still} <= {"gc.score.bias"}


def test_old_and_new_keys_of_a_host_load() -> None:
    model, x = residual_net(), image()
    insert(model, "se", example=x)
    wrapped = dict(model.named_parameters())
    assert "1.bn2.host.weight" in wrapped
    for keys in (wrapped, model.state_dict()):
        other = residual_net()
        insert(other, "se", example=x)
        assert not other.load_state_dict(keys, strict=False).unexpected_keys
        assert torch.equal(other.eval()(x), model.eval()(x))


def test_copies_use_their_own_blocks() -> None:
    model, x = residual_net().eval(), image()
    insert(model, Doubled, example=x, init="paper")
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for twin in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        assert torch.equal(twin(x), model(x))
        with torch.no_grad():
            twin.get_parameter("1.bn2.visattn.doubled.weight").fill_(7)
        assert not torch.equal(twin(x), model(x))
    assert torch.equal(nn.DataParallel(model)(x), model(x))


def test_several_blocks_are_applied_in_order() -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 7, 1)), image()
    before = model(x)
    plus = partial(create_block, "se", reduction=2)
    report = insert(model, [Doubled, plus, Doubled], position="0", example=x, init="paper")
    assert report.blocks == ("doubled", "se", "doubled2")
    assert (
        str(report)
        == "doubled + se + doubled2 at 1 sites: 66 parameters, 0 identity scales\n  0  7 x 20 x 28"
    )
    block = model.get_submodule("0.visattn.se")
    assert isinstance(block, SqueezeExcite)
    torch.testing.assert_close(model(x), 2 * block(2 * before))
    scaled = InsertedBlock({"doubled": Doubled(7)}, ["doubled"])
    nn.init.constant_(scaled.get_parameter("doubled_scale"), 0.75)
    torch.testing.assert_close(scaled(before), before + 0.75 * (2 * before - before))


def test_shared_module_shares_its_block() -> None:
    shared = nn.Conv2d(7, 7, 1)
    model, x = nn.Sequential(nn.Conv2d(3, 7, 1), shared, nn.ReLU(), shared), image()
    first = model[0](x)
    expected = 2 * shared((2 * shared(first)).relu())
    insert(model, Doubled, position="1", example=x, init="paper")
    assert torch.equal(model(x), expected)
    remove(model)
    assert model[1] is model[3] is shared


class Wide(nn.Identity):
    """A block that returns another dtype, as one may under autocast."""

    def forward(self, x: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return x.double()


def test_blocks_have_dtype_and_mode_of_their_host() -> None:
    for dtype in (torch.bfloat16, torch.float64):
        model, x = residual_net().to(dtype), image().to(dtype)
        model[1].eval()
        insert(model, "se", example=x)
        assert {p.dtype for p in model.parameters()} == {dtype}
        modes = {name: module.training for name, module in model.named_modules()}
        assert (modes["1.bn2.visattn"], modes["3.bn2.visattn.se"]) == (False, True)
    model, x = residual_net().eval(), image()
    with torch.autocast("cpu", torch.bfloat16):
        before = model(x)
        insert(model, "cbam", example=x)
        assert torch.equal(model(x), before)
    insert(model, lambda _: Wide(1), position="[13].conv?", example=x, init="paper")
    assert torch.equal(model(x), residual_net().eval()(x))


def test_blocks_run_where_children_run_one_by_one() -> None:
    stages: Any = timm.create_model("test_convnext", num_classes=5)
    first = stages.stages[0].blocks[0]
    insert(stages, Doubled, position="stages.*.blocks", init="paper")
    assert stages.stages[0].blocks[0] is first  # an item of the host
    x = torch.randn(2, 3, 64, 64)
    expected = stages(x)
    stages.set_grad_checkpointing()  # it runs the children of `blocks` one by one
    assert torch.equal(stages(x), expected)


def test_layer_decay_of_timm_scales_a_block_as_its_host() -> None:
    plain = timm.create_model("test_resnet")
    model = copy.deepcopy(plain)
    insert(model, "se")

    def scales(network: Any) -> dict[int, float]:
        groups = param_groups_layer_decay(network, layer_decay=0.5)
        return {id(p): group["lr_scale"] for group in groups for p in group["params"]}

    scale, expected = scales(model), scales(plain)
    hosts = [p for name, p in model.named_parameters() if ".visattn." not in name]
    assert [scale[id(p)] for p in hosts] == [expected[id(p)] for p in plain.parameters()]
    unit = model.get_submodule("layer1.0.bn2")
    assert len({scale[id(p)] for p in unit.parameters()}) == 1


class Detector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)

    def forward(self, images: list[Tensor], more: Tensor | None = None) -> Tensor:
        x = torch.stack(images) if isinstance(images, list) else images
        return self.conv(x if more is None else x + more)


def test_an_example_is_any_input() -> None:
    x = image()
    for example in ([x, x], (x, None), [*x]):
        model = Detector()
        inserted = insert(model, "se", position="conv", example=example)
        assert [site.name for site in inserted.sites] == ["conv"]
        assert summary(model, example).macs == summary(model.conv, x).macs


def test_models_tell_the_size_of_their_input() -> None:
    for model, grid in (
        (vision.resnet18(), (56, 56)),
        (timm.create_model("test_resnet"), (40, 40)),
    ):
        assert insert(model, "eca", position="layer1").sites[0].grid == grid


def parallel() -> nn.Module:
    """Return what its constructor makes where processes run."""
    made = DistributedDataParallel.__new__(DistributedDataParallel)
    nn.Module.__init__(made)
    return made


CASES: list[tuple[Callable[[], Any], str]] = [
    (lambda: insert(parallel(), "se"), "before wrapping the model in DistributedDataParallel"),
    (lambda: insert(residual_net(), "se"), "the input size is unknown; pass .*example="),
    (
        lambda: insert(residual_net(), lambda c: nn.Conv2d(c, c, 3), example=image()),
        "must preserve the shape of its input, but conv2d after 1.bn2 returned",
    ),
    (
        lambda: insert(residual_net(), "se", example=image(), freeze=True, trainable=["fc"]),
        "trainable must name modules .* 'fc' matches none; its modules are 0, 1",
    ),
]


@pytest.mark.parametrize(("call", "reason"), CASES)
def test_refusals(call: Callable[[], Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        call()


def test_a_refused_insertion_leaves_the_model_as_it_was() -> None:
    class Kept(nn.Module):
        """It reaches its convolution by a list that is no module list."""

        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 1)
            self.parts = [self.conv]

        def forward(self, x: Tensor) -> Tensor:
            return self.parts[0](x)

    model = Kept()
    before = everything(model)
    with pytest.raises(ValueError, match="after conv: the model calls it through another"):
        insert(model, "se", position="conv", example=image())
    assert everything(model) == before


def changed(name: str) -> nn.Module:
    model = residual_net().eval()
    insert(model, name, example=image(), init="paper")
    return model


@pytest.mark.compile
@pytest.mark.parametrize("name", ["se", "cbam", "gc", "coordinate"])
def test_exports_with_any_batch_and_size(name: str) -> None:
    model, x = changed(name), image()
    sizes = ({0: Dim.DYNAMIC, 2: Dim.DYNAMIC, 3: Dim.DYNAMIC},)
    program = export(model, (x,), dynamic_shapes=sizes).module()
    for inputs in (x, torch.randn(5, 3, 34, 22)):
        torch.testing.assert_close(program(inputs), model(inputs), rtol=1e-5, atol=1e-6)


@pytest.mark.compile
def test_compiles_as_one_graph() -> None:
    model, x = changed("cbam"), image()
    insert(model, "se", position=["1", "3"], example=x)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-6)
