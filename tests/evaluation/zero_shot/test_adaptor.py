"""The adaptor and the harness around it, on benchmarks in a folder: nothing is fetched."""

import itertools
import json
import math

import pytest
import torch
from doubles import MarkovPredictor, spread_weights

pytest.importorskip("tokenizers")
pytest.importorskip("lm_eval")
from lm_eval.api.instance import Instance
from lm_eval.api.task import Task
from lm_eval.utils import get_rolling_token_windows

from statewise.backbones.gpt import GPT, GPTConfig
from statewise.evaluation.zero_shot import harness
from statewise.evaluation.zero_shot.adaptor import HarnessModel, units_of, words_before
from statewise.evaluation.zero_shot.likelihood import windows
from statewise.evaluation.zero_shot.questions import answer, read_questions
from statewise.objectives import OBJECTIVES
from statewise.tasks.base import RunningText
from statewise.tasks.text.bpe import train

TEXTS = ["the cat sat on the mat", "a dog saw the moon", "“zöe” had three boats and a kite"]
CHOICES = [
    {"context": "the cat sat on the", "choices": ["mat", "moon and the boats", "kite"], "answer": 0},
    {"context": "a dog saw", "choices": ["the moon", "zöe", "a"], "answer": 2},
    {"context": "zöe had three", "choices": ["boats", "cats on a mat", "dogs"], "answer": 1},
    {"context": "who sat on the mat?", "choices": ["the cat", "a dog", "the moon"], "answer": 1},
]
WORDS = [{"text": "the cat sat on the mat"}, {"text": "a dog saw the moon"}]
WHOLE = [
    {"text": "the cat sat on the mat"},
    {"text": " ".join(["“zöe” had three boats and a kite"] * 3)},
    {"text": "a"},
]


class Told(RunningText):
    def __init__(self):
        self.bpe = train(TEXTS * 3, 280)


@pytest.fixture(scope="module")
def task():
    return Told()


@pytest.fixture(scope="module")
def predictor(task):
    torch.manual_seed(0)
    kind = OBJECTIVES["next_token"]
    config = GPTConfig(width=16, heads=2, layers=2)
    objective = kind(kind.Config(), lambda **_: GPT(config, vocabulary=len(task.bpe.symbols), context=48)).eval()
    spread_weights(objective)
    return objective.predictor()


def benchmark(folder, name, rows, **fields):
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    content = {
        "task": name,
        "dataset_path": "json",
        "test_split": "test",
        "dataset_kwargs": {"data_files": {"test": str(folder / f"{name}.jsonl")}, "cache_dir": str(folder / "cache")},
        **fields,
    }
    (folder / f"{name}.yaml").write_text(json.dumps(content))  # JSON is YAML


def choices(folder, name, metrics=("acc", "acc_norm", "acc_bytes"), rows=CHOICES):
    benchmark(
        folder,
        name,
        rows,
        output_type="multiple_choice",
        doc_to_text="{{context}}",
        doc_to_choice="{{choices}}",
        doc_to_target="{{answer}}",
        metric_list=[{"metric": metric, "aggregation": "mean"} for metric in metrics],
    )


def last_words(folder, name):
    benchmark(
        folder,
        name,
        WORDS,
        output_type="loglikelihood",
        doc_to_text="{{text.split(' ')[:-1]|join(' ')}}",
        doc_to_target="{{' '+text.split(' ')[-1]}}",
        target_delimiter="",
        metric_list=[{"metric": "perplexity"}, {"metric": "acc", "aggregation": "mean"}],
    )


def whole_texts(folder, name):
    benchmark(
        folder,
        name,
        WHOLE,
        output_type="loglikelihood_rolling",
        doc_to_text="",
        doc_to_target="{{text}}",
        metric_list=[{"metric": "word_perplexity"}, {"metric": "byte_perplexity"}, {"metric": "bits_per_byte"}],
    )


@pytest.fixture(scope="module")
def report(task, predictor, tmp_path_factory):
    folder = tmp_path_factory.mktemp("benchmarks")
    choices(folder, "mine")
    last_words(folder, "words")
    whole_texts(folder, "whole")
    found = harness.find(["mine", "words", "whole"], folder)
    return harness.run(predictor, task, found, limit=None, batch=3)


def direct(predictor, tokens, given):
    """(nats of each token behind `given`, whether each was the first choice), by the cache."""
    cursor, logits = predictor.start(torch.tensor([tokens[:given]]))
    if len(tokens) - given > 1:
        more = predictor.extend(cursor, torch.tensor([tokens[given:-1]]))[0]
        logits = torch.cat([logits, more])
    log_probabilities = logits.double().log_softmax(-1)
    asked = torch.tensor(tokens[given:])
    nats = -log_probabilities[torch.arange(len(asked)), asked]
    return nats.tolist(), (logits.argmax(-1) == asked).tolist()


def test_our_own_scorer_finds_the_same(report, task, predictor, tmp_path):
    for name, rows in (("mine", CHOICES), ("words", WORDS)):
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        ours = answer(predictor, task, read_questions(path), 2).metrics
        theirs = report["benchmarks"][name]["metrics"]
        pairs = {"accuracy": "acc", "accuracy_per_byte": "acc_bytes", "perplexity": "perplexity"}
        for metric, value in ours.items():
            if metric in pairs:
                assert theirs[pairs[metric]] == pytest.approx(value, rel=1e-5), metric
    assert 0 < report["benchmarks"]["mine"]["metrics"]["acc"] < 1
    assert report["benchmarks"]["mine"]["metrics"]["acc_stderr"] > 0
    assert report["benchmarks"]["mine"]["num"] == 4
    assert report["lm_eval"]


def test_whole_texts_with_and_without_their_first_token(report, task, predictor):
    nats, firsts, tokens = [], [], 0
    for row in WHOLE:
        ids = [task.bpe.end, *task.bpe.encode(row["text"]).tolist()]
        tokens += len(ids) - 1
        for number, (given, asked) in enumerate(get_rolling_token_windows(ids[1:], ids[0], 47, 1)):
            whole = [*given[: len(given) - len(asked) + 1], *asked]
            found, _ = direct(predictor, whole, len(whole) - len(asked))
            nats += found
            firsts += found[:1] if number == 0 else []
    words = sum(len(row["text"].split()) for row in WHOLE)
    size = sum(len(row["text"].encode()) for row in WHOLE)
    found = report["whole_texts"]["whole"]
    assert (found["texts"], found["tokens"]) == (3, tokens)
    assert found["with_first"]["loss"] == pytest.approx(sum(nats) / tokens, rel=1e-5)
    assert found["with_first"]["bits_per_byte"] == pytest.approx(sum(nats) / size / math.log(2), rel=1e-5)
    assert found["with_first"]["perplexity_per_word"] == pytest.approx(math.exp(sum(nats) / words), rel=1e-4)
    theirs = report["benchmarks"]["whole"]["metrics"]
    assert theirs["bits_per_byte"] == pytest.approx(found["with_first"]["bits_per_byte"])
    assert theirs["word_perplexity"] == pytest.approx(found["with_first"]["perplexity_per_word"])
    spelled = task.bpe.spellings()
    first = [spelled[int(task.bpe.encode(row["text"])[0])] for row in WHOLE]
    assert first[1] in (b"\xe2", b"\xe2\x80", b"\xe2\x80\x9c")
    rest = sum(nats) - sum(firsts)
    assert found["without_first"]["loss"] == pytest.approx(rest / (tokens - 3), rel=1e-5)
    size -= sum(map(len, first))
    assert found["without_first"]["bits_per_byte"] == pytest.approx(rest / size / math.log(2), rel=1e-5)
    assert found["without_first"]["loss_per_word"] == pytest.approx(rest / (words - 3), rel=1e-5)
    assert report["counts"] == {
        "requests": 12 + 2 + 3,
        "cut": 0,
        "in_pieces": 1,
        "without_context": 0,
        "generations": 0,
        "cut_prompts": 0,
    }


@pytest.mark.parametrize(("context", "length"), itertools.product([2, 5, 9], [1, 4, 5, 8, 9, 23]))
def test_rolling_windows_are_those_of_the_package(context, length):
    ids = list(range(100, 101 + length))
    theirs = [(given, asked) for given, asked in get_rolling_token_windows(ids[1:], ids[0], context - 1, 1)]
    ours = [(ids[one.start : one.stop - 1], ids[one.scored : one.stop]) for one in windows(len(ids), 1, context)]
    assert ours == theirs


def requests(*pairs, kind="loglikelihood"):
    return [Instance(kind, {}, pair, number, ("asked", number, 1)) for number, pair in enumerate(pairs)]


def test_each_likelihood_is_exact_and_greedy_is_right(task, predictor):
    model = HarnessModel(predictor, task, batch=2)
    asked = [("the cat", " sat on"), ("the", " moon"), ("a dog", " saw the moon"), ("", "a dog")]
    found = model.loglikelihood(requests(*asked))
    for (context, continuation), (log_probability, is_greedy) in zip(asked, found):
        given = task.bpe.encode(context).tolist() or [task.bpe.end]
        whole = [*([] if context else given), *task.bpe.encode(context + continuation).tolist()]
        nats, right = direct(predictor, whole, len(given))
        assert log_probability == pytest.approx(-sum(nats), rel=1e-5)
        assert is_greedy == all(right)
    assert model.counts.without_context == 1


def test_what_greedy_decoding_gives_is_greedy_and_nothing_else_is(task):
    weights = torch.full((len(task.bpe.symbols),), 1e-4)
    weights[task.bpe.encode("a")[0]] = 1.0
    model = HarnessModel(MarkovPredictor((weights / weights.sum()).expand(len(weights), -1)), task, 4)
    pairs = [("b", "a"), ("b", "aaa"), ("b", "ab"), ("b", "b")]
    assert [one[1] for one in model.loglikelihood(requests(*pairs))] == [True, True, False, False]


def test_long_contexts_are_cut_at_their_beginning_and_counted(task, predictor):
    model = HarnessModel(predictor, task, batch=2)
    context = "the cat sat on the mat and " * 20
    ((log_probability, _),) = model.loglikelihood(requests((context.rstrip(), " a dog")))
    whole = task.bpe.encode(context + "a dog").tolist()
    given = len(task.bpe.encode(context.rstrip()))
    nats, _ = direct(predictor, whole[-48:], 48 - (len(whole) - given))
    assert log_probability == pytest.approx(-sum(nats), rel=1e-5)
    model.loglikelihood(requests(("a", " dog" * 90)))
    assert (model.counts.requests, model.counts.cut, model.counts.in_pieces) == (2, 1, 1)


def test_a_continuation_that_the_tokenizer_joins_with_its_context_is_still_asked_for(task, predictor):
    joined = next(symbol for symbol in task.bpe.symbols if len(symbol) == 2 and symbol.isascii() and symbol.isalpha())
    model = HarnessModel(predictor, task, batch=2)
    pairs = [(f"boat9{joined[0]}", joined[1]), (joined[0], joined[1])]
    found = model.loglikelihood(requests(*pairs))
    whole = task.bpe.encode(f"boat9{joined}").tolist()
    same = next(place for place, (a, b) in enumerate(zip(whole, task.bpe.encode(pairs[0][0]).tolist())) if a != b)
    assert found[0][0] == pytest.approx(-sum(direct(predictor, whole, same)[0]), rel=1e-5)
    alone = [task.bpe.end, *task.bpe.encode(joined).tolist()]
    assert found[1][0] == pytest.approx(-sum(direct(predictor, alone, 1)[0]), rel=1e-5)


def test_completions_end_at_what_stops_them(task):
    order = "abc d"
    size = len(task.bpe.symbols)
    table = torch.full((size, size), 1e-6)
    ids = [int(task.bpe.encode(letter)[0]) for letter in order]
    for one, other in itertools.pairwise([*ids, task.bpe.end]):
        table[one, other] = 1.0
    model = HarnessModel(MarkovPredictor(table / table.sum(-1, keepdim=True), context=12), task, 4)

    def told(context, **settings):
        return model.generate_until(requests((context, settings), kind="generate_until"))[0]

    assert told("a", until=["\n"]) == "bc d"  # the end of the text ends it
    assert told("a", until=[" "]) == "bc"
    assert told("a", until=["d", "c d"]) == "b"
    assert told("a", until="c") == "b"
    assert told("a", until=[], max_gen_toks=2) == "bc"
    assert told("z" * 30 + "a", until=[], max_gen_toks=3) == "bc "
    assert (
        told("z" * 3 + "a", until=[]) == "bc d"
    )  # the package asks for 256 tokens; half of the context stays the prompt's
    assert told("z" * 30 + "a", until=[]) == "bc d"
    assert (model.counts.generations, model.counts.cut_prompts) == (8, 2)
    with pytest.raises(ValueError, match="asked requests sampled completions"):
        told("a", do_sample=True, temperature=0.7)


def test_the_paper_average_takes_normalised_accuracy_where_there_is_one(task, predictor, tmp_path):
    for name in ("arc_easy", "hellaswag", "piqa"):
        choices(tmp_path, name, rows=CHOICES[::-1] if name == "piqa" else CHOICES[:3])
    choices(tmp_path, "sciq", metrics=("acc",))
    last_words(tmp_path, "lambada_openai")
    names = ["arc_easy", "hellaswag", "piqa", "sciq", "lambada_openai"]
    found = harness.run(predictor, task, harness.find(names, tmp_path), limit=2, batch=8)
    of = {"arc_easy": "acc_norm", "hellaswag": "acc_norm", "piqa": "acc_norm", "sciq": "acc", "lambada_openai": "acc"}
    assert found["average"]["of"] == of
    values = [found["benchmarks"][name]["metrics"][metric] for name, metric in of.items()]
    assert found["average"]["accuracy"] == pytest.approx(sum(values) / 5)
    assert {one["num"] for one in found["benchmarks"].values()} == {2}
    results = {name: one["metrics"] for name, one in found["benchmarks"].items()}
    assert harness.paper_average({**results, "sciq": {"acc": 0.4, "acc_norm": 0.9}})["of"]["sciq"] == "acc_norm"
    lambada = {**results, "lambada_openai": {"acc": 0.4, "acc_norm": 0.9}}
    assert harness.paper_average(lambada)["of"]["lambada_openai"] == "acc"
    del results["piqa"]
    assert harness.paper_average(results) is None


def test_groups_are_found_with_their_members(task, predictor, tmp_path):
    choices(tmp_path, "one")
    choices(tmp_path, "two")
    group = {"group": "both", "task": ["one", "two"], "aggregate_metric_list": [{"metric": "acc"}]}
    (tmp_path / "both.yaml").write_text(json.dumps(group))
    found = harness.run(predictor, task, harness.find(["both"], tmp_path), limit=None, batch=8)
    assert set(found["benchmarks"]) == {"both", "one", "two"}


def test_words_begin_before_a_byte():
    assert units_of("“a” bö c") == {"word": 3, "byte": 13}
    assert [words_before("ö b c", size) for size in range(7)] == [0, 1, 1, 1, 2, 2, 3]
    assert words_before(" ab c", 1) == 1  # the empty word in front
    assert units_of("ab\n") == {"word": 2, "byte": 3}


@pytest.mark.parametrize(
    "text", ["", "a", " a b", "a\n\nb \n", "\n", "x\u00a0y\u3000z\x1f", "zero\u200bwidth", " = A = \n"]
)
def test_words_are_counted_as_the_package_counts_them(text):
    assert units_of(text) == {"word": Task.count_words(text), "byte": Task.count_bytes(text)}


def test_a_benchmark_counts_the_words_of_its_own_document(task, predictor, tmp_path):
    """As wikitext does: the model reads one text, and its nats are divided by the words of another."""
    whole_texts(tmp_path, "raw")
    (tmp_path / "counts.py").write_text(
        "def process_results(doc, results):\n"
        "    (nats,), size = results, len(doc['text'])\n"
        "    return {'word_perplexity': (nats, 7 * size), 'byte_perplexity': (nats, 5 * size)}\n"
    )
    path = tmp_path / "raw.yaml"
    content = json.loads(path.read_text())
    content["metric_list"] = [{"metric": "word_perplexity"}, {"metric": "byte_perplexity"}]
    path.write_text(json.dumps(content)[:-1] + ', "process_results": !function counts.process_results}')
    report = harness.run(predictor, task, harness.find(["raw"], tmp_path), limit=None, batch=3)
    found, theirs = report["whole_texts"]["raw"], report["benchmarks"]["raw"]["metrics"]
    assert found["with_first"]["perplexity_per_word"] == pytest.approx(theirs["word_perplexity"])
    assert found["with_first"]["loss_per_byte"] == pytest.approx(math.log(theirs["byte_perplexity"]))
    nats = found["with_first"]["loss"] * found["tokens"]
    assert found["with_first"]["loss_per_word"] == pytest.approx(nats / (7 * sum(len(row["text"]) for row in WHOLE)))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "names no benchmark"),
        (["mine", "mine"], "names mine twice"),
        (["mien"], "unknown benchmark 'mien': did you mean mine"),
    ],
)
def test_what_cannot_be_found_is_named(tmp_path, names, message):
    choices(tmp_path, "mine")
    with pytest.raises(ValueError, match=message) as raised:
        harness.find(names, tmp_path)
    assert len(str(raised.value)) < 300
    with pytest.raises(ValueError, match="no such folder of benchmarks"):
        harness.find(["mine"], tmp_path / "none")


def test_data_that_cannot_be_loaded_are_said(task, predictor, tmp_path):
    choices(tmp_path, "mine")
    (tmp_path / "mine.jsonl").unlink()
    with pytest.raises(ValueError, match="cannot load mine: "):
        harness.run(predictor, task, harness.find(["mine"], tmp_path), limit=None, batch=8)
