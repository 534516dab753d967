"""Samples and batches of captioned images."""

from collections.abc import Sequence
from typing import NamedTuple, Self

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from visattn.data.captions.vocabulary import Vocabulary
from visattn.data.scenes.world import World
from visattn.functional.captions import WordPacking, pack_words
from visattn.results.captions import Phrase
from visattn.results.kinds import PAD, SPECIAL_TOKENS, UNKNOWN


class CaptionSample(NamedTuple):
    """An image with its captions and annotations."""

    id: str
    image: UInt8[Tensor, "3 y x"] | None
    """Input of the network; None if `grids` replaces it."""
    captions: tuple[str, ...]
    world: World | None = None
    """Ground truth of a rendered scene."""
    grids: tuple[Float[Tensor, "c gy gx"], ...] = ()
    """Cached features of a frozen encoder, one grid per stage; see `FeatureCache`."""
    phrases: tuple[tuple[Phrase, ...], ...] = ()
    """For each caption, its phrases with boxes relative to the network's input."""
    references: tuple[str, ...] = ()
    """Reference captions for scoring, as they were written; empty if unknown."""


class CaptionBatch(NamedTuple):
    """A batch of images with tokenized captions; captions are sorted by length, longest first."""

    samples: tuple[CaptionSample, ...]
    images: UInt8[Tensor, "b 3 y x"] | None
    """None if `grids` replaces them."""
    grids: tuple[Float[Tensor, "b _c _gy _gx"], ...]
    """Cached features, one tensor per stage; empty if the encoder runs on `images`."""
    captions: Int[Tensor, "r t"]
    """Token ids, start and end included, padded."""
    lengths: Int[Tensor, " r"]
    """Tokens to predict per caption, the end token included."""
    image_indices: Int[Tensor, " r"]
    """For each caption, the index of its image in the batch."""
    caption_indices: tuple[int, ...]
    """For each caption, its index among the captions of its image."""
    packing: WordPacking | None = None
    """Packed order of the words; None lets the model compute it."""

    def to(self, device: torch.device | str) -> Self:
        """Return the batch with its tensors on another device."""

        def move(tensor: Tensor) -> Tensor:
            return tensor.to(device, non_blocking=True)

        return self._replace(
            images=None if self.images is None else move(self.images),
            grids=tuple(map(move, self.grids)),
            captions=move(self.captions),
            lengths=move(self.lengths),
            image_indices=move(self.image_indices),
            packing=self.packing and self.packing.to(device),
        )

    def phrases(self) -> list[tuple[Phrase, ...]]:
        """Return the phrases of each caption; empty if unknown."""
        per_image = (self.samples[index].phrases for index in self.image_indices.tolist())
        return [
            phrases[index] if phrases else ()
            for phrases, index in zip(per_image, self.caption_indices, strict=True)
        ]

    def repeat_captions(self, count: int) -> Self:
        """Return the batch with each caption `count` times in a row, for several rollouts.

        Example:
            >>> sample = CaptionSample("0", torch.zeros(3, 1, 1, dtype=torch.uint8), ("red", "a"))
            >>> batch = collate_captions([sample], Vocabulary.from_captions(["a red"]))
            >>> batch.repeat_captions(2).caption_indices
            (0, 0, 1, 1)
        """
        indices, lengths = self.caption_indices, self.lengths.repeat_interleave(count)
        image_indices = self.image_indices.repeat_interleave(count)
        return self._replace(
            captions=self.captions.repeat_interleave(count, 0),
            lengths=lengths,
            image_indices=image_indices,
            packing=pack_words(lengths, image_indices),
            caption_indices=tuple(index for index in indices for _ in range(count)),
        )

    def drop_words(self, rate: float) -> Self:
        """Return the batch with words of its captions replaced by the unknown word, at random.

        A decoder that reads such captions has to rely on the image for what it predicts. Start, end
        and padding stay, and so do the phrases; targets are taken from the batch itself.

        Args:
            rate: Probability with which a word is replaced; PyTorch's generator is used.

        Example:
            >>> sample = CaptionSample("0", torch.zeros(3, 1, 1, dtype=torch.uint8), ("a red",))
            >>> batch = collate_captions([sample], Vocabulary.from_captions(["a red"]))
            >>> batch.captions, batch.drop_words(1.0).captions
            (tensor([[1, 4, 5, 2]]), tensor([[1, 3, 3, 2]]))

        Source:
            Bowman et al. 2016, arXiv:1511.06349, section 3.1.
        """
        if not rate:
            return self
        dropped = torch.rand(self.captions.shape, device=self.captions.device) < rate
        dropped &= self.captions >= len(SPECIAL_TOKENS)
        return self._replace(captions=self.captions.masked_fill(dropped, UNKNOWN))

    @property
    def num_paired(self) -> int:
        """Number of images that have a partner: all, or all but the last."""
        return len(self.samples) // 2 * 2

    def swap_images(self) -> Self:
        """Return the batch with the images of each pair swapped, as a control for scores.

        Images 0 and 1 change places, 2 and 3, and so on; an unpaired last image stays.

        Example:
            >>> blank = [torch.full((3, 1, 1), n, dtype=torch.uint8) for n in (0, 1, 2)]
            >>> samples = [CaptionSample(str(n), blank[n], ("red",)) for n in (0, 1, 2)]
            >>> batch = collate_captions(samples, Vocabulary.from_captions(["red"]))
            >>> batch.swap_images().images[:, 0, 0, 0]
            tensor([1, 0, 2], dtype=torch.uint8)
        """
        partners = torch.arange(len(self.samples))
        partners[: self.num_paired] ^= 1
        return self._replace(
            images=None if self.images is None else self.images[partners],
            grids=tuple(grid[partners] for grid in self.grids),
        )


def collate_captions(
    samples: Sequence[CaptionSample], vocabulary: Vocabulary, *, max_words: int | None = None
) -> CaptionBatch:
    """Collate samples into one batch.

    Args:
        samples: All with an image, or all with grids of the same stages.
        vocabulary: Tokenizes the captions.
        max_words: Longer captions are truncated, and then have no end token.

    Raises:
        ValueError: If a sample has no caption.

    Example:
        >>> blank = torch.zeros(3, 2, 2, dtype=torch.uint8)
        >>> samples = [CaptionSample("0", blank, ("red",)), CaptionSample("1", blank, ("a red",))]
        >>> batch = collate_captions(samples, Vocabulary.from_captions(["a red"]))
        >>> batch.captions, batch.image_indices
        (tensor([[1, 4, 5, 2],
                [1, 5, 2, 0]]), tensor([1, 0]))
    """
    if without := [sample.id for sample in samples if not sample.captions]:
        raise ValueError(f"every sample needs a caption, these have none: {without[:5]}")
    rows = [
        (vocabulary.encode(caption)[: max_words and max_words + 1], image_index, caption_index)
        for image_index, sample in enumerate(samples)
        for caption_index, caption in enumerate(sample.captions)
    ]
    rows.sort(key=lambda row: -len(row[0]))
    captions = torch.full((len(rows), len(rows[0][0])), PAD)
    for row, (tokens, *_) in zip(captions, rows, strict=True):
        row[: len(tokens)] = torch.tensor(tokens)
    images = [sample.image for sample in samples if sample.image is not None]
    lengths = torch.tensor([len(tokens) - 1 for tokens, *_ in rows])
    image_indices = torch.tensor([image_index for _, image_index, _ in rows])
    return CaptionBatch(
        samples=tuple(samples),
        images=torch.stack(images) if len(images) == len(samples) else None,
        grids=tuple(map(torch.stack, zip(*(sample.grids for sample in samples), strict=True))),
        captions=captions,
        lengths=lengths,
        image_indices=image_indices,
        caption_indices=tuple(caption_index for *_, caption_index in rows),
        packing=pack_words(lengths, image_indices),
    )
