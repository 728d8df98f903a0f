"""A cluster of Slurm on this machine: munged, slurmctld and two slurmd, in a folder of their own.

Nothing of the system is used but the programs: keys, sockets, ports, spools and logs are private,
and the daemons run as whoever runs the tests. They are ended by their ids.
"""

from __future__ import annotations

import getpass
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scancel", "squeue", "scontrol")
NODES = ("n1", "n2")
# Cores that the machine may not have: jobs that wait for each other must run at the same time.
CONFIGURATION = """
ClusterName=ttrace
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={control}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1
KillWait=2
ReturnToService=2
PartitionName=all Nodes=ALL Default=YES MaxTime=60 State=UP
"""


def missing_programs() -> list[str]:
    return [name for name in PROGRAMS if shutil.which(name, path=_path()) is None]


@dataclass(frozen=True)
class Cluster:
    """Where its files are, and how commands find it."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def ask(self, *words: str) -> str:
        done = subprocess.run(
            words,
            env=os.environ | self.environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    def jobs(self) -> list[str]:
        """The names of those that wait or run."""
        return self.ask("squeue", "--noheader", "--format=%j").split()

    def wait_until_idle(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while found := self.jobs():
            assert time.monotonic() < deadline, f"{found}\n{self.ask('scontrol', 'show', 'jobs')}"
            time.sleep(0.5)

    def cancel_all(self) -> None:
        self.ask("scancel", f"--user={getpass.getuser()}")
        self.wait_until_idle(30)


@contextmanager
def running_cluster() -> Iterator[Cluster]:
    # Short: the path of a socket has 108 characters at most.
    folder = Path(tempfile.mkdtemp(prefix="ttrace-slurm-"))
    cluster = Cluster(folder)
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        _configure(folder)
        for words in _daemons(folder):
            daemons.append(_start(words, cluster))
            time.sleep(0.5)
        _require_nodes(cluster, daemons)
        yield cluster
        cluster.cancel_all()
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
            daemon.wait(20)
        shutil.rmtree(folder)


def _configure(folder: Path) -> None:
    host, ports = socket.gethostname(), _free_ports(3)
    text = CONFIGURATION.format(host=host, folder=folder, user=getpass.getuser(), control=ports[0])
    for node, port in zip(NODES, ports[1:], strict=True):
        text += f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=4\n"
        (folder / node).mkdir()
    (folder / "slurm.conf").write_text(text)
    # Versions before 23.02 need one of the plugins, which then does nothing: no other uses it.
    version = subprocess.run(["slurmd", "-V"], capture_output=True, text=True, check=True).stdout
    is_old = int(version.split()[-1].split(".")[0]) < 23
    plugin = "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n" if is_old else "CgroupPlugin=disabled\n"
    (folder / "cgroup.conf").write_text(plugin)
    key = folder / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(1024))
    (folder / "state").mkdir()


def _daemons(folder: Path) -> Iterator[list[str]]:
    files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "seed-file": "seed"}
    munge = [f"--{option}={folder}/munge.{name}" for option, name in files.items()]
    yield ["munged", "--foreground", "--force", f"--log-file={folder}/munge.log", *munge]
    yield ["slurmctld", "-D", "-c"]
    yield from (["slurmd", "-D", "-N", node] for node in NODES)


def _start(words: list[str], cluster: Cluster) -> subprocess.Popen[bytes]:
    with (cluster.folder / "daemons.log").open("ab") as log:
        return subprocess.Popen(
            words,
            env=os.environ | cluster.environment | {"PATH": _path()},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=cluster.folder,
        )


def _require_nodes(cluster: Cluster, daemons: list[subprocess.Popen[bytes]]) -> None:
    deadline = time.monotonic() + 30
    while True:
        said = (cluster.folder / "daemons.log").read_text(errors="replace")
        assert all(daemon.poll() is None for daemon in daemons), said
        states = cluster.ask("sinfo", "--noheader", "--Node", "--format=%t").split()
        if states == ["idle"] * len(NODES):
            return
        assert time.monotonic() < deadline, f"{states}\n{said}"
        time.sleep(0.3)


def _free_ports(count: int) -> list[int]:
    held = [socket.socket() for _ in range(count)]
    for one in held:
        one.bind(("127.0.0.1", 0))
    ports = [int(one.getsockname()[1]) for one in held]
    for one in held:
        one.close()
    return ports


def _path() -> str:
    """Daemons are where only root looks."""
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
