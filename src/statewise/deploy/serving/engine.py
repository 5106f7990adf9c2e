"""The thread that owns the models: it decodes all requests together, and does other work for them between steps.

When the queue is full, clients of different addresses share it (max-min fairness; Bertsekas & Gallager 1992, section
6.5.2).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import torch

from statewise.deploy.serving.batch import BatchCounts, ContinuousBatch
from statewise.deploy.serving.choosing import Drafting, may_draft
from statewise.deploy.serving.metrics import Metrics, ModelMetrics
from statewise.deploy.serving.refusals import Refusal
from statewise.deploy.serving.rows import Row, Ticket
from statewise.deploy.serving.served import Served
from statewise.deploy.serving.settings import ServerSettings

LOG = logging.getLogger("statewise.deploy.serving")


@dataclass(frozen=True, eq=False)
class QueuedCall:
    """A function to call in the models' thread."""

    function: Callable[[], Any]
    future: Future[Any]
    client: str
    begun: bool


class Lane:
    """A model with its rows and the other calls that it has to serve."""

    def __init__(self, served: Served, settings: ServerSettings, metrics: ModelMetrics) -> None:
        self.served, self.metrics = served, metrics
        predictor, part = served.predictor, settings.prompt_tokens
        drafts = settings.draft != 0 and may_draft(predictor, settings.drafter)
        self.batch = ContinuousBatch(
            predictor,
            most=settings.max_rows,
            part=part,
            error=served.rounding,
            drafting=Drafting(predictor, settings.draft, settings.drafter, part) if drafts else None,
        )
        self.work: deque[QueuedCall] = deque()

    @property
    def busy(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.work) or self.batch.busy


@contextmanager
def without_gradients() -> Iterator[None]:
    """Within this context no gradients are kept, and weights are cast to bf16 once. PyTorch forgets casts at the end of
    the outermost autocast region, of which each step has one of its own, and in inference mode it keeps none."""
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        yield


class Engine:
    """Runs the models in one thread. Methods may be called from any thread, except those that begin with `_`."""

    def __init__(self, models: Sequence[Served], settings: ServerSettings, metrics: Metrics) -> None:
        self.settings, self.metrics = settings, metrics
        self.lanes = {one.name: Lane(one, settings, metrics.of_model(one.name)) for one in models}
        self.draining = False
        """Whether the server is about to stop: no request is accepted, running ones finish."""
        self.failure: BaseException | None = None
        """The error that ended the thread, if one did."""
        self._stopping = self._abandoned = False
        self._changed = threading.Condition()
        self._to_wake: set[Ticket] = set()  # of the thread alone
        self._thread = threading.Thread(target=self._run, name="models", daemon=True)
        for name, lane in self.lanes.items():  # counted on request: rows leave between two steps, too
            metrics.waiting.labels(name).set_function(partial(self._waiting, lane))
            metrics.running.labels(name).set_function(partial(_live, lane))

    @property
    def models(self) -> list[Served]:
        """The models, in order."""
        return [lane.served for lane in self.lanes.values()]

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive() and self.failure is None

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread after its current pass; what still runs fails with status 503."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join()

    def submit(self, ticket: Ticket, model: str) -> None:
        """Queues the rows of a request. Raises `Refusal` if the queue is full or the server is stopping. If it is full
        of requests of other addresses, some of these may have to leave it (`displaced`)."""
        rows = self.lanes[model].batch.waiting
        with self._changed:
            self._accept()
            counts = Counter(row.ticket for row in rows if row.ticket is not None and not row.ended)
            queue = (Waiting(other, other.client, count, count < len(other.rows)) for other, count in counts.items())
            leaving = displaced(queue, ticket.client, len(ticket.rows), self.settings.max_waiting)
            if leaving is None:
                raise _full()
            for other in leaving:
                other.fail(_full())
            _drop_ended(rows)
            rows.extend(ticket.rows)
            self._changed.notify()
        _wake(leaving)

    def call(self, model: str, function: Callable[[], Any], *, begun: bool = False, client: str = "") -> Future[Any]:
        """Queues a function to be called in the models' thread, between two steps: all use of a model's weights
        belongs there. It should take no longer than a pass. `begun`: it continues a request of `client` that was
        accepted. A future that is cancelled leaves the queue. Raises `Refusal` as `submit` does."""
        made = QueuedCall(function, Future(), client, begun)
        queue = self.lanes[model].work
        with self._changed:
            self._accept(begun=begun)
            leaving: list[QueuedCall] | None = []
            if not begun:
                waiting = (Waiting(one, one.client, 1, one.begun) for one in queue if not one.future.cancelled())
                leaving = displaced(waiting, client, 1, self.settings.max_waiting)
            if leaving is None:
                raise _full()
            stay = [one for one in queue if one not in leaving and not one.future.cancelled()]
            queue.clear()
            queue.extend([*stay, made])
            self._changed.notify()
        for one in leaving:
            if one.future.set_running_or_notify_cancel():
                one.future.set_exception(_full())
        return made.future

    def cancel(self, ticket: Ticket) -> None:
        """Ends the rows of a request; their places are free from the next step on."""
        with self._changed:
            ticket.cancel()
            for lane in self.lanes.values():
                _drop_ended(lane.batch.waiting)
            self._changed.notify()

    def drain(self) -> None:
        """Accepts no further requests. Safe in a signal handler."""
        self.draining = True

    def abandon(self) -> None:
        """Fails what still waits or runs, with status 503."""
        with self._changed:
            self._abandoned = self.draining = True
            refusal = Refusal(503, "the server is shutting down", code="shutting_down")
            for lane in self.lanes.values():
                _fail([*lane.batch.waiting, *_running(lane)], refusal)
                lane.batch.waiting.clear()
                _fail_work(lane.work, refusal)

    def _accept(self, *, begun: bool = False) -> None:
        if self.failure is not None:
            raise Refusal(503, "the server's models have stopped; it must be restarted", code="stopped")
        if self._stopping or self._abandoned or (self.draining and not begun):
            raise Refusal(503, "the server is shutting down", code="shutting_down", headers={"retry-after": "5"})

    # In the thread

    def _run(self) -> None:
        try:
            casts = any(lane.served.casts for lane in self.lanes.values())
            with without_gradients() if casts else torch.inference_mode():
                while self._wait():
                    for lane in self.lanes.values():
                        if lane.busy:
                            self._advance(lane)
                    woken, self._to_wake = self._to_wake, set()
                    _wake(woken)
            refusal = Refusal(503, "the server is shutting down", code="shutting_down")
        except BaseException as error:
            LOG.exception("the models' thread has ended")
            self.failure = error
            refusal = Refusal(500, "the server's models have stopped; it must be restarted", code="stopped")
        for lane in self.lanes.values():
            with self._changed:
                rows = [*lane.batch.waiting, *_running(lane)]
                _fail_work(lane.work, refusal)
            _fail(rows, refusal)

    def _wait(self) -> bool:
        """Waits for something to do; False: it is time to stop."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or any(lane.busy for lane in self.lanes.values()))
        return not self._stopping

    def _advance(self, lane: Lane) -> None:
        """One piece of work, one part of prompts and one step."""
        batch = lane.batch
        with lane.served.computing():
            if lane.work:
                with self._changed:
                    work = _next(lane.work)
                if work is not None:
                    self._call(work)
            self._admit(batch)
            reading = batch.reading
            if reading is not None:
                try:
                    begun = batch.read_prompts()
                    lane.metrics.prompt_tokens.inc(sum(len(row.read) for row in begun))
                    self._count_tokens([row for row in begun if row.tokens], lane)
                    self._collect_to_wake(begun)
                except Exception as error:
                    batch.drop_reading()
                    self._failed(lane, reading.all, error)
            running = batch.rows
            try:
                stepped = batch.step()
                if stepped:
                    self.metrics.batch_rows.observe(len(stepped))
                    self._count_tokens(stepped, lane)
            except Exception as error:
                batch.drop_running()
                self._failed(lane, running, error)
        made, batch.counts = batch.counts, BatchCounts()
        lane.metrics.alone.inc(made.alone)
        lane.metrics.drafted.inc(made.drafted)
        lane.metrics.accepted.inc(made.accepted)

    def _admit(self, batch: ContinuousBatch) -> None:
        """See `ContinuousBatch.admit`; other threads may queue and cancel rows meanwhile."""
        if batch.reading is None and batch.waiting:
            with self._changed:
                admitted = batch.admit()
            now = time.monotonic()
            for row in admitted:
                self.metrics.queue_seconds.observe(now - row.submitted)

    def _count_tokens(self, rows: Sequence[Row], lane: Lane) -> None:
        """Counts the new tokens of rows, and their times."""
        now, metrics, made = time.monotonic(), self.metrics, 0
        for row in rows:
            new = len(row.tokens) - row.counted
            if row.counted == 0 < new:
                metrics.first_seconds.observe(now - row.submitted)
            else:
                for _ in range(new):
                    metrics.between_seconds.observe((now - row.last_token_at) / new)
            row.counted, row.last_token_at, made = len(row.tokens), now, made + new
        self._collect_to_wake(rows)
        lane.metrics.tokens.inc(made)

    def _collect_to_wake(self, rows: Sequence[Row]) -> None:
        """Collects the requests of these rows that are to be woken now."""
        now, least = time.monotonic(), self.settings.chunk_seconds
        for row in rows:
            ticket = row.ticket
            if ticket is None or ticket in self._to_wake:
                continue
            if (ticket.stream and now - ticket.woken_at >= least) or (row.ended and ticket.done):
                ticket.woken_at = now
                self._to_wake.add(ticket)

    def _waiting(self, lane: Lane) -> int:
        """The number of rows that wait for a place."""
        with self._changed:
            return sum(not row.ended for row in lane.batch.waiting)

    def _call(self, work: QueuedCall) -> None:
        future = work.future
        try:
            future.set_result(work.function())
        except BaseException as error:
            future.set_exception(error)  # also of what ends this thread: whoever waits must learn of it
            if not isinstance(error, Exception):
                raise

    def _failed(self, lane: Lane, rows: Sequence[Row], error: Exception) -> None:
        """Fails rows whose pass failed; others go on."""
        LOG.error("%s: a pass failed", lane.served.name, exc_info=error)
        lane.metrics.failures.inc()
        _fail(rows, Refusal(500, f"the model failed: {str(error)[:200]}", code="model_failed"))


def _fail(rows: Sequence[Row], refusal: Refusal) -> None:
    """Ends the requests of rows that have not ended with an error, and wakes them."""
    for row in rows:
        if not row.ended:
            row.fail(refusal)
    _wake({row.ticket for row in rows if row.ticket is not None and row.ticket.error is refusal})


def _fail_work(work: deque[QueuedCall], refusal: Refusal) -> None:
    while work:
        one = _next(work)
        if one is not None:
            one.future.set_exception(refusal)


def _next(work: deque[QueuedCall]) -> QueuedCall | None:
    """Takes the first whose client still waits for it, and marks it as running."""
    while work:
        one = work.popleft()
        if one.future.set_running_or_notify_cancel():
            return one
    return None


def _drop_ended(rows: deque[Row]) -> None:
    """Takes rows that have ended out of a queue."""
    if any(row.ended for row in rows):
        left = [row for row in rows if not row.ended]
        rows.clear()
        rows.extend(left)


def _wake(tickets: Iterable[Ticket]) -> None:
    by_loop: dict[Any, list[Ticket]] = {}
    for ticket in tickets:
        by_loop.setdefault(ticket.loop, []).append(ticket)
    for loop, some in by_loop.items():
        try:
            loop.call_soon_threadsafe(_set_all, some)
        except RuntimeError:  # the loop is closed: nobody waits any more
            LOG.debug("a request's loop has ended")


def _running(lane: Lane) -> list[Row]:
    reading = lane.batch.reading
    return [*(reading.all if reading else []), *lane.batch.rows]


def _live(lane: Lane) -> int:
    """The number of rows that are read or decoded."""
    return sum(not row.ended for row in _running(lane))


def _full() -> Refusal:
    return Refusal(429, "the request queue is full: retry later", code="queue_full", headers={"retry-after": "1"})


def _set_all(tickets: Sequence[Ticket]) -> None:
    for ticket in tickets:
        ticket.event.set()


Item = TypeVar("Item", bound=Hashable)


class Waiting(NamedTuple, Generic[Item]):
    """A request that waits."""

    item: Item
    client: str
    """The client's address."""
    places: int
    begun: bool
    """Whether a part of the request was begun: then it keeps its places."""


def displaced(waiting: Iterable[Waiting[Item]], client: str, places: int, most: int) -> list[Item] | None:
    """The requests that must leave a queue of `most` places so that a request of `client` for `places` can wait, in the
    order in which they leave; None if there is no room.

    `waiting` is in the order of arrival. The newest request of the address with the most places leaves first, as long
    as that address has more places than `client` would have. So each of k addresses can have `most // k` places,
    whatever the others do, except for places of requests that were begun.
    """
    queue, shares = list(waiting), Counter[str]()
    for one in queue:
        shares[one.client] += one.places
    room, own = most - shares.total(), shares[client] + places
    newest: dict[str, list[Waiting[Item]]] = {}
    for one in queue:
        if not one.begun:
            newest.setdefault(one.client, []).append(one)
    leaving = []
    while room < places:
        able = [other for other, left in newest.items() if left and shares[other] > own]
        if not able:
            return None
        last = newest[max(able, key=shares.__getitem__)].pop()
        shares[last.client] -= last.places
        room += last.places
        leaving.append(last.item)
    return leaving
