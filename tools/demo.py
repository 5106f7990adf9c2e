"""Makes what `statewise demo` ships: python tools/demo.py [FOLDER]

Trains into FOLDER (default: runs/shipped) what is not finished there, keeps the three models with weights in float8,
and records traces of all. About half an hour on two cores.
"""

import json
import lzma
import shutil
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

from statewise.deploy.playground import demo as shipped
from statewise.deploy.playground.page import record
from statewise.deploy.serving.served import Served
from statewise.experiments import demo
from statewise.model.model import load_model, model_of_run
from statewise.run import Run
from statewise.training.checkpoint import save

BELIEFS = {
    f"{process}-{name}": [f"hmm-{process}", "--task.length", "24", "--trainer.steps", "3000", *flags]
    for process in ("rrxor", "mess3")
    for name, flags in (("next-token", []), ("next-latent", ["--objective", "next_latent", "--objective.horizon", "4"]))
}
"""The recipes of docs/results/beliefs.md."""
CITY = [
    *["city-small", "--task.rows", "5", "--task.columns", "6", "--task.max_moves", "24", "--task.held_out_moves", "12"],
    *["--backbone.width", "64", "--backbone.layers", "3", "--trainer.steps", "1500", "--trainer.evaluate_every", "500"],
]
"""A smaller city and model than in docs/results/world-models.md."""
PROMPTS, SEQUENCES, RIDES = 3, 2, 1
TURNS = 18
"""Turns of a ride that are read: near the destination states tell that it ends, and less of where it is."""
DOTS = 150
"""Held-out states and beliefs in each picture: fewer than on a server, for a small file."""


def fewer(group: dict) -> dict:
    """The group with at most `DOTS` points on each plane."""
    for plane in (plane for model in group["models"] for plane in (model["plane"], *model["planes"])):
        every = -(-len(plane["points"]) // DOTS) or 1
        for name in {"points", "labels", "colours"} & plane.keys():
            if plane[name]:
                plane[name] = plane[name][::every]
    return group


def trained(folder: Path, words: list[str]) -> Path:
    """The finished run in `folder`."""
    if not (Run(folder).exists() and Run(folder).complete()):
        subprocess.run([sys.executable, "-m", "statewise", *words, "--out", str(folder)], check=True)
    return folder


def keep(folder: Path, name: str) -> Path:
    """Writes a run with the best weights of another in float8, and its metrics; returns its directory."""
    run, out = Run.open(folder), shipped.folder() / name
    shutil.rmtree(out, ignore_errors=True)
    best = run.find_checkpoint("best")
    kept = Run.create(out, run.recipe(), run.task_files(), run.environment(), run.data_identity(), overwrite=False)
    with kept.lock():
        save(kept, best.step, {key: one.to(torch.float8_e4m3fn) for key, one in load_file(best.weights).items()}, {})
        for one in run.metrics():
            if one["kind"] != "train":
                kept.log(one)
    (out / ".lock").unlink(missing_ok=True)
    return out


def star(folder: Path) -> dict:
    """The three models of the demo, side by side."""
    for name in shipped.MODELS:
        keep(trained(folder / name, demo.words(name, demo.SEED)), name)
    models = [Served(name, load_model(run, device="cpu")) for name, run in shipped.runs().items()]
    group = record(models, PROMPTS, 0, first=True)
    about = (
        "Star graphs: which arm leads to the goal? Three models of one size, trained on the same graphs "
        f"(seed {demo.SEED})."
    )
    return {"name": "Star graph", "about": about, **group}


def simplex(folder: Path) -> dict:
    """RRXOR beside Mess3: an untrained model holds the belief of the second one only."""
    groups = []
    for process, title in (("rrxor", "RRXOR"), ("mess3", "Mess3")):
        models = []
        for name, checkpoint in (("untrained", "0"), ("next-token", "best"), ("next-latent", "best")):
            if process == "mess3" and name == "next-latent":
                continue
            key = f"{process}-{'next-token' if name == 'untrained' else name}"
            run = trained(folder / key, ["train", *BELIEFS[key], "--seed", "1", "--trainer.threads", "1"])
            models.append(Served(f"{title}, {name}", load_model(run, checkpoint, "cpu")))
        groups.append(record(models, SEQUENCES, 0, first=True))
    first, second = groups
    recordings = [
        {"prompt": f"sequence {place + 1} of each process", "traces": {**one["traces"], **other["traces"]}}
        for place, (one, other) in enumerate(zip(first["recordings"], second["recordings"]))
    ]
    about = (
        "Two hidden processes. In Mess3 even an untrained model holds the belief, since the last symbols nearly give "
        "it; RRXOR needs training, and next-latent prediction holds it best."
    )
    return {
        "name": "Beliefs",
        "about": about,
        "models": [*first["models"], *second["models"]],
        "recordings": recordings,
    }


def city(folder: Path) -> dict:
    """Rides through a city, read by an untrained and a trained model."""
    run = trained(folder / "city", ["train", *CITY, "--seed", "1", "--trainer.threads", "1"])
    models = [Served("untrained", model_of_run(Run(run))), Served("trained", load_model(run, device="cpu"))]
    about = (
        "Taxi rides through a city of one-way streets. The models see turns alone, never the map: does a state tell at "
        "which crossing the ride is? Next-token prediction."
    )
    return {"name": "City map", "about": about, **record(models, RIDES, 0, first=True, given=TURNS)}


def write(groups: list[dict]) -> None:
    """Writes the recorded groups."""
    content = json.dumps({"groups": groups}, separators=(",", ":"), allow_nan=False).encode()
    packed = lzma.compress(content, preset=9 | lzma.PRESET_EXTREME)
    (shipped.folder() / shipped.RECORDED).write_bytes(packed)


def main() -> None:
    """Makes everything, and says how large it is."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/shipped")
    write([fewer(star(folder)), fewer(simplex(folder)), fewer(city(folder))])
    size = sum(path.stat().st_size for path in shipped.folder().rglob("*") if path.is_file())
    print(f"{size / 1e6:.2f} MB in {shipped.folder()}")


if __name__ == "__main__":
    main()
