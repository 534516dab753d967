"""Stacked attention, MAC and the relation network against their equations, in float64."""

import torch
from random_numbers import numbers

from tests.models.vqa.test_models import ANSWERS, GRID, WORDS, encoder
from visattn.functional.attention import additive_scores
from visattn.models.vqa.baselines import RelationNetwork
from visattn.models.vqa.mac import ControlUnit, ReadUnit, WriteUnit
from visattn.models.vqa.model import QuestionGroups
from visattn.models.vqa.question_encoders import EncodedQuestions
from visattn.models.vqa.stacked_attention import AttentionHop, StackedAttentionNetwork

ONE = QuestionGroups.from_indices(None, 1)


@torch.no_grad()
def test_stacked_attention_equals_its_equations() -> None:
    """Equations 15 to 22 with plain loops over the cells, paper and authors' form."""
    for bounded in (False, True):
        torch.manual_seed(0)
        model = StackedAttentionNetwork(WORDS, ANSWERS, encoder(), dim=8, tanh_scores=bounded)
        model = model.double().eval()
        features, rows = numbers(1, 12, *GRID, seed=1), torch.tensor([[4, 7, 9]])
        output = model.answer(features, rows)
        project = model.tokens.project
        cells = [torch.tanh(project.weight @ f + project.bias) for f in features[0].flatten(1).T]
        u = model.questions(rows).vector[0]
        for index, hop in enumerate(model.layers):
            query = hop.query.weight @ u + hop.query.bias
            scores = []
            for v in cells:
                if bounded:
                    key = torch.tanh(hop.key.weight @ v + hop.key.bias)
                    inner = hop.score.weight[0] @ (key + torch.tanh(query)) + hop.score.bias[0]
                    scores.append(torch.tanh(inner))
                else:
                    scores.append(hop.score.weight[0] @ torch.tanh(hop.key.weight @ v + query))
            raised = [float(score.exp()) for score in scores]
            p = [value / sum(raised) for value in raised]
            read = sum(weight * v for weight, v in zip(p, cells, strict=True))
            assert output.attention is not None
            torch.testing.assert_close(
                output.attention[0, index], torch.tensor(p, dtype=torch.float64)
            )
            u = u + read
        logits = model.head[1].weight @ u + model.head[1].bias
        torch.testing.assert_close(output.logits[0], logits)


@torch.no_grad()
def test_a_hop_is_the_softmax_of_additive_scores_and_equal_scores_read_the_mean() -> None:
    hop, places, query = (
        AttentionHop(5, 7).double(),
        numbers(1, 11, 5, seed=1),
        numbers(1, 5, seed=2),
    )
    hop.tap.grid = (1, 11)
    read, weights = hop(query, places, ONE)
    scores = additive_scores(hop.query(query), places[0] @ hop.key.weight.T, hop.score.weight[0])
    assert (weights - scores.softmax(-1)).abs().max() < 1e-6
    torch.testing.assert_close(read, weights @ places[0])
    hop.score.weight.zero_()
    torch.testing.assert_close(hop(query, places, ONE)[0], places.mean(1))


@torch.no_grad()
def test_the_code_of_the_authors_ranks_the_cells_alike_for_all_questions() -> None:
    """The question adds one number to all cells inside a monotonic function."""
    torch.manual_seed(0)
    model = StackedAttentionNetwork(WORDS, ANSWERS, encoder(), dim=8, tanh_scores=True).double()
    features, rows = numbers(1, 12, *GRID, seed=1), torch.tensor([[4, 7], [9, 5], [6, 0]])
    for hop in model.layers:
        hop.score.weight.mul_(5)
    output = model.eval().answer(features, rows, torch.zeros(3, dtype=torch.long))
    assert output.attention is not None
    for maps in output.attention.unbind(1):
        assert (maps.argsort(-1) == maps[0].argsort(-1)).all()
        assert (maps - maps[0]).abs().max() > 1e-9


@torch.no_grad()
def test_the_read_unit_of_mac_equals_its_equations() -> None:
    torch.manual_seed(0)
    unit = ReadUnit(4).double()
    unit.tap.grid = (1, 7)
    control, memory, places = numbers(1, 4, seed=1), numbers(1, 4, seed=2), numbers(1, 7, 4, seed=3)
    read, weights = unit(control, memory, places, ONE)
    scores = []
    for k in places[0]:
        interaction = unit.memory(memory[0]) * unit.knowledge(k)
        joined = unit.join.weight @ torch.cat((interaction, k))
        scores.append(unit.score.weight[0] @ (control[0] * joined))
    expected = torch.stack(scores).softmax(-1)
    torch.testing.assert_close(weights[0], expected)
    torch.testing.assert_close(read[0], expected @ places[0])


@torch.no_grad()
def test_the_control_and_write_units_of_mac_equal_their_equations() -> None:
    torch.manual_seed(0)
    unit, write = ControlUnit(4).double(), WriteUnit(4).double()
    control, query, words = numbers(1, 4, seed=1), numbers(1, 4, seed=2), numbers(1, 3, 4, seed=3)
    mask = torch.tensor([[True, True, False]])
    read, weights = unit(control, query, EncodedQuestions(query, words, mask))
    joined = unit.join.weight @ torch.cat((control[0], query[0])) + unit.join.bias
    scores = torch.stack([unit.score.weight[0] @ (joined * word) for word in words[0, :2]])
    expected = scores.softmax(-1)
    torch.testing.assert_close(weights[0, :2], expected)
    assert weights[0, 2] == 0
    torch.testing.assert_close(read[0], expected @ words[0, :2])
    memory = write.join.weight @ torch.cat((read[0], control[0])) + write.join.bias
    torch.testing.assert_close(write(control, read)[0], memory)


@torch.no_grad()
def test_permuting_objects_with_their_coordinates_changes_no_relation() -> None:
    for reduce in ("mean", "sum"):
        torch.manual_seed(0)
        model = RelationNetwork(WORDS, ANSWERS, encoder(), dim=8, reduce=reduce).double()
        objects, question = numbers(2, 7, 14, seed=1), numbers(2, 3, 8, seed=2)
        order = torch.tensor([3, 0, 6, 1, 5, 2, 4])
        torch.testing.assert_close(
            model.relations(objects, question), model.relations(objects[:, order], question)
        )
