"""A trained sequence model as a predictor of actions, from which `strips.extract` extracts an action model.

The wing `strips` is a library without torch, so the bridge stands above both. May import `analysis.base`,
`decoding`, `model`, `strips` and `tasks`.
"""

from statewise.extraction.prediction import SequencePredictor

__all__ = ["SequencePredictor"]
