"""statewise probe-beliefs: the exact belief of a process in activations of any model."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from statewise.runtime.arguments import Parser, at_least
from statewise.runtime.json_files import printable
from statewise.runtime.messages import cut, say, without_advice
from statewise.runtime.text_files import read_whole

if TYPE_CHECKING:
    import numpy as np

DESCRIPTION = """Fits an affine map from activations of any model to the exact belief of a process, and prints R^2
beside its controls: held out, shuffled beliefs, the last tokens, the exact next-token distribution, an untrained model
if it is given.

  statewise beliefs mess3 --num 5000 --length 20 --out data.npz
  statewise probe-beliefs activations.npz --process mess3

FILE.npz (nothing is unpickled): tokens (n, T), and activations (n, T, D), after each token; (n, T + 1, D), if those
after a token that opens each row come first; or (n, D), after the last token. Several layers are arrays with names such
as activations.1, activations.2, in order; the last is the last state. Arrays untrained, or untrained.1, ..., are the
same of an untrained model."""

MOST_BYTES = 2**32
ARRAYS = ("activations", "untrained")


def run(words: list[str]) -> int:
    """Runs the command."""
    parser = Parser("probe-beliefs", DESCRIPTION)
    parser.add_argument("file", metavar="FILE", help="an NPZ file of activations and tokens")
    parser.add_argument("--process", required=True, metavar="PROCESS", help="a process, as of statewise beliefs")
    parser.add_argument("--noise", type=float, default=0.0, help="probability of a random token (default: 0)")
    parser.add_argument(
        "--weighting",
        default="row",
        choices=["row", "probability"],
        help="count each row equally, for drawn sequences (default), or each different prefix by its exact "
        "probability, for lists of all words",
    )
    parser.add_argument("--longest", type=at_least(1), metavar="N", help="tokens of the longest prefix (default: half)")
    parser.add_argument(
        "--trained-length", type=at_least(1), metavar="T", help="tokens of training rows (default: those of the file)"
    )
    parser.add_argument("--seed", type=at_least(0), default=1, help="seed of shuffles and folds (default: 1)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    options = parser.parse_args(words)

    from statewise.analysis.beliefs.given_states import probe_beliefs
    from statewise.beliefs.named import named

    process = named(options.process, options.noise)
    arrays = _read(Path(options.file))
    layers = {what: _layers(arrays, what) for what in ARRAYS}
    try:
        probed = probe_beliefs(
            layers["activations"],
            arrays["tokens"],
            process,
            untrained=layers["untrained"] or None,
            weighting=options.weighting,
            longest=options.longest,
            trained_length=options.trained_length,
            seed=options.seed,
        )
    except ValueError as error:
        raise ValueError(f"{options.file}: {error}") from None
    if options.json:
        say(printable({name: getattr(probed, name) for name in probed.__dataclass_fields__}))
    else:
        say(probed)
    return 0


def _layers(arrays: dict[str, np.ndarray], what: str) -> dict[str, np.ndarray]:
    """The layers of a model by name."""
    numbered = {name.removeprefix(f"{what}."): array for name, array in arrays.items() if name.startswith(f"{what}.")}
    return numbered | ({"state": arrays[what]} if what in arrays else {})


def _read(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an NPZ file. Raises `ValueError`, which names the file, and `OSError`."""
    import numpy as np

    content = read_whole(path, MOST_BYTES)
    arrays: dict[str, np.ndarray] = {}
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
        if size > MOST_BYTES:
            raise ValueError(f"its arrays have {size:,} bytes; at most {MOST_BYTES:,} are read")
        with np.load(io.BytesIO(content), allow_pickle=False) as found:
            for name in found:
                if name == "tokens" or name.split(".")[0] in ARRAYS:
                    arrays[name] = found[name]
                    if not isinstance(arrays[name], np.ndarray):
                        raise ValueError(f"{cut(name)} is not an array")
    except MemoryError:
        raise
    except Exception as error:  # of the archive, or of headers, which are parsed as Python and raise almost anything
        problem = without_advice(error) if isinstance(error, ValueError) else str(error) or type(error).__name__
        raise ValueError(f"{path}: not an NPZ file of activations: {problem}") from None
    for name in ("tokens", "activations"):
        if not any(key == name or key.startswith(f"{name}.") for key in arrays):
            raise ValueError(f"{path}: there is no array named {name}")
    if "tokens" not in arrays:
        raise ValueError(f"{path}: there is no array named tokens")
    return arrays
