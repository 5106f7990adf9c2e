"""statewise strips: a file per verb. Of the library it imports `strips`, `reporting` and `runtime`;
`extract` also loads a run."""

from __future__ import annotations

from statewise.cli.commands import dispatch, in_modules

COMMANDS = {
    "traces": "draw random traces from a domain",
    "explore": "draw the traces from a simulator that show most",
    "learn": "learn an action model from traces",
    "extract": "extract the action model that a trained sequence model implies",
    "show": "show a model as text and plots",
    "verify": "decide equivalence with a reference, or find a shortest counterexample",
    "check": "say which new traces are certainly valid or invalid",
    "ask": "list the shortest traces that would settle what is open",
    "evaluate": "score a model on traces and against a true model",
    "simplify": "find the simplest equivalent model, each step proven",
    "export": "write a model as PDDL",
    "plan": "plan with a learned model",
    "amlgym": "compare learners on AMLGym's domains",
}


def run(words: list[str]) -> int:
    """Runs a subcommand."""
    return dispatch(words, COMMANDS, "statewise strips", in_modules(__name__), _domains)


def _domains() -> str:
    from statewise.strips import FAMILIES, domain_usage

    names = "\n".join(f"  {domain_usage(family)}" for family in FAMILIES)
    return f"domains (or a PDDL domain and problem):\n{names}"
