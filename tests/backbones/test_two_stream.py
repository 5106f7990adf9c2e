"""The two-stream transformer against one that is written straight from the paper: interleaved, with sets of keys."""

import copy

import pytest
import torch
from doubles import CONTEXT, VOCABULARY, spread_weights, tiny_gpt, tiny_two_stream
from two_stream_paper import from_the_paper, seen_by

from statewise.backbones import two_stream
from statewise.backbones.nn.cache import SLACK
from statewise.backbones.nn.masks import INPUT, PREDICTION
from statewise.backbones.two_stream import VARIANTS, TwoStream, TwoStreamConfig, _pairs
from statewise.data_types import Batch

pytestmark = pytest.mark.usefixtures("float64")
every_variant = pytest.mark.parametrize("variant", list(VARIANTS))
every_start = pytest.mark.parametrize("start", ["predict", "own"])
WINDOWED = ("sps", "delayed_state", "reverse_sps")
LATE = 3 * SLACK + 20
"""More places than any window's store holds at once."""


def pairs(*windows):
    """Each variant with each window. The other variants have none, so one of each is enough."""
    return [
        (variant, window)
        for row, variant in enumerate(VARIANTS)
        for window in (windows if variant in WINDOWED else [windows[row % len(windows)]])
    ]


def with_starts(*windows):
    """Each variant with each window, starts by turns, both with a window of 3."""
    return [
        (variant, window, start)
        for number, (variant, window) in enumerate(pairs(*windows))
        for start in (
            ("predict", "own") if window == 3 or variant not in WINDOWED else [("predict", "own")[number % 2]]
        )
    ]


def test_only_these_variants_have_a_window():
    """So that the others need not be tried with several."""
    reaches = {
        variant: {TwoStreamConfig(variant=variant, window=window).reach for window in (3, 40)} for variant in VARIANTS
    }
    assert {variant for variant, found in reaches.items() if len(found) > 1} == {*WINDOWED}


def made(variant, window=3, **fields):
    backbone = tiny_two_stream(variant=variant, window=window, **fields)
    spread_weights(backbone)
    return backbone.eval()


def tokens_of(rows=2, places=9, seed=0):
    return torch.randint(0, VOCABULARY, (rows, places), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("variant", "window", "start"), with_starts(0, 1, 3, CONTEXT - 2))
def test_states_and_readouts_are_those_of_the_paper(variant, window, start):
    backbone, tokens = made(variant, window, prediction_start=start), tokens_of()
    hidden = backbone.encode(Batch.plain(tokens))
    for row in range(len(tokens)):
        state, readout = from_the_paper(backbone, tokens[row])
        torch.testing.assert_close(hidden.state[row], state)
        torch.testing.assert_close(hidden.readout[row], readout)
    torch.testing.assert_close(backbone.readouts(Batch.plain(tokens)), hidden.readout)


@every_start
@every_variant
@pytest.mark.parametrize("alone", [False, True], ids=["both", "readouts"])
def test_gradients_are_those_of_the_paper(variant, alone, start):
    backbone, tokens = made(variant, prediction_start=start), tokens_of(rows=1)
    weight = torch.randn(2, 1, 9, 16)
    weight[0] *= not alone
    if alone:
        found = (backbone.readouts(Batch.plain(tokens)) * weight[1]).sum()
    else:
        hidden = backbone.encode(Batch.plain(tokens))
        found = (hidden.state * weight[0]).sum() + (hidden.readout * weight[1]).sum()
    state, readout = from_the_paper(backbone, tokens[0])
    true = (state * weight[0, 0]).sum() + (readout * weight[1, 0]).sum()
    parameters = dict(backbone.named_parameters())
    ours = torch.autograd.grad(found, list(parameters.values()), allow_unused=True)
    theirs = torch.autograd.grad(true, list(parameters.values()), allow_unused=True)
    for name, mine, other in zip(parameters, ours, theirs):
        torch.testing.assert_close(mine, other, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize(
    ("variant", "positions", "start"),
    [
        (variant, positions, ("predict", "own")[(row + column) % 2])
        for row, variant in enumerate(VARIANTS)
        for column, positions in enumerate(["rope", "learned"])
    ],
)
def test_documents_in_a_row_are_read_as_if_apart(variant, positions, start):
    backbone, tokens = made(variant, positions=positions, prediction_start=start), tokens_of(places=12)
    documents = torch.tensor([[1] * 5 + [2] * 7, [1] * 2 + [2] + [3] * 9])
    hidden = backbone.encode(Batch.plain(tokens, documents))
    for row in range(2):
        state, readout = from_the_paper(backbone, tokens[row], documents[row].tolist())
        torch.testing.assert_close(hidden.state[row], state)
        torch.testing.assert_close(hidden.readout[row], readout)
        for document in documents[row].unique():
            here = documents[row] == document
            torch.testing.assert_close(
                hidden.readout[row, here], backbone.encode(Batch.plain(tokens[row : row + 1, here])).readout[0]
            )


@pytest.mark.parametrize(
    ("variant", "window", "start"),
    [(*pair, ("predict", "own")[number % 2]) for number, pair in enumerate(pairs(0, 3, 40))],
)
def test_reading_with_a_cache_is_reading_at_once(variant, window, start):
    """One by one, in pieces, after going back, and long after the window's store has turned over."""
    backbone, tokens = made(variant, window, context=LATE, prediction_start=start), tokens_of(places=LATE)
    with torch.no_grad():
        whole = backbone.encode(Batch.plain(tokens))
        for first, last in ((1, LATE), (7, 2 * SLACK)):
            cache = backbone.make_cache(len(tokens))
            piece = backbone.extend(tokens[:, :first], cache)
            torch.testing.assert_close(piece.readout, whole.readout[:, :first])
            at = first
            sizes = iter([1, 1, 4, SLACK + 9, 2] + [1, 1, 5] * LATE)
            while at < last:
                size = min(next(sizes), last - at)
                piece = backbone.extend(tokens[:, at : at + size], cache)
                torch.testing.assert_close(piece.readout, whole.readout[:, at : at + size])
                torch.testing.assert_close(piece.state, whole.state[:, at : at + size])
                at += size
                if at % 11 == 0:  # read some wrong ones, and take them back
                    backbone.extend(tokens[:, :1].expand(-1, min(5, LATE - at)), cache)
                    cache.rewind(min(5, LATE - at))


@pytest.mark.parametrize(("variant", "window", "start"), with_starts(0, 1, 3, CONTEXT - 2))
def test_a_prompt_is_read_as_its_tokens_are(variant, window, start):
    backbone, tokens = made(variant, window, prediction_start=start), tokens_of(places=12)
    with torch.no_grad():
        whole = backbone.encode(Batch.plain(tokens))
        for length in (1, 2, 9):
            cache = backbone.make_cache(len(tokens))
            last = backbone.read_prompt(tokens[:, :length], cache)
            torch.testing.assert_close(last.readout[:, 0], whole.readout[:, length - 1])
            torch.testing.assert_close(last.state[:, 0], whole.state[:, length - 1])
            assert cache.length == length
            torch.testing.assert_close(backbone.extend(tokens[:, length:], cache).readout, whole.readout[:, length:])


@pytest.mark.parametrize(("variant", "window"), pairs(0, 1, 3, CONTEXT - 2))
def test_a_long_prompt_is_read_in_parts(variant, window, monkeypatch):
    monkeypatch.setattr("statewise.backbones.base.PROMPT_POSITIONS", 1)
    backbone, tokens = made(variant, window, context=LATE), tokens_of(places=LATE)
    read = []
    backbone.blocks[0].register_forward_hook(lambda block, given, made: read.append(made.shape[2]))
    with torch.no_grad():
        whole = backbone.encode(Batch.plain(tokens))
        read.clear()
        cache = backbone.make_cache(len(tokens))
        last = backbone.read_prompt(tokens[:, :71], cache)
        assert sum(read) == 71
        assert max(read) == 32
        torch.testing.assert_close(last.readout[:, 0], whole.readout[:, 70])
        torch.testing.assert_close(last.state[:, 0], whole.state[:, 70])
        torch.testing.assert_close(backbone.extend(tokens[:, 71:], cache).readout, whole.readout[:, 71:])


@pytest.mark.parametrize("variant", ["sps", "delayed_state", "double_memory"])
def test_rows_of_a_cache_are_reordered(variant):
    backbone, tokens = made(variant), tokens_of(rows=3, places=10)
    with torch.no_grad():
        cache = backbone.make_cache(len(tokens))
        backbone.extend(tokens[:, :6], cache)
        rows = torch.tensor([2, 0, 2, 1])
        cache.reorder(rows)
        torch.testing.assert_close(
            backbone.extend(tokens[rows, 6:], cache).readout, backbone.encode(Batch.plain(tokens[rows])).readout[:, 6:]
        )


def test_prompts_of_different_lengths_are_told_apart():
    """Each in a cache of its own: what one held does not show in the next, whatever its length."""
    backbone, tokens = made("sps"), tokens_of(places=12)
    with torch.no_grad():
        for length in (11, 3, 7):
            cache = backbone.make_cache(len(tokens))
            backbone.read_prompt(tokens[:, :length], cache)
            torch.testing.assert_close(
                backbone.extend(tokens[:, length : length + 1], cache).readout,
                backbone.encode(Batch.plain(tokens[:, : length + 1])).readout[:, -1:],
            )


def test_going_back_further_than_a_window_keeps_is_refused():
    backbone = made("sps", context=LATE)
    with torch.no_grad():
        cache = backbone.make_cache(2)
        backbone.extend(tokens_of(places=LATE), cache)
        with pytest.raises(ValueError, match="cannot go back"):
            cache.rewind(SLACK + 3 * 32)
        assert cache.length == LATE
        cache.rewind(SLACK - 4)
        assert cache.length == LATE - SLACK + 4


@pytest.mark.parametrize(("variant", "window"), pairs(0, 3, 40))
def test_it_can_always_come_back_to_where_it_was_held(variant, window):
    """Whether what lies between is read in one piece or by the place, and more than once."""
    backbone, tokens = made(variant, window, context=3 * LATE), tokens_of(places=3 * LATE)
    with torch.no_grad():
        whole = backbone.encode(Batch.plain(tokens)).readout
        cache = backbone.make_cache(len(tokens))
        backbone.extend(tokens[:, :50], cache)
        cache.hold()
        for sizes in ([LATE + 90], [1, 6] * (LATE // 7 + 5), [40, 1, 1, 70, 30]):
            for size in sizes:
                backbone.extend(torch.zeros(2, size, dtype=torch.int64), cache)
            cache.rewind(sum(sizes) - 20)  # two steps back; the second to just where it was held
            cache.rewind(20)
            torch.testing.assert_close(backbone.extend(tokens[:, 50:52], cache).readout, whole[:, 50:52])
            cache.rewind(2)
        at = 50
        for size in [LATE, *[1, 4] * 12, 7]:
            found = backbone.extend(tokens[:, at : at + size], cache).readout
            torch.testing.assert_close(found, whole[:, at : at + size])
            at += size


def test_what_refuses_to_go_back_has_not_gone_back():
    """Two windows, of which the longer one could go back so far, and the shorter one could not."""
    backbone, tokens = made("sps", 4, context=LATE).limited(41), tokens_of(places=LATE)
    with torch.no_grad():
        cache = backbone.make_cache(len(tokens))
        for at in range(69):
            backbone.extend(tokens[:, at : at + 1], cache)
        with pytest.raises(ValueError, match="cannot go back 33 positions"):
            cache.rewind(33)
        torch.testing.assert_close(
            backbone.extend(tokens[:, 69:73], cache).readout,
            backbone.encode(Batch.plain(tokens[:, :73])).readout[:, 69:],
        )


def test_what_only_its_own_place_reads_hinders_no_going_back():
    backbone, tokens = made("sps", 0, context=LATE), tokens_of(places=LATE)
    with torch.no_grad():
        cache = backbone.make_cache(len(tokens))
        whole = backbone.extend(tokens, cache).readout
        cache.rewind(LATE - 1)
        torch.testing.assert_close(backbone.extend(tokens[:, 1:9], cache).readout, whole[:, 1:9])


@pytest.mark.parametrize(("variant", "window"), pairs(0, 3))
@pytest.mark.parametrize("length", [1, 2, 4, 9])
def test_operations_are_counted_pair_by_pair(variant, window, length):
    backbone = made(variant, window, layers=3)
    config, predicting = backbone.config, {"standard": "x", "reverse_sps": "x"}.get(variant, "p")
    D, hidden = config.width, config.hidden_width
    kinds = ("x",) if variant == "standard" else ("x", "p")
    read = {kind for kind in kinds if not (variant == "strict" and kind == "p")}
    total = 0
    for layer in range(3):
        for kind in kinds:
            asks = layer < 2 or kind == predicting
            total += length * 2 * D * (D * asks + 2 * D * (kind in read) + D * asks + 3 * hidden * asks)
            for i in range(length) if asks else ():
                total += 2 * 2 * D * sum(other in read for other, _ in seen_by(variant, window, kind, i))
    assert backbone.flops(length) == total


@pytest.mark.parametrize(
    ("layers", "heads", "width", "count"),
    [
        (8, 8, 512, 53_027_328),
        (12, 12, 768, 130_665_216),
        (24, 16, 1024, 378_717_184),
        (36, 20, 1280, 831_253_760),
        (48, 25, 1600, 1_678_081_600),
    ],
)
def test_sizes_are_those_of_table_1(layers, heads, width, count):
    config = TwoStreamConfig(layers=layers, heads=heads, width=width, vocabulary_multiple=128)
    with torch.device("meta"):
        backbone = TwoStream(config, vocabulary=50257, context=4096)
    assert sum(parameter.numel() for parameter in backbone.parameters()) == count


@every_variant
def test_counting_operations_takes_no_longer_for_more_places(variant, monkeypatch):
    """Nor for more layers: a step counts those of hundreds of documents."""
    backbone = made(variant, 1000, layers=12, context=10**9)
    counted = []
    monkeypatch.setattr(two_stream, "_pairs", lambda *given: counted.append(given) or _pairs(*given))
    assert backbone.flops(10**9) > 10**18
    assert len(counted) <= 6  # each pair of streams, in the last block and in the others
    assert _pairs(INPUT, PREDICTION, 5, 2) == sum(min(i, 2) for i in range(5))
    assert _pairs(PREDICTION, PREDICTION, 5, 2) == sum(min(i, 2) + 1 for i in range(5))
    assert _pairs(PREDICTION, INPUT, 5, None) == 15


def test_a_prediction_starts_from_predict_alone_unless_told_otherwise():
    paper, own, tokens = made("sps"), made("sps", prediction_start="own"), tokens_of()
    assert paper.config.prediction_start == "predict"
    assert {name: p.shape for name, p in own.named_parameters()} == {n: p.shape for n, p in paper.named_parameters()}
    own.load_state_dict(paper.state_dict())
    of_both = [one.encode(Batch.plain(tokens)) for one in (paper, own)]
    assert not torch.allclose(of_both[0].readout, of_both[1].readout)
    with torch.no_grad():
        for one in (paper, own):
            one.embedding.weight[tokens[0, 0]] = 0
    for i, one in enumerate((paper, own)):  # a prediction that knows its token from the start, and it is nothing
        of_both[i] = one.encode(Batch.plain(tokens[:1, :1]))
    torch.testing.assert_close(of_both[0].readout, of_both[1].readout)


def test_standard_is_a_gpt():
    gpt = tiny_gpt(expansion=3).double()
    spread_weights(gpt)
    backbone = made("standard")
    weights = gpt.state_dict()
    weights["embedding.weight"] = torch.cat((weights["embedding.weight"], torch.zeros(1, 16)))
    backbone.load_state_dict({**weights, "separated": torch.tensor(True)})
    tokens = tokens_of()
    torch.testing.assert_close(backbone.encode(Batch.plain(tokens)).readout, gpt.encode(Batch.plain(tokens)).readout)


@every_start
def test_streams_part_when_it_is_time(start):
    backbone, tokens = made("sps", separate_from=0.4, prediction_start=start), tokens_of(rows=1)
    backbone.set_progress(0.39)
    assert not backbone.separated
    torch.testing.assert_close(backbone.encode(Batch.plain(tokens)).readout[0], from_the_paper(backbone, tokens[0])[1])
    before = backbone.encode(Batch.plain(tokens)).readout
    backbone.set_progress(0.4)
    assert backbone.separated
    torch.testing.assert_close(backbone.encode(Batch.plain(tokens)).readout[0], from_the_paper(backbone, tokens[0])[1])
    assert not torch.allclose(backbone.encode(Batch.plain(tokens)).readout, before)
    assert bool(backbone.state_dict()["separated"])  # what a checkpoint is read as is kept with it


@pytest.mark.parametrize(("share", "noted"), [(0.0, False), (0.9, False), (0.95, True)])
def test_streams_that_are_never_separated_are_noted(share, noted):
    backbone = tiny_two_stream(separate_from=share, window=4)
    for step in range(10):
        backbone.set_progress(step / 10)
    assert bool(backbone.separated) is not noted
    assert bool(backbone.notes(steps=10)) is noted


def test_weights_say_whether_the_streams_are_separate():
    young, grown = made("sps", separate_from=0.5), made("sps", separate_from=0.5)
    grown.set_progress(1.0)
    weights, tokens = grown.state_dict(), tokens_of()
    young.load_state_dict(weights)
    assert young.flops(9) == grown.flops(9)
    torch.testing.assert_close(young.encode(Batch.plain(tokens)).readout, grown.encode(Batch.plain(tokens)).readout)
    grown.load_state_dict({**weights, "separated": torch.tensor(False)})
    assert grown.streams == ("input",)
    assert copy.deepcopy(young).streams == ("input", "prediction")


def test_decoding_asks_no_tensor_for_its_truth(monkeypatch):
    """It would wait for a GPU."""
    backbone, tokens = made("sps", separate_from=0.5), tokens_of(rows=2)
    backbone.set_progress(0.5)
    cache = backbone.make_cache(2)

    def waiting(tensor):
        raise AssertionError("a tensor was read")

    for name in ("__bool__", "__int__", "__float__", "item", "tolist"):
        monkeypatch.setattr(torch.Tensor, name, waiting)
    for place in range(3):
        backbone.extend(tokens[:, place : place + 1], cache)


def test_the_mask_of_cached_keys_is_taken_apart_once_a_pass(monkeypatch):
    backbone, tokens, taken = made("sps", layers=5), tokens_of(), []
    split = torch.split
    cache = backbone.make_cache(len(tokens))
    backbone.extend(tokens[:, :2], cache)
    monkeypatch.setattr(torch, "split", lambda *given, **more: (taken.append(1), split(*given, **more))[1])
    backbone.readouts(Batch.plain(tokens))
    assert not taken
    backbone.every_stream(tokens[:, 2:4], cache)
    backbone.read_prompt(tokens[:, 4:5], cache)
    assert len(taken) <= 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"window": -1}, "backbone.window must be at least 0, not -1"),
        ({"window": CONTEXT - 1}, f"backbone.window {CONTEXT - 1} limits nothing in a context of {CONTEXT} tokens"),
        ({"window": CONTEXT + 9}, f"Set backbone.window to at most {CONTEXT - 2}"),
        ({"separate_from": 1.0}, "backbone.separate_from must be at least 0 and below 1"),
        ({"separate_from": 0.5, "variant": "reverse_sps"}, "not reverse_sps"),
        ({"vocabulary_multiple": 0}, "backbone.vocabulary_multiple must be at least 1"),
    ],
)
def test_bad_fields_are_named(fields, message):
    with pytest.raises(ValueError, match=message):
        tiny_two_stream(**fields)


def test_the_longest_window_is_one():
    """In the longest sequence one place further would be all; so it is refused only where both are the same."""
    tokens = tokens_of(places=CONTEXT)
    longest, every = made("sps", CONTEXT - 2), made("double_memory")
    every.load_state_dict(longest.state_dict())
    found, whole = (one.encode(Batch.plain(tokens)).readout for one in (longest, every))
    torch.testing.assert_close(found[:, :-1], whole[:, :-1])
    assert not torch.allclose(found[:, -1], whole[:, -1])
    for variant in ("standard", "double_memory", "strict"):
        made(variant, CONTEXT + 9)  # which have none


def test_a_sequence_beyond_the_context_is_refused():
    with pytest.raises(ValueError, match="does not fit the context"):
        made("sps").encode(Batch.plain(tokens_of(places=CONTEXT + 1)))
