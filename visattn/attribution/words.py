"""Methods for single words of a captioner: attention, gradients, relevance and Grad-CAM per word.

A run over a photo and its whole caption, with the graph of each word:

    features [c y x] --projection--> tokens [i d] --cross [h t i] of each layer--> log_probs [t]
                                                      own [h t t] of each layer

A method is a function of this run, its gradients by one word, and the word, to a row over i.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

import torch
from jaxtyping import Float
from torch import Tensor

from visattn.attribution.cam import grad_cam
from visattn.results.kinds import WordMethod

_SELECTABLE = ("attention", "gradient_attention")
"""Methods that read attention weights of single layers and heads."""
Indices = int | Sequence[int] | None


@dataclass(frozen=True, eq=False)
class WordRun:
    """One forward pass over an image and its whole caption, with its graph; or gradients of it.

    Args:
        log_probs: Log-probability of each word, given those before it.
        cross: For each layer, the attention of the words to the image from which the model
            continued: one tensor `h t i`, or one `h 1 i` for each word if these were read one after
            the other.
        own: For each layer of a transformer, the attention among the words, `h t t`.
        tokens: Image tokens as the decoder reads them. No normalization may follow at once, for
            then the product of token and gradient is 0.
        features: Features of the encoder.
    """

    log_probs: Float[Tensor, " t"]
    cross: Sequence[Sequence[Float[Tensor, "_h _q i"]]]
    own: Sequence[Float[Tensor, "_h t t"]]
    tokens: Float[Tensor, "1 i d"]
    features: Float[Tensor, "1 c y x"]

    def gradients(self, word: int) -> "WordRun":
        """Return the gradient of one word's log-probability in place of each tensor."""
        nodes = [*(step for layer in self.cross for step in layer), *self.own]
        nodes += [self.tokens, self.features]
        found: Iterator[Tensor] = iter(
            torch.autograd.grad(
                self.log_probs[word], nodes, retain_graph=True, allow_unused=True,
                materialize_grads=True,
            )
        )  # fmt: skip
        cross = [[next(found) for _ in layer] for layer in self.cross]
        return WordRun(self.log_probs, cross, [next(found) for _ in self.own], *found)

    def attention(self, layers: Indices = None, heads: Indices = None) -> Float[Tensor, "l h t i"]:
        """Return the attention of the words to the image in some layers and heads.

        Raises:
            ValueError: If there is no such layer or head.
        """
        chosen = _listed("layers", layers, len(self.cross))
        weights = torch.stack([torch.cat([*self.cross[index]], 1) for index in chosen])
        return weights[:, _listed("heads", heads, weights.shape[1])]


def _listed(name: str, chosen: Indices, count: int) -> list[int]:
    indices = (
        [chosen] if isinstance(chosen, int) else list(range(count) if chosen is None else chosen)
    )
    if wrong := [index for index in indices if not -count <= index < count]:
        raise ValueError(
            f"{name} must be indices of the {count} {name} that attend to the image, counted from "
            f"0; got {wrong[0]}"
        )
    return indices


def word_attributions(
    run: WordRun, method: str, *, layers: Indices = None, heads: Indices = None
) -> Float[Tensor, "t i"]:
    """Return a value per word and image token; gradients take one backward pass per word.

    Args:
        run: A captioner's run over a photo and its caption.
        method: Name of a method.
        layers: For `attention` and `gradient_attention`: indices of layers; by default all count.
        heads: For these: indices of heads.

    Raises:
        ValueError: If there is no such layer or head.

    Example:
        >>> tokens = torch.tensor([[[1.0], [2.0]]], requires_grad=True)
        >>> weights = torch.tensor([[[0.25, 0.75]]], requires_grad=True)
        >>> log_probs = -((weights[0] @ tokens[0])[:, 0] - 3) ** 2
        >>> run = WordRun(log_probs, [[weights]], [], tokens, tokens[..., None].mT)
        >>> word_attributions(run, "gradient_attention")  # A · 2.5 · value
        tensor([[0.6250, 3.7500]])

    Source:
        Gradient times attention and relevance: Chefer, Gur and Wolf 2021, arXiv:2103.15679;
        Grad-CAM: Selvaraju et al. 2017, arXiv:1610.02391, section 7.1, per word.
    """
    if method == "attention":
        return run.attention(layers, heads).detach().mean((0, 1))
    rows: list[Tensor] = []
    for word in range(len(run.log_probs)):
        gradients = run.gradients(word)
        if method == "gradient_attention":
            product = run.attention(layers, heads) * gradients.attention(layers, heads)
            rows.append(product[:, :, word].relu().mean((0, 1)))
        else:
            rows.append(WORD_GRADIENT_METHODS[method](run, gradients, word))
    return torch.stack(rows).detach()


def _relevance(run: WordRun, gradients: WordRun, word: int) -> Float[Tensor, " i"]:
    """Relevance of the image tokens, propagated back through the layers of the decoder.

    Source:
        Chefer, Gur and Wolf 2021, arXiv:2103.15679, equations 5 to 7. Deviation: attention to the
        image is a layer of the joint sequence, without the normalization of equations 8 to 10.
    """
    to_image = (run.attention() * gradients.attention()).relu().mean(1)
    among = [
        (own * gradient).relu().mean(0)
        for own, gradient in zip(run.own, gradients.own, strict=True)
    ]
    # A recurrent decoder has no attention among words that carries relevance back to earlier steps:
    # all steps start with 1, and those after the word have no gradient.
    rows = to_image.new_ones(to_image.shape[1])
    if among:
        rows = torch.zeros_like(rows).index_fill(0, torch.tensor([word], device=rows.device), 1.0)
    total = torch.zeros_like(to_image[0, 0])
    for layer in reversed(range(len(to_image))):
        total = total + rows @ to_image[layer]
        if among:
            rows = rows + rows @ among[layer]
    return total


def _gradient_embedding(run: WordRun, gradients: WordRun, _word: int) -> Float[Tensor, " i"]:
    """Positive part of the product of each image token and its gradient."""
    return (run.tokens * gradients.tokens).sum(-1).relu()[0]


def _gradcam(run: WordRun, gradients: WordRun, _word: int) -> Float[Tensor, " i"]:
    """Grad-CAM: channels of the features weighted by their mean gradient."""
    return grad_cam(run.features, gradients.features).flatten()


WORD_GRADIENT_METHODS: Mapping[str, Callable[[WordRun, WordRun, int], Tensor]] = {
    "relevance": _relevance,
    "gradient_embedding": _gradient_embedding,
    "gradcam": _gradcam,
}
"""Methods of the gradient of a word: from a run, gradients and the word to a row over the image."""


def check_method(method: str, layers: Indices, heads: Indices) -> None:
    """Refuse an unknown method, and layers and heads for one that does not read them one by one.

    Raises:
        ValueError: If the method is unknown, or layers or heads do not apply.

    Example:
        >>> check_method("gradcam", None, [0])
        Traceback (most recent call last):
        ValueError: layers and heads select attention weights, which gradcam does not read one by
        one; use attention or gradient_attention, or leave them out
    """
    known = get_args(WordMethod)
    if method not in known:
        raise ValueError(f"methods for words are {', '.join(known)}; got {method!r}")
    if method not in _SELECTABLE and (layers, heads) != (None, None):
        raise ValueError(
            f"layers and heads select attention weights, which {method} does not read one by one; "
            f"use {' or '.join(_SELECTABLE)}, or leave them out"
        )
