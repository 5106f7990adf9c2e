"""Traces hold what the model and the task say, computed again directly."""

import contextlib
import json

import numpy as np
import pytest
import torch
from doubles import path_star_model
from running_server import story_model
from small_worlds import CITY, HMM, model_of

from statewise.data_types import Examples
from statewise.deploy.playground.observer import Observer, TraceRequest
from statewise.deploy.serving.refusals import Refusal
from statewise.deploy.serving.served import Served
from statewise.reporting.figures import OBJECTIVE_COLOURS
from statewise.tasks.batches import collate


def observer(model):
    return Observer(Served("small", model))


def traced(watched, **fields):
    steps = watched.trace(TraceRequest(**{"prompt": watched.held_out(0), "limit": watched.limit(0), **fields}))
    while True:
        try:
            with torch.no_grad():
                next(steps)
        except StopIteration as done:
            json.dumps(done.value.as_json(), allow_nan=False)
            return done.value


@pytest.mark.parametrize("objective", ["next_token", "next_latent", "multi_token", "belief_state"])
def test_log_probabilities_are_those_of_the_model_and_tokens_those_of_greedy_decoding(objective):
    model = path_star_model(objective)
    model.objective.double()  # steps and whole passes round alike to 1e-9
    watched = observer(model)
    found = traced(watched, top=5)
    tokens = np.array([place.token for place in found.places])
    (plain,) = model.generate([model.task.decode(watched.held_out(0))])
    assert tokens[found.prompt :].tolist() == plain.tokens.tolist()
    batch = collate(Examples.of([tokens], [found.prompt]))
    with torch.no_grad():
        logp = model.predictor().logits(batch)[0].double().log_softmax(-1).numpy()
    assert found.places[0].log_probability is None
    for place in range(len(tokens)):
        if place:
            assert found.places[place].log_probability == pytest.approx(logp[place - 1, tokens[place]], abs=1e-9)
        likeliest = np.argsort(-logp[place], kind="stable")[:5]
        assert [token for token, _ in found.places[place].next[:5]] == likeliest.tolist()
        assert all(value == pytest.approx(logp[place, token], abs=1e-9) for token, value in found.places[place].next)
    assert all(found.texts[token] == model.task.vocab.symbols[token] for token in tokens)


def test_legal_tokens_are_those_of_the_task_and_all_of_them_are_shown():
    model = path_star_model()
    found = traced(observer(model), top=1)
    tokens = np.array([place.token for place in found.places])
    for number, place in enumerate(found.places):
        legal = model.task.legal(tokens[: number + 1]).tolist()
        assert place.legal == (None if len(legal) == len(model.task.vocab) else legal)
        assert {*(place.legal or ())} <= {token for token, _ in place.next}


def test_forced_tokens_stand_where_they_were_put_and_the_rest_is_decoded_after_them():
    model = path_star_model()
    watched = observer(model)
    prompt = watched.held_out(0)
    forced = [5, 3]
    found = traced(watched, forced=forced)
    assert (found.prompt, found.given) == (len(prompt), len(prompt) + 2)
    assert [place.token for place in found.places][found.prompt : found.given] == forced
    (rest,) = model.generate([model.task.decode([*prompt, *forced])], limit=2)
    assert [place.token for place in found.places][found.given :] == rest.tokens.tolist()
    assert len(found.places) == len(prompt) + watched.limit(0)


def test_towards_a_goal_predictions_are_conditioned_on_it():
    model = path_star_model("belief_state")
    watched, goal = observer(model), np.array([7])
    found = traced(watched, goal=goal)
    tokens = np.array([place.token for place in found.places])
    assert list(found.goal) == [7]
    (plain,) = model.generate([model.task.decode(watched.held_out(0))], goal="7")
    assert tokens[found.prompt :].tolist() == plain.tokens.tolist()
    with torch.no_grad():
        for place in range(found.prompt, len(tokens)):
            read = torch.from_numpy(tokens[None, :place])
            logits = model.predictor().start_with_goal(read, torch.from_numpy(goal))[1][0]
            expected = float(logits.double().log_softmax(-1)[tokens[place]])
            assert found.places[place].log_probability == pytest.approx(expected, abs=1e-4)
    assert found.places[-1].log_probability != pytest.approx(
        traced(watched, forced=tokens[found.prompt :].tolist()).places[-1].log_probability, abs=1e-4
    )


def test_accepted_drafts_are_marked():
    model = path_star_model("next_latent")
    found = traced(observer(model))
    made = found.places[found.given :]
    ends = [place.offered for place in made if place.offered is not None]
    assert len(ends) == found.passes
    assert sum(not place.drafted for place in made) == found.passes
    assert sum(place.drafted for place in made) <= sum(ends)
    assert traced(observer(path_star_model())).passes is None


def test_samples_are_those_of_the_decoder():
    model = path_star_model()
    watched = observer(model)
    found = traced(watched, temperature=0.9, seed=4)
    (plain,) = model.generate([model.task.decode(watched.held_out(0))], "sample", temperature=0.9, seed=4)
    assert [place.token for place in found.places[found.prompt :]] == plain.tokens.tolist()


def test_exact_beliefs_and_next_tokens_are_those_of_the_task():
    model = model_of(HMM)
    watched = observer(model)
    found = traced(watched)
    tokens = np.array([[place.token for place in found.places]])
    assert len(tokens[0]) == model.task.context
    assert found.finish == "length"
    examples = Examples.of(list(tokens), [0])
    beliefs, ahead = model.task.beliefs(examples)[0], model.task.next_tokens(examples)[0]
    for number, place in enumerate(found.places):
        assert [value for _, value in place.true] == pytest.approx(beliefs[number])
        assert place.true_next == pytest.approx([ahead[number, token] for token, _ in place.next])
    corners = np.array([[0, 0], [1, 0], [0.5, 3**0.5 / 2]])
    assert found.places[3].true_at[0] == pytest.approx(beliefs[3] @ corners)


def test_readings_are_least_squares_and_the_plane_is_that_of_the_largest_variance():
    model = model_of(HMM)
    watched = observer(model)
    found, held_out = traced(watched), model.task.held_out()
    with torch.no_grad():
        states = model.predictor().states(collate(held_out)).state.double().numpy()
    flat, beliefs = states.reshape(-1, 16), model.task.beliefs(held_out).reshape(-1, 3)
    with_one = np.concatenate([flat, np.ones((len(flat), 1))], axis=1)
    matrix, *_ = np.linalg.lstsq(with_one, beliefs, rcond=1e-7)
    own = states[0]
    for number, place in enumerate(found.places):
        expected = np.append(own[number], 1) @ matrix
        assert [value for _, value in place.read] == pytest.approx(expected, abs=1e-4)
    centre = flat.mean(0)
    _, values, axes = np.linalg.svd(flat - centre, full_matrices=False)
    expected = (own - centre) @ axes[:2].T
    assert np.abs([place.state for place in found.places]) == pytest.approx(np.abs(expected), abs=1e-4)
    plane = watched.description()["plane"]
    assert plane["share"] == pytest.approx((values**2 / (values**2).sum())[:2], abs=1e-4)
    assert watched.description()["reading"]["measure"] == "R2"


@pytest.mark.parametrize(("share", "shown"), [(0.33, False), (0.34, True)])
def test_a_plane_with_less_than_a_third_of_the_variance_is_left_out(share, shown):
    """Beside the picture of the belief itself there is no other one."""
    watched = observer(model_of(HMM))
    centre, axes, _ = watched._principal
    watched.__dict__["_principal"] = centre, axes, np.array([share - 0.1, 0.1])
    plane = watched.description()["plane"]
    assert bool(plane["points"]) == bool(plane["colours"]) == shown
    assert plane["axes"] == ("principal" if shown else None)


def test_the_axes_of_the_probe_take_the_place_of_those_with_little_variance():
    watched = observer(model_of(CITY))
    centre, axes, _ = watched._principal
    watched.__dict__["_principal"] = centre, axes, np.array([0.1, 0.1])
    plane = watched.description()["plane"]
    assert plane["axes"] == "probe"
    read = watched._reading[0](watched._states)
    _, values, axes = np.linalg.svd(read - read.mean(0), full_matrices=False)
    assert plane["share"] == pytest.approx((values**2 / (values**2).sum())[:2], abs=1e-4)
    found = traced(watched)
    batch = collate(Examples.of([np.array([place.token for place in found.places])], [found.prompt]))
    with torch.no_grad():
        states = watched.predictor.states(batch).state[0].double().numpy()
    places = watched._reading[0](states) - read.mean(0)
    assert np.abs([place.state for place in found.places]) == pytest.approx(np.abs(places @ axes[:2].T), abs=1e-4)


def test_a_model_has_the_colour_of_its_objective():
    assert observer(model_of(HMM)).description()["colour"] == OBJECTIVE_COLOURS["next_token"]


def test_states_have_the_colours_of_their_exact_beliefs():
    """Those of the picture of beliefs beside the plane, where they have one."""
    model = model_of(HMM)
    found = observer(model).description()
    beliefs = model.task.beliefs(model.task.held_out()).reshape(-1, 3)
    shown = beliefs[np.linspace(0, len(beliefs) - 1, len(found["plane"]["points"])).round().astype(int)]
    colours = [f"#{red:02x}{green:02x}{blue:02x}" for red, green, blue in (shown * 225).astype(int).tolist()]
    assert found["plane"]["colours"] == colours
    assert found["plane"]["labels"] is None
    assert set(found["planes"][0]["colours"]) & set(colours)
    ride = observer(model_of(CITY)).description()["plane"]
    assert ride["colours"] is None
    assert len(ride["labels"]) == len(ride["points"])


def test_of_a_ride_the_true_crossing_is_known_until_a_turn_is_illegal():
    model = model_of(CITY)
    watched = observer(model)
    task, prompt = model.task, watched.held_out(0)
    at = int(prompt[0])
    legal = task.legal(prompt)
    wrong = next(token for token in range(task.N, task.N + 8) if token not in legal)
    found = traced(watched, forced=[int(legal[0]), wrong], limit=3)
    names = watched.description()["states"]
    labels = task.labels(Examples.of([np.array([place.token for place in found.places])], [2]))[0]
    assert labels[1] == at
    for label, place in zip(labels.tolist(), found.places):
        if label < 0:
            assert place.true is None
        else:
            ((index, weight),) = place.true
            assert (names[index], weight) == (task.streets.names[label], 1)
    assert labels[3] == -1
    assert found.places[3].legal == []
    scene = found.scene
    assert (scene["origin"], scene["destination"]) == tuple(prompt.tolist())
    assert {str(at), str(labels[2])} <= set(scene["crossings"])
    assert all(task.streets.neighbour[begin, token - task.N] == end for begin, end, token in scene["streets"])


def test_the_graph_of_a_prompt_is_drawn_and_of_what_is_none_nothing():
    task = path_star_model().task
    prompt = "0,1|1,2|2,3|0,4|4,5|5,6/0,3="
    edges = [[0, 1], [1, 2], [2, 3], [0, 4], [4, 5], [5, 6]]
    assert task.scene(task.encode(prompt)) == {"edges": edges, "start": 0, "goal": 3}
    for other in ("=", "0,1/0,1=", prompt[:-4], prompt.replace("5,6", "6,5"), "$=|/"):
        tokens = task.encode(other)
        assert task.scene(tokens) == {}
        assert len(task.legal(tokens)) in (0, len(task.vocab)) or other.endswith("=")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prompt": np.zeros(0, np.int64)}, "the prompt is empty"),
        ({"forced": [1] * 30}, "and the model's context is"),
        ({"goal": np.array([3])}, "cannot condition on a suffix"),
    ],
)
def test_what_cannot_be_traced_is_refused(fields, message):
    with pytest.raises(Refusal, match=message):
        traced(observer(path_star_model()), **fields)


def test_a_text_is_traced_without_a_world(tmp_path):
    model = story_model(tmp_path)
    watched = observer(model)
    found = traced(watched)
    assert found.places[0].true is None
    assert found.places[0].legal is None
    assert found.scene == {}
    assert watched.description()["view"] == "text"
    assert "".join(found.texts[place.token] for place in found.places[: found.prompt]).startswith("Once ")


@pytest.mark.parametrize(
    "task",
    [
        {"name": "automaton", "process": "flip-flop", "length": 16, "held_out_sequences": 30, "reveal_rate": 0.2},
        {"name": "countdown", "training_problems": 50, "held_out_problems": 30},
        {"name": "recall", "keys": 2, "values": 4, "chunk": 5, "distance": 1, "fillers": 2, "held_out_sequences": 30},
        {"name": "strips_traces", "held_out_traces": 30},
        {"name": "path_star", "degree": 2, "length": 4, "nodes": 9, "held_out_graphs": 12, "encoding": "reverse"},
        {**CITY, "row": 40},
        {"name": "hmm", "process": "mess3", "noise": 1.0, "held_out_sequences": 30},  # its belief never changes
    ],
    ids=lambda task: task["name"],
)
def test_whatever_is_typed_is_traced_or_refused(task):
    model, rng = model_of(task), np.random.default_rng(0)
    watched = observer(model)
    json.dumps(watched.description(), allow_nan=False)
    own = watched.held_out(0)
    for number in range(12):
        prompt = rng.integers(0, len(model.task.vocab), int(rng.integers(1, model.task.context + 1)))
        prompt = own[: 1 + number % len(own)] if number % 2 else prompt
        with contextlib.suppress(Refusal):  # of what is no beginning of a sequence
            assert len(traced(watched, prompt=prompt, limit=2).places) >= len(prompt)
