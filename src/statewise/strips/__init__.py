"""STRIPS world models from action traces: a wing for AI planning, which imports only `runtime` and `reporting`.

Its rooms, from the ground up: `model`, `trace_data`, `pddl`, `verification`, `neural`, `exact`, `observed`, `implicit`,
`rivals`, `asking`, `planning`, `write`, `amlgym`. Above them `methods` and `hybrid` choose and combine the ways to
learn, and `extracting` asks a predictor of actions what it implies.

This is the public interface: nothing outside imports its modules directly. `statewise strips VERB` on the command line
is `statewise.strips.VERB` in Python (`evaluate` is `trace_accuracy`, `verify`, `syntactic` and `applicability`). Each
name is imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from statewise.strips.amlgym.comparison import amlgym_methods as amlgym_methods
    from statewise.strips.amlgym.comparison import amlgym_summary as amlgym_summary
    from statewise.strips.amlgym.comparison import amlgym_trajectories as amlgym_trajectories
    from statewise.strips.amlgym.comparison import compare_on_amlgym as compare_on_amlgym
    from statewise.strips.asking.exploring import DomainSimulator as DomainSimulator
    from statewise.strips.asking.exploring import Simulator as Simulator
    from statewise.strips.asking.exploring import explore as explore
    from statewise.strips.asking.exploring import simulator_of as simulator_of
    from statewise.strips.asking.questions import Question as Question
    from statewise.strips.asking.questions import answered as answered
    from statewise.strips.asking.questions import ask as ask
    from statewise.strips.asking.questions import read_answers as read_answers
    from statewise.strips.asking.questions import with_answers as with_answers
    from statewise.strips.asking.questions import write_questions as write_questions
    from statewise.strips.exact.ground import learn_exact as learn_exact
    from statewise.strips.exact.lifted import learn_lifted_exact as learn_lifted_exact
    from statewise.strips.exact.noisy import learn_lifted_noisy as learn_lifted_noisy
    from statewise.strips.exact.noisy import learn_noisy as learn_noisy
    from statewise.strips.exact.symmetry import symmetric as symmetric
    from statewise.strips.extracting import Acceptance as Acceptance
    from statewise.strips.extracting import ActionPredictor as ActionPredictor
    from statewise.strips.extracting import Extracted as Extracted
    from statewise.strips.extracting import extract as extract
    from statewise.strips.hybrid import learn_hybrid as learn_hybrid
    from statewise.strips.implicit.alignment import compared_with as compared_with
    from statewise.strips.implicit.learning import learn_implicit as learn_implicit
    from statewise.strips.methods import METHODS as METHODS
    from statewise.strips.methods import learn as learn
    from statewise.strips.methods import learn_schemas as learn_schemas
    from statewise.strips.model.learned import PICTURE_SIGNS as PICTURE_SIGNS
    from statewise.strips.model.learned import PICTURES as PICTURES
    from statewise.strips.model.learned import Learned as Learned
    from statewise.strips.model.learned import read_learned_model as read_learned_model
    from statewise.strips.model.learned import read_schemas as read_schemas
    from statewise.strips.model.model import ActionModel as ActionModel
    from statewise.strips.model.model import Atoms as Atoms
    from statewise.strips.model.schemas import LiftedModel as LiftedModel
    from statewise.strips.model.schemas import ground as ground
    from statewise.strips.model.schemas import schema_lines as schema_lines
    from statewise.strips.model.schemas import signature as signature
    from statewise.strips.model.states import Observed as Observed
    from statewise.strips.model.states import State as State
    from statewise.strips.model.traces import Traces as Traces
    from statewise.strips.neural.learning import Settings as Settings
    from statewise.strips.neural.learning import learn_neural as learn_neural
    from statewise.strips.neural.lifted import learn_lifted as learn_lifted
    from statewise.strips.observed.learning import Names as Names
    from statewise.strips.observed.learning import learn_observed as learn_observed
    from statewise.strips.pddl.domain_models import actions_of_domain as actions_of_domain
    from statewise.strips.pddl.domain_models import model_of_domain as model_of_domain
    from statewise.strips.pddl.pddl import read_domain as read_domain
    from statewise.strips.pddl.pddl import read_problem as read_problem
    from statewise.strips.pddl.signature import Declared as Declared
    from statewise.strips.pddl.signature import domain_text as domain_text
    from statewise.strips.pddl.signature import read_declared as read_declared
    from statewise.strips.planning.checking import Checked as Checked
    from statewise.strips.planning.checking import check as check
    from statewise.strips.planning.checking import described as described
    from statewise.strips.planning.checking import read_seen as read_seen
    from statewise.strips.planning.checking_states import StateBounds as StateBounds
    from statewise.strips.planning.checking_states import check_states as check_states
    from statewise.strips.planning.checking_states import read_state_bounds as read_state_bounds
    from statewise.strips.planning.metrics import applicability as applicability
    from statewise.strips.planning.metrics import problem_solving as problem_solving
    from statewise.strips.planning.metrics import syntactic as syntactic
    from statewise.strips.planning.metrics import trace_accuracy as trace_accuracy
    from statewise.strips.planning.plans import Plan as Plan
    from statewise.strips.planning.plans import certain_plan as certain_plan
    from statewise.strips.planning.plans import certain_steps as certain_steps
    from statewise.strips.planning.plans import plan as plan
    from statewise.strips.rivals.locm import learn_locm as learn_locm
    from statewise.strips.trace_data.domains import FAMILIES as FAMILIES
    from statewise.strips.trace_data.domains import Domain as Domain
    from statewise.strips.trace_data.domains import domain as domain
    from statewise.strips.trace_data.domains import domain_usage as domain_usage
    from statewise.strips.trace_data.implicit_logs import implicit_log as implicit_log
    from statewise.strips.trace_data.implicit_logs import named_arguments as named_arguments
    from statewise.strips.trace_data.implicit_logs import with_states as with_states
    from statewise.strips.trace_data.implicit_logs import write_observed as write_observed
    from statewise.strips.trace_data.random_traces import SPLITS as SPLITS
    from statewise.strips.trace_data.random_traces import traces as traces
    from statewise.strips.trace_data.random_traces import with_noise as with_noise
    from statewise.strips.trace_data.state_files import read_observed as read_observed
    from statewise.strips.trace_data.trace_files import read_traces as read_traces
    from statewise.strips.trace_data.trace_files import write_traces as write_traces
    from statewise.strips.verification.mapping import match_atoms as match_atoms
    from statewise.strips.verification.mapping import renamed as renamed
    from statewise.strips.verification.simplification import Simplified as Simplified
    from statewise.strips.verification.simplification import before_simplification as before_simplification
    from statewise.strips.verification.simplification import claimed as claimed
    from statewise.strips.verification.simplification import simplify as simplify
    from statewise.strips.verification.simplification import write_simplified as write_simplified
    from statewise.strips.verification.verification import verify as verify
    from statewise.strips.write.pddl_export import export as export
    from statewise.strips.write.pddl_export import export_lifted as export_lifted
    from statewise.strips.write.pictures import MOST_DRAWN as MOST_DRAWN
    from statewise.strips.write.pictures import save_attention as save_attention
    from statewise.strips.write.pictures import save_model as save_model
    from statewise.strips.write.pictures import save_models as save_models
    from statewise.strips.write.pictures import save_schemas as save_schemas
    from statewise.strips.write.pictures import save_theta as save_theta
    from statewise.strips.write.showing import model_table as model_table
    from statewise.strips.write.showing import parse_trace as parse_trace
    from statewise.strips.write.showing import show as show

PUBLIC = {
    "asking.exploring": ("DomainSimulator", "Simulator", "explore", "simulator_of"),
    "asking.questions": ("Question", "answered", "ask", "read_answers", "with_answers", "write_questions"),
    "amlgym.comparison": ("amlgym_methods", "amlgym_summary", "amlgym_trajectories", "compare_on_amlgym"),
    "exact.ground": ("learn_exact",),
    "exact.lifted": ("learn_lifted_exact",),
    "exact.noisy": ("learn_lifted_noisy", "learn_noisy"),
    "exact.symmetry": ("symmetric",),
    "extracting": ("Acceptance", "ActionPredictor", "Extracted", "extract"),
    "hybrid": ("learn_hybrid",),
    "implicit.alignment": ("compared_with",),
    "implicit.learning": ("learn_implicit",),
    "methods": ("METHODS", "learn", "learn_schemas"),
    "model.learned": ("PICTURES", "PICTURE_SIGNS", "Learned", "read_learned_model", "read_schemas"),
    "model.model": ("ActionModel", "Atoms"),
    "model.schemas": ("LiftedModel", "ground", "schema_lines", "signature"),
    "model.states": ("Observed", "State"),
    "model.traces": ("Traces",),
    "neural.learning": ("Settings", "learn_neural"),
    "neural.lifted": ("learn_lifted",),
    "pddl.domain_models": ("actions_of_domain", "model_of_domain"),
    "observed.learning": ("Names", "learn_observed"),
    "pddl.pddl": ("read_domain", "read_problem"),
    "pddl.signature": ("Declared", "domain_text", "read_declared"),
    "planning.checking": ("Checked", "check", "described", "read_seen"),
    "planning.checking_states": ("StateBounds", "check_states", "read_state_bounds"),
    "planning.metrics": ("applicability", "problem_solving", "syntactic", "trace_accuracy"),
    "planning.plans": ("Plan", "certain_plan", "certain_steps", "plan"),
    "rivals.locm": ("learn_locm",),
    "trace_data.domains": ("FAMILIES", "Domain", "domain", "domain_usage"),
    "trace_data.implicit_logs": ("implicit_log", "named_arguments", "with_states", "write_observed"),
    "trace_data.random_traces": ("SPLITS", "traces", "with_noise"),
    "trace_data.state_files": ("read_observed",),
    "trace_data.trace_files": ("read_traces", "write_traces"),
    "verification.mapping": ("match_atoms", "renamed"),
    "verification.simplification": ("Simplified", "before_simplification", "claimed", "simplify", "write_simplified"),
    "verification.verification": ("verify",),
    "write.pddl_export": ("export", "export_lifted"),
    "write.pictures": ("MOST_DRAWN", "save_attention", "save_model", "save_models", "save_schemas", "save_theta"),
    "write.showing": ("model_table", "parse_trace", "show"),
}
"""Modules, each with its public names."""
MODULE_OF = {name: module for module, names in PUBLIC.items() for name in names}
__all__ = [*MODULE_OF]

if not TYPE_CHECKING:  # type checkers get the names from the imports above

    def __getattr__(name: str) -> Any:
        if name not in MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{__name__}.{MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *MODULE_OF])
