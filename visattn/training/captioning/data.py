"""Data module of photos with captions."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from lightning.pytorch.utilities import rank_zero_info

from visattn.data.captions.batch import CaptionSample, Vocabulary, collate_captions, split_words
from visattn.data.captions.dataset import CaptionInput
from visattn.data.feature_cache import FeatureCache
from visattn.data.phrases import read_phrases
from visattn.data.source import AnySource, read_photo
from visattn.images.resize import resize_to_input
from visattn.results.kinds import SPECIAL_TOKENS, Split
from visattn.training.data_module import DataModule


class CaptionData(DataModule):
    """Photos with captions: samples are a photo and a list of captions, or a `CaptionSample`.

    Args:
        source: Returns the samples of a split, such as `CaptionFile`.
        min_word_freq: Less frequent words of training captions become the unknown word.
        max_words: Longer training captions are truncated.
        hflip: Mirror half of the training photos, unless a caption says left or right.
        phrases: Annotations of phrases with boxes, as `read_phrases` reads them.
        feature_cache_dir: Folder for the features of a frozen encoder, which are computed once.
        options: Options of `DataModule`.
    """

    group_size = 2
    sample_type = CaptionSample
    needed_task = "that trains a captioner, such as CaptioningTask, whose input_spec has an encoder"

    def __init__(
        self,
        source: AnySource,
        *,
        min_word_freq: int = 5,
        max_words: int = 30,
        hflip: bool = False,
        phrases: str | None = None,
        feature_cache_dir: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(source, **options)
        self.max_words = max_words
        self.hflip = hflip
        self.phrases = read_phrases(phrases) if phrases else {}
        self.feature_cache_dir = feature_cache_dir
        if words := getattr(source, "words", None):  # the vocabulary of a grammar
            self.vocabulary = Vocabulary((*SPECIAL_TOKENS, *words))
            self.annotations = "scenes"
        else:
            texts = [text for sample in self.listed("train") for text in sample.captions]
            if not any(map(split_words, texts)):
                raise ValueError(
                    "the training captions have no words: the samples of a source must be a list "
                    "with captions, or the source must have `words`"
                )
            self.vocabulary = Vocabulary.from_captions(texts, min_word_freq=min_word_freq)
            self.annotations = "references"

    @property
    def data_info(self) -> dict[str, Any]:
        """The vocabulary, and the kinds of annotations."""
        return {"words": list(self.vocabulary.words), "annotations": [self.annotations]}

    def references(self, split: Split) -> dict[str, Sequence[str]]:
        """Return the captions of each photo of a split by its id."""
        return {sample.id: sample.captions for sample in self.listed(split)}

    def prepare(self, split: Split) -> Callable[[Any, int], Any]:
        """Return the function from a sample to pixels or cached features, with its annotations."""
        return CaptionInput(
            self.resize,
            self._features(split) if self.feature_cache_dir else None,
            self.phrases,
            self.hflip and split == "train",
            self.value_range,
        )

    def _features(self, split: Split) -> FeatureCache:
        """Return the cached features of a split, after computing those that are missing."""
        encoder: Any = self.input_spec and self.input_spec.encoder
        cache = FeatureCache(str(self.feature_cache_dir), encoder, self.resize, mirrored=self.hflip)
        device, home = encoder.shift.device, encoder.shift.device
        if self.trainer:  # this runs in `setup`, before Lightning moves the task to its device
            device = self.trainer.strategy.root_device
        encoder.to(device)
        try:
            cache.compute(
                [sample.image for sample in self.listed(split)],
                encoder,
                lambda photo: resize_to_input(read_photo(photo, self.value_range), self.resize)[0],
                batch_size=64 if device.type == "cuda" else 16,
                log=rank_zero_info,
                **self._share,
            )
        finally:
            encoder.to(home)
        if self.trainer:
            self.trainer.strategy.barrier()  # until the other processes have computed their part
        return cache

    def collate(self, split: Split) -> Callable[[list[Any]], Any]:
        """Return the collate function; in training it truncates long captions to limit memory."""
        most = self.max_words if split == "train" else None
        return partial(collate_captions, vocabulary=self.vocabulary, max_words=most)

    def examples(self, count: int) -> list[Any]:
        """Return the first validation photos, as `read_image` accepts them."""
        photos = [sample.image for sample in self.listed("validation")[:count]]
        return photos or super().examples(count)

    def count_targets(self, split: Split) -> tuple[str, Counter[str]] | None:
        """Return the number of captions, and how many of their words are unknown."""
        if not (samples := self.listed(split)):
            return None
        texts = [text for sample in samples for text in sample.captions]
        unit = f"captions, {self.vocabulary.unknown_fraction(texts):.1%} of their words unknown"
        if self.phrases:
            make = CaptionInput(self.resize, phrases=self.phrases)
            known = [
                tuple(split_words(text)) in annotated
                for sample in samples
                for annotated in [make.annotations(sample)]
                for text in sample.captions
            ]
            unit += f", {sum(known) / len(known):.1%} of them with phrases"
        return unit, Counter(captions=len(texts))

    def remarks(self) -> Iterator[str]:
        """Yield problems of the captions."""
        yield from super().remarks()
        words = [split_words(t) for sample in self.listed("train") for t in sample.captions]
        first, last = ({row[end] for row in words if row} for end in (0, -1))
        if len(set(map(tuple, words))) > 9 and len(first) == len(last) == 1:
            yield (
                f"all captions begin with {first.pop()!r} and end with {last.pop()!r}: if these "
                "are start and end tokens of another program, remove them from the captions"
            )
