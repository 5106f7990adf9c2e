"""Drafts inside transformers' `generate` against `generate` without them, on a Llama tuned in a plain loop.

python benchmarks/generate_drafts.py TEXT

TEXT: a file of text, its last part held out; without it, three sentences again and again. Trains a byte-pair
tokenizer and the model with the loss of `next_latent`, then continues held-out texts, with and without drafts in
turn, greedily and at temperature 1. Seconds are of CPU time of this process. Prints speed as a multiple of that
without drafts in each round, drafts accepted a cycle, and how many texts are equal. Exit code 1: a text differs, or
the best draft length misses its bar.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from timing import Benchmark, parser
from torch import Tensor

import statewise.hf

SENTENCES = "One day a dog saw a big ball. The ball was red and the dog was happy. They ran to the park. "


def tuned(text: str, seconds: float, width: int, subwords: int) -> tuple[Any, Tensor]:
    """A Llama trained for so many seconds of CPU time, and held-out token ids (N,)."""
    bpe = tokenizers.ByteLevelBPETokenizer()
    bpe.train_from_iterator([text[: len(text) * 19 // 20]], vocab_size=subwords, show_progress=False)
    ids = torch.tensor(bpe.encode(text).ids)
    known, held_out = ids[: len(ids) * 19 // 20], ids[len(ids) * 19 // 20 :]
    torch.manual_seed(0)
    sizes = {"hidden_size": width, "intermediate_size": 3 * width, "num_hidden_layers": 4, "num_attention_heads": 4}
    sizes |= {"vocab_size": subwords, "max_position_embeddings": 256}
    config = transformers.LlamaConfig(**sizes, bos_token_id=None, eos_token_id=None, tie_word_embeddings=True)
    model = transformers.LlamaForCausalLM(config)
    compute = statewise.hf.loss_for(model, "next_latent", horizon=4, logits=False)
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    began, steps = time.process_time(), 0
    while time.process_time() - began < seconds or not steps:
        rows = torch.stack([known[start : start + 128] for start in torch.randint(len(known) - 128, (8,))])
        loss = compute(model(input_ids=rows), rows)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1
    print(f"{steps} steps, the last one's loss {loss.item():.2f}")
    return model.eval(), held_out


def main(words: list[str] | None = None) -> int:
    """Runs the comparison."""
    arguments = parser(__doc__)
    arguments.add_argument("text", type=Path, nargs="?", metavar="TEXT")
    arguments.add_argument("--seconds", type=float, default=300.0, help="CPU time of training (default: 300)")
    given = arguments.parse_args(words)
    bench = Benchmark(given.smoke)
    torch.set_num_threads(1)
    if given.smoke:
        (model, held_out), limit, rounds, count = tuned(SENTENCES * 200, 0, 16, 270), 8, 1, 1
    else:
        made = tuned(
            given.text.read_text(encoding="utf-8") if given.text else SENTENCES * 5000, given.seconds, 128, 1024
        )
        (model, held_out), limit, rounds, count = made, 128, 3, 6
    prompts = held_out[: len(held_out) // 48 * 48].view(-1, 48)[:count, None]
    passes: list[int] = []
    model.register_forward_hook(lambda *_: passes.append(1))
    ways: dict[Any, dict[str, Any]] = {None: {}}
    ways |= {drafts: {"custom_generate": statewise.hf.draft, "drafts": drafts} for drafts in (2, 4, "auto")}
    differing = 0
    for sampled in (False, True):
        seconds = {way: [0.0] * (rounds + 1) for way in ways}
        read, texts = dict.fromkeys(ways, 0), {way: [] for way in ways}
        for number in range(rounds + 1):  # the first one warms up
            for prompt in prompts:
                for way, options in ways.items():
                    torch.manual_seed(number)
                    passes.clear()
                    began = time.process_time()
                    asked = {"max_new_tokens": limit, "do_sample": sampled, **({"top_k": 0} if sampled else {})}
                    text = model.generate(prompt, attention_mask=torch.ones_like(prompt), **asked, **options)
                    seconds[way][number] += time.process_time() - began
                    read[way] += len(passes)
                    texts[way].append(text.tolist())
        name, best = "temperature 1" if sampled else "greedy", 0.0
        total = limit * len(prompts) * (rounds + 1)
        print(f"{name}: {limit * len(prompts) / min(seconds[None][1:]):.0f} tokens/s without drafts")
        for way in list(ways)[1:]:
            faster = [plain / drafted for plain, drafted in zip(seconds[None][1:], seconds[way][1:])]
            best = max(best, statistics.median(faster))
            equal = sum(one == other for one, other in zip(texts[None], texts[way]))
            differing += len(texts[None]) - equal
            shown = ", ".join(f"{one:.2f}" for one in faster)
            print(
                f"  drafts of {way}: {shown} times; {total / read[way] - 1:.2f} accepted; {equal} of "
                f"{len(texts[None])} texts equal"
            )
        bench.at_least(f"{name}: speed with drafts, the best of three lengths", best, 1.4)
    return 1 if differing else bench.exit_code()


if __name__ == "__main__":
    raise SystemExit(main())
