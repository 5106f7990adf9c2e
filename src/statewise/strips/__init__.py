"""STRIPS world models from action traces: a separate subpackage for AI planning, which imports without the rest.

This is its public interface: nothing outside imports its modules directly. `statewise strips VERB` on the command line
is `statewise.strips.VERB` in Python (`evaluate` is `trace_accuracy`, `verify`, `syntactic` and `applicability`). Each
name is imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from statewise.strips.certain_plans import certain_plan as certain_plan
    from statewise.strips.certain_plans import certain_steps as certain_steps
    from statewise.strips.checking import check as check
    from statewise.strips.checking import described as described
    from statewise.strips.checking import read_seen as read_seen
    from statewise.strips.domains import FAMILIES as FAMILIES
    from statewise.strips.domains import Domain as Domain
    from statewise.strips.domains import domain as domain
    from statewise.strips.domains import domain_usage as domain_usage
    from statewise.strips.exact.ground import learn_exact as learn_exact
    from statewise.strips.exact.hybrid import learn_hybrid as learn_hybrid
    from statewise.strips.exact.lifted import learn_lifted_exact as learn_lifted_exact
    from statewise.strips.exact.locm import learn_locm as learn_locm
    from statewise.strips.exact.noisy import learn_noisy as learn_noisy
    from statewise.strips.exact.noisy_lifted import learn_lifted_noisy as learn_lifted_noisy
    from statewise.strips.exact.symmetry import symmetric as symmetric
    from statewise.strips.learned import PICTURE_SIGNS as PICTURE_SIGNS
    from statewise.strips.learned import PICTURES as PICTURES
    from statewise.strips.learned import Learned as Learned
    from statewise.strips.learned import read_learned_model as read_learned_model
    from statewise.strips.learned import read_schemas as read_schemas
    from statewise.strips.learning import learn_neural as learn_neural
    from statewise.strips.lifted import learn_lifted as learn_lifted
    from statewise.strips.lifted_pddl import export_lifted as export_lifted
    from statewise.strips.mapping import match_atoms as match_atoms
    from statewise.strips.mapping import renamed as renamed
    from statewise.strips.methods import METHODS as METHODS
    from statewise.strips.methods import learn as learn
    from statewise.strips.methods import learn_schemas as learn_schemas
    from statewise.strips.metrics import applicability as applicability
    from statewise.strips.metrics import problem_solving as problem_solving
    from statewise.strips.metrics import syntactic as syntactic
    from statewise.strips.metrics import trace_accuracy as trace_accuracy
    from statewise.strips.model import ActionModel as ActionModel
    from statewise.strips.model import Atoms as Atoms
    from statewise.strips.pddl import read_domain as read_domain
    from statewise.strips.pddl import read_problem as read_problem
    from statewise.strips.pddl_export import export as export
    from statewise.strips.pictures import MOST_DRAWN as MOST_DRAWN
    from statewise.strips.pictures import save_attention as save_attention
    from statewise.strips.pictures import save_model as save_model
    from statewise.strips.pictures import save_models as save_models
    from statewise.strips.pictures import save_schemas as save_schemas
    from statewise.strips.pictures import save_theta as save_theta
    from statewise.strips.planning import Plan as Plan
    from statewise.strips.planning import plan as plan
    from statewise.strips.random_traces import SPLITS as SPLITS
    from statewise.strips.random_traces import Traces as Traces
    from statewise.strips.random_traces import traces as traces
    from statewise.strips.random_traces import with_noise as with_noise
    from statewise.strips.reproduction import reproduce as reproduce
    from statewise.strips.reproduction_report import reproduction_text as reproduction_text
    from statewise.strips.reproduction_report import save_costs as save_costs
    from statewise.strips.reproduction_report import save_reproduction as save_reproduction
    from statewise.strips.schemas import ground as ground
    from statewise.strips.schemas import schema_lines as schema_lines
    from statewise.strips.settings import Settings as Settings
    from statewise.strips.showing import model_table as model_table
    from statewise.strips.showing import parse_trace as parse_trace
    from statewise.strips.showing import show as show
    from statewise.strips.signatures import signature as signature
    from statewise.strips.simplification import Simplified as Simplified
    from statewise.strips.simplification import before_simplification as before_simplification
    from statewise.strips.simplification import claimed as claimed
    from statewise.strips.simplification import simplify as simplify
    from statewise.strips.simplification import write_simplified as write_simplified
    from statewise.strips.trace_files import read_traces as read_traces
    from statewise.strips.trace_files import write_traces as write_traces
    from statewise.strips.verification import verify as verify

PUBLIC = {
    "certain_plans": ("certain_plan", "certain_steps"),
    "checking": ("check", "described", "read_seen"),
    "domains": ("FAMILIES", "Domain", "domain", "domain_usage"),
    "exact.ground": ("learn_exact",),
    "exact.hybrid": ("learn_hybrid",),
    "exact.lifted": ("learn_lifted_exact",),
    "exact.locm": ("learn_locm",),
    "exact.noisy": ("learn_noisy",),
    "exact.noisy_lifted": ("learn_lifted_noisy",),
    "exact.symmetry": ("symmetric",),
    "learned": ("PICTURE_SIGNS", "PICTURES", "Learned", "read_learned_model", "read_schemas"),
    "learning": ("learn_neural",),
    "lifted": ("learn_lifted",),
    "lifted_pddl": ("export_lifted",),
    "mapping": ("match_atoms", "renamed"),
    "methods": ("METHODS", "learn", "learn_schemas"),
    "metrics": ("applicability", "problem_solving", "syntactic", "trace_accuracy"),
    "model": ("ActionModel", "Atoms"),
    "pddl": ("read_domain", "read_problem"),
    "pddl_export": ("export",),
    "pictures": ("MOST_DRAWN", "save_attention", "save_model", "save_models", "save_schemas", "save_theta"),
    "planning": ("Plan", "plan"),
    "random_traces": ("SPLITS", "Traces", "traces", "with_noise"),
    "reproduction": ("reproduce",),
    "reproduction_report": ("reproduction_text", "save_costs", "save_reproduction"),
    "schemas": ("ground", "schema_lines"),
    "settings": ("Settings",),
    "showing": ("model_table", "parse_trace", "show"),
    "signatures": ("signature",),
    "simplification": ("Simplified", "before_simplification", "claimed", "simplify", "write_simplified"),
    "trace_files": ("read_traces", "write_traces"),
    "verification": ("verify",),
}
"""Modules, each with its public names."""
MODULE_OF = {name: module for module, names in PUBLIC.items() for name in names}

if not TYPE_CHECKING:  # type checkers get the names from the imports above

    def __getattr__(name: str) -> Any:
        if name not in MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{__name__}.{MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *MODULE_OF])
