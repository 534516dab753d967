"""Grad-CAM of the most probable classes in the feature layers of a model, in one backward pass."""

from contextlib import ExitStack
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import grad

from visattn.attribution.cam import grad_cam
from visattn.attribution.layer_outputs import intercept_layer
from visattn.attribution.targets import class_name, probabilities
from visattn.pipelines.inputs import PreparedImages
from visattn.recording.feature_layers import resizes_images, resolve_feature_layer, to_grid
from visattn.recording.frozen import frozen
from visattn.recording.model_info import FeatureLayer
from visattn.recording.subject import Subject
from visattn.results.attention_map import AttentionMap
from visattn.results.info import MapInfo

_MAX_LAYERS = 16
_MAX_CELLS = 32 * 32  # finer layers say little of a class, and make pages large


@dataclass
class _Output:
    """The last output of a layer, from which gradients flow back."""

    layer: FeatureLayer
    tensor: Tensor | None = None
    gradient: Tensor | None = field(default=None, repr=False)

    def keep(self, output: Tensor) -> Tensor:
        """Remember an output; return a clone, which operations in place may overwrite."""
        self.tensor = output if output.requires_grad else output.detach().requires_grad_()
        return self.tensor.clone()


def class_layer_maps(
    explained: Subject, prepared: PreparedImages, *, num_classes: int = 5
) -> list[list[AttentionMap]]:
    """Return for each feature layer the Grad-CAM maps of the most probable classes of an image.

    The classes are a batch of copies of the image, so that one forward and one backward pass give
    all maps. At most 16 layers are used, from the first to the last, with at most 32 x 32 cells.

    Args:
        explained: The model.
        prepared: One image as the model takes it.
        num_classes: Number of classes; fewer if the model has fewer.

    Returns:
        Maps by layer, from the image to the scores, and by class, the most probable first; none
        for a model without class scores or feature layers.

    Example:
        >>> from visattn.models import AttentionResNet
        >>> from visattn.pipelines.explainer import Explainer
        >>> explainer = Explainer(AttentionResNet(("cat", "dog"), depth=8, stem_width=4))
        >>> batch = explainer.prepare(torch.full((60, 80, 3), 90).byte().numpy())
        >>> rows = class_layer_maps(explainer.analyze(batch), batch)
        >>> [sorted(each.info.class_name for each in row) for row in rows][-1]
        ['cat', 'dog']

    Source:
        Selvaraju et al. 2017, arXiv:1610.02391, equations 1 and 2.
    """
    outputs = [_Output(layer) for layer in _layers(explained)]
    if not outputs or explained.info.output.error:
        return []
    with torch.no_grad():
        scores = explained.scores(prepared.inputs).float()
    shares = probabilities(scores.cpu(), explained.info.output)[0]
    best = shares.topk(min(num_classes, len(shares))).indices
    copies = prepared.select([0] * len(best)).inputs  # as `Explainer.map_targets` does
    _fill(outputs, explained, copies, best)
    return [
        [
            _map(explained, prepared, output.layer, values, (int(index), float(shares[index])))
            for values, index in zip(_grad_cam(output), best, strict=True)
        ]
        for output in outputs
        if output.tensor is not None and output.gradient is not None
    ]


def _layers(explained: Subject) -> list[FeatureLayer]:
    """Return layers with cells that a page can hold, spread evenly over the model."""
    if resizes_images(explained.model):
        return []
    known = explained.info.feature_layers
    chosen = [
        index
        for index, layer in enumerate(known)
        if not layer.levels and layer.grid[0] * layer.grid[1] <= _MAX_CELLS
    ]
    last = len(chosen) - 1
    if last >= _MAX_LAYERS:
        chosen = [chosen[round(i * last / (_MAX_LAYERS - 1))] for i in range(_MAX_LAYERS)]
    return [resolve_feature_layer(explained, index) for index in chosen]


def _fill(
    outputs: list[_Output],
    explained: Subject,
    copies: Float[Tensor, "k c y x"],
    best: Tensor,
) -> None:
    """Run a copy of the image for each class, and write outputs and gradients of the layers."""
    with frozen(explained.model):
        with ExitStack() as stack:
            for output in outputs:
                stack.enter_context(intercept_layer(explained, output.layer, output.keep))
            scores = explained.scores(copies)
        total = scores.gather(1, best.to(scores.device)[:, None]).sum()
        gradients = grad(
            total, [o.tensor for o in outputs if o.tensor is not None], allow_unused=True
        )
    for output, gradient in zip(outputs, gradients, strict=True):
        output.gradient = gradient


def _grad_cam(output: _Output) -> Float[Tensor, "k gy gx"]:
    if output.tensor is None or output.gradient is None:
        raise ValueError(f"layer {output.layer.site} has no gradient")
    activations = to_grid(output.tensor.detach(), output.layer)
    return grad_cam(activations, to_grid(output.gradient, output.layer)).cpu()


def _map(
    explained: Subject,
    prepared: PreparedImages,
    layer: FeatureLayer,
    values: Float[Tensor, "gy gx"],
    target: tuple[int, float],
) -> AttentionMap:
    index, probability = target
    info = MapInfo(
        method="gradcam",
        options={"layer": layer.site},
        model=explained.info.name,
        layer=layer.site,
        target=index,
        class_name=class_name(index, explained.class_names),
        probability=probability,
    )
    place = prepared.geometries[0].inset(layer.margin)
    return AttentionMap(values, layer.site, "gradient", place, info, margin=layer.margin)
