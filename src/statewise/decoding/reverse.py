"""Decoding backwards: any decoder generates completions from the last token to the first.

Every token is predicted by the previous-token head (Belief State Transformer, T_p) from the prompt and the tokens after
it. The decoder sees reversed sequences: the end of the sequence is its prompt, and the prompt its goal.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from statewise.data_types import Completion
from statewise.decoding.base import Decoder, Request, Search
from statewise.decoding.predictor import GoalScorer, Predictor, Reversible, require


class Reverse(Search):
    """Runs another decoder backwards. Needs a `Reversible` predictor.

    Decoding starts from the goal; without a goal, from the end token, which is then the last of the completion; if the
    task has none, from the empty suffix. A goal search ranks candidates by the likelihood of the prompt under the
    previous-token head: equation 7 in reverse. That needs a model whose previous-token targets include prompts. With a
    goal the prompt may be empty: completions are then beginnings of sequences, and a goal search ranks them by the
    likelihood of their first tokens under the next-token head: equation 8 in reverse.
    """

    def __init__(self, decoder: Decoder) -> None:
        self.decoder, self.config = decoder, decoder.config

    def search(self, predictor: Predictor, request: Request) -> list[Completion]:
        """All candidates of a search, best first, or the one completion of another decoder.

        Completions have exactly `limit` tokens, unless the request has a closing symbol, or the model has one and there
        is no goal. Raises `ValueError` if the predictor is not `Reversible`, if prompt and goal leave no room, if
        without a goal there is room for the end token only, if a beginning should have free length, or for options of
        the decoder that have no use backwards.
        """
        (prompt,) = request.prompts
        beginning = len(prompt) == 0
        self.decoder.check_backwards(not beginning)
        if beginning and request.closing is not None:
            raise ValueError("without a prompt, decoding backwards has no end: give `limit` in place of `free_length`")
        (limit,) = request.limits(predictor.context).tolist()  # its messages name prompt and goal as given
        backwards = require(predictor, Reversible).backwards()
        last = np.array([] if request.end is None or request.exact else [request.end], np.int64)
        closing = request.closing
        if request.goal is None:
            known, kept = last, last
            closing = None if request.exact else require(backwards, GoalScorer).closing
        else:
            known, kept = request.goal, last[:0]
        if limit == len(kept):
            raise ValueError(
                "decoding backwards starts from the end token and needs room for one more: set `limit` to at least 2, "
                f"and give a prompt of at most {predictor.context - 2} tokens"
            )
        turned = Request(
            [known[::-1].copy()],
            limit - len(kept),
            request.end,
            None if beginning else prompt[::-1].copy(),
            request.exact or beginning,
            closing,
            request.rows,
        )
        if isinstance(self.decoder, Search):
            candidates = self.decoder.search(backwards, turned)
        else:
            candidates = self.decoder.decode(backwards, turned)
        return [replace(one, tokens=np.concatenate([one.tokens[::-1], kept])) for one in candidates]
