// Any task: tokens, probabilities, the plane of the states.

views.tokens = { draw: () => null };
