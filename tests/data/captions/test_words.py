"""Captions: their words, their vocabulary, and batches that are aligned with their images."""

import unicodedata

import pytest
import torch
from hypothesis import given, strategies as st

from visattn.data.captions.batch import (
    CaptionSample,
    Vocabulary,
    collate_captions,
    num_paired,
    split_words,
)
from visattn.metrics.ptb_tokenizer import join_words, ptb_tokenize
from visattn.results.captions import Phrase
from visattn.results.kinds import END, PAD, SPECIAL_TOKENS, START, UNKNOWN

TRICKY = (
    st.text("aBs nt'’.,-/#1ΣI\u0301\u0307İ\u2028") | st.text()
)  # texts at which several rules apply
CAPTIONS = st.lists(st.text("abcdefghij", min_size=1, max_size=5), max_size=11).map(" ".join)


@given(captions=st.lists(CAPTIONS, min_size=1, max_size=7))
def test_encode_decode_roundtrip(captions: list[str]) -> None:
    vocabulary = Vocabulary.from_captions(captions)
    assert vocabulary.words[:4] == SPECIAL_TOKENS
    assert Vocabulary.from_captions(captions[::-1]).words == vocabulary.words
    assert vocabulary.unknown_fraction(captions) == 0
    for caption in captions:
        tokens = vocabulary.encode(caption)
        assert (tokens[0], tokens[-1]) == (START, END)
        assert UNKNOWN not in tokens
        assert vocabulary.decode(tokens) == caption


def test_words_are_sorted_by_frequency_and_rare_ones_dropped() -> None:
    captions = ["b b b a", "c a", "d"]
    assert Vocabulary.from_captions(captions).words[4:] == ("b", "a", "c", "d")
    assert Vocabulary.from_captions(captions, min_word_freq=2).words[4:] == ("b", "a")
    assert len(Vocabulary.from_captions(captions)) == 8
    assert Vocabulary.from_captions(["a"]).decode([0, START, 4, END, 0]) == "a"
    with pytest.raises(ValueError, match="no word occurs 5 times .* 'b', occurs 3 times; lower"):
        Vocabulary.from_captions(captions, min_word_freq=5)


@pytest.mark.parametrize(
    ("caption", "words"),
    [
        ("A man, a plan.", ["a", "man", "a", "plan"]),
        ("the dog's   toy\n", ["the", "dog", "'s", "toy"]),
        ("the dog’s toy", ["the", "dog", "'s", "toy"]),
        ("the dog 's toy", ["the", "dog", "'s", "toy"]),
        ("two dogs' toys", ["two", "dogs", "toys"]),
        ("They don't, I'd've", ["they", "do", "n't", "i", "'d", "'ve"]),
        ("I'm, we’re, SHE'LL", ["i", "'m", "we", "'re", "she", "'ll"]),
        ("at 5 o'clock 'so", ["at", "5", "o'clock", "so"]),
        ("well-worn - shoes -- and/or socks", ["well-worn", "shoes", "and/or", "socks"]),
        ("a U.S. flag. Washington D.C.", ["a", "u.s.", "flag", "washington", "d.c."]),
        ("o\u0323\u0308's x-'s", ["ọ\u0308", "'s", "x", "'s"]),
        ("1,000 at 9:30 , 3/4", ["1,000", "at", "9:30", "3/4"]),
        ("fence.com fence. and", ["fence.com", "fence", "and"]),
        ("no. #7 & 50% (of AT&T)", ["no", "#", "7", "&", "50", "%", "of", "at", "&", "t"]),
        ("Ünïcödé 日本 42", ["ünïcödé", "日", "本", "42"]),
        ("एक कुत्ता घास पर", ["एक", "कुत्ता", "घास", "पर"]),
        ("একটি কুকুর দৌড়াচ্ছে।", ["একটি", "কুকুর", "দৌড়াচ্ছে"]),
        ("ஒரு நாய், ஓடுகிறது", ["ஒரு", "நாய்", "ஓடுகிறது"]),
        ("ಒಂದು ನಾಯಿ", ["ಒಂದು", "ನಾಯಿ"]),
        ("x\u20d7 and كَلْب", ["x\u20d7", "and", "كَلْب"]),
        ("سگ می\u200cدود\u200c.", ["سگ", "می\u200cدود"]),  # a joiner within a word
        ("一只狗在跑\uff0cT恤", ["一", "只", "狗", "在", "跑", "t", "恤"]),
        ("いぬがボールを", ["い", "ぬ", "が", "ボ", "ー", "ル", "を"]),
        ("หมากำลังวิ่ง", ["ห", "ม", "า", "กำ", "ลั", "ง", "วิ่", "ง"]),
        ("ខ្មែរ", ["ខ្មែ", "រ"]),  # a letter below another one
        ("개가 뛴다", ["개가", "뛴다"]),
        ("cafe\u0301 İris", ["café", "i\u0307ris"]),
        ("a 🐕 dog👍🏽 ❤️", ["a", "dog"]),
        ("!?🙂", []),
        ("", []),
    ],
)
def test_split_words_by_hand(caption: str, words: list[str]) -> None:
    assert split_words(caption) == [unicodedata.normalize("NFC", word) for word in words]


@pytest.mark.parametrize(
    ("caption", "text"),
    [
        ("一只狗在跑\uff0cT恤", "一只狗在跑 t 恤"),
        ("いぬ が ボールを。", "いぬがボールを"),
        ("หมากำลังวิ่ง dog 3 ตัว", "หมากำลังวิ่ง dog 3 ตัว"),
        ("ခွေး ပြေး", "ခွေးပြေး"),
        ("개가 뛴다, a DOG's", "개가 뛴다 a dog 's"),
        ("ก ำ", "ก ำ"),  # without the space they are one letter
    ],
)
def test_letters_of_scripts_without_spaces_are_joined(caption: str, text: str) -> None:
    vocabulary = Vocabulary.from_captions([caption])
    assert vocabulary.decode(vocabulary.encode(caption)) == text


@given(caption=TRICKY | st.text("กำ่ຳကျ္း狗ば゙aé 3'"))
def test_joined_words_are_split_into_the_same_words(caption: str) -> None:
    words = split_words(caption)
    assert split_words(join_words(words)) == split_words(" ".join(words)) == words


LETTERS = st.characters(categories=["Lu", "Ll", "Lo", "Lm"], max_codepoint=0xFFFF)
MARKS = st.characters(categories=["Mn", "Mc"], max_codepoint=0xFFFF)
MARKED = st.lists(st.tuples(LETTERS, st.text(MARKS, max_size=2)).map("".join), min_size=1)


@given(words=st.lists(MARKED.map("".join), max_size=5))
def test_words_of_letters_and_marks_get_the_scores_of_the_caption(words: list[str]) -> None:
    caption = unicodedata.normalize("NFC", " ".join(words).lower())
    assert ptb_tokenize(" ".join(split_words(caption))) == ptb_tokenize(caption)


@given(parts=st.lists(TRICKY, max_size=5))
def test_words_never_span_a_space(parts: list[str]) -> None:
    """Phrases are counted between spaces and mapped to tokens part by part."""
    pieces = " ".join(parts).split()
    assert split_words(" ".join(parts)) == [w for piece in pieces for w in split_words(piece)]


def test_long_captions_are_split_fast() -> None:
    words = ["a", "dog", "'s"] * 1001
    assert split_words(" ".join(words)) == words
    assert len(Vocabulary.from_captions(["a dog's"]).encode(" ".join(words))) == 3005


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ((), "must begin with <pad>, <start>, <end>, <unknown>"),
        (("a", *SPECIAL_TOKENS), "visattn.data.Vocabulary creates such a list"),
        ((*SPECIAL_TOKENS, "a", "b", "a"), r"duplicates: \['a'\]"),
        ((*SPECIAL_TOKENS, "<end>"), "duplicates"),
    ],
)
def test_invalid_word_lists_are_refused(words: tuple[str, ...], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Vocabulary(words)


@given(caption=st.text(st.characters(max_codepoint=127)) | st.text("aBs nt'.,-/#1_$", max_size=23))
def test_ascii_captions_have_the_words_of_all_captions(caption: str) -> None:
    assert split_words(caption) == split_words(f"{caption} é")[:-1]


# ---------------------------------------------------------------- batches

VOCABULARY = Vocabulary.from_captions(["a b c d e"])
LETTERED = st.lists(st.sampled_from("abcde"), max_size=7).map(" ".join)


def sample(number: int, *captions: str) -> CaptionSample:
    image = torch.full((3, 2, 5), number, dtype=torch.uint8)
    return CaptionSample(str(number), image, captions)


@given(content=st.lists(st.lists(LETTERED, min_size=1, max_size=5), min_size=1, max_size=7))
def test_every_caption_keeps_its_image_index(content: list[list[str]]) -> None:
    samples = [sample(number, *captions) for number, captions in enumerate(content)]
    batch = collate_captions(samples, VOCABULARY)
    assert batch.samples == tuple(each._replace(image=None) for each in samples)  # not sent twice
    assert batch.images is not None
    assert batch.images[:, 0, 0, 0].tolist() == list(range(len(content)))
    assert (batch.lengths.diff() <= 0).all()
    assert int(batch.lengths[0]) + 1 == batch.captions.shape[1]
    read = []
    for row, length, owner in zip(
        batch.captions.tolist(), batch.lengths.tolist(), batch.image_indices.tolist(), strict=True
    ):
        assert row[0] == START
        assert row[length] == END
        assert set(row[length + 1 :]) <= {PAD}
        read.append((owner, VOCABULARY.decode(row)))
    assert sorted(read) == sorted(
        (owner, caption) for owner, captions in enumerate(content) for caption in captions
    )


def test_captions_are_sorted_cut_and_moved_to_a_device() -> None:
    batch = collate_captions([sample(0, "a", "b"), sample(1, "c"), sample(2, "d e")], VOCABULARY)
    assert batch.image_indices.tolist() == [2, 0, 0, 1]  # those of equal length in order
    batch = collate_captions([sample(0, "a b c d"), sample(1, "a")], VOCABULARY, max_words=3)
    assert batch.lengths.tolist() == [3, 2]
    assert END not in batch.captions[0]
    assert batch.captions[1].tolist()[:3] == [START, VOCABULARY.encode("a")[1], END]
    grids = (torch.rand(7, 3, 5), torch.rand(11, 2, 2))  # cached features replace images
    kept = [CaptionSample(str(n), None, ("a",), grids=grids) for n in range(3)]
    cached = collate_captions(kept, VOCABULARY).to("meta")
    assert cached.images is None
    assert [tuple(grid.shape) for grid in cached.grids] == [(3, 7, 3, 5), (3, 11, 2, 2)]
    moved = [part for part in (*batch.to("meta"), *cached.grids) if isinstance(part, torch.Tensor)]
    assert len(moved) == 6
    assert {part.device.type for part in moved} == {"meta"}
    with pytest.raises(ValueError, match=r"these have none: \['1'\]"):
        collate_captions([sample(0, "a"), sample(1)], VOCABULARY)


def test_phrases_follow_their_captions() -> None:
    first, second = (Phrase(0, 1, ((0.0, 0.0, 1.0, 1.0),), (), text) for text in ("a", "b"))
    content = sample(0, "a", "b c d")._replace(phrases=((first,), (second,)))
    batch = collate_captions([content, sample(1, "a b")], VOCABULARY)
    assert batch.phrases() == [(second,), (), (first,)]


def test_swap_images_swaps_each_image_with_its_partner() -> None:
    batch = collate_captions([sample(number, "a") for number in range(5)], VOCABULARY)
    swapped = batch.swap_images()
    assert (num_paired(batch), swapped.samples) == (4, batch.samples)
    assert swapped.images is not None
    assert swapped.images[:, 0, 0, 0].tolist() == [1, 0, 3, 2, 4]
