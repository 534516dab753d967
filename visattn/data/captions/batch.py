"""Vocabulary, samples and batches of captioned images."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Self

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from visattn.data.scenes.world import World
from visattn.data.source import to_device
from visattn.functional.captions import WordPacking, pack_words
from visattn.metrics.ptb_tokenizer import MARKS, UNSPACED_LETTERS, UNSPACED_TOKEN, join_words
from visattn.results.captions import Phrase
from visattn.results.kinds import END, PAD, SPECIAL_TOKENS, START, UNKNOWN, checked_words

_CLITIC = r"(?:n't|'(?:s|m|d|re|ve|ll))(?!\w)"  # clitics that the Penn Treebank splits off
_CLITIC_PATTERN = re.compile(_CLITIC)
_LETTER = rf"(?![{UNSPACED_LETTERS}])\w"
# Vowel signs and accents belong to the word, and so do joiners between its letters.
_LETTERS = rf"{_LETTER}(?:[{MARKS}]|[\u200c\u200d]+(?=\w)|{_LETTER})*"


def _word_pattern(letters: str, *others: str) -> re.Pattern[str]:
    """Return the pattern of words; the first alternative that matches wins."""
    return re.compile(
        "|".join(
            [
                *others,
                r"(?:[^\W\d_]\.){2,}(?!\w)",  # u.s.
                _CLITIC,
                r"\d+(?:[.,:]\d+)+(?!\w)",  # 1,000 and 9:30
                rf"{letters}(?:['./-]{letters})*",  # dog, o'clock, t-shirt, 3/4
                "[#&$%]",
            ]
        )
    )


_WORD = _word_pattern(_LETTERS, UNSPACED_TOKEN)
_ASCII_WORD = _word_pattern(r"\w+")  # the same for ASCII, twice as fast


def split_words(caption: str) -> list[str]:
    """Return the words of a caption, lower-cased, without punctuation.

    Clitics such as 's and n't are separate words, as in the Penn Treebank, so the words joined by
    spaces get the same scores as the caption itself. Emoji and brackets are dropped. Letters keep
    their marks, such as the vowel signs of Hindi. In scripts without spaces between words (Chinese,
    Japanese, Thai, Lao, Burmese, Khmer) each letter with its marks is a word.

    Law:
        Joining by spaces and splitting again gives the same words.

    Example:
        >>> split_words("A dog's ball, well-worn.")
        ['a', 'dog', "'s", 'ball', 'well-worn']
        >>> split_words("एक कुत्ता, 一只狗")
        ['एक', 'कुत्ता', '一', '只', '狗']
    """
    text = unicodedata.normalize("NFC", caption.lower().replace("’", "'"))
    words = _ASCII_WORD if text.isascii() else _WORD
    # Split clitics off their words: dog's -> dog 's, isn't -> is n't.
    return words.findall(_CLITIC_PATTERN.sub(r" \g<0>", text))


class Vocabulary:
    """A fixed list of words; the first four are pad, start, end and unknown.

    Args:
        words: Unique words, `SPECIAL_TOKENS` first.

    Raises:
        ValueError: If the special tokens do not come first, or a word occurs twice.

    Example:
        >>> vocabulary = Vocabulary.from_captions(["a red ring", "a blue ring"])
        >>> vocabulary.encode("a green ring")
        [1, 4, 3, 5, 2]
        >>> vocabulary.decode([4, 5])
        'a ring'
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.words = checked_words(words)
        self._index = {word: index for index, word in enumerate(self.words)}
        if len(self._index) < len(self.words):
            duplicates = [word for word, count in Counter(words).items() if count > 1]
            raise ValueError(f"words must be unique, got duplicates: {duplicates[:5]}")

    @classmethod
    def from_captions(cls, captions: Iterable[str], *, min_word_freq: int = 1) -> Self:
        """Build a vocabulary from captions: most frequent word first, ties in alphabetical order.

        Args:
            captions: Captions of the training split only.
            min_word_freq: Less frequent words become unknown.

        Raises:
            ValueError: If no word is frequent enough.
        """
        counts = Counter(word for caption in captions for word in split_words(caption))
        kept = [word for word, count in counts.items() if count >= min_word_freq]
        if counts and not kept:
            [(word, count)] = counts.most_common(1)
            raise ValueError(
                f"no word occurs {min_word_freq} times in the captions; the most frequent, "
                f"{word!r}, occurs {count} times; lower min_word_freq"
            )
        return cls((*SPECIAL_TOKENS, *sorted(kept, key=lambda word: (-counts[word], word))))

    def __len__(self) -> int:
        return len(self.words)

    def unknown_fraction(self, captions: Iterable[str]) -> float:
        """Return the fraction of unknown words in captions; 0 without words.

        Example:
            >>> Vocabulary.from_captions(["a red ring"]).unknown_fraction(["a red ring", "a blue"])
            0.2
        """
        words = [word for caption in captions for word in split_words(caption)]
        return sum(word not in self._index for word in words) / max(1, len(words))

    def encode(self, caption: str) -> list[int]:
        """Return the token ids of a caption, start and end included."""
        words = (self._index.get(word, UNKNOWN) for word in split_words(caption))
        return [START, *words, END]

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of token ids, without pad, start and end.

        Words are joined by spaces, except in scripts without spaces between words.

        Example:
            >>> vocabulary = Vocabulary.from_captions(["狗在跑"])
            >>> vocabulary.decode(vocabulary.encode("狗在跑"))
            '狗在跑'
        """
        words = [self.words[t] for t in tokens if t not in (PAD, START, END)]
        return join_words(words)


class CaptionSample(NamedTuple):
    """An image with its captions and annotations."""

    id: str
    image: Any
    """The photo; once prepared, the network's input `[3, y, x]`, or None if `grids` replace it."""
    captions: tuple[str, ...]
    world: World | None = None
    """Ground truth of a rendered scene."""
    grids: tuple[Float[Tensor, "c gy gx"], ...] = ()
    """Cached features of a frozen encoder, one grid per stage; see `FeatureCache`."""
    phrases: tuple[tuple[Phrase, ...], ...] = ()
    """For each caption, its phrases with boxes relative to the network's input."""
    references: tuple[str, ...] = ()
    """Reference captions for scoring, in their original spelling; empty if unknown."""

    @classmethod
    def of(cls, sample: Any) -> Self:
        """Convert a photo with its captions to a sample; a `CaptionSample` is returned as is.

        Example:
            >>> CaptionSample.of(("photos/a.jpg", ["a dog", "one dog"])).id
            'photos/a.jpg'
        """
        if isinstance(sample, cls):
            return sample
        photo, captions = sample
        texts = (captions,) if isinstance(captions, str) else tuple(captions)
        return cls(str(photo), photo, texts, references=texts)


class CaptionBatch(NamedTuple):
    """A batch of images with tokenized captions; captions are sorted by length, longest first."""

    samples: tuple[CaptionSample, ...]
    """Captions and annotations, without images and grids."""
    images: UInt8[Tensor, "b 3 y x"] | None
    """None if `grids` replace them."""
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

    to = to_device

    def phrases(self) -> list[tuple[Phrase, ...]]:
        """Return the phrases of each caption; empty if unknown."""
        per_image = (self.samples[index].phrases for index in self.image_indices.tolist())
        return [
            phrases[index] if phrases else ()
            for phrases, index in zip(per_image, self.caption_indices, strict=True)
        ]

    def repeat_captions(self, count: int) -> Self:
        """Repeat each caption `count` times in a row, for several rollouts.

        Example:
            >>> sample = CaptionSample("0", torch.zeros(3, 1, 1, dtype=torch.uint8), ("red", "a"))
            >>> batch = collate_captions([sample], Vocabulary.from_captions(["a red"]))
            >>> batch.repeat_captions(2).caption_indices
            (0, 0, 1, 1)
        """
        indices = self.caption_indices
        lengths = self.lengths.repeat_interleave(count)
        image_indices = self.image_indices.repeat_interleave(count)
        return self._replace(
            captions=self.captions.repeat_interleave(count, 0),
            lengths=lengths,
            image_indices=image_indices,
            packing=pack_words(lengths, image_indices),
            caption_indices=tuple(index for index in indices for _ in range(count)),
        )

    def drop_words(self, rate: float) -> Self:
        """Replace random words of the captions by the unknown word (word dropout).

        The decoder then has to rely more on the image. Start, end, padding and phrases do not
        change; take the targets from the original batch.

        Args:
            rate: Probability of replacing a word, sampled with PyTorch's global generator.

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

    def swap_images(self) -> Self:
        """Swap the images of each pair, as a control for scores.

        Images 0 and 1, 2 and 3, ... are pairs; an unpaired last image stays.

        Example:
            >>> blank = [torch.full((3, 1, 1), n, dtype=torch.uint8) for n in (0, 1, 2)]
            >>> samples = [CaptionSample(str(n), blank[n], ("red",)) for n in (0, 1, 2)]
            >>> batch = collate_captions(samples, Vocabulary.from_captions(["red"]))
            >>> batch.swap_images().images[:, 0, 0, 0]
            tensor([1, 0, 2], dtype=torch.uint8)
        """
        partners = image_partners(len(self.samples))
        return self._replace(
            images=None if self.images is None else self.images[partners],
            grids=tuple(grid[partners] for grid in self.grids),
        )


def num_paired(batch: Any) -> int:
    """Return the number of images that have a partner: all, or all but the last."""
    return len(batch.samples) // 2 * 2


def image_partners(count: int) -> Int[Tensor, " n"]:
    """Return the partner of each image: 1, 0, 3, 2, ...; an unpaired last one is its own."""
    partners = torch.arange(count)
    partners[: count // 2 * 2] ^= 1
    return partners


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
        # The start token and the words. A truncated caption has no end token, so that a model does
        # not learn to stop in the middle of a sentence.
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
        # Each tensor sent by a worker costs a file descriptor, so pixels are sent once, stacked.
        samples=tuple(sample._replace(image=None, grids=()) for sample in samples),
        images=torch.stack(images) if len(images) == len(samples) else None,
        grids=tuple(map(torch.stack, zip(*(sample.grids for sample in samples), strict=True))),
        captions=captions,
        lengths=lengths,
        image_indices=image_indices,
        caption_indices=tuple(caption_index for *_, caption_index in rows),
        packing=pack_words(lengths, image_indices),
    )
