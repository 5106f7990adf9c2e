"""Byte-level BPE, lossless in both directions, by the `tokenizers` package."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from statewise.runtime.extras import failing_as
from statewise.runtime.messages import short, to_install

END = "<|endoftext|>"
"""Token at the end of every text; in files, a line of its own."""
SEPARATOR = "<|separator|>"
"""Token between a suffix and the prefix that leads to it."""
MARKS = (END, SEPARATOR)
SMALLEST = 256 + 2
"""Size of a vocabulary without merges: the bytes and the two special tokens."""
PROBE = "the cat sat"
"""Text that is decoded to test a tokenizer's decoder."""
BLOCK = 1000
"""Texts tokenised at a time, so that a large corpus is never held as Python lists."""

LONGEST_WORD = 10_000
"""Bytes after which training cuts a word, such as a line of DNA: the time it takes grows with their square."""


class BPE:
    """A tokenizer, as its JSON file describes it."""

    def __init__(self, content: str, source: str, marks: Sequence[str] = MARKS) -> None:
        """`content` of tokenizer.json; special tokens (`marks`) that it lacks are added, except the first, which ends
        every text.

        Raises `ValueError`, naming `source`, if it does not describe a tokenizer, or one that encodes at random or
        lacks the end-of-text token.
        """
        package = _package()
        with failing_as(f"{source}: not a tokenizer file"):
            self._tokenizer = package.Tokenizer.from_str(content)
        dropout = getattr(self._tokenizer.model, "dropout", None)
        if dropout:
            raise ValueError(
                f"{source}: this tokenizer leaves out merges at random, so the same text can be encoded differently: "
                f"set dropout of its model to null, not {dropout:g}"
            )
        self._source, self._failing = source, f"{source}: this tokenizer fails on a text"
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.end_symbol = marks[0]
        if self._tokenizer.token_to_id(self.end_symbol) is None:
            raise ValueError(f"{source}: this tokenizer has no token {self.end_symbol}, which must end every text")
        self._tokenizer.add_special_tokens(list(marks))  # existing ones keep their ids
        ids = self._tokenizer.get_vocab(with_added_tokens=True)
        self.symbols = sorted(ids, key=lambda symbol: ids[symbol])
        """Tokens in the tokenizer's spelling, by id."""
        if [ids[symbol] for symbol in self.symbols] != list(range(len(ids))):
            raise ValueError(f"{source}: the token ids of this tokenizer are not 0 to {len(ids) - 1} without gaps")
        self.marks: dict[str, int] = {mark: ids[mark] for mark in marks}
        """Ids of the special tokens."""
        self.end = self.marks[self.end_symbol]
        self._plain: Any = None

    @property
    def content(self) -> str:
        """The content of tokenizer.json."""
        return str(self._tokenizer.to_str())

    def encode(self, text: str) -> np.ndarray:
        """(m,) int64 token ids; special tokens written out in `text` become those tokens."""
        with failing_as(self._failing):
            return np.array(self._tokenizer.encode(text, add_special_tokens=False).ids, np.int64)

    def encode_all(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Token ids of each text, in the smallest type that holds them."""
        kind = np.uint16 if len(self.symbols) <= 2**16 else np.uint32
        encodings: list[np.ndarray] = []
        for first in range(0, len(texts), BLOCK):
            with failing_as(self._failing):
                block = self._tokenizer.encode_batch_fast(texts[first : first + BLOCK], add_special_tokens=False)
            encodings += [np.array(encoding.ids, kind) for encoding in block]
        return encodings

    def encode_documents(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text; a special token written out in it is ordinary text."""
        if self._plain is None:
            self._plain = _package().Tokenizer.from_str(self.content)
            self._plain.no_truncation()
            self._plain.no_padding()
            self._plain.encode_special_tokens = True  # that is: as ordinary text
        with failing_as(self._failing):
            return [encoding.ids for encoding in self._plain.encode_batch_fast(list(texts), add_special_tokens=False)]

    def spellings(self) -> list[bytes]:
        """The bytes of each token, by id. Raises `ValueError` if this tokenizer is not byte-level."""
        added = {number: token.content.encode() for number, token in self._tokenizer.get_added_tokens_decoder().items()}
        byte_of = {symbol: number for number, symbol in enumerate(_alphabet())}
        try:
            return [
                added[number] if number in added else bytes(byte_of[character] for character in symbol)
                for number, symbol in enumerate(self.symbols)
            ]
        except KeyError as error:
            raise ValueError(f"this tokenizer is not byte-level: a token contains {error.args[0]!r}") from None

    def first_changed(self, texts: Sequence[str]) -> int | None:
        """Index of the first text that encoding and decoding change."""
        for first in range(0, len(texts), BLOCK):
            block = texts[first : first + BLOCK]
            with failing_as(self._failing):
                ids = [encoding.ids for encoding in self._tokenizer.encode_batch_fast(block, add_special_tokens=False)]
                decoded = self._tokenizer.decode_batch(ids, skip_special_tokens=False)
            for index, (text, again) in enumerate(zip(block, decoded)):
                if text != again:
                    return first + index
        return None

    def decode(self, tokens: Sequence[int] | np.ndarray) -> str:
        """Text of token ids, special tokens included."""
        with failing_as(self._failing):
            return str(self._tokenizer.decode([int(token) for token in tokens], skip_special_tokens=False))

    def check_decoding(self) -> None:
        """Raises `ValueError` unless decoding gives the bytes of the tokens, as the decoder of byte-level BPE does."""
        try:
            spellings = self.spellings()
        except ValueError as error:
            raise ValueError(f"{self._source}: {error}") from None
        (tokens,) = self.encode_documents([PROBE])
        wanted, decoded = b"".join(spellings[token] for token in tokens).decode(), self.decode(tokens)
        if decoded != wanted:
            raise ValueError(
                f"{self._source}: this tokenizer decodes the tokens of {wanted!r} to {short(decoded)}: give it the "
                'decoder {"type": "ByteLevel"}'
            )

    def is_canonical(self, tokens: np.ndarray) -> bool:
        """Whether encoding the text of `tokens` gives `tokens` again. A text cut inside a word may be split into other
        tokens."""
        return np.array_equal(self.encode(self.decode(tokens)), tokens)


def train(texts: Iterable[str], vocabulary: int, marks: Sequence[str] = MARKS, option: str = "task.vocabulary") -> BPE:
    """Trains a tokenizer of `vocabulary` tokens on `texts`, deterministically.

    Raises `ValueError`, naming the `option` to change, if the texts have too few different pairs for so many tokens.
    """
    package = _package()
    tokenizer = package.Tokenizer(package.models.BPE())
    cut = package.pre_tokenizers.FixedLength(length=LONGEST_WORD)
    tokenizer.pre_tokenizer = package.pre_tokenizers.Sequence([_byte_level(package), cut])
    trainer = package.trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(marks),
        initial_alphabet=sorted(package.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    _make_byte_level(tokenizer, package)
    size = tokenizer.get_vocab_size()
    if size < vocabulary:
        raise ValueError(
            f"the training texts yield a vocabulary of only {size} tokens: set {option} to {size} or less, not "
            f"{vocabulary}"
        )
    return BPE(tokenizer.to_str(), "the trained tokenizer", marks)


def from_merges(vocabulary: Path, merges: Path) -> str:
    """tokenizer.json of a byte-level tokenizer given as vocab.json and merges.txt, as GPT-2's is."""
    package = _package()
    with failing_as(f"{vocabulary}, {merges}: not tokenizer files"):
        tokenizer = package.Tokenizer(package.models.BPE.from_file(str(vocabulary), str(merges)))
    _make_byte_level(tokenizer, package)
    if tokenizer.token_to_id(END) is not None:
        tokenizer.add_special_tokens([END])  # these files do not distinguish special tokens
    return str(tokenizer.to_str())


def _make_byte_level(tokenizer: Any, package: Any) -> None:
    """Makes a tokenizer byte-level."""
    tokenizer.pre_tokenizer = _byte_level(package)
    tokenizer.decoder = package.decoders.ByteLevel()


def _byte_level(package: Any) -> Any:
    return package.pre_tokenizers.ByteLevel(add_prefix_space=False)


def spelled(text: str) -> str:
    """How byte-level tokenizers write a text."""
    alphabet = _alphabet()
    return "".join(alphabet[byte] for byte in text.encode())


def _alphabet() -> list[str]:
    """The character that byte-level tokenizers write for each byte: itself if printable, else one from 256 on."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def _package() -> Any:
    try:
        import tokenizers
    except ImportError:
        raise ValueError(f"tokenizers need the extra `data`: {to_install('data')}") from None
    return tokenizers
