"""POMDPs: exact beliefs against brute force over paths of states, published problems, files, the task."""

import itertools
import json
import random

import numpy as np
import pytest

from statewise import beliefs
from statewise.beliefs.pomdp_files import as_json
from statewise.cli import main
from statewise.tasks import TASKS
from statewise.tasks.pomdp import PomdpTask


def task(**fields):
    return PomdpTask(PomdpTask.Config(**fields))


def slow_belief(problem, history):
    """The distribution of the last state, summed over all paths of states; None if the history is impossible."""
    S = len(problem.start)
    found = np.zeros(S)
    for path in itertools.product(range(S), repeat=len(history) + 1):
        weight = problem.start[path[0]]
        for before, (action, seen), after in zip(path, history, path[1:]):
            weight *= problem.transitions[action, before, after] * problem.observations[action, after, seen]
        found[path[-1]] += weight
    return found / found.sum() if found.sum() > 0 else None


def random_problem(seed):
    rng = np.random.default_rng(seed)
    T, sees, start = (rng.dirichlet(np.full(n, 0.6), size) for n, size in ((3, (2, 3)), (2, (2, 3)), (3, None)))
    sees[0, 0] = [1, 0]
    return beliefs.Pomdp(T, sees, start, rng.normal(size=(2, 3)), 0.9, list("xyz"), ["go", "wait"], ["dark", "light"])


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("policy", [None, [0.9, 0.1], "qmdp"], ids=str)
def test_beliefs_are_sums_over_hidden_paths_whatever_chooses_the_actions(seed, policy):
    problem = random_problem(seed)
    process = problem.process(problem.qmdp() if policy == "qmdp" else policy, explore=0.2)
    words = process.draw(np.random.default_rng(seed), 12, 6)
    joint, probabilities = process.posteriors(words)
    assert (probabilities > 0).all()
    told = process.told(joint)
    for row, word in enumerate(words):
        history = list(zip(word[::2].tolist(), (word[1::2] - 2).tolist()))
        for steps in range(4):
            expected = slow_belief(problem, history[:steps])
            np.testing.assert_allclose(told[row, 2 * steps], expected, atol=1e-12)
            if steps < 3:
                action, seen = history[steps]
                moved = expected @ problem.transitions[action]
                np.testing.assert_allclose(told[row, 2 * steps + 1], moved, atol=1e-12)
                ahead = process.next_tokens(joint[row, 2 * steps + 1])
                np.testing.assert_allclose(ahead, [0, 0, *(moved @ problem.observations[action])], atol=1e-12)
                assert probabilities[row, 2 * steps + 1] == pytest.approx(ahead[2 + seen])
                foretold = process.foretold(joint[row, 2 * steps]).reshape(2, 2)
                np.testing.assert_allclose(foretold[action], moved @ problem.observations[action], atol=1e-12)
    np.testing.assert_allclose(problem.filter(words[:, ::2], words[:, 1::2] - 2), told[:, ::2], atol=1e-12)


def test_sequences_have_the_probabilities_of_the_policy():
    process = random_problem(3).process([0.8, 0.2])
    words = process.draw(np.random.default_rng(0), 20_000, 3)
    for word in itertools.product(range(2), (2, 3), range(2)):
        share = (words == word).all(1).mean()
        _, probabilities = process.posteriors(np.array([word]))
        assert share == pytest.approx(probabilities.prod(), abs=0.015)


def test_the_tiger_is_heard_as_published():
    tiger = beliefs.pomdp("tiger")
    found = tiger.filter(np.array([[0, 0, 0, 1, 0]]), np.array([[0, 0, 1, 0, 1]]))[0, :, 0]
    np.testing.assert_allclose(found, [0.5, 0.85, 0.85**2 / (0.85**2 + 0.15**2), 0.85, 0.5, 0.15], atol=1e-12)
    policy = tiger.qmdp()
    assert policy(np.array([[0.5, 0.5], [0.999, 0.001], [0.001, 0.999]])).argmax(1).tolist() == [0, 2, 1]


def test_the_grid_is_the_published_one():
    grid = beliefs.pomdp("grid")
    names = list(grid.state_names)
    assert len(names) == 11
    north = grid.transitions[grid.action_names.index("north")]
    below, corner = names.index("row2-column1"), names.index("row3-column1")
    assert north[corner, below] == pytest.approx(0.8)
    assert north[corner, corner] == pytest.approx(0.1), "the wall to the left"
    assert north[below, below] == pytest.approx(0.2), "a wall to the left, the obstacle to the right"
    goal = names.index("row1-column4")
    np.testing.assert_allclose(np.delete(grid.transitions[0, goal], [goal, names.index("row2-column4")]), 1 / 9)
    seen = dict(zip(names, np.array(grid.observation_names)[grid.observations[0].argmax(1)]))
    assert (seen["row2-column1"], seen["row1-column1"], seen["row3-column4"]) == (
        "both-walls",
        "left-wall",
        "right-wall",
    )
    assert seen["row2-column3"] == "left-wall", "beside the obstacle"
    assert (seen["row1-column4"], seen["row2-column4"]) == ("goal", "trap")


TIGER = """# the tiger
discount: 0.95
values: reward
states: tiger-left tiger-right
actions: listen open-left open-right
observations: hear-left hear-right
start: uniform
T: listen identity
T: open-left
uniform
T: open-right : * uniform
O: * uniform
O: listen
0.85 0.15
0.15 0.85
R: listen : * : * : * -1
R: open-left : tiger-left : * : * -100
R: open-left : tiger-right : * 10 10
R: open-right : tiger-left
10 10
10 10
R: open-right : tiger-right : * : * -100
"""


def test_a_problem_may_come_from_a_pomdp_file_or_json(tmp_path):
    (tmp_path / "own.pomdp").write_text(TIGER)
    tiger = beliefs.pomdp("tiger")
    (tmp_path / "own.json").write_bytes(as_json(tiger))
    for name in ("own.pomdp", "own.json"):
        found = beliefs.read_pomdp(tmp_path / name)
        assert as_json(found) == as_json(tiger)
        made = task(path=str(tmp_path / name), steps=4)
        kept = made.files()
        again = PomdpTask(made.config, kept)
        np.testing.assert_array_equal(again.held_out(20).tokens, task(steps=4).held_out(20).tokens)
        assert beliefs.named(str(tmp_path / name)).vocabulary == 5
    costs = TIGER.replace("values: reward", "values: cost").replace("tiger-left tiger-right\n", "2\n", 1)
    costs = costs.replace("tiger-left", "0").replace("tiger-right", "1")
    (tmp_path / "costs.pomdp").write_text(costs.replace("start: uniform", "start exclude: 1"))
    found = beliefs.read_pomdp(tmp_path / "costs.pomdp")
    np.testing.assert_allclose(found.rewards, -tiger.rewards)
    assert found.start.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("states: tiger-left tiger-right", "states: 0"), ":4: states must be 1 to 65,536, not"),
        (("states: tiger-left tiger-right", "states: a a"), ":4: states: 'a' is given twice"),
        (("states: tiger-left tiger-right", "states: 99999999999"), ":4: states must be 1 to 65,536"),
        (("states: tiger-left tiger-right\n", ""), ":6: states must be given before this"),
        (("0.85 0.15", "0.85 0.25"), "observations of action listen, state tiger-left must be probabilities that sum"),
        (("0.85 0.15", "1.85 -0.85"), "-0.85 is negative"),
        (("0.85 0.15", "0.85"), ":15: O needs 4 numbers here, not 3"),
        (("0.85 0.15", "nan 0.15"), ":14: 'nan' must be a finite number"),
        (("0.85 0.15", "1e999 0.15"), ":14: '1e999' must be a finite number"),
        (("O: listen", "O: shout"), ":13: 'shout' is not one of the 3 actions"),
        (("discount: 0.95", "discount: 2"), "the discount must be between 0 and 1, not 2"),
        (("discount: 0.95", "discount: 0.5 0.5"), ":2: '0.5' must be one of"),
        (("values: reward", "values: gold"), ":3: values must be reward or cost, not 'gold'"),
        (("start: uniform", "start: 0.5"), "is not one of the 2 states"),
        (("start: uniform", "start: 0.5 0.6"), "start must be probabilities that sum to 1"),
        (("T: listen identity", "T: listen"), ":8: T needs 4 numbers here, not 0"),
        (("T: listen identity", "X: listen"), ":8: start must be 2 probabilities"),
        (("# the tiger", "X: 1"), ":1: 'X' must be one of O, R, T"),
        (("observations: hear-left hear-right", "observations: <bos> b"), "must be a word without spaces"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_file_is_said_with_its_line(change, message, tmp_path, capsys):
    path = tmp_path / "own.pomdp"
    path.write_text(TIGER.replace(*change, 1))
    assert main(["beliefs", str(path)]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert str(path) in said


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"T": [[[1]]]}, "transitions must be numbers of shape (3, 2, 2), not (1, 1, 1)"),
        ({"T": [[[1, 0], [1]]]}, "the rows of T must have one length"),
        ({"T": "x"}, "T must be"),
        ({"states": []}, "needs at least one state"),
        ({"start": [2, -1]}, "-1 is negative"),
        ({"discount": -1}, "the discount must be between 0 and 1"),
        ({"strat": [1, 0]}, "did you mean start"),
        ({"actions": ["a b", "c", "d"]}, "must be a word without spaces"),
    ],
)
def test_what_is_wrong_with_json_is_said(change, message, tmp_path, capsys):
    path = tmp_path / "own.json"
    path.write_text(json.dumps({**json.loads(as_json(beliefs.pomdp("tiger"))), **change}))
    assert main(["beliefs", str(path)]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert str(path) in said


def test_damaged_files_are_refused_in_a_sentence(tmp_path):
    rng, path, said = random.Random(3), tmp_path / "own.pomdp", list[str]()
    for _ in range(200):
        words = TIGER.split(" ")
        for _ in range(rng.randint(1, 3)):
            words[rng.randrange(len(words))] = rng.choice(["", ":", "*", "-1", "T", "1e400", "\n", "identity", "\x00"])
        path.write_text(" ".join(words))
        try:
            beliefs.read_pomdp(path)
        except ValueError as error:
            said.append(str(error))
    assert len(said) > 100
    assert all(str(path) in one for one in said)


def test_the_task_scores_observations_and_knows_its_floor():
    made = task(steps=5, policy="0.8,0.1,0.1", held_out_sequences=3000)
    rows = made.held_out()
    assert made.decode(rows.tokens[0]).split()[0] == "<bos>"
    assert (rows.tokens[:, 1::2] < 3).all()
    assert (rows.scored == (np.arange(11) % 2 == 0) & (np.arange(11) > 0)).all()
    exact = made.baselines(rows)
    floor = made.score_nats(rows, np.zeros(rows.tokens.shape), rows.scored)["floor"]
    assert exact["exact belief"]["loss"] == pytest.approx(floor, abs=0.01)
    assert floor + 0.02 < exact["last action"]["loss"] == pytest.approx(np.log(2), abs=1e-9)
    nats = -np.log(np.where(rows.scored, made._given(rows), 1))
    assert made.score_nats(rows, nats, rows.scored)["excess"] == pytest.approx(0, abs=1e-12)
    read = made.prefixes(5000, 1)
    compared = read.chosen(made.compared(read.columns))
    assert set(compared.columns.tolist()) == {0, 2, 4, 6, 8}
    assert compared.weights.sum() == pytest.approx(1)
    for fields, message in (
        ({"policy": "best"}, "task.policy must be random, qmdp"),
        ({"policy": "0.5,0.5"}, "3 probabilities"),
        ({"policy": "nan,0.5,0.5"}, "3 probabilities"),
        ({"problem": "tigre"}, "unknown POMDP 'tigre': did you mean tiger"),
    ):
        with pytest.raises(ValueError, match=message):
            task(**fields)
    assert TASKS["pomdp"] is PomdpTask


def test_names_of_both_an_action_and_an_observation_are_kept_apart():
    problem = random_problem(0)
    both = beliefs.Pomdp(
        problem.transitions, problem.observations, problem.start, problem.rewards, 0.9,
        list("xyz"), ["left", "right"], ["left", "none"],
    )  # fmt: skip
    assert both.tokens == ["do:left", "do:right", "see:left", "see:none"]
