"""Decoders: prompts to completions, through a predictor."""

from statewise.config import Table

DECODERS = Table(
    "decoder",
    {
        "greedy": ("statewise.decoding.sample:Greedy", "the most likely token at every step"),
        "sample": ("statewise.decoding.sample:Sample", "draws by temperature, top-k and top-p"),
        "beam": ("statewise.decoding.beam:Beam", "beam search: ranked by log-probability"),
        "goal_search": (
            "statewise.decoding.goal_search:GoalSearch",
            "many roll-outs, ranked by how well they lead to a goal or end (belief_state)",
        ),
    },
)
