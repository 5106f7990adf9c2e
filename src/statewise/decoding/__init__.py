"""Decoders: prompts to completions, through a predictor."""

from statewise.config import Table

DECODERS = Table(
    "decoder",
    {
        "greedy": ("statewise.decoding.sample:Greedy", "the most likely token at every step"),
        "sample": ("statewise.decoding.sample:Sample", "draws by temperature, top-k and top-p"),
    },
)
