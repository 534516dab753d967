"""Metrics of questions: numbers by hand, controls of the counts, maps against plain loops."""

import torch

from visattn.metrics.grounding import (
    attention_correctness,
    box_coverage,
    pointing_hit,
    uniform_baseline,
)
from visattn.training.questions.metrics import (
    QuestionScores,
    ReferentScores,
    answer_scores,
    referent_boxes,
)


def test_accuracy_majority_and_off_type_answers_by_hand() -> None:
    """Five questions: two of shape, one correct; two of side, correct; one count, wrong."""
    scores = QuestionScores({"shape": "near", "side": "near", "count": "far"}, 5)
    correct = torch.tensor([0, 1, 2, 2, 4])
    predicted, types = torch.tensor([[0, 0, 2, 2, 0], [0, 0, 1, 1, 2]])
    for part in (slice(0, 2), slice(2, 5)):  # in batches of any size
        scores.update(predicted[part], answer_scores(correct[part], None, 5), types[part])
    values = {name: float(value) for name, value in scores.compute().items()}
    assert tuple(values) == scores.names
    expected = {
        "accuracy": 3 / 5,
        "mean_accuracy": (0.5 + 1 + 0) / 3,
        "accuracy_near": 3 / 4,
        "accuracy_far": 0,
        "majority": (0.5 + 1 + 1) / 3,
        "majority_near": 3 / 4,
        "off_type_answers": 1 / 5,
        "num_questions": 5,
    }
    for name, value in expected.items():
        assert abs(values[name] - value) < 1e-6, name


def test_soft_scores_count_by_their_accuracy_and_unknown_answers_as_wrong() -> None:
    scores = QuestionScores({"x": ""}, 2)
    soft = torch.tensor([[0.9, 0.3], [0.0, 0.0]])
    scores.update(
        torch.tensor([1, 0]),
        answer_scores(torch.tensor([0, -1]), soft, 2),
        soft.new_zeros(2).long(),
    )
    values = scores.compute()
    torch.testing.assert_close(values["accuracy"], torch.tensor(0.15))
    torch.testing.assert_close(values["majority"], torch.tensor(0.45))


def test_referent_scores_equal_loops_over_questions() -> None:
    generator = torch.Generator().manual_seed(1)
    count, hops, steps, objects, grid = 17, 3, 2, 5, (5, 7)
    attention = torch.rand(count, hops, *grid, generator=generator).flatten(2)
    attention = (attention / attention.sum(-1, keepdim=True)).unflatten(2, grid)
    corners = torch.rand(count, objects, 4, generator=generator) * 20
    boxes = torch.cat([corners[..., :2], corners[..., :2] + 3 + corners[..., 2:]], -1)
    referents = torch.rand(count, steps, objects, generator=generator) < 0.3
    size = (43, 47)
    placed = referent_boxes(boxes, referents, torch.arange(count), size)
    scores = ReferentScores(num_steps=steps, num_hops=hops)
    scores.update(attention[:9], placed[:9])
    scores.update(attention[9:], placed[9:])
    computed = scores.compute()
    assert tuple(computed) == scores.names
    sides = torch.tensor([47.0, 43.0, 47.0, 43.0])
    for step in range(steps):
        for hop in range(hops):
            values = []
            for row in range(count):
                own = boxes[row][referents[row, step]] / sides
                if len(own):
                    coverage, hop_map = box_coverage(own, grid), attention[row, hop]
                    correctness = float(attention_correctness(hop_map, coverage))
                    area = float(uniform_baseline(coverage))
                    values.append([float(pointing_hit(hop_map, own)), correctness, area])
            means = torch.tensor(values).mean(0).tolist()
            for metric, mean in zip(("pointing", "mass", "area"), means, strict=True):
                name = f"hop_{hop + 1}_step_{step + 1}_{metric}"
                assert abs(float(computed[name]) - mean) < 1e-5
