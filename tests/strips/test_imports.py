"""What the wing imports."""

import subprocess
import sys

CODE = """
import sys
from statewise.cli import main
for verb in ("traces", "learn", "verify", "ask", "amlgym"):
    try:
        main(["strips", verb, "--help"])
    except SystemExit:
        pass
walks, learned = sys.argv[1] + "/w.csv", sys.argv[1] + "/learned"
assert main(["strips", "traces", "ferry:2x1", "--num", "20", "--out", walks]) == 0
assert main(["strips", "learn", walks, "--lifted", "--out", learned]) == 0
assert main(["strips", "verify", learned, "--against", "ferry:2x1", "--drawn-only"]) == 0
sys.exit(", ".join(sorted({"torch", "lightning_fabric"} & sys.modules.keys())) or 0)
"""


def test_nothing_but_training_imports_torch(tmp_path):
    done = subprocess.run([sys.executable, "-c", CODE, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
