"""Which traces would settle what is open: questions about a learned model, and steps in a simulator.

May import `exact`, `model`, `trace_data` and `verification`.
"""
