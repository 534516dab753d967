"""Methods for single words of a caption: attention, gradients, relevance and Grad-CAM per word."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from visattn.attribution.attention import (
    positive_grad_times_attention,
    propagate_decoder_relevance,
    propagate_relevance,
)
from visattn.attribution.cam import grad_cam


@dataclass(frozen=True, eq=False)
class WordLayer:
    """Attention weights of one layer in a forward pass over a whole caption, with their graph.

    Args:
        site: Name of the layer.
        steps: The weights from which the model continued: one tensor `h q m`, or one `h 1 m` for
            each word if the words were read one after the other.
        columns: Indices of the keys that are image tokens; None for a layer that reads no image.
    """

    site: str
    steps: tuple[Float[Tensor, "_h _q m"], ...]
    columns: Int[Tensor, " i"] | None

    def weights(self) -> Float[Tensor, "h q m"]:
        """Return the weights without their graph."""
        return torch.cat([step.detach() for step in self.steps], 1)


@dataclass(frozen=True, eq=False)
class TokenVectors:
    """A tensor with one vector per image token, in the graph of a forward pass.

    Args:
        to_rows: Turns it, or a gradient of its shape, into one row per image token.
    """

    node: Tensor
    to_rows: Callable[[Tensor], Float[Tensor, "i d"]]

    def rows(self) -> Float[Tensor, "i d"]:
        """Return the vector of each image token, without the graph."""
        return self.to_rows(self.node.detach())


_NOTHING = TokenVectors(torch.empty(0), torch.clone)


@dataclass(frozen=True, eq=False)
class WordRun:
    """One forward pass over an image and its whole caption, with the graph of each word.

    The last t queries of each layer are those that predict the words.

    Args:
        log_probs: Log-probability of each word, given those before it.
        embeddings: Image tokens as the decoder reads them: inputs of its layers; None if only the
            methods that read attention weights are used. No normalization may follow at once, for
            then the product of embedding and gradient is 0.
        features: Image tokens on which Grad-CAM is computed; None for the embeddings.
        joint: Whether image and words are one sequence, as in LLaVA; else the words attend to the
            image from a sequence of their own.
        recurrent: Whether a word reads what earlier words attended to through a recurrent state.
    """

    log_probs: Float[Tensor, " t"]
    layers: tuple[WordLayer, ...]
    embeddings: TokenVectors = _NOTHING
    features: TokenVectors | None = None
    joint: bool = False
    recurrent: bool = False

    @property
    def image_layers(self) -> tuple[WordLayer, ...]:
        """The layers in which words attend to the image."""
        return tuple(layer for layer in self.layers if layer.columns is not None)

    def row(self, layer: WordLayer, word: int) -> int:
        """Return the index of the query of a layer that predicts a word."""
        return sum(step.shape[1] for step in layer.steps) - len(self.log_probs) + word


@dataclass(frozen=True, eq=False)
class WordGradients:
    """Gradients of the log-probability of one word, by weights and by vectors of image tokens."""

    word: int
    weights: tuple[Float[Tensor, "_h _q _m"], ...]
    embeddings: Float[Tensor, "*i d"] = _NOTHING.node
    features: Float[Tensor, "*i c"] = _NOTHING.node


def word_attention(
    run: WordRun, *, layers: Sequence[int] | None = None, heads: Sequence[int] | None = None
) -> Float[Tensor, "t i"]:
    """Return the attention of each word to the image tokens: the mean over layers and heads.

    All layers and heads count by default; layers are indices of those that attend to the image.

    Raises:
        ValueError: If there is no such layer or head.
    """
    chosen = _select_layers(run, layers)
    count = len(run.log_probs)
    rows: list[Tensor] = []
    for layer in chosen:
        weights = layer.weights()[_head_indices(layer, heads), -count:]
        rows.append(weights[..., layer.columns].mean(0))
    return torch.stack(rows).mean(0)


def word_attributions(
    run: WordRun,
    methods: Sequence[str],
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
) -> dict[str, Float[Tensor, "t i"]]:
    """Return the maps of each word by several methods, from one backward pass per word.

    Args:
        layers: For `gradient_attention`: indices of layers that attend to the image.
        heads: For `gradient_attention`: indices of heads.

    Returns:
        For each method, a non-negative value per word and image token.

    Raises:
        ValueError: If a method is unknown, or there is no such layer or head.

    Example:
        >>> tokens = torch.tensor([[1.0], [2.0]], requires_grad=True)
        >>> weights = torch.tensor([[[0.25, 0.75]]], requires_grad=True)
        >>> layer = WordLayer("attention", (weights,), torch.tensor([0, 1]))
        >>> log_probs = -((weights[0] @ tokens)[:, 0] - 3) ** 2
        >>> run = WordRun(log_probs, (layer,), TokenVectors(tokens, torch.Tensor.detach))
        >>> word_attributions(run, ["gradient_attention"])["gradient_attention"]  # A · 2.5 · value
        tensor([[0.6250, 3.7500]])

    Source:
        Gradient times attention and relevance: Chefer, Gur and Wolf 2021, arXiv:2103.15679;
        Grad-CAM: Selvaraju et al. 2017, arXiv:1610.02391, section 7.1, per word.
    """
    if unknown := [name for name in methods if name not in WORD_GRADIENT_METHODS]:
        known = ", ".join(WORD_GRADIENT_METHODS)
        raise ValueError(f"methods must be among {known}; got {unknown[0]!r}")
    indices = [run.layers.index(layer) for layer in _select_layers(run, layers)]
    for index in indices:
        _head_indices(run.layers[index], heads)
    rows: dict[str, list[Tensor]] = {name: [] for name in methods}
    for word in range(len(run.log_probs)):
        gradients = word_gradients(run, word)
        for name in methods:
            if name == "gradient_attention":
                row = _gradient_attention(run, gradients, indices, heads)
            else:
                row = WORD_GRADIENT_METHODS[name](run, gradients)
            rows[name].append(row)
    return {name: torch.stack(values) for name, values in rows.items()}


def word_gradients(run: WordRun, word: int) -> WordGradients:
    """Return the gradients of one word's log-probability, by one backward pass.

    The graph of the run is kept.
    """
    both = run.embeddings, run.features or run.embeddings
    vectors = [each for each in both if each is not _NOTHING]
    nodes = [step for layer in run.layers for step in layer.steps]
    nodes += [each.node for each in vectors]
    results = torch.autograd.grad(run.log_probs[word], nodes, retain_graph=True, allow_unused=True)
    steps = [
        torch.zeros_like(node) if gradient is None else gradient
        for node, gradient in zip(nodes, results, strict=True)
    ]
    weights: list[Tensor] = []
    for layer in run.layers:
        count = len(layer.steps)
        weights.append(torch.cat(steps[:count], 1))
        steps = steps[count:]
    rows = [each.to_rows(gradient) for each, gradient in zip(vectors, steps, strict=True)]
    return WordGradients(word, tuple(weights), *rows)


def _gradient_attention(
    run: WordRun,
    gradients: WordGradients,
    indices: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
) -> Float[Tensor, " i"]:
    """Mean over layers and heads of the positive part of attention times gradient, in its row."""
    rows: list[Tensor] = []
    for index, layer in enumerate(run.layers):
        if layer.columns is None or (indices is not None and index not in indices):
            continue
        chosen = _head_indices(layer, heads)
        row = slice(run.row(layer, gradients.word), None)
        weights, gradient = (
            tensor[None, chosen, row][:, :, :1, layer.columns]
            for tensor in (layer.weights(), gradients.weights[index])
        )
        rows.append(positive_grad_times_attention(weights, gradient)[0, 0])
    return torch.stack(rows).mean(0)


def _relevance(run: WordRun, gradients: WordGradients) -> Float[Tensor, " i"]:
    """Relevance of the image tokens, propagated through the layers of the decoder."""
    matrices = [
        positive_grad_times_attention(layer.weights()[None], gradient[None])
        for layer, gradient in zip(run.layers, gradients.weights, strict=True)
    ]
    queries = matrices[0].shape[1]
    row = run.row(run.layers[0], gradients.word)
    start = matrices[0].new_zeros(1, 1, queries)
    # A recurrent decoder has no attention among words that carries relevance back to earlier steps:
    # all steps start with 1, and those after the word have no gradient.
    start[..., slice(None) if run.recurrent else row] = 1.0
    if run.joint:
        return propagate_relevance(matrices, start)[0, 0, run.image_layers[0].columns]
    is_cross = [layer.columns is not None for layer in run.layers]
    selected = [
        matrix if layer.columns is None else matrix[..., layer.columns]
        for layer, matrix in zip(run.layers, matrices, strict=True)
    ]
    return propagate_decoder_relevance(selected, is_cross, start)[0, 0]


def _gradient_embedding(run: WordRun, gradients: WordGradients) -> Float[Tensor, " i"]:
    """Positive part of the product of each image token and its gradient."""
    return (run.embeddings.rows() * gradients.embeddings).sum(-1).relu()


def _gradcam(run: WordRun, gradients: WordGradients) -> Float[Tensor, " i"]:
    """Grad-CAM: channels of the image tokens weighted by their mean gradient."""
    features = (run.features or run.embeddings).rows()
    return grad_cam(features.T[None, :, None], gradients.features.T[None, :, None])[0, 0]


WORD_GRADIENT_METHODS: Mapping[str, Callable[[WordRun, WordGradients], Tensor]] = {
    "gradient_attention": _gradient_attention,
    "relevance": _relevance,
    "gradient_embedding": _gradient_embedding,
    "gradcam": _gradcam,
}
"""Methods that need the gradient of a word: from a run and gradients to a value per image token."""


def _select_layers(run: WordRun, layers: Sequence[int] | None) -> list[WordLayer]:
    """Return the layers that attend to the image, or some of them."""
    available = run.image_layers
    indices = range(len(available)) if layers is None else layers
    if wrong := [index for index in indices if not -len(available) <= index < len(available)]:
        raise ValueError(
            f"layers must be indices of the {len(available)} layers that attend to the image, "
            f"counted from 0; got {wrong[0]}"
        )
    return [available[index] for index in indices]


def _head_indices(layer: WordLayer, heads: Sequence[int] | None) -> list[int]:
    count = layer.steps[0].shape[0]
    if wrong := [head for head in heads or () if not -count <= head < count]:
        raise ValueError(
            f"heads must be indices of the {count} heads of {layer.site}, counted from 0; got "
            f"{wrong[0]}"
        )
    return list(range(count)) if heads is None else [head % count for head in heads]
