"""Grad-CAM of the most probable classes in the feature layers of a model."""

import torch

from visattn.attribution.targets import probabilities
from visattn.pipelines.explainer import Explainer
from visattn.pipelines.inputs import PreparedImages
from visattn.recording.frozen import frozen
from visattn.recording.subject import Subject
from visattn.results.attention_map import AttentionMap

_MAX_LAYERS = 16
_MAX_CELLS = 32 * 32  # finer layers say little of a class, and make pages large


def class_layer_maps(
    explainer: Explainer, prepared: PreparedImages, *, num_classes: int = 5
) -> list[list[AttentionMap]]:
    """Return for each feature layer the Grad-CAM maps of the most probable classes of an image.

    At most 16 layers are used, from the first to the last, with at most 32 x 32 cells.

    Args:
        explainer: The model.
        prepared: One image as the model takes it.
        num_classes: Number of classes; fewer if the model has fewer.

    Returns:
        Maps by layer, from the image to the scores, and by class, the most probable first; none
        for a model without class scores or feature layers.

    Example:
        >>> from visattn.models import AttentionResNet
        >>> explainer = Explainer(AttentionResNet(("cat", "dog"), depth=8, stem_width=4))
        >>> batch = explainer.prepare(torch.full((60, 80, 3), 90).byte().numpy())
        >>> rows = class_layer_maps(explainer, batch)
        >>> [sorted(each.info.class_name for each in row) for row in rows][-1]
        ['cat', 'dog']
    """
    subject = explainer.analyze(prepared)
    layers = _layers(subject)
    if not layers or subject.info.output.error:
        return []
    with frozen(subject.model), torch.no_grad():
        scores = subject.scores(prepared.inputs).float()
    shares = probabilities(scores.cpu(), subject.info.output)[0]
    best = shares.topk(min(num_classes, len(shares))).indices.tolist()
    rows = (explainer.map_targets(prepared, "gradcam", [best], layer=layer) for layer in layers)
    return [row for [row] in rows]


def _layers(subject: Subject) -> list[int]:
    """Return layers with cells that a page can hold, spread evenly over the model."""
    chosen = [
        index
        for index, layer in enumerate(subject.info.feature_layers)
        if not layer.levels and layer.grid[0] * layer.grid[1] <= _MAX_CELLS
    ]
    last = len(chosen) - 1
    if last < _MAX_LAYERS:
        return chosen
    return [chosen[round(i * last / (_MAX_LAYERS - 1))] for i in range(_MAX_LAYERS)]
