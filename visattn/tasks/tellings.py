"""What a captioner says of a batch of pictures, or reads of them, with a map for each word."""

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from visattn.data.batches import CaptionBatch
from visattn.models.captioners import END, Captioner, Unrolled


class SeenCaption(NamedTuple):
    """A caption about a picture of a batch, and where the model looked for each word."""

    picture: int
    """Which picture of the batch."""
    number: int
    """Which of the picture's captions it is, if it was given; 0 for the one made up."""
    text: str
    maps: Float[Tensor, "_t _gy _gx"]


def features(model: Captioner, batch: CaptionBatch) -> Float[Tensor, "b c y x"]:
    """Return what the encoder finds in the pictures of a batch, or found when it was asked."""
    if batch.grids:
        return model.encoder.joined(batch.grids)
    if batch.pictures is None:
        raise ValueError("a batch needs pictures, or what the encoder found in them")
    return model.encoder(batch.pictures)


def read(model: Captioner, batch: CaptionBatch) -> Unrolled:
    """Return what the model makes of the captions of a batch, word by word."""
    return model.unroll(features(model, batch), batch.captions[:, :-1], batch.lengths, batch.owners)


def generated(
    model: Captioner, batch: CaptionBatch, *, beam: int, length_penalty: float = 0.0
) -> list[SeenCaption]:
    """Return the caption that the model makes up for each picture."""
    found = model.search(features(model, batch), beam=beam, length_penalty=length_penalty)
    tokens, weights = found.tokens[:, 0].cpu(), found.looks.weights[:, 0].cpu()
    return [
        SeenCaption(
            picture,
            0,
            _text(model, tokens[picture, :length]),
            weights[picture, :length].unflatten(-1, model.encoder.grid),
        )
        for picture, length in enumerate(found.lengths[:, 0].tolist())
    ]


def given(
    model: Captioner, batch: CaptionBatch, unrolled: Unrolled | None = None
) -> list[SeenCaption]:
    """Return the captions of a batch, with the maps that the model has when it reads them.

    Args:
        model: The captioner.
        batch: The captions.
        unrolled: What `read` returned, if it is known already.
    """
    unrolled = unrolled or read(model, batch)
    order = unrolled.rows.argsort(stable=True)  # caption by caption, each in its order
    looked = unrolled.look.weights.detach()[order].cpu().split(batch.lengths.tolist())
    owners, captions = batch.owners.tolist(), batch.captions.cpu()
    tellings: list[SeenCaption] = []
    for row, maps in enumerate(looked):
        said = captions[row, 1 : len(maps) + 1]
        count = int((said != END).sum())
        tellings.append(
            SeenCaption(
                owners[row],
                batch.numbers[row],
                _text(model, said[:count]),
                maps[:count].unflatten(-1, model.encoder.grid),
            )
        )
    return tellings


def _text(model: Captioner, tokens: Tensor) -> str:
    return " ".join(model.words[token] for token in tokens.tolist() if token != END)
