"""Graphs of captioners whose state has a fixed size: the start and one decoding step."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import UInt8
from torch import Tensor, nn

from visattn.models.captioning.captioner import Captioner
from visattn.models.configurable import ModelGraph, example_images
from visattn.results.kinds import END, PAD, START, UNKNOWN


class _CaptionStart(nn.Module):
    """The encoder of a captioner, up to the state before the first word."""

    def __init__(self, model: Captioner[Any]) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: UInt8[Tensor, "b c y x"]) -> tuple[Tensor, ...]:
        """Return the tensors of the state, in the order of its fields."""
        return tuple(self.model.start(self.model.encoder(images)).tensors().values())


class _CaptionStep(nn.Module):
    """One decoding step of a captioner, with the attention of the word that it predicts."""

    def __init__(self, model: Captioner[Any], state: Any, changing: Sequence[str]) -> None:
        super().__init__()
        self.model = model
        self.changing = changing
        self.state_class = type(state)
        self.names = tuple(state.tensors())

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return logits `[b, v]`, attention `[b, y, x]`, gate `[b]` and what changes of the state.

        Args:
            inputs: Tensors of the state, and the token `[b]`.
        """
        state = self.state_class(**dict(zip(self.names, inputs[:-1], strict=True)))
        logits, state, attention = self.model.step(state, inputs[-1][:, None])
        weights = attention.weights[:, 0].unflatten(-1, self.model.encoder.grid_size)
        changed = (getattr(state, name) for name in self.changing)
        return logits[:, 0], weights, attention.gate[:, 0], *changed


def decoding_graphs(model: Captioner[Any]) -> list[ModelGraph]:
    """Return the graph up to the state before the first word, and that of one decoding step.

    The captioner has a `RecurrentState`, in which fields that are no tensors do not matter.

    Example:
        >>> from visattn.models import ShowAttendTell, SmallEncoder
        >>> from visattn.results.kinds import SPECIAL_TOKENS
        >>> model = ShowAttendTell((*SPECIAL_TOKENS, "red"), SmallEncoder((24, 40), channels=8))
        >>> start, step = decoding_graphs(model)
        >>> step.outputs
        ('logits', 'attention', 'gate', 'next_hidden', 'next_cell')
    """
    if model.places == "sample":
        raise ValueError("sampled places cannot be exported: set model.places to argmax")
    images = example_images(model.encoder.img_size)
    token = torch.full((len(images),), START)
    state: Any = model.start(model.encoder(images))
    values = state.tensors()
    after = model.step(state, token[:, None])[1].tensors()
    # What a step leaves as it is remains the same tensor, and is no output of its graph.
    changing = [name for name in values if after[name] is not values[name]]
    metadata = {
        "words": list(model.words),
        **({"pieces": model.pieces} if model.pieces else {}),
        "tokens": {"pad": PAD, "start": START, "end": END, "unknown": UNKNOWN},
        "state": changing,
        "map": {
            "output": "attention",
            "axes": ["image", "y", "x"],
            "grid": list(model.encoder.grid_size),
        },
    }
    start = _CaptionStart(model)
    step = _CaptionStep(model, state, changing)
    outputs = ("logits", "attention", "gate", *(f"next_{name}" for name in changing))
    # Before the first word some tensors are one and the same, which the exporter would merge.
    inputs = {**{name: value.clone() for name, value in after.items()}, "token": token}
    return [
        ModelGraph(start, {"images": images}, tuple(values), {**metadata, "graph": "start"}),
        ModelGraph(step, inputs, outputs, {**metadata, "graph": "step"}, ".step"),
    ]
