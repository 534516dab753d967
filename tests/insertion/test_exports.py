"""Models with inserted blocks export, compile and train in parallel."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from host_models import image, residual_net
from torch import distributed, nn
from torch.export import Dim, export
from torch.nn.parallel import DistributedDataParallel

from visattn.insertion.insertion import insert

BLOCKS = ("se", "cbam", "gc", "coordinate")


def changed(name: str) -> nn.Module:
    model = residual_net().eval()
    insert(model, name, position="residual", example=image(), init="paper")
    return model


@pytest.mark.compile
@pytest.mark.parametrize("name", BLOCKS)
def test_exports_with_any_batch_and_size(name: str) -> None:
    model, x = changed(name), image()
    program = export(
        model, (x,), dynamic_shapes=({0: Dim.DYNAMIC, 2: Dim.DYNAMIC, 3: Dim.DYNAMIC},)
    )
    larger = torch.randn(5, 3, 34, 22)
    for inputs in (x, larger):
        torch.testing.assert_close(program.module()(inputs), model(inputs), rtol=1e-5, atol=1e-6)


@pytest.mark.compile
def test_compiles_as_one_graph() -> None:
    model, x = changed("cbam"), image()
    insert(model, "se", position=["1", "3"], example=x)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-6)


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A process group of a single process, without a network."""
    distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    yield
    distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.usefixtures("alone")
def test_data_parallel_training_matches() -> None:
    models = residual_net(), residual_net()
    x = image()
    for model in models:
        torch.manual_seed(3)
        insert(model, "cbam", position="residual", example=x)
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
