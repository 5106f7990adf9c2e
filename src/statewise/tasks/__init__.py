"""Tasks: where sequences come from, and what a right answer is."""

from statewise.config import Table

TASKS = Table(
    "task",
    {
        "countdown": ("statewise.tasks.countdown:Countdown", "make a target of given numbers by + - * /"),
        "manhattan": (
            "statewise.tasks.manhattan.task:Manhattan",
            "taxi rides through a city of one-way streets, on a map of yours or a grid",
        ),
        "path_star": ("statewise.tasks.path_star:PathStar", "find the arm of a star graph that ends at the goal"),
        "recall": ("statewise.tasks.recall:Recall", "keys given in one chunk and asked for in later ones"),
        "sequences": ("statewise.tasks.sequences:Sequences", "your own sequences, from a text file or JSON lines"),
        "stories": ("statewise.tasks.stories:Stories", "short stories, told onwards or towards a known ending"),
        "strips_traces": ("statewise.tasks.strips_traces:StripsTraces", "action traces of a planning domain"),
        "text": ("statewise.tasks.text:Text", "running text from a corpus of your own documents"),
    },
)
