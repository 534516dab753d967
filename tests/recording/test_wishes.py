"""Asking for some rows, layers and heads: what is wanted is made, and nothing else."""

import pytest
import torch
from torch import Tensor, nn

from visattn.blocks.tap import RecordRequest, Tap
from visattn.recording.recorder import record


class Rows(nn.Module):
    """Attention of four heads among a class token and the cells of a grid, as it is wished."""

    def __init__(self) -> None:
        super().__init__()
        self.tap = Tap("tokens")
        self.asked: list[RecordRequest] = []

    def forward(self, weights: Tensor) -> None:
        if self.tap.wanted:
            wish = self.tap.wish
            self.asked.append(wish)
            self.tap.grid, self.tap.roles, self.tap.shown = (2, 3), ("class",), wish
            self.tap.notes = {"kind": "test"}
            self.tap(weights[:, wish.chosen_heads(4)][:, :, wish.rows(("class",), 7)])


WEIGHTS = torch.rand(2, 4, 7, 7, generator=torch.Generator().manual_seed(3))


def test_only_what_is_wanted_is_made() -> None:
    model = nn.Sequential(Rows())
    with record(model, queries="class", heads=(3, 0)) as seen:
        model(WEIGHTS)
    assert torch.equal(seen.maps[0].values, WEIGHTS[:, [3, 0], :1, 1:].unflatten(-1, (2, 3)))
    assert torch.equal(seen.weights[0], WEIGHTS[:, [3, 0], :1])
    assert dict(seen.maps[0].made) == {
        "call": 0, "layer": 0, "kind": "test", "before": ("class",),
        "queries": "class", "heads": (3, 0),
    }  # fmt: skip
    rows = model[0]
    assert isinstance(rows, Rows)
    assert rows.asked == [RecordRequest("class", (3, 0))]
    assert rows.tap.wishes == []
    model(WEIGHTS)
    assert len(rows.asked) == 1


def test_listeners_with_different_wishes_each_get_their_own() -> None:
    model = Rows()
    with record(model) as everything, record(model, queries=[6, -6], heads=[2]) as some:
        model(WEIGHTS)
        with record(model, queries=[6, -6], heads=[2]) as again:
            model(WEIGHTS)
    assert torch.equal(everything.weights[1], WEIGHTS)
    for seen in (some, again):
        assert torch.equal(seen.weights[0], WEIGHTS[:, [2]][:, :, [6, 1]])


def test_layers_are_chosen_by_number_and_by_name() -> None:
    model = nn.ModuleDict({name: Rows() for name in ("first", "second", "last")})
    chosen = {0: ["first"], -1: ["last"], "*s*t.tap": ["first", "last"], (2, 1): ["last", "second"]}
    for layers, names in chosen.items():
        with record(model, layers=layers) as seen:
            for rows in model.values():
                rows(WEIGHTS)
        assert sorted(one.site for one in seen.maps) == sorted(f"{name}.tap" for name in names)


def test_what_is_not_there_is_said() -> None:
    model = Rows()
    for layers, said in ((3, "there are 1 sites, counted from 0, got layers=3"),
                         ("blocks*", "no site is called 'blocks\\*'; there are tap")):  # fmt: skip
        with pytest.raises(ValueError, match=said), record(model, layers=layers):
            pass
    no_register = "there is no register token here, .* before the patches are class: ask for"
    with pytest.raises(ValueError, match=no_register), record(model, queries="register"):
        model(WEIGHTS)
    with pytest.raises(ValueError, match="there are 7 tokens"), record(model, queries=[7]):
        model(WEIGHTS)
    with pytest.raises(ValueError, match="there are 4 heads"), record(model, heads=[-5]):
        model(WEIGHTS)
    assert model.tap.wishes == []


def test_blocks_that_know_no_wishes_are_not_asked_in_vain() -> None:
    tokens, gate = nn.Sequential(Tap("tokens", grid=(1, 5))), nn.Sequential(Tap("gate"))
    alone = r"attention at 0 cannot show the rows of single tokens .* queries='all'"
    with pytest.raises(ValueError, match=alone), record(tokens, queries="class"):
        tokens(torch.rand(2, 5, 5))
    with record(gate, queries="class", heads=[0]) as seen:
        gate(torch.rand(2, 1, 3, 5))
    assert seen.maps[0].values.shape == (2, 1, 3, 5)
