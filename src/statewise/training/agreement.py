"""Work that succeeds or fails in all processes of a run together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from statewise.runtime.launchers import OF_ANOTHER

T = TypeVar("T")


def joined(own: torch.Tensor) -> torch.Tensor:
    """The tensors (n, ...) of all processes, in order, concatenated: (processes n, ...)."""
    tensors = [torch.empty_like(own) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(tensors, own)
    return torch.cat(tensors)


@dataclass(frozen=True)
class Agreement:
    """The processes of a run; this one has the number `rank`, from 0. All call the same methods in the same order."""

    rank: int
    processes: int

    @property
    def first(self) -> bool:
        """Whether this is the first process."""
        return self.rank == 0

    def gathered(self, own: T) -> list[T]:
        """The values of all processes, in order."""
        if self.processes == 1:
            return [own]
        values: list[Any] = [None] * self.processes
        torch.distributed.all_gather_object(values, own)
        return values

    def on_all(self, work: Callable[[], T]) -> list[T]:
        """The results of `work` in all processes, in order. If `work` raises a `ValueError` or `OSError` in some, all
        raise the first of these errors."""
        result: T | None = None
        error: Exception | None = None
        try:
            result = work()
        except (ValueError, OSError) as raised:
            error = raised
        outcomes: list[Any] = self.gathered((result, error))
        for rank, (_, failure) in enumerate(outcomes):
            if failure is not None:
                if rank != self.rank:
                    failure.add_note(OF_ANOTHER)
                raise failure
        return [result for result, _ in outcomes]

    def each(self, work: Callable[[], T]) -> T:
        """The result of `work` in this process, once all have done it; raises as `on_all`."""
        results: list[T] = []
        self.on_all(lambda: results.append(work()))
        return results[0]

    def on_first(self, work: Callable[[], T]) -> T:
        """The result of `work` in the first process, which alone does it; raises as `on_all`."""
        results: list[Any] = self.on_all(lambda: work() if self.first else None)
        result: T = results[0]
        return result
