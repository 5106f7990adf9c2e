"""The metrics of world models, on worlds small enough to know what is right."""

import itertools

import numpy as np
import pytest
import torch
from doubles import FixedTask, MarkovPredictor, WorldPredictor, random_examples, subject

from statewise.analysis import make_analysis
from statewise.analysis.world_models.map import MapReconstruction, MapSettings, findings
from statewise.analysis.world_models.trials import by_length, draw, floor_notes, probabilities
from statewise.cli import main
from statewise.data_types import Examples
from statewise.tasks import TASKS
from statewise.tasks.automaton import Pairs, accepted, completed, distinguishing, up_to_end
from statewise.tasks.manhattan.street_map import HEADINGS, StreetMap, write_map
from statewise.tasks.manhattan.task import Manhattan, ManhattanConfig


def city(**fields):
    small = {"rows": 4, "columns": 4, "city_seed": 2, "max_moves": 12, "held_out_moves": 6, "held_out_rides": 10}
    return Manhattan(ManhattanConfig(**{**small, **fields}))


def analyze(name, predictor, task, **fields):
    return make_analysis(name, **fields).analyze(subject(predictor, task))


FEW = {"trials": 30, "samples": 6}


def merging(world, one, other):
    """A model that takes crossing `other` for `one`."""

    def seen_as(states, tokens):
        states = states.copy()
        states[states[:, 0] == other, 0] = one
        return states

    return WorldPredictor(world, seen_as, in_time=False)


def test_a_perfect_model_scores_one():
    world = city()
    timeless, perfect = WorldPredictor(world, in_time=False), WorldPredictor(world)
    found = analyze("compression", timeless, world, **FEW)
    assert found.metrics["sequence_compression"] == 1.0
    assert found.metrics["sequence_compression_standard_error"] == 0.0
    assert found.metrics["trials_made"] == found.metrics["trials_asked"] == 30
    found = analyze("distinction", timeless, world, length=3, **FEW)
    assert found.metrics["distinction_precision"] == found.metrics["distinction_recall"] == 1.0
    found = analyze("detours", perfect, world, probabilities="0,0.5,1")
    assert {value for name, value in found.metrics.items() if name.startswith("detours")} == {1.0}
    assert len(found.metrics) == 1 + 3 * 2 + 1
    assert found.main == ["detours_none", "detours_random_1"]
    found = analyze("map", perfect, world, sequences=40)
    assert (found.metrics["new_streets"], found.metrics["failed_rides"], found.metrics["valid_rides"]) == (0, 0, 1.0)
    assert found.metrics["true_streets"] + found.metrics["unused_streets"] == len(world.streets.streets[0])


def test_a_model_that_goes_by_how_it_came_has_no_one_future():
    world = city()

    def seen_as(states, tokens):  # who began at an even crossing believes to be at the destination
        states = states.copy()
        deluded = (tokens[:, 0] % 2 == 0) & (states[:, 0] >= 0)
        states[deluded, 0] = states[deluded, 1]
        return states

    found = analyze("compression", WorldPredictor(world, seen_as, in_time=False), world, seed=4, **FEW)
    pairs = world.draw_pairs(np.random.default_rng([4, 1]), 30, same_state=True)
    # Right exactly where both began alike, or where what follows the delusion is possible in truth: at the destination.
    alike = pairs.first.tokens[:, 0] % 2 == pairs.second.tokens[:, 0] % 2
    same = np.array(found.details["same"])
    assert same[alike].all()
    at, goal = np.array([world.states_after(pairs.first.prompt(row)[None])[0] for row in range(30)]).T
    assert not same[~alike & (at != goal)].any()
    assert found.metrics["sequence_compression"] == same.mean()
    error = np.sqrt(same.mean() * (1 - same.mean()) / 29)
    assert found.metrics["sequence_compression_standard_error"] == pytest.approx(error)
    assert found.details["prefix_tokens"] == pairs.first.lengths.tolist()


def test_a_continuation_is_complete_when_it_ends_where_it_may():
    world = city()
    rides = world.held_out()
    states = world.states_after(rides.tokens[:, :2])
    tails = [rides.tokens[row, 2 : rides.lengths[row]] for row in range(len(rides))]
    assert completed(world, states, tails).all()
    assert not completed(world, states, [tail[:-1] for tail in tails]).any()
    assert not completed(world, states, [np.append(tail[:-1], 0) for tail in tails]).any()
    assert completed(world, states[:0], []).shape == (0,)


def asked_once(process="s3"):
    """Strings whose one question is at their end, shorter than the context."""
    StateTracking = TASKS["automaton"]
    fields = {"process": process, "ask": "query", "length": 8, "longest": 20, "held_out_sequences": 20}
    return StateTracking(StateTracking.Config(**fields))


@pytest.mark.parametrize("process", ["s3", "parity"])
def test_what_is_drawn_after_the_end_of_a_sequence_does_not_count(process):
    world = asked_once(process)
    timeless, perfect = WorldPredictor(world, in_time=False), WorldPredictor(world)
    assert analyze("compression", timeless, world, **FEW).metrics["sequence_compression"] == 1.0
    assert analyze("compression", perfect, world, **FEW).metrics["valid_continuations"] == 1.0
    assert analyze("distinction", timeless, world, length=3, **FEW).metrics["distinction_precision"] == 1.0
    whole = world.held_out()
    states = world.states_after(whole.tokens[:, :2])
    tails = [whole.tokens[row, 2 : whole.lengths[row]] for row in range(len(whole))]
    longer = [np.append(tail, [0, 1, 0]) for tail in tails]
    for found, wanted in zip(up_to_end(world, states, longer), tails, strict=True):
        np.testing.assert_array_equal(found, wanted)
    shorter = [tail[:2] for tail in tails]
    assert all(np.array_equal(*pair) for pair in zip(up_to_end(world, states, shorter), shorter))
    assert up_to_end(world, states[:0], []) == []


@pytest.mark.parametrize("name", ["compression", "distinction"])
def test_where_answers_alone_are_scored_a_note_says_what_that_means(name):
    few = {**FEW, "length": 1} if name == "distinction" else FEW
    for world, is_said in ((asked_once(), True), (city(), False)):
        notes = analyze(name, WorldPredictor(world), world, **few).notes
        assert any("scores answers alone" in note for note in notes) == is_said


def test_distinction_is_what_all_sequences_say():
    """Recall of a model that merges two crossings, by trying every sequence of at most 3 tokens; precision by asking of
    every continuation drawn, token by token."""
    world, trials = city(rows=3, columns=3, held_out_moves=5, held_out_rides=2), 8
    model = merging(world, 3, 5)
    found = analyze("distinction", model, world, length=3, seed=2, trials=trials, samples=4)
    pairs = world.draw_pairs(np.random.default_rng([2, 2]), trials, same_state=False)
    drawn = {}
    for rows in by_length(pairs.first):
        prefixes = pairs.first[rows].tokens
        limit = world.longest - prefixes.shape[1]
        drawn |= zip(rows.tolist(), draw(model, prefixes, 4, limit=limit, end=world.end, floor=0.01, seed=2))
    words = range(world.N, world.end + 1)
    recalls, boundaries = [], []

    def accepts(prefix, tail):
        for place, token in enumerate(tail):
            logits = model.next_logits(torch.from_numpy(np.append(prefix, tail[:place]))[None].long())
            if logits.softmax(-1)[0, token] <= 0.01:
                return False
        return True

    for row in range(trials):
        first, second = (side.prompt(row) for side in pairs[:2])
        one, two = (world.states_after(side[None]) for side in (first, second))
        room = min(3, world.longest - len(first))
        right, model_boundary = [], set()
        for length in range(1, room + 1):
            for tail in itertools.product(words, repeat=length):
                possible = [accepted(world, state, np.array([tail]))[0] for state in (one, two)]
                if possible[0].all() and possible[1][:-1].all() and not possible[1][-1]:
                    right.append(accepts(first, tail) and not accepts(second, tail))
        for whole in drawn[row]:
            beginnings = [tuple(whole[:length].tolist()) for length in range(1, len(whole) + 1)]
            for tail in [tail for tail in beginnings if not accepts(second, tail)][:1]:
                truly = [accepted(world, state, np.array([tail]))[0].all() for state in (one, two)]
                model_boundary.add((tail, truly[0] and not truly[1]))
        recalls.append(np.mean(right) if right else np.nan)
        boundaries.append(np.mean([true for _, true in model_boundary]) if model_boundary else np.nan)
    assert found.details["recall"] == [None if np.isnan(value) else pytest.approx(value) for value in recalls]
    assert found.metrics["distinction_recall"] == pytest.approx(np.nanmean(recalls))
    assert found.metrics["distinction_recall_empty_as_1"] == pytest.approx(np.nan_to_num(recalls, nan=1.0).mean())
    assert found.details["precision"] == [None if np.isnan(value) else pytest.approx(value) for value in boundaries]
    assert found.metrics["distinction_precision"] == pytest.approx(np.nanmean(boundaries))


def test_merged_states_are_not_told_apart():
    world = city()
    model = merging(world, 3, 7)
    drawn = world.draw_pairs(np.random.default_rng(0), 3000, same_state=True).first
    found = {}
    for row in range(len(drawn)):
        prefix = drawn.prompt(row)
        at, goal = world.states_after(prefix[None])[0].tolist()
        found.setdefault((at, goal, len(prefix)), prefix)
    pairs = [
        (found[7, goal, length], prefix)
        for (at, goal, length), prefix in found.items()
        if at == 3 and (7, goal, length) in found
    ]
    sides = [Examples.of(list(side), [len(prefix) for prefix in side]) for side in zip(*pairs)]

    class Always(Manhattan):
        """Draws the two merged crossings alone."""

        def draw_pairs(self, rng, n, *, same_state):
            return Pairs(*sides, requested=n)

    always = Always(world.config)
    found = analyze("distinction", model, always, length=1, **FEW)
    assert found.metrics["distinction_recall"] == 0.0  # at once they are one, and later they are not
    assert found.metrics["distinction_precision"] > 0
    even = MarkovPredictor(torch.full((len(world.vocab), len(world.vocab)), 1 / len(world.vocab)))
    found = analyze("distinction", even, always, length=1, **FEW)
    assert found.notes == ["the model distinguishes none of these pairs of states: precision is undefined"]
    assert found.metrics["distinction_recall"] == 0.0
    assert found.main == ["distinction_recall"]
    found = analyze("distinction", WorldPredictor(world, in_time=False), always, length=3, **FEW)
    assert found.metrics["distinction_precision"] == 1.0


@pytest.fixture
def one_way(tmp_path):
    """A single street of 16 crossings, E all along, and two rides on it that only their destinations tell apart."""
    neighbour = np.full((16, 8), -1)
    neighbour[:-1, HEADINGS.index("E")] = np.arange(1, 16)
    write_map(StreetMap([f"x{number}" for number in range(16)], neighbour), tmp_path / "street")

    class OneWay(Manhattan):
        def draw_pairs(self, rng, n, *, same_state):
            sides = [Examples.of([self.encode(f"x0 x{goal} E")], [3]) for goal in ((9, 9) if same_state else (9, 12))]
            return Pairs(*sides, requested=n)

    return OneWay(ManhattanConfig(map=str(tmp_path / "street"), max_moves=14, held_out_moves=9))


def test_precision_asks_as_far_as_rides_go_and_recall_as_far_as_it_is_told(one_way):
    """The first difference, to end after eight moves, lies behind the five tokens that recall looks at."""
    found = analyze("distinction", WorldPredictor(one_way, in_time=False), one_way, samples=20)
    assert found.metrics["distinction_precision"] == 1.0
    assert found.panels[0].curves[0].x == [9.0]
    assert "distinction_recall" not in found.metrics
    found = analyze("distinction", WorldPredictor(one_way, in_time=False), one_way, samples=20, length=9)
    assert found.metrics["distinction_recall"] == 1.0


def test_compression_of_rides_that_are_never_valid_is_no_figure(one_way):
    right = WorldPredictor(one_way)
    found = analyze("compression", right, one_way, samples=20)
    assert (found.metrics["sequence_compression"], found.metrics["valid_continuations"]) == (1.0, 1.0)
    assert found.notes == []
    ends_at_once = torch.full((len(one_way.vocab), len(one_way.vocab)), 0.001)
    ends_at_once[:, one_way.end] = 1 - 0.001 * (len(one_way.vocab) - 1)
    found = analyze("compression", MarkovPredictor(ends_at_once), one_way, samples=20)
    assert "sequence_compression" not in found.metrics
    assert found.main == ["valid_continuations"]
    assert found.metrics["valid_continuations"] == 0.0
    assert [len(panel.curves) for panel in found.panels] == [0, 1]
    assert found.notes == [
        "none of the 20 sampled continuations is valid, so sequence compression is meaningless: that 100% of the pairs "
        "are treated alike says nothing about the world"
    ]


def test_detours_are_other_legal_tokens_that_leave_time():
    from statewise.analysis.world_models.detours import _replaced

    world = city()
    prompts = world.held_out().tokens[:, :2]
    states = world.states_after(prompts)
    rng = np.random.default_rng(0)
    scores = rng.random((len(states), len(world.vocab)))
    chosen = scores.argmax(axis=1)
    for left in (world.longest - 3, 4):
        for kind in ("random", "second", "least"):
            seen = [set() for _ in states]
            for _ in range(60):
                made = _replaced(
                    world,
                    world.end,
                    states,
                    chosen,
                    scores,
                    kind,
                    np.ones(len(states), bool),
                    rng.random(len(states)),
                    left,
                )
                for row, token in enumerate(made.tolist()):
                    seen[row].add(token)
            for row, tokens in enumerate(seen):
                fitting = [
                    token
                    for token in np.flatnonzero(world.allowed(states[row : row + 1])[0]).tolist()
                    if token != chosen[row]
                    and 0 <= world.tokens_left(world.step(states[row : row + 1], np.array([token])))[0] <= left
                ]
                if not fitting:
                    expected = {int(chosen[row])}
                elif kind == "random":
                    expected = set(fitting)
                else:
                    pick = max if kind == "second" else min
                    expected = {pick(fitting, key=lambda token: scores[row, token])}
                assert tokens == expected
    none = _replaced(
        world, world.end, states, chosen, scores, "least", np.zeros(len(states), bool), rng.random(len(states)), 9
    )
    np.testing.assert_array_equal(none, chosen)
    there = np.stack([states[:, 1], states[:, 1]], axis=1)  # at the destination nobody is led away
    kept = _replaced(
        world, world.end, there, chosen, scores, "random", np.ones(len(states), bool), rng.random(len(states)), 9
    )
    np.testing.assert_array_equal(kept, chosen)


def test_one_trial_has_no_standard_error_and_close_probabilities_have_names_of_their_own():
    world = city()
    found = analyze("compression", WorldPredictor(world), world, trials=1, samples=3)
    assert found.metrics["valid_continuations"] == 1.0
    assert not [name for name in found.metrics if name.endswith("standard_error")]
    found = analyze("detours", WorldPredictor(world), world, kinds="random", probabilities="0.1234567,0.1234568,1")
    assert [*found.metrics][:3] == ["detours_random_0.1234567", "detours_random_0.1234568", "detours_random_1"]


def test_a_model_that_is_lost_after_a_detour_does_not_arrive():
    world = city()

    def seen_as(states, tokens):  # it knows its way only as long as it goes the way it would
        greedy = WorldPredictor(world)
        states = states.copy()
        for row, sequence in enumerate(tokens):
            for place in range(2, len(sequence)):
                best = greedy.next_logits(torch.from_numpy(sequence[:place])[None]).argmax()
                if best != sequence[place]:
                    states[row] = states[row, 1]  # believes to have arrived
        return states

    lost = WorldPredictor(world, seen_as)
    found = analyze("detours", lost, world, kinds="random", probabilities="0,0.5", sequences=10)
    assert found.metrics["detours_none"] == 1.0
    assert found.metrics["detours_random_0.5"] < 0.7
    assert found.panels[0].curves[0].y == [1.0, found.metrics["detours_random_0.5"]]
    share = found.metrics["detours_random_0.5"]
    assert found.details["standard_errors"]["detours_random_0.5"] == pytest.approx(np.sqrt(share * (1 - share) / 10))


def test_continuations_are_drawn_above_the_floor_and_their_probabilities_are_those_of_whole_sequences():
    generator = torch.Generator().manual_seed(0)
    table = torch.rand(6, 6, generator=generator) ** 4
    table /= table.sum(1, keepdim=True)
    model = MarkovPredictor(table.double())
    prefixes = np.array([[0, 1], [3, 2], [4, 5]])
    drawn = draw(model, prefixes, 200, limit=4, end=5, floor=0.05, seed=3)
    again = draw(model, prefixes, 200, limit=4, end=5, floor=0.05, seed=3)
    assert [[tail.tolist() for tail in one] for one in drawn] == [[tail.tolist() for tail in one] for one in again]
    tails = [tail for one in drawn for tail in one]
    which = np.repeat(np.arange(3), 200)
    given = probabilities(model, prefixes, which, tails)
    for prefix, tail, found in zip(prefixes[which], tails, given):
        before = np.append(prefix[-1], tail[:-1])
        np.testing.assert_allclose(found, table[before, tail], rtol=1e-6)
        assert (found >= 0.05).all()
        assert 5 not in tail[:-1]
        assert len(tail) == 4 or tail[-1] == 5
    first = np.array([tail[0] for tail in drawn[0]])
    kept = torch.where(table[1] >= 0.05, table[1], 0)
    expected = (kept / kept.sum()).numpy()
    np.testing.assert_allclose(np.bincount(first, minlength=6) / 200, expected, atol=0.12)
    assert probabilities(model, prefixes, np.array([], int), []) == []
    groups = by_length(random_examples(np.random.default_rng(0), n=9))
    assert sorted(np.concatenate(groups).tolist()) == list(range(9))


def test_blocks_change_nothing(monkeypatch):
    world = city()
    names = ("compression", "distinction")
    whole = [analyze(name, merging(world, 3, 7), world, trials=12, samples=4).details for name in names]
    monkeypatch.setattr("statewise.tasks.batches.LOGITS", 1)
    assert [analyze(name, merging(world, 3, 7), world, trials=12, samples=4).details for name in names] == whole


def test_maps_of_several_trials_are_of_rides_of_their_own_and_their_metrics_means():
    world = city()
    one, many = (analyze("map", merging(world, 3, 7), world, sequences=20, trials=trials) for trials in (1, 4))
    drawn = []

    class Noting(MapReconstruction):
        def _draw(self, *asked):
            drawn.append(super()._draw(*asked))
            return drawn[-1]

    noted = Noting(Noting.Config(sequences=20, trials=4)).analyze(subject(merging(world, 3, 7), world))
    assert noted.metrics == many.metrics
    alone = [findings(world, rides, MapSettings()).metrics for rides in drawn]
    assert len({found["new_streets"] for found in alone}) > 1
    for name in one.metrics:
        assert many.metrics[name] == pytest.approx(np.mean([found[name] for found in alone]))
        assert one.metrics[name] == alone[0][name]
    assert isinstance(one.metrics["new_streets"], int), "so that it is printed as a count"
    for name in many.main:
        spread = np.std([found[name] for found in alone], ddof=1)
        assert many.metrics[f"{name}_standard_error"] == pytest.approx(spread / 2)
    assert (one.drawings, one.details) == (many.drawings, many.details)
    assert set(many.metrics) - set(one.metrics) == {f"{name}_standard_error" for name in many.main}


@pytest.mark.parametrize(
    ("name", "message"),
    [(name, "needs a task that knows which prefixes") for name in ("compression", "distinction", "detours")]
    + [("map", "needs a task of taxi rides")],
)
def test_other_tasks_are_refused_by_naming_what_they_lack(name, message):
    task = FixedTask(random_examples(np.random.default_rng(0)))
    with pytest.raises(ValueError, match=message):
        analyze(name, MarkovPredictor(torch.full((11, 11), 1 / 11)), task)


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("compression", {"trials": 0}, "trials must be at least 1"),
        ("compression", {"floor": 1.0}, "floor must be above 0 and below 1"),
        ("distinction", {"length": 0}, "length must be at least 1"),
        ("detours", {"kinds": "random,worst"}, "kinds are random, second, least, not 'worst'"),
        ("detours", {"probabilities": "half"}, "numbers like 0,0.5,0.75"),
        ("detours", {"probabilities": "0,1.5"}, "between 0 and 1"),
        ("map", {"degree": 0}, "degree must be at least 1"),
        ("map", {"radius": 0.0}, "radius must be above 0"),
        ("map", {"sequences": 0}, "sequences must be at least 1"),
        ("map", {"trials": 0}, "trials must be at least 1"),
    ],
)
def test_bad_options_are_refused(name, fields, message):
    with pytest.raises(ValueError, match=message):
        make_analysis(name, **fields)


FLAGS = (
    "--task.rows 4 --task.columns 4 --task.city_seed 2 --task.max_moves 12 --task.held_out_moves 6 "
    "--task.held_out_rides 10 --backbone.width 16 --backbone.heads 2 --backbone.layers 1 --trainer.steps 2"
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("city") / "run"
    assert main(["train", "city-small", *FLAGS.split(), "--out", str(folder)]) == 0
    return folder


def test_analyses_leave_reports_pictures_and_columns_for_comparing(run, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")  # compare splits tables that are wider than the terminal
    for name, flags in (
        ("compression", ["--trials=5"]),
        ("detours", ["--kinds=random", "--probabilities=0,0.75"]),
        ("map", ["--sequences=20", "--out", str(tmp_path / "maps")]),
    ):
        assert main(["analyze", str(run), name, *flags]) == 0
    page = tmp_path / "maps" / "map-drawing.html"
    assert "true streets" in page.read_text()
    assert "http://" not in page.read_text()[:200]
    assert (run / "reports" / "map-drawing.png").read_bytes().startswith(b"\x89PNG")
    capsys.readouterr()
    assert main(["compare", str(run), "--metrics", "all", "--out", str(tmp_path / "report")]) == 0
    printed = capsys.readouterr().out
    for column in ("next_token_test", "valid_continuations", "detours_random_0.75", "new_streets", "endless_rides"):
        assert column in printed
    assert (tmp_path / "report" / "drawings.png").exists()
    assert "Drawings" in (tmp_path / "report" / "report.html").read_text()
    chosen = "valid_continuations,next_token_test"
    assert main(["compare", str(run), "--metrics", chosen, "--out", str(tmp_path / "few")]) == 0
    _, table, *_ = capsys.readouterr().out.split("\n\n")
    cells = table.splitlines()[0].split()
    assert cells[3:6] == ["valid_trajectories", "valid_continuations", "next_token_test"]
    assert main(["compare", str(run), "--metrics", "speed", "--out", str(tmp_path / "none")]) == 2
    assert "not every run has the metric 'speed'" in capsys.readouterr().err


def test_runs_analysed_differently_are_not_compared(run, tmp_path, capsys):
    other = tmp_path / "other"
    assert main(["train", "city-small", *FLAGS.split(), "--seed", "2", "--out", str(other)]) == 0
    for folder, trials in ((run, 5), (other, 6)):
        assert main(["analyze", str(folder), "compression", f"--trials={trials}"]) == 0
    assert main(["compare", str(run), str(other), "--metrics", "all", "--out", str(tmp_path / "report")]) == 2
    assert "were analysed by compression with different settings (trials 5 and 6)" in capsys.readouterr().err
    for shown in ("evaluation", "loss"):  # what was not asked for does no harm
        assert main(["compare", str(run), str(other), "--metrics", shown, "--out", str(tmp_path / shown)]) == 0


def test_what_was_found_at_another_checkpoint_is_not_compared(run, tmp_path, capsys):
    few = ["--trials", "4", "--samples", "3"]
    assert main(["analyze", str(run), "distinction", *few]) == 0
    capsys.readouterr()
    shown = ["compare", str(run), "--metrics", "distinction_recall", "--overwrite", "--out", str(tmp_path / "report")]
    assert main(shown) == 0
    before = capsys.readouterr().out
    assert "From analyze distinction (trials 4, samples 3, floor 0.01, seed 1, length 5): " in " ".join(before.split())
    assert main(["analyze", str(run), "distinction", "--trials", "9", "--checkpoint", "last"]) == 0
    capsys.readouterr()
    assert main(shown) == 0
    assert capsys.readouterr().out == before


def test_words_that_are_too_many_to_search_are_refused():
    world = TASKS["automaton"](TASKS["automaton"].Config(process="a5", length=24, held_out_sequences=20))
    first, second = (world.states_after(np.array([[token]]))[0] for token in (1, 2))
    assert len(distinguishing(world, first, second, 3)) > 60
    with pytest.raises(
        ValueError, match=r"there are .* words of [34] tokens to search .* set `length` to [34] or lower"
    ):
        distinguishing(world, first, second, 9)


def test_a_floor_above_what_legal_tokens_may_have_is_remarked_upon():
    assert floor_notes(99, 0.01) == []
    (note,) = floor_notes(121, 0.01)
    assert "up to 121 tokens are legal" in note
    assert "below 0.0083" in note
