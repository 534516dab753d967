"""Models with inserted blocks export, compile and train in parallel."""

from pathlib import Path

import pytest
import torch
from host_models import image, residual_net
from torch import distributed, nn
from torch.export import Dim, export
from torch.nn.parallel import DistributedDataParallel

from visattn.insertion.insertion import insert


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


@pytest.mark.slow
def test_data_parallel_training_matches(tmp_path: Path) -> None:
    store = f"file://{tmp_path}/store"
    distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    models, x = (residual_net(), residual_net()), image()
    for model in models:
        torch.manual_seed(3)
        insert(model, "cbam", example=x)
    parallel = DistributedDataParallel(models[0])
    for model in (parallel, models[1]):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            model(x).square().sum().backward()
            optimizer.step()
    for p, q in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(p, q)
    with pytest.raises(ValueError, match="insert into the module of DistributedDataParallel"):
        insert(parallel, "se", position="**.conv1", example=x)
    distributed.destroy_process_group()
