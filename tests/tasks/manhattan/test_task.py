import gzip
import itertools

import networkx
import numpy as np
import pytest
from networkx import MultiDiGraph

from statewise.data_types import Completion, Examples
from statewise.runtime.durable import write_atomically
from statewise.tasks.automaton import accepted, distinguishing
from statewise.tasks.batches import collate
from statewise.tasks.manhattan.rides import ILLEGAL_TURN, NO_END, VALID, VERDICTS, WRONG_DESTINATION, check, draw_rides
from statewise.tasks.manhattan.street_map import (
    HEADINGS,
    UNREACHABLE,
    StreetMap,
    as_files,
    grid_city,
    of_files,
    read_map,
    write_map,
)
from statewise.tasks.manhattan.task import Manhattan, ManhattanConfig, pack

CITY = grid_city(6, 7, 3)
SQUARE = {("a", "E"): "b", ("b", "N"): "c", ("c", "W"): "d", ("d", "S"): "a", ("a", "NE"): "c", ("c", "N"): "c"}
"""Four crossings round a block; a diagonal from a to c; a loop at c. From d no street leads but to a."""


def a_map(streets=SQUARE, places=True):
    names = sorted({begin for begin, _ in streets} | set(streets.values()))
    neighbour = np.full((len(names), 8), -1)
    for (begin, heading), end in streets.items():
        neighbour[names.index(begin), HEADINGS.index(heading)] = names.index(end)
    return StreetMap(
        names, neighbour, np.array([[0, 0], [1, 0], [1, 1], [0, 1], [5, 5]])[: len(names)] if places else None
    )


def graph(streets):
    found = MultiDiGraph()
    found.add_nodes_from(range(len(streets)))
    found.add_edges_from(zip(streets.streets[0].tolist(), streets.streets[2].tolist()))
    return found


def task(**fields):
    small = {"rows": 6, "columns": 7, "city_seed": 3, "max_moves": 14, "held_out_moves": 9, "held_out_rides": 40}
    return Manhattan(ManhattanConfig(**{**small, **fields}))


def on_square(tmp_path, **fields):
    write_map(a_map(), tmp_path / "square")
    return task(map=str(tmp_path / "square"), **{"held_out_moves": 3, "held_out_rides": 1, **fields})


# Maps


def test_fewest_moves_are_those_of_a_breadth_first_search():
    lengths = dict(networkx.all_pairs_shortest_path_length(graph(CITY)))
    for goal, begin in itertools.product(range(len(CITY)), repeat=2):
        assert CITY.moves[goal, begin] == lengths[begin].get(goal, UNREACHABLE)


def test_travel_times_are_those_of_dijkstra_on_the_faster_of_two_streets():
    streets = a_map({("a", "E"): "b", ("a", "N"): "b", ("b", "S"): "c", ("a", "S"): "c"})
    begin, heading, end = streets.streets
    times = np.array([{"N": 5.0, "E": 2.0, "S": 9.0}[HEADINGS[number]] for number in heading])
    times[(begin == 1) & (end == 2)] = 3.0
    np.testing.assert_array_equal(streets.travel_times(times, np.array([2])), [[5.0, 3.0, 0.0]])
    rng = np.random.default_rng(0)
    times, known = rng.random(len(CITY.streets[0])) + 0.1, MultiDiGraph()
    for begin, end, time in zip(CITY.streets[0], CITY.streets[2], times):
        known.add_edge(int(begin), int(end), weight=time)
    found = CITY.travel_times(times, np.array([4, 11]))
    for row, goal in enumerate((4, 11)):
        expected = networkx.single_source_dijkstra_path_length(known.reverse(), goal)
        for begin in range(len(CITY)):
            assert found[row, begin] == pytest.approx(expected.get(begin, np.inf))


def test_a_grid_city_is_the_same_again_and_can_be_ridden_through():
    again, other = grid_city(6, 7, 3), grid_city(6, 7, 4)
    assert again.names == CITY.names
    np.testing.assert_array_equal(again.neighbour, CITY.neighbour)
    assert other.names != CITY.names or (other.neighbour != CITY.neighbour).any()
    large = grid_city(20, 30, 1)
    sinks = (large.neighbour < 0).all(axis=1)
    assert 0 < sinks.sum() < 30
    assert (large.moves[:, ~sinks] < UNREACHABLE).all()
    begin, heading, end = large.streets
    along = large.coordinates[end] - large.coordinates[begin]
    assert (begin == end).any(), "a loop"
    straight = begin != end
    compass = np.array([[0, 1], [1, 1], [1, 0], [1, -1], [0, -1], [-1, -1], [-1, 0], [-1, 1]])[heading]
    np.testing.assert_array_equal(np.sign(along[straight]), compass[straight])
    one_way = sum(large.neighbour[there, (number + 4) % 8] != here for here, number, there in zip(begin, heading, end))
    assert one_way > len(begin) / 3
    with pytest.raises(ValueError, match="at least 2 rows"):
        grid_city(1, 5, 1)


def test_a_map_survives_its_files(tmp_path):
    for streets in (CITY, a_map(places=False)):
        folder = tmp_path / str(len(streets))
        write_map(streets, folder)
        for again in (read_map(folder), of_files(as_files(streets))):
            assert again.names == streets.names
            np.testing.assert_array_equal(again.neighbour, streets.neighbour)
            assert (again.coordinates is None) == (streets.coordinates is None)
            if streets.coordinates is not None:
                np.testing.assert_array_equal(again.coordinates, streets.coordinates)
        with pytest.raises(FileExistsError, match="exists: choose another `out`"):
            write_map(streets, folder)


def test_a_map_that_is_not_written_to_its_end_leaves_the_one_before(tmp_path, monkeypatch):
    """Crossings of one grid and streets of another read as a map."""
    write_map(CITY, tmp_path / "m")

    def fails_at_streets(path, content):
        if path.name == "edges.csv":
            raise OSError("the disk is full")
        write_atomically(path, content)

    monkeypatch.setattr("statewise.tasks.manhattan.street_map.write_atomically", fails_at_streets)
    with pytest.raises(OSError, match="the disk is full"):
        write_map(grid_city(6, 7, 4), tmp_path / "m", overwrite=True)
    np.testing.assert_array_equal(read_map(tmp_path / "m").neighbour, CITY.neighbour)
    np.testing.assert_array_equal(read_map(tmp_path / "m").coordinates, CITY.coordinates)


def files(folder, edges, nodes=None, name="edges.csv"):
    folder.mkdir()
    (folder / name).write_text("from_node,direction,to_node\n" + edges)
    if nodes is not None:
        (folder / "nodes.csv").write_text(nodes)
    return folder


def test_maps_are_read_in_their_published_layout(tmp_path):
    folder = files(
        tmp_path / "m", "1,N,2\n2,S,1\n", "node,in_random,synthetic_x,synthetic_y\n1,1,0.5,2\n2,1,3,4\n9,0,0,0\n"
    )
    (folder / "edges.csv").rename(folder / "edges_random.csv")
    (folder / "edges_other.csv").write_text("from_node,direction,to_node\n2,SW,1\n")
    streets = read_map(folder)
    assert streets.names == ["1", "2"], "crossing 9 has no street"
    assert streets.coordinates.tolist() == [[0.5, 2.0], [3.0, 4.0]]
    assert len(streets.streets[0]) == 2
    assert read_map(folder, "other").neighbour[1, HEADINGS.index("SW")] == 0
    (folder / "edges.csv.gz").write_bytes(gzip.compress(b"from_node,direction,to_node\n1,E,2\n"))
    assert len(read_map(folder).streets[0]) == 1


@pytest.mark.parametrize(
    ("edges", "nodes", "message"),
    [
        ("1,N,2\n1,E,3\n", "node\n1\n2\n", "edges.csv:3: a street of crossing 3, which .*nodes.csv does not have"),
        ("1,N,2\n1,E,3\n1,N,3\n", None, "edges.csv:4: a second street N from 1; the first is in line 2"),
        ("1,UP,2\n", None, "edges.csv:2: unknown heading 'UP': choose one of N, NE"),
        ("1,N,2\n", "node,x,y\n1,0,0\n2,east,1\n", "nodes.csv:3: coordinates of crossing 2 are not numbers"),
        ("1,N,2\n", "node\n1\n1\n", "nodes.csv:3: crossing 1 is listed twice"),
        ("1,N,2\n", "node,x,y\n1,0,0\n2,nan,1\n", "nodes.csv:3: coordinates of crossing 2 are not numbers"),
        ("1,N,end\n", None, "edges.csv:2: a crossing cannot be named end"),
        ("1,N,2\n", "node\n1\n2\na b\n", "nodes.csv:4: a crossing cannot be named 'a b'"),
        ("1,N,\n", None, "edges.csv:2: a crossing cannot be named ''"),
        ("1,N\n", None, "edges.csv:2: 2 fields, but the header has 3"),
        ("", None, "the map has no street"),
    ],
)
def test_bad_maps_are_refused_by_file_and_line(edges, nodes, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        read_map(files(tmp_path / "m", edges, nodes))


def test_folders_that_are_no_maps_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such folder"):
        read_map(tmp_path / "nowhere")
    (tmp_path / "valid_turns.pkl").write_bytes(b"")
    with pytest.raises(FileNotFoundError, match=r"valid_turns.pkl is a pickle.*convert it to CSV"):
        read_map(tmp_path)
    folder = files(tmp_path / "m", "1,N,2\n", name="edges_a.csv")
    with pytest.raises(FileNotFoundError, match=r"has no edges_b\.csv; it has the builds a"):
        read_map(folder, "b")
    with pytest.raises(ValueError, match="choose one by `build`, of a"):
        read_map(folder)
    (tmp_path / "n").mkdir()
    (tmp_path / "n" / "edges.csv").write_text("begin,end\n1,2\n")
    with pytest.raises(ValueError, match="the header has no column from_node, direction, to_node"):
        read_map(tmp_path / "n")


# Checking


def by_hand(streets, row, length):
    """Verdict and moves of one ride, from the words of the definition."""
    N, tokens = len(streets), row[:length].tolist()
    if length < 2 or not all(0 <= token < N for token in tokens[:2]):
        moves = next((place for place, token in enumerate(tokens[2:]) if token == N + 8), max(0, length - 2))
        return ILLEGAL_TURN, moves
    at = tokens[0]
    for place, token in enumerate(tokens[2:]):
        if token == N + 8:
            return (VALID if at == tokens[1] else WRONG_DESTINATION), place
        if not N <= token < N + 8 or streets.neighbour[at, token - N] < 0:
            end = tokens.index(N + 8, 2) - 2 if N + 8 in tokens[2:] else length - 2
            return ILLEGAL_TURN, end
        at = streets.neighbour[at, token - N]
    return NO_END, length - 2


def test_the_checker_agrees_with_the_definition():
    rng, N = np.random.default_rng(0), len(CITY)
    rides = task().sample(rng, 300)
    tokens, lengths = rides.tokens.copy(), rides.lengths.copy()
    for row in range(300):  # as they are, changed, cut, lengthened, or nonsense
        kind, place = row % 6, rng.integers(0, lengths[row])
        if kind == 1:
            tokens[row, place] = rng.integers(N, N + 8)
        elif kind == 2:
            lengths[row] = place
        elif kind == 3:
            tokens[row, 1] = rng.integers(N)
        elif kind == 4:
            tokens[row, place] = rng.integers(N + 9)
        elif kind == 5:
            tokens[row, rng.integers(2, lengths[row])] = N + 8
    found = check(CITY, tokens, lengths)
    expected = [by_hand(CITY, row, length) for row, length in zip(tokens, lengths)]
    assert [VERDICTS[verdict] for verdict in found.verdicts] == [VERDICTS[verdict] for verdict, _ in expected]
    assert found.moves.tolist() == [moves for _, moves in expected]
    assert {*found.verdicts.tolist()} == {VALID, ILLEGAL_TURN, WRONG_DESTINATION, NO_END}
    assert ((found.illegal >= 0) == (found.verdicts == ILLEGAL_TURN)).all()
    empty = check(CITY, np.zeros((2, 1), np.int64), np.array([0, 1]))
    assert empty.verdicts.tolist() == [ILLEGAL_TURN, ILLEGAL_TURN]


# Rides


@pytest.mark.parametrize("style", ["random", "shortest", "noisy_shortest"])
def test_all_rides_are_valid_and_short_enough(style):
    made = task(rides=style)
    for rides in (made.sample(np.random.default_rng(0), 500), made.held_out()):
        assert (made.check(rides).verdicts == VALID).all()
        assert rides.lengths.max() <= made.longest
    moves = CITY.moves[rides.tokens[:, 1], rides.tokens[:, 0]]
    assert (moves >= 1).all()
    assert (moves <= 9).all()
    if style == "shortest":
        np.testing.assert_array_equal(rides.lengths - 3, moves)
    else:
        assert (rides.lengths - 3 > moves).any()


def test_random_turns_are_drawn_evenly_from_those_that_can_still_arrive():
    streets = a_map()
    a, c = 0, 2
    turns, moves = draw_rides(
        streets, np.random.default_rng(0), np.tile([a, c], (20000, 1)), style="random", most_moves=3
    )
    # From a: E (then N) or NE. At c: end, the loop, or W, which leaves no time to come back.
    seen = {}
    for row, count in zip(turns, moves):
        name = " ".join(HEADINGS[turn] for turn in row[:count])
        seen[name] = seen.get(name, 0) + 1 / len(turns)
    expected = {"E N": 1 / 4, "E N N": 1 / 4, "NE": 1 / 4, "NE N": 1 / 8, "NE N N": 1 / 8}
    assert seen.keys() == expected.keys()
    for name, share in expected.items():
        assert seen[name] == pytest.approx(share, abs=0.02)


def test_shortest_turns_are_drawn_evenly():
    streets = a_map({("a", "E"): "b", ("b", "N"): "c", ("a", "N"): "d", ("d", "E"): "c", ("a", "S"): "a"})
    pairs = np.tile([0, 2], (4000, 1))
    turns, moves = draw_rides(streets, np.random.default_rng(0), pairs, style="shortest", most_moves=5)
    assert (moves == 2).all()
    assert (turns[:, 0] == HEADINGS.index("N")).mean() == pytest.approx(0.5, abs=0.05)


def test_without_noise_traffic_takes_the_shortest_way_by_length():
    made = task(rides="noisy_shortest", noise=0.0, max_moves=20)
    rides = made.sample(np.random.default_rng(0), 100)
    begin, _, end = CITY.streets
    lengths = np.maximum(np.hypot(*(CITY.coordinates[end] - CITY.coordinates[begin]).T), 0.01 * CITY.street_length)
    best = CITY.travel_times(lengths, np.arange(len(CITY)))
    for row in range(100):
        at, total = rides.tokens[row, 0], 0.0
        for token in rides.answer(row)[:-1]:
            to = CITY.neighbour[at, token - made.N]
            total, at = total + np.hypot(*(CITY.coordinates[to] - CITY.coordinates[at])), to
        assert total == pytest.approx(best[rides.tokens[row, 1], rides.tokens[row, 0]])
    jammed = task(rides="noisy_shortest", noise=3.0, max_moves=9).sample(np.random.default_rng(0), 300)
    assert (made.check(jammed).verdicts == VALID).all()


def test_pairs_are_held_out_and_not_rides():
    made = task()
    held_out = {tuple(pair) for pair in made.held_out().tokens[:, :2].tolist()}
    assert len(held_out) == 40
    trained = made.sample(np.random.default_rng(0), 20000).tokens[:, :2]
    assert not held_out & {tuple(pair) for pair in trained.tolist()}
    everything = np.array([(a, b) for a in range(made.N) for b in range(made.N)])
    share = made._is_held_out(everything).mean()
    assert share == pytest.approx(1 / 16, abs=0.02)


def test_packed_rides_are_whole_and_their_prompts_are_not_asked_for():
    made = task(row=50)
    packed = made.sample(np.random.default_rng(0), 30)
    assert packed.tokens.shape == (30, 50)
    batch = collate(packed)
    rides = 0
    for row in range(30):
        for document in range(1, packed.documents[row].max() + 1):
            inside = (packed.documents[row] == document) & (np.arange(50) < packed.lengths[row])
            ride = packed.tokens[row, inside]
            assert by_hand(CITY, ride, len(ride)) == (VALID, len(ride) - 3)
            scored = batch.scored[row].numpy()[inside]
            assert scored.tolist() == [False, False] + [True] * (len(ride) - 2)
            rides += 1
    assert rides > 60
    assert (packed.lengths > 50 - made.longest).all(), "another ride would have fitted"


def test_packing_keeps_order_and_fills_rows():
    sequences = Examples.of([np.full(length, length) for length in (3, 4, 2, 5, 1, 1)], [0] * 6)
    packed = pack(sequences, 7)
    assert packed.tokens.tolist() == [[3, 3, 3, 4, 4, 4, 4], [2, 2, 5, 5, 5, 5, 5], [1, 1, 0, 0, 0, 0, 0]]
    assert packed.documents.tolist() == [[1, 1, 1, 2, 2, 2, 2], [1, 1, 2, 2, 2, 2, 2], [1, 2, 2, 2, 2, 2, 2]]
    assert packed.lengths.tolist() == [7, 7, 2]


# As a task


def test_scores_are_of_valid_rides(tmp_path):
    made = on_square(tmp_path)
    prompts = Examples.of([made.encode("a c NE end")] * 6, [2] * 6)
    given = ["NE end", "E N N end", "E W end", "NE", "E end", "end"]
    scores = made.score(prompts, [Completion(made.encode(text), 0.0) for text in given])
    # Right, right by a detour, illegal, without an end, at the wrong place, without a turn
    assert scores == {"valid_trajectories": 2 / 6, "legal_rides": 4 / 6}
    late = Completion(np.append(np.tile(made.encode("N"), 127), made.end), 0.0)
    there = Examples.of([made.encode("c c end")], [2])
    assert made.score(there, [late])["valid_trajectories"] == 0.0


def test_the_next_token_test_asks_for_legal_tokens_not_for_the_same(tmp_path):
    made = on_square(tmp_path)
    examples = Examples.of([made.encode("a c E N end")], [2])
    chosen = np.array([[-1, -1, *made.encode("NE N N")]])  # another way, the same, and on instead of ending
    assert made.score_positions(examples, chosen) == {"next_token_test": 1.0}
    chosen = np.array([[-1, -1, *made.encode("N N W")]])  # from a no street leads N
    assert made.score_positions(examples, chosen) == {"next_token_test": 2 / 3}
    chosen = np.array([[-1, -1, *made.encode("end a end")]])  # not there yet; a crossing is no turn; right
    assert made.score_positions(examples, chosen) == {"next_token_test": 1 / 3}


def test_labels_and_legal_tokens(tmp_path):
    made = on_square(tmp_path)
    examples = Examples.of([made.encode("a c E N end"), made.encode("b a N W")], [2, 2])
    assert made.labels(examples).tolist() == [[-1, 0, 1, 2, -1], [-1, 1, 2, 3, -1]]
    legal = {text: made.decode(made.legal(made.encode(text))) for text in ("", "a", "a c", "a c NE", "a c NE end")}
    assert legal == {"": "a b c d", "a": "a b c d", "a c": "NE E", "a c NE": "N W end", "a c NE end": ""}
    assert made.decode(made.legal(made.encode("b b"))) == "N end"
    assert made.decode(made.legal(made.encode("b b E"))) == ""


def test_rides_of_a_file(tmp_path):
    made = on_square(tmp_path)
    path = tmp_path / "rides.txt"
    path.write_text("a c NE end\n\nd c S E N end\n")
    assert made.decode(made.read(path).answer(1)) == "S E N end"
    for line, message in (
        ("a c S end", r"rides.txt:2: turn 1, S, is illegal: from a streets lead NE, E"),
        ("a c E N N", "rides.txt:2: the ride has no `end`"),
        ("a c E end", "rides.txt:2: the ride does not end at c"),
        ("a N end", "rides.txt:2: a ride begins with origin and destination"),
        ("a c x end", "rides.txt:2: unknown symbol 'x'"),
        ("c c" + " N" * 12 + " end", ""),
        ("c c" + " N" * 15 + " end", "rides.txt:2: 18 tokens, but the longest ride of this task has 17"),
    ):
        path.write_text(f"a c NE end\n{line}\n")
        if message:
            with pytest.raises(ValueError, match=message):
                made.read(path)
        else:
            made.read(path)
    path.write_text("a c NE end\na c N end\n")
    assert made.read_any(path)[1] == [1, 2]


def test_a_place_from_which_no_street_leads_is_said_so(tmp_path):
    write_map(a_map({**SQUARE, ("b", "S"): "e"}), tmp_path / "m")
    path = tmp_path / "rides.txt"
    path.write_text("a e E S N end\n")
    with pytest.raises(ValueError, match="turn 3, N, is illegal: from e no street leads on"):
        task(map=str(tmp_path / "m"), held_out_rides=1, held_out_moves=3).read(path)


def test_prompts_that_no_ride_begins_with_are_refused(tmp_path):
    write_map(a_map({**SQUARE, ("b", "S"): "e"}), tmp_path / "m")
    made = task(map=str(tmp_path / "m"), held_out_rides=1, held_out_moves=3)
    for text, message in (
        ("e a", "no path leads from e to a"),
        ("a b E S", "no path leads from e to b"),
        ("a c S", "turn 1, S, is illegal: from a streets lead NE, E"),
        ("a N", "begins with origin and destination"),
        ("a", "begins with origin and destination"),
        ("a c E end", "the ride ends before it reaches c"),
    ):
        with pytest.raises(ValueError, match=message):
            made.with_goal(made.encode(text), np.empty(0, np.int64))
    for text in ("a c", "a c E N", "a c NE end"):
        prompt, goal = made.with_goal(made.encode(text), np.empty(0, np.int64))
        assert (made.decode(prompt), goal) == (text, None)


def test_a_small_map_holds_out_all_the_pairs_that_it_has(tmp_path):
    small = task(rows=3, columns=4, held_out_rides=1000)
    pairs = np.array(list(itertools.product(range(small.N), repeat=2)))
    moves = small.streets.moves[pairs[:, 1], pairs[:, 0]]
    there = pairs[(moves >= 1) & (moves <= 9) & small._is_held_out(pairs)]
    assert {tuple(pair) for pair in small.held_out().tokens[:, :2].tolist()} == {tuple(pair) for pair in there.tolist()}
    assert len(small.held_out()) == len(there) > 3
    assert small.notes[1:] == [f"the map has {len(there)} pairs of crossings to hold out, not 1,000"]
    enough = task()
    assert len(enough.held_out()) == 40
    assert len(enough.notes) == 1


def test_bad_fields_are_refused(tmp_path):
    for fields, message in (
        ({"held_out_moves": 20}, "held_out_moves 20 is more than task.max_moves 14"),
        ({"row": 16}, "task.row 16 is shorter than the longest ride of 17"),
        ({"noise": -1.0}, "noise must be at least 0"),
        ({"max_moves": 0}, "must be at least 1"),
        ({"max_moves": 65_535}, "task.max_moves must be at least 1 and at most 65,534"),  # which is "no way"
        ({"city_seed": -1}, "task.city_seed must be at least 0"),
        ({"rows": 1}, "at least 2 rows"),
    ):
        with pytest.raises(ValueError, match=message):
            task(**fields)
    with pytest.raises(ValueError, match="no pair of crossings at most 1 moves apart to hold out: choose a larger map"):
        task(rows=2, columns=2, held_out_moves=1).held_out()
    with pytest.raises(ValueError, match="at most 20,000"):
        task(rows=200, columns=200)


# As an automaton


def test_states_follow_the_streets_and_end(tmp_path):
    made = on_square(tmp_path)
    words = made.encode
    states = made.states_after(np.array([words("a c E N"), words("a c NE N"), words("a c N N"), words("a c NE end")]))
    assert states.tolist() == [[2, 2], [2, 2], [-1, -1], [4, 2]]
    assert made.tokens_left(states).tolist() == [1, 1, -1, 0]
    assert [made.decode(np.flatnonzero(row)) for row in made.allowed(states)] == ["N W end", "N W end", "", ""]
    on = made.step(states, words("end N N N"))
    assert on.tolist() == [[4, 2], [2, 2], [-1, -1], [-1, -1]]
    far = made.states_after(np.array([words("a b")]))
    assert made.tokens_left(far).tolist() == [2]
    assert accepted(made, far, np.array([words("E end end")])).tolist() == [[True, True, False]]


@pytest.mark.parametrize("same_state", [True, False])
def test_pairs_of_prefixes_come_to_one_state_or_to_two(same_state):
    made = task()
    one, other = (made.draw_pairs(np.random.default_rng(5), 60, same_state=same_state) for _ in range(2))
    assert len(one) == one.requested == 60
    np.testing.assert_array_equal(one.first.tokens, other.first.tokens)
    np.testing.assert_array_equal(one.first.lengths, one.second.lengths)
    for row in range(60):
        first, second = (side.prompt(row) for side in one[:2])
        states = [made.states_after(side[None])[0].tolist() for side in (first, second)]
        assert (states[0] == states[1]) == same_state
        assert first.tolist() != second.tolist()
        for side, state in zip((first, second), states):
            assert len(side) >= 3
            assert side[0] != side[1]
            assert state[0] >= 0
            assert len(side) + made.tokens_left(np.array([state]))[0] <= made.longest


def test_fewer_pairs_than_asked_for_are_said_so(tmp_path):
    write_map(a_map({("a", "N"): "b", ("b", "S"): "a", ("b", "E"): "c"}), tmp_path / "m")
    made = task(map=str(tmp_path / "m"), held_out_rides=1, held_out_moves=1, max_moves=3)
    with pytest.raises(ValueError, match="no pair of prefixes could be drawn"):
        made.draw_pairs(np.random.default_rng(0), 50, same_state=True)  # there is but one way of each length
    pairs = made.draw_pairs(np.random.default_rng(0), 3, same_state=False)
    assert 0 < len(pairs) <= 3


def test_boundaries_are_those_found_by_trying_all_sequences():
    made, rng = task(), np.random.default_rng(1)
    pairs = made.draw_pairs(rng, 25, same_state=False)
    words = range(made.N, made.end + 1)
    for row in range(25):
        first, second = (made.states_after(side.prompt(row)[None])[0] for side in pairs[:2])
        expected = set()
        for length in (1, 2, 3):
            tails = list(itertools.product(words, repeat=length))
            states = (np.repeat(state[None], len(tails), 0) for state in (first, second))
            one, two = (accepted(made, each, np.array(tails)) for each in states)
            tells = one.all(1) & two[:, :-1].all(1) & ~two[:, -1]
            expected |= {tails[at] for at in np.flatnonzero(tells)}
        found = [tuple(tail.tolist()) for tail in distinguishing(made, first, second, 3)]
        assert set(found) == expected
        assert len(found) == len(expected)
