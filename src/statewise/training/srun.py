"""The processes that srun started, for Fabric.

Unlike Fabric's own environment of Slurm, this reads the variables of the job step, not those of the allocation: so it
needs no --ntasks-per-node, and a step may use a part of its allocation.
"""

from __future__ import annotations

import os

from lightning_fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning_fabric.plugins.environments.slurm import SLURMEnvironment


class JobStep(ClusterEnvironment):
    """The tasks of the job step of this process. MASTER_ADDR and MASTER_PORT replace its address and port."""

    @property
    def creates_processes_externally(self) -> bool:
        """True: srun does."""
        return True

    @property
    def main_address(self) -> str:
        """The step's first machine."""
        first = SLURMEnvironment.resolve_root_node_address(os.environ.get("SLURM_STEP_NODELIST", "127.0.0.1"))
        return os.environ.get("MASTER_ADDR", first)

    @property
    def main_port(self) -> int:
        """A port from 15000 to 24999, computed from the numbers of job and step, so that all tasks know it."""
        job, step = (int(os.environ.get(name, "0")) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
        return int(os.environ.get("MASTER_PORT", 15000 + (job + 997 * step) % 10000))

    @staticmethod
    def detect() -> bool:
        """See `statewise.runtime.launchers.started`, which is asked instead."""
        return False

    def world_size(self) -> int:
        """The number of tasks that srun started."""
        return int(os.environ["SLURM_STEP_NUM_TASKS"])

    def set_world_size(self, size: int) -> None:
        """Does nothing: srun has set it."""

    def global_rank(self) -> int:
        """Number of this task."""
        return int(os.environ["SLURM_PROCID"])

    def set_global_rank(self, rank: int) -> None:
        """Does nothing: srun has set it."""

    def local_rank(self) -> int:
        """Number of this task on its machine."""
        return int(os.environ["SLURM_LOCALID"])

    def node_rank(self) -> int:
        """Number of this machine in the step."""
        return int(os.environ["SLURM_NODEID"])
