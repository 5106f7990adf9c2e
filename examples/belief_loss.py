"""Compares next-latent and next-token prediction on a process whose exact belief is known.

    python examples/belief_loss.py [STEPS]

Half a minute on a CPU. The process RRXOR repeats two random bits and their exclusive or. R^2 is the share of the exact
belief that an affine map of the last state explains, the excess the loss above the least possible one. After so few
steps the two objectives are close; after 3,000 steps of the recipe's own model R^2 is .99 with next latents, .82 with
next tokens (docs/results/beliefs.md).
"""

import sys
import tempfile
from pathlib import Path

import statewise

OBJECTIVES: dict[str, dict[str, int]] = {"next_token": {}, "next_latent": {"horizon": 4}}


def main(steps: int = 300) -> dict[str, float]:
    """Returns R^2 of the belief by objective."""
    found = {}
    backbone = {"layers": 2, "width": 32, "heads": 2}
    trainer = {"steps": steps, "warmup_steps": 1, "learning_rate": 3e-3, "threads": 1}
    with tempfile.TemporaryDirectory() as folder:
        for name, fields in OBJECTIVES.items():
            run = Path(folder) / name
            statewise.train("hmm-rrxor", objective={"name": name, **fields}, backbone=backbone, **trainer, out=run)
            model = statewise.load(run)
            findings = model.analyze("belief-geometry")
            found[name] = findings.metrics["r2"]
            excess = model.evaluate().metrics["excess"]
            print(f"{name:12} excess {excess:.4f} nats per token, R^2 {found[name]:.2f}. {findings.verdict}")
    return found


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
