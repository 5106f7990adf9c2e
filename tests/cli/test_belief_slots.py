"""A run that carries a state, from the command line: its protocols, whole documents, and a generation gone on with."""

import json

import numpy as np
import pytest
import torch
from command_line import called
from doubles import small_corpus

from statewise.cli import main
from statewise.data_types import Batch
from statewise.decoding import make_decoder
from statewise.decoding.continuing import continue_generation, read_state, write_state
from statewise.decoding.predictor import Carrier, require
from statewise.model.model import load_model
from statewise.run import Run

SMALL = "--backbone.layers 2 --backbone.width 16 --backbone.heads 2 --trainer.batch_size 8 --trainer.precision fp32"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return small_corpus(tmp_path_factory.mktemp("corpus"), 60)


@pytest.fixture(scope="module")
def run(tmp_path_factory, corpus):
    folder = tmp_path_factory.mktemp("runs") / "slots"
    flags = (
        f"--backbone belief_slots --backbone.chunk 8 --task.context 24 --task.path {corpus.folder} --trainer.steps 12"
    )
    assert main(["train", "text-small", *flags.split(), *SMALL.split(), "--out", str(folder)]) == 0
    return folder


def test_all_protocols_stand_in_one_table_and_the_leak_is_marked(run, capsys):
    code, out, _ = called(capsys, "evaluate", run)
    assert code == 0
    lines = out.splitlines()
    assert lines[1].startswith("loss is ")
    assert lines[2].split() == ["metric", "carried", "fresh", "same-chunk,", "1", "pass", "*"]
    assert lines[-2] == "* same-chunk sees its own targets: no likelihood, comparable with nothing else"
    assert max(map(len, lines[1:-1])) <= 80
    report = Run(run).report("evaluation")
    assert report["metrics"] == report["protocols"]["carried"]
    assert report["sees_its_own_targets"] == ["same-chunk, 1 pass"]
    assert len({metrics["loss"] for metrics in report["protocols"].values()}) == 3


def test_each_protocol_can_be_asked_alone_and_has_a_report_of_its_own(run, capsys):
    called(capsys, "evaluate", run)
    all_of_them = Run(run).report("evaluation")["protocols"]
    code, out, _ = called(capsys, "evaluate", run, "--protocol", "fresh")
    assert code == 0
    assert "same-chunk" not in out
    assert out.splitlines()[0].endswith("examples, fresh")
    assert Run(run).report("evaluation-protocol-fresh")["metrics"] == all_of_them["fresh"]
    code, out, _ = called(capsys, "evaluate", run, "--protocol", "same-chunk", "--warmup", "3", "--json")
    assert code == 0
    assert json.loads(out)["metrics"] != all_of_them["same-chunk, 1 pass"]
    warmed = Run(run).report("evaluation-protocol-same-chunk-warmup-3")
    assert warmed["sees_its_own_targets"] == ["same-chunk, 3 passes"]
    called(capsys, "evaluate", run, "--protocol", "carried")
    assert Run(run).report("evaluation-protocol-carried")["metrics"] == all_of_them["carried"]
    assert Run(run).report("evaluation")["protocols"] == all_of_them


@pytest.mark.parametrize(
    ("protocol", "warmup", "message"),
    [
        ("stale", None, "unknown protocol 'stale': "),
        ("carried", 3, "a warm-up reads the chunk itself"),
        ("fresh", 1, "a warm-up reads the chunk itself"),
        ("same-chunk", 0, "must be 1 to 100 passes, not 0"),
        ("same-chunk", 10**6, "must be 1 to 100 passes, not 1000000"),
    ],
)
def test_the_library_lets_no_protocol_see_what_its_name_hides(run, protocol, warmup, message):
    with pytest.raises(ValueError, match=message):
        load_model(run).evaluate(5, protocol=protocol, warmup=warmup)


def test_the_library_passes_over_the_same_chunk_once_unless_told_otherwise(run):
    model = load_model(run)
    once = model.evaluate(5, protocol="same-chunk").metrics
    assert once == model.evaluate(5, protocol="same-chunk", warmup=1).metrics
    assert once != model.evaluate(5, protocol="fresh").metrics


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--protocol fresh --warmup 2", "a warm-up reads the chunk itself: use the protocol same-chunk"),
        ("--protocol same-chunk --warmup 0", "--warmup must be at least 1"),
        ("--protocol stale", "invalid choice: 'stale'"),
        ("--comprehensive --num 3", "--comprehensive reads all held-out documents"),
        ("--comprehensive --protocol carried --warmup 2", "a warm-up reads the chunk itself"),
    ],
)
def test_protocols_that_make_no_sense_are_refused(run, capsys, flags, message):
    code, _, err = called(capsys, "evaluate", run, *flags.split())
    assert code == 2
    assert message in err


def test_whole_documents_are_read_from_beginning_to_end(run, capsys):
    code, out, _ = called(capsys, "evaluate", run, "--comprehensive")
    assert code == 0
    report = Run(run).report("evaluation-comprehensive")
    model = load_model(run)
    backbone, task = model.predictor().backbone, model.task
    texts = list(task.held_out_texts())
    assert max(map(len, texts)) > task.context, "or nothing here is longer than a row"
    backbone.context = max(map(len, texts))
    count = sum(len(text) - 1 for text in texts)

    def loss(protocol, warmup):
        nats, asked = 0.0, backbone.under(protocol, warmup)
        for text in texts:
            tokens = torch.from_numpy(text)[None]
            logits = backbone.logits(asked.readouts(Batch.plain(tokens))).detach()
            nats += float(torch.nn.functional.cross_entropy(logits[0, :-1], tokens[0, 1:], reduction="sum"))
        return pytest.approx(nats / count, rel=1e-5)

    found = report["protocols"]
    assert list(found) == ["carried", "fresh", "same-chunk, 1 pass"]
    assert report["sees_its_own_targets"] == ["same-chunk, 1 pass"]
    assert report["metrics"] == found["carried"]
    assert report["metrics"]["loss"] == loss("carried", 0)
    assert found["fresh"]["loss"] == loss("fresh", 0)
    assert found["same-chunk, 1 pass"]["loss"] == loss("same-chunk", 1)
    assert report["num"] == len(texts)
    assert "bits_per_byte" in out
    assert out.splitlines()[0].endswith(f"{len(texts)} examples, whole documents")
    assert out.splitlines()[-2].startswith("* same-chunk sees its own targets")
    code, out, _ = called(capsys, "evaluate", run, "--comprehensive", "--protocol", "same-chunk", "--warmup", "2")
    assert (code, "whole documents, same-chunk, 2 passes" in out) == (0, True)
    alone = Run(run).report("evaluation-comprehensive-protocol-same-chunk-warmup-2")
    assert alone["metrics"]["loss"] == loss("same-chunk", 2)
    assert called(capsys, "evaluate", run, "--comprehensive", "--checkpoint", "last")[0] == 0
    assert Run(run).report("evaluation-comprehensive-checkpoint-last")["num"] == len(texts)
    assert Run(run).report("evaluation-comprehensive") == report


def test_held_out_texts_are_the_documents_whatever_is_read_at_a_time(corpus, run, monkeypatch):
    task = load_model(run).task
    side = corpus.held_out
    stream = side.read(0, len(side))
    ends = np.flatnonzero(stream == task.end) + 1
    expected = [part.tolist() for part in np.split(stream, ends) if len(part)]
    for size in (7, 100, 10**6):
        monkeypatch.setattr("statewise.tasks.text.task.TEXTS_READ", size)
        assert [text.tolist() for text in task.held_out_texts()] == expected


def test_training_behind_a_warm_up_is_marked(tmp_path, corpus, capsys):
    words = f"--backbone belief_slots --backbone.chunk 8 --task.context 24 --trainer.steps 2 {SMALL}".split()
    words = ["train", "text-small", "--task.path", corpus.folder, *words, "--out", tmp_path / "run"]
    mark = "training losses are computed on chunks that the state has already seen"
    code, out, err = called(capsys, *words, "--backbone.warmup", "1")
    assert (code, mark in out + err) == (0, True)
    code, out, err = called(capsys, "evaluate", tmp_path / "run", "--comprehensive", "--warmup", "2")
    assert (code, "same-chunk, 2 passes *" in out) == (0, True)
    read = Run(tmp_path / "run").report("evaluation-comprehensive-warmup-2")["protocols"]
    assert len({metrics["loss"] for metrics in read.values()}) == 3
    code, out, err = called(capsys, *words, "--overwrite")
    assert (code, mark in out + err) == (0, False)


def test_the_literal_injection_trains(tmp_path, corpus, capsys):
    words = f"--backbone belief_slots --backbone.chunk 8 --task.context 24 --trainer.steps 6 {SMALL}".split()
    words = ["train", "text-small", "--task.path", corpus.folder, *words, "--backbone.injection", "linear"]
    code, _, err = called(capsys, *words, "--out", tmp_path / "run")
    assert code == 0, err
    assert Run(tmp_path / "run").recipe()["backbone"]["injection"] == "linear"
    backbone = load_model(tmp_path / "run").predictor().backbone
    for injection in backbone.injections:
        assert injection.weight.abs().max() > 0, "it begins at zero, and has been trained"
    code, _, err = called(capsys, "evaluate", tmp_path / "run")
    assert code == 0, err
    found = Run(tmp_path / "run").report("evaluation")["protocols"]
    assert found["carried"]["loss"] != found["fresh"]["loss"]


def test_a_generation_is_kept_and_gone_on_with(run, tmp_path, capsys):
    whole = called(capsys, "generate", run, "--prompt", "a cat", "--limit", "12")[1].rstrip("\n")
    state = tmp_path / "state"
    first = called(capsys, "generate", run, "--prompt", "a cat", "--limit", "5", "--save-state", state)[1].rstrip("\n")
    words = ("generate", run, "--state", state, "--max-tokens", "7", "--save-state", state)
    code, _, err = called(capsys, *words)
    assert (code, "exists: choose another --save-state, or give --overwrite" in err) == (2, True)
    rest = called(capsys, *words, "--overwrite")[1].rstrip("\n")
    assert first + rest == whole
    beyond = called(capsys, "generate", run, "--state", state, "--limit", "90", "--json")
    assert beyond[0] == 0, "longer than any row"
    added = called(capsys, "generate", run, "--state", state, "--prompt", " saw the", "--limit", "3")
    assert added[0] == 0
    ended, model = tmp_path / "ended", load_model(run)
    kept = read_state(state, model.fingerprint())
    write_state(ended, {**kept, "pending": torch.tensor([5, model.task.end])}, model.fingerprint())
    code, _, err = called(capsys, "generate", run, "--state", ended)
    assert (code, f"{ended}: its sequence has ended" in err) == (2, True)
    nowhere = called(capsys, "generate", run, "--prompt", "a", "--save-state", tmp_path / "none" / "state")
    assert (nowhere[0], "there is no folder" in nowhere[2], nowhere[1]) == (2, True, "")
    folder = called(capsys, "generate", run, "--prompt", "a", "--save-state", tmp_path)
    assert (folder[0], "is a folder" in folder[2]) == (2, True)
    beam = ["--candidates", "2", "--decoder", "beam"]
    for flags, message in (
        (["--state", state, "--warmup", "2"], "it cannot follow a kept state"),
        (["--save-state", state, *beam], "a carried state is of one"),
    ):
        refused = called(capsys, "generate", run, "--prompt", "a", *flags)
        assert (refused[0], message in refused[2]) == (2, True)
    drawn = called(capsys, "generate", run, "--prompt", "a", "--decoder", "sample", "--top-p", "0.9", "--warmup", "2")
    assert drawn[0] == 0


def test_states_that_do_not_fit_are_refused(run, corpus, tmp_path, capsys):
    state = tmp_path / "state"
    assert called(capsys, "generate", run, "--prompt", "a", "--limit", "3", "--save-state", state)[0] == 0
    other = tmp_path / "other"
    flags = (
        f"--backbone belief_slots --backbone.chunk 8 --task.context 24 --task.path {corpus.folder} --trainer.steps 1"
    )
    assert main(["train", "text-small", *flags.split(), *SMALL.split(), "--seed", "5", "--out", str(other)]) == 0
    assert "was kept by another run" in called(capsys, "generate", other, "--state", state)[2]
    state.write_bytes(state.read_bytes()[:-9])
    assert "not a kept state, or a damaged one" in called(capsys, "generate", run, "--state", state)[2]
    assert "there is no such file" in called(capsys, "generate", run, "--state", tmp_path / "none")[2]
    assert "the prompt is empty" in called(capsys, "generate", run)[2]
    beam = called(capsys, "generate", run, "--prompt", "a", "--save-state", tmp_path / "new", "--decoder", "beam")
    assert (beam[0], "greedy, sample or speculative" in beam[2]) == (2, True)
    plain = tmp_path / "plain"
    gpt = f"--backbone gpt --task.context 24 --task.path {corpus.folder} --trainer.steps 1"
    assert main(["train", "text-small", *gpt.split(), *SMALL.split(), "--out", str(plain)]) == 0
    for words in (
        ["generate", plain, "--prompt", "a", "--save-state", "n"],
        ["analyze", plain, "slot-trace"],
        ["evaluate", plain, "--comprehensive"],
    ):
        code, _, err = called(capsys, *words)
        assert (code, "objectives next_token, next_latent" in err, "on belief_slots" in err) == (2, True, True)
    assert "a carried state needs a model that carries" in called(capsys, "evaluate", plain, "--warmup", "2")[2]


def test_the_library_replaces_a_kept_state_only_where_it_is_told_to(run, tmp_path):
    model, path = load_model(run), tmp_path / "state"

    def asked(prompt, **files):
        with model.asking() as predictor:
            return continue_generation(
                predictor, model.task, prompt, make_decoder("greedy"), 3, fingerprint=model.fingerprint(), **files
            )

    asked("a cat", save_state=path)
    before = path.read_bytes()
    with pytest.raises(FileExistsError, match=f"{path} exists"):
        asked("saw", state=path, save_state=path)
    assert path.read_bytes() == before
    asked("saw", state=path, save_state=path, overwrite=True)
    assert path.read_bytes() != before
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(FileExistsError, match="is a link"):
        asked("saw", save_state=link, overwrite=True)
    for warmup, message in ((-1, "must not be negative"), (1, "it cannot follow a kept state")):
        with pytest.raises(ValueError, match=message):
            asked("saw", state=path, warmup=warmup)


def test_a_state_of_the_right_model_with_wrong_tensors_is_named(run, tmp_path, capsys):
    state, experiment = tmp_path / "state", load_model(run)
    assert called(capsys, "generate", run, "--prompt", "a", "--limit", "3", "--save-state", state)[0] == 0
    kept = read_state(state, experiment.fingerprint())
    for name, tensor in (
        ("state", kept["state"][:, 1:]),
        ("hidden", kept["hidden"].double()),
        ("pending", kept["pending"] + 10**6),
        ("recent", kept["recent"][..., 1:]),
    ):
        write_state(state, {**kept, name: tensor}, experiment.fingerprint())
        code, _, err = called(capsys, "generate", run, "--state", state)
        assert (code, f"{state}: " in err, "Traceback" in err) == (2, True, False), (name, err)


def test_the_trace_tells_what_the_state_is_worth(run, capsys):
    assert called(capsys, "analyze", run, "slot-trace", "--sequences", "20")[0] == 0
    report = Run(run).report("slot-trace")
    model = load_model(run)
    examples = model.task.held_out(20)
    from statewise.tasks.batches import collate

    batch = collate(examples)
    scored = batch.scored[:, 1:].clone()
    for row, owner in enumerate(batch.document_ids):
        for place in range(scored.shape[1]):  # predicts a token of a document that has a chunk behind it
            begin = place // 8 * 8
            scored[row, place] &= begin > 0 and bool((owner[[begin - 1, begin]] == owner[place]).all())
    assert 0 < scored.sum() < batch.scored.sum()
    found = {}
    for protocol in ("carried", "fresh"):
        logits = require(model.predictor(), Carrier).under(protocol, 0).logits(batch)[:, :-1]
        nats = torch.nn.functional.cross_entropy(logits.transpose(1, 2), batch.tokens[:, 1:], reduction="none")
        found[protocol] = float(nats[scored].mean())
    assert report["metrics"]["loss"] == pytest.approx(found["carried"], rel=1e-4)
    assert report["metrics"]["gain"] == pytest.approx(found["fresh"] - found["carried"], abs=1e-5)
    slots = model.states(batch).state[..., 16:].reshape(*batch.tokens.shape, 4, 16)
    assert report["details"]["length"][0] == pytest.approx(slots[:, 0].norm(dim=-1).mean(0).tolist(), rel=1e-4)
    assert [panel["y_title"] for panel in report["panels"]][2] == "loss (nats per token)"
