"""OBSERVER (Wang, 1994) of macq 0.3.11, which sees states. Run by benchmarks/peers/compare.py.

PYTHON-WITH-MACQ benchmarks/peers/observer.py < request.json > answer.json

The request holds {"atoms": ["at l0", ...], "traces": [[[["at l0"], "sail l0 l1"], ..., [["at l1"], null]], ...]}: for
each step the true atoms and the action that is taken there. The answer holds the learned ground actions
{"sail l0 l1": {"pre": [...], "add": [...], "delete": [...]}} and the seconds of learning. An action that was never
taken is not in it.
"""

from __future__ import annotations

import json
import sys
import time
from importlib.metadata import version

from macq.extract import Extract, modes
from macq.observation import IdentityObservation
from macq.trace import Action, Fluent, State, Step, Trace, TraceList


def learn(atoms: list[str], traces: list[list[list]]) -> dict[str, dict[str, list[str]]]:
    """The model that OBSERVER extracts. Atoms and ground actions are given as symbols without arguments."""
    fluents = {atom: Fluent(f"f{place}", []) for place, atom in enumerate(atoms)}
    name = {str(fluent): atom for atom, fluent in fluents.items()}
    numbers: dict[str, str] = {}
    made = TraceList()
    for trace in traces:
        steps = []
        for place, (true, action) in enumerate(trace):
            state = State({fluents[atom]: atom in true for atom in atoms})
            number = None if action is None else numbers.setdefault(action, f"a{len(numbers)}")
            steps.append(Step(state, None if number is None else Action(number, []), place + 1))
        made.append(Trace(steps))
    model = Extract(made.tokenize(IdentityObservation), modes.OBSERVER)
    named = {number: action for action, number in numbers.items()}
    return {
        named[action.name]: {
            part: [name[str(each)] for each in found]
            for part, found in (("pre", action.precond), ("add", action.add), ("delete", action.delete))
        }
        for action in model.actions
    }


def main() -> None:
    request = json.load(sys.stdin)
    started = time.perf_counter()
    learned = learn(request["atoms"], [[[set(true), action] for true, action in each] for each in request["traces"]])
    seconds = time.perf_counter() - started
    json.dump({"actions": learned, "seconds": seconds, "macq": version("macq")}, sys.stdout)


if __name__ == "__main__":
    main()
