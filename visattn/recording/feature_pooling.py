"""The last spatial features before a model pools them, found through gradients of its scores."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from itertools import compress
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from visattn.blocks.tap import Tap
from visattn.recording.frozen import frozen, with_grad
from visattn.recording.gradient_graph import (
    Edge,
    GradientGraph,
    edge_shape,
    gradient_edge,
    is_product,
    num_positions,
    preserves_rows,
)
from visattn.recording.interception import in_this_run, probing
from visattn.recording.model_info import FeatureLayer
from visattn.recording.outputs import (
    OutputLayout,
    class_scores,
    detect_output_layout,
    output_tensors,
)
from visattn.recording.places import covers, fits
from visattn.recording.probe import ProbeResult
from visattn.recording.read_rows import (
    AttentionTracer,
    GradientEverywhere,
    Reading,
    RowReader,
    TracedCall,
    mean_of_images,
)

PASS_THROUGH = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
_MAX_TESTED = 4  # last outputs that may carry all positions
_IMAGE_VECTORS = ("image_embeds", "pooler_output")
_VECTOR_POSITIONS = 3  # positions of a pooled vector: several pools, or prefix tokens


@dataclass(eq=False)
class PooledFeatures:
    """Features that the scores of a model are pooled from.

    Args:
        layers: Layers with a grid, from the image to the scores; the pooled vector is computed
            from the last one. Empty if it could not be determined.
        error: Why it could not be determined.
        reading: What the scores read of the attention of the model; None if that was not measured,
            the output has no scores, or they depend on no attention.
        output: Location of the class scores, by how they are computed; None if that is not known.
        differentiable: Whether the scores have a gradient with respect to the image.
    """

    layers: tuple[FeatureLayer, ...] = ()
    error: str = ""
    differentiable: bool = False
    reading: Reading | None = None
    output: OutputLayout | None = None


@dataclass(eq=False)
class RecordedOutput:
    """Output of a module in a run with gradients.

    Args:
        version: Version counter of the tensor when the module returned it.
        layer: Layout and grid, if its activations are aligned with the image.
    """

    site: str
    edge: Edge
    tensor: Tensor
    version: int
    layer: FeatureLayer | None

    @property
    def unmodified(self) -> bool:
        """Whether no in-place operation overwrote it."""
        return self.tensor._version == self.version  # noqa: SLF001


@dataclass(eq=False)
class GradientRun:
    """A run of a model with gradients down to the image.

    Args:
        image: The image.
        outputs: Outputs of modules that are called once, in order.
        attention: Edges of the inputs and of the outputs of each attention module.
        scores: The scores.
        pooled: The scores, or else a vector that stands for the image; empty if there are neither.
    """

    image: Tensor
    outputs: list[RecordedOutput] = field(default_factory=list)
    attention: list[tuple[list[Edge], list[Edge]]] = field(default_factory=list)
    scores: list[Tensor] = field(default_factory=list)
    pooled: list[Tensor] = field(default_factory=list)
    calls: list[TracedCall] = field(default_factory=list)
    output: OutputLayout = field(default_factory=OutputLayout)


@dataclass(frozen=True, eq=False)
class ScoreTracer:
    """Traces the scores of a model back to features, and to the attention that they read.

    Args:
        forward: Calls the model on normalized images.
        probe: Where its activations lie on the image.
        num_classes: Number of classes, if it is known.
    """

    model: nn.Module
    forward: Callable[[Tensor], Any]
    probe: ProbeResult
    num_classes: int | None = None

    def pooled_features(self, image: Tensor) -> PooledFeatures:
        """Return the last features before pooling, from one run of the model with gradients.

        Every path from the image to the scores passes through certain tensors, the bottlenecks. The
        last bottleneck whose gradient is spread over positions, and not only over a vector or a
        class token, is what the model pools. The result is the module that returned it or, where
        only a class token continues, the last module through which all positions reach the class
        token.
        """
        with frozen(self.model), probing():
            detached = GradientEverywhere(keep=False)
            with detached if self.probe.layouts else nullcontext():
                run = self._run(image)
            graph = None
            result = PooledFeatures(error="its scores have no gradient with respect to the image")
            if run.scores:
                search = _PoolingSearch(run, self.probe)
                result = replace(search.search(), output=run.output)
                [gradient] = search.gradients([gradient_edge(run.image)])
                result.differentiable = gradient is not None
                graph = search.graph
            # What is read without gradients is read, too.
            first = None if detached.used else self._reading_of(run, graph)
            result.reading = self._confirmed(first or self._read(image), image)
        return result

    def reading(self, image: Tensor) -> Reading | None:
        """Return what the scores of a model read of its attention; None if they depend on none."""
        return self._confirmed(self._read(image), image)

    def _confirmed(self, reading: Reading | None, image: Tensor) -> Reading | None:
        """Return a reading, with runs on other images if it may depend on the image."""
        if reading is None or reading.rows is None or not reading.ambiguous:
            return reading
        # Mirrored and inverted images have their maxima elsewhere.
        others = [self._read(variant) for variant in (image.flip(-1), -image.flip(-2))]
        images = [other.rows for other in others if other is not None and other.rows is not None]
        if all(map(reading.rows.same_cells, images)):
            return reading
        # A maximum: which tokens it takes depends on the image.
        return replace(reading, rows=mean_of_images([reading.rows, *images]))

    def _read(self, image: Tensor) -> Reading | None:
        """Return what scores read of attention on one image, also of what the model detaches."""
        if not self.probe.layouts:
            return None
        with frozen(self.model), probing():
            with GradientEverywhere(keep=True):
                run = self._run(image)
            return self._reading_of(run)

    def _reading_of(self, run: GradientRun, graph: GradientGraph | None = None) -> Reading | None:
        """Return what the scores of a run read of its attention."""
        if not run.pooled or not self.probe.layouts:
            return None
        if graph is None or run.pooled is not run.scores:
            graph = GradientGraph([gradient_edge(tensor) for tensor in run.pooled])
        weights = _random_weights(run.pooled)
        reader = RowReader(
            run.calls,
            [output.edge for output in run.outputs],
            graph,
            lambda edges: _gradients(run.pooled, weights, edges),
            self.probe.layouts,
        )
        reading = reader.read()
        if reading is None:
            graph.unblock_zero_gradients()
            reading = reader.read()
        return reading

    def _run(self, image: Tensor) -> GradientRun:
        """Run the model on an image that requires a gradient."""
        run = GradientRun(with_grad(image))
        tracer = AttentionTracer(self.model, lambda: len(run.outputs))
        with ExitStack() as stack:
            if self.probe.layouts:
                stack.enter_context(tracer.tracing())
            for site, module in self.model.named_modules():
                hook = in_this_run(self._output_hook(site, run))
                stack.callback(module.register_forward_hook(hook, with_kwargs=True).remove)
            output = self.forward(run.image)
        run.calls = tracer.calls
        run.output = detect_output_layout(output, len(image), self.num_classes)
        has_scores = True
        if not run.output.error:
            output = class_scores(output, len(image), run.output)
        elif isinstance(output, dict) and ("out" in output or "logits" in output):  # dense scores
            output = output["out"] if "out" in output else output["logits"]
            has_scores = output.ndim == 4
        else:
            has_scores = isinstance(output, Tensor) and output.ndim == 4
        run.scores = _differentiable(output)
        run.pooled = run.scores if has_scores else _differentiable(_image_vector(output))
        return run

    def _output_hook(self, site: str, run: GradientRun) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> None:
            if site in self.probe.attention_modules or _has_token_tap(module):
                run.attention.append((_edges((args, kwargs)), _edges(output)))
            tensor = output[0] if isinstance(output, tuple) else output
            once = len(self.probe.layers.get(site, ())) == 1
            if once and isinstance(tensor, Tensor) and tensor.grad_fn is not None:
                # layers that pass on what they get would hide the layer that computed it
                layer = None if isinstance(module, PASS_THROUGH) else self.probe.once(site)
                version = tensor._version  # noqa: SLF001
                edge = gradient_edge(tensor)
                run.outputs.append(RecordedOutput(site, edge, tensor, version, layer))

        return hook


def _has_token_tap(module: nn.Module) -> bool:
    return any(isinstance(child, Tap) and child.kind == "tokens" for child in module.children())


def _edges(output: Any) -> list[Edge]:
    tensors = output_tensors(output)
    return [gradient_edge(tensor) for tensor in tensors if tensor.grad_fn is not None]


def _differentiable(output: Any) -> list[Tensor]:
    return [
        tensor
        for tensor in output_tensors(output)
        if tensor.requires_grad and tensor.is_floating_point()
    ]


def _image_vector(output: Any) -> Any:
    """Return the vector that stands for the image in the output of an encoder; () if none."""
    names = _IMAGE_VECTORS if isinstance(output, dict) else ()
    vectors = (output[name] for name in names if name in output)
    return next((vec for vec in vectors if isinstance(vec, Tensor) and vec.ndim == 2), ())


def _random_weights(tensors: Sequence[Tensor]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(tensor.shape, generator=generator).to(tensor) for tensor in tensors]


def _gradients(
    outputs: Sequence[Tensor], weights: Sequence[Tensor], edges: Sequence[Edge]
) -> list[Tensor | None]:
    """Return gradients of a weighted sum of outputs with respect to tensors of the graph."""
    if not edges:
        return []
    inputs = [GradientEdge(*edge) for edge in edges]
    gradients = torch.autograd.grad(
        list(outputs), inputs, list(weights), retain_graph=True, allow_unused=True
    )
    return list(gradients)


class _PoolingSearch:
    """Traces the scores of a model back to the features that they are pooled from."""

    def __init__(self, run: GradientRun, probe: ProbeResult) -> None:
        self.run = run
        layers = (layer for calls in probe.layers.values() for layer in calls if layer is not None)
        counts = (layer.num_prefix_tokens for layer in layers)
        self.vector_positions = max([_VECTOR_POSITIONS, *counts])
        self.graph = GradientGraph([gradient_edge(scores) for scores in run.scores])
        self.inside_attention = set[Edge]()
        for inputs, outputs in run.attention:
            self.inside_attention |= self.graph.between(outputs, inputs)
        self.dense = run.scores[0].ndim == 4  # scores for each position
        self.weights = _random_weights(run.scores)

    def search(self) -> PooledFeatures:
        """Return the features before pooling and those of earlier stages."""
        pooled = self._last_spatial_bottleneck()
        if pooled is None:  # heads that begin with zeros (ViT, fine-tuning) stop all gradients
            self.graph.unblock_zero_gradients()
            pooled = self._last_spatial_bottleneck()
        if pooled is None:
            return PooledFeatures(error="no gradient of its scores is spread over positions")
        carrier = None if self.dense else self._last_carrier(pooled)
        # The last axis holds the channels of tokens.
        if carrier is not None and edge_shape(carrier.edge)[-1] == edge_shape(pooled)[-1]:
            chosen = carrier
        else:
            chosen = self._pooled_output(pooled, alone=carrier is None)
        if isinstance(chosen, str):
            return PooledFeatures(error=chosen)
        return PooledFeatures(self._layers_up_to(chosen))

    def gradients(self, edges: Sequence[Edge]) -> list[Tensor | None]:
        """Return gradients of a random weighted sum of the scores with respect to tensors."""
        return _gradients(self.run.scores, self.weights, edges)

    def _is_spatial(self, gradient: Tensor | None) -> bool:
        return gradient is not None and num_positions(gradient) > self.vector_positions

    def _last_spatial_bottleneck(self) -> Edge | None:
        # From the scores to the image, gradients are first those of a vector (the head) and then
        # spread over a grid: where that begins, the model pools. Most models pool within their last
        # few tensors, and gradients of more take the backward pass through more of the model.
        edges = [edge for edge in self.graph.bottlenecks if edge not in self.inside_attention]
        if self.dense:  # dense scores are no features
            before_scores = (any(map(is_product, self.graph.downstream(edge))) for edge in edges)
            edges = list(compress(edges, before_scores))
        for chunk in (
            edges[:4],
            *(edges[start : start + 16] for start in range(4, len(edges), 16)),
        ):
            for edge, gradient in zip(chunk, self.gradients(chunk), strict=True):
                if self._is_spatial(gradient):
                    return edge
        return None

    def _last_carrier(self, pooled: Edge) -> RecordedOutput | None:
        """Return the last output that carries all positions where only few tokens continue."""
        # A ViT with a class token: only its row continues from the last block to the head, so that
        # the last spatial bottleneck lies many blocks before. But all patches reach the class token
        # through the output of the block before the last attention: without that output, nothing
        # spatial is left.
        downstream = self.graph.downstream(pooled)
        later = [out.edge for out in self.run.outputs if out.layer and out.edge in downstream]
        edges = [edge for edge in dict.fromkeys(later) if edge not in self.inside_attention]
        pairs = zip(edges, self.gradients(edges), strict=True)
        spatial = [edge for edge, gradient in pairs if self._is_spatial(gradient)]
        for edge in reversed(spatial[-_MAX_TESTED:]):
            with self.graph.blocked(edge):
                remaining = self.gradients([pooled])[0]
            if not self._is_spatial(remaining):
                return self._outermost_output(edge)
        return None

    def _pooled_output(self, pooled: Edge, *, alone: bool) -> RecordedOutput | str:
        """Return the module output that is pooled, or why there is none.

        It is `alone` if nothing downstream carries all its positions.
        """
        products = [
            edge
            for edge in self.graph.downstream(pooled)
            if is_product(edge) and edge not in self.inside_attention
        ]
        # Layers at several places at once behind the last common tensor: branches of a network that
        # meet after pooling, so that no single layer stands for what is pooled.
        streams = sum(self._is_spatial(gradient) for gradient in self.gradients(products))
        if alone and streams > self.dense:
            return "several feature streams run in parallel before they are pooled"
        for edge in self.graph.bottlenecks[self.graph.bottlenecks.index(pooled) :]:
            # Norms and activations may lie between the layer and what is pooled, but no weights.
            if edge != pooled and any(map(is_product, self.graph.between([pooled], [edge]))):
                break
            output = self._outermost_output(edge) or self._pooled_plane(edge)
            if output is not None and output.unmodified:
                return output
        shape = " x ".join(str(side) for side in edge_shape(pooled)[1:])
        return (
            f"its scores are pooled from a tensor ({shape} for each image) that is not the output "
            "of a module with a known position on the image"
        )

    def _outermost_output(self, edge: Edge) -> RecordedOutput | None:
        outputs = (output for output in reversed(self.run.outputs) if output.edge == edge)
        return next((output for output in outputs if output.layer is not None), None)

    def _pooled_plane(self, edge: Edge) -> RecordedOutput | None:
        """Return an output on a small grid that is computed row by row from an aligned one."""
        output = next((out for out in reversed(self.run.outputs) if out.edge == edge), None)
        if output is None or output.tensor.ndim != 4:
            return None
        rows, columns = output.tensor.shape[2:]
        grid = (rows, columns)
        size = (self.run.image.shape[2], self.run.image.shape[3])
        if not fits(grid, size) and not covers(grid, size):
            return None
        aligned = {
            out.edge for out in self.run.outputs if out.layer and out.layer.layout == "b c y x"
        }
        for source in self.graph.bottlenecks[self.graph.bottlenecks.index(edge) + 1 :]:
            for step in self.graph.between([edge], [source]):
                is_vector = prod(sorted(edge_shape(step))[:-1]) <= self.vector_positions
                if not preserves_rows(step) and not is_vector:
                    return None
            if source in aligned:
                return replace(output, layer=FeatureLayer(output.site, "b c y x", grid))
        return None

    def _layers_up_to(self, chosen: RecordedOutput) -> tuple[FeatureLayer, ...]:
        """Return the last bottleneck layer of each grid before an output, and the layer of that."""
        bottlenecks = set(self.graph.bottlenecks)
        layers: dict[Any, FeatureLayer] = {}
        for output in self.run.outputs:
            if output.edge == chosen.edge:
                break
            layer = output.layer
            if layer is not None and output.edge in bottlenecks and output.unmodified:
                layers[layer.grid, layer.layout] = layer
        if chosen.layer is not None:
            layers.pop((chosen.layer.grid, chosen.layer.layout), None)
            layers[chosen.layer.grid, chosen.layer.layout] = chosen.layer
        return tuple(layers.values())
