"""A captioner of a user: what it takes, and that captions and maps come from it."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn

import visattn
from visattn.blocks.additive import AdditiveAttention
from visattn.functional.captions import pack_words
from visattn.models.base import ImageEncoder, SmallEncoder
from visattn.models.captioning.captioner import AttentionStep, Captioner, TeacherForcedOutput
from visattn.results.kinds import SPECIAL_TOKENS

WORDS = (*SPECIAL_TOKENS, "red", "blue", "disc")
PHOTO = np.random.default_rng(3).integers(0, 256, (60, 80, 3), np.uint8)


class GRUState(NamedTuple):
    annotations: Tensor
    keys: Tensor
    hidden: Tensor

    def reorder_beams(self, parents: Tensor) -> Self:
        return self._replace(hidden=self.hidden.take_along_dim(parents[..., None], 1))

    def select_images(self, index: Tensor | slice) -> Self:
        return self._make(tensor[index] for tensor in self)


class GRUDecoder(nn.Module):
    def __init__(self, num_words: int, channels: int) -> None:
        super().__init__()
        self.feature_proj = nn.Linear(channels, 7)
        self.attention = nn.Module()
        self.attention.scorer = AdditiveAttention(7, query_dim=7, attention_dim=7)
        self.embedding = nn.Embedding(num_words, 7)
        self.gru = nn.GRUCell(14, 7)
        self.output = nn.Linear(7, num_words)

    def start(self, features: Tensor) -> GRUState:
        annotations = self.feature_proj(features.flatten(2).transpose(1, 2))
        scorer: Any = self.attention.scorer
        scorer.tap.grid = tuple(features.shape[-2:])
        return GRUState(annotations, scorer.key(annotations), annotations.mean(1)[:, None])

    def step(self, state: GRUState, token: Tensor) -> tuple[Tensor, GRUState, AttentionStep]:
        scorer: Any = self.attention.scorer
        context, weights = scorer(state.hidden, state.annotations, state.keys)
        inputs = torch.cat((self.embedding(token), context), -1).flatten(0, 1)
        hidden = self.gru(inputs, state.hidden.flatten(0, 1)).view(*token.shape, -1)
        step = AttentionStep(weights, torch.ones_like(weights[..., 0]))
        return self.output(hidden), state._replace(hidden=hidden), step

    def teacher_force(
        self, features: Tensor, captions: Tensor, lengths: Any, image_indices: Any = None
    ) -> TeacherForcedOutput:
        packing = pack_words(lengths, image_indices)
        state = self.start(features)
        state = state if image_indices is None else state.select_images(image_indices)
        logits, weights = list[Tensor](), list[Tensor]()
        for step, count in enumerate(packing.counts):
            state = state.select_images(slice(count))
            out, state, attention = self.step(state, captions[:count, step, None])
            logits.append(out[:, 0])
            weights.append(attention.weights[:, 0])
        packed = torch.cat(weights)
        attention = AttentionStep(packed, torch.ones_like(packed[:, 0]))
        return TeacherForcedOutput(torch.cat(logits), attention, packing.rows, packing.steps)


class GRUCaptioner(Captioner):
    """A captioner with a GRU."""

    def __init__(self, words: Sequence[str], encoder: ImageEncoder) -> None:
        super().__init__(words, encoder)
        self.decoder = GRUDecoder(len(words), encoder.channels)


def test_it_captions_and_its_words_are_explained() -> None:
    torch.manual_seed(5)
    model = GRUCaptioner(WORDS, SmallEncoder((24, 40), channels=8)).eval()
    [caption] = visattn.caption(model, [PHOTO], max_length=3, min_length=2, beam_size=2)
    assert caption.maps.values.shape[1:] == (3, 5)
    for method in ("gradient_attention", "relevance", "gradcam", "gradient_embedding", "occlusion"):
        [said] = visattn.caption(model, PHOTO, method=method, max_length=3, min_length=2)  # type: ignore[arg-type]
        assert said.maps.values.shape[1:] == (3, 5), method
