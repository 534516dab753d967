"""LeGrad: gradients of attention, layer by layer; and the similarity of patches with a text."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import grad

from visattn.attribution.layer_weights import (
    check_have_gradients,
    no_single_grid,
    single_grid_error,
    with_query_axis,
)
from visattn.attribution.registry import NO_TEXTS, method
from visattn.attribution.residual_blocks import (
    BlockChain,
    block_names,
    copies_for_head,
    replaced_last_block,
    split_output,
)
from visattn.attribution.targets import Target
from visattn.recording.frozen import frozen
from visattn.recording.model_info import ExplainedModel, ModelInfo, TextScorer
from visattn.recording.recorder import record


def _no_chain(info: ModelInfo, _target: object) -> str:
    """Return why a model is no chain of blocks with one token grid; "" if it may be."""
    layers = info.attention_layers
    if layers and all(layer.single_query or layer.pools for layer in layers):
        return "its only attention is a pool, and LeGrad reads the tokens after each block"
    return single_grid_error(info)


@method("legrad", title="LeGrad", paper="arXiv:2404.03214", needs="tokens", check=_no_chain)
def legrad(
    explained: ExplainedModel,
    images: Float[Tensor, "b c y x"],
    target: Target,
    *,
    start_layer: int = 0,
) -> Float[Tensor, "b gy gx"]:
    """LeGrad: the gradient of each layer's own score for its own attention, summed over layers.

    The score of a layer is what the head of the model gives for the mean of the tokens after that
    layer. Its gradient for the layer's attention is clipped at 0 and averaged over heads and
    queries. A model with attention pooling gets the tokens of each layer instead, and the gradient
    is that for the weights of the pool.

    Args:
        explained: The model.
        images: Normalized.
        target: Target to explain.
        start_layer: First layer that is included.

    Raises:
        ValueError: If the tokens of all layers do not share one grid, there is no such layer, or
            the layers are not a chain of blocks.

    Source:
        Bousselham et al. 2024, arXiv:2404.03214, section 3; the authors pool the mean of all
        tokens. Deviations: the map is not scaled to 0 and 1, so that those of several texts can
        be compared; with attention pooling, patches that an empty text also marks are kept.
    """
    info = explained.info
    layers = info.attention_layers
    names = block_names(info)
    if not -len(names) <= start_layer < len(names):
        raise ValueError(
            f"start_layer must be an index below the number of blocks of {info.name}, "
            f"{len(names)}; got {start_layer}"
        )
    names = names[start_layer % len(names) :]
    pooled = layers[-1].single_query
    sites = [layer.site for layer in layers if layer.single_query == pooled][-len(names) :]
    num_prefix = len(layers[-1].prefix_tokens)

    def stack(tokens: list[Tensor]) -> Tensor:
        if pooled:
            return torch.cat(tokens)
        return copies_for_head(torch.cat([each.mean(1) for each in tokens]), tokens[0].shape[1])

    with frozen(explained.model):
        with torch.no_grad():
            target(explained.forward(images))  # the predicted class is that of the whole model
        with (
            replaced_last_block(explained, names, stack, cut=True, num_images=len(images)) as chain,
            record(explained.model, layers=sites, differentiable=True) as recording,
        ):
            output = _run_head(explained, images, chain)
        scores = torch.stack([target(part) for part in split_output(output, len(names))]).sum()
        check_have_gradients([scores, *recording.weights], info)
        chain.check_only_last_is_read(scores)
        gradients = grad(scores, recording.weights, allow_unused=True)
    rows = _relevance(gradients, [each.site for each in recording.maps], len(images))
    return rows[:, num_prefix:].unflatten(1, layers[0].grid)


def _run_head(
    explained: ExplainedModel, images: Float[Tensor, "b c y x"], chain: BlockChain
) -> Any:
    """Return the output of a model whose last layers run on the tokens of each block."""
    try:
        return explained.forward(images.repeat(len(chain.names), 1, 1, 1))
    except RuntimeError as error:
        if chain.replaced is None:
            raise
        raise ValueError(
            f"the layers of {explained.info.name} after {chain.names[-1]} must run on the tokens "
            f"of each block in place of its output, as LeGrad needs it, but they do not ({error}); "
            "use relevance or gradient_rollout"
        ) from error


def _relevance(
    gradients: Sequence[Tensor | None], sites: Sequence[str], count: int
) -> Float[Tensor, "b m"]:
    """Return the sum over layers of clipped gradients, averaged over heads and queries."""
    total: Tensor | None = None
    for site, gradient in zip(sites, gradients, strict=True):
        if gradient is None:
            raise ValueError(f"the target must depend on the attention of {site}, but it does not")
        clipped = with_query_axis(gradient).clamp(min=0).mean((1, 2))
        clipped = clipped.unflatten(0, (-1, count)).sum(0)
        total = clipped if total is None else total + clipped
    if total is None:
        raise ValueError("the model recorded no attention")
    return total


def _with_all_layers(explained: ExplainedModel) -> ExplainedModel:
    """Return a model whose blocks are all listed, also those whose attention no score reads."""
    info = explained.info
    if not info.unread_layers:
        return explained
    order = {name: index for index, (name, _) in enumerate(explained.model.named_modules())}
    layers = (*info.attention_layers, *info.unread_layers)
    listed = tuple(sorted(layers, key=lambda layer: order.get(layer.site, 0)))
    return replace(explained, info=replace(info, attention_layers=listed, unread_layers=()))


@method(
    "similarity", title="Similarity", paper="arXiv:2304.05653", needs="texts", check=no_single_grid
)
def similarity(
    explained: ExplainedModel, images: Float[Tensor, "b c y x"], target: Target
) -> Float[Tensor, "b gy gx"]:
    """Cosine similarity of each patch with a text, through the head of the whole image.

    The layers after the last block (norm, pooling, projection) get each patch alone. In CLIP
    the background is often more similar to a text than the thing that it names: compare it with
    LeGrad.

    Args:
        explained: A model that compares images with texts, such as a `TextPromptClassifier`.
        images: Normalized.
        target: Which text.

    Raises:
        ValueError: If the model has no texts, or its layers are not a chain of blocks.

    Source:
        The patch-text map of Li et al. 2023, arXiv:2304.05653, before their correction, with
        which they show that it prefers the background.
    """
    model = explained.model
    if not isinstance(model, TextScorer):
        raise ValueError(f"{explained.info.name} {NO_TEXTS}")  # noqa: TRY004 (of the model)
    explained = _with_all_layers(explained)
    layer = next(each for each in explained.info.attention_layers if not each.single_query)
    prefix, (rows, columns) = len(layer.prefix_tokens), layer.grid

    def each_patch(tokens: list[Tensor]) -> Tensor:
        return copies_for_head(tokens[-1][:, prefix:].transpose(0, 1).flatten(0, 1), prefix + 1)

    names = block_names(explained.info)[-1:]
    with frozen(model), torch.no_grad():
        target(explained.forward(images))
        with replaced_last_block(explained, names, each_patch):
            output = explained.forward(images)
        scores = torch.stack([target(part) for part in split_output(output, rows * columns)], 1)
    return model.cosine_of(scores).unflatten(1, (rows, columns))
