"""What `make gpu` measures: each step is a function of the machine that returns figures, some with bars."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import muon as muon_ways
import objectives as sizes
import pair_loss as pair_ways
import torch
from gpu.machine import Figures, Machine
from torch import Tensor

from statewise.backbones.nn.attention import attend_dense, attend_fused, attend_streams, attend_written_out
from statewise.backbones.nn.masks import INPUT, PREDICTION, Pattern, Reach
from statewise.backbones.two_stream import TwoStream, TwoStreamConfig
from statewise.config.recipe import Recipe
from statewise.config.recipes import recipe_text
from statewise.config.trainer import TrainerConfig
from statewise.data_types import Batch
from statewise.decoding import DECODERS
from statewise.decoding.base import Request
from statewise.experiments.launch import Listener, resume, train
from statewise.model.building import make_objective, make_task
from statewise.model.recipes import read_recipe
from statewise.objectives import OBJECTIVES
from statewise.objectives.base import Objective
from statewise.objectives.predictors import HeadPredictor
from statewise.run import Run
from statewise.tasks.batches import Stream, collate
from statewise.training.compilation import CompiledBlocks
from statewise.training.optim import make_optimizer

MUON_SIZES = {**muon_ways.SIZES, "12 layers of 768": (12, 768)}
"""Layers and width."""
GPT_CASE = sizes.Case("next_token", {}, 1.0, 57)

# Correctness


def recipe_of(name: str, *flags: str) -> Recipe:
    return read_recipe(recipe_text(name), list(flags))


def apart(one: Tensor, other: Tensor) -> float:
    """The distance of two tensors, as a share of the norm of the first."""
    one, other = one.detach().double().cpu(), other.detach().double().cpu()
    return float((one - other).norm() / one.norm().clamp(min=1e-12))


def contracts(where: Machine) -> Figures:
    """Every objective: loss, gradients, logits with a cache and greedy answers, against the CPU in fp32."""
    found = Figures()
    small = ["--backbone.width=32", "--backbone.layers=2", "--backbone.heads=2"]
    for name in ("next_token", "next_latent", "belief_state") if where.smoke else OBJECTIVES:
        recipe = recipe_of("city-small", *small, f"--objective={name}")
        task = make_task(recipe)
        host = make_objective(recipe, task)
        device = make_objective(recipe, task).to(where.device)
        device.load_state_dict(host.state_dict())
        batch = Stream(task, seed=1, batch_size=8).batch(0)
        losses = []
        for objective, given in ((host, batch), (device, sent(device, batch, where.device))):
            torch.manual_seed(0)
            loss = objective(given).value()
            loss.backward()
            losses.append(loss)
        parameters = dict(device.named_parameters())
        gradients = [
            apart(part.grad, parameters[key].grad) for key, part in host.named_parameters() if part.grad is not None
        ]
        prompts = [task.held_out(4).prompt(row) for row in range(4)]
        answers = []
        for objective in (host, device):
            objective.eval()
            objective.set_progress(1.0)
            decoder: Any = DECODERS["greedy"](DECODERS["greedy"].Config())
            request = Request(prompts, 4)
            answers.append([one.tokens.tolist() for one in decoder.decode(objective.predictor(), request)])
        same = statistics.fmean(one == other for one, other in zip(*answers))
        found.values[name] = {
            "loss apart": apart(*losses),
            "gradients apart": max(gradients),
            "greedy answers equal": same,
        }
    for what in ("loss apart", "gradients apart"):
        found.bars.append((what, max(one[what] for one in found.values.values()), "<=", 1e-3))
    return found


def sent(objective: Objective, batch: Batch, device: str) -> Batch:
    """As the trainer sends a batch."""
    return batch if device == "cpu" else batch._replace(plan=objective.plan(batch)).to(device)


def resumes_exactly(where: Machine) -> Figures:
    """A run that is stopped and resumed has the weights of one that is not, bit by bit, with deterministic kernels."""
    flags = [
        "--backbone.width=32",
        "--trainer.steps=8",
        "--trainer.batch_size=8",
        "--trainer.evaluate_num=4",
        "--task.held_out_graphs=8",
        "--trainer.report_num=4",
        f"--trainer.device={where.device}",
    ]
    recipe = recipe_of("path-star-small", *flags)
    whole, cut = where.folder / "resume-whole", where.folder / "resume-cut"
    for folder in (whole, cut):
        shutil.rmtree(folder, ignore_errors=True)  # made by an attempt that was stopped
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    try:
        train(recipe, whole)
        stopped = train(recipe, cut, listener=Listener(step=partial(stop_at, 4)))
        resume(cut)
    finally:
        torch.use_deterministic_algorithms(False)
    files = [Run.open(folder).find_checkpoint("last").weights.read_bytes() for folder in (whole, cut)]
    equal = float(files[0] == files[1])
    return Figures({"stopped at step": stopped.step}, [("weights equal bit by bit", equal, ">=", 1)])


def stop_at(last: int, step: int) -> None:
    if step == last:
        signal.raise_signal(signal.SIGTERM)


# Speed


def training_step(
    objective: Objective, batch: Batch, where: Machine, call: Callable[..., Any] | None = None
) -> Callable[[], Tensor]:
    """A step as the trainer does it; returns the loss."""
    optimizer = make_optimizer(objective, TrainerConfig())
    forward = objective if call is None else call

    def step() -> Tensor:
        given = sent(objective, batch, where.device)
        counts = objective.counts(given)
        with where.autocast():
            loss: Tensor = forward(given, counts).value()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(objective.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def size_of(where: Machine) -> sizes.Size:
    return sizes.SMOKE if where.smoke else replace(sizes.FULL, batch=256)


def random_batch(size: sizes.Size) -> Batch:
    tokens = torch.randint(0, size.vocabulary, (size.batch, size.tokens), generator=torch.Generator().manual_seed(0))
    lengths = torch.full((size.batch,), size.tokens)
    return collate(sizes.Examples(tokens.numpy(), lengths.numpy(), 0 * lengths.numpy()))


def step_time(title: str, where: Machine) -> Figures:
    """One objective at the TinyStories size of the papers, as many of 256 rows as fit; MFU counts `Objective.flops`."""
    case = sizes.CASES.get(title, GPT_CASE)
    size = size_of(where)
    while True:
        try:
            objective = sizes.make(case.objective, size, **case.fields).to(where.device)
            batch = random_batch(size)
            step = training_step(objective, batch, where)
            took = where.seconds(step)
            break
        except torch.OutOfMemoryError:
            if size.batch == 1:
                raise
            size = replace(size, batch=size.batch // 2)
    waits = ""
    try:
        with where.without_waiting():
            step()
    except RuntimeError as error:
        waits = str(error)[:100]
    bars = (
        []
        if where.device != "cuda"
        else [(f"{title}: whether a step waits for the device", float(bool(waits)), "<=", 0.0)]
    )
    flops = objective.flops(batch)
    reached = None if flops is None else flops / took
    return Figures(
        {
            "rows": size.batch,
            "ms": 1000 * took,
            "tokens per second": size.batch * size.tokens / took,
            "TFLOP/s": None if reached is None else reached / 1e12,
            "MFU": None if reached is None or where.peak is None else reached / where.peak,
            "waits for the device": (waits or "no") if where.device == "cuda" else "not asked on a CPU",
            "Table 3, against GPT": case.paper,
            **where.kernels(step),
        },
        bars,
    )


def product_rate(where: Machine, rows: int, inner: int, outer: int) -> float:
    """FLOP/s of bare products of these sizes."""
    kind = torch.bfloat16 if where.precision == "bf16" else torch.float32
    with torch.device(where.device):
        left, right = torch.randn(rows, inner, dtype=kind), torch.randn(inner, outer, dtype=kind)
    return 2 * rows * inner * outer / where.seconds(lambda: torch.mm(left, right))


def pairs_against_gathering(where: Machine) -> Figures:
    """The pair loss, forward and backward, of both heads, against gathering all pairs, and against products alone."""
    size = pair_ways.SMOKE if where.smoke else replace(pair_ways.FULL, tokens=512)
    torch.manual_seed(0)
    with torch.device(where.device):
        mlp = pair_ways.MLPHead(size.width, size.hidden, size.vocabulary)
        mixture = pair_ways.MixtureHead(size.width, 8, size.expert_width, size.vocabulary)
        states = [torch.randn(1, size.tokens, size.width, requires_grad=True) for _ in range(2)]
        tokens = torch.randint(0, size.vocabulary, (1, size.tokens))

    def step(way: str) -> list[Tensor]:
        head: pair_ways.TextHead = mixture if way == "mixture" else mlp
        with torch.device(where.device), where.autocast():
            loss = pair_ways.WAYS[way](head, *states, tokens)
        return [loss.detach(), *torch.autograd.grad(loss, [*states, *head.parameters()])]

    found: dict[str, Any] = {"pairs": size.pairs}
    for way in ("blockwise", "gathered", "mixture"):
        if where.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        found[f"{way}, ms"] = 1000 * where.seconds(partial(step, way))
        if where.device == "cuda":
            found[f"{way}, MB"] = torch.cuda.max_memory_allocated() / 2**20
        found |= {f"{way}, {name}": value for name, value in where.kernels(partial(step, way)).items()}
    found["apart"] = max(map(apart, step("gathered"), step("blockwise")))
    arithmetic = 6 * size.pairs * size.hidden * (size.hidden + 2 * size.vocabulary)
    rate = product_rate(where, 2**6 if where.smoke else 2**16, size.hidden, 2 * size.vocabulary)
    found["products alone, ms"] = 1000 * arithmetic / rate
    found["share of products' speed"] = found["products alone, ms"] / found["blockwise, ms"]
    found["mixture, speed against MLP"] = found["blockwise, ms"] / found["mixture, ms"]
    faster = found["gathered, ms"] / found["blockwise, ms"]
    bars = [
        ("pair loss, T = 512: speed against gathering", faster, ">=", 3.0),
        ("pair loss: apart", found["apart"], "<=", 0.05),
    ]
    return Figures(found, bars)


def muon_step(where: Machine) -> Figures:
    """A step of Muon by itself, ours against PyTorch's and the products alone, ms by the matrices of a GPT."""
    found = Figures()
    for title, (layers, width) in ({"1 layer of 16": (1, 16)} if where.smoke else MUON_SIZES).items():
        matrices = muon_ways.shapes(layers, width)
        kind = torch.bfloat16 if where.precision == "bf16" else torch.float32
        with torch.device(where.device):
            ways = muon_ways.ways(matrices, kind)
        times = {name: 1000 * where.seconds(way) for name, way in ways.items()}
        found.values[title] = times
        found.bars.append((f"Muon, {title}: times as fast as PyTorch's", times["pytorch"] / times["ours"], ">=", 1.0))
    return found


def passes(way: Callable[..., Tensor], inputs: list[Tensor]) -> None:
    way(*inputs).sum().backward()


def attention(where: Machine) -> Figures:
    """Forward and backward of both ways of plain attention by length, 8 heads of 96, ms."""
    found = Figures()
    total, lengths = (64, (16, 32)) if where.smoke else (2**14, (32, 64, 128, 256, 512, 1024, 2048))
    kind = torch.bfloat16 if where.precision == "bf16" else torch.float32
    for length in lengths:
        with torch.device(where.device):
            shape = (total // length, 8, length, 96)
            inputs = [torch.randn(shape, dtype=kind, requires_grad=True) for _ in range(3)]
        ways = {"fused": attend_fused, "written out": attend_written_out}
        times = {name: 1000 * where.seconds(partial(passes, way, inputs)) for name, way in ways.items()}
        found.values[f"T = {length}"] = times
    last = times["written out"] / times["fused"]
    found.bars.append((f"fused attention, T = {length}: speed against written out", last, ">=", 1.0))
    return found


def stream_attention(where: Machine) -> Figures:
    """Two streams, forward and backward: the device's way (FlexAttention on a GPU) against a dense mask."""
    found = Figures()
    for T in (128,) if where.smoke else (1024, 2048, 4096):
        with torch.device(where.device):
            inputs = [torch.randn(1, 4, 2, T, 64, requires_grad=True) for _ in range(3)]
        pattern = Pattern((INPUT, PREDICTION), Reach(None, T // 32))
        ways = {"chosen": partial(attend_streams, pattern=pattern), "dense": partial(attend_dense, pattern=pattern)}
        times: dict[str, Any] = {
            f"{name}, ms": 1000 * where.seconds(partial(passes, way, inputs), 10) for name, way in ways.items()
        }
        times["apart"] = apart(*(way(*inputs) for way in ways.values()))
        found.values[f"T = {T}"] = times
    found.bars.append(("two streams: apart from a dense mask", times["apart"], "<=", 1e-2))
    found.bars.append(("two streams: speed against a dense mask", times["dense, ms"] / times["chosen, ms"], ">=", 1.0))
    return found


def stream_decoding(where: Machine) -> Figures:
    """Decoding with two streams against one: 8 blocks of width 512, 16 rows, tokens a second."""
    small = where.smoke
    config = TwoStreamConfig(layers=2, heads=2, width=32) if small else TwoStreamConfig(layers=8, heads=8, width=512)
    vocabulary, rows, prefill, count = (100, 2, 80, 4) if small else (50304, 16, 1024, 256)
    found: dict[str, Any] = {}
    for variant in ("standard", "sps"):
        torch.manual_seed(0)
        model = TwoStream(replace(config, variant=variant), vocabulary=vocabulary, context=prefill + count)
        predictor = HeadPredictor(model.to(where.device).eval())
        prompts = torch.randint(0, vocabulary, (rows, prefill)).to(where.device)
        with torch.no_grad(), where.autocast():
            warm, logits = predictor.start(prompts)  # compiles, where something is compiled
            predictor.extend(warm, logits.argmax(-1).view(rows, 1))
            del warm
            began = where.wait()
            cursor, logits = predictor.start(prompts)
            read = where.wait()
            for _ in range(count):
                logits = predictor.extend(cursor, logits.argmax(-1).view(rows, 1))[:, -1]
            ended = where.wait()
        rates = {"prompts, tokens/s": rows * prefill / (read - began), "tokens/s": rows * count / (ended - read)}
        found[variant] = rates
    share = found["sps"]["tokens/s"] / found["standard"]["tokens/s"]
    return Figures(found, [("two streams: tokens a second against one", share, ">=", 0.5)])


WAYS_TO_COMPILE = ("nothing", "blocks", "whole")
"""What of a model is compiled, as by `trainer.compile`."""
LEAST_MFU = {"GPT": 0.45, "NextLat, d = 1": 0.45, "BST": 0.40}
"""Bars of compiled steps."""


def compiled_steps(title: str, where: Machine) -> Figures:
    """A step with nothing, its blocks or all of it compiled: ms, MFU, and operations a second against those of a GPT
    that is compiled in the same way; losses of the first five steps against those of nothing compiled."""
    case = sizes.CASES.get(title, GPT_CASE)
    size = replace(size_of(where), batch=2 if where.smoke else 64)
    batch, found, losses = random_batch(size), {}, {}
    for way in WAYS_TO_COMPILE:
        rates = {}
        for name, fields in {"next_token": {}, case.objective: case.fields}.items():
            torch.compiler.reset()
            objective = sizes.make(name, size, **fields).to(where.device)
            backend = "eager" if where.smoke else "inductor"
            call = torch.compile(objective, backend=backend) if way == "whole" else objective
            blocks = CompiledBlocks(objective, backend) if way == "blocks" else None
            step = training_step(objective, batch, where, call)
            with blocks.in_place() if blocks is not None else contextlib.nullcontext():
                losses[way] = [float(step()) for _ in range(5)]
                took = where.seconds(step)
            flops = objective.flops(batch)
            rates[name] = None if flops is None else flops / took
        reached, of_gpt = rates[case.objective], rates["next_token"]
        found[way] = {
            "ms": 1000 * took,
            "MFU": None if reached is None or where.peak is None else reached / where.peak,
            "operations a second, of GPT": None if reached is None or of_gpt is None else reached / of_gpt,
            "losses apart": max(abs(one - other) / one for one, other in zip(losses["nothing"], losses[way])),
        }
    bars = [
        (f"{title}, {way} compiled: losses apart", found[way]["losses apart"], "<=", 0.02) for way in WAYS_TO_COMPILE
    ]
    best = max((one["MFU"] for one in found.values() if one["MFU"] is not None), default=None)
    if best is not None and title in LEAST_MFU:
        bars.append((f"{title}: MFU of the fastest", best, ">=", LEAST_MFU[title]))
    share = found["blocks"]["operations a second, of GPT"]
    if title == "JTP, d = 8" and share is not None:
        bars.append((f"{title}, blocks compiled: time, of its arithmetic", 1 / share, "<=", 1.05))
    return Figures(found, bars)


def steps(where: Machine) -> dict[str, Callable[[Machine], Figures]]:
    """All steps in order, by name."""
    titles: Sequence[str] = ("GPT", "NextLat, d = 1", "BST") if where.smoke else ("GPT", *sizes.CASES)
    tried = ("GPT",) if where.smoke else ("GPT", "NextLat, d = 1", "BST", "BST, mixture", "JTP, d = 8")
    return {
        "contracts": contracts,
        **{f"compiled: {title}": partial(compiled_steps, title) for title in tried},
        "pair loss": pairs_against_gathering,
        "resume": resumes_exactly,
        **{f"step time: {title}": partial(step_time, title) for title in titles},
        "muon": muon_step,
        "attention": attention,
        "two streams: attention": stream_attention,
        "two streams: decoding": stream_decoding,
    }
