"""Rows that have read different numbers of tokens share a pass, and each gets what it would get alone."""

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from doubles import (
    VOCABULARY,
    spread_weights,
    tiny_belief_slots,
    tiny_deltanet,
    tiny_gpt,
    tiny_hf,
    tiny_recurrent,
    tiny_two_stream,
)
from hypothesis import Phase, given, settings

from statewise.backbones import BACKBONES as TABLE
from statewise.backbones.capabilities import Carrying
from statewise.backbones.nn.cache import SLACK
from statewise.backbones.nn.stream_cache import StreamCache
from statewise.data_types import Batch

pytestmark = pytest.mark.usefixtures("float64")

LENGTH = 150  # several times what a window keeps

BACKBONES = {
    "gpt": lambda: tiny_gpt(context=LENGTH),
    "gpt, learned positions": lambda: tiny_gpt(context=LENGTH, positions="learned"),
    "gpt, stick_breaking": lambda: tiny_gpt(context=LENGTH, attention="stick_breaking", positions="none"),
    **{
        f"two_stream {variant}": lambda variant=variant: tiny_two_stream(context=LENGTH, variant=variant, window=3)
        for variant in ("standard", "sps", "double_memory", "delayed_state", "reverse_sps", "strict")
    },
    "hf": lambda: tiny_hf(context=LENGTH),
    "recurrent": lambda: tiny_recurrent(context=LENGTH),
    "recurrent lstm": lambda: tiny_recurrent(context=LENGTH, cell="lstm"),
    "belief_slots": lambda: tiny_belief_slots(context=LENGTH),
    "deltanet": lambda: tiny_deltanet(context=LENGTH),
}


WITHOUT_MASKED_KEYS = {"belief_slots": "rows of different length are read in groups, whose rows have all keys"}


def test_every_backbone_of_the_table_is_here():
    assert {name.split()[0].rstrip(",") for name in BACKBONES} == set(TABLE)


@pytest.fixture(scope="module", params=BACKBONES)
def backbone(request):
    torch.manual_seed(0)
    made = BACKBONES[request.param]().double().eval()
    spread_weights(made)
    return made


class Rows:
    """A cache, and beside it what each of its rows has read."""

    def __init__(self, backbone, seed):
        self.backbone, self.generator = backbone, torch.Generator().manual_seed(seed)
        self.cache, self.read, self.held = backbone.make_cache(0), [], False
        self.back = []  # how far each row may surely go back, all later rewinds together
        self.unheld = 4 if isinstance(backbone, Carrying) else SLACK  # belief slots surely keep one chunk only

    def tokens(self, rows, count):
        return torch.randint(0, VOCABULARY, (rows, count), generator=self.generator)

    def check(self, hidden, counts):
        for row, (tokens, count) in enumerate(zip(self.read, counts)):
            if count:
                alone = self.backbone.encode(Batch.plain(torch.tensor([tokens])))
                for mine, expected in zip(hidden, alone):
                    torch.testing.assert_close(mine[row, :count], expected[0, -count:])

    def join(self, lengths):
        lengths = [min(length, LENGTH) for length in lengths]
        other, tokens = self.backbone.make_cache(len(lengths)), self.tokens(len(lengths), max(lengths))
        found = self.backbone.read_prompt(tokens, other, np.array(lengths))
        self.cache.join(other)
        start = len(self.read)
        self.read += [row[:length] for row, length in zip(tokens.tolist(), lengths)]
        self.back += [0] * len(lengths)
        for row, length in enumerate(lengths):
            alone = self.backbone.encode(Batch.plain(torch.tensor([self.read[start + row]])))
            torch.testing.assert_close(found.readout[row, 0], alone.readout[0, length - 1])

    def extend(self, counts):
        counts = [min(count, LENGTH - len(tokens)) for count, tokens in zip(counts, self.read)]
        if not any(counts):
            return
        new = self.tokens(len(counts), max(counts))
        for row, count in enumerate(counts):
            self.read[row] = self.read[row] + new[row, :count].tolist()
            self.back[row] = min(self.back[row] + count, LENGTH if self.held else self.unheld)
        even = all(count == max(counts) for count in counts)
        self.check(self.backbone.extend(new, self.cache, None if even else np.array(counts)), counts)

    def rewind(self, shares):
        counts = [int(share * back) for share, back in zip(shares, self.back)]
        self.cache.rewind(np.array(counts))
        self.read = [tokens[: len(tokens) - count] for tokens, count in zip(self.read, counts)]
        self.back = [back - count for back, count in zip(self.back, counts)]

    def reorder(self, rows):
        self.cache.reorder(torch.tensor(rows, dtype=torch.int64))
        self.read, self.back = [self.read[row] for row in rows], [self.back[row] for row in rows]


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("join"), st.lists(st.integers(1, 12), min_size=1, max_size=2)),
        st.tuples(st.just("extend"), st.lists(st.integers(0, 6), min_size=8, max_size=8)),
        st.tuples(st.just("extend evenly"), st.integers(1, 40)),
        st.tuples(st.just("rewind"), st.lists(st.floats(0, 1), min_size=8, max_size=8)),
        st.tuples(st.just("leave"), st.lists(st.integers(0, 7), min_size=1, max_size=4)),
        st.tuples(st.just("hold"), st.just(None)),
        st.tuples(st.just("release"), st.just(None)),
    ),
    min_size=3,
    max_size=9,
)


@settings(max_examples=8, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(actions=ACTIONS, seed=st.integers(0, 1000))
def test_any_schedule_gives_each_row_what_it_gets_alone(backbone, actions, seed):
    with torch.no_grad():
        rows = Rows(backbone, seed)
        rows.join([5, 2])
        for what, given_ in actions:
            if what == "join" and len(rows.read) < 7:
                rows.join(given_)
            elif what == "extend":
                rows.extend(given_[: len(rows.read)])
            elif what == "extend evenly":
                room = min(LENGTH - len(tokens) for tokens in rows.read)
                rows.extend([min(given_, room)] * len(rows.read))
            elif what == "rewind":
                rows.rewind(given_[: len(rows.read)])
            elif what == "leave":
                rows.reorder([row % len(rows.read) for row in given_])
            elif what == "hold":
                rows.cache.hold()
                rows.held, rows.back = True, [0] * len(rows.read) if not rows.held else rows.back
            elif what == "release":
                rows.cache.release()
                rows.held, rows.back = False, [0] * len(rows.read)
        rows.extend([1] * len(rows.read))


@pytest.mark.parametrize("backbone", [name for name in BACKBONES if name not in WITHOUT_MASKED_KEYS], indirect=True)
def test_a_masked_key_has_no_weight_whatever_it_holds(backbone):
    """Zeros would have: exp(0) = 1. So what was taken back is replaced by huge values, and nothing changes."""
    rows, replaced = Rows(backbone, 3), 0
    with torch.no_grad():
        rows.join([6, 6])
        rows.extend([4, 4])
        rows.rewind([1.0, 0.5])
        for store in rows.cache.stores if isinstance(rows.cache, StreamCache) else [rows.cache]:
            dead = torch.from_numpy(store.places < 0)
            for columns in store.contents():
                columns.masked_fill_(dead[None, :, None, :, None], 1e6)
                replaced += int(dead.sum())
        assert replaced
        rows.extend([2, 1])


def test_counts_of_rows_that_read_everything_are_as_good_as_none(backbone):
    """As a long prompt is read in parts: each row has all of the first parts."""
    tokens = torch.randint(0, VOCABULARY, (3, 12))
    with torch.no_grad():
        cache = backbone.make_cache(3)
        for part in tokens.split(4, dim=1):
            found = backbone.extend(part, cache, np.full(3, 4)).readout
        torch.testing.assert_close(found, backbone.encode(Batch.plain(tokens)).readout[:, -4:])


def test_what_cannot_be_taken_back_is_refused_and_nothing_changes(backbone):
    with torch.no_grad():
        cache = backbone.make_cache(2)
        tokens = torch.randint(0, VOCABULARY, (2, 9))
        backbone.extend(tokens, cache, np.array([9, 4]))
        for wrong in (np.array([1, 5]), -1, np.array([0, -1]), 10):
            with pytest.raises(ValueError, match="cannot go back"):
                cache.rewind(wrong)
        assert cache.lengths.tolist() == [9, 4]
        with pytest.raises(ValueError, match=r"different numbers of tokens: \[9, 4\]"):
            _ = cache.length
        long = torch.zeros(2, LENGTH - 8, dtype=torch.int64)
        if isinstance(backbone, Carrying):  # reads on without end, since it never looks far back
            assert backbone.extend(long, cache).readout.isfinite().all()
            return
        with pytest.raises(ValueError, match=f"does not fit the context of {LENGTH}"):
            backbone.extend(long, cache)
