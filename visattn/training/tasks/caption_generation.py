"""Captions of a batch, generated or given, with an attention map for each word."""

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from visattn.data.captions.batch import CaptionBatch
from visattn.models.captioner import Captioner, TeacherForcedOutput
from visattn.results.kinds import END


class CaptionWithMaps(NamedTuple):
    """A caption of an image with the attention map of each word."""

    image_index: int
    """Index of the image in the batch."""
    caption_index: int
    """Index among the captions of the image; 0 for a generated caption."""
    text: str
    maps: Float[Tensor, "_t _gy _gx"]
    gates: Float[Tensor, " _t"]
    """Share of the image in the context vector of each word."""
    heads: Float[Tensor, "_t l h _gy _gx"] | None = None
    """Maps of each layer and head, if the captioner gives them."""


def encode_images(model: Captioner, batch: CaptionBatch) -> Float[Tensor, "b c y x"]:
    """Return the features of the images of a batch, from cached grids if the batch has them."""
    if batch.grids:
        return model.encoder.merge_stages(batch.grids)
    if batch.images is None:
        raise ValueError("a batch needs images or cached features, got neither")
    return model.encoder(batch.images)


def teacher_force_batch(model: Captioner, batch: CaptionBatch) -> TeacherForcedOutput:
    """Return the logits and the attention of the model for the captions of a batch."""
    features = encode_images(model, batch)
    inputs = batch.captions[:, :-1]
    return model.teacher_force(
        features, inputs, batch.packing or batch.lengths, batch.image_indices
    )


def generate_captions(
    model: Captioner, batch: CaptionBatch, *, beam_size: int, length_penalty: float = 0.0
) -> list[CaptionWithMaps]:
    """Return the best caption of each image by beam search, with its attention maps."""
    features = encode_images(model, batch)
    output = model.search(features, beam_size=beam_size, length_penalty=length_penalty)
    tokens, attention = output.tokens[:, 0].cpu(), output.attention_steps
    weights, gates = attention.weights[:, 0].cpu(), attention.gate[:, 0].cpu()
    heads = None if attention.heads is None else attention.heads[:, 0].cpu()
    return [
        CaptionWithMaps(
            image,
            0,
            _decode(model, tokens[image, :length]),
            weights[image, :length].unflatten(-1, model.encoder.grid_size),
            gates[image, :length],
            _grids(model, None if heads is None else heads[image, :length]),
        )
        for image, length in enumerate(output.lengths[:, 0].tolist())
    ]


def reference_captions(
    model: Captioner, batch: CaptionBatch, output: TeacherForcedOutput | None = None
) -> list[CaptionWithMaps]:
    """Return the captions of a batch, with the attention maps of teacher forcing.

    Args:
        model: The captioner.
        batch: The captions.
        output: The result of `teacher_force_batch`, if it was computed before.
    """
    output = output or teacher_force_batch(model, batch)
    order = output.rows.argsort(stable=True)  # the words of each caption, in their order
    lengths = batch.lengths.tolist()
    weights, gates = (
        values.detach()[order].cpu().split(lengths)
        for values in (output.attention.weights, output.attention.gate)
    )
    heads = output.attention.heads
    row_heads = None if heads is None else heads.detach()[order].cpu().split(lengths)
    image_indices, captions = batch.image_indices.tolist(), batch.captions.cpu()
    results: list[CaptionWithMaps] = []
    for row, (maps, row_gates) in enumerate(zip(weights, gates, strict=True)):
        tokens = captions[row, 1 : len(maps) + 1]
        num_words = int((tokens != END).sum())
        results.append(
            CaptionWithMaps(
                image_indices[row],
                batch.caption_indices[row],
                _decode(model, tokens[:num_words]),
                maps[:num_words].unflatten(-1, model.encoder.grid_size),
                row_gates[:num_words],
                _grids(model, None if row_heads is None else row_heads[row][:num_words]),
            )
        )
    return results


def _grids(
    model: Captioner, heads: Float[Tensor, "t l h n"] | None
) -> Float[Tensor, "t l h gy gx"] | None:
    return None if heads is None else heads.unflatten(-1, model.encoder.grid_size)


def _decode(model: Captioner, tokens: Tensor) -> str:
    return " ".join(model.words[token] for token in tokens.tolist() if token != END)
