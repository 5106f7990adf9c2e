"""Metrics for Prometheus. Names end as those of other servers do, so that dashboards fit."""

from __future__ import annotations

from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SHORT = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
LONG = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 300)


class Metrics:
    """The metrics of one server."""

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        known = {"registry": self.registry}
        self.requests = Counter("statewise_requests_total", "Answered requests", ["route", "code"], **known)
        self.cancelled = Counter("statewise_requests_cancelled_total", "Requests whose client left", **known)
        self.running = Gauge("statewise_num_requests_running", "Rows that are read or decoded", ["model"], **known)
        self.waiting = Gauge("statewise_num_requests_waiting", "Rows that wait for a place", ["model"], **known)
        self.prompt_tokens = Counter("statewise_prompt_tokens_total", "Tokens of prompts read", ["model"], **known)
        self.tokens = Counter("statewise_generation_tokens_total", "Tokens generated", ["model"], **known)
        self.drafted = Counter("statewise_spec_decode_num_draft_tokens_total", "Tokens drafted", ["model"], **known)
        self.accepted = Counter(
            "statewise_spec_decode_num_accepted_tokens_total", "Drafted tokens accepted", ["model"], **known
        )
        self.alone = Counter(
            "statewise_choices_alone_total", "Tokens chosen by a pass over their row alone", ["model"], **known
        )
        self.failures = Counter("statewise_model_failures_total", "Passes of a model that failed", ["model"], **known)
        self.queue_seconds = Histogram(
            "statewise_request_queue_time_seconds", "From a request to its prompt's start", buckets=LONG, **known
        )
        self.first_seconds = Histogram(
            "statewise_time_to_first_token_seconds", "From a request to its first token", buckets=LONG, **known
        )
        self.between_seconds = Histogram(
            "statewise_inter_token_latency_seconds", "Between two tokens of a row", buckets=SHORT, **known
        )
        self.batch_rows = Histogram(
            "statewise_batch_rows", "Rows of a step", buckets=(1, 2, 4, 8, 16, 32, 64, 128), **known
        )

    def of_model(self, name: str) -> ModelMetrics:
        """The counters of a model, looked up once: that costs more than to count."""
        return ModelMetrics(
            *(
                counter.labels(name)
                for counter in (self.prompt_tokens, self.tokens, self.drafted, self.accepted, self.alone, self.failures)
            )
        )

    def text(self) -> bytes:
        """All metrics in the format of Prometheus."""
        return generate_latest(self.registry)


class ModelMetrics(NamedTuple):
    """The counters of `Metrics` for one model."""

    prompt_tokens: Counter
    tokens: Counter
    drafted: Counter
    accepted: Counter
    alone: Counter
    failures: Counter
