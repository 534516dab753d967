"""Inserted blocks are removed without a trace, or baked into plain modules."""

import copy
from typing import Any

import pytest
import torch
from host_models import Doubled, Residual, Scaled, image, net, residual_net
from torch import nn
from torch.fx.experimental.optimization import fuse

from visattn.blocks.eca import ECA
from visattn.insertion.insertion import insert
from visattn.insertion.weights import bake, remove, unbake_state_dict
from visattn.recording.recorder import record


def everything(model: nn.Module) -> dict[str, Any]:
    """All state of a module, with metadata of tensors."""
    kept: dict[str, Any] = {}
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            inside = key in ("_parameters", "_buffers", "_modules")
            kept[f"{name}:{key}"] = (
                list(map(str, map(id, value.values()))) if inside else str(value)
            )
        kept[f"{name}:children"] = list(dict(module.named_children()))
    return kept


@pytest.mark.parametrize("baked", [False, True])
def test_remove_restores_the_model(baked: bool) -> None:
    model, x = net(Scaled(16), Residual(24)), image()
    model[3].register_forward_hook(lambda module, inputs, made: None)
    model[3].eval()
    before, output = everything(model), copy.deepcopy(model)(x)
    insert(model, "cbam", position="residual", example=x)
    insert(model, Doubled, position="stage_end", example=x, init="paper")
    if baked:
        bake(model)
    assert sorted(remove(model)) == ["1", "1.mlp", "3", "3.bn2"]
    after = everything(model)
    assert {
        key: (after.get(key), value) for key, value in before.items() if after.get(key) != value
    } == {}
    assert after.keys() == before.keys()
    assert torch.equal(model(x), output)
    with pytest.raises(ValueError, match="nothing was inserted into this Sequential"):
        remove(model)
    with pytest.raises(ValueError, match="nothing was inserted"):
        bake(model)


def test_blocks_of_one_kind_or_site_are_removed() -> None:
    x = image()

    def with_blocks(*blocks: Any) -> nn.Sequential:
        torch.manual_seed(5)
        model = residual_net().eval()
        if blocks:
            insert(model, list(blocks), position="residual", example=x, init="paper")
        return model

    alone = with_blocks("simam")
    for eca in ("eca", ECA):
        model = with_blocks("eca", "simam")
        assert remove(model, eca) == ["1.bn2", "3.bn2"]
        assert torch.equal(model(x), alone(x))
        assert model.state_dict().keys() == alone.state_dict().keys()
        assert remove(model, position=["3.bn2"]) == ["3.bn2"]
        assert remove(bake(model), position="1.*") == ["1.bn2"]
        assert everything(model).keys() == everything(with_blocks()).keys()
    model = with_blocks("eca", Doubled)
    assert remove(model, "doubled", position="1.bn2") == ["1.bn2"]
    listed = r"the model has 1.bn2 \(eca\), 3.bn2 \(eca \+ doubled\)"
    cases: list[tuple[dict[str, Any], str]] = [
        ({"block": "se"}, f"there is no se to remove; {listed}"),
        ({"position": ["1.bn2", "9"]}, f"there are no blocks at '9'; {listed}"),
        ({"position": "9.*"}, "there are no blocks at '9"),
        ({"block": Doubled, "position": "1.*"}, "there is no Doubled"),
    ]
    for options, reason in cases:
        with pytest.raises(ValueError, match=reason):
            remove(model, **options)


def test_a_frozen_network_stays_frozen_until_its_last_block_is_removed() -> None:
    model = residual_net()
    insert(model, ["eca", "se"], position="residual", example=image(), freeze=True)
    remove(model, "eca")
    frozen = {name for name, weight in model.named_parameters() if not weight.requires_grad}
    assert frozen == {name for name, _ in model.named_parameters() if "visattn" not in name}
    remove(model, "se")
    assert all(weight.requires_grad for weight in model.parameters())


def changed() -> nn.Sequential:
    """A model with blocks that change its output; `1.bn2` is a host."""
    model = residual_net().eval()
    torch.manual_seed(3)
    insert(model, "cbam", position="residual", example=image(), init="paper")
    return model


def test_fx_traces_baked_blocks_only() -> None:
    model, x = changed(), image()
    output = model(x)
    assert bake(model) is model
    assert torch.equal(model(x), output)
    traced = torch.fx.symbolic_trace(model)
    assert torch.equal(traced(x), output)
    targets = [node.target for node in traced.graph.nodes if "visattn" in str(node.target)]
    assert targets == ["1.bn2.visattn", "3.bn2.visattn"]
    with record(traced) as maps:
        traced(x)
    assert len(maps.maps) == 4


@pytest.mark.parametrize("at", ["residual", "stage_end"])
@pytest.mark.parametrize("baked", [False, True])
def test_traced_model_matches_also_at_hooked_sites(at: str, baked: bool) -> None:
    model, x = residual_net().eval(), image()
    insert(model, "cbam", position=at, example=x, init="paper")
    output = model(x)
    if baked:
        bake(model)
    traced = torch.fx.symbolic_trace(model)
    assert torch.equal(traced(x), output)
    nodes = [node.target for node in traced.graph.nodes if str(node.target).endswith(".visattn")]
    assert len(nodes) == (
        0 if at == "residual" and not baked else 2
    )  # fx traces a norm as one node


def test_batch_norm_folding_drops_hooks_and_keeps_baked_blocks() -> None:
    model, x = changed(), image()
    output = model(x)
    assert not torch.allclose(fuse(model)(x), output, atol=1e-4)
    bake(model)
    folded = fuse(model)
    assert "visattn" in dict(folded.get_submodule("1.bn2").named_children())
    torch.testing.assert_close(folded(x), output, rtol=1e-5, atol=1e-6)


def test_checkpoints_before_baking_load_after_it() -> None:
    model, x = changed(), image()
    output, state, plain = model(x), copy.deepcopy(model.state_dict()), residual_net().state_dict()
    baked = changed()
    bake(baked)
    nn.init.zeros_(baked.get_parameter("1.bn2.visattn.cbam.conv.weight"))
    assert str(baked.load_state_dict(state)) == "<All keys matched successfully>"
    assert torch.equal(baked(x), output)
    missing, unexpected = baked.load_state_dict(plain, strict=False)
    assert unexpected == []
    assert all(".visattn.cbam" in key for key in missing)


def test_checkpoints_after_baking_load_before_it() -> None:
    model, baked, x = changed(), changed(), image()
    bake(baked)
    nn.init.zeros_(baked.get_parameter("1.bn2.host.weight"))
    state = baked.state_dict()
    assert unbake_state_dict(state).keys() == model.state_dict().keys()
    model.load_state_dict(unbake_state_dict(state))
    assert torch.equal(model(x), baked(x))
    twin = changed()
    bake(twin)
    twin.load_state_dict(state)
    assert torch.equal(twin(x), baked(x))


def test_nested_hosts_keep_their_names() -> None:
    model, baked, x = changed(), changed(), image()
    for each in (model, baked):
        insert(each, Doubled, position="stage_end", example=x)
    bake(baked)
    baked.load_state_dict(model.state_dict())
    assert torch.equal(baked(x), model(x))
    assert "1.host.bn2.host.weight" in baked.state_dict()
    assert unbake_state_dict(baked.state_dict()).keys() == model.state_dict().keys()


def test_baked_host_forwards_attributes() -> None:
    model = changed()
    bake(model)
    host: Any = model.get_submodule("1.bn2")
    assert host.num_features == 16
    assert host.weight is host.host.weight
    with pytest.raises(AttributeError, match="no attribute 'wait'"):
        _ = host.wait
    assert torch.equal(copy.deepcopy(model)(image()), model(image()))


def test_shared_host_is_baked_everywhere() -> None:
    shared = nn.Conv2d(7, 7, 1)
    model, x = nn.Sequential(nn.Conv2d(3, 7, 1), shared, nn.ReLU(), shared), image()
    insert(model, Doubled, position="1", example=x, init="paper")
    output = model(x)
    bake(model)
    assert model[1] is model[3]
    assert torch.equal(model(x), output)
    remove(model)
    assert model[1] is model[3] is shared


def test_block_in_a_sequential_is_already_plain() -> None:
    model, x = nn.Sequential(nn.Sequential(nn.Conv2d(3, 7, 1))), image()
    insert(model, "se", position="0", example=x, init="paper")
    output, keys = model(x), list(model.state_dict())
    assert list(bake(model).state_dict()) == keys
    assert torch.equal(torch.fx.symbolic_trace(model)(x), output)


@pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning")  # torch.jit.script is deprecated
@pytest.mark.parametrize("block", ["se", nn.Hardtanh])
def test_scripting_a_model_with_blocks_is_refused_in_a_sentence(block: Any) -> None:
    model = residual_net()
    spec = block if isinstance(block, str) else lambda _: block()
    insert(model, spec, position="residual", example=image())
    with pytest.raises(TypeError, match=r"^torch.jit.script cannot compile .* outputs are equal$"):
        torch.jit.script(model)


def test_inserting_at_a_baked_site_is_refused() -> None:
    model = changed()
    bake(model)
    with pytest.raises(ValueError, match=r"1.bn2: it already has cbam"):
        insert(model, "se", position="residual", example=image())
