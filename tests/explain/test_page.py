"""`explain` and `score` on small logs, and their commands."""

import csv
import html.parser
import json
import re

import numpy as np
import pytest
from command_line import called, refused

from statewise.config.recipes import recipe_text
from statewise.explain import compare, explain, save, score
from statewise.explain.cases import held_out_cases, part_of
from statewise.explain.explanation import CATEGORIES, coloured
from statewise.explain.page import LINES, page, wrapped
from statewise.explain.scoring import AFTER_UNKNOWN, BEYOND, FIRST, UNKNOWN, cases_csv, events_csv, is_formula
from statewise.explain.surprise import read
from statewise.model.model import keep_model, load_model, new_model
from statewise.model.recipes import read_recipe

MARKUP = "<b>Prüfen</b> & \"x\" </script><script>alert('!')</script>"
ALONE = ["--backbone.width=16", "--backbone.layers=1", "--backbone.heads=2", "--trainer.threads=1"]
TINY = [*ALONE, "--task.group=case", "--task.order=hour", "--task.column=activity", "--task.held_out_share=0.5"]


def write_log(path, rows, header=("hour", "case", "activity", "<i>who</i>", "cost")):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def claims(count=60):
    """Cases of some paths, their events in between each other."""
    rows = []
    for case in range(count):
        path = ["open", MARKUP, *["ask"] * (case % 4), "pay" if case % 3 else "reject", "close"]
        rows += [
            (case + 10 * at, f"C<{case}>", event, ("Ann", "<Bob>")[case % 2], case) for at, event in enumerate(path)
        ]
    return sorted(rows)


def made_run(folder, data, *flags):
    model = new_model(read_recipe(recipe_text("sequences-small"), [f"--task.path={data}", *TINY, *flags]))
    keep_model(model, folder, overwrite=False)
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("claims")
    return made_run(folder / "run", write_log(folder / "claims.csv", claims()))


@pytest.fixture(scope="module")
def explanation(run):
    return explain(load_model(run), samples=70)


def test_figures_agree_with_the_evaluation_of_the_run(run, explanation):
    model = load_model(run)
    metrics = model.evaluate().metrics
    assert explanation.verdict.loss == pytest.approx(metrics["loss"])
    assert explanation.cases == len(model.task.held_out())
    right = sum(one.right * one.count for one in explanation.reliability.bins) / explanation.events
    assert right == pytest.approx(metrics["token_accuracy"])
    for found, wanted in ((explanation.accuracy, "token_accuracy"), (explanation.nats, "loss")):
        mean = np.average(found.means["model"], weights=found.counts)
        assert mean == pytest.approx(metrics[wanted])
    assert list(explanation.nats.means) == ["model", "variable order", "longest match", "bigram"]


def test_the_map_shows_all_cases_beside_the_samples(explanation):
    graph = explanation.process_map
    assert (graph.data_cases, graph.model_cases) == (60, 70)
    starts = [edge for edge in graph.edges if graph.nodes[edge.source].kind == "start"]
    assert [(graph.nodes[edge.target].name, edge.data, edge.model) for edge in starts] == [("open", 60, 70)]
    ends = {node.kind: node for node in graph.nodes}
    assert ends["end"].data == 60


def test_surprising_cases_are_ranked_and_say_what_was_expected(explanation):
    cases = explanation.surprising
    excess = [case.nats - case.expected_nats for case in cases]
    assert excess == sorted(excess, reverse=True)
    assert len({tuple(event.name for event in case.events) for case in cases}) == len(cases)
    for case in cases:
        assert case.name.startswith("C<")
        assert case.events[0].nats is None
        assert sum(event.nats or 0 for event in case.events) == pytest.approx(case.nats)
        assert case.chance == pytest.approx(np.exp(-case.events[case.place].nats))
        assert case.events[case.place].name not in [name for name, _ in case.expected]
        assert [chance for _, chance in case.expected] == sorted((c for _, c in case.expected), reverse=True)


def test_states_have_the_columns_of_their_events(explanation):
    states = explanation.states
    by_name = {one.name: one for one in states.colourings}
    assert list(by_name) == [
        "next event",
        "last event",
        "events so far",
        "surprise of the next event",
        *("hour", "case", "activity", "<i>who</i>", "cost"),
    ]
    numbers = [int(name[2:-1]) for name in states.names]
    who = by_name["<i>who</i>"]
    assert [who.labels[int(value)] for value in who.values] == [("Ann", "<Bob>")[number % 2] for number in numbers]
    assert by_name["cost"].values == numbers
    assert by_name["activity"].values == by_name["last event"].values
    hours = [number + 10 * (so_far - 1) for number, so_far in zip(numbers, states.events)]
    assert by_name["hour"].values == hours
    assert by_name["events so far"].values == states.events


def test_values_of_columns_are_numbers_or_categories():
    many = [str(value) for value in range(CATEGORIES + 1)]
    assert coloured("a", [*many, ""]).values == [*range(CATEGORIES + 1), None]
    assert coloured("a", [*many, "x"]).kind == "categories"
    assert coloured("a", [*many, "nan"]).kind == "categories"
    assert coloured("a", ["2", "1", "2"]).labels == ["2", "1"]
    names = coloured("a", [str(value) + "x" for value in range(30)] + ["", "3x"])
    assert len(names.labels) == CATEGORIES + 1
    assert names.labels[-1] == "21 others"
    assert names.values[-2:] == [None, 0.0]


class Reader(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.loaded = [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.loaded += [value for name, value in attributes if name in ("src", "href") and not value.startswith("#")]


def test_the_page_is_one_file_and_names_are_text(explanation):
    text = page(explanation)
    reader = Reader()
    reader.feed(text)
    assert reader.loaded == []
    assert reader.tags.count("script") == 2
    assert not {"i", "b"} & set(reader.tags) - set(re.findall(r"<(i|b)[ >]", text))
    assert "<b>Pr" not in text
    assert "alert('!')</script>" not in text
    assert "url(" not in text.replace("url(#", "")  # parts of the page itself
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.S)[1])
    assert MARKUP in data["events"]
    assert len(data["states"]["places"]) == len(explanation.states.places)
    assert explanation.verdict.sentence in text.replace("&#x27;", "'")


def test_cells_that_spreadsheets_compute_are_found():
    assert all(is_formula(row) for row in ("a,=1+1\n", '"=x,y",b\n', "+cmd\n"))
    assert not is_formula("-5,+.5,a=b\n")


def test_names_are_broken_into_few_lines():
    assert wrapped("open") == ["open"]
    assert wrapped("") == [""]
    assert wrapped("Second opinion") == ["Second opinion"]
    assert wrapped("Second opinion of another doctor") == ["Second opinion", "of another…"]
    assert len(wrapped("x" * 100_000)) == LINES
    assert all(len(line) <= 8 for line in wrapped("検査を受け付けました"))


def test_pages_replace_pages_of_ours_alone(explanation, tmp_path):
    paths = save(explanation, tmp_path / "out")
    assert [path.name for path in paths] == ["index.html", "explanation.json"]
    content = json.loads(paths[1].read_text())
    assert content["surprising"][0]["name"] == explanation.surprising[0].name
    with pytest.raises(FileExistsError, match="give `overwrite`"):
        save(explanation, tmp_path / "out")
    save(explanation, tmp_path / "out", overwrite=True)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "index.html").write_text("mine")
    with pytest.raises(FileExistsError, match="not replaced"):
        save(explanation, tmp_path / "own", overwrite=True)
    assert (tmp_path / "own" / "index.html").read_text() == "mine"


def test_explain_command(capsys, run, tmp_path):
    code, said, _ = called(capsys, "explain", run, "--out", tmp_path / "page", "--samples", 20, "--num", 5)
    assert code == 0
    assert "compared edges differ" in said
    assert json.loads((tmp_path / "page" / "explanation.json").read_text())["cases"] == 5


def test_a_log_split_by_time_with_durations_and_unfinished_cases(tmp_path):
    data = write_log(tmp_path / "log.csv", claims())
    flags = ["--task.split=time", "--task.gaps=3", "--task.unfinished=mark", "--task.time_format=s"]
    model = load_model(made_run(tmp_path / "run", data, *flags))
    found = explain(model, samples=30)
    assert found.map_of.startswith(f"the {found.cases}")
    assert not [node.name for node in found.process_map.nodes if node.name.startswith("<gap")]
    cases = held_out_cases(model.task)
    assert (cases.examples.tokens == model.task.held_out().tokens).all()
    with model.asking() as predictor:
        reading = read(predictor, cases.examples)
    scored = score(model, cases.log)
    assert scored.per_case(scored.surprise, scored.ends) == pytest.approx(reading.nats.sum(axis=1))
    assert scored.counts.sum() < reading.scored.sum()  # an event and the duration before it count as one


def test_held_out_cases_of_another_file(tmp_path):
    data, other = (write_log(tmp_path / f"{name}.csv", claims(count)) for name, count in (("a", 8), ("b", 12)))
    model = load_model(made_run(tmp_path / "run", data, f"--task.held_out_path={other}"))
    cases = held_out_cases(model.task)
    assert (cases.examples.tokens == model.task.held_out().tokens).all()
    assert [cases.name(row) for row in range(len(cases))] == ["C<9>"]  # the others are copies


def test_surprises_of_a_file_are_those_of_the_model(run, tmp_path):
    model = load_model(run)
    log = model.task.log()
    scored = score(model, log)
    with model.asking() as predictor:
        reading = read(predictor, model.task.encoded(log).rows[:])
    assert scored.per_case(scored.surprise, scored.ends) == pytest.approx(reading.nats.sum(axis=1))
    assert scored.counts.tolist() == reading.counts.tolist()
    assert scored.per_event == pytest.approx(reading.per_token)
    assert set(scored.notes) == {"", FIRST}
    half = part_of(log, np.arange(0, 60, 2))
    assert score(model, half).per_event == pytest.approx(scored.per_event[::2])


def test_a_case_is_scored_up_to_what_the_model_does_not_know(run, tmp_path):
    model = load_model(run)
    long = [(at, "long", "ask", "", "") for at in range(30)]
    new = [
        (0, "A", "open", "Ann", 1),
        (0, "B", "???", "", ""),
        (1, "A", MARKUP, "", ""),
        (2, "A", "fly", "", ""),
        (3, "A", "pay", "", ""),
        (4, "A", "fly", "", ""),
        (9, "B", "open", "", ""),
    ]
    scored = score(model, model.task.log(write_log(tmp_path / "new.csv", [*new, *long])))
    notes = dict(zip(["A", "B", "long"], np.split(scored.notes, scored.log.offsets[1:-1])))
    assert notes["A"].tolist() == [FIRST, "", UNKNOWN, AFTER_UNKNOWN, AFTER_UNKNOWN]
    assert notes["B"].tolist() == [UNKNOWN, AFTER_UNKNOWN]
    readable = model.task.context - 1
    assert notes["long"].tolist() == [FIRST, *[""] * (readable - 1), *[BEYOND] * (30 - readable)]
    assert scored.unknown() == {"fly": 1, "???": 1}
    assert np.isnan(scored.ends).all()
    assert np.isnan(scored.per_event[1])
    lines = [*csv.DictReader(events_csv(scored))]
    assert [(line["case"], line["activity"], line["<i>who</i>"]) for line in lines[:2]] == [
        ("A", "open", "Ann"),
        ("B", "???", ""),
    ]
    assert [line["symbol"] for line in lines] == [line["activity"] for line in lines]
    assert float(lines[2]["surprise"]) == pytest.approx(scored.surprise[1], rel=1e-5)
    assert lines[2]["likeliest"] in model.task.vocab.symbols
    cases = [*csv.DictReader(cases_csv(scored))]
    assert [(one["case"], one["line"], one["events"], one["scored_events"], one["note"]) for one in cases] == [
        ("A", "2", "5", "1", UNKNOWN),
        ("B", "3", "2", "0", UNKNOWN),
        ("long", "9", "30", str(readable - 1), BEYOND),
    ]
    assert (cases[0]["its_symbol"], cases[1]["surprise"], cases[1]["its_symbol"]) == (MARKUP, "", "")


def test_files_of_sequences_have_a_line_for_every_event(tmp_path):
    text = tmp_path / "lines.txt"
    text.write_text("a b c\n\na c\nb b b c\n")
    recipe = read_recipe(recipe_text("sequences-small"), [f"--task.path={text}", *ALONE, "--task.held_out_share=0.5"])
    model = new_model(recipe)
    lines = [*csv.DictReader(events_csv(score(model, model.task.log())))]
    assert [(line["line"], line["event"], line["symbol"]) for line in lines[:4]] == [
        ("1", "1", "a"),
        ("1", "2", "b"),
        ("1", "3", "c"),
        ("3", "1", "a"),
    ]
    table = tmp_path / "table.csv"
    table.write_text("event,path\nx,a b\ny,c\n")
    log = new_model(read_recipe(recipe_text("sequences-small"), [f"--task.path={table}", "--task.column=path", *ALONE]))
    rows = [*csv.DictReader(events_csv(score(log, log.task.log())))]
    assert [(row["event"], row["path"], row["model_event"], row["symbol"]) for row in rows] == [
        ("x", "a b", "1", "a"),
        ("x", "a b", "2", "b"),
        ("y", "c", "1", "c"),
    ]


def test_rows_that_were_left_out_stay_in_the_file(tmp_path):
    rows = claims(12)
    rows.insert(3, (5, "C<1>", "", "Ann", 1))
    data = write_log(tmp_path / "log.csv", rows)
    model = load_model(made_run(tmp_path / "run", data, "--task.missing=drop"))
    lines = [*csv.DictReader(events_csv(score(model, model.task.log())))]
    assert len(lines) == len(rows)
    assert (lines[3]["activity"], lines[3]["note"]) == ("", "left out when the file was read")
    assert [line["symbol"] for line in lines] == [str(row[2]) for row in rows]


def test_two_files_are_compared_symbol_by_symbol(run):
    model = load_model(run)
    log = model.task.log()
    odd, even = (score(model, part_of(log, np.arange(first, 60, 2))) for first in (1, 0))
    found, changes = compare(odd, even)
    assert found.difference == pytest.approx(np.nanmean(odd.per_event) - np.nanmean(even.per_event))
    assert sum(change.contribution for change in changes) == pytest.approx(odd.mean - even.mean)
    assert sum(change.share for change in changes) == pytest.approx(1)
    sizes = [abs(change.contribution) for change in changes]
    assert sizes == sorted(sizes, reverse=True)


def test_score_command(capsys, run, tmp_path):
    new = write_log(tmp_path / "new.csv", claims(30))
    out = tmp_path / "out.csv"
    code, said, _ = called(capsys, "score", run, new, "--against", "held-out", "--out", out)
    assert code == 0
    assert "new.csv: 30 cases" in said
    assert "drift" in said or "surprise the model" in said
    assert len([*csv.DictReader(out.open())]) == len(claims(30))
    assert len([*csv.DictReader((tmp_path / "out.cases.csv").open())]) == 30
    assert "give --overwrite" in refused(capsys, "score", run, new, "--out", out)
    code, said, _ = called(capsys, "score", run, new, "--against", new, "--out", out, "--overwrite", "--json")
    content = json.loads(said)
    assert (content["num"], content["against"]["difference"], content["against"]["drifts"]) == (30, 0.0, False)


def test_scores_of_the_file_of_the_run_are_said_to_be(capsys, tmp_path):
    data = write_log(tmp_path / "log.csv", claims(12))
    run = made_run(tmp_path / "run", data)
    copy = tmp_path / "copy.csv"
    copy.write_bytes(data.read_bytes())
    for path in (data, copy):
        assert (
            f"{path} is the file of the run: most of its cases were trained on" in called(capsys, "score", run, path)[1]
        )
    write_log(data, claims(30))
    code, said, _ = called(capsys, "score", run, data)
    assert code == 0
    assert f"{data} has changed since the run began: what it holds now is scored" in said
    assert "log.csv: 30 cases" in said
    for words in (["evaluate", run], ["explain", run, "--out", tmp_path / "page"]):
        assert "the data has changed since the run began" in refused(capsys, *words)
    refusal = refused(capsys, "score", run, data, "--against", "held-out", "--out", tmp_path / "out.csv")
    assert "the data has changed since the run began" in refusal
    assert not [*tmp_path.glob("out*"), *tmp_path.glob("page*")]
    assert "of the run" not in called(capsys, "score", run, write_log(tmp_path / "new.csv", claims(14)))[1]


def test_damaged_figures_are_not_replaced(capsys, run, tmp_path):
    out = tmp_path / "page"
    assert called(capsys, "explain", run, "--out", out, "--samples", 10)[0] == 0
    figures = out / "explanation.json"
    whole = figures.read_bytes()
    for damaged in (whole[:-9], b"", b"[1]", b"NaN", b'{"verdict": NaN', b'{"verdict": 1}', b"\xff\xfe"):
        figures.write_bytes(damaged)
        said = refused(capsys, "explain", run, "--out", out, "--samples", 10, "--overwrite")
        assert "explanation.json" in said
        assert figures.read_bytes() == damaged
    figures.write_bytes(whole)
    assert called(capsys, "explain", run, "--out", out, "--samples", 10, "--overwrite")[0] == 0
    assert figures.read_bytes() == whole


@pytest.mark.parametrize(
    "lines",
    [
        ["a " * count for count in range(1, 13)],  # one symbol
        list("abcdefghijkl"),  # one event a case
    ],
)
def test_hardly_any_data_is_read_all_the_same(capsys, tmp_path, lines):
    data = tmp_path / "few.txt"
    data.write_text("\n".join(lines) + "\n")
    recipe = read_recipe(recipe_text("sequences-small"), [f"--task.path={data}", "--task.held_out_share=0.5", *ALONE])
    keep_model(new_model(recipe), tmp_path / "run", overwrite=False)
    for words in (["evaluate", "{}"], ["explain", "{}", "--out", tmp_path / "page"], ["score", "{}", data]):
        code, said, err = called(capsys, words[0], tmp_path / "run", *words[2:])
        assert code == 0, err
        assert ("cannot show what the model has learned" in said) == (words[0] != "score")
        assert "nan" not in said.lower().split()


@pytest.mark.parametrize("content", ["a b c\n", "a b\na b\n", "a\n"])
def test_one_different_case_cannot_be_split(capsys, tmp_path, content):
    data = tmp_path / "one.txt"
    data.write_text(content)
    said = refused(capsys, "train", "sequences-small", f"--task.path={data}", *ALONE, "--out", tmp_path / "run")
    assert "at least two different sequences are needed" in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "saying"),
    [
        (["score", "{run}", "{tmp}/none.csv"], "none.csv"),
        (["score", "{run}", "{run}/config.json"], "config.json"),
        (["score", "{run}", "{claims}", "--num", "3"], "--num is for questions"),
        (["score", "{run}", "{claims}", "--overwrite"], "give --out, or omit it"),
        (["score", "{run}", "{claims}", "--out", "{tmp}/none/out.csv"], "there is no folder"),
        (["score", "{run}", "{claims}", "--out", "{tmp}"], "is a folder"),
        (["score", "{run}", "{strange}"], "strange.csv: the model knows none of the symbols"),
        (["score", "{run}", "{claims}", "--against", "{strange}"], "strange.csv: the model knows none"),
        (["score", "{run}", "{claims}", "--against", "{short}"], "at least 10 scored cases"),
        (["score", "{tmp}", "{claims}"], "{tmp}"),
        (["explain", "{run}", "--out", "{claims}"], "is a file"),
        (["explain", "{run}", "--out", "{tmp}/page", "--samples", "nan"], "--samples"),
        (["explain", "{run}", "--out", "{tmp}/page", "--num", "-1"], "--num"),
        (["explain", "{tmp}", "--out", "{tmp}/page"], "{tmp}"),
    ],
)
def test_bad_input_is_answered_with_a_sentence(capsys, run, tmp_path, words, saying):
    strange = write_log(tmp_path / "strange.csv", [(1, "A", "?", "", ""), (2, "B", "!", "", "")])
    short = write_log(tmp_path / "short.csv", claims(9))
    names = {"run": run, "tmp": tmp_path, "strange": strange, "short": short, "claims": run.parent / "claims.csv"}
    assert saying.format(**names) in refused(capsys, *(word.format(**names) for word in words))
    assert not (tmp_path / "page").exists()


def test_only_models_of_own_sequences_are_explained(capsys, tmp_path):
    recipe = read_recipe(recipe_text("path-star-small"), ["--task.held_out_graphs=4", *ALONE])
    keep_model(new_model(recipe), tmp_path / "run", overwrite=False)
    assert "task sequences" in refused(capsys, "explain", tmp_path / "run", "--out", tmp_path / "page")
    said = refused(capsys, "score", tmp_path / "run", "x.csv", "--out", tmp_path / "y.csv")
    assert "--out is for runs of the task sequences" in said


def test_data_that_are_gone_are_missed(capsys, tmp_path):
    data = write_log(tmp_path / "log.csv", claims(12))
    run = made_run(tmp_path / "run", data)
    data.unlink()
    assert "log.csv" in refused(capsys, "explain", run, "--out", tmp_path / "page")
    other = write_log(tmp_path / "other.csv", claims(30))
    assert called(capsys, "score", run, other)[0] == 0  # the run keeps its vocabulary


@pytest.mark.slow
def test_fifty_thousand_cases_make_a_small_page(tmp_path):
    data = write_log(tmp_path / "log.csv", claims(52_000))
    model = load_model(made_run(tmp_path / "run", data, "--task.split=case", "--task.held_out_share=0.97"))
    found = explain(model)
    assert found.cases > 50_000
    assert len(page(found)) < 1_000_000
