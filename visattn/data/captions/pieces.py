"""Pieces of words, into which tokenizers of Hugging Face split captions."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from visattn.io.safe_text import parse_json
from visattn.metrics.ptb_tokenizer import join_words

PieceKind = Literal["byte-level", "metaspace", "wordpiece", "end-of-word"]
"""How pieces say where words begin: `Ġdog`, `▁dog`, `dog ##s` or `dog</w>`."""

_KINDS = {
    "ByteLevel": "byte-level", "Metaspace": "metaspace", "WordPiece": "wordpiece",
    "BPEDecoder": "end-of-word",
}  # fmt: skip
_END_OF_WORD = "</w>"
_BYTE = re.compile("<0x([0-9A-F]{2})>")  # of a letter that SentencePiece has no piece for


def _byte_letters() -> dict[str, int]:
    """Return the letters that stand for bytes in byte-level pieces: those that print, as they are.

    Source:
        Radford et al. 2019, GPT-2, `bytes_to_unicode`.
    """
    printed = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printed]
    return {chr(byte): byte for byte in printed} | {
        chr(256 + number): byte for number, byte in enumerate(others)
    }


_BYTES = _byte_letters()


def join_pieces(pieces: Sequence[str], kind: str) -> str:
    r"""Return the text of pieces; of a letter that lacks its last bytes, a replacement character.

    Args:
        pieces: The pieces, as the tokenizer names them.
        kind: See `PieceKind`.

    Example:
        >>> join_pieces(["a", "Ġd", "og", "ĠçĬ"], "byte-level")
        'a dog \ufffd'
        >>> join_pieces(["▁a", "▁d", "og", "<0xE7>", "<0x8A>", "<0xAC>"], "metaspace")
        ' a dog犬'
        >>> join_pieces(["a", "d", "##og"], "wordpiece")
        'a dog'
        >>> join_pieces(["d", "og</w>"], "end-of-word")
        'dog '
    """
    if kind == "wordpiece":
        return " ".join(pieces).replace(" ##", "")
    if kind == "metaspace":
        data = b"".join(
            bytes.fromhex(byte[1])
            if (byte := _BYTE.fullmatch(piece))
            else piece.replace("▁", " ").encode()
            for piece in pieces
        )
    else:
        text = "".join(pieces).replace(_END_OF_WORD, " ")  # that of CLIP is of both kinds
        if kind == "end-of-word":
            return text
        data = b"".join(
            bytes([_BYTES[letter]]) if letter in _BYTES else letter.encode() for letter in text
        )
    return data.decode(errors="replace")


def caption_text(words: Sequence[str], pieces: str = "") -> str:
    """Return the text of the words of a model, or of its pieces.

    Example:
        >>> caption_text(["a", "d", "##og"], "wordpiece"), caption_text(["犬", "が", "a"])
        ('a dog', '犬が a')
    """
    if not pieces:
        return join_words(words)
    text = join_pieces(words, pieces)
    # WordPiece takes letters of these scripts for words, and would put spaces between them.
    return join_words(text.split()) if pieces == "wordpiece" else text.strip()


class PieceTokenizer:
    """A tokenizer of Hugging Face, which splits captions into pieces of words.

    Args:
        name: Its name on the hub, a folder with its `tokenizer.json`, or this file.
        captions: Captions of which some are split and joined again, to check that the names of the
            pieces are understood.

    Raises:
        ImportError: Without the package `tokenizers`.
        FileNotFoundError: If the folder has no `tokenizer.json`.
        ValueError: If it cannot be read, or its pieces do not give the text that its own decoder
            gives.
    """

    def __init__(self, name: str, captions: Sequence[str] = ()) -> None:
        self.name = name
        self._tokenizer = _read(name)
        self.kind = self._kind()
        for caption in captions[:200]:
            encoding = self._tokenizer.encode(caption, add_special_tokens=False)
            decoded = self._tokenizer.decode(encoding.ids, skip_special_tokens=False)
            own = join_pieces(encoding.tokens, self.kind)
            if _letters(decoded) != _letters(own):
                raise ValueError(
                    f"pieces of the tokenizer {name} cannot be joined: {caption!r} is "
                    f"{encoding.tokens[:9]}, which reads {own[:60]!r}, not {decoded[:60]!r}; "
                    f"known are pieces of the kinds {', '.join(get_args(PieceKind))}"
                )

    def split(self, caption: str) -> list[str]:
        """Return the pieces of a caption, without special tokens."""
        return self._tokenizer.encode(caption, add_special_tokens=False).tokens

    def _kind(self) -> str:
        saved = parse_json(self._tokenizer.to_str())
        decoder = saved["decoder"] or {"type": "WordPiece"}  # plain words
        decoders = [decoder, *decoder.get("decoders", ())]
        kinds = [_KINDS[each["type"]] for each in decoders if each["type"] in _KINDS]
        return kinds[0] if kinds else "metaspace"  # such as that of Llama: a list of replacements


def _letters(text: str) -> str:
    return "".join(text.replace(_END_OF_WORD, "").split())


def _read(name: str) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise ImportError(
            "tokenizer needs the package tokenizers; pip install 'visattn[hf]'"
        ) from error
    path = Path(name)
    file = path / "tokenizer.json" if path.is_dir() else path
    if path.is_dir() and not file.is_file():
        raise FileNotFoundError(
            f"{name} has no tokenizer.json; AutoTokenizer.from_pretrained(FOLDER) of transformers "
            "and its save_pretrained(FOLDER) write one"
        )
    read = Tokenizer.from_file if file.is_file() else Tokenizer.from_pretrained
    try:
        return read(str(file))
    except Exception as error:
        where = "" if file.is_file() else ": it is no folder, and the hub gave none"
        raise ValueError(f"the tokenizer {name} cannot be read{where} ({error})") from error
