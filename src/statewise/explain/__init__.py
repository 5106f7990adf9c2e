"""Whether a model of the user's own sequences has understood them: surprises, drift, and one page of figures. Figures
are data first (`explanation`); `page` draws them.

May import `decoding`, `evaluation`, `model`, `reporting.figures`, `reporting.plots` and `tasks`.
"""

from statewise.explain.explanation import Explanation, explain
from statewise.explain.page import save
from statewise.explain.scoring import Scored, compare, score
from statewise.explain.surprise import Drift

__all__ = ["Drift", "Explanation", "Scored", "compare", "explain", "save", "score"]
