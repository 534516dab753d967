"""Models that answer questions about images: their laws, and their parts by the equations."""

import copy

import torch
from random_numbers import numbers
from torch import Tensor

import visattn as va
from visattn.models.base import SmallEncoder
from visattn.models.vqa.cross_attention import CrossAttentionVQA
from visattn.models.vqa.mac import MAC, ControlUnit, ReadUnit, WriteUnit
from visattn.models.vqa.model import EncodedQuestions, VQAModel, questions_by_image
from visattn.results.kinds import SPECIAL_TOKENS

ANSWERS = ("red", "blue", "2")
SIZE, GRID = (16, 40), (2, 5)


def models() -> dict[str, VQAModel]:
    """Return one model of each kind, with both encoders of questions, in float64."""
    torch.manual_seed(0)
    parts = ((*SPECIAL_TOKENS, *"abcdefghi"), ANSWERS, SmallEncoder(SIZE, channels=12))
    built = {
        "cross": CrossAttentionVQA(*parts, dim=12, num_heads=3, hidden_size=7),
        "cross, gru": CrossAttentionVQA(*parts, dim=12, num_heads=1, question_encoder="gru"),
        "mac": MAC(*parts, dim=12, steps=3),
    }
    return {name: copy.deepcopy(model).double().eval() for name, model in built.items()}


def questions() -> tuple[Tensor, Tensor]:
    """Return five questions of 1 to 4 words, padded, and the images they are about."""
    rows = torch.tensor([[4, 5, 6, 7], [8, 0, 0, 0], [4, 5, 6, 7], [9, 10, 0, 0], [12, 3, 4, 0]])
    return rows, torch.tensor([1, 0, 1, 1, 2])


def images(count: int = 3) -> Tensor:
    random = torch.Generator().manual_seed(1)
    return torch.rand(count, 3, *SIZE, generator=random, dtype=torch.float64) * 2 - 1


@torch.no_grad()
def test_maps_are_distributions_with_one_name_each() -> None:
    rows, index = questions()
    for name, model in models().items():
        output = model(images(), rows, index)
        assert output.logits.shape == (5, 3), name
        assert output.attention is not None
        assert output.attention.shape == (5, len(model.hop_names), GRID[0] * GRID[1]), name
        assert output.attention.min() >= 0, name
        torch.testing.assert_close(
            output.attention.sum(-1), torch.ones(5, len(model.hop_names)).double()
        )
        if output.heads is not None:
            torch.testing.assert_close(output.heads.mean(2), output.attention)
        if output.words is not None:
            assert output.words.shape == (5, len(model.hop_names), 4), name
            padding = (rows == 0)[:, None].expand_as(output.words)
            assert not output.words[padding].any(), name
            torch.testing.assert_close(
                output.words.sum(-1), torch.ones(5, len(model.hop_names)).double()
            )


@torch.no_grad()
def test_five_pads_more_change_nothing() -> None:
    rows, index = questions()
    longer = torch.nn.functional.pad(rows, (0, 5))
    for name, model in models().items():
        plain, padded = model(images(), rows, index), model(images(), longer, index)
        for short, long in zip(plain, padded, strict=True):
            if short is not None:
                assert (short - long[..., : short.shape[-1]]).abs().max() < 1e-6, name


@torch.no_grad()
def test_questions_that_share_an_image_are_answered_as_if_alone() -> None:
    rows, index = questions()
    paired = torch.tensor([0, 0, 1, 1, 2, 2])
    for name, model in models().items():
        together = model(images(), rows, index)
        alone = [model(images()[i : i + 1], row[None]) for row, i in zip(rows, index, strict=True)]
        regular = model(images(), rows[[0, 1, 2, 3, 4, 0]], paired)
        again = model(images(), rows[[0]], torch.tensor([2]))
        for part, *singles in zip(together, *alone, strict=True):
            if part is not None:
                torch.testing.assert_close(part, torch.cat(singles), msg=name)
        torch.testing.assert_close(regular.logits[5], again.logits[0], msg=name)


@torch.no_grad()
def test_recorded_maps_are_those_of_the_hops() -> None:
    rows, _ = questions()
    for name, model in models().items():
        with va.record(model) as recording:
            output = model(images(1), rows[:1])
        hops = [
            entry.values.flatten(-2)
            for entry in recording.maps
            if entry.values.shape[-2:] == GRID and "tokens.layers" not in entry.site
        ]
        # Cross-attention records each head and token: the first token is the answer.
        hops = [hop.mean(1)[:, 0] if hop.ndim == 4 else hop for hop in hops]
        torch.testing.assert_close(torch.stack(hops, 1), output.attention, msg=name)


def test_gradients_reach_every_parameter() -> None:
    rows, index = questions()
    for name, model in models().items():
        model.train()
        model(images(), rows, index).logits.square().sum().backward()
        without = [key for key, weight in model.named_parameters() if weight.grad is None]
        assert without == [], name


# ------------------------------------------------------------------ equations, in float64

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
