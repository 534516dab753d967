"""Methods for single words, against closed forms and explicit matrices."""

import pytest
import torch
from torch import Tensor

from visattn.attribution.words import (
    WORD_GRADIENT_METHODS,
    TokenVectors,
    WordLayer,
    WordRun,
    word_attention,
    word_attributions,
)


def one_layer_run(*, frozen_weights: bool = True) -> tuple[WordRun, Tensor, Tensor, Tensor]:
    """Three words read five image tokens once: y = A E w, with fixed or computed A."""
    torch.manual_seed(1)
    tokens = torch.randn(5, 7, dtype=torch.float64, requires_grad=True)
    readout = torch.randn(7, dtype=torch.float64)
    scores = torch.randn(3, 5, dtype=torch.float64)
    weights = scores.softmax(-1)[None].requires_grad_()
    if not frozen_weights:
        weights = (scores + tokens.sum(-1)).softmax(-1)[None]
    log_probs = weights[0] @ tokens @ readout
    layer = WordLayer("attention", (weights,), torch.arange(5))
    run = WordRun(log_probs, (layer,), TokenVectors(tokens, lambda tensor: tensor))
    return run, weights[0].detach(), tokens.detach(), readout


def test_closed_forms_of_one_linear_layer() -> None:
    run, weights, tokens, readout = one_layer_run()
    maps = word_attributions(run, list(WORD_GRADIENT_METHODS))
    product = weights * (tokens @ readout)
    for method in ("gradient_attention", "relevance", "gradient_embedding"):
        torch.testing.assert_close(maps[method], product.relu())
    # The gradient for token i is A_i w, so that its channel mean over 5 tokens is w / 5.
    cam = (tokens @ readout / 5).relu().expand(3, -1)
    torch.testing.assert_close(maps["gradcam"], cam)
    torch.testing.assert_close(word_attention(run), weights)


def test_gradient_of_the_tokens_includes_the_path_through_the_scores() -> None:
    run, weights, tokens, readout = one_layer_run(frozen_weights=False)
    values = tokens @ readout
    through_scores = weights * (values - (weights * values).sum(-1, keepdim=True))
    gradient = weights[..., None] * readout + through_scores[..., None]
    expected = (tokens * gradient).sum(-1).relu()
    maps = word_attributions(run, ["gradient_embedding"])["gradient_embedding"]
    torch.testing.assert_close(maps, expected)


def joint_run(*, heads: int = 2) -> tuple[WordRun, list[Tensor]]:
    """Two layers over image tokens 1, 2, 4 and words; the last three queries predict words."""
    torch.manual_seed(3)
    layers = [torch.rand(heads, 7, 7, dtype=torch.float64).requires_grad_() for _ in range(2)]
    embeddings = torch.randn(7, 5, dtype=torch.float64, requires_grad=True)
    states = embeddings
    for weights in layers:
        states = states + (weights @ states).mean(0).tanh()
    columns = torch.tensor([1, 2, 4])
    run = WordRun(
        states[4:].sum(-1),
        tuple(WordLayer(f"{i}", (weights,), columns) for i, weights in enumerate(layers)),
        TokenVectors(embeddings, lambda tensor: tensor[columns]),
        joint=True,
    )
    return run, layers


def test_relevance_of_a_joint_sequence_is_the_product_of_all_layers() -> None:
    run, layers = joint_run()
    maps = word_attributions(run, ["relevance", "gradient_attention"], layers=[1], heads=[1])
    for word in range(3):
        total, products = torch.eye(7, dtype=torch.float64), list[Tensor]()
        for weights in layers:
            [gradient] = torch.autograd.grad(run.log_probs[word], [weights], retain_graph=True)
            product = (weights * gradient).detach().relu()
            products.append(product)
            total = total + product.mean(0) @ total
        torch.testing.assert_close(maps["relevance"][word], total[4 + word, [1, 2, 4]])
        row = products[1][1, 4 + word, [1, 2, 4]]
        torch.testing.assert_close(maps["gradient_attention"][word], row)


def test_relevance_of_a_decoder_is_that_of_the_joint_sequence() -> None:
    torch.manual_seed(5)
    own, cross = (torch.rand(2, 3, n, dtype=torch.float64).requires_grad_() for n in (3, 5))
    own2, cross2 = (torch.rand(2, 3, n, dtype=torch.float64).requires_grad_() for n in (3, 5))
    places = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    states = torch.randn(3, 4, dtype=torch.float64)
    for self_weights, cross_weights in ((own, cross), (own2, cross2)):
        states = states + (self_weights @ states).mean(0).sin()
        states = states + (cross_weights @ places).mean(0).sin()
    kinds = [(own, None), (cross, torch.arange(5)), (own2, None), (cross2, torch.arange(5))]
    layers = tuple(WordLayer(str(i), (w,), c) for i, (w, c) in enumerate(kinds))
    run = WordRun(states.sum(-1), layers, TokenVectors(places, lambda tensor: tensor))
    maps = word_attributions(run, ["relevance"])["relevance"]
    for word in range(3):
        total = torch.eye(8, dtype=torch.float64)  # five places, three words
        for weights, columns in kinds:
            [gradient] = torch.autograd.grad(run.log_probs[word], [weights], retain_graph=True)
            block = torch.zeros(8, 8, dtype=torch.float64)
            keys = slice(5, None) if columns is None else slice(5)
            block[5:, keys] = (weights * gradient).detach().relu().mean(0)
            total = total + block @ total
        torch.testing.assert_close(maps[word], total[5 + word, :5])


def test_what_does_not_exist_is_refused() -> None:
    run, _ = joint_run()
    with pytest.raises(ValueError, match="2 layers that attend to the image"):
        word_attention(run, layers=[2])
    with pytest.raises(ValueError, match="2 heads of 0"):
        word_attributions(run, ["gradient_attention"], heads=[5])
    with pytest.raises(ValueError, match="got 'rollout'"):
        word_attributions(run, ["rollout"])
