"""The commands analyze, with its probes, and embed."""

import hashlib
import json
from dataclasses import dataclass

import numpy as np
import pytest
from command_line import called
from doubles import SMALL_RUN, small_stories

from statewise.analysis.base import Analysis, Findings
from statewise.cli import main
from statewise.config.recipes import recipe_text
from statewise.decoding.predictor import Fetcher, require
from statewise.model.model import load_model, new_model
from statewise.model.recipes import read_recipe
from statewise.objectives.predictors import CausalPredictor
from statewise.run import Run

PROBE = ["--steps=5", "--training_sequences=40", "--sequences=20"]
GRAPH = "0,1|1,2|0,3|3,4|0,5|5,6/0,2="


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Four steps, checkpoints at 2 and 4."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    flags = ["--task.held_out_graphs=40", "--trainer.steps=4", "--trainer.checkpoint_every=2", "--trainer.keep=every:2"]
    assert main(["train", "path-star-small", *SMALL_RUN, *flags, "--trainer.precision=fp32", "--out", str(folder)]) == 0
    return folder


@pytest.fixture
def graphs(run, tmp_path):
    task = load_model(run).task
    path = tmp_path / "graphs.txt"
    path.write_text("".join(f"{line}\n" for line in task.lines(task.held_out(7))))
    return path


def test_probes_of_several_checkpoints_leave_every_number_and_a_picture(capsys, run):
    words = ["analyze", run, "future-probe", *PROBE, "--checkpoint", "4", "--checkpoints", "all"]
    code, out, _ = called(capsys, *words)
    assert code == 0
    assert "accuracy_untrained" in out
    report = Run(run).report("future-probe-checkpoint-4")
    assert report["settings"] == {
        "probe": "mlp",
        "hidden": 128,
        "steps": 5,
        "batch_size": 256,
        "learning_rate": 0.01,
        "seed": 0,
        "sequences": 20,
        "training_sequences": 40,
        "checkpoints": "all",
        "layer": None,
        "offsets": None,
        "positions": 8,
    }
    assert [line["step"] for line in report["details"]["lines"]] == [2, 4, None, None, None]
    assert [panel["x_title"] for panel in report["panels"]][2] == "training step"
    assert (run / "reports" / "future-probe-checkpoint-4.png").read_bytes().startswith(b"\x89PNG")
    assert called(capsys, "analyze", run, "prompt-probe", *PROBE)[1].count("positions with the same token") == 1


def test_states_are_computed_once(capsys, run, monkeypatch):
    words = ["analyze", run, "future-probe", *PROBE, "--seed", "5", "--json"]
    first = called(capsys, *words)[1]
    kept = {path: path.stat().st_mtime_ns for path in (run / "cache").iterdir()}
    asked = []
    states = CausalPredictor.states
    monkeypatch.setattr(CausalPredictor, "states", lambda self, batch: asked.append(1) or states(self, batch))
    assert called(capsys, *words)[1] == first
    assert not asked
    assert {path: path.stat().st_mtime_ns for path in (run / "cache").iterdir()} == kept
    called(capsys, *words, "--sequences", "21")  # other examples
    assert asked
    asked.clear()
    for path in kept:
        path.write_bytes(path.read_bytes()[:50])  # torn: made again
    assert called(capsys, *words)[1] == first
    assert asked


@dataclass
class NoOptions:
    """The options of an analysis without any."""


def test_the_untrained_control_is_another_model_of_the_same_recipe(run):
    found = {}

    class Look(Analysis):
        def analyze(self, subject):
            examples = subject.task.held_out(3)
            from statewise.tasks.batches import collate

            others = [load() for _, load in subject.checkpoints("all")]
            for model in (subject.snapshot, subject.untrained(), *others):
                found[model.label] = model.predictor.states(collate(examples)).state.numpy()
            return Findings({}, [], verdict="Seen.")

    model = load_model(run, "4")
    model.analyze(Look(NoOptions()))
    assert list(found) == ["step 4", "new model", "step 2"]  # step 4 came twice
    states = list(found.values())
    assert states[0].shape == states[1].shape == states[2].shape
    assert len({state.tobytes() for state in states}) == 3
    np.testing.assert_array_equal(
        found["step 4"],
        model.states(model.batch(list(model.task.lines(model.task.held_out(3))))).state.detach().numpy(),
    )


@pytest.mark.parametrize("share", [0.4, 0.5])
def test_the_untrained_control_is_where_the_model_is(share):
    """Streams that have parted in the one have parted in the other."""
    flags = ["--backbone=two_stream", "--backbone.window=2", "--backbone.separate_from=0.5"]
    model = new_model(read_recipe(recipe_text("path-star-small"), [*SMALL_RUN, *flags]))
    model.objective.set_progress(share)

    class Look(Analysis):
        def analyze(self, subject):
            streams = tuple(require(one.predictor, Fetcher).streams for one in (subject.snapshot, subject.untrained()))
            return Findings({}, [], {"streams": streams}, verdict="Seen.")

    streams = ("input", "prediction") if share == 0.5 else ("input",)
    assert model.analyze(Look(NoOptions())).details["streams"] == (streams,) * 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["future-probe", "--checkpoint", "3"], "no checkpoint of step 3; it has 2 and 4"),
        (["future-probe", "--checkpoints", "2,3"], "no checkpoint of step 3; it has 2 and 4"),
        (["future-probe", "--checkpoints", "some"], "must be last, best or a step, not 'some'"),
        (["future-probe", "--offsets", "1-4"], "choose offsets up to 3"),
        (["future-probe", "--offsets", "9223372036854775807"], "numbers like 1,2,4 below 1,000,000"),
        (["future-probe", "--offsets", "1-100000000000"], "numbers like 1,2,4 below 1,000,000"),
        (["future-probe", "--offsets", "1-999999"], "no token is 999999 positions after a state: choose offsets up to"),
        (["future-probe", "--layer", ""], "the layer's name is empty"),
        (["future-probe", "--training_sequences", "5"], "training_sequences must be at least 10"),
        (["future-probe", "--probe", "deep"], "probe: expected one of"),
        (["future-prob"], "did you mean future-probe"),
    ],
    ids=" ".join,
)
def test_mistakes_in_probes(capsys, run, words, message):
    few = [] if "--training_sequences" in words else PROBE
    code, out, err = called(capsys, "analyze", run, *words, *few)
    assert code == 2
    assert message in err
    assert "Traceback" not in out + err


def test_embed_writes_a_vector_a_sequence(capsys, run, graphs, tmp_path):
    out = tmp_path / "beliefs.npy"
    code, said, _ = called(capsys, "embed", run, graphs, "--out", out, "--checkpoint", "2")
    assert code == 0
    assert "7 sequences, 7 vectors of 16" in said
    model = load_model(run, "2")
    lines = graphs.read_text().splitlines()
    expected = model.states(lines).state.detach().numpy()
    np.testing.assert_allclose(np.load(out, allow_pickle=False), expected[:, -1], atol=1e-6)
    facts = json.loads((tmp_path / "beliefs.npy.json").read_text())
    assert (facts["shape"], facts["checkpoint"], facts["run"]) == ([7, 16], 2, str(run.resolve()))
    assert facts["input_sha256"] == hashlib.sha256(graphs.read_bytes()).hexdigest()

    assert (
        called(capsys, "embed", run, graphs, "--out", out, "--positions", "prompt", "--checkpoint", "2", "--overwrite")[
            0
        ]
        == 0
    )
    np.testing.assert_allclose(np.load(out), expected[:, 20], atol=1e-6)
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("".join(line.partition("=")[0] + "=\n" for line in lines))
    assert called(capsys, "embed", run, prompts, "--prompts", "--out", out, "--checkpoint", "2", "--overwrite")[0] == 0
    np.testing.assert_allclose(np.load(out), expected[:, 20], atol=1e-6)

    assert (
        called(capsys, "embed", run, graphs, "--out", out, "--positions", "all", "--checkpoint", "2", "--overwrite")[0]
        == 0
    )
    np.testing.assert_allclose(np.load(out), expected.reshape(-1, 16), atol=1e-6)
    assert np.load(tmp_path / "beliefs.offsets.npy").tolist() == list(range(0, 7 * 24 + 1, 24))
    facts = json.loads((tmp_path / "beliefs.npy.json").read_text())
    assert (facts["offsets"], facts["index"], facts["left_out"]) == ("beliefs.offsets.npy", "beliefs.index.npy", [])
    index = np.load(tmp_path / "beliefs.index.npy")
    assert index.tolist() == [[sequence, position] for sequence in range(7) for position in range(24)]


def test_embed_says_what_it_left_out_and_whose_each_vector_is(capsys, tmp_path):
    (tmp_path / "stories.txt").write_text(small_stories(60))
    small = ["--task.vocabulary=300", "--task.context=64", "--objective=belief_state", "--trainer.steps=1"]
    train = ["train", "stories-small", f"--task.path={tmp_path / 'stories.txt'}", *small, *SMALL_RUN]
    assert main([*train, "--out", str(tmp_path / "run")]) == 0
    short, long = "Ann ran.", "They ran. " * 40
    told = tmp_path / "told.txt"
    told.write_text("".join(f"{text}\n<|endoftext|>\n" for text in (long, short, "", f"{short} {short}", long)))
    out = tmp_path / "beliefs.npy"
    code, said, _ = called(capsys, "embed", tmp_path / "run", told, "--out", out)
    assert code == 0
    assert "left out: 3 of 5 sequences" in said
    model = load_model(tmp_path / "run")
    tokens = [len(model.task.encode(text)) for text in (long.strip(), short, f"{short} {short}")]
    assert f"  line 1: {tokens[0]} tokens, more than 62\n  line 6: empty\n  line 9: {tokens[0]} tokens" in said
    # the last token of each is the end of the text
    assert np.load(tmp_path / "beliefs.index.npy").tolist() == [[1, tokens[1]], [3, tokens[2]]]
    facts = json.loads((tmp_path / "beliefs.npy.json").read_text())
    assert [one["sequence"] for one in facts["left_out"]] == [0, 2, 4]
    assert facts["left_out"][1] == {"sequence": 2, "line": 6, "why": "empty"}
    whole = model.embed(told, positions="all", of="suffix")
    assert len(whole.vectors) == len(whole.index)
    for row, (sequence, position) in enumerate(whole.index.tolist()):
        assert row == whole.offsets[[1, 3].index(sequence)] + position
    alone = model.embed(told, of="suffix")
    np.testing.assert_allclose(alone.vectors, whole.vectors[whole.offsets[:-1]], atol=1e-6)
    assert alone.index.tolist() == [[1, 0], [3, 0]]


def test_embed_has_a_face_in_the_library(run, graphs):
    model = load_model(run)
    found = model.embed(graphs, positions="all")
    assert found.vectors.shape == (7 * 24, 16)
    assert found.offsets[-1] == 7 * 24


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        (f"{GRAPH}0,1,2\n{GRAPH}0,1\n", [], ":2: "),
        (f"{GRAPH}0,1,2\n", ["--of", "suffix"], "reads backwards as well: such models, with default fields, have"),
        (f"{GRAPH}0,1,2\n", ["--checkpoint", "9"], "no checkpoint of step 9"),
        (f"{GRAPH}\n1|x\n", ["--prompts"], ":2: unknown symbol 'x'"),
        (f"{GRAPH}\n{GRAPH}0,1,2,3,4\n", ["--prompts"], ":2: 26 tokens, but there must be 1 to 24"),
        ("\n", ["--prompts"], "the file is empty"),
        (f"{GRAPH}0,1,2\n", ["--positions", "first"], "invalid choice: 'first'"),
    ],
)
def test_mistakes_in_embed(capsys, run, tmp_path, text, words, message):
    path = tmp_path / "graphs.txt"
    path.write_text(text)
    code, out, err = called(capsys, "embed", run, path, "--out", tmp_path / "x.npy", *words)
    assert code == 2
    assert message in err
    assert "Traceback" not in out + err
    assert [left.name for left in tmp_path.iterdir()] == ["graphs.txt"]


def test_embed_says_where_it_cannot_write(capsys, run, graphs, tmp_path):
    assert "must end in .npy" in called(capsys, "embed", run, graphs, "--out", tmp_path / "x.txt")[2]
    assert "there is no folder" in called(capsys, "embed", run, graphs, "--out", tmp_path / "none" / "x.npy")[2]
    assert "none.txt: No such file" in called(capsys, "embed", run, "none.txt", "--out", tmp_path / "x.npy")[2]
