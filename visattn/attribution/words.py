"""Attribution per word of a caption: attention, gradients, relevance and Grad-CAM.

One forward pass over a photo and its whole caption keeps the graph of each word:

    features [c y x] --projection--> tokens [i d] --cross [h t i] of each layer--> log_probs [t]
                                                      own [h t t] of each layer

A method maps this run, the gradients of one word and the index of the word to a row over i.
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
"""Methods for which layers and heads can be selected."""
Indices = int | Sequence[int] | None


@dataclass(frozen=True, eq=False)
class WordRun:
    """Tensors of one forward pass over an image and its caption, with their graph; or gradients.

    Args:
        log_probs: Log-probability of each word, given the previous ones.
        cross: For each layer, the cross-attention from words to the image that the model continued
            from: one tensor `h t i`, or one `h 1 i` for each step of a recurrent decoder.
        own: For each layer of a transformer, the self-attention among the words, `h t t`.
        tokens: Image tokens as the decoder reads them; not just before a normalization, after which
            the product of token and gradient is 0.
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
        """Return the cross-attention from words to the image in the selected layers and heads.

        Raises:
            ValueError: If there is no such layer or head, or the model has no `attention_site`.
        """
        if not self.cross:
            raise ValueError(
                "gradients of attention, its layers and heads need the weights that the decoder "
                "continues from: set attention_site of the captioner to the name of the module "
                "that passes them on; gradcam, gradient_embedding and occlusion do not need it"
            )
        chosen = _listed("layers", layers, len(self.cross))
        weights = torch.stack([torch.cat([*self.cross[index]], 1) for index in chosen])
        return weights[:, _listed("heads", heads, weights.shape[1])]


def _listed(name: str, chosen: Indices, count: int) -> list[int]:
    indices = (
        [chosen] if isinstance(chosen, int) else list(range(count) if chosen is None else chosen)
    )
    if wrong := [index for index in indices if not -count <= index < count]:
        raise ValueError(
            f"{name} must be indices below {count} of the {name} that attend to the image; "
            f"got {wrong[0]}"
        )
    return indices


def word_attributions(
    run: WordRun, method: str, *, layers: Indices = None, heads: Indices = None
) -> Float[Tensor, "t i"]:
    """Return an attribution per word and image token.

    Args:
        run: A captioner's forward pass over a photo and its caption.
        method: Name of a method; all but `attention` run one backward pass per word.
        layers: Indices of layers for `attention` and `gradient_attention`; all by default.
        heads: Indices of heads for the same methods; all by default.

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
        Grad-CAM: Selvaraju et al. 2017, arXiv:1610.02391, section "Image Captioning", per word.
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
        Chefer, Gur and Wolf 2021, arXiv:2103.15679, equations 5 to 7. Deviation: cross-attention
        counts as a layer of the joint sequence, without the normalization of equations 8 to 10.
    """
    to_image = (run.attention() * gradients.attention()).relu().mean(1)
    among = [
        (own * gradient).relu().mean(0)
        for own, gradient in zip(run.own, gradients.own, strict=True)
    ]
    # A recurrent decoder has no self-attention to carry relevance back to earlier steps, so all
    # steps start with 1; those after the word have no gradient.
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
"""Gradient methods: from a run, its gradients and the index of the word to a row over the image."""


def check_method(method: str, layers: Indices, heads: Indices) -> None:
    """Check the name of a method, and that layers and heads apply to it.

    Raises:
        ValueError: If the method is unknown, or layers or heads do not apply.

    Example:
        >>> check_method("gradcam", None, [0])
        Traceback (most recent call last):
        ValueError: layers and heads apply only to attention and gradient_attention, got method
        gradcam; use one of these, or leave them out
    """
    known = get_args(WordMethod)
    if method not in known:
        raise ValueError(f"the method for words must be one of {', '.join(known)}; got {method!r}")
    if method not in _SELECTABLE and (layers, heads) != (None, None):
        raise ValueError(
            f"layers and heads apply only to {' and '.join(_SELECTABLE)}, got method {method}; "
            "use one of these, or leave them out"
        )
