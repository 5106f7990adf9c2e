"""statewise doctor: whether this installation works, and what this machine has."""

from __future__ import annotations

import tempfile
import textwrap
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from statewise.cli.commands import listed, terminal_width
from statewise.runtime.arguments import Parser
from statewise.runtime.json_files import printable
from statewise.runtime.messages import say

if TYPE_CHECKING:
    from statewise.experiments import doctor

DESCRIPTION = """Checks this installation and machine: versions, devices, features of the processor, extras with the
command that installs what is missing, what is slow here, and a self-test that trains a tiny run, resumes it and loads
it (under 20 seconds). Exit code 1 if a part of the self-test fails.

  statewise doctor
  statewise doctor --json > machine.json      # to report a problem"""


def run(words: list[str]) -> int:
    """Runs the command."""
    parser = Parser("doctor", DESCRIPTION)
    parser.add_argument(
        "--out", metavar="DIR", help="folder for the self-test's files (default: that for temporary files)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(words)
    if options.out is not None and not Path(options.out).is_dir():
        raise ValueError(f"--out {options.out} is not a folder")
    from statewise.experiments import doctor

    versions, extras = doctor.versions(), doctor.extras()
    if not options.json:
        _section("versions", versions)
        _section(
            "extras", {one.name: _packages(one) for one in extras} or {"-": "statewise is not installed as a package"}
        )
        say("loading PyTorch", flush=True)
    machine = doctor.machine()
    if not options.json:
        _section("machine", machine)
        say("measuring, and training a tiny run", flush=True)
    with tempfile.TemporaryDirectory(prefix="statewise-doctor-", dir=options.out) as scratch:
        slow = doctor.slow(Path(scratch))
        checks = doctor.self_test(Path(scratch))
    passed = all(check.passed for check in checks)
    if options.json:
        found = {"versions": versions, "machine": machine, "extras": [asdict(one) for one in extras]}
        say(printable({**found, "slow": slow, "checks": [asdict(check) for check in checks], "passed": passed}))
        return 0 if passed else 1
    say("\nslow here")
    for sentence in slow or ["Nothing was found."]:
        say(textwrap.fill(sentence, terminal_width(80), initial_indent="  ", subsequent_indent="  "))
    _section("self-test", {check.name: _result(check) for check in checks})
    failed = [check.name for check in checks if not check.passed]
    say(f"\nThis does not work here: {'; '.join(failed)}." if failed else "\nstatewise works here.")
    return 0 if passed else 1


def _section(title: str, rows: dict[str, str]) -> None:
    say(f"\n{title}\n{listed(rows)}")


def _packages(extra: doctor.Extra) -> str:
    if not extra.install:
        return "installed: " + ", ".join(f"{name} {version}" for name, version in extra.packages.items())
    missing = ", ".join(name for name, version in extra.packages.items() if version is None)
    return f"missing: {missing}; install with: {extra.install}"


def _result(check: doctor.Check) -> str:
    return f"passed ({check.seconds:.1f} s)" if check.passed else f"FAILED: {check.message}"
