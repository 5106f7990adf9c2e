"""A step neither waits for the device nor makes the device wait for the host.

The device here is `meta`, which has no numbers: whatever would read one from it raises. Copies to it within the step
are refused by a dispatch mode, but for those that would not wait for all that a GPU has still to do. The mixture head
of belief_state is left out: it asks after each block of pairs whether some underflowed."""

from contextlib import nullcontext

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from statewise.backbones import BACKBONES, two_stream
from statewise.backbones.nn.attention import attend_dense
from statewise.config.recipes import recipe_text
from statewise.model.building import make_objective, make_task
from statewise.model.recipes import read_recipe
from statewise.objectives import OBJECTIVES
from statewise.runtime.devices import to_device
from statewise.tasks.batches import Stream

TINY = ["--backbone.width=16", "--backbone.heads=2", "--backbone.layers=2"]


class NoCopies(TorchDispatchMode):
    """Raises where a tensor is copied from the host to the device."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        name = func._overloadpacket
        if name in (torch.ops.aten._to_copy, torch.ops.aten.copy_):
            source = args[1] if name is torch.ops.aten.copy_ else args[0]
            waits = not (kwargs or {}).get("non_blocking")
            if waits and made.device.type == "meta" and source.device.type == "cpu":
                raise RuntimeError(f"a tensor of shape {tuple(source.shape)} is copied to the device")
        return made


class NoLists(TorchFunctionMode):
    """Raises where a list indexes a tensor of the device: PyTorch makes a tensor of it, unseen by dispatch modes."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.Tensor.__getitem__ and args[0].device.type == "meta":
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            if any(isinstance(part, list) for part in index):
                raise RuntimeError(f"a list is copied to the device: {args[1]}")
        return function(*args, **(kwargs or {}))


def step(recipe, *flags, plan=True):
    """Counts, loss, gradients and their norm, as in `Trainer`."""
    made = read_recipe(recipe_text(recipe), [*TINY, *flags])
    task = make_task(made)
    objective = make_objective(made, task).to("meta")
    batch = Stream(task, seed=1, batch_size=6).batch(0)
    batch = (batch._replace(plan=objective.plan(batch)) if plan else batch).to("meta")
    with NoCopies(), NoLists(), pytest.MonkeyPatch.context() as patched:
        patched.setattr(torch, "autocast", lambda *given, **named: nullcontext())  # which has no such device
        patched.setattr(torch, "is_autocast_enabled", lambda kind: False)
        patched.setattr(two_stream, "attend_streams", attend_dense)  # blocks of queries are a CPU's
        loss = objective(batch, objective.counts(batch)).value()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(objective.parameters(), 1.0)
    assert loss.device.type == "meta"


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_step_of_every_objective_runs_ahead_of_the_device(objective):
    step("city-small", f"--objective={objective}", *(["--objective.head=mlp"] if objective == "belief_state" else []))


OTHERS = sorted(set(BACKBONES) - {"gpt", "hf", "recurrent"})
"""`hf` asks once a step, in transformers, whether positions are packed; `recurrent` once where documents share rows."""


@pytest.mark.parametrize("backbone", OTHERS)
def test_so_does_a_step_of_other_backbones(backbone):
    flags = {"two_stream": ["--backbone.window=8"], "belief_slots": ["--backbone.chunk=16"]}
    step("city-small", f"--backbone={backbone}", *flags.get(backbone, []), "--objective=next_token")


MORE = {
    "one document a row": ["--task.row=null", "--objective.head=mlp"],
    "sampled": ["--objective.head=mlp", "--objective.share=0.5", "--objective.max_gap=8"],
    "closed": ["--objective.head=mlp", "--objective.min_gap=1"],
    "gated": ["--objective.head=gated"],
    "forward": ["--objective.head=mlp", "--objective.backward=false"],
}


@pytest.mark.parametrize("name", MORE)
def test_so_do_the_variants_of_belief_state(name):
    step("city-small", "--objective=belief_state", *MORE[name])


def test_what_would_wait_is_found():
    with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):
        step("path-star-small", "--objective=belief_state", plan=False)
    with pytest.raises(RuntimeError, match="is copied to the device"), NoCopies():
        torch.zeros(3).to("meta")
    with pytest.raises(RuntimeError, match="a list is copied to the device"), NoLists():
        torch.zeros(2, 3, device="meta")[:, [1]]
    with pytest.raises(RuntimeError):
        bool(torch.ones(1, device="meta").any())


def test_a_plan_is_that_of_the_forward_pass():
    made = read_recipe(recipe_text("city-small"), [*TINY, "--objective=belief_state", "--objective.share=0.5"])
    task = make_task(made)
    objective = make_objective(made, task)
    batch = Stream(task, seed=1, batch_size=6).batch(0)
    torch.manual_seed(3)
    plain = objective(batch).value()
    torch.manual_seed(3)
    planned = objective(batch._replace(plan=objective.plan(batch)).to("cpu")).value()
    assert torch.equal(plain, planned)


def test_copies_to_a_gpu_are_from_pinned_memory(monkeypatch):
    calls = []

    class Recorded:
        device, dtype = torch.device("cpu"), torch.float32

        def pin_memory(self):
            calls.append("pinned")
            return self

        def to(self, device, non_blocking=False):
            calls.append((str(device), non_blocking))
            return self

    to_device(Recorded(), "cuda:1")
    to_device(Recorded(), torch.device("mps"))
    to_device(Recorded(), "cpu")
    assert calls == ["pinned", ("cuda:1", True), ("mps", False), ("cpu", False)]
    monkeypatch.setattr(Recorded, "device", torch.device("cuda", 0))
    to_device(Recorded(), torch.device("cpu"))
    assert calls[4:] == [("cpu", False)], "a copy to the host that did not wait could be read too early"
