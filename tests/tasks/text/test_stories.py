import gzip
import json
import sys

import numpy as np
import pytest
from doubles import small_stories

from statewise.tasks.text.bpe import BPE, END, SEPARATOR
from statewise.tasks.text.stories import Stories, StoriesConfig

FILE = small_stories(60)
SMALL = {"vocabulary": 300, "context": 64, "prompt_length": 8, "goal_length": 10}


def task_of(tmp_path, text=FILE, name="stories.txt", **fields):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return Stories(StoriesConfig(**{"path": str(path), **SMALL, **fields}))


def texts(task, examples):
    return [task.decode(examples.tokens[row, : examples.lengths[row]]) for row in range(len(examples))]


def told(text=FILE):
    return [story.strip() for story in text.split(f"{END}\n") if story.strip()]


def test_plain_examples_are_the_stories_and_the_end_mark(tmp_path):
    task = task_of(tmp_path, context=200)
    training, held_out = task.training()[:], task.held_out()
    assert sorted(texts(task, training) + texts(task, held_out)) == sorted(story + END for story in told())
    assert len(held_out) == 6
    for examples in (training, held_out):
        assert (examples.prompt_lengths == 0).all()
        assert (examples.tokens[np.arange(len(examples)), examples.lengths - 1] == task.end).all()
    assert len(task.vocab) == 300
    assert task.vocab.ids[END] == task.end
    assert task.notes == ["stories: 54 to train on, 6 held out"]


def test_blank_lines_stay_inside_a_story_and_nowhere_else(tmp_path):
    text = f"\n\nOne.\n\n\nTwo. \n\n{END}\n\n{END}\r\nThree.\r\nFour.\n{END}\n"
    task = task_of(tmp_path, text, vocabulary=258, held_out_share=0.5)
    assert sorted(texts(task, task.training()[:]) + texts(task, task.held_out())) == [
        f"One.\n\n\nTwo.{END}",
        f"Three.\nFour.{END}",
    ]
    assert task.notes == ["stories: 1 to train on, 1 held out; dropped: 1 empty"]


def test_gzip_means_the_same_and_order_does_not_move_the_split(tmp_path):
    one = task_of(tmp_path)
    two = task_of(tmp_path, gzip.compress(FILE.encode()), "stories.txt.gz")
    assert two.files()["tokenizer.json"] == one.files()["tokenizer.json"]
    np.testing.assert_array_equal(two.training()[:].tokens, one.training()[:].tokens)
    backwards = task_of(tmp_path, "".join(f"{story}\n{END}\n" for story in reversed(told())), "backwards.txt")
    assert set(texts(backwards, backwards.held_out())) == set(texts(one, one.held_out()))


def test_the_tokenizer_learns_from_training_stories_alone(tmp_path):
    other = tmp_path / "other.txt"
    other.write_text(f"Quixotic quokkas quiver.\n{END}\n" * 3)
    words = f"The zebra zigzags.\n{END}\nA zebra zooms.\n{END}\n" * 30
    task = task_of(tmp_path, words, held_out_path=str(other), vocabulary=265)
    learned = "".join(task.vocab.symbols[258:])
    assert "z" in learned
    assert "q" not in learned.lower()


def test_longer_stories_are_dropped_and_counted(tmp_path):
    every, few = task_of(tmp_path, context=200), task_of(tmp_path, context=40)
    lengths = np.concatenate([every.training().lengths, every.held_out().lengths]) - 1
    fit = int((lengths <= 38).sum())
    assert 0 < fit < 60
    assert len(few.training()) + len(few.held_out()) == fit
    assert few.notes[0].endswith(f"; dropped: {60 - fit} of more than 38 tokens")
    assert json.loads(few.files()["stories.json"])["stories"]["too_long"] == 60 - fit
    assert Stories(few.config, few.files()).notes == few.notes
    longest = task_of(tmp_path, context=int(lengths.max()) + 2)  # two marks fit beside the longest
    assert len(longest.training()) + len(longest.held_out()) == 60
    with pytest.raises(ValueError, match=r"no training story fits task.context 9: the shortest has \d+ tokens"):
        task_of(tmp_path, context=9)


def test_large_corpora_are_handled_in_blocks_with_the_same_result(tmp_path, monkeypatch):
    whole = task_of(tmp_path)
    monkeypatch.setattr("statewise.tasks.text.bpe.BLOCK", 7)
    parts = task_of(tmp_path)
    np.testing.assert_array_equal(parts.training()[:].tokens, whole.training()[:].tokens)
    np.testing.assert_array_equal(parts.training().lengths, whole.training().lengths)


def slow_suffix_first(task, story, suffix):
    """A list straight from the definition: suffix, separator, what comes before, end."""
    cut = len(story) - suffix
    return [*story[cut:], task.separator, *story[:cut], task.end]


def test_suffix_first_examples_are_what_their_definition_says(tmp_path):
    plain, task = task_of(tmp_path), task_of(tmp_path, encoding="fill_in_the_middle")
    assert task.vocab.symbols == plain.vocab.symbols
    assert task.training() is None
    stories = {tuple(row[: length - 1]) for row, length in zip(plain.training()[:].tokens, plain.training().lengths)}
    examples = task.sample(np.random.default_rng(0), 300)
    for row in range(300):
        tokens, given = examples.tokens[row, : examples.lengths[row]].tolist(), examples.prompt_lengths[row]
        suffix, before = tokens[: given - 1], tokens[given:-1]
        story = (*before, *suffix)
        assert story in stories
        assert before
        assert tokens == slow_suffix_first(task, story, len(suffix))
        assert (examples.tokens[row, examples.lengths[row] :] == 0).all()


def test_suffixes_are_uniform_from_none_to_all_but_one_token(tmp_path):
    same = f"a b c d\n{END}\n"
    (tmp_path / "other.txt").write_text(f"x y\n{END}\n")
    task = task_of(tmp_path, same, vocabulary=258, encoding="fill_in_the_middle", held_out_path=f"{tmp_path}/other.txt")
    examples = task.sample(np.random.default_rng(0), 14000)
    counts = np.bincount(examples.prompt_lengths - 1, minlength=7)
    assert len(counts) == 7  # seven bytes: a suffix of 0 to 6
    assert abs(counts / 14000 - 1 / 7).max() < 0.01


def test_held_out_suffixes_stay_and_a_shorter_list_begins_alike(tmp_path):
    task = task_of(tmp_path, encoding="fill_in_the_middle", held_out_share=0.5)
    part, whole = task.held_out(4), task_of(tmp_path, encoding="fill_in_the_middle", held_out_share=0.5).held_out()
    np.testing.assert_array_equal(part.tokens, whole[:4].tokens)
    np.testing.assert_array_equal(part.prompt_lengths, whole.prompt_lengths[:4])
    task.read(tmp_path / "stories.txt")  # has suffixes of its own
    np.testing.assert_array_equal(task.held_out().tokens, whole.tokens)
    np.testing.assert_array_equal(task.held_out().prompt_lengths, whole.prompt_lengths)
    other = task_of(tmp_path, encoding="fill_in_the_middle", held_out_share=0.5, data_seed=1)
    assert (other.held_out().prompt_lengths != whole.prompt_lengths).any()
    assert len(set(whole.prompt_lengths)) > 5


def test_goals_are_the_parts_of_long_enough_held_out_stories(tmp_path):
    task = task_of(tmp_path, held_out_share=0.5)
    examples = task.held_out()
    stories = [examples.tokens[row, : examples.lengths[row] - 1].tolist() for row in range(len(examples))]
    long_enough = [story for story in stories if len(story) >= 19]
    infills = task.goals()
    assert [np.concatenate(infill).tolist() for infill in infills] == long_enough
    assert {(len(prompt), len(goal)) for prompt, _, goal in infills} == {(8, 10)}
    assert min(len(infill.middle) for infill in infills) >= 1
    assert len(task.goals(2)) == 2
    with pytest.raises(ValueError, match="no held-out story has the 151 tokens"):
        task_of(tmp_path, prompt_length=50, goal_length=100).goals()


def test_each_encoding_says_how_a_goal_is_given(tmp_path):
    plain, middle = task_of(tmp_path), task_of(tmp_path, encoding="fill_in_the_middle")
    prompt, goal, nothing = plain.encode("Once Ann"), plain.encode(" was happy."), np.empty(0, np.int64)
    read, ahead = plain.with_goal(prompt, goal)
    assert read.tolist() == prompt.tolist()
    assert ahead.tolist() == [*goal, plain.end]
    assert plain.with_goal(prompt, nothing)[1] is None
    read, ahead = middle.with_goal(prompt, goal)
    assert middle.decode(read) == f" was happy.{SEPARATOR}Once Ann"
    assert ahead is None
    assert middle.with_goal(prompt, nothing)[0].tolist() == [middle.separator, *prompt]
    assert middle.with_goal(read, nothing)[0].tolist() == read.tolist()
    with pytest.raises(ValueError, match="so it has a goal"):
        middle.with_goal(read, goal)


def test_what_a_goal_asks_for_is_what_training_looked_like(tmp_path):
    """Prompt, middle and end of a goal, as the model reads them, make up the training example of that suffix."""
    task = task_of(tmp_path, encoding="fill_in_the_middle", held_out_share=0.5)
    infill = task.goals(1)[0]
    read, _ = task.with_goal(infill.prompt, infill.goal)
    asked = [*read, *infill.middle, task.end]
    assert asked == slow_suffix_first(task, np.concatenate(infill).tolist(), 10)


def test_text_survives_whatever_it_holds(tmp_path):
    task = task_of(tmp_path)
    for text in ("", " Zoë’s\n\n“café”  \t?", "日本 🙂", f"end{SEPARATOR}start{END}", "\x00\x7f"):
        assert task.decode(task.encode(text)) == text


def test_held_out_parts_are_cut_where_text_and_tokens_agree(tmp_path):
    """A cut inside a letter of two bytes has no text of its own; held-out suffixes never begin there."""
    accents = "".join(f"{'é' * (n % 5 + 3)}{n}\n{END}\n" for n in range(40))
    task = task_of(tmp_path, accents, vocabulary=258, encoding="fill_in_the_middle", held_out_share=0.5)
    examples = task.held_out()
    for row in range(len(examples)):
        assert "\ufffd" not in task.decode(examples.tokens[row, : examples.lengths[row]])
    drawn = task.sample(np.random.default_rng(0), 100)  # training draws every cut, those too
    assert any("\ufffd" in task.decode(drawn.prompt(row)) for row in range(100))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        (f"a\n{END}\nb\nc\n", r":3: the last story does not end"),
        (f"a\n{END}\nb {END} c\n{END}\n", r":3: the token <\|endoftext\|> inside a story"),
        (f"a\n{END}\nb {SEPARATOR}\n{END}\n{SEPARATOR}\n{END}\n", r":3: the token .*and 1 more such"),
        (f"a\n{END}\na\n{END}\n", "at least two different stories"),
        (f"a\n{END}\n".encode() + b"\xff\n", ":3: not UTF-8"),
        (f"abc\n{END}\nabd\n{END}\n", r"only \d+ tokens: set task.vocabulary to \d+ or less, not 300"),
    ],
)
def test_bad_files_are_named_with_the_line(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        task_of(tmp_path, text)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"held_out_share": 1.0}, "held_out_share must be above 0 and below 1"),
        ({"vocabulary": 200}, "task.vocabulary must be at least 258"),
        ({"context": 3}, "task.context must be at least 4"),
        ({"goal_length": 0}, "must be at least 1"),
        ({"path": "a", "dataset": "b"}, "not both"),
        ({"held_out_path": "a"}, "goes with task.path"),
        ({"path": "a", "dataset_held_out_split": "b"}, "goes with task.dataset"),
        ({}, "task.path is not set"),
    ],
)
def test_fields_that_do_not_fit_are_named(fields, message):
    with pytest.raises(ValueError, match=message):
        Stories(StoriesConfig(**fields))


def test_what_is_held_out_elsewhere_is_not_trained_on(tmp_path):
    other = tmp_path / "other.txt"
    other.write_text("".join(f"{story}\n{END}\n" for story in [*told()[:3], "Something else."]))
    task = task_of(tmp_path, held_out_path=str(other), context=200)
    assert len(task.held_out()) == 4
    assert not set(texts(task, task.training()[:])) & set(texts(task, task.held_out()))
    assert task.notes[0].endswith("; dropped: 3 training stories that are also held out")
    with pytest.raises(ValueError, match="no story is left to train on"):
        task_of(tmp_path, held_out_path=str(tmp_path / "stories.txt"))


def test_a_file_to_evaluate_drops_what_is_too_long_and_says_so(tmp_path):
    task = task_of(tmp_path, context=40)
    other = tmp_path / "other.txt"
    other.write_text(f"Tim ran.\n{END}\n{'Tim ran. ' * 40}\n{END}\n")
    assert texts(task, task.read(other)) == [f"Tim ran.{END}"]
    assert task.notes[-1] == f"{other}: dropped: 1 of more than 38 tokens"


def test_changed_or_missing_data_and_tokenizers_are_noticed(tmp_path):
    task = task_of(tmp_path)
    kept = task.files()
    (tmp_path / "stories.txt").write_text(FILE.replace("happy", "sad", 1))
    with pytest.raises(ValueError, match=r"stories.txt: the data has changed since the run began"):
        Stories(task.config, kept).held_out()
    (tmp_path / "stories.txt").unlink()
    again = Stories(task.config, kept)  # prompts are encoded without the data
    assert again.encode("Once Ann").tolist() == task.encode("Once Ann").tolist()
    with pytest.raises(ValueError, match="no longer exists"):
        again.held_out()
    other = json.loads(kept["tokenizer.json"])
    other["model"]["merges"].pop()
    with pytest.raises(ValueError, match="not the tokenizer of its stories"):
        Stories(task.config, {**kept, "tokenizer.json": json.dumps(other).encode()})


def test_an_existing_tokenizer_serves_and_is_kept(tmp_path):
    content = json.loads(task_of(tmp_path).bpe.content)
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content))
    task = task_of(tmp_path, small_stories(60, seed=1), "others.txt", tokenizer=str(path))
    assert task.bpe.content == task_of(tmp_path).bpe.content
    path.unlink()
    again = Stories(task.config, task.files())
    np.testing.assert_array_equal(again.held_out().tokens, task.held_out().tokens)


def test_the_first_story_that_a_tokenizer_changes_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("statewise.tasks.text.bpe.BLOCK", 7)
    path = tmp_path / "tokenizer.json"
    path.write_text(task_of(tmp_path).bpe.content.replace('"normalizer":null', '"normalizer":{"type":"Lowercase"}'))
    stories = [*(f"all small {n}" for n in range(30)), "One is not."]
    with pytest.raises(ValueError, match=r"others.txt:61 exactly"):
        task_of(tmp_path, "".join(f"{story}\n{END}\n" for story in stories), "others.txt", tokenizer=str(path))


def test_a_tokenizer_without_separator_gets_one(tmp_path):
    content = json.loads(task_of(tmp_path).bpe.content)
    content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] == END]
    vocabulary = content["model"]["vocab"]  # ids must stay without a gap
    content["model"]["vocab"] = {s: n - (n > vocabulary[SEPARATOR]) for s, n in vocabulary.items() if s != SEPARATOR}
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content))
    for encoding in ("plain", "fill_in_the_middle"):
        task = task_of(tmp_path, tokenizer=str(path), encoding=encoding)
        assert (task.separator, len(task.vocab)) == (299, 300)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda content: "{}", "not a tokenizer file"),
        (lambda content: content.replace(END, "<end>"), r"has no token <\|endoftext\|>"),
        (lambda content: content.replace('"add_prefix_space":false', '"add_prefix_space":true'), "exactly"),
        (lambda content: content.replace('"normalizer":null', '"normalizer":{"type":"Lowercase"}'), "exactly"),
        (lambda content: content.replace(":299", ":1299"), "without gaps"),
    ],
)
def test_tokenizers_that_do_not_fit_are_named(tmp_path, spoil, message):
    content = json.dumps(json.loads(task_of(tmp_path).bpe.content), separators=(",", ":"))
    path = tmp_path / "tokenizer.json"
    assert spoil(content) != content
    path.write_text(spoil(content))
    with pytest.raises(ValueError, match=message) as error:
        task_of(tmp_path, tokenizer=str(path))
    assert str(path) in str(error.value)


def test_the_missing_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ValueError, match=r"-m pip install .*datasets"):
        task_of(tmp_path)
    with pytest.raises(ValueError, match=r"-m pip install .*datasets"):
        BPE("{}", "here")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match=r"task.dataset needs the extra `data`: .* -m pip install .*datasets"):
        Stories(StoriesConfig(dataset="some/where"))


@pytest.fixture
def offline_datasets(tmp_path, monkeypatch):
    """The package, with its cache in the test's folder and no network."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()
    return datasets


def folder_of(tmp_path, datasets, kind):
    folder = tmp_path / kind
    folder.mkdir()
    parts = {"train": told()[:50], "validation": told()[50:]}
    for split, stories in parts.items():
        rows = datasets.Dataset.from_dict({"text": stories})
        path = folder / f"{split}.{kind}"
        if kind == "json":
            path.write_text("".join(json.dumps({"text": story}) + "\n" for story in stories))
        elif kind == "parquet":
            rows.to_parquet(path)
        else:
            path.write_text("".join(story.replace("\n", " ") + "\n" for story in stories))
    return str(folder)


@pytest.mark.parametrize("kind", ["json", "parquet", "txt"])
def test_stories_of_a_data_set_in_a_local_folder(tmp_path, offline_datasets, kind):
    folder = folder_of(tmp_path, offline_datasets, kind)
    fields = {**SMALL, "context": 200, "dataset": folder, "dataset_held_out_split": "validation"}
    task = Stories(StoriesConfig(**fields))
    same = (lambda story: story.replace("\n", " ")) if kind == "txt" else str
    assert texts(task, task.training()[:]) == [same(story) + END for story in told()[:50]]
    assert texts(task, task.held_out()) == [same(story) + END for story in told()[50:]]
    again = Stories(task.config, task.files())
    np.testing.assert_array_equal(again.held_out().tokens, task.held_out().tokens)
    alone = Stories(StoriesConfig(**{**fields, "dataset_held_out_split": None}))
    assert (len(alone.training()), len(alone.held_out())) == (45, 5)


def test_data_sets_that_do_not_fit_are_named(tmp_path, offline_datasets):
    folder = folder_of(tmp_path, offline_datasets, "json")
    with pytest.raises(ValueError, match=r"no field 'story': set task.dataset_field to one of text"):
        Stories(StoriesConfig(**SMALL, dataset=folder, dataset_field="story"))
    with pytest.raises(ValueError, match=r"split nosuch, cannot be loaded: .*nosuch"):
        Stories(StoriesConfig(**SMALL, dataset=folder, dataset_split="nosuch"))
    with pytest.raises(ValueError, match="cannot be loaded"):
        Stories(StoriesConfig(**SMALL, dataset=str(tmp_path / "nowhere")))
    for line, message in (
        ('{"text": null}', "row 51: text is not text"),
        (f'{{"text": "{END}"}}', "row 51: the token"),
    ):
        path = tmp_path / "json" / "train.json"
        before = path.read_text()
        path.write_text(before + line + "\n")
        with pytest.raises(ValueError, match=message):
            Stories(StoriesConfig(**SMALL, dataset=folder))
        path.write_text(before)
