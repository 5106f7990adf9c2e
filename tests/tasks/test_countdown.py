import json
import re
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from command_line import called
from doubles import SMALL_RUN
from hypothesis import given, settings
from hypothesis import strategies as st

from statewise.cli import main
from statewise.data_types import Completion, Examples
from statewise.model.model import load_model
from statewise.run import Run
from statewise.tasks.countdown import Countdown, CountdownConfig, draw, holds, pools

PUBLISHED = "14,83,88,91,23|83-14=69,91-88=3,69/3=23"
MAKE = {"+": Fraction.__add__, "-": Fraction.__sub__, "*": Fraction.__mul__, "/": Fraction.__truediv__}


def task(**fields):
    return Countdown(CountdownConfig(**{"training_problems": None, "held_out_problems": 200, **fields}))


FOUR = task()
SMALL = task(numbers=3, largest_input=9, lowest_target=3, highest_target=12, largest=60, pauses=2, held_out_targets=0)


# The verifier's slow twin: straight from the definition, on text, with Python's own numbers


def equation_holds(text, largest):
    found = re.fullmatch(r"(\d+)([-+*/])(\d+)=(\d+)", text)
    if not found:
        return False
    left, operator, right, result = found.groups()
    if operator == "/" and int(right) == 0:
        return False
    made = MAKE[operator](Fraction(left), Fraction(right))
    return made == int(result) and 0 <= made <= largest


def solves(problem, solution, largest):
    *inputs, target = map(int, problem.rstrip("|").split(","))
    there = Counter(inputs)
    for equation in solution.split(","):
        if not equation_holds(equation, largest):
            return False
        for operand in map(int, re.split(r"[-+*/]", equation.partition("=")[0])):
            if there[operand] == 0:
                return False
            there[operand] -= 1
        there[int(equation.partition("=")[2])] += 1
    return +there == Counter([target])


def solutions(numbers, largest):
    """Every solution's text, whatever it ends in."""
    if len(numbers) == 1:
        yield ""
    for i, left in enumerate(numbers):
        for j, right in enumerate(numbers):
            for operator in "+-*/" if i != j else "":
                if operator == "/" and right == 0:
                    continue
                made = MAKE[operator](Fraction(left), Fraction(right))
                if made.denominator == 1 and 0 <= made <= largest:
                    rest = [number for place, number in enumerate(numbers) if place not in (i, j)]
                    for more in solutions([*rest, int(made)], largest):
                        yield f",{left}{operator}{right}={made}" + more


def one(examples, row, tokens):
    return FOUR.score(examples[row : row + 1], [Completion(np.asarray(tokens, np.int64), 0.0)])


@given(st.integers(0, 199), st.data())
@settings(max_examples=150, deadline=None)
def test_corrupted_solutions_are_judged_as_by_the_definition(row, data):
    examples = FOUR.held_out()
    problem, tokens = FOUR.decode(examples.prompt(row)), examples.answer(row).tolist()
    places = st.integers(0, len(tokens) - 1)
    written = st.sampled_from([*tokens, *examples.prompt(row).tolist()])
    kind = data.draw(st.sampled_from(["replace", "exchange", "operands", "repair", "cut", "prolong", "equations"]))
    place = data.draw(places)
    if kind in ("replace", "prolong"):
        new = data.draw(st.one_of(written, st.integers(0, len(FOUR.vocab) - 1), st.integers(0, 100)))
        tokens = [*tokens, new] if kind == "prolong" else [*tokens[:place], new, *tokens[place + 1 :]]
    elif kind == "exchange":
        other = data.draw(places)
        tokens[place], tokens[other] = tokens[other], tokens[place]
    elif kind == "cut":
        tokens = tokens[:place]
    elif kind == "equations":  # may be right still
        tokens = [*tokens[6:11], FOUR.comma, *tokens[:5], *tokens[11:]]
    else:
        step = 6 * (place // 6)
        tokens[step], tokens[step + 2] = tokens[step + 2], tokens[step]  # right still if the order does not matter
        if kind == "repair":  # the equation holds again; what it makes may be missed later
            text = FOUR.decode(tokens[step : step + 3])
            a, b = map(int, re.findall(r"\d+", text))
            results = {a + b, a - b, a * b, a // max(b, 1)}
            made = [result for result in results if equation_holds(f"{text}={result}", 10_000)]
            tokens[step + 4] = made[0] if made else tokens[step + 4]
    solution = FOUR.decode(tokens)
    scores = one(examples, row, tokens)
    assert scores["accuracy"] == solves(problem, solution, 10_000), solution
    for step in range(3):
        equation = FOUR.decode(tokens[6 * step : 6 * step + 5])
        assert scores[f"equation_{step + 1}_valid"] == equation_holds(equation, 10_000), solution
    assert scores["reaches_target"] == (tokens[16:17] == [FOUR.encode(problem)[8]])


@given(st.integers(0, 199), st.lists(st.integers(0, len(FOUR.vocab) - 1), max_size=25))
@settings(max_examples=100, deadline=None)
def test_garbage_is_wrong_and_does_no_harm(row, tokens):
    scores = one(FOUR.held_out(), row, tokens)
    assert scores["accuracy"] == solves(FOUR.decode(FOUR.held_out().prompt(row)), FOUR.decode(tokens), 10_000)


# Problem and answer, then accuracy, equations 1 to 3, legal operands, target reached
JUDGED = [
    ("14,83,88,91,23", "83-14=69,91-88=3,69/3=23", "111111"),
    ("14,83,88,91,23", "91-88=3,83-14=69,69/3=23", "111111"),  # another order
    ("14,83,88,91,23", "14-83=69,91-88=3,69/3=23", "001111"),  # operands the wrong way round
    ("14,83,88,91,23", "83-14=69,91-88=3,69/3=22", "011010"),  # a wrong result
    ("14,83,88,91,23", "83-14=69,91-88=3,20+3=23", "011101"),  # an operand out of nowhere
    ("14,83,88,91,69", "83-14=69,91-88=3,69+0=69", "011101"),  # an input is left over
    ("14,83,88,91,0", "83-14=69,83-14=69,69-69=0", "011101"),  # inputs used twice
    ("3,3,88,91,23", "3+3=6,91-88=3,20+3=23", "011101"),
    ("3,3,5,2,11", "3+3=6,5*2=10,10-6=4", "011110"),  # not the target
    ("3,3,5,2,16", "3+3=6,5*2=10,6+10=16", "111111"),  # the same number twice is two inputs
    ("3,4,5,2,16", "3+3=6,5*2=10,6+10=16", "011101"),
    ("7,2,5,2,16", "7/2=3,5*2=10,3+10=13", "001110"),  # a division with a rest
    ("7,7,5,2,3", "7-7=0,5/0=0,0+2=2", "010110"),  # a division by nothing
    ("7,7,5,2,2", "7-7=0,0/5=0,0+2=2", "111111"),
    ("99,98,97,96,9", "99*98=9702,9702*97=941094,0+9=9", None),  # has no token
]


@pytest.mark.parametrize(("problem", "answer", "verdict"), JUDGED)
def test_known_answers_are_judged(problem, answer, verdict):
    if verdict is None:
        with pytest.raises(ValueError, match="941094 is above 10000, the largest number with a token"):
            FOUR.encode(answer)
        return
    prompt = FOUR.encode(problem + "|")
    examples = Examples(np.append(prompt, np.zeros(17, np.int64))[None], np.array([34]), np.array([17]))
    scores = one(examples, 0, FOUR.encode(answer))
    names = ["accuracy", "equation_1_valid", "equation_2_valid", "equation_3_valid", "legal_operands", "reaches_target"]
    assert "".join(str(int(scores[name])) for name in names) == verdict
    assert scores["accuracy"] == solves(problem, answer, 10_000)
    assert scores["all_equations_valid"] == (verdict[1:4] == "111")


def test_results_above_the_largest_number_do_not_hold():
    equations = np.array([[[100, 2, 100, 10_000], [101, 2, 100, 10_100], [5, 0, 6, 11]]])
    assert holds(equations, 10_000).tolist() == [[True, False, True]]


# Drawn problems


@pytest.mark.parametrize("numbers", [2, 3, 4, 6])
def test_drawn_problems_are_solved_by_their_solutions(numbers):
    fields = {"numbers": numbers, "largest_input": 20, "highest_target": 20, "largest": 90}
    small = task(**fields, held_out_problems=1)
    examples = small.sample(np.random.default_rng(numbers), 500)
    for row in range(500):
        problem, _, solution = small.decode(examples.tokens[row]).partition("|")
        assert solves(problem, solution, 90)
        assert problem.count(",") == numbers
        assert max(map(int, problem.split(",")[:-1])) <= 20


def test_every_target_is_drawn_as_often_and_places_tell_nothing():
    fresh = task(largest_input=20, lowest_target=10, highest_target=19, largest=500)
    tokens = fresh.sample(np.random.default_rng(0), 20000).tokens
    assert set(tokens[:100, 8]) == set(fresh.targets)  # the first ones are as good as any
    counts = np.bincount(tokens[:, 8], minlength=20)
    assert set(np.flatnonzero(counts)) == set(fresh.targets)
    assert len(fresh.targets) == 9
    np.testing.assert_allclose(counts[fresh.targets] / 20000, 1 / 9, atol=0.01)
    different = np.array([len(set(row)) == 4 for row in tokens[:, :8:2].tolist()])
    first_used = (tokens[different][:, :8:2] == tokens[different][:, 17:18]).argmax(axis=1)
    np.testing.assert_allclose(np.bincount(first_used) / different.sum(), 1 / 4, atol=0.02)
    operators = np.bincount(tokens[:, fresh.config.prompt_length + 1] - fresh.plus, minlength=4)
    assert operators.min() > 500


def test_all_operators_that_may_be_used_are_alike():
    """6 and 3 become 9, 3, 18 or 2; 6 and 4 become 10, 2 or 24."""
    drawn = draw(np.random.default_rng(0), 40000, 2, largest_input=6, largest=24, targets=np.arange(25))
    for inputs, made in (([3, 6], [9, 3, 18, 2]), ([4, 6], [10, 2, 24])):
        of_these = drawn.targets[(np.sort(drawn.inputs, axis=1) == inputs).all(axis=1)]
        shares = np.bincount(of_these, minlength=25)[made] / len(of_these)
        np.testing.assert_allclose(shares, 1 / len(made), atol=0.05)
    commuted = drawn.equations[drawn.equations[:, 0, 1] == 0]
    left, right = commuted[:, 0, 0], commuted[:, 0, 2]
    assert abs((left > right).sum() / (left != right).sum() - 0.5) < 0.03


def key(row, of):
    return (*sorted(of.tokens[row, :8:2].tolist()), int(of.tokens[row, 8]))


@pytest.mark.parametrize("fixed", [None, 30_000])
def test_training_has_neither_held_out_problems_nor_held_out_targets(fixed):
    # Few inputs, so that most problems of the test would be met in training by chance.
    few = task(largest_input=8, lowest_target=3, highest_target=12, largest=100, training_problems=fixed)
    trained = few.training()[:] if fixed else few.sample(np.random.default_rng(1), 30_000)
    assert len(trained) == 30_000
    held_out, unseen = few.held_out(), few.held_out_by("targets", "held-out")
    seen = {key(row, trained) for row in range(len(trained))}
    assert not seen & {key(row, held_out) for row in range(len(held_out))}
    assert len(seen) > 1000
    (value,) = few.unseen_targets
    assert (unseen.tokens[:, 8] == value).all()
    assert value not in trained.tokens[:, 8]
    assert value not in held_out.tokens[:, 8]
    assert set(held_out.tokens[:, 8]) == set(few.targets) == set(trained.tokens[:, 8])
    assert value in task(largest_input=8, lowest_target=value, highest_target=value, held_out_targets=0).targets
    assert few.notes == [f"countdown: the held-out targets are {value}"]
    np.testing.assert_array_equal(few.held_out_by("targets", "held-out", 3).tokens, unseen.tokens[:3])


def test_the_share_of_held_out_targets_is_the_published_one():
    assert (len(FOUR.unseen_targets), len(FOUR.targets)) == (9, 82)
    assert not set(FOUR.unseen_targets) & set(FOUR.targets)
    assert set(task(data_seed=1).unseen_targets) != set(FOUR.unseen_targets)
    assert len(task(held_out_targets=0.001).unseen_targets) == 1  # a share above nothing is at least one


def test_sets_that_there_are_not_are_named():
    with pytest.raises(ValueError, match=r"no held-out set `targets` seen: the others are `targets` held-out"):
        FOUR.held_out_by("targets", "seen")
    with pytest.raises(ValueError, match=r"has no held-out targets: its task\.held_out_targets is 0"):
        SMALL.held_out_by("targets", "held-out")


# Text and files


def test_the_published_line_is_read_and_written():
    tokens = FOUR.encode(PUBLISHED)
    assert len(tokens) == FOUR.context == 34
    assert tokens[:17].tolist() == [14, 10006, 83, 10006, 88, 10006, 91, 10006, 23, *[10007] * 8]
    assert tokens[17:23].tolist() == [83, 10002, 14, 10005, 69, 10006]
    assert FOUR.decode(tokens) == PUBLISHED
    np.testing.assert_array_equal(FOUR.encode(" 14, 083,88,91,23 | "), tokens[:17])  # as a person writes a prompt
    np.testing.assert_array_equal(FOUR.encode("14,83,88,91,23" + "|" * 8), tokens[:17])
    with pytest.raises(ValueError, match="unknown symbol 'x'"):
        FOUR.encode("14x3")


NO_BARS = st.lists(st.one_of(st.integers(0, 20), st.integers(9_990, FOUR.bar - 1)), max_size=12)


@given(NO_BARS, st.integers(2, 12))
@settings(max_examples=100, deadline=None)
def test_any_tokens_come_back_from_their_text(tokens, bars):
    tokens = [*tokens, *[FOUR.bar] * bars]
    assert FOUR.encode(FOUR.decode(tokens)).tolist() == tokens


def test_files_round_trip(tmp_path):
    examples = FOUR.held_out(50)
    path = tmp_path / "problems.txt"
    path.write_text("\n".join(FOUR.decode(row) for row in examples.tokens) + "\n")
    for name in ("tokens", "lengths", "prompt_lengths"):
        np.testing.assert_array_equal(getattr(FOUR.read(path), name), getattr(examples, name))


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("14,83,88,91,23", "not of the form 14,83,88,91,23"),
        ("14,83,88,91,23||83-14=69,91-88=3,69/3=23", "not of the form"),
        ("14,83,88,91,23|83-14=69,91-88=3,69/-3=23", "not of the form"),
        ("14,83,88,23|83-14=69,69-3=23", "3 inputs, but task.numbers is 4: set it to that number"),
        ("14,83,88,91,23|83-14=69,91-88=3", "4 inputs need 3 equations, not 2"),
        ("14,83,88,91,23|83-14=69,91-88=4,69/3=23", "equation 2, 91-88=4, does not hold"),
        ("14,83,88,91,23|83-14=69,91-88=3,46/2=23", "equation 3, 46/2=23, uses a number that is not available"),
        ("14,83,88,91,24|83-14=69,91-88=3,69/3=23", "the solution ends in 23, but the target is 24"),
        ("14,83,88,91,23|83*914=75862,91-88=3,69/3=23", "75862 is above 10000, the largest number with a token"),
    ],
)
def test_bad_lines_are_named(tmp_path, line, what):
    path = tmp_path / "problems.txt"
    path.write_text(f"{PUBLISHED}\n\n{line}\n{PUBLISHED}\n14,83,88,91,24|83-14=69,91-88=3,69/3=23\nx\n")
    with pytest.raises(ValueError, match=re.escape(f"{path}:3: {what}")) as error:
        FOUR.read(path)
    assert str(error.value).endswith("(and 2 more such lines)")


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"numbers": 1}, "task.numbers must be at least 2, not 1"),
        ({"lowest_target": 50, "highest_target": 49}, "targets from 50 to 49 are impossible"),
        ({"lowest_target": -1}, "targets from -1 to 100 are impossible"),
        ({"largest": 99}, "targets from 10 to 100 are impossible"),
        ({"largest": 98}, "task.largest_input must lie between 1 and task.largest, which is 98"),
        ({"largest_input": 0}, "task.largest_input must lie between"),
        ({"pauses": 0}, "task.pauses must be at least 1"),
        ({"training_problems": 0}, "must be at least 1"),
        ({"held_out_problems": 0}, "must be at least 1"),
        ({"held_out_targets": 1.0}, "at least 0 and below 1, not 1.0"),
        ({"held_out_targets": 0.999}, "leaves no target to train on"),
        ({"lowest_target": 10, "highest_target": 10}, "leaves no target to train on"),
    ],
)
def test_impossible_settings_are_refused(fields, what):
    with pytest.raises(ValueError, match=re.escape(what)):
        CountdownConfig(**fields)


def test_targets_that_cannot_be_made_are_named():
    unreachable = task(numbers=2, largest_input=5, lowest_target=23, highest_target=24, held_out_targets=0)
    with pytest.raises(ValueError, match=r"of 2 numbers up to 5 with the target 2[34] was found to train on"):
        unreachable.sample(np.random.default_rng(0), 10)


# World


def brute_legal(problem, so_far, numbers, largest):
    written = [SMALL.encode(text[1:]).tolist() for text in solutions(numbers, largest)]
    return {tokens[len(so_far)] for tokens in written if tokens[: len(so_far)] == so_far and len(tokens) > len(so_far)}


THREE = st.lists(st.integers(0, 60), min_size=3, max_size=3)


@given(THREE, st.lists(st.integers(0, 10**6), max_size=11), st.booleans())
@settings(max_examples=150, deadline=None)
def test_legal_tokens_are_those_of_some_solution(numbers, choices, stray):
    prompt = SMALL.encode(f"{','.join(map(str, numbers))},7|").tolist()
    answer = []
    for choice in choices:
        legal = SMALL.legal(np.array(prompt + answer)).tolist()
        assert set(legal) == brute_legal(prompt, answer, numbers, 60)
        assert len(set(legal)) == len(legal)
        if not legal:
            break
        answer.append(legal[choice % len(legal)])
    if stray and answer:
        answer[-1] = (answer[-1] + 1) % len(SMALL.vocab)
        assert set(SMALL.legal(np.array(prompt + answer)).tolist()) == brute_legal(prompt, answer, numbers, 60)


def test_legal_tokens_of_the_prompt_are_those_of_its_form():
    prompt = SMALL.encode("4,5,6,7|")
    for place in range(len(prompt)):
        legal = SMALL.legal(prompt[:place]).tolist()
        assert prompt[place] in legal
        assert legal == (list(range(61)) if place in (0, 2, 4, 6) else [prompt[place]])
    assert len(SMALL.legal(np.array([SMALL.comma]))) == 0
    assert len(SMALL.legal(np.array([3, 3]))) == 0


def test_labels_say_which_inputs_and_results_are_left():
    lines = ["14,83,88,91,23|83-14=69,91-88=3,69/3=23", "7,7,3,21,63|7*3=21,21-7=14,21*14=294"]
    examples = Examples.of([FOUR.encode(line) for line in lines], [17, 17])
    one, other = FOUR.labels(examples)
    for labels in (one, other):
        assert (labels[:16] == -1).all()
        stretches = labels[16:21], labels[21:27], labels[27:33], labels[33:]  # from one result to before the next
        assert [len(set(stretch.tolist())) for stretch in stretches] == [1, 1, 1, 1]
    bits = {"14": 1, "83": 2, "88": 4, "91": 8, "69": 16, "3": 32, "23": 64}
    there = [{"14", "83", "88", "91"}, {"88", "91", "69"}, {"69", "3"}, {"23"}]
    assert one[[16, 21, 27, 33]].tolist() == [sum(bits[name] for name in names) for names in there]
    # Of the two sevens the first is used first; of the two 21s the result, which stands where the 3 stood.
    assert other[[16, 21, 27, 33]].tolist() == [1 | 2 | 4 | 8, 2 | 8 | 16, 8 | 32, 64]


def test_used_numbers_leave_the_pool_once_each():
    found = pools(np.array([[3, 3, 5]]), np.array([[[3, 0, 3, 6], [6, 0, 5, 11]]]))
    assert found.numbers.tolist() == [[[3, 3, 5], [-1, 5, 6], [-1, -1, 11]]]
    assert found.available.all()
    assert not pools(np.array([[3, 4, 5]]), np.array([[[3, 0, 3, 6], [6, 0, 5, 11]]])).available[0, 0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("14,83,88,91|", "a prompt is 4 inputs and the target, separated by commas, and a bar, not"),
        ("14,83,88,91,23", "and a bar, not"),
        ("14,83,88,91,23|83-14=68,", "no correct solution begins with '83-14=68,'"),
        ("14,83,88,91,23|83-15", "no correct solution begins with '83-15'"),
    ],
)
def test_prompts_that_no_right_solution_begins_with_are_refused(text, message):
    with pytest.raises(ValueError, match=message):
        FOUR.with_goal(FOUR.encode(text), np.empty(0, np.int64))
    for fine in ("14,83,88,91,23|", "14,83,88,91,23|83-14=69,91-"):
        prompt, goal = FOUR.with_goal(FOUR.encode(fine), np.empty(0, np.int64))
        assert (FOUR.decode(prompt), goal) == (fine, None)


# From the command line


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    few = ["--trainer.steps=2", "--task.held_out_problems=30", "--trainer.evaluate_num=10"]
    assert main(["train", "countdown-small", *SMALL_RUN, *few, "--out", str(folder)]) == 0
    return folder


def test_evaluate_asks_for_held_out_targets(capsys, run):
    usual = Run(run).report("evaluation")
    code, out, err = called(capsys, "evaluate", run, "--targets", "held-out", "--num", 7, "--json")
    assert code == 0, err
    assert "the held-out targets are" in err
    assert json.loads(out)["num"] == 7
    assert called(capsys, "evaluate", run, "--targets=held-out")[0] == 0
    kept = Run(run).report("evaluation-targets-held-out")
    assert kept["num"] == 30
    assert kept["samples"][0]["prompt"] not in {sample["prompt"] for sample in usual["samples"]}
    assert Run(run).report("evaluation") == usual
    assert Run(run).report("evaluation-targets-held-out-first-7")["num"] == 7


def test_sets_that_cannot_be_evaluated_are_refused(capsys, run, tmp_path):
    for words, message in [
        (["--targets", "seen"], "no held-out set --targets seen: the others are --targets held-out"),
        (["--targets", "held-out", "--data", "x"], "--data and --targets both choose what to evaluate on"),
        (["--targets", "held-out", "--fills", "x"], "omit --data, --num and other sets"),
        (["--target", "held-out"], "did you mean --targets"),
        (["--targets"], "expected one argument"),
    ]:
        code, _, err = called(capsys, "evaluate", run, *words)
        assert code == 2
        assert message in err
    assert not Run(run).report("evaluation-targets-seen")
    star = tmp_path / "star"
    words = ["--task.held_out_graphs=10", "--trainer.steps=1", "--out", star]
    assert called(capsys, "train", "path-star-small", *SMALL_RUN, *words)[0] == 0
    code, _, err = called(capsys, "evaluate", star, "--targets", "held-out")
    assert code == 2
    assert "the task of this run has no held-out set --targets held-out: it has only the default one" in err


def test_a_person_may_write_a_prompt_with_one_bar(capsys, run):
    prompt = "4,5,6,15|"
    code, out, err = called(capsys, "generate", run, "--prompt", prompt)
    assert code == 0, err
    task = load_model(run).task
    assert len(task.encode(prompt + out)) == len(task.encode(prompt)) + 11  # as many tokens as two equations have
