"""Errors after each glimpse, counted one by one."""

import torch

from visattn.training.tasks.glimpse_eval import ErrorPerGlimpse


def test_it_counts_wrong_answers_after_each_glimpse() -> None:
    random = torch.Generator().manual_seed(1)
    scores = torch.randn(13, 5, 3, generator=random)
    labels = torch.randint(3, (13,), generator=random)
    errors = ErrorPerGlimpse(5)
    for some in (slice(0, 7), slice(7, 8), slice(8, 13)):  # batches of any size
        errors.update(scores[some], labels[some])
    for glimpse in range(5):
        wrong = sum(int(scores[n, glimpse].argmax()) != int(labels[n]) for n in range(13))
        assert float(errors.compute()[glimpse]) == torch.tensor(wrong / 13)
    assert 0 < errors.compute().min() < errors.compute().max()


def test_probabilities_count_as_scores_do() -> None:
    random = torch.Generator().manual_seed(1)
    scores, labels = torch.randn(13, 5, 3, generator=random), torch.arange(13) % 3
    one, other = ErrorPerGlimpse(5), ErrorPerGlimpse(5)
    one.update(scores, labels)
    other.update(scores.softmax(-1), labels)
    assert torch.equal(one.compute(), other.compute())


def test_it_forgets_when_it_is_reset_and_knows_nothing_of_nothing() -> None:
    errors = ErrorPerGlimpse(2)
    errors.update(torch.zeros(3, 2, 4), torch.ones(3, dtype=torch.long))
    assert errors.compute().tolist() == [1, 1]
    errors.reset()
    errors.update(torch.zeros(0, 2, 4), torch.zeros(0, dtype=torch.long))
    assert errors.compute().isnan().all()
