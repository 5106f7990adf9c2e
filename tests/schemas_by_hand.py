"""Textbook schemas of two domains, as a lifted learner would write them."""

from statewise.strips.model.schemas import Schema

FERRY = {
    "sail": ({("at-ferry", (0,))}, {("at-ferry", (1,))}, {("at-ferry", (0,))}),
    "board": ({("at", (0, 1)), ("empty", ()), ("at-ferry", (1,))}, {("on", (0,))}, {("at", (0, 1)), ("empty", ())}),
    "debark": ({("on", (0,)), ("at-ferry", (1,))}, {("at", (0, 1)), ("empty", ())}, {("on", (0,))}),
}
FREE = {("clear", (0,)), ("ontable", (0,)), ("handempty", ())}
HELD, STACKED = {("holding", (0,)), ("clear", (1,))}, {("on", (0, 1)), ("clear", (0,)), ("handempty", ())}
BLOCKSWORLD = {
    "pickup": (FREE, {("holding", (0,))}, FREE),
    "putdown": ({("holding", (0,))}, FREE, {("holding", (0,))}),
    "stack": (HELD, STACKED, HELD),
    "unstack": (STACKED, HELD, STACKED),
}


def as_schemas(by_hand):
    return {name: Schema(*(frozenset(part) for part in parts)) for name, parts in by_hand.items()}
