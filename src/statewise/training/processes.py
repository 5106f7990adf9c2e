"""Starts the processes of a run that has several, by Lightning Fabric, and ends them together.

torchrun or srun may have started them already. Otherwise Fabric starts one for each device but the first, and watches
over them from the first process: when one ends with an error, it kills all at once. None outlives the first, and the
user learns which of them ended.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

from statewise.runtime.launchers import rank, started
from statewise.runtime.messages import say, to_install
from statewise.runtime.system import end_with, outlive_parent
from statewise.training.machine import choose_device, keep_freed_memory, refuse_missing
from statewise.training.one_device import OneDevice
from statewise.training.sharding import TIMEOUT, strategy

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from statewise.config.trainer import TrainerConfig

FIRST = "STATEWISE_FIRST_PROCESS"
"""The environment variable with the number of the process that starts the others, for these."""
OBSERVER = "child-process-observer"
"""The name of Fabric's thread that watches over the processes."""
GRACE_SECONDS = 30
"""Time for a process that misses another to say so and to end by itself; with NCCL it may wait for the other."""


def start(config: TrainerConfig, environment: Mapping[str, Any]) -> Fabric | OneDevice:
    """Starts the other processes of a run, or joins them, and sets up this one. `environment`: from `machine.describe`,
    or what the run keeps of it. Raises `ValueError` if this machine cannot train as configured."""
    keep_freed_memory()
    device = choose_device(config.device_of(environment))
    if device not in ("cpu", "cuda", "mps"):
        raise ValueError(f"training runs on the devices cpu, cuda and mps, not on {device}")
    refuse_missing(device, config.devices)
    if config.processes == 1:
        devices: Fabric | OneDevice = OneDevice(device, environment["precision"])
    else:
        devices = _fabric(config, device, environment["precision"])
        with starting():
            devices.launch()
        atexit.register(disband)  # threads of a process group that is alive at interpreter exit may abort the process
    torch.set_num_threads(environment["threads"])
    return devices


def _fabric(config: TrainerConfig, device: str, precision: str) -> Fabric:
    """Fabric for several processes. Raises `ValueError` if it is not installed."""
    try:
        from lightning_fabric import Fabric
        from lightning_fabric.plugins.environments.lightning import LightningEnvironment
        from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment
        from lightning_fabric.strategies.ddp import DDPStrategy
    except ImportError:
        raise ValueError(f"several devices need the extra `parallel`: {to_install('parallel')}") from None

    from statewise.training.srun import JobStep

    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # environment.json states the precision
    launcher = started()
    plugins = {"torchrun": TorchElasticEnvironment, "srun": JobStep}
    return Fabric(
        plugins=[plugins[launcher.by]() if launcher else LightningEnvironment()],  # never what Fabric would guess
        accelerator=device,
        devices=config.devices,
        num_nodes=config.nodes,
        strategy=DDPStrategy(timeout=TIMEOUT) if config.shard == "none" else strategy(config, device, precision),
        precision="bf16-mixed" if precision == "bf16" else "32-true",
    )


@contextlib.contextmanager
def starting() -> Iterator[None]:
    """Surrounds Fabric's launch, in the first process and in those that it starts."""
    if started() is None and rank() > 0 and FIRST in os.environ:
        end_with(int(os.environ[FIRST]))
    os.environ[FIRST] = str(os.getpid())
    try:
        yield
    finally:
        del os.environ[FIRST]
    for thread in threading.enumerate():
        if thread.name == OBSERVER and hasattr(thread, "_terminate_all"):
            _be_patient(thread)


def _be_patient(observer: Any) -> None:
    """Makes Fabric's observer wait, and name the processes that ended with an error, before it kills all."""
    kill, children = observer._terminate_all, list(observer._child_processes)

    def speak_then_kill() -> None:
        time.sleep(GRACE_SECONDS)
        for number, child in enumerate(children, 1):
            if child.returncode:
                say(f"statewise: process {number} of this run ended with code {child.returncode}", file=sys.stderr)
        kill()

    observer._terminate_all = speak_then_kill


def done() -> None:
    """Called when no process waits for another any more: each may end after the first."""
    outlive_parent()


def disband() -> None:
    """Ends the threads of the process group, which end with the last reference to it.

    The trainer's references, by way of DDP's reducer, are parts of cycles. The reference of this function must outlive
    them: PyTorch waits for the threads without Python's lock when a group is freed, but with it when a reducer is, and
    a thread may need the lock to free its tensors.
    """
    if torch.distributed.is_initialized():
        group = torch.distributed.group.WORLD
        torch.distributed.destroy_process_group()
        gc.collect()
        del group
