"""FSDP2: each process keeps a shard of all weights, gradients, averages and optimizer states.

Weights are gathered layer by layer for the forward and backward pass. Checkpoints are those of a
single process: whole tensors, gathered one after another and written by rank 0.
"""

# pyright: reportPrivateImportUsage=false

from collections.abc import Iterable, Mapping
from datetime import timedelta
from itertools import chain
from typing import Any, cast

import torch
from lightning.pytorch.strategies import ModelParallelStrategy, Strategy, StrategyRegistry
from torch import Tensor, nn
from torch.distributed import DeviceMesh, ReduceOp, all_reduce, constants
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from visattn.models.saving.weight_files import all_finite

_CONTAINERS = (nn.ModuleList, nn.Sequential)


class FSDP2Strategy(ModelParallelStrategy):
    """FSDP2 over all processes, with the checkpoints of a single process: `fsdp2` by its name.

    Lightning's `ModelParallelStrategy` also splits single layers (tensor parallelism) and leaves
    checkpoints to pickle. Here a checkpoint is a file that any number of processes resumes from,
    and that `visattn overlay` and `visattn export` read.
    """

    def __init__(
        self,
        process_group_backend: str | None = None,
        timeout: timedelta | None = constants.default_pg_timeout,
    ) -> None:
        super().__init__(
            save_distributed_checkpoint=False,
            process_group_backend=process_group_backend,
            timeout=timeout,
        )

    @property
    def restore_checkpoint_after_setup(self) -> bool:
        """Whether weights are restored after `setup`; not here, as with DDP."""
        return False

    @property
    def lightning_restore_optimizer(self) -> bool:
        """Whether optimizers are restored by `load_optimizer_state_dict`."""
        return True

    def setup_environment(self) -> None:
        """Connect the processes; all of them share the data."""
        self._data_parallel_size = self.num_processes * self.num_nodes
        self._tensor_parallel_size = 1
        super().setup_environment()

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Return whole weights on rank 0, nothing elsewhere."""
        task = cast("nn.Module", self.lightning_module)
        return gather_state(task.state_dict(), keep=self.is_global_zero)

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Return whole states on rank 0, nothing elsewhere."""
        return gather_state(optimizer.state_dict(), keep=self.is_global_zero)

    def load_checkpoint(
        self, checkpoint_path: Any, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Return the content of a checkpoint, always with `weights_only=True`."""
        return Strategy.load_checkpoint(self, checkpoint_path, weights_only=True)

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Load weights; the task takes its shards of them."""
        Strategy.load_model_state_dict(self, checkpoint, strict=strict)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Load the states of the optimizers; each process takes its shards of them."""
        for optimizer, state in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            optimizer.load_state_dict(shard_optimizer_state(state, optimizer))


StrategyRegistry.register("fsdp2", FSDP2Strategy, description="FSDP2 over all processes")


def check_shardable(task: Any, *, compiled: bool = False, channels_last: bool = False) -> None:
    """Refuse a task that cannot be trained with FSDP2.

    Example:
        >>> check_shardable(nn.ReLU())
        Traceback (most recent call last):
        ValueError: trainer.strategy fsdp2 must be ddp for ReLU: ...
    """
    refused = ""
    if not getattr(task, "can_shard", False):
        refused = f"must be ddp for {type(task).__name__}: only ClassificationTask is sharded"
    elif norms := [
        name
        for name, module in task.named_modules()
        if isinstance(module, _BatchNorm) and module.training and module.track_running_stats
    ]:
        refused = (
            f"needs a classifier without trained batch norm, got {type(task.model).__name__} with "
            f"{norms[0]}: each process has its own running statistics; use ddp, or freeze_bn"
        )
    elif compiled or channels_last:
        option = "compile no" if compiled else "channels_last false"
        refused = f"needs {option}: weights are split by rows, layer by layer; use ddp"
    if refused:
        raise ValueError(f"trainer.strategy fsdp2 {refused}")


def repeated_layers(model: nn.Module) -> list[nn.Module]:
    """Return the layers of a network that are sharded one by one.

    They are the innermost modules with children of their own in a `ModuleList` or `Sequential`,
    such as the layers of a transformer or the residual units of a CNN.

    Example:
        >>> layer = nn.TransformerEncoderLayer(4, 2)
        >>> encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        >>> model = nn.Sequential(nn.Linear(4, 4), encoder)
        >>> [type(layer).__name__ for layer in repeated_layers(model)]
        ['TransformerEncoderLayer', 'TransformerEncoderLayer', 'TransformerEncoderLayer']
    """
    layers: list[nn.Module] = []
    for module in model.modules():
        if isinstance(module, _CONTAINERS):
            layers += [child for child in module.children() if _is_layer(child)]
    return layers


def _is_layer(module: nn.Module) -> bool:
    """Return whether a module has parameters and children, but holds no layers itself."""
    if isinstance(module, _CONTAINERS) or not list(module.children()):
        return False
    # Where stages hold blocks in a list, the blocks are the layers, and not the stages.
    containers = (inner for inner in module.modules() if isinstance(inner, _CONTAINERS))
    nested = any(_is_layer(child) for container in containers for child in container.children())
    return not nested and any(True for _ in module.parameters())


def shard_model(model: nn.Module, mesh: DeviceMesh, forward: str) -> None:
    """Shard the layers of a network, and the rest of it, in place.

    It is moved to the device of the mesh, layer by layer. `forward` is the method that training
    calls beside the one of this name.
    """
    for layer in repeated_layers(model):
        fully_shard(layer, mesh=mesh)
    # Weights that stayed whole after a forward pass without gradients would miss an average.
    fully_shard(model, mesh=mesh, reshard_after_forward=True)
    register_fsdp_forward_method(model, forward)


def local_shards(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return the part of each tensor that this process has; whole tensors as they are.

    Example:
        >>> local_shards([torch.ones(2)])
        [tensor([1., 1.])]
    """
    return [
        cast("DTensor", tensor.detach()).to_local() if isinstance(tensor, DTensor) else tensor
        for tensor in tensors
    ]


def all_shards_finite(tensors: list[Tensor]) -> bool:
    """Return whether all tensors are finite in all processes, which call this alike if sharded.

    Example:
        >>> all_shards_finite([torch.tensor([1.0, torch.nan])])
        False
    """
    finite = all_finite(local_shards(tensors))
    sharded = next((tensor for tensor in tensors if isinstance(tensor, DTensor)), None)
    if sharded is None:
        return finite
    agreed = torch.tensor(float(finite), device=sharded.device)
    all_reduce(agreed, ReduceOp.MIN)
    return bool(agreed)


def gather_state(state: Any, *, keep: bool) -> Any:
    """Return nested mappings and lists with whole tensors, on the CPU where they were sharded.

    All processes call this alike; those that do not `keep` the result get an empty one.

    Example:
        >>> gather_state({"weights": [torch.ones(1)], "step": 7}, keep=True)
        {'weights': [tensor([1.])], 'step': 7}
    """
    if isinstance(state, DTensor):
        # All processes have to take part, also those that keep nothing.
        whole = cast("DTensor", state.detach()).full_tensor()
        return whole.cpu() if keep else None
    if isinstance(state, Mapping):
        items = [(name, gather_state(value, keep=keep)) for name, value in state.items()]
        return dict(items) if keep else {}
    if isinstance(state, list | tuple):
        values = [gather_state(value, keep=keep) for value in state]
        return type(state)(values) if keep else []
    return state


def shard_state(state: Mapping[str, Any], module: nn.Module) -> dict[str, Any]:
    """Return whole weights as the shards that a module has; without shards, as they are.

    Example:
        >>> shard_state({"weight": torch.ones(1)}, nn.PReLU())
        {'weight': tensor([1.])}
    """
    own = dict(module.named_parameters())
    return {name: _shard_like(value, own.get(name)) for name, value in state.items()}


def shard_optimizer_state(state: Mapping[str, Any], optimizer: Optimizer) -> dict[str, Any]:
    """Return the whole state of an optimizer with the shards of this process.

    Example:
        >>> optimizer = torch.optim.SGD([torch.ones(1)], lr=0.1)
        >>> shard_optimizer_state(optimizer.state_dict(), optimizer)["state"]
        {}
    """
    numbers = chain.from_iterable(group["params"] for group in state["param_groups"])
    weights = chain.from_iterable(group["params"] for group in optimizer.param_groups)
    # An optimizer with other groups is refused by its own `load_state_dict`.
    weight_of = dict(zip(numbers, weights, strict=False))
    sharded = {
        number: {name: _shard_like(value, weight_of.get(number)) for name, value in parts.items()}
        for number, parts in state["state"].items()
    }
    return {**state, "state": sharded}


def _shard_like(value: Any, weight: Tensor | None) -> Any:
    """Return a whole tensor as a shard, if it has the shape of a sharded weight."""
    if not isinstance(weight, DTensor) or not isinstance(value, Tensor):
        return value
    # The state of an optimizer also has numbers, such as the step, which each process has whole.
    if isinstance(value, DTensor) or value.shape != weight.shape:
        return value
    # Each process has read the whole tensor, so that none is sent.
    mesh = weight.device_mesh
    placements = weight.placements
    return distribute_tensor(value.to(weight.device), mesh, placements, src_data_rank=None)
