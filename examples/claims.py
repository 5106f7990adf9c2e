"""Writes claims.csv, the event log of docs/own-data.md: the number of requests decides how a claim ends."""

import csv
import random

random.seed(1)
rows = []
for case in range(1000):
    asked = random.choice([0, 1, 2, 3])
    events = [f"Claim for {random.choice(['car', 'house', 'health', 'travel'])}"]
    events += [f"Received by {random.choice(['letter', 'phone', 'app', 'agent'])}"]
    for _ in range(asked):
        events += ["Ask for documents", *["Remind customer"] * random.choice([0, 0, 1, 2]), "Documents received"]
        events += [f"Examined by {random.choice(['expert', 'lawyer', 'doctor'])}"]
    events += ["Assess damage", *["Second opinion", "Assess damage"] * random.choice([0, 0, 0, 1, 2])]
    events += ["Reject", "Send letter"] if asked >= 2 else ["Approve", "Pay"]  # what was long ago decides
    rows += [(case + 10 * step, f"C{case:03}", event) for step, event in enumerate([*events, "Close"])]
with open("claims.csv", "w", newline="") as file:
    csv.writer(file).writerows([("hour", "case", "activity"), *sorted(rows)])
