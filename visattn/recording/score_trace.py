"""One run of a model with gradients: how its scores are computed from the image.

    image ... layer outputs, attention ... scores
          <-- gradients of a random mixture of the scores

A gradient of zero is exact: nothing leads from there to the scores.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.overrides import TorchFunctionMode

from visattn.blocks.tap import Tap
from visattn.recording.attention_call import AttentionCall
from visattn.recording.frozen import with_grad
from visattn.recording.interception import (
    attention_calls,
    in_this_run,
    tapped_attention,
)
from visattn.recording.model_info import FeatureLayer
from visattn.recording.outputs import (
    OutputLayout,
    class_scores,
    detect_output_layout,
    output_tensors,
)
from visattn.recording.places import CellStrides
from visattn.recording.probe import Probe
from visattn.recording.score_evidence import reaches

_PASS_THROUGH = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
_IMAGE_VECTORS = ("image_embeds", "pooler_output")
_DETACHING = (Tensor.detach, torch.detach)
_NUMBERS = (Tensor.__float__, Tensor.__int__, Tensor.__complex__, Tensor.__index__, Tensor.numpy)
_UNKEPT = frozenset({*_DETACHING, *_NUMBERS, torch._C._set_grad_enabled})  # noqa: SLF001


class GradientsKept(TorchFunctionMode):
    """Keeps in the graph what a model detaches, or computes without gradients.

    Args:
        zeros: Weights that pass nothing on, as those of a head before training; random numbers
            take their place.
    """

    def __init__(self, zeros: Iterable[Tensor] = ()) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(2)
        self.used = False
        self.instead: dict[int, Any] = {
            id(weight): torch.randn(weight.shape, generator=random).to(weight) for weight in zeros
        }

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run a torch function."""
        kwargs = kwargs or {}
        if torch.is_grad_enabled() and not self.instead and func not in _UNKEPT:
            return func(*args, **kwargs)
        detaches = func in _DETACHING
        if detaches or not torch.is_grad_enabled():
            tensors = chain(args, kwargs.values())
            self.used |= any(isinstance(each, Tensor) and each.requires_grad for each in tensors)
        if detaches:
            return args[0]
        if func is torch._C._set_grad_enabled:  # noqa: SLF001
            return func(*args)
        if func in _NUMBERS:  # torch warns of what the model detached
            args = (args[0].detach(), *args[1:])
        if self.instead:
            args = tuple(self.instead.get(id(each), each) for each in args)
            kwargs = {name: self.instead.get(id(each), each) for name, each in kwargs.items()}
        with torch.inference_mode(mode=False), torch.enable_grad():
            return func(*args, **kwargs)


@dataclass(eq=False)
class LayerOutput:
    """Output of a module that runs once.

    Args:
        edge: Its tensor in the autograd graph.
        source: The input of the module there.
        version: Version counter of the tensor when the module returned it.
        layer: How it lies on the image; None if it does not, or that was not asked for.
    """

    site: str
    module: nn.Module
    edge: GradientEdge
    source: GradientEdge | None
    tensor: Tensor
    version: int
    layer: FeatureLayer | None = None

    @property
    def unmodified(self) -> bool:
        """Whether no in-place operation overwrote it."""
        return self.tensor._version == self.version  # noqa: SLF001


@dataclass(eq=False)
class TracedCall:
    """One attention call.

    Args:
        site: Qualified name of its module.
        index: Number of earlier calls of the module.
        edge: A tensor that is computed row by row from the attention weights.
        axis: Its axis of queries, counted from the end; None if it has none, as after pooling.
        num_outputs: Number of layer outputs before it.
    """

    site: str
    index: int
    edge: GradientEdge
    axis: int | None
    num_outputs: int


@dataclass(eq=False)
class Trace:
    """What one run told; without scores, none of them has a gradient.

    Args:
        outputs: Of modules that run once, in order.
        scores: The scores, or other outputs if the model has none.
        vectors: The scores, or else the vector that stands for the image; () if there are neither.
        layout: Where the class scores are in the output.
        detached: Whether the model detaches a tensor that depends on the image.
        attends: Whether there is attention, of a kind that can be recorded or not.
        whole: Whether its first convolution got the image as it is.
        strides: Pixels from one cell of a map to the next.
    """

    image: Tensor
    outputs: list[LayerOutput] = field(default_factory=list)
    calls: list[TracedCall] = field(default_factory=list)
    scores: Sequence[Tensor] = ()
    vectors: Sequence[Tensor] = ()
    layout: OutputLayout = field(default_factory=OutputLayout)
    detached: bool = False
    attends: bool = False
    whole: bool | None = None
    strides: CellStrides = field(default_factory=CellStrides)

    def place(self, probe: Probe) -> None:
        """Note how the outputs lie on the image."""
        for output in self.outputs:
            output.layer = probe.once(output.site)

    def add_call(self, site: str, index: int, tensor: Tensor, axis: int | None) -> None:
        """Keep an attention call."""
        if tensor.grad_fn is not None:
            edge = get_gradient_edge(tensor)
            self.calls.append(TracedCall(site, index, edge, axis, len(self.outputs)))

    def bypassed(self, *edges: GradientEdge) -> bool:
        """Whether a path leads from the image to the scores that avoids some tensors."""
        scores = map(get_gradient_edge, self.scores)
        return reaches(scores, get_gradient_edge(self.image), edges)


def gradients_of(scores: Sequence[Tensor], edges: Sequence[GradientEdge]) -> list[Tensor | None]:
    """Return gradients of a random mixture of scores."""
    if not edges or not scores:
        return [None] * len(edges)
    random = torch.Generator().manual_seed(1)
    mixture = [torch.randn(each.shape, generator=random).to(each) for each in scores]
    return list(
        torch.autograd.grad(
            list(scores), list(edges), mixture, retain_graph=True, allow_unused=True
        )
    )


@dataclass(frozen=True, eq=False)
class ScoreTracer:
    """Runs of a model with gradients.

    Args:
        forward: Calls the model on normalized images.
        num_classes: Number of classes, if it decides which of several outputs the scores are.
    """

    model: nn.Module
    forward: Callable[[Tensor], Any]
    num_classes: int | None = None

    def kept(self, image: Tensor, *, unzeroed: bool = False) -> Trace:
        """Return a run in which all gradients are kept; with random numbers for weights of zero."""
        weights = self.model.parameters() if unzeroed else ()
        mode = GradientsKept(weight for weight in weights if not bool(weight.any()))
        with mode:
            trace = self.run(image)
        trace.detached = mode.used
        return trace

    def run(self, image: Tensor) -> Trace:
        """Run the model on one image as it is."""
        trace, ran = Trace(with_grad(image)), Counter[str]()

        sites = {module: site for site, module in self.model.named_modules()}

        def on_output(module: nn.Module, args: Any, output: Any) -> None:
            ran[site := sites[module]] += 1
            with torch._C.DisableTorchFunction():  # noqa: SLF001 - nothing that the model computes
                if trace.whole is None and isinstance(module, nn.Conv2d) and args:
                    trace.whole = torch.equal(args[0], trace.image)
                tensor = output[0] if isinstance(output, tuple) and output else output
                # layers that pass on what they get would hide the layer that computed it
                if isinstance(module, _PASS_THROUGH) or not isinstance(tensor, Tensor):
                    return
                if tensor.grad_fn is not None:
                    edge, version = get_gradient_edge(tensor), tensor._version  # noqa: SLF001
                    output = LayerOutput(site, module, edge, _source(args), tensor, version)
                    trace.outputs.append(output)

        def on_call(call: AttentionCall) -> None:
            trace.attends = True
            if not call.unsupported:
                trace.add_call(call.site, call.index, *call.traced)

        with ExitStack() as stack:
            for site, module in tapped_attention(self.model):
                hook = in_this_run(partial(_on_tap, site, trace))
                stack.callback(module.register_forward_hook(hook).remove)
            stack.enter_context(attention_calls(self.model, on_call))
            stack.enter_context(trace.strides.watching(self.model))
            hook = in_this_run(on_output)
            for module in sites:
                stack.callback(module.register_forward_hook(hook).remove)
            output = self.forward(trace.image.clone())  # which may be changed in place
        taps = (each for each in self.model.modules() if isinstance(each, Tap))
        trace.attends |= any(
            each.kind in ("tokens", "queries") or each.unsupported for each in taps
        )
        once = [ran[each.site] == 1 for each in trace.outputs]
        for call in trace.calls:
            call.num_outputs = sum(once[: call.num_outputs])
        trace.outputs = [each for each, alone in zip(trace.outputs, once, strict=True) if alone]
        trace.layout = detect_output_layout(output, len(image), self.num_classes)
        scores, vector = _scores_in(output, trace.layout)
        trace.scores, trace.vectors = _with_gradient(scores), _with_gradient(vector)
        return trace


def _source(args: Sequence[Any]) -> GradientEdge | None:
    tensor = args[0] if args else None
    if not isinstance(tensor, Tensor) or tensor.grad_fn is None:
        return None
    return get_gradient_edge(tensor)


def _on_tap(site: str, trace: Trace, _: nn.Module, __: Any, output: Any) -> None:
    tensor = output[0] if isinstance(output, tuple) else output
    index = sum(call.site == site for call in trace.calls)
    trace.add_call(site, index, tensor, -2 if tensor.ndim == 3 else None)


def _scores_in(output: Any, layout: OutputLayout) -> tuple[Any, Any]:
    """Return the scores in an output, or all of it, and what stands for the image; () if nothing.

    These are class scores, scores `[b, k, y, x]` of cells, or the vector of an encoder.
    """
    if not layout.error:
        scores = class_scores(output, layout=layout)
        return scores, scores
    parts = output if isinstance(output, dict) else {}
    output = parts.get("out", parts.get("logits", output))
    if isinstance(output, Tensor):
        return output, output if output.ndim == 4 else ()
    vectors = (parts[name] for name in _IMAGE_VECTORS if name in parts)
    return output, next((each for each in vectors if isinstance(each, Tensor)), ())


def _with_gradient(output: Any) -> list[Tensor]:
    tensors = output_tensors(output)
    return [each for each in tensors if each.requires_grad and each.is_floating_point()]
