"""Pairs of objects: the first layer of a relation network."""

from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import linear


def pairwise_layer(
    objects: Float[Tensor, "b n c"],
    question: Float[Tensor, "*#b m q"],
    weight: Float[Tensor, "hidden c_c_q"],
    bias: Float[Tensor, " hidden"],
) -> Float[Tensor, "b m n n hidden"]:
    """Return a linear layer of [object i; object j; question] for all pairs, without joining them.

    Since the layer is linear, it is the sum of three small products, which are added for each pair.

    Args:
        objects: Objects, with their coordinates.
        question: m questions about each set of objects.
        weight: Weight of the layer; its columns belong to the first object, the second object and
            the question.
        bias: Bias of the layer.

    Raises:
        ValueError: If the weight does not have as many columns as two objects and a question.

    Example:
        >>> import torch
        >>> objects, question = torch.tensor([[[1.0], [2.0]]]), torch.tensor([[[0.5]]])
        >>> weight, bias = torch.tensor([[10.0, 1.0, 1.0]]), torch.zeros(1)
        >>> pairwise_layer(objects, question, weight, bias)[..., 0]
        tensor([[[[11.5000, 12.5000],
                  [21.5000, 22.5000]]]])

    Source:
        Santoro et al. 2017, arXiv:1706.01427, equation 1.
    """
    width = objects.shape[-1]
    expected = 2 * width + question.shape[-1]
    if weight.shape[-1] != expected:
        raise ValueError(
            f"the weight must have {expected} columns, for two objects of {width} and a question "
            f"of {question.shape[-1]}, got {weight.shape[-1]}"
        )
    first, second, rest = weight[:, :width], weight[:, width : 2 * width], weight[:, 2 * width :]
    pairs = linear(objects, first, bias)[:, :, None] + linear(objects, second)[:, None]
    return pairs[:, None] + linear(question, rest)[:, :, None, None]
