"""Captioners: ours beside the loop that one writes first, on made-up features."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from visattn.functional.captioning.beam_search import DecodingConstraints, beam_search
from visattn.functional.captioning.losses import caption_loss
from visattn.models.captioner import END, PAD, SPECIALS, START, UNKNOWN
from visattn.models.captioning.show_attend_tell import ShowAttendTell
from visattn.models.encoder import ImageEncoder


class Comparison(NamedTuple):
    """Two ways to the same result, and how much faster ours is meant to be."""

    title: str
    plain: Callable[[], object]
    ours: Callable[[], object]
    floor: float


class GivenFeatures(ImageEncoder):
    """Stands where an encoder would: the features themselves are made up."""

    def __init__(self, channels: int, grid: tuple[int, int]) -> None:
        super().__init__((32, 32), (0.5,) * 3, (0.5,) * 3)
        self.channels, self.grid = channels, grid

    def features(self, images: Tensor) -> tuple[Tensor, ...]:
        """Refuse: nobody asks."""
        raise NotImplementedError("features are given, not computed")


def captioner(channels: int, side: int, vocabulary: int) -> ShowAttendTell:
    """Return a captioner of the usual size over side x side regions."""
    words = [*SPECIALS, *(f"word{index}" for index in range(vocabulary - len(SPECIALS)))]
    encoder = GivenFeatures(channels, (side, side))
    return ShowAttendTell(words, encoder, word_width=512, hidden=512, attention=512, dropout=0.0)


# ------------------------------------------------------------------ one training step


def training() -> Comparison:
    """16 captions of 10 to 20 words, 196 regions of 2048 features, 8000 words."""
    torch.manual_seed(0)
    model = captioner(2048, 14, 8000)
    features = torch.randn(16, 2048, 14, 14)
    lengths = torch.randint(10, 21, (16,)).sort(descending=True).values
    lengths[0] = 20
    captions = torch.randint(len(SPECIALS), 8000, (16, 21))
    captions[:, 0] = START

    def ours() -> Tensor:
        model.zero_grad()
        read = model.unroll(features, captions[:, :-1], lengths)
        targets = captions[read.rows, read.steps + 1]
        loss = caption_loss(read.logits, targets, len(lengths), reduction="mean")
        loss.backward()
        return loss.detach()

    def plain() -> Tensor:
        model.zero_grad()
        loss = stepwise_loss(model, features, captions, lengths)
        loss.backward()
        return loss.detach()

    torch.testing.assert_close(ours(), plain(), atol=1e-5, rtol=1e-5)
    return Comparison("training step, 16 x 196 x 2048, <= 20 words", plain, ours, 3.0)


def stepwise_loss(
    model: ShowAttendTell, features: Tensor, captions: Tensor, lengths: Tensor
) -> Tensor:
    """The loop that one writes first: everything anew at each step, on rows of full length."""
    annotations = features.flatten(2).transpose(1, 2).contiguous()
    mean = annotations.mean(1)
    hidden, cell = model.first_hidden(mean), model.first_cell(mean)
    logits = []
    for step in range(int(lengths.max())):
        keys = model.look.key(annotations)
        scores = torch.tanh(keys + model.look.query(hidden)[:, None]) @ model.look.vector
        weights = scores.softmax(1)
        seen = torch.sigmoid(model.gate(hidden)) * (weights[..., None] * annotations).sum(1)
        word = model.embed(captions[:, step])
        hidden, cell = model.cell(torch.cat((word, seen), 1), (hidden, cell))
        told = torch.tanh(model.tell_hidden(hidden) + word + model.tell_seen(seen))
        logits.append(model.tell(told))
    said = torch.stack(logits, 1)
    inside = torch.arange(said.shape[1]) < lengths[:, None]
    return cross_entropy(said[inside], captions[:, 1 : said.shape[1] + 1][inside])


# ------------------------------------------------------------------ beam search


def search() -> Comparison:
    """64 images, 49 regions of 1280 features, 8000 words, beam 5."""
    torch.manual_seed(0)
    model = captioner(1280, 7, 8000).eval()
    features = torch.randn(64, 1280, 7, 7)
    with torch.no_grad():
        model.tell.bias[END] += 6.0  # an untrained model would hardly ever stop
        model.tell.weight.mul_(4.0)
    rules = DecodingConstraints(END, 20, 5, 0.0, (PAD, START, UNKNOWN))

    @torch.no_grad()
    def found(some: Tensor) -> list[list[int]]:
        best = beam_search(
            model.step, model.start(some), images=len(some), start=START, rules=rules, beam=5
        )
        pairs = zip(best.tokens[:, 0], best.lengths[:, 0], strict=True)
        return [tokens[:length].tolist() for tokens, length in pairs]

    def ours() -> list[list[int]]:
        return found(features)

    def plain() -> list[list[int]]:
        return [found(one[None])[0] for one in features]

    if ours() != plain():
        raise SystemExit("search: the batch and the single images give different captions")
    return Comparison("beam search, 64 x 49 x 1280, beam 5", plain, ours, 3.0)


COMPARISONS: dict[str, Callable[[], Comparison]] = {"training": training, "search": search}
