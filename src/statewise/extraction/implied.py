"""What `statewise strips extract` finds, as an analysis of a run, so that suites and comparisons can list it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from statewise.analysis.base import Analysis, Findings, Subject
from statewise.decoding.predictor import Predictor
from statewise.extraction.prediction import SequencePredictor
from statewise.runtime.bounds import bounded
from statewise.runtime.messages import LacksCapability, counted, percent
from statewise.strips import Acceptance, Extracted, extract, trace_accuracy, traces, verify
from statewise.tasks.base import Task
from statewise.tasks.strips_traces import StripsTraces

VERIFYING = 20.0
"""The most seconds for comparing with the true domain."""
LENGTH = 50
"""The most actions of a test trace, as in the STRIPS Transformer paper."""


@dataclass(frozen=True)
class StripsExtractConfig:
    """Options of `statewise analyze RUN strips-extract`."""

    questions: int = 1000
    """Number of questions: beginnings of traces, each with all actions."""
    seconds: float = 60.0
    """Time limit in seconds, without the comparison with the true domain."""
    share: float = 0.1
    """An action is accepted from this share of the uniform probability on."""
    test_traces: int = 2000
    """Test traces on which the extracted model is judged, half of them impossible."""
    extract_seed: int = 1
    """Seed of all that is drawn."""

    def __post_init__(self) -> None:
        bounded(self, "questions", "test_traces", at_least=1, at_most=10**6)
        bounded(self, "seconds", above=0)
        bounded(self, "extract_seed", at_least=0)
        Acceptance(share=self.share)


class StripsExtract(Analysis):
    """Extracts the action model that a model of the task strips_traces implies, and compares it with the true one."""

    Config = StripsExtractConfig
    config: StripsExtractConfig

    def check(self, task: Task, predictor: Callable[[], Predictor]) -> None:
        """Raises `LacksCapability` for another task than strips_traces, whose true domain is known."""
        if not isinstance(task, StripsTraces):
            raise LacksCapability(
                "strips-extract needs the task strips_traces; for logs of your own use `statewise strips extract`",
                StripsTraces,
            )

    def analyze(self, subject: Subject) -> Findings:
        """Metrics: `equivalent`, 1 if the extracted model is proven equivalent to the true domain on all traces that
        can be drawn from it, else 0; `test_accuracy`, the share of test traces judged right, with `valid_accuracy` and
        `invalid_accuracy` of the possible and the impossible ones; `fidelity`, the share of the answers in fresh traces
        on which both models agree; `questions`; `noisy`, 1 if answers are treated as wrong in part; `schemas`, 1 if
        schemas explain the answers; `seconds` of CPU time."""
        self.check(subject.task, lambda: subject.snapshot.predictor)
        assert isinstance(subject.task, StripsTraces)
        config, domain = self.config, subject.task.domain
        acceptance = Acceptance(share=config.share)
        begun = time.process_time()
        predictor = SequencePredictor(subject, subject.snapshot.predictor)
        made = extract(
            predictor,
            questions=config.questions,
            seconds=config.seconds,
            seed=config.extract_seed,
            acceptance=acceptance,
        )
        seconds = time.process_time() - begun
        found = verify(made.model, domain, drawn_only=True, seconds=VERIFYING)
        judged = trace_accuracy(
            made.model, traces(domain, config.test_traces, LENGTH, config.extract_seed, negatives=0.5, split="test")
        )
        metrics = {
            "equivalent": float(found.outcome == "equivalent"),
            "test_accuracy": judged["accuracy"],
            "valid_accuracy": judged["positives"],
            "invalid_accuracy": judged["negatives"],
            "fidelity": made.agreement.share,
            "questions": float(made.questions),
            "noisy": float(made.noisy),
            "schemas": float(made.schemas is not None),
            "seconds": seconds,
        }
        details = {
            "domain": domain.name,
            "outcome": found.outcome,
            "reason": found.reason,
            "counterexample": found.counterexample,
            "accepted_by": found.accepted_by,
            "extracted": made.report,
            "model": made.schemas.as_lines(120) if made.schemas is not None else None,
        }
        notes = [] if found.counterexample is None else [_wrong(found.counterexample, found.accepted_by == "learned")]
        main = ["equivalent", "test_accuracy", "fidelity"]
        return Findings(metrics, [], details, notes, main=main, verdict=_verdict(made, found.outcome, metrics))


def _verdict(made: Extracted, outcome: str, metrics: dict[str, float]) -> str:
    compared = {"equivalent": "is equivalent to", "different": "differs from"}.get(outcome, "may differ from")
    kind = "schemas" if made.schemas is not None else "ground atoms"
    return (
        f"The extracted model of {kind} {compared} the true domain: it judges {percent(metrics['test_accuracy'])} of "
        f"the test traces right, and agrees with the sequence model in {percent(metrics['fidelity'])} of the answers "
        f"to {counted(made.questions, 'question')}."
    )


def _wrong(trace: tuple[str, ...], accepts: bool) -> str:
    """What is wrong in the extracted model."""
    does = "accepts" if accepts else "rejects"
    return f"the extracted model {does} the last action of this trace, wrongly: {', '.join(trace)}"
