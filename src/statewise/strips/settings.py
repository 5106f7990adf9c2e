"""How to learn, and when a restart has come to its end."""

from __future__ import annotations

from dataclasses import dataclass

from statewise.bounds import bounded


@dataclass(frozen=True)
class Settings:
    """How to learn. Optimiser, batch and learning rate are the paper's."""

    atoms: int | None = None
    """Heads a restart; None: the number is to be found. Then there are twice as many as actions."""
    restarts: int = 10
    """Restarts, which train together."""
    steps: int = 20_000
    """Steps at most. A restart ends sooner when it judges all training traces right and stays so."""
    batch: int = 8
    """Traces a step and restart."""
    learning_rate: float = 0.02
    """Of RAdam."""
    check_every: int = 250
    """Steps between two looks at the binary models."""
    stay: int = 3
    """A restart ends when it was right at so many looks in a row."""
    stall: int = 5_000
    """A restart ends when its accuracy has not risen for so many steps."""
    noise: float = 0.0
    """Share of the traces that may be damaged: heads are not dropped for disagreeing with up to that many."""
    pool: bool | None = None
    """Whether to take sound heads of all restarts together; None: if they judge no fewer of the training traces right
    than the best restart alone."""
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
class Attempt:
    """What became of a restart so far."""

    number: int
    accuracy: float = 0.0
    """Share of the training traces of which its binary model judges every prefix right."""
    best: float = -1.0
    best_step: int = 0
    streak: int = 0
    end: str = ""
    """`solved`, `stalled` or `steps`; empty while it goes on."""
    steps: int = 0

    def look(self, accuracy: float, step: int, settings: Settings) -> None:
        """Takes note of what the restart has reached at `step`, and says whether it ends."""
        self.accuracy, self.steps = accuracy, step
        self.streak = self.streak + 1 if accuracy == 1 else 0
        if accuracy > self.best:
            self.best, self.best_step = accuracy, step
        if self.streak >= settings.stay:
            self.end = "solved"
        elif step - self.best_step >= settings.stall and accuracy < 1:
            self.end = "stalled"
        elif step >= settings.steps:
            self.end = "steps"
