"""Attention flow of a model on images."""

import torch
from jaxtyping import Float
from torch import Tensor

from visattn.attribution.attention_based import combine_layers, included_layers
from visattn.attribution.layer_weights import no_single_grid, record_weights
from visattn.attribution.registry import method
from visattn.attribution.targets import Target
from visattn.functional.attribution.attention_flow import attention_flow as max_flow
from visattn.recording.model_info import ExplainedModel


@method(
    "attention_flow",
    title="Attention flow",
    paper="arXiv:2005.00928",
    needs="tokens",
    kind="tokens",
    check=no_single_grid,
)
def attention_flow(
    explained: ExplainedModel,
    images: Float[Tensor, "b c y x"],
    target: Target,
    *,
    start_layer: int = 0,
    residual: float = 0.5,
    max_tokens: int = 400,
) -> Float[Tensor, "b gy gx"]:
    """Attention flow: the maximum flow through the attention of all layers, from the pooled tokens.

    Heads are averaged. Each token is a maximum-flow problem. In deep models the flow is often all
    that enters a token in the first layer, or 1: maps then show little of the later layers.

    Args:
        explained: The model.
        images: Normalized.
        target: Only noted in the info of the map; attention does not depend on a class.
        start_layer: First layer that is included.
        residual: Weight of the residual connection in each layer, in [0, 1].
        max_tokens: Most tokens that are accepted; the time grows with their third power.

    Raises:
        ValueError: If there are more tokens, the tokens of all layers do not share one grid, or an
            option is out of range.

    Source:
        Abnar and Zuidema 2020, arXiv:2005.00928, section 3.
    """
    included = included_layers(explained, start_layer, "attention_flow")
    rows, columns = included[0].grid
    if rows * columns > max_tokens:
        raise ValueError(
            f"attention_flow solves a maximum-flow problem for each token, at most {max_tokens}, "
            f"but {explained.info.name} has {rows} x {columns}; use rollout, smaller images, or "
            "pass max_tokens="
        )
    layers = record_weights(explained, images, target, included, queries="all")

    def flows(matrices: list[Tensor], rows: Tensor) -> Tensor:
        if not matrices:
            return rows
        pairs = zip(zip(*matrices, strict=True), rows[:, 0], strict=True)
        results = [max_flow(list(each), row, residual=residual) for each, row in pairs]
        return torch.stack(results).unsqueeze(1)

    return combine_layers(layers, [layer.weights.mean(1) for layer in layers], flows)
