"""Reading event logs: seconds and memory for CSV and XES, and for a look at a large file.

    python benchmarks/reading.py            # 1 million events, CSV of 100 MB; XES of 40 MB; inspect of 1 GB
    python benchmarks/reading.py --smoke

Bars: CSV within 10 seconds on two cores, with memory of at most 6 times the file; XES at 20 MB a second; inspect within
3 seconds. Seconds are of the processor, so that other processes count for little.
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
import time
from datetime import datetime, timedelta
from pathlib import Path

import own_process
from timing import Benchmark

from statewise.tasks.own_files.inspection import inspect
from statewise.tasks.own_files.layout import SequenceFile
from statewise.tasks.own_files.reading import read_log

COLUMNS = {"column": "activity", "group": "case", "order": "timestamp"}


def write_csv(path: Path, events: int) -> None:
    """A log of interleaved cases, about 106 bytes an event."""
    chance, moment = random.Random(0), datetime(2024, 1, 1)
    open_cases, following = list(range(500)), 500
    with open(path, "w") as file:
        file.write("case,activity,timestamp,resource,cost,comment\n")
        for _ in range(events):
            place = chance.randrange(len(open_cases))
            case = open_cases[place]
            if chance.random() < 0.1:
                open_cases[place], following = following, following + 1
            moment += timedelta(milliseconds=chance.randint(1, 5000))
            file.write(
                f"case-{case:07d},activity {chance.randrange(30):02d},{moment.isoformat(' ', 'milliseconds')},"
                f"user{chance.randrange(100)},{chance.randint(100, 99999) / 100},"
                f"note {chance.randrange(10**12)} about this event and more\n"
            )


def write_xes(path: Path, traces: int) -> None:
    """A log with four attributes an event."""
    chance = random.Random(0)
    with open(path, "w") as file:
        file.write('<?xml version="1.0" encoding="UTF-8" ?>\n<log xes.version="1.0">\n')
        for trace in range(traces):
            file.write(f'\t<trace>\n\t\t<string key="concept:name" value="{trace}"/>\n')
            for event in range(chance.randint(3, 25)):
                file.write(
                    f'\t\t<event>\n\t\t\t<string key="org:resource" value="{chance.randint(100, 200)}"/>\n'
                    f'\t\t\t<date key="time:timestamp" value="2011-10-05T{event % 24:02}:38:44.546+02:00"/>\n'
                    f'\t\t\t<string key="concept:name" value="A_{chance.choice("ABCDEFGH")}"/>\n'
                    '\t\t\t<string key="lifecycle:transition" value="COMPLETE"/>\n\t\t</event>\n'
                )
            file.write("\t</trace>\n")
        file.write("</log>\n")


def measured(path: str, fields: dict[str, str], look: bool) -> tuple[float, float, int]:
    """Seconds of the processor and MB of reading a file, or of looking at it, and its events, in a process of its
    own."""
    before, start, events = own_process.peak(), time.process_time(), 0
    if look:
        inspect(Path(path))
    else:
        events = len(read_log(Path(path), SequenceFile(**fields)).codes)
    return time.process_time() - start, own_process.peak() - before, events


def main(arguments: list[str]) -> int:
    """Runs the benchmark; the exit code is 1 if a bar is missed."""
    smoke = "--smoke" in arguments
    bench = Benchmark(smoke)
    events, traces, copies = (500, 20, 2) if smoke else (10**6, 12_000, 10)
    with tempfile.TemporaryDirectory() as folder:
        table, log, large = (Path(folder) / name for name in ("log.csv", "log.xes", "large.csv"))
        write_csv(table, events)
        write_xes(log, traces)
        with open(large, "wb") as file:
            for _ in range(copies):
                with open(table, "rb") as part:
                    shutil.copyfileobj(part, file)
        sizes = {path: path.stat().st_size / 1e6 for path in (table, log, large)}
        run = measured if smoke else lambda *words: own_process.call(measured, *words)
        seconds, megabytes, count = run(str(table), COLUMNS, False)
        print(f"CSV of {sizes[table]:.1f} MB, {count:,} events: {seconds:.2f} s, {megabytes:.0f} MB")
        bench.at_most("seconds to read the CSV", seconds, 10)
        bench.at_most("memory over the size of the CSV", megabytes / sizes[table], 6)
        seconds, megabytes, count = run(str(log), {}, False)
        print(f"XES of {sizes[log]:.1f} MB, {count:,} events: {seconds:.2f} s, {megabytes:.0f} MB")
        bench.at_least("MB of XES a second", sizes[log] / seconds, 20)
        seconds, _, _ = run(str(large), {}, True)
        print(f"inspect of {sizes[large]:,.0f} MB: {seconds:.2f} s")
        bench.at_most("seconds to inspect", seconds, 3)
    return bench.exit_code()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
