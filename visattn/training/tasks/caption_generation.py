"""What a captioner says of a batch of images, or reads of them, with a map for each word."""

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from visattn.data.captions.batch import CaptionBatch
from visattn.models.captioner import END, Captioner, TeacherForcedOutput


class CaptionWithMaps(NamedTuple):
    """A caption about an image of a batch, and where the model looked for each word."""

    image: int
    """Which image of the batch."""
    number: int
    """Which of the image's captions it is, if it was given; 0 for the one made up."""
    text: str
    maps: Float[Tensor, "_t _gy _gx"]


def features(model: Captioner, batch: CaptionBatch) -> Float[Tensor, "b c y x"]:
    """Return what the encoder finds in the images of a batch, or found when it was asked."""
    if batch.grids:
        return model.encoder.joined(batch.grids)
    if batch.images is None:
        raise ValueError("a batch needs images, or what the encoder found in them")
    return model.encoder(batch.images)


def read(model: Captioner, batch: CaptionBatch) -> TeacherForcedOutput:
    """Return what the model makes of the captions of a batch, word by word."""
    return model.unroll(features(model, batch), batch.captions[:, :-1], batch.lengths, batch.owners)


def generated(
    model: Captioner, batch: CaptionBatch, *, beam: int, length_penalty: float = 0.0
) -> list[CaptionWithMaps]:
    """Return the caption that the model makes up for each image."""
    found = model.search(features(model, batch), beam=beam, length_penalty=length_penalty)
    tokens, weights = found.tokens[:, 0].cpu(), found.looks.weights[:, 0].cpu()
    return [
        CaptionWithMaps(
            image,
            0,
            _text(model, tokens[image, :length]),
            weights[image, :length].unflatten(-1, model.encoder.grid),
        )
        for image, length in enumerate(found.lengths[:, 0].tolist())
    ]


def given(
    model: Captioner, batch: CaptionBatch, unrolled: TeacherForcedOutput | None = None
) -> list[CaptionWithMaps]:
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
    tellings: list[CaptionWithMaps] = []
    for row, maps in enumerate(looked):
        said = captions[row, 1 : len(maps) + 1]
        count = int((said != END).sum())
        tellings.append(
            CaptionWithMaps(
                owners[row],
                batch.numbers[row],
                _text(model, said[:count]),
                maps[:count].unflatten(-1, model.encoder.grid),
            )
        )
    return tellings


def _text(model: Captioner, tokens: Tensor) -> str:
    return " ".join(model.words[token] for token in tokens.tolist() if token != END)
