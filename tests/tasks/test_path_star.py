import dataclasses
import re

import numpy as np
import pytest
import torch
from doubles import MarkovPredictor
from hypothesis import given, settings
from hypothesis import strategies as st

from statewise.data_types import Completion
from statewise.decoding import make_decoder
from statewise.evaluation.evaluate import complete
from statewise.tasks.path_star import PathStar, PathStarConfig


@st.composite
def configs(draw):
    degree, length = draw(st.integers(1, 6)), draw(st.integers(2, 8))
    nodes = 1 + degree * (length - 1) + draw(st.integers(0, 20))
    return PathStarConfig(
        degree=degree,
        length=length,
        nodes=nodes,
        held_out_graphs=20,
        encoding=draw(st.sampled_from(["plain", "reverse"])),
    )


@given(configs(), st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_the_published_format_round_trips(tmp_path_factory, config, seed):
    task = PathStar(config)
    examples = task.sample(np.random.default_rng(seed), 5)
    path = tmp_path_factory.mktemp("graphs") / "graphs.txt"
    path.write_text("\n".join(task.lines(examples)) + "\n")
    np.testing.assert_array_equal(task.read(path).tokens, examples.tokens)


@given(configs(), st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_every_graph_is_a_star_and_every_path_its_arm(config, seed):
    task = PathStar(config)
    for line in task.lines(task.sample(np.random.default_rng(seed), 5)):
        edges, start, goal, path = re.fullmatch(r"(.*)/(\d+),(\d+)=(.*)", line).groups()
        after = {}
        for edge in edges.split("|"):
            a, b = edge.split(",")
            after.setdefault(a, []).append(b)
        arms = []
        for first in after[start]:
            arm = [start, first]
            while arm[-1] in after:
                (following,) = after[arm[-1]]
                arm.append(following)
            arms.append(arm)
        assert len(arms) == config.degree
        assert {len(arm) for arm in arms} == {config.length}
        every_node = [start, *(node for arm in arms for node in arm[1:])]
        assert len(set(every_node)) == 1 + config.degree * (config.length - 1)
        assert all(0 <= int(node) < config.nodes for node in every_node)
        assert path.split(",") in [arm for arm in arms if arm[-1] == goal]


@pytest.mark.parametrize(
    ("degree", "length", "total"), [(2, 5, 32), (5, 5, 68), (7, 7, 136), (2, 10, 67), (2, 20, 137)]
)
def test_sizes_and_token_ids_are_the_published_ones(degree, length, total):
    task = PathStar(PathStarConfig(degree=degree, length=length, nodes=50, held_out_graphs=1))
    assert task.context == total
    assert len(task.vocab) == 54
    assert task.vocab.encode(["0", "49", "|", "=", "/", "$"]).tolist() == [0, 49, 50, 51, 52, 53]
    line = "32,3|16,12|3,19|32,34|34,6|6,16|19,1|1,2/32,12=32,34,6,16,12"
    if (degree, length) == (2, 5):
        tokens = task.encode(line)
        assert tokens[:6].tolist() == [32, 3, 50, 16, 12, 50]
        assert tokens[23:28].tolist() == [52, 32, 12, 51, 32]
        assert task.decode(tokens) == line


def test_draws_are_uniform_over_nodes_places_and_arms():
    task = PathStar(PathStarConfig(degree=3, length=3, nodes=9, held_out_graphs=10))
    tokens = task.sample(np.random.default_rng(0), 40000).tokens
    for column in (0, 1, 18, 19, 22):  # any node may stand at any place
        counts = np.bincount(tokens[:, column], minlength=9)[:9]
        assert abs(counts / 40000 - 1 / 9).max() < 0.01
    goal_edge = (tokens[:, 1:18:3] == tokens[:, 19:20]).argmax(1)  # which of the edges ends at the goal
    assert abs(np.bincount(goal_edge, minlength=6) / 40000 - 1 / 6).max() < 0.01


def test_scores_tell_branch_and_path_apart():
    task = PathStar(PathStarConfig(degree=2, length=4, nodes=9, held_out_graphs=4))
    examples = task.held_out()
    answers = [examples.answer(row).copy() for row in range(4)]
    answers[0][1] = (answers[0][1] + 1) % 9
    answers[1][3] = (answers[1][3] + 1) % 9
    answers[2] = answers[2][:3]
    scores = task.score(examples, [Completion(answer, 0.0) for answer in answers])
    assert scores == {"path_accuracy": 0.25, "branch_accuracy": 0.75}


def test_an_answer_that_goes_on_beyond_the_path_is_wrong():
    task = PathStar(PathStarConfig(degree=2, length=4, nodes=9, held_out_graphs=2))
    examples = task.held_out()
    answers = [examples.answer(0), np.append(examples.answer(1), examples.answer(1)[-1])]
    scores = task.score(examples, [Completion(answer, 0.0) for answer in answers])
    assert scores == {"path_accuracy": 0.5, "branch_accuracy": 1.0}


@pytest.mark.parametrize("encoding", ["plain", "fill_in_the_middle"])
def test_evaluations_decode_no_further_than_the_path(encoding):
    """The context of fill_in_the_middle has room for a suffix as well, and its models have no symbol to end with."""
    task = PathStar(PathStarConfig(degree=2, length=4, nodes=9, held_out_graphs=3, encoding=encoding))
    table = torch.eye(len(task.vocab)).roll(1, dims=1).clamp(min=1e-6)
    completions = complete(task, MarkovPredictor(table, context=99), make_decoder("greedy"), task.held_out(), block=8)
    assert [len(completion.tokens) for completion in completions] == [4, 4, 4]


def test_impossible_graphs_are_refused():
    with pytest.raises(ValueError, match="goal_augmentation needs a node between"):
        PathStarConfig(degree=2, length=2, nodes=9, encoding="goal_augmentation")
    with pytest.raises(ValueError, match=r"G\(5,5\) has 21 different nodes, but nodes is 20: set task.nodes to 21"):
        PathStarConfig(degree=5, length=5, nodes=20)


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("1,2|1,3/1,2", "not of the form"),
        ("1,2|1,3/1,2=1,2,3", "set task.degree and task.length"),
        ("1,2|1,3/1,2=1,3", "does not lead from the start to the goal"),
        ("1,2|1,3/1,4=1,4", "an edge that the graph does not have"),
        ("1,2|1,99/1,2=1,2", "unknown symbol '99'"),
        ("1,2|2,1/1,2=1,2", "are not 2 arms of 1 nodes"),
        ("1,2|2,3/1,2=1,2", "are not 2 arms of 1 nodes"),
        ("1,2|1,2/1,2=1,2", "are not 2 arms of 1 nodes"),
    ],
)
def test_bad_lines_are_named(tmp_path, line, what):
    path = tmp_path / "graphs.txt"
    path.write_text(f"1,2|1,3/1,2=1,2\n{line}\n{line}\n{line}\n")
    task = PathStar(PathStarConfig(degree=2, length=2, nodes=9, held_out_graphs=1))
    with pytest.raises(ValueError, match=what) as error:
        task.read(path)
    assert str(error.value).startswith(f"{path}:2: ")
    assert str(error.value).endswith("(and 2 more such lines)")


def test_files_in_place_of_drawn_graphs_stay_apart(tmp_path):
    drawn = PathStar(PathStarConfig(degree=2, length=2, nodes=4, held_out_graphs=10))
    line, *others = dict.fromkeys(drawn.lines(drawn.sample(np.random.default_rng(0), 100)))
    (tmp_path / "held_out.txt").write_text("\n".join([line, *others[:5]]) + "\n")
    task = PathStar(PathStarConfig(degree=2, length=2, nodes=4, held_out_file=str(tmp_path / "held_out.txt")))
    rest = {*drawn.lines(drawn.sample(np.random.default_rng(1), 3000)), *drawn.lines(drawn.held_out())}
    assert {*task.lines(task.sample(np.random.default_rng(1), 3000))} == rest - {line, *others[:5]}
    (tmp_path / "training.txt").write_text("0,1|0,2/0,1=0,1\n" + line + "\n")
    both = PathStarConfig(
        degree=2,
        length=2,
        nodes=4,
        training_file=str(tmp_path / "training.txt"),
        held_out_file=str(tmp_path / "held_out.txt"),
    )
    with pytest.raises(ValueError, match="contains held-out graphs"):
        PathStar(both).training()
    with pytest.raises(ValueError, match="training_graphs applies to drawn graphs, but training_file gives its own"):
        dataclasses.replace(both, training_graphs=5)


def test_a_run_finds_its_files_again_and_refuses_changed_ones(tmp_path, monkeypatch):
    graphs = {"training_file": "0,1|0,2/0,1=0,1\n", "held_out_file": "0,1|0,3/0,1=0,1\n"}
    for field, line in graphs.items():
        (tmp_path / field).write_text(line)
    monkeypatch.chdir(tmp_path)
    config = PathStarConfig(degree=2, length=2, nodes=4, **{field: field for field in graphs})
    kept = PathStar(config).files()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    again = PathStar(config, kept)
    assert (len(again.training()), len(again.held_out())) == (1, 1)
    assert again.files() == kept
    for field, line in graphs.items():
        (tmp_path / field).write_text("0,2|0,3/0,2=0,2\n")
        with pytest.raises(ValueError, match=f"{field}: the data has changed since the run began"):
            PathStar(config, kept).training()
        (tmp_path / field).write_text(line)
    with pytest.raises(ValueError, match="does not belong to the files in its recipe"):
        PathStar(PathStarConfig(degree=2, length=2, nodes=4), kept)
    with pytest.raises(ValueError, match=r"path_star.json of this run is missing"):
        PathStar(config, {})


@pytest.mark.parametrize("text", ["²=", "9" * 5000])
def test_numbers_that_are_none_are_unknown_symbols(text):
    with pytest.raises(ValueError, match="unknown symbol") as error:
        PathStar(PathStarConfig()).encode(text)
    assert len(str(error.value)) < 200


def test_too_few_graphs_to_hold_some_out_are_named():
    with pytest.raises(ValueError, match="too few different graphs"):
        PathStar(PathStarConfig(degree=1, length=2, nodes=2)).held_out()


def small(encoding, **fields):
    return PathStar(PathStarConfig(degree=2, length=5, nodes=15, held_out_graphs=50, encoding=encoding, **fields))


@pytest.mark.parametrize("fixed", [None, 40])
def test_augmented_goals_are_any_node_between_start_and_goal(fixed):
    task = small("goal_augmentation", training_graphs=fixed)
    examples = task.sample(np.random.default_rng(0), 4000)
    goals, paths = examples.tokens[:, 3 * 8 + 1], examples.tokens[:, 27:]
    places = (paths == goals[:, None]).argmax(1)
    assert (np.take_along_axis(paths, places[:, None], 1)[:, 0] == goals).all()
    np.testing.assert_allclose(np.bincount(places, minlength=5) / 4000, [0, 1 / 3, 1 / 3, 1 / 3, 0], atol=0.03)
    held_out = task.held_out()
    assert (held_out.tokens[:, 25] == held_out.tokens[:, -1]).all()
    if fixed:  # one graph comes with different goals
        assert task.training() is None
        assert len({tuple(row) for row in examples.tokens[:, :24].tolist()}) <= 40
        assert len({tuple(row) for row in examples.tokens[:, :27].tolist()}) > 100


@pytest.mark.parametrize("fixed", [None, 40])
def test_suffixes_of_any_length_go_before_the_path(fixed):
    task = small("fill_in_the_middle", training_graphs=fixed)
    examples = task.sample(np.random.default_rng(0), 2000)
    given = examples.prompt_lengths - 28
    np.testing.assert_allclose(np.bincount(given, minlength=5) / 2000, 0.2, atol=0.04)
    for row in range(50):
        prompt, path = task.decode(examples.prompt(row)), examples.answer(row)
        nodes = ",".join(map(str, path[5 - given[row] :]))
        assert prompt.endswith(f"/{path[0]},{path[-1]}/{nodes}=")
    assert (task.held_out().prompt_lengths == 28).all()
    assert next(iter(task.lines(task.held_out(1)))).count("/") == 1


def test_published_prompts_are_asked_in_the_words_of_the_encoding():
    prompt = "0,1|1,2|2,3|3,4|0,5|5,6|6,7|7,8/0,4="
    plain, middle = small("plain"), small("fill_in_the_middle")
    nothing = np.empty(0, np.int64)
    read, goal = middle.with_goal(middle.encode(prompt), middle.encode("3,4"))
    assert (middle.decode(read), goal) == ("0,1|1,2|2,3|3,4|0,5|5,6|6,7|7,8/0,4/3,4=", None)
    read, _ = middle.with_goal(middle.encode(prompt), nothing)
    assert middle.decode(read).endswith("/0,4/=")
    assert middle.with_goal(read, nothing)[0] is read
    read, goal = plain.with_goal(plain.encode(prompt), plain.encode("3,4"))
    assert (plain.decode(read), plain.decode(goal)) == (prompt, "3,4")
