"""Trace of a model run: module outputs, residual additions and resolution changes."""

from collections.abc import Callable, Generator, Mapping, MutableMapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

from visattn.insertion.inserted_block import InsertedBlock, named_modules
from visattn.insertion.resolutions import (
    FeatureMap,
    Grid,
    ResolutionChange,
    ResolutionTracker,
    channels_last_after,
    infer_channels_last,
    spatial_size,
)


@dataclass(frozen=True)
class ModuleOutput:
    """Output of a module in one call; without a shape if it is not a tensor.

    Args:
        type_name: `Tensor`, or the name of another type.
        channels_last: Whether features are channels-last; None if unknown.
        order: End of the call in the order of all operations and calls of the run.
        source: Modules that returned the input features, outermost last.
    """

    type_name: str
    shape: tuple[int, ...] = ()
    channels_last: bool | None = None
    is_floating_point: bool = False
    device: torch.device | None = None
    order: int = 0
    source: tuple[str, ...] = ()

    @property
    def grid(self) -> Grid:
        """Height and width of the features."""
        return spatial_size(self.shape, channels_last=self.channels_last)


@dataclass(frozen=True)
class Provenance:
    """Origin of a tensor in the run.

    Args:
        depth: Number of operations on the longest path from the input.
        modules: Modules that returned the tensor, outermost last.
        channels_last: Whether it is channels-last; None if unknown.
        nearest: Like `modules`, but looking through functions of one input, such as activations.
    """

    depth: int
    modules: tuple[str, ...] = ()
    channels_last: bool | None = None
    nearest: tuple[str, ...] = ()


@dataclass(frozen=True)
class Addition:
    """Residual addition: two feature maps of different depth are added, which ends a branch.

    Args:
        branch: Module whose output is the deeper summand; None if there is none.
        within: Running modules, outermost first.
        order: Position in the order of all operations and calls of the run.
    """

    branch: str | None
    within: tuple[str, ...]
    grid: Grid
    order: int = 0


@dataclass
class Trace:
    """Record of one model run.

    Args:
        image_size: Height and width of the example, if it is an image.
        changes: Resolution changes on the main path, in order.
        pooled: For each size, the modules whose output was last pooled to 1 x 1 or flattened, and
            the order of that operation.
        output_modules: Modules that returned the output of the model, outermost last.
    """

    image_size: Grid | None
    outputs: dict[str, list[ModuleOutput]] = field(default_factory=dict[str, list[ModuleOutput]])
    additions: list[Addition] = field(default_factory=list[Addition])
    changes: list[ResolutionChange] = field(default_factory=list[ResolutionChange])
    pooled: dict[Grid, tuple[tuple[str, ...], int]] = field(
        default_factory=dict[Grid, tuple[tuple[str, ...], int]]
    )
    convolutions: list[tuple[Grid, int]] = field(default_factory=list[tuple[Grid, int]])
    last_weighted: int = 0
    output_modules: tuple[str, ...] = ()


Example = Tensor | tuple[Any, ...] | list[Any]
"""Example input: a tensor, or all arguments as a tuple or a list."""

# Torch functions by name. Pass-through functions only scale features or permute their axes.
_ADDITIONS = frozenset({"add", "add_", "__add__", "__radd__", "__iadd__"})
_PASS_THROUGH = frozenset(
    {"mul", "mul_", "multiply", "__mul__", "__rmul__", "__imul__", "permute", "movedim"}
    | {"transpose", "contiguous", "to", "clone", "dropout"}
)
_CONVOLUTIONS = frozenset({"conv2d", "conv_transpose2d"})
_RESIZERS = _CONVOLUTIONS | {
    *("max_pool2d", "_max_pool2d", "max_pool2d_with_indices", "avg_pool2d", "lp_pool2d"),
    *("interpolate", "upsample", "pixel_shuffle", "pixel_unshuffle", "grid_sample", "max_unpool2d"),
}
_JOINS = _ADDITIONS | {"cat", "concat", "concatenate"}


@contextmanager
def modes_restored(model: nn.Module) -> Generator[None]:
    """Put a model into evaluation mode; restore the mode of each of its modules afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        if any(mode for _, mode in modes):
            model.eval()
        yield
    finally:
        for module, mode in modes:
            if module.training != mode:  # to set an attribute of a module takes long
                module.training = mode


def run_model(model: nn.Module, example: Example) -> None:
    """Call a model with an example input."""
    single = isinstance(example, Tensor) or is_image_list(example)
    model(example) if single else model(*example)


def is_image_list(example: Example) -> bool:
    """Return whether a list holds images without a batch axis: one argument, as of detectors.

    Example:
        >>> is_image_list([torch.zeros(3, 5, 7)]), is_image_list([torch.zeros(1, 3, 5, 7)])
        (True, False)
    """
    return isinstance(example, list) and all(getattr(x, "ndim", 0) == 3 for x in example)


def check_example(example: Example) -> list[Tensor]:
    """Return the tensors of an example input.

    Raises:
        TypeError: If there is none.
    """
    inputs = [leaf for leaf in tree_leaves(example) if isinstance(leaf, Tensor)]
    if not inputs:
        raise TypeError(
            "the example must be an input tensor of the model, such as torch.zeros(1, 3, 224, 224)"
            f", or a tuple or list of all its arguments, got {example!r:.60}"
        )
    return inputs


def trace_model(model: nn.Module, example: Example) -> Trace:
    """Run a model once, in evaluation mode and without gradients, and return its trace.

    Raises:
        TypeError: If the example contains no tensor.
    """
    inputs = check_example(example)
    image = next(((x.shape[2], x.shape[3]) for x in inputs if x.ndim == 4), None)
    mode = _TraceMode(Trace(image), example)
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(modes_restored(model))
        for name, module in named_modules(model, include_inserted=False).items():
            enter, leave = mode.hooks(name)
            stack.enter_context(_hooks(module, enter, leave))
        for module in model.modules():
            if isinstance(module, InsertedBlock):
                stack.enter_context(_hooks(module, mode.pause, mode.resume))
        stack.enter_context(mode)
        run_model(model, example)
    mode.trace.changes = mode.resolutions.changes
    return mode.trace


@contextmanager
def _hooks(
    module: nn.Module, enter: Callable[..., None], leave: Callable[..., None]
) -> Generator[None]:
    handles = (module.register_forward_pre_hook(enter), module.register_forward_hook(leave))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class _TraceMode(TorchFunctionMode):
    """Track the origin of tensors through operations and modules."""

    def __init__(self, trace: Trace, example: Example) -> None:
        super().__init__()
        self.trace = trace
        self.provenances = cast("MutableMapping[Tensor, Provenance]", WeakTensorKeyDictionary())
        for leaf in tree_leaves(example):
            if isinstance(leaf, Tensor):
                self.provenances[leaf] = Provenance(0, channels_last=False)
        self.running: list[str] = []
        # Leaf modules that only pass features on: dropout, scaling, permutation.
        self.passthrough: set[str] = set()
        self.resolutions = ResolutionTracker()
        self.clock = 0
        self.paused = 0

    def pause(self, *_: object) -> None:
        """Stop tracing at the start of an inserted block."""
        self.paused += 1

    def resume(self, *_: object) -> None:
        """Continue tracing at the end of an inserted block."""
        self.paused -= 1

    def hooks(self, name: str) -> tuple[Callable[..., None], Callable[..., None]]:
        """Return the forward pre-hook and forward hook of a module."""

        def enter(module: nn.Module, inputs: object) -> None:
            self.running.append(name)
            features = [self._feature_map(*tracked) for tracked in self._tracked_tensors(inputs)]
            sequential = isinstance(module, nn.Sequential)
            self.resolutions.enter(name, features, self.clock, sequential=sequential)

        def leave(module: nn.Module, inputs: object, output: object) -> None:
            self.running.pop()
            self.clock += 1
            shape = tuple(output.shape) if isinstance(output, Tensor) else ()
            features = self.resolutions.leave(self._output_size(output), shape, self.clock)
            source = next((feature_map.hosts for feature_map in features if feature_map.grid), ())
            module_output = replace(self._describe_output(output), order=self.clock, source=source)
            self.trace.outputs.setdefault(name, []).append(module_output)
            if not name and isinstance(output, Tensor) and output in self.provenances:
                self.trace.output_modules = self.provenances[output].modules
            if isinstance(output, Tensor):
                tracked = self._tracked_tensors(inputs)
                # What no traced function returned, such as the result of foreign code, begins a
                # line of its own.
                new_origin = Provenance(1 + max((line.depth for _, line in tracked), default=-1))
                line = self.provenances.get(output, new_origin)
                # A leaf whose output still counts as that of another module has only passed it on.
                if line.modules and not any(True for _ in module.children()):
                    self.passthrough.add(name)
                modules = (*line.modules, name)
                self.provenances[output] = replace(line, modules=modules, nearest=modules)

        return enter, leave

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a torch function and record the origin of its results."""
        tracked = self._tracked_tensors((args, kwargs or {}))
        result = func(*args, **(kwargs or {}))
        results = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        if tracked and results:
            self.clock += 1
            name = getattr(func, "__name__", "")
            line = tracked[0][1]
            # Blocks that stand in the model already are no part of it: their sums are no residuals.
            if not self.paused:
                self._record_addition(name, args[:2], {id(x): line for x, line in tracked})
                self._record_resolution(name, (tracked[0][0], *args[1:]), line, results[0])
                if results[0].ndim == 4 and name in _JOINS:
                    self.resolutions.record_join(concatenated=name not in _ADDITIONS)
            origin = Provenance(
                depth=1 + max(line.depth for _, line in tracked),
                modules=line.modules if name in _PASS_THROUGH and len(tracked) == 1 else (),
                channels_last=channels_last_after(name, args, line.channels_last),
                nearest=line.nearest
                if len(tracked) == 1 and results[0].shape == tracked[0][0].shape
                else (),
            )
            for tensor in results:
                self.provenances[tensor] = origin
        return result

    def _tracked_tensors(self, inputs: object) -> list[tuple[Tensor, Provenance]]:
        """Return the tensors that derive from the input, each with its origin."""
        tensors = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor)]
        return [(x, self.provenances[x]) for x in tensors if x in self.provenances]

    def _record_addition(
        self, name: str, summands: tuple[Any, ...], tracked: dict[int, Provenance]
    ) -> None:
        lines = [tracked.get(id(x)) for x in summands]
        if name not in _ADDITIONS or len(lines) < 2 or lines[0] is None or lines[1] is None:
            return
        first, second = cast("tuple[Tensor, Tensor]", summands)
        # What ends a residual branch is not its name but its shape in the run: x + f(x), where one
        # summand was computed by more operations than the other. The longer one is the branch, and
        # a block stands after the module that returned it:
        #
        #     x --+--> conv1 -> bn1 -> relu -> conv2 -> bn2 -[block]-> + -> relu
        #         '----------------------------------------------------^
        #
        # Sums of equal depth are fusions (of two inputs, of a pyramid), which end no branch.
        if first.ndim == 4 and first.shape == second.shape and lines[0].depth != lines[1].depth:
            self.resolutions.additions.append(
                (self.clock, self.running[-1] if self.running else "")
            )
            longer = max(lines[0], lines[1], key=lambda line: line.depth)
            inside = f"{self.running[-1]}." if self.running and self.running[-1] else ""
            hosts = [host for host in longer.modules if host.startswith(inside)]
            self.trace.additions.append(
                Addition(
                    self._branch_module(hosts),
                    tuple(self.running),
                    self._spatial_size(first, longer),
                    self.clock,
                )
            )

    def _record_resolution(
        self, name: str, inputs: tuple[Any, ...], line: Provenance, results: Tensor
    ) -> None:
        x = cast("Tensor", inputs[0])
        if name in _CONVOLUTIONS or name == "linear":
            self.trace.last_weighted = self.clock
        if x.ndim != 4 or (before := self._spatial_size(x, line)) == (1, 1):
            return
        after = self._spatial_size(results, line) if results.ndim == 4 else None
        if name in _CONVOLUTIONS and after is not None:
            self.trace.convolutions.append((after, self.clock))
            weight = inputs[1] if len(inputs) > 1 else None
            dense = isinstance(weight, Tensor) and weight.ndim == 4 and max(weight.shape[2:]) > 1
            dense = dense and isinstance(weight, Tensor) and weight.shape[1] == x.shape[1]
            self.resolutions.convolutions.append((self.clock, dense))
        features = self._feature_map(x, line)
        if after == (1, 1) or (after is None and (name == "mean" or results.ndim == 2)):
            if features.hosts:
                self.trace.pooled[before] = (features.hosts, self.clock)
        elif after is not None and name in _RESIZERS:
            self.resolutions.record_change(features, after, self.clock)

    def _feature_map(self, x: Tensor, line: Provenance) -> FeatureMap:
        """Return the feature map metadata of a tensor."""
        grid = self._spatial_size(x, line) if x.ndim == 4 else None
        hosts = tuple(host for host in line.nearest if host not in self.passthrough) or line.nearest
        return FeatureMap(tuple(x.shape), grid, hosts, bool(line.modules), line.depth)

    def _output_size(self, output: object) -> Grid | None:
        if not isinstance(output, Tensor) or output.ndim != 4:
            return None
        return self._spatial_size(output, self.provenances.get(output, Provenance(0)))

    def _spatial_size(self, x: Tensor, line: Provenance) -> Grid:
        return spatial_size(tuple(x.shape), channels_last=self._is_channels_last(x, line))

    def _is_channels_last(self, x: Tensor, line: Provenance) -> bool | None:
        """Return whether a tensor is channels-last, by its origin or else its shape."""
        return (
            infer_channels_last(tuple(x.shape), self.trace.image_size)
            if line.channels_last is None
            else line.channels_last
        )

    def _describe_output(self, output: object) -> ModuleOutput:
        if not isinstance(output, Tensor):
            return ModuleOutput(type(output).__name__)
        line = self.provenances.get(output, Provenance(0))
        last = self._is_channels_last(output, line) if output.ndim == 4 else None
        return ModuleOutput(
            "Tensor", tuple(output.shape), last, output.is_floating_point(), output.device
        )

    def _branch_module(self, hosts: Sequence[str]) -> str | None:
        """Return the last module that is not a pass-through, or the last of all."""
        return next((host for host in reversed(hosts) if host not in self.passthrough), None) or (
            hosts[-1] if hosts else None
        )
