"""One run of a model, watched: what each module returned, what was added to what."""

from collections.abc import Callable, Generator, Mapping, MutableMapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

from visattn.insertion.feature_layout import Grid, grid_of, last_after, last_by_shape
from visattn.insertion.graft import InsertedBlock, modules_of
from visattn.insertion.resolutions import Features, ResolutionTracker
from visattn.insertion.trace_records import Addition, Lineage, Output, Trace

Example = Tensor | tuple[Any, ...]

# Functions by the name under which torch reports them, and through which features stay the same
# but for a scale or the order of their axes.
_ADDITIONS = frozenset({"add", "add_", "__add__", "__radd__", "__iadd__"})
_PASSING = frozenset(
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
def resting(model: nn.Module) -> Generator[None]:
    """Hold a model in evaluation mode, without gradients; it comes back as it was."""
    flags = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        with torch.no_grad():
            yield
    finally:
        for module, flag in flags:
            module.training = flag


def run(model: nn.Module, example: Example) -> None:
    """Run a model on an example: a tensor, or a tuple of all that it takes."""
    model(*example) if isinstance(example, tuple) else model(example)


def trace(model: nn.Module, example: Example) -> Trace:
    """Run a model once, in evaluation mode and without gradients, and return what was seen.

    Raises:
        TypeError: If there is no tensor in the example.
    """
    given = [leaf for leaf in tree_leaves(example) if isinstance(leaf, Tensor)]
    if not given:
        raise TypeError(
            "the example must be a tensor that the model takes, such as torch.zeros(1, 3, 224, 224)"
            f", or a tuple of all its arguments, got {example!r:.60}"
        )
    image = next(((x.shape[2], x.shape[3]) for x in given if x.ndim == 4), None)
    watch = _Watch(Trace(image), example)
    with ExitStack() as stack:
        stack.enter_context(resting(model))
        for name, module in modules_of(model, ours=False).items():
            enter, leave = watch.hooks(name)
            stack.enter_context(_hooked(module, enter, leave))
        for module in model.modules():
            if isinstance(module, InsertedBlock):
                stack.enter_context(_hooked(module, watch.mute, watch.unmute))
        stack.enter_context(watch)
        run(model, example)
    watch.trace.changes = watch.sizes.changes
    return watch.trace


@contextmanager
def _hooked(
    module: nn.Module, enter: Callable[..., None], leave: Callable[..., None]
) -> Generator[None]:
    handles = (module.register_forward_pre_hook(enter), module.register_forward_hook(leave))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class _Watch(TorchFunctionMode):
    """Follow features from operation to operation, and from module to module."""

    def __init__(self, trace: Trace, example: Example) -> None:
        super().__init__()
        self.trace = trace
        self.lineages = cast("MutableMapping[Tensor, Lineage]", WeakTensorKeyDictionary())
        for leaf in tree_leaves(example):
            if isinstance(leaf, Tensor):
                self.lineages[leaf] = Lineage(0, last=False)
        self.running: list[str] = []
        # Modules without parts that hand features on, dropped, scaled or turned, and no more.
        self.carriers: set[str] = set()
        self.sizes = ResolutionTracker()
        self.clock = 0
        self.muted = 0

    def mute(self, *_: object) -> None:
        """What goes on inside an inserted block is not the model's."""
        self.muted += 1

    def unmute(self, *_: object) -> None:
        """The block has ended."""
        self.muted -= 1

    def hooks(self, name: str) -> tuple[Callable[..., None], Callable[..., None]]:
        """Return what is to be called before and after the forward of a module."""

        def enter(module: nn.Module, given: object) -> None:
            self.running.append(name)
            took = [self._features(*each) for each in self._known(given)]
            sequential = isinstance(module, nn.Sequential)
            self.sizes.enter(name, took, self.clock, sequential=sequential)

        def leave(module: nn.Module, given: object, output: object) -> None:
            self.running.pop()
            self.clock += 1
            shape = tuple(output.shape) if isinstance(output, Tensor) else ()
            took = self.sizes.leave(self._grid_of(output), shape, self.clock)
            source = next((each.hosts for each in took if each.grid), ())
            seen = replace(self._described(output), order=self.clock, source=source)
            self.trace.outputs.setdefault(name, []).append(seen)
            if not name and isinstance(output, Tensor) and output in self.lineages:
                self.trace.made = self.lineages[output].modules
            if isinstance(output, Tensor):
                known = self._known(given)
                unseen = Lineage(1 + max((line.depth for _, line in known), default=-1))
                line = self.lineages.get(output, unseen)
                if line.modules and not any(True for _ in module.children()):
                    self.carriers.add(name)
                modules = (*line.modules, name)
                self.lineages[output] = replace(line, modules=modules, near=modules)

        return enter, leave

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a function of torch and note where its results come from."""
        known = self._known((args, kwargs or {}))
        result = func(*args, **(kwargs or {}))
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        if known and made:
            self.clock += 1
            name = getattr(func, "__name__", "")
            line = known[0][1]
            if not self.muted:
                self._note_addition(name, args[:2], {id(x): line for x, line in known})
                self._note_size(name, (known[0][0], *args[1:]), line, made[0])
                if made[0].ndim == 4 and name in _JOINS:
                    self.sizes.note_join(whole=name not in _ADDITIONS)
            came = Lineage(
                depth=1 + max(line.depth for _, line in known),
                modules=line.modules if name in _PASSING and len(known) == 1 else (),
                last=last_after(name, args, line.last),
                near=line.near if len(known) == 1 and made[0].shape == known[0][0].shape else (),
            )
            for tensor in made:
                self.lineages[tensor] = came
        return result

    def _known(self, given: object) -> list[tuple[Tensor, Lineage]]:
        """Return the tensors that come from the input, each with the way it came."""
        tensors = [leaf for leaf in tree_leaves(given) if isinstance(leaf, Tensor)]
        return [(x, self.lineages[x]) for x in tensors if x in self.lineages]

    def _note_addition(
        self, name: str, summands: tuple[Any, ...], known: dict[int, Lineage]
    ) -> None:
        lines = [known.get(id(x)) for x in summands]
        if name not in _ADDITIONS or len(lines) < 2 or lines[0] is None or lines[1] is None:
            return
        first, second = cast("tuple[Tensor, Tensor]", summands)
        if first.ndim == 4 and first.shape == second.shape and lines[0].depth != lines[1].depth:
            self.sizes.added.append((self.clock, self.running[-1] if self.running else ""))
            longer = max(lines[0], lines[1], key=lambda line: line.depth)
            inside = f"{self.running[-1]}." if self.running and self.running[-1] else ""
            hosts = [host for host in longer.modules if host.startswith(inside)]
            self.trace.additions.append(
                Addition(
                    self._kept(hosts), tuple(self.running), self._grid(first, longer), self.clock
                )
            )

    def _note_size(self, name: str, given: tuple[Any, ...], line: Lineage, made: Tensor) -> None:
        x = cast("Tensor", given[0])
        if name in _CONVOLUTIONS or name == "linear":
            self.trace.weighted = self.clock
        before = self._grid(x, line) if x.ndim == 4 else (1, 1)
        if before == (1, 1):
            return
        after = self._grid(made, line) if made.ndim == 4 else None
        if name in _CONVOLUTIONS and after is not None:
            self.trace.convolved.append((after, self.clock))
            weight = given[1] if len(given) > 1 else None
            dense = isinstance(weight, Tensor) and weight.ndim == 4 and max(weight.shape[2:]) > 1
            dense = dense and isinstance(weight, Tensor) and weight.shape[1] == x.shape[1]
            self.sizes.convolved.append((self.clock, dense))
        features = self._features(x, line)
        if after == (1, 1) or (after is None and (name == "mean" or made.ndim == 2)):
            if features.hosts:
                self.trace.pooled[before] = (features.hosts, self.clock)
        elif after is not None and name in _RESIZERS:
            self.sizes.note(features, after, self.clock)

    def _features(self, x: Tensor, line: Lineage) -> Features:
        """Return what is known of a tensor."""
        grid = self._grid(x, line) if x.ndim == 4 else None
        hosts = tuple(host for host in line.near if host not in self.carriers) or line.near
        return Features(tuple(x.shape), grid, hosts, bool(line.modules), line.depth)

    def _grid_of(self, output: object) -> Grid | None:
        if not isinstance(output, Tensor) or output.ndim != 4:
            return None
        return self._grid(output, self.lineages.get(output, Lineage(0)))

    def _grid(self, x: Tensor, line: Lineage) -> Grid:
        return grid_of(tuple(x.shape), last=self._last(x, line))

    def _last(self, x: Tensor, line: Lineage) -> bool | None:
        """Return whether channels come last, from what made them or else from their shape."""
        return last_by_shape(tuple(x.shape), self.trace.image) if line.last is None else line.last

    def _described(self, output: object) -> Output:
        if not isinstance(output, Tensor):
            return Output(type(output).__name__)
        line = self.lineages.get(output, Lineage(0))
        last = self._last(output, line) if output.ndim == 4 else None
        return Output(
            "Tensor", tuple(output.shape), last, output.is_floating_point(), output.device
        )

    def _kept(self, hosts: Sequence[str]) -> str | None:
        """Return the last of these that is more than a carrier, or the last of all."""
        return next((host for host in reversed(hosts) if host not in self.carriers), None) or (
            hosts[-1] if hosts else None
        )
