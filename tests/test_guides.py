"""Every command of every guide is run in the order of its page, and does what it is for.

Trainings are a few steps of tiny models, so that of the output that a page shows only the words are compared, not the
figures. `pytest tests/test_guides.py -m slow` runs the pages that take longer, and, as they stand, the recipes whose
figures the pages show.
"""

import gzip
import json
import os
import re
import shutil
from fnmatch import fnmatch
from glob import glob
from pathlib import Path

import numpy as np
import pytest
import yaml
from doubles import small_stories
from pages import Shown, blocks, commands, example, guides, page, run_code

from statewise import beliefs
from statewise.cli import main
from statewise.model.model import load_model
from statewise.run import Run
from statewise.tasks import TASKS

NOT_RUN = {
    "--on slurm": "needs a cluster (tests/experiments/test_cluster.py has one of our own)",
    "status runs/g55": "the jobs of that cluster",
    "--trainer.devices 8": "needs eight GPUs",
    "judge ": "asks a language model on a server (tests/evaluation/judging)",
    "serve ": "does not end (tests/deploy/serving)",
    " demo": "does not end (tests/cli/test_demo.py)",
    "doctor ": "tests/cli/test_doctor.py",
    "completion ": "tests/cli/test_completion.py",
    "playground ": "does not end (tests/deploy/playground), but for --export",
    "lm-eval ": "fetches benchmarks (tests/evaluation/zero_shot)",
    "--hub ": "fetches a dataset (tests/tasks/corpus)",
    "--from DIR": "needs the published map (tests/tasks/manhattan/test_task.py)",
    "maps/manhattan": "needs the published map",
    "--tokenizer gpt2:DIR": "needs the published tokenizer (tests/tasks/corpus)",
    "runs/theirs": "needs a published checkpoint (tests/deploy/export/test_sps_checkpoint.py)",
    "train two-stream-xl": "needs GPUs",
    "train fineweb-edu": "needs GPUs",
    "hf:MODEL": "needs a model of Hugging Face (tests/backbones/test_hf.py)",
    "--backbone.model MODEL": "needs a model of Hugging Face",
    "export runs/tuned": "needs a model of Hugging Face",
    "export tuned ": "needs a model that TRL tuned (tests/deploy/export/test_llama_cpp.py)",
    "leaks MODEL": "needs a model of Hugging Face (tests/deploy/test_leaks.py)",
    "suite ": "takes hours (tests/cli/test_suite.py has a small one)",
    "runs/suite": "the runs of that suite",
    "strips ": "tests/test_docs.py, tests/cli/test_strips.py",
    "arc_easy:": "needs the figures of benchmarks (tests/reporting)",
}
"""Parts of commands that this file does not run, with the reason, and the tests that run such commands."""
ELSEWHERE = {
    "docs/adding-a-backbone.md": "tests/test_docs.py",
    "docs/adding-an-analysis.md": "tests/test_docs.py",
    "docs/adding-an-objective.md": "tests/test_docs.py",
    "docs/strips.md": "tests/test_docs.py, tests/cli/test_strips.py",
    "docs/suites.md": "tests/cli/test_suite.py",
}
"""Pages whose commands need files of the page, and the tests that run them."""

TINY = [
    "--trainer.steps=3",
    "--trainer.batch_size=8",
    "--trainer.precision=fp32",
    "--backbone.width=16",
    "--backbone.layers=1",
]
FEW = {
    "path-star": ["--task.held_out_graphs=20"],
    "hmm": ["--task.held_out_sequences=20", "--task.length=6"],
    "pomdp": ["--task.held_out_sequences=20", "--task.steps=3"],
    "countdown": ["--task.held_out_problems=40"],
    "city": ["--task.held_out_rides=10"],
    "recall": ["--task.held_out_sequences=20"],
    "text": ["--task.context=128"],
    "stories": ["--task.vocabulary=300", "--task.context=64", "--task.prompt_length=8", "--task.goal_length=10"],
    "automaton": ["--task.held_out_sequences=20"],
    "s3": ["--task.held_out_sequences=20"],
    "parity": ["--task.held_out_sequences=20"],
    "flip": ["--task.held_out_sequences=20"],
}
"""Fields of small data, by the beginnings of recipes."""
QUICK = {
    "future-probe": ["--training_sequences=40", "--steps=4"],
    "prompt-probe": ["--training_sequences=40", "--steps=4"],
    "world-probe": ["--training_sequences=40", "--steps=4"],
    "compression": ["--trials=3"],
    "distinction": ["--trials=3"],
    "inductive-bias": ["--datasets=3", "--examples=20", "--training_sequences=100", "--sequences=100"],
    "belief-dynamics": ["--sequences=20"],
    "rollout-drift": ["--sequences=10"],
    "detours": ["--probabilities=0.5"],
    "gradient-ratio": ["--furthest=4", "--sequences=2"],
    "restricted-state": ["--keep=2"],
}
"""Options of small analyses, by name."""
NAMED = {
    **{"FILE_OR_DIR": "books/", "FILES": "books/", "bpe:4096": "bpe:300"},
    **dict.fromkeys(("events.csv", "june.csv", "may.csv"), "FILE"),
}
"""What stands for the user's own in commands."""
STORIES = "stories-small --task.path stories.txt"
LATENT, BELIEF = (f"path-star-demo --objective {objective}" for objective in ("next_latent", "belief_state"))
LETTERS = "sequences-small --task.path letters.txt"
NEEDED = {
    "docs/activations.md": {"nl": "path-star-demo --objective next_latent --backbone.layers 2"},
    "docs/commands.md": {
        "hmm": "hmm-mess3",
        "city": "city-small --task.rows 5 --task.columns 5",
        "s3": "s3 --task.length 8 --task.longest 32 --backbone gpt --objective next_latent",
        "bst": f"{LETTERS} --objective belief_state",
        "y": "my.yaml --seed 2",
        "stories": f"{STORIES} --objective belief_state --objective.min_gap 1",
        "referee": STORIES,
    },
    "docs/interop.md": {"nl": LATENT, "bst": BELIEF},
    "docs/leaks.md": {"nl": LATENT},
    "docs/playground.md": {
        f"demo/{name}": f"path-star-demo --objective {name.replace('-', '_')}"
        for name in ("next-token", "next-latent", "belief-state")
    },
    "docs/probes.md": {
        "nl": LATENT,
        "bst": BELIEF,
        "stories": f"{STORIES} --objective next_latent",
        "ff": "s3 --task.length 8 --task.longest 8 --backbone gpt",
    },
    "docs/recipes.md": {"fan_in-muon": "path-star-g2-4 --seeds 1-2"},
    "docs/quick-start.md": {
        f"{name}5/seed-{seed}": f"path-star-demo --objective {objective} --seed {seed}"
        for name, objective in (("gpt", "next_token"), ("nl", "next_latent"))
        for seed in (1, 2)
    },
    "docs/speculative.md": {"nl": LATENT},
    "docs/text.md": {"y": "text-small --task.path corpus/ --seed 2"},
}
"""Runs that the commands of a page suppose, by name."""


def shrunk(words):
    """The words of a command, with options that make it small."""
    verb, words = words[0], [NAMED.get(word, word) for word in words]
    if verb == "train" and not {"--help", "--print_config", "--resume"} & set(words):
        if "--dry-run" in words:
            return words
        few = next((few for name, few in FEW.items() if words[1].startswith(name)), [])
        recurrent = words[1].startswith(("s3", "parity", "flip")) and "gpt" not in words
        heads = [] if recurrent else ["--backbone.heads=2"]
        words = ["1-2" if before == "--seeds" else word for before, word in zip(["", *words], words)]
        own = ("--task.", "--backbone.layers", "--backbone.chunk")  # what the page asks of data and layers stays
        kept = {word for word in words if word.startswith(own)}
        return [*words, *(field for field in [*few, *TINY, *heads] if field.partition("=")[0] not in kept)]
    if verb == "analyze":
        return [*words, *(field for field in QUICK.get(words[2], []) if field.partition("=")[0] not in words)]
    fewer = {
        "--rollouts": "2",
        "--beams": "2",
        "--num": "2",
        "--limit": "4",
        "--seeds": "1-2",
        "--draw": "5",
        "--sequences": "5",
        "--trials": "2",
        "--batch": "2",
    }
    if verb == "bench-decode":
        fewer["--draft"] = "0-2,auto"
    if verb in ("fill", "generate", "bench-decode", "analyze", "rides"):
        return [fewer.get(before, word) for before, word in zip(["", *words], words)]
    return words


def option(words, name):
    return words[words.index(name) + 1] if name in words else None


def trained(words, said):
    if "--help" in words:
        assert "--trainer.learning_rate" in said
        assert "--objective" in said
    elif "--print_config" in words:
        assert {"task", "backbone", "objective", "trainer"} <= set(yaml.safe_load(said))
    elif "--dry-run" in words:
        assert ("parameters" in json.loads(said)) if "--json" in words else re.search(r"total +[\d,]{5}", said)
    else:
        folder = option(words, "--out") or option(words, "--resume")
        folders = sorted(path.parent for path in Path(folder).glob("**/config.json"))
        assert folders, folder
        for one in folders:
            run, model = Run(one), load_model(one)
            assert run.report("evaluation")["metrics"][model.task.headline.metric] == pytest.approx(
                model.evaluate().metrics[model.task.headline.metric], abs=1e-4
            )


def evaluated(words, said):
    model = load_model(words[1])
    if "--fills" in words:
        assert "goal_nats" in said
        return
    sentence = rf"^{model.task.headline.metric} is -?[\d.e-]+|^These examples do not give|nats a symbol"
    assert re.search(sentence, said, re.M), said
    (path,) = re.findall(r"^wrote (\S+\.json)$", said, re.M)
    assert json.loads(Path(path).read_text())["metrics"]
    if losses := option(words, "--losses"):
        lines = [json.loads(line) for line in Path(losses).read_text().splitlines()]
        assert len(lines) == len(model.task.held_out())
        assert all(sum(filter(None, line["nats_by_token"])) == pytest.approx(line["nats"], abs=1e-3) for line in lines)


def generated(words, said):
    if "--candidates" in words:
        header, _, *rows = said.splitlines()
        assert header.split() == ["score", "log-probability", "completion"]
        assert 1 <= len(rows) <= int(option(words, "--candidates"))
    else:
        assert said.strip()


def compared(words, said):
    groups = [word for word in words[1:] if word.startswith("runs/") and word != option(words, "--out")]
    report = os.path.join(option(words, "--out"), "report.html")
    assert os.path.getsize(report) > 10_000
    names = [word.removeprefix("runs/") for word in groups if "*" not in word]
    table = said + Path(report).read_text()
    assert all(name in table for name in names)


def analyzed(words, said):
    (path,) = [path for path in re.findall(r"^wrote (\S+\.json)$", said, re.M) if "reports" in path]
    report = json.loads(Path(path).read_text())
    assert said.splitlines()[1] == report["verdict"]
    assert report["metrics"]


def embedded(words, said):
    vectors = np.load(option(words, "--out"))
    lines = len(Path(words[2]).read_text().splitlines())
    if option(words, "--positions") == "all":
        offsets = np.load(option(words, "--out").replace(".npy", ".offsets.npy"))
        assert len(offsets) == lines + 1
        assert offsets[-1] == vectors.shape[-2]
    else:
        assert vectors.shape[-2] == lines
    assert np.isfinite(vectors).all()


def checked_for_leaks(words, said):
    found = json.loads(said)["finding"] if "--json" in words else said
    assert found.startswith("Nothing but the past changes a state.")


def exported(words, said):
    out = option(words, "--out")
    if words[words.index("--to") + 1] == "gguf":
        assert Path(out).read_bytes()[:4] == b"GGUF"
    else:
        assert json.loads(Path(os.path.join(out, "config.json")).read_text())["architectures"]
        assert os.path.getsize(os.path.join(out, "model.safetensors")) > 1000


def prepared(words, said):
    if words[1] == "check":
        assert "error" not in said
        assert said.strip()
    else:
        assert os.listdir(option(words, "--out"))


def rode(words, said):
    assert re.search(r"valid|streets", said)
    if out := option(words, "--out"):
        assert os.listdir(out)


def filled(words, said):
    lines = [json.loads(line) for line in Path(option(words, "--out")).read_text().splitlines()]
    assert lines
    assert all(isinstance(line["completion"], str) for line in lines if "completion" in line)


def played(words, said):
    recorded = Path(option(words, "--export")).read_text()
    assert all(os.path.basename(word) in recorded for word in words[1:] if word.startswith("runs/"))


def listed(words, said):
    for table in ("tasks", "objectives", "backbones", "decoders", "analyses", "recipes"):
        assert f"{table}\n  " in said


def measured(words, said):
    assert re.search(r"tokens/s|tokens per", said), said


def inspected(words, said):
    assert "statewise train sequences-small --task.path" in said


def explained(words, said):
    assert os.path.getsize(os.path.join(option(words, "--out"), "index.html")) > 10_000
    assert "compared edges differ" in said


def scored(words, said):
    if words[2] != "questions.jsonl":  # a run of own sequences
        assert re.search(r"[\d.]+ nats per scored event", said), said
        assert "--against" not in words or "95% interval" in said
        if out := option(words, "--out"):
            assert os.path.getsize(out) > 100
        return
    assert re.search(r"accuracy\s+[\d.]+", said), said


def drawn(words, said):
    if "--out" in words:
        arrays = np.load(option(words, "--out"))
        assert np.isfinite(arrays["beliefs"]).all()
    else:
        assert "entropy rate" in said


def probed(words, said):
    assert re.search(r"^r2_held_out +[\d.]+$", said, re.M)
    assert said.strip().splitlines()[-1].startswith("The last state explains")


MEANS = {
    "train": trained,
    "evaluate": evaluated,
    "generate": generated,
    "compare": compared,
    "analyze": analyzed,
    "embed": embedded,
    "explain": explained,
    "inspect": inspected,
    "leaks": checked_for_leaks,
    "export": exported,
    "data": prepared,
    "rides": rode,
    "fill": filled,
    "playground": played,
    "list": listed,
    "bench-decode": measured,
    "score": scored,
    "beliefs": drawn,
    "probe-beliefs": probed,
}
"""What holds after a command, by its verb: asserts it, from the command's words and output."""


def kept(name):
    """The commands of a page that are run."""
    every = commands(name)
    return [one for one in every if "--export" in one.line or not any(part in f" {one.line}" for part in NOT_RUN)]


def files(name):
    """Those that the page names."""
    letters = "".join(f"{a} {b} {c} {a} {b} {c} {a}\n" for a in "abxy" for b in "abyz" for c in "abcdz")
    stories = small_stories(60)
    own = stories if name == "docs/stories.md" else letters
    for name, text in {"letters.txt": letters, "FILE": own, "stories.txt": stories, "other.txt": stories}.items():
        Path(name).write_text(text)
    for folder in ("books", "ids", "runs"):
        os.makedirs(folder, exist_ok=True)
    mark = "\n<|endoftext|>\n"
    told = stories.split(mark)
    long = [" ".join(told[first : first + 15]) for first in range(40)]
    Path("books/one.txt").write_text(stories)
    Path("books/two.txt").write_text("".join(f"{story}{mark}" for story in long))
    json_lines = "".join(json.dumps({"text": f"A tale of number {number}."}) + "\n" for number in range(40))
    Path("more.jsonl.gz").write_bytes(gzip.compress(json_lines.encode()))
    questions = [{"context": "Once Ann had a", "choices": ["ball", "cat"], "answer": 0}]
    Path("questions.jsonl").write_text("".join(json.dumps(one) + "\n" for one in questions))
    mess3 = beliefs.named("mess3")
    tokens = mess3.draw(np.random.default_rng(1), 200, 16)
    np.savez("activations.npz", tokens=tokens, activations=mess3.posteriors(tokens)[0][:, 1:])
    Path("my.yaml").write_text(blocks("docs/recipes.md", "yaml")[0])


def corpus():
    """A corpus, another one, its tokenizer, and its tokens as ids."""
    assert main(["data", "text", "books/", "--tokenizer", "bpe:300", "--out", "corpus/"]) == 0
    shutil.copytree("corpus", "other")
    shutil.copy("corpus/tokenizer.json", ".")
    shutil.copy("corpus/training-00000.npy", "ids/one.npy")


def sequences():
    """Files of sequences of the runs that the page has so far."""
    for run, file in (("runs/nl", "graphs.txt"), ("runs/nl-1", "graphs.txt"), ("maps/city", "rides.txt")):
        if not os.path.exists(run) or os.path.exists(file):
            continue
        city = TASKS["manhattan"]
        task = load_model(run).task if run.startswith("runs") else city(city.Config(map=run, held_out_rides=5))
        rows = task.held_out(4)
        lines = [task.decode(rows.tokens[row, : rows.lengths[row]]) for row in range(4)]
        Path(file).write_text("".join(f"{line}\n" for line in lines))
        prompts = [task.decode(rows.prompt(row)) for row in range(4)]
        Path("prompts.txt").write_text("".join(f"{prompt}\n" for prompt in prompts))


PAGES = [name for name in guides() if name not in ELSEWHERE and kept(name)]
FAST = {"README.md", "docs/quick-start.md"}


@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in PAGES]
)
def test_every_command_of_a_guide_does_what_it_is_for(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    files(name)
    for package in ("transformers", "gguf") if "--to hf" in page(name) else ():
        pytest.importorskip(package, reason="needs the extra hf")
    if "corpus/" in page(name) and name not in FAST:
        corpus()
    if name in ("README.md", "docs/own-data.md"):
        run_code(example("claims"), "claims.py")
    for one in kept(name):
        for run, recipe in NEEDED.get(name, {}).items():
            if any(fnmatch(f"runs/{run}/", f"{word}/*") for word in one.words) and not os.path.exists(f"runs/{run}"):
                assert main(shrunk(["train", *recipe.split(), "--out", f"runs/{run}"])) == 0, capsys.readouterr().err
                if "/seed-" in run:  # as `--seeds 1-2` does, which starts a process for each
                    Path(f"runs/{run}/../seeds.json").write_text(json.dumps({"seeds": [1, 2]}))
        sequences()
        capsys.readouterr()
        words = [path for word in shrunk(one.words) for path in (glob(word) if "*" in word else [word])]
        if words[0] != "train" and "--out" in words:  # a page shows several ways to the same output
            shutil.rmtree(option(words, "--out"), ignore_errors=True)
            for path in Path(".").glob("*.npy*"):
                path.unlink()
        code = main(words)
        said = capsys.readouterr()
        assert code == 0, (one.line, said.err)
        MEANS[words[0]](words, said.out)
        if one.shown and words[0] != "generate":  # what a model generates after three steps has another form
            one.shown.check(said.out, figures=False)


@pytest.mark.slow  # some minutes: trained as the page says
def test_the_quick_start_solves_what_it_shows(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    every = list(commands("docs/quick-start.md"))
    shown = [one for one in every if one.shown]
    assert len(shown) == 3
    asked = {one.words[1] for one in shown}
    for one in every:
        if one.words[0] == "train" and option(one.words, "--out") in asked:
            assert main(one.words) == 0, one.line
            model = load_model(option(one.words, "--out"))
            assert model.task.headline.solved(model.evaluate().metrics[model.task.headline.metric]), one.line
        elif one.shown:
            capsys.readouterr()
            assert main(one.words) == 0, one.line
            one.shown.check(capsys.readouterr().out, figures=True)


def test_every_command_of_every_guide_is_run_or_not_for_a_reason():
    every = [one.line for name in guides() for one in commands(name)]
    assert len(every) > 200
    for part in NOT_RUN:
        assert any(part in f" {line}" for line in every), f"no page has a command with {part!r}"
    verbs = {one.words[0] for name in PAGES for one in kept(name)}
    assert verbs == set(MEANS)
    assert set(ELSEWHERE) <= set(guides())


def test_what_a_page_shows_is_compared_word_by_word_and_figure_by_figure():
    shown = Shown("a 0.50 x\n...\nb --- 1,000\n", 0.05)
    shown.check("first\na 0.52   x\nq\nr\nb ----- 1000\nlast", figures=True)
    shown.check("a 9 x\nb --- 3", figures=False)
    for other in ("a 0.6 x\nb --- 1000", "a 0.5 y\nb --- 1000", "b --- 1000\na 0.5 x", "a 0.5 x"):
        with pytest.raises(AssertionError, match="the page shows"):
            shown.check(other, figures=True)
