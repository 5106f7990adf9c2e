"""Settings of training, and when a restart stops."""

from __future__ import annotations

from dataclasses import dataclass

from statewise.runtime.bounds import bounded


@dataclass(frozen=True)
class Settings:
    """Settings of training. Optimiser, batch size and learning rate are those of the paper."""

    atoms: int | None = None
    """Heads per restart. None if the number of atoms is unknown: then there are twice as many heads as actions."""
    restarts: int = 10
    """Number of restarts, which train together."""
    steps: int = 20_000
    """Maximum number of steps. A restart stops earlier once it keeps classifying all training traces correctly."""
    batch: int = 8
    """Traces per step and restart."""
    learning_rate: float = 0.02
    """Learning rate of RAdam."""
    check_every: int = 250
    """Steps between two checks of the binary models."""
    stay: int = 3
    """A restart stops when all traces were correct at this many checks in a row."""
    stall: int | None = 5_000
    """A restart stops when its accuracy has not risen for this many steps; None: it continues, as in the paper."""
    noise: float = 0.0
    """Share of the traces that may be noisy: heads that disagree with up to that many are kept."""
    pool: bool | None = None
    """Whether to pool the sound heads of all restarts. None: only if the pool classifies at least as many training
    traces correctly as the best restart alone."""
    seed: int = 1
    """Seed of the initial weights and of the order of traces."""

    def __post_init__(self) -> None:
        bounded(self, "atoms", at_least=1, reason="a model without atoms accepts all")
        bounded(self, "restarts", "atoms", at_most=100_000)
        bounded(self, "restarts", "steps", "batch", "check_every", "stay", "stall", at_least=1)
        bounded(self, "noise", at_least=0, below=0.5)
        bounded(self, "learning_rate", above=0)
        bounded(self, "seed", at_least=0)


@dataclass
class RestartState:
    """How far a restart has come."""

    number: int
    accuracy: float = 0.0
    """Share of the training traces whose every prefix its binary model classifies correctly."""
    best: float = -1.0
    best_step: int = 0
    streak: int = 0
    end: str = ""
    """`solved`, `stalled` or `steps`; empty while it is active."""
    steps: int = 0

    def record(self, accuracy: float, step: int, settings: Settings) -> None:
        """Records the accuracy at `step`, and sets `end` if the restart should stop."""
        self.accuracy, self.steps = accuracy, step
        self.streak = self.streak + 1 if accuracy == 1 else 0
        if accuracy > self.best:
            self.best, self.best_step = accuracy, step
        if self.streak >= settings.stay:
            self.end = "solved"
        elif settings.stall is not None and step - self.best_step >= settings.stall and accuracy < 1:
            self.end = "stalled"
        elif step >= settings.steps:
            self.end = "steps"
