"""MAC and a reading layer against their equations, in float64."""

import torch
from random_numbers import numbers

from visattn.models.vqa.cross_attention import ReadingLayer
from visattn.models.vqa.mac import ControlUnit, ReadUnit, WriteUnit
from visattn.models.vqa.model import EncodedQuestions, questions_by_image

ONE = questions_by_image(torch.ones(1, 1, dtype=torch.long), None)


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
def test_a_reading_layer_equals_its_equations() -> None:
    """Each head of a question weighs the cells; the heads are joined, then the MLP follows."""
    torch.manual_seed(0)
    layer = ReadingLayer(6, 2).double()
    layer.cross_attention.tap.grid = (1, 7)
    question, places = numbers(1, 6, seed=1), numbers(1, 7, 6, seed=2)
    result, weights = layer(question, places, ONE)
    attend = layer.cross_attention
    query = attend.query(layer.norm2(question))[0].view(2, 3)
    keys, values = (part(places)[0].view(7, 2, 3) for part in (attend.key, attend.value))
    expected = torch.einsum("hd,nhd->hn", query, keys).div(3**0.5).softmax(-1)
    torch.testing.assert_close(weights[0], expected)
    read = attend.out(torch.einsum("hn,nhd->hd", expected, values).flatten())
    after = question[0] + read
    torch.testing.assert_close(result[0], after + layer.mlp(layer.norm3(after)))
