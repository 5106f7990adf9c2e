"""The server: tokens per second of 1, 4 and 16 clients, against one request at a time and a loop over transformers'
`generate`; how long a newcomer waits for its first token; what HTTP costs.

python benchmarks/serving.py
python benchmarks/serving.py --peer PYTHON  # also `transformers serve`, of an environment with transformers[serving]
python benchmarks/serving.py --soak 15      # 50 clients of mixed requests for so many minutes; no bars but errors

Clients run in a process of their own. The model's weights are random: speed does not depend on them.
"""

from __future__ import annotations

import asyncio
import copy
import json
import multiprocessing
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timing import Benchmark, parser, ratio

from statewise.decoding.base import Request
from statewise.decoding.predictor import Predictor
from statewise.decoding.sample import Greedy, GreedyConfig, Sample, SampleConfig, StepByStep
from statewise.deploy.serving.app import create_app
from statewise.deploy.serving.engine import Engine
from statewise.deploy.serving.metrics import Metrics
from statewise.deploy.serving.rows import DecodingOptions, Stops, Ticket
from statewise.deploy.serving.served import Served
from statewise.deploy.serving.server import Server, listen
from statewise.deploy.serving.settings import ServerSettings
from statewise.model.model import Model, new_model
from statewise.model.recipes import read_recipe
from statewise.training import machine

PROMPT, TOKENS, CONTEXT = 32, 64, 256
GAP = 1e-3
"""Nats within which a choice counts as depending on rounding."""
SEEDS, CHOICES, TOP_P = 5, 2, 0.9
"""Seeds, completions of a prompt, and nucleus of the sampled requests."""

Texts = dict[tuple[str, int | None], list[str] | None]
"""The completions by prompt, as a JSON list of token ids, and seed; None: greedy. Unknown until the first answer where
a choice hangs on rounding."""


def make_model(folder: Path, *, small: bool) -> Model:
    """A GPT for stories of invented words."""
    rng = np.random.default_rng(0)
    letters = list("abcdefghijklmnopqrstuvwxyz")
    words = ["".join(rng.choice(letters, rng.integers(2, 9))) for _ in range(1500)]
    stories = (" ".join(rng.choice(words, 60)) for _ in range(80))
    path = folder / "stories.txt"
    path.write_text("".join(f"{story}.\n<|endoftext|>\n" for story in stories))
    size = {"width": 32, "layers": 1, "heads": 2} if small else {"width": 256, "layers": 6, "heads": 8}
    vocabulary = 400 if small else 2000
    task = {"name": "stories", "path": str(path), "vocabulary": vocabulary, "context": CONTEXT}
    recipe = {"task": task, "backbone": {"name": "gpt", **size}, "objective": "next_token"}
    model = new_model(read_recipe(json.dumps(recipe)))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.objective.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    return model


# Clients, in a process of their own


async def ask(port: int, path: str, body: dict[str, Any], *, leave_after: int = 0) -> tuple[int, bytes, list[float]]:
    """The status and the body of an answer, and when each of its parts arrived, in seconds after the request.
    `leave_after`: closes the connection after so many parts."""
    began = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n"
    writer.write(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
    await writer.drain()
    parts, arrived = [], []
    while part := await reader.read(65536):
        parts.append(part)
        arrived.append(time.perf_counter() - began)
        if len(parts) == leave_after:
            break
    writer.close()
    whole = b"".join(parts)
    return int(whole[9:12]), whole, arrived


@dataclass
class Load:
    """What clients measured."""

    seconds: float
    tokens: int
    first: list[float] = field(default_factory=list)
    """Seconds to the first token of each request."""
    between: list[float] = field(default_factory=list)
    """Seconds between parts of a stream."""


def load(port: int, bodies: list[dict[str, Any]], clients: int) -> Load:
    """All requests, of `TOKENS` tokens each, by so many clients at a time."""

    async def run() -> Load:
        waiting, found = list(bodies), Load(0.0, 0)

        async def client() -> None:
            while waiting:
                body = waiting.pop()
                status, answer, arrived = await ask(port, "/v1/completions", body)
                assert status == 200, answer
                found.tokens += TOKENS
                if body.get("stream"):  # the first part is the head
                    found.first.append(arrived[1])
                    found.between += np.diff(arrived[1:]).tolist()
                else:
                    assert json.loads(answer.partition(b"\r\n\r\n")[2])["usage"]["completion_tokens"] == TOKENS

        began = time.perf_counter()
        await asyncio.gather(*(client() for _ in range(clients)))
        found.seconds = time.perf_counter() - began
        return found

    return asyncio.run(run())


def soak(port: int, texts: Texts, clients: int, seconds: float, least: int) -> tuple[Counter[str], Load, list[str]]:
    """Requests of all kinds until the time is over, and at least so many: how many of each kind, times of streams, and
    what went wrong."""

    async def run() -> tuple[Counter[str], Load, list[str]]:
        end, counts, wrong, found = time.perf_counter() + seconds, Counter[str](), [], Load(seconds, 0)
        prompts = sorted({prompt for prompt, _ in texts})

        def compare(kind: str, prompt: str, seed: int | None, said: list[str]) -> None:
            known = texts[prompt, seed]
            if known is None:
                texts[prompt, seed] = said
            elif said != known:
                wrong.append(f"{kind}: another text for {prompt}, seed {seed}")

        async def one(rng: random.Random) -> None:
            kind = rng.choice(
                ["greedy", "greedy", "stream", "stream", "sampled", "leaving", "scored", "embedded", "bad"]
            )
            prompt = rng.choice(prompts)
            body: dict[str, Any] = {"prompt": json.loads(prompt), "max_tokens": TOKENS, "temperature": 0}
            path, leave = "/v1/completions", 0
            if kind in ("stream", "leaving"):
                body["stream"], leave = True, rng.randrange(1, 20) if kind == "leaving" else 0
            elif kind == "sampled":
                body |= {"temperature": 1.0, "seed": rng.randrange(SEEDS), "n": CHOICES, "top_p": TOP_P}
            elif kind == "scored":
                body |= {"max_tokens": 1, "echo": True, "logprobs": 2}
            elif kind == "embedded":
                path, body = "/v1/embeddings", {"input": [body["prompt"]] * 3, "encoding_format": "base64"}
            elif kind == "bad":
                body["temperature"] = "hot"
            status, answer, arrived = await ask(port, path, body, leave_after=leave)
            counts[kind] += 1
            if status != (400 if kind == "bad" else 200):
                wrong.append(f"{kind}: status {status}")
            elif kind == "stream":
                lines = [
                    line[6:] for line in answer.split(b"\r\n") for line in line.split(b"\n") if line[:6] == b"data: "
                ]
                events = [json.loads(line) for line in lines if line != b"[DONE]"]
                compare(kind, prompt, None, ["".join(event["choices"][0]["text"] for event in events)])
                found.first.append(arrived[1])
                found.between += np.diff(arrived[1:]).tolist()
            elif kind in ("greedy", "sampled"):
                said = [choice["text"] for choice in json.loads(answer.partition(b"\r\n\r\n")[2])["choices"]]
                compare(kind, prompt, body.get("seed"), said)

        async def client(number: int) -> None:
            rng = random.Random(number)
            while time.perf_counter() < end or sum(counts.values()) < least:
                try:
                    await one(rng)
                except Exception as error:
                    wrong.append(f"{type(error).__name__}: {error}")

        await asyncio.gather(*map(client, range(clients)))
        return counts, found, wrong

    return asyncio.run(run())


# The server, in this process


class Serving:
    """A server of one model in a thread."""

    def __init__(self, served: Served) -> None:
        self.engine = Engine([served], ServerSettings(), Metrics())
        self.server = Server(self.engine, create_app(self.engine))
        self.socket = listen("127.0.0.1", 0)
        self.port: int = self.socket.getsockname()[1]
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.socket]})

    def __enter__(self) -> Serving:
        self.engine.start()
        self.thread.start()
        while not self.server.started:
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self.server.handle_exit(15, None)
        self.thread.join()
        self.engine.stop()


def without_http(serving: Serving, prompts: list[list[int]], clients: int, stream: bool) -> float:
    """CPU seconds per token of the same requests by tasks of this process, which speak no HTTP."""
    engine, waiting, decoding = serving.engine, list(prompts), DecodingOptions(None, 0, Stops(()), None, False)
    (served,) = engine.models

    async def client() -> None:
        while waiting:
            rows = served.rows(np.array(waiting.pop()), None, decoding, limit=TOKENS, numbers=[0], exact=True)
            ticket = Ticket(rows, stream=stream)
            engine.submit(ticket, served.name)
            while not ticket.done:
                await ticket.event.wait()
                ticket.event.clear()

    async def run() -> None:
        await asyncio.gather(*(client() for _ in range(clients)))

    began = time.process_time()
    asyncio.run(run())
    return (time.process_time() - began) / (len(prompts) * TOKENS)


def plain_loop(folder: Path, model: Model) -> Callable[[list[list[int]]], None] | None:
    """A loop over `generate` of transformers on the exported model, one prompt after the other; None: transformers is
    not installed."""
    try:
        import transformers
    except ImportError:
        return None
    from statewise.deploy.export.export import export

    transformers.logging.set_verbosity_error()
    export(model, folder / "exported")
    exported = transformers.AutoModelForCausalLM.from_pretrained(folder / "exported")

    @torch.inference_mode()
    def loop(prompts: list[list[int]]) -> None:
        for prompt in prompts:
            exported.generate(
                torch.tensor([prompt]), max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=False, pad_token_id=0
            )

    return loop


def alone_against_loop(
    bench: Benchmark,
    serving: Serving,
    pool: Executor,
    loop: Callable[[list[list[int]]], None],
    prompts: list[list[int]],
) -> dict[str, list[float]]:
    """Seconds of one client and of the loop for the same prompts, in turn, and prints the CPU time of each."""
    cpu: dict[str, float] = {"one client": 0.0, "loop": 0.0}

    def counted(name: str, call: Callable[[], object]) -> Callable[[], None]:
        def measured() -> None:
            before = time.process_time()
            call()
            cpu[name] += time.process_time() - before

        return measured

    bodies = [request(prompt, False) for prompt in prompts]
    ways = {
        "one client": counted("one client", lambda: pool.submit(load, serving.port, bodies, 1).result()),
        "loop": counted("loop", lambda: loop(prompts)),
    }
    seconds = bench.in_turn(ways, rounds=9, warm_up=1)
    calls = bench.rounds(9) + (0 if bench.smoke else 1)  # that warmed up
    for name, spent in seconds.items():
        rate = len(prompts) * TOKENS / float(np.median(spent))
        each = 1e3 * cpu[name] / (calls * len(prompts) * TOKENS)
        print(f"  {name:24} {rate:8.1f} tokens/s, {each:.2f} ms of CPU per token, in turn", flush=True)
    return seconds


def newcomers(port: int, bodies: list[dict[str, Any]], clients: int, asking: list[dict[str, Any]]) -> list[float]:
    """Seconds to the first token of the requests `asking`, one after the other, while so many clients are served."""

    async def run() -> list[float]:
        over = asyncio.Event()

        async def client(number: int) -> None:
            place = number
            while not over.is_set():
                await ask(port, "/v1/completions", bodies[place % len(bodies)])
                place += clients

        running = [asyncio.create_task(client(number)) for number in range(clients)]
        found = []
        for body in asking:
            await asyncio.sleep(0.1)
            found.append((await ask(port, "/v1/completions", body))[2][1])  # the first part is the head
        over.set()
        await asyncio.gather(*running)
        return found

    return asyncio.run(run())


def first_token_under_load(
    bench: Benchmark, serving: Serving, pool: Executor, prompts: list[list[int]], clients: int
) -> None:
    """How long a newcomer waits while others are served, against the passes for which it may have to wait: one that
    has begun, those for the prompts of all others, in parts, and the one for its own."""
    batch, slowest = serving.engine.lanes["model"].batch, {"part": 0.0, "step": 0.0}

    def timed(name: str, call: Callable[[], Any]) -> Callable[[], Any]:
        def measured() -> Any:
            began = time.perf_counter()
            result = call()
            slowest[name] = max(slowest[name], time.perf_counter() - began)
            return result

        return measured

    batch.read_prompts = timed("part", batch.read_prompts)  # type: ignore[method-assign]
    batch.step = timed("step", batch.step)  # type: ignore[method-assign]
    bodies, asking = ([request(prompt, stream) for prompt in prompts] for stream in (False, True))
    found = pool.submit(newcomers, serving.port, bodies, clients, asking[: 2 if bench.smoke else 40]).result()
    del batch.read_prompts, batch.step
    passes = 2 + -(-clients * PROMPT // batch.part)
    bound = passes * sum(slowest.values())
    print(f"  first token of a newcomer beside {clients} clients: {percentiles(found)}; bound {1e3 * bound:.0f} ms")
    print(
        f"  {passes} passes; slowest part {1e3 * slowest['part']:.0f} ms, slowest step {1e3 * slowest['step']:.0f} ms"
    )
    bench.at_most("slowest first token of a newcomer against its bound", max(found) / bound, 1.0)


def decoded_alone(
    predictor: Predictor, end: int, prompts: list[list[int]], plain: StepByStep, number: int = 0
) -> list[list[int] | None]:
    """The completion of each prompt without the server; None if one of its choices hangs on rounding."""
    request = Request([np.array(prompt) for prompt in prompts], TOKENS, end)
    tokens, lengths = request.padded()
    cursor, logits = predictor.start(torch.from_numpy(tokens), lengths)
    made = np.zeros((len(prompts), 0), np.int64)
    sure = np.ones(len(prompts), bool)
    while made.shape[1] < TOKENS:
        rows, places = np.full(len(prompts), number), lengths + made.shape[1]
        noise = plain.noise(rows, places, logits.shape[1]) if plain.draws else None
        chosen = plain.choose(logits, noise)
        sure &= (made == end).any(1) | ~plain.close(logits, noise, chosen, GAP / 2).numpy()
        made = np.append(made, chosen[:, None].numpy(), 1)
        logits = predictor.extend(cursor, chosen[:, None])[:, -1]
    return [
        row[: row.index(end)] if end in row and is_sure else row if is_sure else None
        for row, is_sure in zip(made.tolist(), sure)
    ]


def expected_texts(model: Model, prompts: list[list[int]]) -> Texts:
    """The texts of a soak's requests, computed in float64, without those that depend on rounding."""
    exact = copy.deepcopy(model)
    exact.objective.double()
    predictor, end = exact.predictor(), model.task.end
    assert end is not None
    texts: Texts = {}
    for seed in (None, *range(SEEDS)):
        plain = Greedy(GreedyConfig()) if seed is None else Sample(SampleConfig(top_p=TOP_P, seed=seed))
        numbers = range(1 if seed is None else CHOICES)
        found = [decoded_alone(predictor, end, prompts, plain, number) for number in numbers]
        for prompt, *choices in zip(prompts, *found):
            known = [None if tokens is None else model.task.decode(tokens) for tokens in choices]
            texts[json.dumps(prompt), seed] = None if None in known else [text for text in known if text is not None]
    return texts


def megabytes() -> float:
    """Memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def percentiles(values: Sequence[float]) -> str:
    if not values:
        return "none"
    return ", ".join(f"p{share} {1000 * np.percentile(values, share):.1f}" for share in (50, 99)) + " ms"


def run_soak(model: Model, pool: Executor, seconds: float, clients: int, least: int = 0) -> int:
    """Mixed requests, at least `least`; returns 1 if anything went wrong."""
    served, rng = Served("model", model), np.random.default_rng(2)
    with torch.inference_mode():
        texts = expected_texts(
            model, [rng.integers(2, len(model.task.vocab), rng.integers(4, 100)).tolist() for _ in range(40)]
        )
    hanging = sum(known is None for known in texts.values())
    print(f"{len(texts)} texts are known; {hanging} hang on rounding, and are compared with the first answer")
    with Serving(served) as serving:
        running: Future[Any] = pool.submit(soak, serving.port, texts, clients, seconds, least)
        began, memory = time.perf_counter(), []
        while not running.done():
            time.sleep(min(5.0, seconds / 10))
            memory.append(megabytes())
            print(f"  {time.perf_counter() - began:6.0f} s  {memory[-1]:7.1f} MB", flush=True)
        counts, found, wrong = running.result()
        lane, patience = serving.engine.lanes["model"], time.perf_counter() + 10
        while lane.busy and time.perf_counter() < patience:  # the last clients may have left a moment ago
            time.sleep(0.05)
        left = lane.busy
    print(f"{clients} clients, {seconds:.0f} s: {sum(counts.values()):,} requests: {dict(counts)}")
    print(f"wrong: {len(wrong)} {wrong[:5]}; rows left: {left}")
    print(f"first token: {percentiles(found.first)}; between tokens: {percentiles(found.between)}")
    half = memory[len(memory) // 2 :]
    print(f"memory in the second half: {half[0]:.0f} MB first, {half[-1]:.0f} last, {max(half):.0f} at most")
    return int(bool(wrong) or left)


def main(words: Sequence[str] | None = None) -> int:
    options = parser(__doc__, quick=True)
    options.add_argument("--soak", type=float, metavar="MINUTES", help="mixed requests for so long, instead")
    options.add_argument("--peer", metavar="PYTHON", help="interpreter whose `transformers serve` is measured, too")
    options.add_argument("--clients", type=int, default=50, help="of --soak (default 50)")
    given = options.parse_args(words)
    bench = Benchmark(given.smoke, given.quick)
    machine.keep_freed_memory()
    context = multiprocessing.get_context("spawn")
    # A smoke run has its clients in this process, as tests load this file under a name that no other process knows.
    clients = ThreadPoolExecutor(1) if bench.smoke else ProcessPoolExecutor(1, mp_context=context)
    with tempfile.TemporaryDirectory() as name, clients as pool:
        folder = Path(name)
        model = make_model(folder, small=bench.smoke)
        if given.soak is not None:
            return run_soak(model, pool, given.soak * 60, given.clients)
        measure(bench, model, folder, pool, given.peer)
    return bench.exit_code()


def request(prompt: list[int], stream: bool) -> dict[str, Any]:
    """A request for `TOKENS` tokens."""
    return {"prompt": prompt, "max_tokens": TOKENS, "ignore_eos": True, "temperature": 0, "stream": stream}


def peer_rates(
    python: str, folder: Path, model: Model, prompts: list[list[int]], pool: Executor, most: int
) -> dict[int, float]:
    """Tokens per second of `transformers serve` on the exported model, by clients. `folder` has the export."""
    with listen("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    command = [
        python,
        "-m",
        "transformers.cli.transformers",
        "serve",
        str(folder / "exported"),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--device",
        "cpu",
        "--dtype",
        "float32",
    ]
    settings = json.dumps({"max_new_tokens": TOKENS, "min_new_tokens": TOKENS, "do_sample": False})
    name = str(folder / "exported")
    bodies = [{"model": name, "prompt": model.task.decode(prompt), "generation_config": settings} for prompt in prompts]
    rates: dict[int, float] = {}
    with subprocess.Popen(
        command, env={**os.environ, "HF_HUB_OFFLINE": "1"}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            wait_for(process, port)
            pool.submit(load, port, bodies[:1], 1).result()  # warm up
            for clients in (1, 4, most):
                some = bodies[: max(2, min(len(bodies), 4 * clients))]
                found = pool.submit(load, port, some, clients).result()
                rates[clients] = found.tokens / found.seconds
        finally:
            process.terminate()
    return rates


def wait_for(process: subprocess.Popen[bytes], port: int) -> None:
    """Returns when a server listens. Raises `RuntimeError` if it ends before."""
    while process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError(f"the other server ended with code {process.returncode}")


def measure(bench: Benchmark, model: Model, folder: Path, pool: Executor, peer: str | None) -> None:
    served, rng = Served("model", model), np.random.default_rng(1)
    most = 2 if bench.smoke else 16
    prompts = [rng.integers(2, len(model.task.vocab), PROMPT).tolist() for _ in range(2 * most)]
    print(f"{machine.processor_name()}, {torch.get_num_threads()} thread(s): prompts of {PROMPT} tokens, {TOKENS} made")
    rates: dict[tuple[int, bool], float] = {}
    added: dict[bool, float] = {}
    with Serving(served) as serving:
        pool.submit(load, serving.port, [request(prompt, True) for prompt in prompts[:2]], 1).result()  # warm up
        for clients, stream in ((1, False), (4, False), (most, False), (most, True)):
            some = prompts[: max(2, min(len(prompts), 4 * clients))]
            before = time.process_time()
            found = pool.submit(load, serving.port, [request(prompt, stream) for prompt in some], clients).result()
            cost = (time.process_time() - before) / found.tokens
            rates[clients, stream] = found.tokens / found.seconds
            more = (
                f"; first token {percentiles(found.first)}, between parts {percentiles(found.between)}"
                if stream
                else ""
            )
            what = f"{clients} clients{', streams' if stream else ''}"
            print(f"  {what:24} {rates[clients, stream]:8.1f} tokens/s{more}", flush=True)
            if clients == most:
                alone = without_http(serving, some, clients, stream)
                added[stream] = 100 * (cost / alone - 1)
                print(f"  {'':24} {1e6 * cost:8.0f} us of CPU per token, {1e6 * alone:.0f} without HTTP")
        first_token_under_load(bench, serving, pool, prompts, most)
        loop = plain_loop(folder, model)
        if loop is not None:
            in_turn = alone_against_loop(bench, serving, pool, loop, prompts[:2])
            plain = 2 * TOKENS / float(np.median(in_turn["loop"]))
            alone_gain = ratio(in_turn["loop"], in_turn["one client"])
            bench.at_least("one client against a loop over generate", alone_gain, 2.0)
            gain = rates[most, False] / plain
            bench.at_least(f"{most} clients against a loop over generate", gain, 4.0)
    if peer is not None:
        for clients, rate in peer_rates(peer, folder, model, prompts, pool, most).items():
            print(f"  {f'transformers serve, {clients}':24} {rate:8.1f} tokens/s")
            if clients == most:
                bench.at_least(f"{clients} clients against transformers serve", rates[clients, False] / rate, 4.0)
    bench.at_least(f"{most} clients against one at a time", rates[most, False] / rates[1, False], 4.0)
    bench.at_most("CPU that HTTP adds per token, %", added[False], 10.0)
    bench.at_most("CPU that HTTP adds per token in streams, %", added[True], 10.0)


if __name__ == "__main__":
    sys.exit(main())
