import json

import numpy as np
import pytest

from statewise.analysis.world_models.reconstruction import Ride, Street, reconstruct, rides_of
from statewise.cli import main
from statewise.tasks.manhattan.rides import VALID, check
from statewise.tasks.manhattan.street_map import HEADINGS, StreetMap, grid_city, write_map
from statewise.tasks.manhattan.task import Manhattan, ManhattanConfig

N, E, S, W = (HEADINGS.index(name) for name in "NESW")


def row_of_crossings(count=6):
    """Crossings in a row from west to east, one apart, with streets E and W."""
    neighbour = np.full((count, 8), -1)
    neighbour[:-1, E], neighbour[1:, W] = np.arange(1, count), np.arange(count - 1)
    places = np.stack([np.arange(count), np.zeros(count)], axis=1).astype(float)
    return StreetMap([f"x{number}" for number in range(count)], neighbour, places)


def made(truth, *rides, degree=4, radius=2.0):
    return reconstruct(truth, [Ride(*ride) for ride in rides], degree=degree, radius=radius)


def test_valid_rides_need_nothing_new():
    truth = row_of_crossings()
    found = made(truth, (0, 2, [E, E]), (2, 1, [E, W, W]))
    assert found.true == [Street(0, E, 1), Street(1, E, 2), Street(2, E, 3), Street(2, W, 1), Street(3, W, 2)]
    assert (found.new, found.failed, found.rides) == ([], 0, 2)
    assert len(found.true) + len(found.unused) == 10


def test_a_ride_to_where_it_begins_needs_no_turn():
    truth = row_of_crossings()
    end = len(truth) + len(HEADINGS)
    tokens = np.array([[1, 1, end], [1, 2, end]])
    found = rides_of(truth, tokens, np.array([3, 3]))
    assert [(ride.origin, ride.destination, ride.turns) for ride in found.ended] == [(1, 1, [])]
    assert found.unreadable == 1
    assert check(truth, tokens, np.array([3, 3])).verdicts.tolist()[0] == VALID
    assert made(truth, (1, 1, [])).failed == 0


def test_a_new_street_leads_to_where_the_rest_can_be_followed_furthest():
    truth = row_of_crossings()
    # From 0 no street leads N. The rest, E E W, can be followed to the end, which is 3, from 2 alone.
    found = made(truth, (0, 3, [N, E, E, W]))
    assert found.new == [Street(0, N, 2)]
    assert found.failed == 0
    # Where 2 is too far: to the nearest of those that go equally far, two streets, and another new one at the end.
    near = made(truth, (0, 3, [N, E, E, W]), radius=1.0)
    assert near.new == [Street(0, N, 0), Street(2, W, 3)]
    assert near.failed == 0


def test_the_last_turn_leads_to_the_destination_or_fails():
    truth = row_of_crossings()
    assert made(truth, (0, 3, [E, N])).new == [Street(1, N, 3)]
    far = made(truth, (0, 4, [E, N]))
    assert (far.new, far.failed) == ([], 1)
    assert far.true == [Street(0, E, 1)], "what was used before it failed stays in use"


def test_a_ride_that_ends_elsewhere_may_replace_a_street_that_is_not_in_use_yet():
    truth = row_of_crossings()
    # E E leads to 2, not to 3: the second E is unused, so a new street E may begin at 1.
    found = made(truth, (0, 3, [E, E]))
    assert found.new == [Street(1, E, 3)]
    assert Street(1, E, 2) in found.unused
    # Where that is in use already, the first may be.
    assert made(truth, (1, 2, [E]), (0, 3, [E, E])).new == [Street(0, E, 2)]
    used = made(truth, (0, 2, [E, E]), (0, 3, [E, E]))
    assert (used.new, used.failed) == ([], 1)
    # And a ride that needs the street that was replaced is a ride no more.
    spoilt = made(truth, (0, 3, [E, E]), (1, 2, [E]))
    assert spoilt.failed == 1


def test_new_streets_are_followed_like_true_ones_and_count_for_the_degree():
    truth = row_of_crossings()
    found = made(truth, (0, 2, [N]), (0, 3, [N, E]))
    assert found.new == [Street(0, N, 2)]
    full = made(truth, (1, 2, [E]), (1, 0, [W]), (1, 2, [N]), degree=2)
    assert (full.new, full.failed) == ([], 1)
    # An unused true street is no way either where a crossing has all the streets that it may have.
    full = made(truth, (1, 2, [N]), (1, 3, [S]), (1, 2, [E]), degree=2)
    assert (full.failed, Street(1, E, 2) in full.unused) == (1, True)


def test_every_valid_ride_of_a_city_is_kept_and_its_streets_are_all_that_is_used():
    city = grid_city(6, 7, 3)
    task = Manhattan(ManhattanConfig(rows=6, columns=7, city_seed=3, max_moves=20, held_out_moves=9))
    rides, endless, unreadable = rides_of(
        city, *(lambda drawn: (drawn.tokens, drawn.lengths))(task.sample(np.random.default_rng(0), 80))
    )
    found = reconstruct(city, rides, degree=8, radius=3.0)
    assert (found.new, found.failed, endless, unreadable) == ([], 0, 0, 0)
    used = set()
    for ride in rides:
        at = ride.origin
        for turn in ride.turns:
            used.add(Street(at, turn, int(city.neighbour[at, turn])))
            at = city.neighbour[at, turn]
    assert set(found.true) == used


def test_whatever_is_ridden_the_map_obeys_its_rules():
    city, rng = grid_city(5, 5, 1), np.random.default_rng(0)
    rides = [
        Ride(*rng.integers(len(city), size=2).tolist(), rng.integers(8, size=rng.integers(1, 12)).tolist())
        for _ in range(300)
    ]
    found = reconstruct(city, rides, degree=3, radius=2.5)
    begun = [(street.begin, street.heading) for street in found.true + found.new]
    assert len(begun) == len(set(begun)), "one street for a heading"
    assert np.bincount([begin for begin, _ in begun]).max() <= 3
    for street in found.new:
        assert np.hypot(*(city.coordinates[street.begin] - city.coordinates[street.end])) <= 2.5
        assert city.neighbour[street.begin, street.heading] != street.end
    every = {(begin, number): end for begin, number, end in zip(*(part.tolist() for part in city.streets))}
    assert {**{street[:2]: street[2] for street in found.true + found.unused}} == every
    streets = {street[:2]: street[2] for street in found.true + found.new}
    ridable = 0
    for ride in rides:  # in the map as it came to be
        at = ride.origin
        for turn in ride.turns:
            at = streets.get((at, turn), -1)
        ridable += at == ride.destination
    assert ridable >= len(rides) - found.failed > 0


def test_without_places_distance_is_in_moves():
    truth = row_of_crossings()
    truth = StreetMap(truth.names, truth.neighbour)
    assert truth.near(0, 2.0).tolist() == [0, 1, 2]
    assert made(truth, (0, 3, [N, E, E, W])).new == [Street(0, N, 2)]


def test_sequences_that_are_no_rides_are_counted():
    truth = row_of_crossings(3)  # crossings 0 1 2, headings 3 .. 10, end 11
    tokens = np.array(
        [[0, 2, 5, 5, 11, 7], [0, 2, 5, 0, 11, 0], [0, 2, 11, 0, 0, 0], [0, 9, 5, 11, 0, 0], [1, 2, 5, 5, 0, 0]]
    )
    rides, endless, unreadable = rides_of(truth, tokens, np.array([6, 5, 3, 4, 4]))
    assert rides == [Ride(0, 2, [E, E])]
    assert (endless, unreadable) == (1, 3)


@pytest.fixture
def map_folder(tmp_path):
    write_map(row_of_crossings(), tmp_path / "row")
    return tmp_path / "row"


def test_rides_of_a_file_are_checked_and_mapped(map_folder, tmp_path, capsys):
    path = tmp_path / "rides.txt"
    path.write_text("x0 x2 E E end\nx0 x3 N E E W end\nx0 x3 E E end\nx1 x2 E\n")
    labels = tmp_path / "labels.csv"
    assert main(["rides", "check", str(path), "--map", str(map_folder), "--write-labels", str(labels)]) == 0
    assert "valid_share" in capsys.readouterr().out
    assert labels.read_text().splitlines() == [
        "line,label,moves",
        "0,valid,2",
        "1,illegal_turn,4",
        "2,wrong_destination,2",
        "3,no_end,1",
    ]
    out = tmp_path / "out"
    assert (
        main(["rides", "map", str(path), "--map", str(map_folder), "--out", str(out), "--first", "2", "--radius", "2"])
        == 0
    )
    assert '"new": [\n      [\n        "x0",\n        "N",\n        "x2"' in (out / "map.json").read_text()
    assert {"map.json", "map.png", "map-drawing.png"} <= {made.name for made in out.iterdir()}
    path.write_text("x0 x9 E end\n")
    assert main(["rides", "check", str(path), "--map", str(map_folder)]) == 2
    assert "rides.txt:1: unknown symbol 'x9'" in capsys.readouterr().err


def test_rides_that_never_end_are_left_out_and_counted(map_folder, tmp_path, capsys):
    path, out = tmp_path / "rides.txt", tmp_path / "out"
    path.write_text("x0 x2 E E end\nx1 x2 N\nx0 x5 N N E\nx0 x1 end\n")
    assert main(["rides", "map", str(path), "--map", str(map_folder), "--out", str(out), "--radius", "2"]) == 0
    found = json.loads((out / "map.json").read_text())
    assert found["details"]["new"] == []
    counts = [found["metrics"][f"{name}_rides"] for name in ("endless", "unreadable", "failed", "valid")]
    assert counts == [2, 1, 1, 0.25]
    assert "rides without an end (endless_rides) are left out of the map" in " ".join(capsys.readouterr().out.split())
    path.write_text("x0 x2 E E\n")
    assert main(["rides", "map", str(path), "--map", str(map_folder), "--out", str(out), "--overwrite"]) == 0
    assert json.loads((out / "map.json").read_text())["metrics"]["true_streets"] == 0
    assert [made.name for made in out.iterdir()] == ["map.json"], "an empty picture, or that of other rides"
    assert "no ride is readable, so there are no plots" in capsys.readouterr().out


def test_drawn_rides_are_a_control(tmp_path, capsys):
    city = tmp_path / "city"
    assert main(["data", "city", "--rows", "6", "--columns", "7", "--out", str(city)]) == 0
    for share, new in (("0", "0"), ("1", None)):
        out = tmp_path / share
        assert main(["rides", "map", "--map", str(city), "--draw", "60", "--corrupt", share, "--out", str(out)]) == 0
        lines = dict(line.split() for line in capsys.readouterr().out.splitlines() if line.startswith(("new", "valid")))
        if new is not None:
            assert (lines["new_streets"], lines["valid_rides"]) == (new, "1.0000")
        else:
            assert int(lines["new_streets"]) > 0
            assert float(lines["valid_rides"]) < 0.2
    for flags, message in (
        (["check"], "FILE is missing: the rides to check"),
        (["map"], "--out is missing"),
        (["map", "--out", "x", "--corrupt", "2"], "a share from 0 to 1"),
        (["check", "f", "--out", "x"], "--out does not go with rides check"),
        (["map", "f", "--out", "x", "--corrupt", "0.1"], "--corrupt does not go with rides map"),
        (["map", "f", "--out", "x", "--write-labels", "y"], "--write-labels does not go with"),
        (["check", "f", "--first", "0"], "--first must be at least 1"),
    ):
        assert main(["rides", *flags, "--map", str(city)]) == 2
        assert message in capsys.readouterr().err


def test_published_maps_become_folders_of_ours(map_folder, tmp_path, capsys):
    assert main(["data", "manhattan", "--from", str(map_folder), "--out", str(tmp_path / "again")]) == 0
    assert "6 crossings with coordinates and 10 streets; 0 dead ends" in capsys.readouterr().out
    assert (tmp_path / "again" / "edges.csv").read_bytes() == (map_folder / "edges.csv").read_bytes()
