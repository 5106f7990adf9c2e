"""Whether a model of the user's own sequences has understood them: surprises, drift, and one page of figures. Figures
are data first (`explanation`); `page` draws them.

Imports `decoding`, `evaluation`, `model`, `reporting.figures`, `reporting.svg` and `tasks`.
"""

from statewise.explain.explanation import Explanation, explain
from statewise.explain.page import save
from statewise.explain.scoring import Scored, compare, score
from statewise.explain.surprise import Drift

__all__ = ["Drift", "Explanation", "Scored", "compare", "explain", "save", "score"]
