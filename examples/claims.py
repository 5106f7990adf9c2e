"""Writes logs of an insurer, where the number of requests for documents decides how a claim ends.

`claims.csv` is clean. `export.csv` is a log as an office exports it, with the mistakes that docs/own-data.md deals
with; `new.csv` has the claims of the month after, in which the office has another rule.
"""

import csv
import random
from datetime import datetime, timedelta

random.seed(1)


def events(rejected_from=2):
    """The events of a claim; it is rejected from so many requests on."""
    asked = random.choice([0, 1, 2, 3])
    found = [f"Claim for {random.choice(['car', 'house', 'health', 'travel'])}"]
    found += [f"Received by {random.choice(['letter', 'phone', 'app', 'agent'])}"]
    for _ in range(asked):
        found += ["Ask for documents", *["Remind customer"] * random.choice([0, 0, 1, 2]), "Documents received"]
        found += [f"Examined by {random.choice(['expert', 'lawyer', 'doctor'])}"]
    found += ["Assess damage", *["Second opinion", "Assess damage"] * random.choice([0, 0, 0, 1, 2])]
    decided = ["Reject", "Send letter"] if asked >= rejected_from else ["Approve", "Pay"]  # what was long ago decides
    return [*found, *decided, "Close"]


def exported(cases, first, days, **rule):
    """Rows of claims of some days, of which the last ones are not closed. Some cells are empty, or NA."""
    rows = []
    for case in cases:
        when, clerk = first + timedelta(days=random.uniform(0, days)), random.choice(["Müller", "Weiß", "Durand"])
        for event in events(**rule):
            rows.append((when, f"E{case:04}", random.choices([event, "", "NA"], [200, 1, 1])[0], clerk))
            when += timedelta(hours=random.expovariate(1 / 24))
    rows = [row for row in sorted(rows) if row[0] < first + timedelta(days=days)]
    return [[case, event, f"{when:%d/%m/%Y %H:%M}", clerk] for when, case, event, clerk in rows]


def write(name, rows, encoding="utf-8", delimiter=","):
    with open(name, "w", newline="", encoding=encoding) as file:
        csv.writer(file, delimiter=delimiter).writerows(rows)


clean = [(case + 10 * step, f"C{case:03}", event) for case in range(1000) for step, event in enumerate(events())]
write("claims.csv", [("hour", "case", "activity"), *sorted(clean)])
header = ["case", "activity", "when", "clerk"]
old = exported(range(1500), datetime(2024, 1, 1), 182)
for row in random.sample(old, 3):
    row.append("see note")  # which has no column
write("export.csv", [header, *old], "windows-1252", ";")
write("new.csv", [header, *exported(range(1500, 1800), datetime(2024, 7, 1), 60, rejected_from=3)], "windows-1252", ";")
