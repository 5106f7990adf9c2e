"""Action models made from others: with errors, in another order, or written another way."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from random import Random

from statewise.strips.model.heads import heads
from statewise.strips.model.model import Action, ActionModel, bits


def flipped(model: ActionModel, flips: Iterable[tuple[int, int, int]]) -> ActionModel:
    """Single bits of theta changed: (atom, action, 0 query, 1 key or 2 value), read back by Definition 5.

    Another value where the key is 0 changes nothing.
    """
    actions = list(model.actions)
    for atom, number, which in flips:
        bit, was = 1 << atom, actions[number]
        key = bool((was.add | was.delete) & bit) ^ (which == 1)
        value = bool(was.delete & bit) ^ (which == 2)
        actions[number] = Action(
            was.name,
            was.pre ^ (bit if which == 0 else 0),
            was.add & ~bit | (bit if key and not value else 0),
            was.delete & ~bit | (bit if key and value else 0),
        )
    return ActionModel(model.atoms, tuple(actions))


def permuted(model: ActionModel, order: Callable[[range], list[int]]) -> ActionModel:
    """Atoms in another order and under other names, actions in another order."""
    atoms = order(range(len(model.atoms)))
    other = model.with_atoms(atoms, [f"p{place}" for place in range(len(atoms))])
    return other.with_actions([model.names[number] for number in order(range(len(model.actions)))])


def with_needless_adds(model: ActionModel) -> ActionModel:
    """An equivalent model: an action that requires an atom and leaves it also adds it, which it was fine before."""
    return ActionModel(
        model.atoms, tuple(replace(action, add=action.add | action.pre & ~action.delete) for action in model.actions)
    )


def split(model: ActionModel, seed: int) -> ActionModel:
    """An equivalent model: every head becomes three that reject together what it rejects.

    A head rejects if one of its deletes is followed by one of its preconditions with none of its adds between. Each of
    the three takes a part of these pairs. A head with one delete and one precondition stays as it was.
    """
    random = Random(seed)
    columns = []
    for head in heads(model):
        pre, delete = (_half(random, actions) for actions in (head.pre, head.delete))
        columns += [(pre, head.add, head.delete), (head.pre ^ pre, head.add, delete)]
        columns += [(head.pre ^ pre, head.add, head.delete ^ delete)]
    random.shuffle(columns)
    actions = []
    for number, action in enumerate(model.actions):
        sets = (sum((column[which] >> number & 1) << at for at, column in enumerate(columns)) for which in range(3))
        actions.append(Action(action.name, *sets))
    return ActionModel(tuple(f"p{at}" for at in range(len(columns))), tuple(actions))


def _half(random: Random, actions: int) -> int:
    numbers = list(bits(actions))
    return sum(1 << number for number in random.sample(numbers, (len(numbers) + 1) // 2))


def two_of_three(many=6):
    """Two models that are equivalent, though pairs of atoms do not show it: any two of x1, x2, x3 can be fine, but
    never all three; the y's make it long to see."""
    xs, ys = ["x1", "x2", "x3"], [f"y{at}" for at in range(many)]
    effects = {
        "a": ([], [], [*xs, *ys, "q"]),
        **{f"s{x}": ([], [each for each in xs if each != x], [x]) for x in xs},
        **{f"f{y}": ([], [y], []) for y in ys},
        "c": ([*xs, *ys, "q"], [], []),
    }
    reference = ActionModel.of([*xs, *ys, "q"], effects)
    return reference.with_atoms(list(range(len(xs + ys)))), reference
