"""Methods for single words, against closed forms and explicit matrices."""

import pytest
import torch
from torch import Tensor

from visattn.attribution.words import WordRun, word_attributions


def one_layer_run(*, frozen_weights: bool = True) -> tuple[WordRun, Tensor, Tensor, Tensor]:
    """Three words read five image tokens once: y = A E w, with fixed or computed A."""
    torch.manual_seed(1)
    features = torch.randn(1, 7, 1, 5, dtype=torch.float64, requires_grad=True)
    tokens = features.flatten(2).mT
    readout = torch.randn(7, dtype=torch.float64)
    scores = torch.randn(3, 5, dtype=torch.float64)
    weights = scores.softmax(-1)[None].requires_grad_()
    if not frozen_weights:
        weights = (scores + tokens[0].sum(-1)).softmax(-1)[None]
    log_probs = weights[0] @ tokens[0] @ readout
    run = WordRun(log_probs, [[weights]], [], tokens, features)
    return run, weights[0].detach(), tokens[0].detach(), readout


def test_closed_forms_of_one_linear_layer() -> None:
    run, weights, tokens, readout = one_layer_run()
    product = weights * (tokens @ readout)
    for method in ("gradient_attention", "relevance", "gradient_embedding"):
        torch.testing.assert_close(word_attributions(run, method), product.relu())
    # The gradient for token i is A_i w, so that its channel mean over 5 tokens is w / 5.
    cam = (tokens @ readout / 5).relu().expand(3, -1)
    torch.testing.assert_close(word_attributions(run, "gradcam"), cam)
    torch.testing.assert_close(word_attributions(run, "attention"), weights)


def test_gradient_of_the_tokens_includes_the_path_through_the_scores() -> None:
    run, weights, tokens, readout = one_layer_run(frozen_weights=False)
    values = tokens @ readout
    through_scores = weights * (values - (weights * values).sum(-1, keepdim=True))
    gradient = weights[..., None] * readout + through_scores[..., None]
    expected = (tokens * gradient).sum(-1).relu()
    torch.testing.assert_close(word_attributions(run, "gradient_embedding"), expected)


def test_relevance_of_a_decoder_is_that_of_the_joint_sequence() -> None:
    torch.manual_seed(5)
    own, own2 = (torch.rand(2, 3, 3, dtype=torch.float64).requires_grad_() for _ in range(2))
    cross, cross2 = (torch.rand(2, 3, 5, dtype=torch.float64).requires_grad_() for _ in range(2))
    places = torch.randn(1, 5, 4, dtype=torch.float64, requires_grad=True)
    states = torch.randn(3, 4, dtype=torch.float64)
    for self_weights, cross_weights in ((own, cross), (own2, cross2)):
        states = states + (self_weights @ states).mean(0).sin()
        states = states + (cross_weights @ places[0]).mean(0).sin()
    run = WordRun(states.sum(-1), [[cross], [cross2]], [own, own2], places, places[..., None])
    maps = word_attributions(run, "relevance")
    one = word_attributions(run, "gradient_attention", layers=1, heads=[1])
    for word in range(3):
        total = torch.eye(8, dtype=torch.float64)  # five places, three words
        for weights in (own, cross, own2, cross2):
            [gradient] = torch.autograd.grad(run.log_probs[word], [weights], retain_graph=True)
            product = (weights * gradient).detach().relu()
            block = torch.zeros(8, 8, dtype=torch.float64)
            block[5:, slice(5) if weights.shape[2] == 5 else slice(5, None)] = product.mean(0)
            total = total + block @ total
        torch.testing.assert_close(maps[word], total[5 + word, :5])
        torch.testing.assert_close(one[word], product[1, word])


def test_what_does_not_exist_is_refused() -> None:
    run, *_ = one_layer_run()
    with pytest.raises(ValueError, match="below 1 of the layers that attend to the image; got 1"):
        word_attributions(run, "attention", layers=[1])
    with pytest.raises(ValueError, match="below 1 of the heads .* got 5"):
        word_attributions(run, "gradient_attention", heads=[5])
