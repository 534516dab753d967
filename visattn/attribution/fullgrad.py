"""FullGrad: gradients times input, and gradients times biases of all layers."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.overrides import TorchFunctionMode

from visattn.attribution.registry import method
from visattn.attribution.targets import Score, Target, target_values
from visattn.functional.numerics import at_least_float32
from visattn.recording.cell_strides import CellStrides
from visattn.recording.frozen import first_weight, frozen, with_grad
from visattn.recording.outputs import output_tensors
from visattn.recording.subject import Subject
from visattn.results.attention_map import resample_to_input


def contribution_map(contributions: Float[Tensor, "b c y x"]) -> Float[Tensor, "b y x"]:
    """Return contributions of a layer as a map: absolute, normalized, summed over channels.

    Each image is normalized to [0, 1] over all channels and positions; equal values give zeros.

    Example:
        >>> contribution_map(torch.tensor([[[[0.0, -1.0]], [[4.0, 2.0]]]]))
        tensor([[[1.0000, 0.7500]]])

    Source:
        Srinivas and Fleuret 2019, arXiv:1905.00780, section 4, the post-processing of FullGrad.
    """
    sizes = at_least_float32(contributions).abs()
    low = sizes.amin((1, 2, 3), keepdim=True)
    high = sizes.amax((1, 2, 3), keepdim=True)
    return ((sizes - low) / torch.where(high > low, high - low, 1.0)).sum(1)


_COMPLETENESS = 1e-3  # of the sum of absolute parts
_COVERED = (
    "it must consist of convolutions, linear layers, batch normalization, pooling and elementwise "
    "activations: gradients times input and biases do not sum to its output"
)
# A ReLU or leaky ReLU equals its slope times its input, so that nothing is left for a bias; a ReLU6
# above 6 does not.
_ACTIVATIONS = frozenset(
    {"gelu", "silu", "mish", "elu", "celu", "selu", "hardswish", "softplus", "relu6", "hardtanh"}
    | {"sigmoid", "tanh", "hardsigmoid"}
)


def _incomplete(explained: Subject, _target: object) -> str:
    """Return why gradients times input and biases do not sum to the score; "" if they do.

    It is tried on a noise image, for the sum of all outputs.
    """
    size = (1, len(explained.info.mean), *explained.info.input_size)
    noise = torch.randn(size, generator=torch.Generator().manual_seed(0))

    def total(output: Any) -> Tensor:
        parts = [tensor for tensor in output_tensors(output) if tensor.is_floating_point()]
        return torch.stack([tensor.sum() for tensor in parts]).sum()[None]

    try:
        values, parts = _parts(explained, noise.to(first_weight(explained.model)), total)
    except (RuntimeError, ValueError):  # of operations without a gradient
        return "its output has no gradient on an image of noise"
    return "" if parts.sum_to(values) else _COVERED


@method("fullgrad", title="FullGrad", paper="arXiv:1905.00780", needs="features", check=_incomplete)
def fullgrad(
    explained: Subject, images: Float[Tensor, "b c y x"], target: Target
) -> Float[Tensor, "b y x"]:
    """FullGrad: gradients times input, and gradients times biases of all layers.

    For CNNs of convolutions, batch normalization, pooling and elementwise activations these parts
    sum to the score, which is checked. Biases of activations are implicit: what is not gradient
    times input. The map is the sum of the absolute parts, each layer normalized.

    Raises:
        ValueError: If the parts do not sum to the score of the class, or the target does not depend
            on the images.

    Source:
        Srinivas and Fleuret 2019, arXiv:1905.00780, definition 1 and section 4.
    """
    values, parts = _parts(explained, images, target)
    # A function of the user's own may be no linear function of the output.
    if isinstance(target, Score) and target.kind != "function" and not parts.sum_to(values):
        raise ValueError(
            f"gradients times input and biases must sum to the score, but for "
            f"{explained.info.name} they sum to {float(parts.sums[0]):.4g} and the score is "
            f"{float(values[0]):.4g}: it has operations that FullGrad does not cover; use "
            "gradcam or integrated_gradients"
        )
    return parts.maps


def _parts(
    explained: Subject, images: Float[Tensor, "b c y x"], target: Target
) -> tuple[Float[Tensor, " b"], "_BiasCollector"]:
    """Return the values of a target, and gradients times input and biases."""
    strides = CellStrides()
    collector = _BiasCollector(images, strides)
    with frozen(explained.model), strides.watching(explained.model), collector as parts:
        inputs = with_grad(images)
        values = target_values(explained, inputs, target)
        if not values.requires_grad:
            raise ValueError(
                "the target must be differentiable with respect to the images, but that of "
                f"{explained.info.name} has no gradient; rise and occlusion need none"
            )
        edges: list[Any] = [edge for edge, _ in parts.biases]
        gradients, *others = torch.autograd.grad(values.sum(), [inputs, *edges], allow_unused=True)
    parts.add(images * gradients)
    for (_, bias), gradient in zip(parts.biases, others, strict=True):
        if gradient is not None:
            parts.add(bias * gradient)
    return values.detach(), parts


class _BiasCollector(TorchFunctionMode):
    """Collects the biases of all layers, and adds up gradients times biases.

    Args:
        strides: Those of the outputs of the layers.
    """

    def __init__(self, images: Float[Tensor, "b c y x"], strides: CellStrides) -> None:
        super().__init__()
        self.strides = strides
        self.size = (images.shape[2], images.shape[3])
        self.biases: list[tuple[GradientEdge, Tensor]] = []
        """Of the outputs of layers in the graph."""
        self.maps = torch.zeros_like(images[:, 0])
        self.sums = torch.zeros(len(images), dtype=torch.float64, device=images.device)
        self.sizes = torch.zeros_like(self.sums)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run a torch function."""
        kwargs = kwargs or {}
        bias = _bias(func, args, kwargs)
        output = func(*args, **kwargs)
        if bias is not None and output.requires_grad:
            self.biases.append((get_gradient_edge(output), bias))
        return output

    def sum_to(self, values: Float[Tensor, " b"]) -> bool:
        """Whether the parts sum to the values of the target."""
        error = (values.double() - self.sums).abs()
        return bool((error <= _COMPLETENESS * self.sizes).all())

    def add(self, contributions: Tensor) -> None:
        """Add contributions; those without positions only count in the sum."""
        total = contributions.detach().double().flatten(1).sum(1)
        self.sums += total
        self.sizes += total.abs()
        if contributions.ndim == 4:
            shares = contribution_map(contributions.detach())
            margin = self.strides.margin((shares.shape[-2], shares.shape[-1]), self.size)
            self.maps += resample_to_input(shares, self.size, margin)


def _bias(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """Return what a layer adds to gradient times input, broadcast to its output."""
    name = getattr(func, "__name__", "")
    if name.rstrip("_") in _ACTIVATIONS:
        return _implicit(func, args, kwargs)
    if name not in ("conv2d", "conv_transpose2d", "linear", "batch_norm"):
        return None
    zeros = torch.zeros_like(args[0][:1])
    return func(zeros, *args[1:], **kwargs).detach()


def _implicit(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Return the value of an elementwise activation, less its derivative times the input."""
    leaf = args[0].detach().clone().requires_grad_()
    value = func(leaf.clone(), *args[1:], **kwargs)  # a clone, for in-place activations
    [slope] = torch.autograd.grad(value.sum(), leaf)
    return value.detach() - slope * leaf.detach()
