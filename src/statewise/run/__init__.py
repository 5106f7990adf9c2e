"""The run directory, one per training run. Only this room knows its file names and formats. Imports `runtime`.

    config.json         the resolved recipe
    environment.json    what else determines the numbers: device, precision, threads, versions; the number of steps;
                        the commit of a model on the hub
    data.json           checksums that identify the data, and the tokenizer
    .creating           present while the run is created: without config.json, creation may be restarted
    task/               files that the task needs to be rebuilt without its data
    metrics.jsonl       every number printed during training, one record per line
    checkpoints/        step-00000500/ with weights.safetensors, training.pt, manifest.json; best.json. Of a sharded
                        model weights-00001-of-00008.safetensors and so on instead, until training ends, and
                        moments-00001-of-00008.safetensors with the optimiser's tensors, which are not in training.pt
    reports/            results of later commands
    cache/              arrays that later commands would otherwise recompute; may be deleted at any time

Files are written durably, and config.json last, so that after a kill at any moment every file is either the previous or
the new complete version. Checkpoints have checksums. None of the folders is written through if it is a link.
"""

from statewise.run.checkpoint import MOMENTS, TRAINING, WEIGHTS, WHOLE, Checkpoint, DamagedCheckpoint, check_checkpoint
from statewise.run.folder import (
    CONFIG,
    CONVERTED,
    FILES,
    FINISHED,
    METRICS,
    SIGNS,
    Record,
    Replaced,
    Run,
    evaluation_of,
    evaluation_on,
    named,
    named_path,
    report_of,
    shortened,
)

__all__ = [
    "CONFIG",
    "CONVERTED",
    "FILES",
    "FINISHED",
    "METRICS",
    "MOMENTS",
    "SIGNS",
    "TRAINING",
    "WEIGHTS",
    "WHOLE",
    "Checkpoint",
    "DamagedCheckpoint",
    "Record",
    "Replaced",
    "Run",
    "check_checkpoint",
    "evaluation_of",
    "evaluation_on",
    "named",
    "named_path",
    "report_of",
    "shortened",
]
