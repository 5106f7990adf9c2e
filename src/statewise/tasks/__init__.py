"""Tasks: sources of sequences, and scores of answers; corpora, and batches of examples.

Tasks use NumPy, never torch; only `batches` imports torch. Imports `beliefs` and `config`, and the public names of
`strips` for tasks on traces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from statewise.config.registry import Table

if TYPE_CHECKING:
    from statewise.tasks.base import Task

__all__ = ["TASKS"]

TASKS: Table[Task] = Table(
    "task",
    "tasks",
    "statewise.tasks.base:Task",
    {
        "automaton": (
            "statewise.tasks.state_tracking.task:StateTracking",
            "track the state of a finite automaton: flip-flop, parity, groups, brackets, your own table",
        ),
        "countdown": ("statewise.tasks.countdown:Countdown", "combine given numbers by + - * / to reach a target"),
        "hmm": ("statewise.tasks.hmm:Hmm", "hidden Markov processes whose beliefs are known exactly"),
        "manhattan": (
            "statewise.tasks.manhattan.task:Manhattan",
            "taxi rides through a city of one-way streets, on your map or a grid",
        ),
        "path_star": ("statewise.tasks.path_star:PathStar", "find the arm of a star graph that ends at the goal"),
        "pomdp": (
            "statewise.tasks.pomdp:PomdpTask",
            "actions and observations of a decision process whose beliefs are known exactly",
        ),
        "recall": ("statewise.tasks.recall:Recall", "keys given in the first chunk, queried in a later one"),
        "sequences": (
            "statewise.tasks.own_files.sequences:Sequences",
            "your own sequences: text, JSON, CSV, event logs (also XES), FASTA",
        ),
        "stories": ("statewise.tasks.text.stories:Stories", "short stories, left to right or towards a known ending"),
        "strips_traces": ("statewise.tasks.strips_traces:StripsTraces", "action traces of a planning domain"),
        "text": ("statewise.tasks.text.task:Text", "text from a corpus of your own documents"),
    },
)
