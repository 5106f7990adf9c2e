"""LOCM (Cresswell, McCluskey and West) as in macq 0.3.11, corrected. Run by benchmarks/peers/compare.py.

PYTHON-WITH-MACQ benchmarks/peers/locm.py < request.json > answer.json

The request holds {"traces": [[["stack", "b1", "b2"], ...], ...]}, all of them valid; the answer holds the learned
schemas {"stack": {"pre": [["sort1_state0", [0]], ...], "add": ..., "delete": ...}}, the seconds of learning, and what
was corrected. The state machines of objects (step 1), the hypotheses about state parameters and their merging (steps 3
and 4) are macq's own. What is put right is listed in CORRECTIONS, which the table of results quotes.
"""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from importlib.metadata import version
from itertools import pairwise
from types import SimpleNamespace

from macq.extract.locm import AP, LOCM, StatePointers
from macq.trace import Action, PlanningObject

CORRECTIONS = [
    "step 7: a literal is a state with the positions of its arguments, for each argument of an action. macq tells "
    "literals of one action apart by the state alone: two arguments in the same state share the first one's literal, "
    "to which the parameters of both are appended, and an action that changes only a parameter of a state has no "
    "effect",
    "step 5: a state parameter is dropped unless every transition into and out of its state gives its value. macq "
    "looks only at transitions that occur in hypotheses, and leaves literals of one state with different numbers of "
    "arguments",
    "several traces: objects are others in each trace, so that no transition leads from one trace into the next, and "
    "the zero object starts anew. macq reads the first trace alone",
    "sorts are the classes of argument positions that share objects. macq shifts the numbers of unrelated sorts when "
    "it unites two",
]


def learn(traces: list[list[list[str]]]) -> dict[str, dict[str, list[tuple[str, list[int]]]]]:
    """The schemas that LOCM finds in valid traces."""
    sort_of = sorts(traces)
    observations, names = [], {}
    for place, trace in enumerate(traces):
        for schema, *objects in trace:
            own = [PlanningObject("object", f"{name} in {place}") for name in objects]
            names.update({mine.name: sort_of[schema, at] for at, mine in enumerate(own)})
            observations.append(SimpleNamespace(action=Action(schema, own)))
    transitions, pointers, states = LOCM._step1(observations, names)
    pointers[0], states[0] = zero_machine(traces)
    parameters = sound_parameters(LOCM._step4(LOCM._step3(transitions, pointers, states, names)), pointers, states)
    return schemas(pointers, states, parameters)


def sorts(traces: list[list[list[str]]]) -> dict[tuple[str, int], int]:
    """The sort of each argument position, from 1: positions that an object has filled both are of one sort."""
    parent: dict[object, object] = {}

    def root(item: object) -> object:
        while parent.setdefault(item, item) != item:
            item = parent[item]
        return item

    positions = {}
    for trace in traces:
        for schema, *objects in trace:
            for at, name in enumerate(objects):
                positions[schema, at] = None
                parent[root((schema, at))] = root(name)
    number: dict[object, int] = {}
    return {position: number.setdefault(root(position), len(number) + 1) for position in positions}


def zero_machine(traces: list[list[list[str]]]) -> tuple[dict[AP, StatePointers], list[set[int]]]:
    """The machine of the object that every action has; it starts anew with every trace. Empty if it has one state."""
    pointers: dict[str, StatePointers] = {}
    follows = set()
    for trace in traces:
        schemas_in_order = [step[0] for step in trace]
        for schema in schemas_in_order:
            pointers.setdefault(schema, StatePointers(2 * len(pointers), 2 * len(pointers) + 1))
        follows.update(pairwise(schemas_in_order))
    states = [{state} for pair in pointers.values() for state in pair]
    for before, after in follows:
        one, other = (next(s for s in states if p in s) for p in (pointers[before].end, pointers[after].start))
        if one is not other:
            one |= other
            states.remove(other)
    if len(states) < 2:
        return {}, []
    return {AP(Action(name, []), 0, 0): pair for name, pair in pointers.items()}, states


def place_in(states: list[set[int]], pointer: int) -> int:
    """The number of the state that a pointer points to."""
    return next(number for number, state in enumerate(states) if pointer in state)


def sound_parameters(bindings, pointers, states):
    """(sort, state) -> its parameters, each as ({transition in: argument position}, {transition out: position})."""
    found = defaultdict(list)
    for sort, of_states in bindings.items():
        for state, bound in of_states.items():
            entering = {ap for ap, ends in pointers[sort].items() if place_in(states[sort], ends.end) == state}
            leaving = {ap for ap, ends in pointers[sort].items() if place_in(states[sort], ends.start) == state}
            for parameter in sorted({each.param for each in bound}):
                hypotheses = [each.hypothesis for each in bound if each.param == parameter]
                sets = position_of((h.B, h.k_) for h in hypotheses)
                reads = position_of((h.C, h.l_) for h in hypotheses)
                if sets.keys() == entering and reads.keys() == leaving:
                    found[sort, state].append((sets, reads))
    return found


def position_of(pairs) -> dict[AP, int]:
    """The one position at which each transition has a parameter."""
    found: dict[AP, int] = {}
    for ap, position in pairs:
        if found.setdefault(ap, position) != position:
            raise ValueError(
                f"{ap.action.name}: arguments {found[ap]} and {position} are both the same state parameter"
            )
    return found


def schemas(pointers, states, parameters):
    """Literals of each action: the states its objects are in, deleted if they get into others, and those, added."""
    made = defaultdict(lambda: {"pre": [], "add": [], "delete": []})
    for sort, transitions in pointers.items():
        for ap, ends in transitions.items():
            own = [ap.pos - 1] if ap.pos else []
            before, after = (place_in(states[sort], pointer) for pointer in ends)
            start = (f"sort{sort}_state{before}", own + [reads[ap] - 1 for _, reads in parameters[sort, before]])
            end = (f"sort{sort}_state{after}", own + [sets[ap] - 1 for sets, _ in parameters[sort, after]])
            made[ap.action.name]["pre"].append(start)
            if start != end:
                made[ap.action.name]["delete"].append(start)
                made[ap.action.name]["add"].append(end)
    return made


def main() -> None:
    traces = json.load(sys.stdin)["traces"]
    started = time.perf_counter()
    learned = learn(traces)
    seconds = time.perf_counter() - started
    json.dump({"schemas": learned, "seconds": seconds, "macq": version("macq"), "corrections": CORRECTIONS}, sys.stdout)


if __name__ == "__main__":
    main()
