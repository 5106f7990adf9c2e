"""Pre-trains a small Llama by transformers alone on a corpus of `statewise data text`, for docs/results/fine-tuning.md.

python benchmarks/peers/pretrain.py --corpus corpus/ --out pretrained/

The loop is the usual one: rows of the token stream without regard to documents, the model's own loss, AdamW, a linear
warm-up and a cosine. Writes a folder of Hugging Face with the corpus's tokenizer.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent.parent))  # the frame of all benchmarks stands there

from timing import parser

from statewise.tasks.corpus.documents import find
from statewise.tasks.corpus.folder import TOKENIZER, Corpus
from statewise.tasks.corpus.writing import write
from statewise.tasks.text.bpe import END


def pretrain(
    corpus: Corpus, out: Path, *, width: int, layers: int, steps: int, rows: int, context: int, seed: int
) -> None:
    import transformers

    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=len(corpus.bpe.symbols),
        hidden_size=width,
        intermediate_size=8 * width // 3 // 8 * 8,
        num_hidden_layers=layers,
        num_attention_heads=width // 32,
        num_key_value_heads=width // 32,
        max_position_embeddings=context,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=corpus.bpe.end,
    )
    model = transformers.LlamaForCausalLM(config)
    print(f"{model.num_parameters():,} parameters", flush=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=0.1)
    rng, windows = np.random.default_rng(seed), len(corpus.training) // context
    warm, began = max(1, steps // 20), time.perf_counter()
    for step in range(steps):
        at = min(1.0, (step + 1) / warm) * (0.1 + 0.45 * (1 + math.cos(math.pi * step / steps)))
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * at
        starts = rng.integers(0, windows, rows) * context
        batch = np.stack([corpus.training.read(start, start + context) for start in starts.tolist()])
        tokens = torch.from_numpy(batch.astype(np.int64))
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % max(1, steps // 20) == 0:
            print(f"step {step + 1}: loss {loss.item():.3f}, {time.perf_counter() - began:.0f} s", flush=True)
    model.save_pretrained(out)
    shutil.copyfile(corpus.folder / TOKENIZER, out / "tokenizer.json")
    facts = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "model_max_length": context}
    (out / "tokenizer_config.json").write_text(json.dumps(facts, indent=2) + "\n")


def main(words: Sequence[str] | None = None) -> int:
    made = parser(__doc__)
    made.add_argument("--corpus", type=Path, help="folder written by statewise data text")
    made.add_argument("--out", type=Path, help="folder to write")
    for name, default in (("width", 96), ("layers", 3), ("steps", 600), ("rows", 16), ("context", 128), ("seed", 1)):
        made.add_argument(f"--{name}", type=int, default=default)
    options = made.parse_args(words)
    torch.set_num_threads(1)
    sizes = {name: getattr(options, name) for name in ("width", "layers", "steps", "rows", "context", "seed")}
    if not options.smoke:
        if options.corpus is None or options.out is None:
            made.error("give --corpus and --out")
        pretrain(Corpus(options.corpus), options.out, **sizes)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / "told.txt"
        told.write_text("".join(f"Story {number}: a cat saw {number} boats.\n{END}\n" for number in range(40)))
        corpus = write(find([told]), Path(folder) / "corpus", "bpe:260", held_out=0.2)
        pretrain(corpus, Path(folder) / "out", **{**sizes, "width": 32, "layers": 1, "steps": 2, "context": 16})
    return 0


if __name__ == "__main__":
    sys.exit(main())
