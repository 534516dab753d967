"""Speed of caption training and beam search compared with plain loops, on random features."""

from collections.abc import Callable
from typing import NamedTuple, cast

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from visattn.functional.beams import DecodingConstraints, beam_search
from visattn.functional.captions import caption_loss
from visattn.models.base import ImageEncoder
from visattn.models.captioning.attending_decoder import SoftAttention
from visattn.models.captioning.show_attend_tell import ShowAttendTell
from visattn.results.kinds import END, PAD, SPECIAL_TOKENS, START, UNKNOWN


class Comparison(NamedTuple):
    """A plain implementation, that of visattn, and the target speedup."""

    title: str
    plain: Callable[[], object]
    ours: Callable[[], object]
    floor: float


class FeatureEncoder(ImageEncoder):
    """Placeholder of an encoder; the benchmark passes random features."""

    def __init__(self, channels: int, grid: tuple[int, int]) -> None:
        super().__init__((32, 32), (0.5,) * 3, (0.5,) * 3)
        self.channels, self.grid_size = channels, grid

    def forward_features(self, images: Tensor) -> tuple[Tensor, ...]:
        """Raise an error, because the benchmark passes features."""
        raise NotImplementedError("the encoder of the benchmark must not be called; pass features")


def captioner(channels: int, side: int, vocabulary: int) -> ShowAttendTell:
    """Return a Show, Attend and Tell captioner over a square grid of regions."""
    count = vocabulary - len(SPECIAL_TOKENS)
    words = [*SPECIAL_TOKENS, *(f"word{index}" for index in range(count))]
    encoder = FeatureEncoder(channels, (side, side))
    return ShowAttendTell(
        words, encoder, embed_dim=512, hidden_size=512, attention_dim=512, dropout=0.0
    )


# ------------------------------------------------------------------ training step


def training() -> Comparison:
    """Training step: 16 captions of 10 to 20 words, 196 regions of 2048 features, 8000 words."""
    torch.manual_seed(0)
    model = captioner(2048, 14, 8000)
    features = torch.randn(16, 2048, 14, 14)
    lengths = torch.randint(10, 21, (16,)).sort(descending=True).values
    lengths[0] = 20
    captions = torch.randint(len(SPECIAL_TOKENS), 8000, (16, 21))
    captions[:, 0] = START

    def ours() -> Tensor:
        model.zero_grad()
        output = model.teacher_force(features, captions[:, :-1], lengths)
        targets = captions[output.rows, output.steps + 1]
        loss = caption_loss(output.logits, targets, len(lengths), reduction="mean")
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
    """Return the loss of a plain loop over steps, without cached keys or batch shrinking."""
    annotations = features.flatten(2).transpose(1, 2).contiguous()
    mean = annotations.mean(1)
    decoder = model.decoder
    attention = cast("SoftAttention", decoder.attention)
    scorer = attention.scorer
    hidden, cell = decoder.init_hidden(mean), decoder.init_cell(mean)
    logits = []
    for step in range(int(lengths.max())):
        keys = scorer.key(annotations)
        scores = torch.tanh(keys + scorer.query(hidden)[:, None]) @ scorer.vector
        weights = scores.softmax(1)
        context = (weights[..., None] * annotations).sum(1)
        context = torch.sigmoid(attention.gate(hidden)) * context
        word = decoder.embedding(captions[:, step])
        hidden, cell = decoder.lstm(torch.cat((word, context), 1), (hidden, cell))
        output = decoder.output_hidden(hidden) + word + decoder.output_context(context)
        logits.append(decoder.output(torch.tanh(output)))
    stacked = torch.stack(logits, 1)
    valid = torch.arange(stacked.shape[1]) < lengths[:, None]
    return cross_entropy(stacked[valid], captions[:, 1 : stacked.shape[1] + 1][valid])


# ------------------------------------------------------------------ beam search


def search() -> Comparison:
    """Beam search: 64 images, 49 regions of 1280 features, 8000 words, beam size 5."""
    torch.manual_seed(0)
    model = captioner(1280, 7, 8000).eval()
    features = torch.randn(64, 1280, 7, 7)
    with torch.no_grad():
        model.decoder.output.bias[END] += 6.0  # so that captions end
        model.decoder.output.weight.mul_(4.0)
    constraints = DecodingConstraints(END, 20, 5, 0.0, (PAD, START, UNKNOWN))

    @torch.no_grad()
    def best_captions(features: Tensor) -> list[list[int]]:
        output = beam_search(
            model.step,
            model.start(features),
            num_images=len(features),
            start_token=START,
            constraints=constraints,
            beam_size=5,
        )
        pairs = zip(output.tokens[:, 0], output.lengths[:, 0], strict=True)
        return [tokens[:length].tolist() for tokens, length in pairs]

    def ours() -> list[list[int]]:
        return best_captions(features)

    def plain() -> list[list[int]]:
        return [best_captions(image[None])[0] for image in features]

    if ours() != plain():
        raise SystemExit("beam search: captions of the batch differ from those of single images")
    return Comparison("beam search, 64 x 49 x 1280, beam 5", plain, ours, 3.0)


COMPARISONS: dict[str, Callable[[], Comparison]] = {"training": training, "search": search}
