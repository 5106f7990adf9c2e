"""Tiny exact stand-ins and the small models that many tests share."""

from __future__ import annotations

import atexit
import copy
import dataclasses
import functools
import json
import tempfile
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from statewise.analysis.base import Snapshot, Subject
from statewise.backbones import BACKBONES
from statewise.backbones.base import Backbone
from statewise.backbones.belief_slots import BeliefSlots, BeliefSlotsConfig
from statewise.backbones.capabilities import Branching, Phased
from statewise.backbones.deltanet import DeltaNet, DeltaNetConfig
from statewise.backbones.gpt import GPT, GPTConfig
from statewise.backbones.recurrent import Recurrent, RecurrentConfig
from statewise.backbones.two_stream import TwoStream, TwoStreamConfig
from statewise.data_types import Batch, Examples, Hidden
from statewise.decoding import make_decoder
from statewise.decoding.predictor import GoalScorer, Predictor, SuffixEncoder
from statewise.evaluation.evaluate import complete
from statewise.model.model import Model, new_model
from statewise.model.recipes import read_recipe
from statewise.objectives import OBJECTIVES
from statewise.objectives.base import Objective
from statewise.run import Run
from statewise.tasks.base import ConsecutiveRows, Task
from statewise.tasks.batches import collate
from statewise.tasks.corpus.documents import find
from statewise.tasks.corpus.folder import Corpus
from statewise.tasks.corpus.writing import write
from statewise.tasks.text.task import InMemory, Windows

VOCABULARY, CONTEXT = 11, 24

SMALL_RUN = ["--backbone.width=16", "--backbone.heads=2", "--backbone.layers=1", "--trainer.batch_size=8"]
"""Flags that make a run of any recipe a matter of seconds."""


def tiny_gpt(
    *, extra_tokens: int = 0, embedding_of: Backbone | None = None, context: int = CONTEXT, **fields: Any
) -> Backbone:
    """A two-layer GPT; `fields` are config fields."""
    config = GPTConfig(**{"width": 16, "heads": 2, "layers": 2, **fields})
    return GPT(config, vocabulary=VOCABULARY + extra_tokens, context=context, embedding_of=embedding_of)


def tiny_two_stream(
    *, extra_tokens: int = 0, embedding_of: Backbone | None = None, context: int = CONTEXT, **fields: Any
) -> TwoStream:
    """A two-layer two-stream transformer; `fields` are config fields."""
    config = TwoStreamConfig(**{"width": 16, "heads": 2, "layers": 2, "window": 3, **fields})
    return TwoStream(config, vocabulary=VOCABULARY + extra_tokens, context=context, embedding_of=embedding_of)


def tiny_belief_slots(
    *, extra_tokens: int = 0, embedding_of: Backbone | None = None, context: int = CONTEXT, **fields: Any
) -> BeliefSlots:
    """A two-layer belief-slot decoder; `fields` are config fields."""
    config = BeliefSlotsConfig(**{"width": 16, "heads": 2, "layers": 2, "chunk": 4, "slots": 2, **fields})
    return BeliefSlots(config, vocabulary=VOCABULARY + extra_tokens, context=context, embedding_of=embedding_of)


def tiny_recurrent(
    *, extra_tokens: int = 0, embedding_of: Backbone | None = None, context: int = CONTEXT, **fields: Any
) -> Recurrent:
    """A two-layer GRU; `fields` are config fields."""
    config = RecurrentConfig(**{"width": 16, "layers": 2, **fields})
    return Recurrent(config, vocabulary=VOCABULARY + extra_tokens, context=context, embedding_of=embedding_of)


def tiny_deltanet(
    *, extra_tokens: int = 0, embedding_of: Backbone | None = None, context: int = CONTEXT, **fields: Any
) -> DeltaNet:
    """A two-layer Gated DeltaNet; `fields` are config fields."""
    config = DeltaNetConfig(**{"width": 16, "heads": 2, "layers": 2, **fields})
    return DeltaNet(config, vocabulary=VOCABULARY + extra_tokens, context=context, embedding_of=embedding_of)


@functools.cache
def tiny_folder() -> str:
    """A folder of Hugging Face with a two-layer Starcoder2, which computes in float64 what depends on tokens."""
    import transformers

    config = transformers.Starcoder2Config(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=160,
        sliding_window=None,
        residual_dropout=0.0,
        embedding_dropout=0.0,
        attention_dropout=0.0,
        bos_token_id=None,
        eos_token_id=None,
    )
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        transformers.logging.disable_progress_bar()
        transformers.Starcoder2ForCausalLM(config).float().save_pretrained(folder.name)
    return folder.name


@functools.cache
def _loaded(dtype: torch.dtype, tokens: int, context: int, fields: tuple[tuple[str, Any], ...]) -> Backbone:
    from statewise.backbones.hf.backbone import HuggingFace, HuggingFaceConfig

    config = HuggingFaceConfig(**{"model": tiny_folder(), **dict(fields)})
    return HuggingFace(config, vocabulary=tokens, context=context)


def tiny_hf(
    *, extra_tokens: int = 0, embedding_of: Backbone | None = None, context: int = CONTEXT, **fields: Any
) -> Backbone:
    """A model of Hugging Face; `fields` are config fields. Loading takes a while, so others are copies of the first."""
    from statewise.backbones.hf.backbone import HuggingFace, HuggingFaceConfig

    tokens = VOCABULARY + extra_tokens
    if embedding_of is None:
        return copy.deepcopy(_loaded(torch.get_default_dtype(), tokens, context, tuple(sorted(fields.items()))))
    config = HuggingFaceConfig(**{"model": tiny_folder(), **fields})
    return HuggingFace(config, vocabulary=tokens, context=context, embedding_of=embedding_of)


OWN_OBJECTIVES: list[str] = []
"""Objectives of other packages that the contract suite is to try, as `module:Class`."""
TINY_BACKBONES: dict[str, Callable[..., Backbone]] = {
    "deltanet": tiny_deltanet,
    "gpt": tiny_gpt,
    "hf": tiny_hf,
    "recurrent": tiny_recurrent,
    "two_stream": tiny_two_stream,
    "belief_slots": tiny_belief_slots,
}
"""A tiny one of each backbone of the table."""


def tiny_of(kind: type[Backbone]) -> Callable[..., Backbone]:
    """Makes tiny ones of a backbone that we do not know, of width 16, with 2 heads and 2 layers where it has them."""

    def make(
        *, extra_tokens: int = 0, embedding_of: Backbone | None = None, context: int = CONTEXT, **fields: Any
    ) -> Backbone:
        known = {field.name for field in dataclasses.fields(kind.Config)}
        small = {name: value for name, value in {"width": 16, "heads": 2, "layers": 2}.items() if name in known}
        config = kind.Config(**{**small, **fields})
        made: Any = kind
        return made(config, vocabulary=VOCABULARY + extra_tokens, context=context, embedding_of=embedding_of)

    return make


MAPPED_BLOCKS: list[tuple[str, dict[str, Any]]] = [
    ("LlamaForCausalLM", {}),
    ("LlamaForCausalLM", {"bias": True, "tied": False}),
    ("LlamaForCausalLM", {"norm_eps": 1e-2, "expansion": 1.3}),
    ("GPT2LMHeadModel", {"norm": "layer", "positions": "learned", "mlp": "gelu"}),
    ("GPT2LMHeadModel", {"norm": "layer", "positions": "learned", "mlp": "relu", "bias": True, "tied": False}),
    ("Starcoder2ForCausalLM", {"norm": "layer", "mlp": "gelu", "bias": True, "norm_eps": 1e-2}),
    ("Starcoder2ForCausalLM", {"norm": "layer", "mlp": "relu", "tied": False}),
    ("StableLmForCausalLM", {"norm": "layer"}),
    ("StableLmForCausalLM", {"norm": "layer", "tied": False, "norm_eps": 1e-2}),
]
"""Fields of a GPT, and the architecture of transformers that represents it."""


class PhasedGPT(GPT, Phased):
    """Notes when it is told of the fraction of training done; from half of it on it adds 1 to its readout."""

    told: ClassVar[list[float]] = []
    """What all of them were told, in turn."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.register_buffer("late", torch.zeros(()))

    def set_progress(self, fraction: float) -> None:
        self.told.append(fraction)
        self.late.fill_(float(fraction >= 0.5))

    def last(self, trunk: Any) -> Hidden:
        hidden = super().last(trunk)
        return Hidden(hidden.state, hidden.readout + self.late)


def makes_sense(objective: str, backbone: str) -> bool:
    """Whether an objective of the table can be had on a backbone: the last block of some cannot be had twice."""
    return objective not in ("multi_token", "latent_multi_token") or issubclass(BACKBONES[backbone], Branching)


def tiny_objective(
    name: str,
    seed: int = 0,
    backbone: dict[str, Any] | None = None,
    make_backbone: Callable[..., Backbone] = tiny_gpt,
    **fields: Any,
) -> Objective:
    """Any objective of the table around a tiny backbone."""
    torch.manual_seed(seed)
    kind = OBJECTIVES[name]
    objective: Objective = kind(kind.Config(**fields), lambda **more: make_backbone(**{**(backbone or {}), **more}))
    return objective


def path_star_model(objective: str = "next_token", backbone: str = "gpt", **fields: Any) -> Model:
    """A small untrained model of small star graphs with spread weights; `fields` are those of the backbone."""
    sizes = {} if backbone == "hf" else {"width": 16, "layers": 2, "heads": 2}
    if backbone == "recurrent":
        del sizes["heads"]
    recipe = {
        "task": {"name": "path_star", "degree": 2, "length": 4, "nodes": 12, "held_out_graphs": 12},
        "backbone": {"name": backbone, **sizes, **fields},
        "objective": objective,
    }
    model = new_model(read_recipe(json.dumps(recipe)))
    spread_weights(model.objective)
    return model


def spread_weights(module: torch.nn.Module, seed: int = 1) -> None:
    """Larger weights than a fresh model has, so that nothing that matters is hidden by being nearly zero."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator).to(parameter.dtype)


def rotate(heads: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Rotary positions as they are defined: `heads` (..., T, W), `rotation` of `rotary_angles`."""
    straight, swapped = (part.to(heads.dtype) for part in rotation)
    return heads * straight + heads.roll(heads.shape[-1] // 2, dims=-1) * swapped


def random_examples(rng: np.random.Generator, n: int = 4, longest: int = 10, prompts: bool = True) -> Examples:
    """Sequences of different lengths with prompts of different lengths."""
    lengths = rng.integers(4, longest + 1, n)
    lengths[0] = longest
    tokens = rng.integers(0, VOCABULARY, (n, longest))
    prompt_lengths = rng.integers(1, lengths - 1) if prompts else np.zeros(n, np.int64)
    return Examples(np.where(np.arange(longest) < lengths[:, None], tokens, 0), lengths, prompt_lengths)


def small_stories(n: int, seed: int = 0) -> str:
    """A file of n short stories, all different, with names, numbers, quotes and letters of more than one byte."""
    rng = np.random.default_rng(seed)
    names, things = ["Ann", "Böb", "Zoë", "Tim"], ["ball", "kite", "cat", "big red boat", "café"]
    told = []
    for number in range(n):
        one, other = rng.permutation(names)[:2]
        lines = [f"Once {one} had a {rng.choice(things)} and {number} stars."]
        for _ in range(int(rng.integers(1, 3))):
            lines.append(
                f"“Look, {other}’s {rng.choice(things)}!” said {one}.\n" if rng.random() < 0.5 else "They ran."
            )
        told.append("\n".join([*lines, f"{other} was happy."]) + "\n<|endoftext|>\n")
    return "".join(told)


def small_corpus(folder: Path, n: int = 60, tokenizer: str = "bpe:270", **options: Any) -> Corpus:
    """A corpus of n short documents of ASCII text, all different."""
    rng = np.random.default_rng(0)
    words = ["a", "cat", "saw", "the", "blue", "boat,", "and", "it", "sank.", "3", "dogs"]
    told = [" ".join([f"Story {number}:", *rng.choice(words, rng.integers(1, 30))]) for number in range(n)]
    path = folder / "told.txt"
    path.write_text("".join(f"{text}\n<|endoftext|>\n" for text in told))
    return write(find([path]), folder / "corpus", tokenizer, **{"held_out": 0.2, **options})


def random_batch(seed: int = 0, **options: Any) -> Batch:
    """A right-padded batch of random sequences."""
    return collate(random_examples(np.random.default_rng(seed), **options))


def pack(batch: Batch) -> Batch:
    """The same sequences, two documents a row, one behind the other."""
    rows = []
    lengths = batch.real.sum(1).tolist()
    for first in range(0, len(lengths), 2):
        parts = [(batch.tokens[row, : lengths[row]], batch.scored[row, : lengths[row]]) for row in (first, first + 1)]
        documents = torch.cat([torch.full((len(part[0]),), number + 1) for number, part in enumerate(parts)])
        rows.append((torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts]), documents))
    width = max(len(row[0]) for row in rows)
    padded = [
        torch.stack([torch.nn.functional.pad(row[place], (0, width - len(row[0]))) for row in rows])
        for place in range(3)
    ]
    columns = padded[1].any(0).nonzero()[:, 0]
    return Batch(padded[0], padded[1], padded[2] > 0, padded[2], (int(columns[0]), int(columns[-1]) + 1))


@dataclass
class Remembered:
    """Where a `Remembering` predictor stands."""

    rows: list[Tensor]
    """What each row has read, (n_b,) each."""
    goal: tuple[int, ...] = ()


class Remembering(Predictor):
    """Keeps all tokens of all rows, and answers anew from them."""

    @abstractmethod
    def after(self, tokens: Tensor, goal: tuple[int, ...]) -> Tensor:
        """(B, V): logits behind `tokens` (B, t)."""

    def answer(self, cursor: Remembered) -> Tensor:
        if len({len(row) for row in cursor.rows}) == 1:
            return self.after(torch.stack(cursor.rows), cursor.goal)
        return torch.cat([self.after(row[None], cursor.goal) for row in cursor.rows])

    def start(self, prompts: Tensor, counts: np.ndarray | None = None) -> tuple[Remembered, Tensor]:
        counts = np.full(len(prompts), prompts.shape[1]) if counts is None else counts
        cursor = Remembered([row[:count] for row, count in zip(prompts, counts.tolist())])
        return cursor, self.answer(cursor)

    def extend(self, cursor: Remembered, tokens: Tensor, counts: np.ndarray | None = None) -> Tensor:
        counts, logits = np.full(len(tokens), tokens.shape[1]) if counts is None else counts, []
        for column in range(tokens.shape[1]):
            cursor.rows = [
                torch.cat([row, new[column : column + 1]]) if column < count else row
                for row, new, count in zip(cursor.rows, tokens, counts.tolist())
            ]
            logits.append(self.answer(cursor))
        return torch.stack(logits, 1)

    def rewind(self, cursor: Remembered, positions: int | np.ndarray) -> None:
        back = np.broadcast_to(positions, len(cursor.rows)).tolist()
        assert all(0 <= count < len(row) for count, row in zip(back, cursor.rows))
        cursor.rows = [row[: len(row) - count] for row, count in zip(cursor.rows, back)]

    def reorder(self, cursor: Remembered, rows: Tensor) -> None:
        cursor.rows = [cursor.rows[row] for row in rows.tolist()]

    def join(self, cursor: Remembered, other: Remembered) -> None:
        cursor.rows = cursor.rows + other.rows


class MarkovPredictor(Remembering):
    """The next token depends on the last one alone, with known probabilities: decoding can be checked by hand."""

    def __init__(self, transitions: Tensor, context: int = 32) -> None:
        self.table = transitions.log()
        self.vocabulary, self.context = len(transitions), context

    def after(self, tokens: Tensor, goal: tuple[int, ...]) -> Tensor:
        return self.table[tokens[:, -1]]

    def answer(self, cursor: Remembered) -> Tensor:
        return self.table[torch.stack([row[-1] for row in cursor.rows])]

    def extend(self, cursor: Remembered, tokens: Tensor, counts: np.ndarray | None = None) -> Tensor:
        if tokens.shape[1] and (counts is None or (counts == tokens.shape[1]).all()):  # at once: tests have many rows
            cursor.rows = [torch.cat(pair) for pair in zip(cursor.rows, tokens)]
            return self.table[tokens]
        return super().extend(cursor, tokens, counts)

    def states(self, batch: Batch) -> Hidden:
        one_hot = torch.nn.functional.one_hot(batch.tokens, self.vocabulary).float()
        return Hidden(one_hot, one_hot)

    def logits(self, batch: Batch) -> Tensor:
        return self.table[batch.tokens]


class SumPredictor(MarkovPredictor, SuffixEncoder):
    """The state is the sum of the tokens read, and their number; that of a suffix the same of what follows."""

    def __init__(self) -> None:
        super().__init__(torch.full((VOCABULARY, VOCABULARY), 1 / VOCABULARY))

    def states(self, batch: Batch) -> Hidden:
        tokens = torch.where(batch.real, batch.tokens, 0).double()
        sums = torch.stack((tokens.cumsum(1), torch.ones_like(tokens).cumsum(1)), -1)
        return Hidden(sums, sums)

    def suffix_states(self, batch: Batch) -> Tensor:
        tokens = torch.where(batch.real, batch.tokens, 0).double()
        both = torch.stack((tokens, batch.real.double()), -1)
        return both.flip(1).cumsum(1).flip(1)


class FixedTask(Task):
    """Given examples, to train on and to hold out; it has no text and no score."""

    read = encode = decode = score = None  # type: ignore[assignment]

    def __init__(self, held_out: Examples, training: Examples | None = None) -> None:
        self.examples, self.train = held_out, held_out if training is None else training
        self.context = self.examples.tokens.shape[1]

    def training(self) -> Examples:
        return self.train

    def held_out(self, n: int | None = None) -> Examples:
        return self.examples[:n]


class CutStream(ConsecutiveRows, FixedTask):
    """A stream of documents, each closed by a 0, cut into rows of `context` tokens."""

    end: ClassVar[int] = 0

    def __init__(self, tokens: np.ndarray, context: int) -> None:
        self.tokens, self.context = tokens, context
        self.windows = Windows(InMemory(tokens), context, self.end)

    def training(self) -> Windows:
        return self.windows

    def continues(self, rows: np.ndarray) -> np.ndarray:
        return self.windows.continues(rows)


def subject(predictor: Predictor, task: Task, untrained: Predictor | None = None, **checkpoints: Predictor) -> Subject:
    """What an analysis looks at, without a run: `step_3=predictor` is the checkpoint of step 3."""
    others = {int(name.removeprefix("step_")): other for name, other in checkpoints.items()}
    return Subject(
        task,
        Snapshot("step 9", predictor, 9),
        lambda which: (
            (step, functools.partial(Snapshot, f"step {step}", other, step)) for step, other in others.items()
        ),
        lambda: Snapshot("untrained model", untrained or predictor),
        lambda examples: complete(task, predictor, make_decoder("greedy"), examples, block=64),
    )


class JointPredictor(Remembering, GoalScorer):
    """Knows the probability of every sequence of N tokens, so that each of its answers is a sum over a table.

    A sequence that ends earlier is one that goes on with `end` to the last place. `joint` (V,) * N.
    """

    def __init__(self, joint: Tensor) -> None:
        self.joint, self.vocabulary, self.context = joint / joint.sum(), len(joint), joint.dim()

    @classmethod
    def drawn(cls, seed: int, vocabulary: int, length: int, end: int | None = None) -> JointPredictor:
        """Random probabilities, in which everything depends on everything."""
        generator = torch.Generator().manual_seed(seed)
        joint = torch.rand((vocabulary,) * length, generator=generator, dtype=torch.float64) ** 3
        for place in range(length - 1) if end is not None else ():
            for token in range(vocabulary):
                if token != end:  # what comes after the end is no sequence
                    joint[(slice(None),) * place + (end, token)] = 0.0
        return cls(joint)

    def probability(self, known: dict[int, int]) -> Tensor:
        """Of the tokens `known` by their place, whatever stands elsewhere."""
        return self.joint[tuple(known.get(place, slice(None)) for place in range(self.context))].sum()

    def next_logits(self, read: Tensor, goal: tuple[int, ...]) -> Tensor:
        """(B, V) behind `read` (B, n), of sequences whose last tokens are `goal`."""
        end = dict(zip(range(self.context - len(goal), self.context), goal))
        rows = [
            [self.probability({**end, **dict(enumerate([*row, token]))}) for token in range(self.vocabulary)]
            for row in read.tolist()
        ]
        return torch.tensor(rows, dtype=torch.float64).log() + 0.7  # logits need not be normalised

    def after(self, tokens: Tensor, goal: tuple[int, ...]) -> Tensor:
        return self.next_logits(tokens, goal)

    def start_with_goal(
        self, prompts: Tensor, goal: Tensor, counts: np.ndarray | None = None
    ) -> tuple[Remembered, Tensor]:
        cursor, _ = self.start(prompts, counts)
        cursor.goal = tuple(goal.tolist())
        return cursor, self.answer(cursor)

    def score_goal(self, cursor: Remembered, goal: Tensor) -> Tensor:
        sequences = torch.cat([torch.stack(cursor.rows), goal.expand(len(cursor.rows), -1)], 1)
        assert sequences.shape[1] == self.context, "the goal must stand at the end"
        return self.score_ending(sequences, len(goal), "previous")

    def score_ending(self, sequences: Tensor, count: int, head: Literal["previous", "next"]) -> Tensor:
        T = sequences.shape[1]
        return torch.stack(
            [
                sum((self.score_token(row, place, head) for place in range(T - count, T)), torch.zeros(()))
                for row in sequences.tolist()
            ]
        )

    def score_token(self, row: list[int], place: int, head: str) -> Tensor:
        """Log-probability of one token of a row, given all others (`previous`) or those before it (`next`)."""
        whole = dict(enumerate(row + [row[-1]] * (self.context - len(row))))  # an end goes on to the last place
        known = {other: token for other, token in whole.items() if other < place or head == "previous"}
        given = {other: token for other, token in known.items() if other != place}
        return (self.probability(given | {place: row[place]}) / self.probability(given)).log()

    def states(self, batch: Batch) -> Hidden:
        logits = self.logits(batch)
        return Hidden(logits, logits)

    def logits(self, batch: Batch) -> Tensor:
        return torch.stack(
            [self.next_logits(batch.tokens[:, :end], ()) for end in range(1, batch.tokens.shape[1] + 1)], 1
        )


class WorldPredictor(Remembering):
    """Knows a world by heart, or what `seen_as` makes of its states: every token that may come, `in_time` only such as
    leave time to end, has the same probability, but one on a shortest way a little more."""

    def __init__(
        self, world: Any, seen_as: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None, *, in_time: bool = True
    ) -> None:
        self.world, self.vocabulary, self.context = world, len(world.vocab), world.context
        self.in_time = in_time
        self.seen_as = seen_as or (lambda states, tokens: states)

    def after(self, tokens: Tensor, goal: tuple[int, ...]) -> Tensor:
        return self.next_logits(tokens)

    def next_logits(self, tokens: Tensor) -> Tensor:
        """(B, V) behind `tokens` (B, t)."""
        world, rows = self.world, tokens.numpy()
        states = self.seen_as(world.states_after(rows), rows)
        logits = np.full((len(rows), self.vocabulary), -np.inf)
        row, token = np.nonzero(world.allowed(states))
        left = world.tokens_left(world.step(states[row], token))
        fits = (left >= 0) & (left <= world.longest - rows.shape[1] - 1) if self.in_time else np.full(len(row), True)
        logits[row[fits], token[fits]] = -0.001 * np.where(left >= 0, left, 1000)[fits]
        logits[np.isinf(logits).all(axis=1)] = 0.0  # anything may follow what cannot be
        return torch.from_numpy(logits)

    def states(self, batch: Batch) -> Hidden:
        logits = self.logits(batch)
        return Hidden(logits, logits)

    def logits(self, batch: Batch) -> Tensor:
        tokens = batch.tokens
        return torch.stack([self.next_logits(tokens[:, :end]) for end in range(1, tokens.shape[1] + 1)], 1)


def make_run(
    folder: Path,
    seed: int,
    accuracy: float,
    objective: str = "next_token",
    backbone: dict[str, Any] | None = None,
    **trainer: Any,
) -> Path:
    """A run directory as training leaves it, evaluated once."""
    recipe = {
        "task": {"name": "path_star", "degree": 2},
        "backbone": backbone or {"name": "gpt"},
        "objective": {"name": objective},
        "trainer": {"steps": 10, **trainer},
        "seed": seed,
    }
    run = Run.create(folder, recipe, {}, overwrite=False)
    for step in (5, 10):
        run.log({"kind": "train", "step": step, "next_token": 1.0 / step, "loss": 1.0 / step, "seconds": step})
        forced = {"loss": 0.5, "token_accuracy": 0.6}
        run.log({"kind": "evaluation", "step": step, "path_accuracy": accuracy, **forced, "seconds": step})
    run.log({"kind": "end", "step": 10, "reason": "steps", "seconds": 10.0})
    sample = {"prompt": "<script>", "truth": "1,2", "predicted": "1,3"}
    headline = {"metric": "path_accuracy", "higher_is_better": True, "solved_at": 0.99}
    run.write_report(
        "evaluation",
        {
            "checkpoint": 10,
            "headline": headline,
            "chance": {"path_accuracy": 0.5},
            "metrics": {"path_accuracy": accuracy, "loss": 0.5},
            "num": 10,
            "samples": [sample],
        },
    )
    return folder


def rewrite_end(folder, **fields):
    """Changes fields of the record of the end of training; without any, drops it."""
    path = folder / "metrics.jsonl"
    *others, end = path.read_text().splitlines(keepends=True)
    path.write_text("".join(others) + (json.dumps({**json.loads(end), **fields}) + "\n") * bool(fields))
    return folder


def with_baselines(folder, bigram=0.3):
    run = Run(folder)
    long = {"text": "a b <b>", "tokens": 3, "copies": 2}
    run.write_report(
        "evaluation",
        {
            **run.report("evaluation"),
            "baselines": {
                "bigram": {"loss": 0.9, "path_accuracy": bigram, "token_accuracy": 0.4},
                "always <end>": {"token_accuracy": 0.2},
            },
            "continuations": [{"prompt": "p [/b]", "truth": "a b c", "predicted": "a b <i>"}],
            "hardest": [{**long, "nats_per_token": 3.25}],
            "easiest": [{**long, "nats_per_token": 0.125}],
        },
    )
    return folder


def lives(number):
    """Whether a process runs, on Linux; one that nobody has waited for is none."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
