"""Sequences of different lengths without padding, in the smallest integer type that holds their tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from statewise.data_types import Examples


class Ragged:
    """n sequences, concatenated; satisfies `types.Rows`."""

    def __init__(self, tokens: np.ndarray, lengths: np.ndarray, prompt_lengths: np.ndarray) -> None:
        """`tokens` (sum of lengths,) of any integer type; `lengths` and `prompt_lengths` (n,)."""
        self.tokens, self.lengths, self.prompt_lengths = tokens, lengths, prompt_lengths
        self.starts = np.cumsum(lengths) - lengths

    @classmethod
    def of(cls, rows: Sequence[np.ndarray], prompt_lengths: Sequence[int], vocabulary: int) -> Ragged:
        """One or more sequences of token ids below `vocabulary`."""
        tokens = np.concatenate([row.astype(np.min_scalar_type(vocabulary - 1)) for row in rows])
        return cls(tokens, np.array([len(row) for row in rows], np.int64), np.array(prompt_lengths, np.int64))

    @classmethod
    def unpadded(cls, examples: Examples, vocabulary: int) -> Ragged:
        """Examples that have one document per row and score every answer token."""
        assert examples.documents is None
        assert examples.scored is None
        real = np.arange(examples.tokens.shape[1]) < examples.lengths[:, None]
        kind = np.min_scalar_type(vocabulary - 1)
        return cls(examples.tokens.astype(kind)[real], examples.lengths, examples.prompt_lengths)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, rows: slice | np.ndarray) -> Examples:
        """The selected rows, padded to the longest of them."""
        lengths = self.lengths[rows]
        tokens = np.zeros((len(lengths), int(lengths.max()) if len(lengths) else 0), np.int64)
        for place, (start, length) in enumerate(zip(self.starts[rows].tolist(), lengths.tolist())):
            tokens[place, :length] = self.tokens[start : start + length]
        return Examples(tokens, lengths, self.prompt_lengths[rows])

    def row(self, number: int) -> np.ndarray:
        """(length,) tokens of one row, of the type in which they are kept."""
        return self.tokens[self.starts[number] : self.starts[number] + self.lengths[number]]

    def holds(self, examples: Examples) -> np.ndarray:
        """(n,) bool: whether an example of one document is one of these rows, with the same prompt."""
        kind = self.tokens.dtype
        asked = [
            (prompt, row[:length].astype(kind).tobytes())
            for prompt, row, length in zip(examples.prompt_lengths.tolist(), examples.tokens, examples.lengths)
        ]
        missing = set(asked)
        for number, prompt in enumerate(self.prompt_lengths.tolist()):
            missing.discard((prompt, self.row(number).tobytes()))
        return np.array([one not in missing for one in asked], bool)

    def columns(self) -> np.ndarray:
        """(sum of lengths,) int64: the place of each token in its row."""
        return np.arange(len(self.tokens)) - np.repeat(self.starts, self.lengths)
