"""Words of generated tokens: no letter is lost, and each has the tokens that wrote it."""

from collections.abc import Sequence
from typing import Any

import pytest
import transformers as hf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from visattn.pipelines.words.spans import split_words

TEXTS = (
    "The dog's 3.14 ball, isn't it?", "naïve café Größe", "图片里有一只猫坐在垫子上。",
    "猫が好き cats too", "มีแมวอยู่บนโต๊ะ สีแดง", "हिन्दी में लिखा हुआ शब्द", "a 🐈‍⬛ on 👨‍👩‍👧‍👦",
    "two  spaces\nand\tmore", "U.S.A. $5.00 (in) [1,2]",
)  # fmt: skip


def byte_level() -> Any:
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["</s>"], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())  # fmt: skip
    core.train_from_iterator(["the cat isn't on the mat"] * 9, trainer)
    return hf.PreTrainedTokenizerFast(tokenizer_object=core, eos_token="</s>")


def word_piece(**options: Any) -> Any:
    pieces = [
        "[PAD]",
        "[UNK]",
        "the",
        "dog",
        "'",
        "s",
        "ball",
        "isn",
        "t",
        "red",
        ".",
        "un",
        "##like",
    ]
    core = Tokenizer(
        models.WordPiece({each: n for n, each in enumerate(pieces)}, unk_token="[UNK]")
    )
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.decoder = decoders.WordPiece()
    return hf.PreTrainedTokenizerFast(tokenizer_object=core, unk_token="[UNK]", pad_token="[PAD]",
                                      **options)  # fmt: skip


def letters(text: str) -> str:
    return "".join(text.split())


@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("text", TEXTS)
def test_no_letter_is_lost_and_every_token_has_a_word(text: str, *, per_token: bool) -> None:
    tokenizer = byte_level()
    ids = tokenizer(text).input_ids
    result = split_words(tokenizer, ids, per_token=per_token)
    assert letters("".join(result.words)) == letters(text)
    covered = {token for span in result.spans for token in range(*span)}
    assert covered == set(range(len(ids)))
    assert list(result.spans) == sorted(result.spans)
    joined = "".join(
        " " * space + word for space, word in zip(result.spaces, result.words, strict=True)
    )
    assert joined.split() == text.split()


@pytest.mark.parametrize("clean_up", [True, False])
def test_clean_up_of_word_pieces_drops_no_letters(*, clean_up: bool) -> None:
    tokenizer = word_piece(clean_up_tokenization_spaces=clean_up)
    ids = tokenizer("the dog's ball isn't unlike red.").input_ids
    result = split_words(tokenizer, ids)
    assert result.words == ("the", "dog", "'", "s", "ball", "isn", "'", "t", "unlike", "red.")
    assert result.spans == (*((n, n + 1) for n in range(8)), (8, 10), (10, 12))


class Pieces:
    """A tokenizer whose tokens are strings."""

    all_special_ids = (0,)

    def __init__(self, *pieces: str) -> None:
        self.pieces = ("", *pieces)

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        return "".join(self.pieces[each] for each in ids)

    def split(self, **options: Any) -> Any:
        return split_words(self, range(1, len(self.pieces)), **options)


def test_scripts_without_spaces_have_a_map_per_token() -> None:
    chinese = Pieces("图片", "里有", "一只", "猫", "。", " cat", "s").split()
    assert chinese.words == ("图片", "里有", "一只", "猫。", "cats")
    assert chinese.spans == ((0, 1), (1, 2), (2, 3), (3, 5), (5, 7))
    assert chinese.spaces == (True, False, False, False, True)
    assert chinese.split
    thai = Pieces("มี", "แม", "ว", "อย", "ู", "่").split()  # marks stay on their letters
    assert thai.words == ("มี", "แม", "ว", "อยู่")
    assert not Pieces("a", " cat", "s").split().split


def test_each_token_is_a_word_on_request() -> None:
    result = Pieces("play", "ing", ",", " ", "cats").split(per_token=True)
    assert result.words == ("play", "ing", ",", "cats")
    assert result.spans == ((0, 1), (1, 2), (2, 3), (3, 5))
    assert result.spaces == (True, False, False, True)


def test_a_text_that_stops_inside_a_character_keeps_its_words() -> None:
    tokenizer = byte_level()
    ids = tokenizer("the cat 猫").input_ids
    for cut in (1, 2):
        assert split_words(tokenizer, ids[:-cut]).words == ("the", "cat")


def test_prefixes_that_change_keep_all_letters() -> None:
    class Joining(Pieces):
        def decode(self, ids: Sequence[int], **options: Any) -> str:
            return super().decode(ids, **options).replace(" ' t", "'t")

    result = Joining("isn", " '", " t", " red").split()
    assert result.words == ("isn't", "red")
    assert result.spans == ((0, 3), (3, 4))
