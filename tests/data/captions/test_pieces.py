"""Tokenizers of Hugging Face: pieces of every kind, and words with one map each."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import visattn
from visattn.data.captions.batch import Vocabulary
from visattn.data.captions.pieces import PieceTokenizer
from visattn.images.reader import LoadedImage
from visattn.models.base import SmallEncoder
from visattn.models.captioning.captioner import Captioner
from visattn.models.captioning.show_attend_tell import ShowAttendTell
from visattn.pipelines.caption_words import CaptionerWords
from visattn.pipelines.captioning import caption, words_of
from visattn.pipelines.word_source import with_word_maps
from visattn.results.captions import Caption
from visattn.results.kinds import SPECIAL_TOKENS

tokenizers = pytest.importorskip("tokenizers")
CAPTIONS = ["a red ring left of a blue star", "赤い円と青い四角", "a well-worn ball, café"] * 3
KINDS = {
    "byte-level": lambda: trained(
        tokenizers.models.BPE(), "ByteLevel", tokenizers.trainers.BpeTrainer(vocab_size=280)
    ),
    "metaspace": lambda: trained(
        tokenizers.models.Unigram(), "Metaspace", tokenizers.trainers.UnigramTrainer(vocab_size=60)
    ),
    "wordpiece": lambda: trained(
        tokenizers.models.WordPiece(unk_token="<unk>"),
        "WordPiece",
        tokenizers.trainers.WordPieceTrainer(vocab_size=60),
    ),
    "end-of-word": lambda: trained(
        tokenizers.models.BPE(end_of_word_suffix="</w>"),
        "BPEDecoder",
        tokenizers.trainers.BpeTrainer(vocab_size=60, end_of_word_suffix="</w>"),
    ),
}


def trained(model: Any, decoder: str, trainer: Any) -> Any:
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.decoder = getattr(tokenizers.decoders, decoder)()
    before = decoder if decoder in ("ByteLevel", "Metaspace") else "WhitespaceSplit"
    tokenizer.pre_tokenizer = getattr(tokenizers.pre_tokenizers, before)()
    tokenizer.train_from_iterator(CAPTIONS, trainer)
    return tokenizer


@pytest.fixture(params=KINDS)
def tokenizer(request: pytest.FixtureRequest, tmp_path: Path) -> PieceTokenizer:
    """A tokenizer of each kind, from its folder."""
    build: Callable[[], Any] = KINDS[request.param]
    build().save(str(tmp_path / "tokenizer.json"))
    read = PieceTokenizer(str(tmp_path), CAPTIONS)
    assert read.kind == request.param
    return read


def test_captions_are_split_and_joined_again(tokenizer: PieceTokenizer) -> None:
    vocabulary = Vocabulary.from_captions(CAPTIONS, tokenizer=tokenizer)
    for text in CAPTIONS:
        tokens = vocabulary.encode(text)
        assert vocabulary.decode(tokens) == text
        words = words_of([vocabulary.words[token] for token in tokens[1:-1]], tokenizer.kind)
        assert "".join(words.words) == text.replace(" ", "")
        if text.isascii():
            assert words.words == tuple(text.split())
            assert words.spaces == ()


def test_a_word_has_the_mean_of_the_maps_of_its_pieces(tmp_path: Path) -> None:
    pieces = ("▁a", "▁r", "ing", "▁", "赤", "い", "<0xE5>", "<0x86>", "<0x86>")
    model: Captioner[Any] = ShowAttendTell(
        (*SPECIAL_TOKENS, *pieces), SmallEncoder((24, 40), channels=8), hidden_size=11
    )
    model.pieces = "metaspace"
    visattn.save(model, tmp_path / "model.safetensors")
    model = visattn.load(tmp_path / "model.safetensors")  # type: ignore[assignment]
    photo = LoadedImage(np.random.default_rng(0).integers(0, 255, (31, 41, 3), np.uint8))
    with torch.no_grad():
        [result] = caption(model, photo, max_length=13, min_length=13)
    words = words_of(result.pieces, "metaspace")
    assert len(result.pieces) == 13
    assert len(result.words) < 13
    assert Caption.from_dict(result.to_dict()).pieces == result.pieces
    assert sum(result.log_probs) <= 0
    # The same pieces, read again by teacher forcing, give the same maps.
    source = CaptionerWords(model, photo, result.words, pieces=result.pieces)
    again = with_word_maps(result, source, "attention", layers=[0])
    torch.testing.assert_close(again.maps.values, result.maps.values)
    run = source.run()
    log_probs = [float(run.log_probs[start:stop].detach().sum()) for start, stop in words.spans]
    np.testing.assert_allclose(result.log_probs, log_probs, rtol=1e-4)
    weights = run.layers[0].weights()[0].unflatten(-1, model.encoder.grid_size)
    for index, (start, stop) in enumerate(words.spans):
        torch.testing.assert_close(result.maps.values[index], weights[start:stop].mean(0).detach())
    occluded = with_word_maps(result, source, "occlusion")
    assert len(occluded.maps.values) == len(result.words)
    with pytest.raises(ValueError, match="without their pieces"):
        CaptionerWords(model, photo, result.words)


def test_folders_without_a_tokenizer_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="has no tokenizer.json"):
        PieceTokenizer(str(tmp_path))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match="cannot be read"):
        PieceTokenizer(str(tmp_path))
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = tokenizers.decoders.Replace("a", "c")
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ValueError, match="cannot be joined: 'a b' is"):
        PieceTokenizer(str(tmp_path), ["a b"])
