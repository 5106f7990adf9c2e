"""statewise strips: the wing for action models. A file a verb, as in the folder above."""

from __future__ import annotations

import importlib

VERBS = {
    "traces": "draw random traces from a domain",
    "learn": "learn an action model from traces",
    "show": "an action model as text and pictures",
    "verify": "is a model equivalent to another? exactly, with a shortest counterexample",
    "evaluate": "judge a model by traces, and against a true model",
    "export": "write a model as PDDL",
    "plan": "plan with a learned model, by a real planner",
    "reproduce": "the paper's Table 1 and what lies beyond it",
}


def run(words: list[str]) -> int:
    """Hands on to the verb."""
    if not words or words[0] in ("-h", "--help"):
        from statewise.strips.domains import FAMILIES, form

        print("usage: statewise strips VERB ...   (statewise strips VERB --help explains a verb)\n")
        print(*(f"  {verb:10} {what}" for verb, what in VERBS.items()), sep="\n")
        print(f"\nDomains: {', '.join(form(family) for family in FAMILIES)}; or a PDDL domain and problem.")
        return 0 if words else 2
    if words[0] not in VERBS:
        from statewise.config import unknown

        raise ValueError(unknown("strips verb", words[0], VERBS))
    code: int = importlib.import_module(f"statewise.cli.strips.{words[0]}").run(words[1:])
    return code
