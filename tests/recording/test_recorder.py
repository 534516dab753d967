"""Listening: every map is kept, and the model comes back as it was."""

import pytest
import torch
from torch import Tensor, nn

from visattn.blocks.tap import MapKind, Tap
from visattn.recording.recorder import record


class Looking(nn.Module):
    """A gate, and attention over a grid that is written in one row."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = Tap("gate")
        self.words = Tap("words")

    def forward(self, x: Tensor) -> Tensor:
        gate = self.gate(x.sigmoid())
        self.words.grid = (x.shape[-2], x.shape[-1])
        return gate.sum() + self.words(x.flatten(-2).softmax(-1)).sum()


def hooks(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) for module in model.modules())


def test_every_map_is_kept_in_order_with_site_kind_and_call() -> None:
    model, x = Looking(), torch.rand(2, 1, 3, 5, requires_grad=True)
    with record(model) as seen:
        expected = model(x)
        model(x)
    assert [(one.site, one.kind, one.made["call"]) for one in seen.maps] == [
        ("gate", "gate", 0),
        ("words", "words", 0),
        ("gate", "gate", 1),
        ("words", "words", 1),
    ]
    assert all(one.values.shape == (2, 1, 3, 5) for one in seen.maps)
    torch.testing.assert_close(seen.maps[0].values, x.detach().sigmoid())
    torch.testing.assert_close(seen.maps[1].values.flatten(-2), x.detach().flatten(-2).softmax(-1))
    assert not any(one.values.requires_grad for one in seen.maps)
    torch.testing.assert_close(model(x), expected)


def test_blocks_know_while_somebody_listens() -> None:
    model = Looking()
    with record(model):
        assert model.gate.wanted
        model(torch.rand(1, 1, 2, 2))
    assert not model.gate.wanted


def test_nothing_is_left_behind_after_an_error_or_a_hundred_calls() -> None:
    model = Looking()
    with pytest.raises(RuntimeError, match="by the way"), record(model):
        raise RuntimeError("by the way")
    assert hooks(model) == 0
    for _ in range(100):
        with record(model) as seen:
            model(torch.zeros(1, 1, 1, 1))
        assert len(seen.maps) == 2
    assert hooks(model) == 0


def test_recordings_inside_each_other_hear_the_same() -> None:
    model = Looking()
    with record(model) as outer:
        with record(model.gate) as inner:
            model(torch.rand(1, 1, 2, 2))
        assert hooks(model) == 2
    assert [one.site for one in inner.maps] == [""]
    assert len(outer.maps) == 2


def test_silence_is_an_error() -> None:
    with pytest.raises(ValueError, match="ReLU holds no Tap"), record(nn.ReLU()):
        pass
    model = Looking()
    silence = pytest.raises(ValueError, match=r"Looking made no map .* uses its taps: gate, words")
    with silence, record(model):
        pass
    assert hooks(model) == 0


def test_an_error_inside_is_not_hidden_by_silence() -> None:
    with pytest.raises(KeyError, match="mine"), record(Looking()):
        raise KeyError("mine")


def test_a_grid_that_does_not_fit_is_named() -> None:
    model = nn.Sequential(Tap("words", grid=(2, 3)))
    misfit = r"at 0 must run over its grid of 2 x 3 cells, got \(1, 5\)"
    with pytest.raises(ValueError, match=misfit), record(model):
        model(torch.rand(1, 5))
    assert hooks(model) == 0


@pytest.mark.parametrize("kind", ["tokens", "words"])
def test_tokens_without_a_grid_are_no_rows_and_columns(kind: MapKind) -> None:
    model = nn.Sequential(Tap(kind))
    gridless = r"at 0, \[2, 3, 5, 7\], run over a row of 7 tokens whose grid .*set tap\.grid"
    with pytest.raises(ValueError, match=gridless), record(model):
        model(torch.rand(2, 3, 5, 7).softmax(-1))
    assert hooks(model) == 0
    gate = nn.Sequential(Tap("gate"))
    with record(gate) as seen:
        gate(torch.rand(2, 3, 5, 7))
    assert seen.maps[0].values.shape == (2, 3, 5, 7)


def test_models_that_skip_hooks_are_refused() -> None:
    compiled = torch.compile(Looking())
    inside = nn.Sequential(Looking())
    inside[0].compile()
    for model in (compiled, inside):
        assert isinstance(model, nn.Module)
        with pytest.raises(ValueError, match="is compiled or scripted"), record(model):
            pass
