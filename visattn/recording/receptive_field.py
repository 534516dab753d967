"""Receptive fields by arithmetic: where the cells of every activation lie on the network's input.

A run of the model is watched operation by operation. Beside each tensor goes the center of what an
element sees, as a linear function of its index. For the y axis of an image of 64 x 96 pixels:

    image          [b, 3, 64, 96]   y = 0.5 + 1 i        i is the index along the third axis
    3 x 3, /2, p 1 [b, 8, 32, 48]   y = 0.5 + 2 i        half a pixel of its input further up
    flatten(2)     [b, 8, 1536]     y = 0.5 + 2 (n // 48)   n splits into 32 rows of 48
    cat(class, n)  [b, 1537, 8]     the same, behind one token that lies nowhere

Elementwise operations and normalization pass the rule on, matrix products keep the rows of the
tokens that ask, pooling to one cell ends it. Since only shapes and strides count, the model runs on
meta tensors, which hold no numbers, wherever it can.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.weak import WeakTensorKeyDictionary

from visattn.geometry.placement import GridPlacement
from visattn.recording.frozen import first_weight, without_grad
from visattn.recording.module_calls import probing
from visattn.recording.outputs import (
    OutputLayout,
    argument_tensors,
    detect_output_layout,
    output_tensors,
)
from visattn.recording.position_rules import (
    RULES,
    Line,
    Lines,
    Operation,
    Run,
    broadcast,
    joined,
    moves,
    pair,
    pass_on,
    pointwise,
    slid,
    steps,
    still,
)

_NOWHERE: Lines = (None, None)
_SAME_SHAPE = frozenset(
    {"relu", "hardtanh", "silu", "gelu", "sigmoid", "hardswish", "hardsigmoid", "leaky_relu", "elu",
     "_softmax", "mish", "tanh"}
)  # fmt: skip
_ATTENTION = frozenset(
    {"_softmax", "_safe_softmax", "_native_multi_head_attention", "_transformer_encoder_layer_fwd"}
)
_ARITHMETIC = frozenset({"add", "mul", "sub", "div", "add_", "mul_"})
_NORMS = frozenset(
    {"native_batch_norm", "_native_batch_norm_legit_no_training", "native_layer_norm",
     "native_group_norm"}
)  # fmt: skip


def _shape_only(name: str, args: Sequence[Any]) -> Any:
    """Return the output of the most frequent operations on meta tensors; None for all others.

    It is what the operation returns, in a tenth of the time that torch's shape functions take.
    """
    if name.endswith("_") and name[:-1] in _SAME_SHAPE:
        return args[0]
    if name in _SAME_SHAPE:
        return torch.empty_like(args[0])
    if name in _NORMS:
        return torch.empty_like(args[0]), None, None
    if name in _ARITHMETIC:
        first, second = args[:2]
        if not isinstance(first, Tensor) or not first.is_floating_point():
            return None
        if isinstance(second, Tensor) and first.dtype != second.dtype:
            return None
        if isinstance(second, Tensor) and first.shape != second.shape:
            if name.endswith("_"):
                return None
            shape = torch.broadcast_shapes(first.shape, second.shape)
            return torch.empty(shape, dtype=first.dtype, device="meta")
        return first if name.endswith("_") else torch.empty_like(first, device="meta")
    if name in ("mm", "bmm", "addmm"):
        left, right = args[-2:] if name != "addmm" else args[1:3]
        shape = (*left.shape[:-1], right.shape[-1])
        return torch.empty(shape, dtype=left.dtype, device="meta")
    if name == "cat":
        tensors = args[0]
        first = tensors[0]
        axis = args[1] % first.ndim if len(args) > 1 and first.ndim else 0
        if any(tensor.ndim != first.ndim or tensor.dtype != first.dtype for tensor in tensors):
            return None
        shape = list(first.shape)
        shape[axis : axis + 1] = [sum(tensor.shape[axis] for tensor in tensors)]
        return torch.empty(shape, dtype=first.dtype, device="meta")
    if name == "convolution" and not args[6]:
        image = args[0]
        weight = args[1]
        count = weight.ndim - 2
        spatial = [
            (side + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
            for side, kernel, stride, padding, dilation in zip(
                image.shape[-count:],
                weight.shape[2:],
                *(pair(option, count) for option in args[3:6]),
                strict=True,
            )
        ]
        shape = (*image.shape[: -count - 1], weight.shape[0], *spatial)
        return torch.empty(shape, dtype=image.dtype, device="meta")
    return None


def _checked(line: Line | None, output: Tensor) -> Line | None:
    """Return a line that fits its tensor; None if it does not, or if nothing moves."""
    if line is None or len(line.axes) != output.ndim:
        return None
    for index, size in enumerate(output.shape):
        axis = line.axes[index]
        if prod(run.size for run in axis) != size:
            if moves(axis):
                return None
            line = line.with_axis(index, still(size))
    return line if line.moves else None


@dataclass(frozen=True, eq=False)
class TracedTensor:
    """Shape and centers of a tensor of numbers."""

    shape: tuple[int, ...]
    lines: Lines


@dataclass(eq=False)
class ModuleTrace:
    """One call of a module: centers of what goes in and out, and of attention inside.

    Args:
        attention: Of queries and of keys, in the order in which attention is computed.
        arguments: Tensors of numbers among its arguments.
        output: Its output, or the first of several; None if that is no tensor of numbers.
    """

    inputs: list[Lines]
    outputs: list[Lines]
    attention: list[tuple[Lines, Lines]]
    arguments: list[TracedTensor]
    output: TracedTensor | None = None


class PositionTracer(TorchDispatchMode):
    """Carries centers through the operations of one run.

    Args:
        meta: Whether tensors that meet meta tensors are replaced by meta tensors of their shape.
    """

    def __init__(self, *, meta: bool = False) -> None:
        super().__init__()
        self.meta = meta
        self.lines: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
        self.twins: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
        self.attention: list[tuple[Lines, Lines]] = []
        self.input_size = (1, 1)
        self.attends = False

    def start(self, images: Tensor) -> None:
        """Give the pixels of the images their centers."""
        self.input_size = (images.shape[-2], images.shape[-1])
        y, x = (Run(size, 1.0) for size in images.shape[-2:])
        others = tuple(map(still, images.shape[:-2]))
        rows, columns = map(still, images.shape[-2:])
        vertical = Line(0.5, (*others, joined([y]), columns))
        horizontal = Line(0.5, (*others, rows, joined([x])))
        self.lines[images] = (vertical, horizontal)

    def placement(self, tensor: Tensor, grid: tuple[int, int]) -> GridPlacement | None:
        """Return where the cells of a tensor lie on the images; None if that was lost."""
        return _placement(self.of(tensor), grid, self.input_size)

    def of(self, tensor: Any) -> Lines:
        """Return the centers of a tensor along y and x."""
        lines = self.lines.get(tensor) if isinstance(tensor, Tensor) else None
        return _NOWHERE if lines is None else lines

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operation, and note the centers of its outputs."""
        kwargs = kwargs or {}
        name = str(func.overloadpacket.__name__)
        tensors = argument_tensors(args)
        output = None
        if self.meta and any(tensor.is_meta for tensor in tensors):
            output = _shape_only(name, args)
            if output is None:
                args, kwargs = self._on_meta(args, kwargs)
        if output is None:
            output = func(*args, **kwargs)
        attends = name in _ATTENTION or name.startswith("_scaled_dot_product")
        if attends and tensors[0].ndim > 2:  # not the softmax of class scores
            self.attends = True
        if not any(tensor in self.lines for tensor in tensors):
            return output
        outputs = output if isinstance(output, (list, tuple)) else [output]
        results = [output for output in outputs if isinstance(output, Tensor)]
        self._note_attention(name, args)
        traced = self._trace(func, name, args, kwargs, results)
        for tensor, lines in zip(results, traced, strict=False):
            if any(lines):
                self.lines[tensor] = lines
            else:
                self.lines.pop(tensor, None)
        return output

    def _trace(
        self, func: Any, name: str, args: tuple[Any, ...], kwargs: Any, results: list[Tensor]
    ) -> list[Lines]:
        in_place = name.endswith("_") and not name.startswith("_")
        rule = RULES.get(name)
        if rule is None and in_place:
            rule = RULES.get(name.rstrip("_"))
        if rule is None and torch.Tag.pointwise in func.tags:  # torch says so of its operations
            rule = pointwise
        if rule is None and name.startswith("_scaled_dot_product"):
            rule = pass_on
        if name == "copy_":
            return [self._copied(args[0], args[1])]
        if rule is None or not results:
            return [_NOWHERE] * len(results)
        axes: list[list[Line | None]] = []
        for axis in (0, 1):
            lines = rule(
                Operation(lambda tensor, axis=axis: self.of(tensor)[axis], args, kwargs, results)
            )
            axes.append(
                [_checked(line, result) for line, result in zip(lines, results, strict=False)]
            )
        return list(zip(*axes, strict=True))

    def _copied(self, target: Tensor, source: Tensor) -> Lines:
        """Return the centers of a tensor that another was copied to, also into its whole buffer."""
        lines = [line and broadcast(line, target.shape) for line in self.of(source)]
        base = target._base  # noqa: SLF001 - the only way to know what a view is a view of
        # `buffer[:, 1:] = tokens` writes into a part of a buffer whose rest lies nowhere; the
        # offset in memory tells which part.
        if base is not None and base.ndim == target.ndim and base.stride() == target.stride():
            offset = int(target.storage_offset() - base.storage_offset())
            whole: list[Line | None] = list(lines)
            for axis, stride in enumerate(base.stride()):
                before, offset = divmod(offset, int(stride)) if stride else (0, offset)
                size = base.shape[axis]
                whole = [
                    line and slid(line, axis, size, kernel=1, stride=1, before=before)
                    for line in whole
                ]
            self.lines[base] = (whole[0], whole[1])
        return lines[0], lines[1]

    def traced(self, tensor: Any) -> TracedTensor | None:
        """Return shape and centers of a tensor of numbers; None for anything else."""
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            return None
        return TracedTensor(tuple(tensor.shape), self.of(tensor))

    def _note_attention(self, name: str, args: tuple[Any, ...]) -> None:
        """Note the centers of queries, and of the values that are averaged: those of the keys."""
        if name.startswith("_scaled_dot_product"):
            queries, values = args[0], args[2]
        elif name in ("bmm", "baddbmm", "matmul"):
            queries, values = args[:2] if name != "baddbmm" else args[1:3]
        else:
            return
        lines = self.of(values)
        if any(line and moves(line.axes[-2]) for line in lines):
            self.attention.append((self.of(queries), lines))

    def _on_meta(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        kwargs = {name: arg for name, arg in kwargs.items() if name != "device"}
        if all(tensor.is_meta for tensor in argument_tensors((*args, *kwargs.values()))):
            return args, kwargs
        return tree_map_only(Tensor, self._twin, (args, kwargs))

    def _twin(self, tensor: Tensor) -> Tensor:
        """Return a meta tensor in place of one with values."""
        if tensor.is_meta:
            return tensor
        if tensor not in self.twins:
            twin = torch.empty_strided(
                tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta"
            )
            self.twins[tensor] = twin
        return self.twins[tensor]


class TracedGrids:
    """Where the activations of a model lie on its input, module by module.

    Args:
        calls: The calls of each module, in order.
        input_size: Height and width of the input.
        error: Why nothing could be traced; "" if it was.
        attends: Whether the model computes a softmax that may be attention.
        by_shapes: Whether the model ran without reading a number, so that its way does not depend
            on the image.
        scores: Where the class scores are in the output of the model.
    """

    def __init__(
        self,
        calls: dict[str, list[ModuleTrace]],
        input_size: tuple[int, int],
        error: str = "",
        *,
        attends: bool = False,
        by_shapes: bool = False,
        scores: OutputLayout | None = None,
    ) -> None:
        self.calls = calls
        self.input_size = input_size
        self.error = error
        self.attends = attends
        self.by_shapes = by_shapes
        self.scores = scores or OutputLayout()

    def output(
        self, site: str, grid: tuple[int, int], *, call: int | None = None
    ) -> GridPlacement | None:
        """Return where the output of a module lies; None if its centers could not be followed.

        Args:
            call: Which of its calls, from 1; None for the last.
        """
        calls = self.calls.get(site, [])
        if not calls or (call is not None and call > len(calls)):
            return None
        outputs = calls[(call or 0) - 1].outputs
        return _placement(outputs[0], grid, self.input_size) if outputs else None

    def input(self, site: str, grid: tuple[int, int]) -> GridPlacement | None:
        """Return where the first input of the last call of a module lies; None if that was lost."""
        inputs = [call.inputs for call in self.calls.get(site, [])[-1:]]
        return _placement(inputs[0][0], grid, self.input_size) if inputs and inputs[0] else None

    def keys(self, site: str, grid: tuple[int, int]) -> GridPlacement | None:
        """Return where the keys of attention lie that is computed in a module, or around a tap."""
        name = site
        while True:
            for call in self.calls.get(name, [])[-1:]:
                # Weights of shifted windows are recorded at the places before the roll.
                unrolled = (
                    [line and replace(line, rolled=0.0) for line in lines]
                    for _, lines in call.attention
                )
                placements = [_placement((y, x), grid, self.input_size) for y, x in unrolled]
                known = [placement for placement in placements if placement]
                if known:
                    return known[-1]
            if not name:
                return None
            name = name.rpartition(".")[0]


def _placement(
    lines: Lines, grid: tuple[int, int], input_size: tuple[int, int]
) -> GridPlacement | None:
    """Return the placement of a grid; None if the tensor has another grid, or its place is lost.

    An axis with a single cell covers the whole input.
    """
    if any(line and line.rolled for line in lines):
        return None
    starts: list[float] = []
    steps: list[float] = []
    for line, count, side in zip(lines, grid, input_size, strict=True):
        step = float(side) if count == 1 and line is None else _step(line, count)
        if step is None:
            return None
        starts.append(side / 2 if line is None else line.start)
        steps.append(step)
    (top, bottom), (left, right) = (
        (0.0, float(side)) if line is None else (max(line.reach[0], 0), min(line.reach[1], side))
        for line, side in zip(lines, input_size, strict=True)
    )
    y, x = (0.0 if line is None else line.spread for line in lines)
    return GridPlacement.from_centers(
        (starts[0], starts[1]),
        (steps[0], steps[1]),
        grid,
        input_size,
        visible=(left, top, right, bottom),
        spread=(y, x),
    )


def _step(line: Line | None, count: int) -> float | None:
    """Return the distance of neighbors on a line with so many positions; None if it has others."""
    runs = [run for axis in line.axes for run in steps(axis) if run.step] if line else []
    ordered = sorted(runs, key=lambda run: abs(run.step), reverse=True)
    parts = joined(ordered)
    if len(parts) != 1:  # parts of axes, such as windows, that do not fit together
        return None
    [part] = parts
    return part.step if isinstance(part, Run) and part.size == count else None


def trace_grids(
    model: nn.Module, forward: Callable[[Tensor], Any], shape: Sequence[int]
) -> TracedGrids:
    """Return where the activations of a model lie on its input, from one run.

    The run takes place on meta tensors, which cost no arithmetic; a model that reads the numbers of
    its activations runs on zeros instead.

    Args:
        model: The model, in any mode; it is restored.
        forward: Calls it with images.
        shape: Of the images, `[b c y x]`, or of clips; rows and columns are the last two axes.

    Example:
        >>> model = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.MaxPool2d(2), nn.Flatten())
        >>> traced = trace_grids(model, model, (2, 3, 16, 24))
        >>> traced.output("0", (8, 12)).extent
        (-0.5, -0.5, 23.5, 15.5)
        >>> traced.output("1", (4, 6)).shift((4, 6))
        (-0.125, -0.125)
    """
    weight = first_weight(model)
    input_size = (shape[-2], shape[-1])
    errors: list[str] = []
    for meta in (True, False):
        calls: dict[str, list[ModuleTrace]] = {}
        device = "meta" if meta else weight.device
        tracer = PositionTracer(meta=meta)
        with (
            # In inference mode operations arrive undivided, and views do not know their base.
            torch.inference_mode(mode=False),
            without_grad(model),
            probing(),
            _noting_calls(model, tracer, calls),
        ):
            batch = torch.zeros(tuple(shape), dtype=weight.dtype, device=device)
            tracer.start(batch)
            try:
                with tracer:
                    output = forward(batch)
            except Exception as error:  # noqa: BLE001 - whatever the user's model raises
                errors.append(f"{type(error).__name__}: {error}")
                continue
        outputs = [tracer.of(tensor) for tensor in output_tensors(output)]
        calls.setdefault(
            "", [ModuleTrace([], outputs, tracer.attention, [])]
        )  # `forward` need not call the model
        scores = detect_output_layout(output, shape[0])
        return TracedGrids(calls, input_size, attends=tracer.attends, by_shapes=meta, scores=scores)
    return TracedGrids({}, input_size, errors[-1])


@contextmanager
def _noting_calls(
    model: nn.Module, tracer: PositionTracer, calls: dict[str, list[ModuleTrace]]
) -> Iterator[None]:
    """Note the centers of the outputs of each module, and of the keys of its attention."""
    begun: list[tuple[int, list[Lines]]] = []
    with ExitStack() as stack:
        for site, module in model.named_modules():

            def enter(_: nn.Module, args: Any) -> None:
                inputs = [tracer.of(tensor) for tensor in output_tensors(args)]
                begun.append((len(tracer.attention), inputs))

            def leave(_: nn.Module, args: Any, kwargs: Any, output: Any, site: str = site) -> None:
                first, inputs = begun.pop() if begun else (len(tracer.attention), [])
                outputs = [tracer.of(tensor) for tensor in output_tensors(output)]
                passed = [tracer.traced(arg) for arg in (*args, *kwargs.values())]
                arguments = [tensor for tensor in passed if tensor is not None]
                tensor = output[0] if isinstance(output, tuple) and output else output
                call = ModuleTrace(
                    inputs, outputs, tracer.attention[first:], arguments, tracer.traced(tensor)
                )
                calls.setdefault(site, []).append(call)

            stack.callback(module.register_forward_pre_hook(enter).remove)
            stack.callback(module.register_forward_hook(leave, with_kwargs=True).remove)
        yield
