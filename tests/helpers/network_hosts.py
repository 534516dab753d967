"""Two hosts on one machine: network namespaces that a bridge connects."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rank_commands import environment

NETWORK = "10.77.%d.%d"
PORT = "29510"
VISATTN = ("-m", "--", "visattn")  # without the --, torchrun takes --run for its own --run_path


def reason_without_hosts() -> str | None:
    """Return why network namespaces are unavailable."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "network namespaces need the program `ip` (apt-get install iproute2)"
    name = f"va-try-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
    return f"ip netns add: {made.stderr.strip()}" if made.returncode else None


class Hosts:
    """Two namespaces connected by a bridge; names contain the process ID."""

    def __init__(self) -> None:
        own = os.getpid() % 100_000
        self.bridge = f"vab{own}"
        self.names = (f"vah{own}-0", f"vah{own}-1")
        self.inner = (f"va{own}i0", f"va{own}i1")
        self.outer = (f"va{own}o0", f"va{own}o1")
        self.addresses = tuple(NETWORK % (own % 250 + 1, number) for number in (1, 2))
        self.started: list[subprocess.Popen[str]] = []

    def put_up(self) -> None:
        ip("link", "add", self.bridge, "type", "bridge")
        for name, inner, outer, address in self._each():
            ip("netns", "add", name)
            ip("link", "add", inner, "type", "veth", "peer", "name", outer)
            ip("link", "set", inner, "netns", name)
            ip("link", "set", outer, "master", self.bridge)
            ip("link", "set", outer, "up")
            within = ("netns", "exec", name, "ip")
            ip(*within, "addr", "add", f"{address}/24", "dev", inner)
            ip(*within, "link", "set", inner, "up")
            ip(*within, "link", "set", "lo", "up")
        ip("link", "set", self.bridge, "up")

    def take_down(self) -> None:
        """Remove all namespaces and links that exist."""
        for process in self.started:
            if process.poll() is None:
                process.kill()
        for name, _, outer, _ in self._each():
            for pid in ip("netns", "pids", name, needed=False).split():
                subprocess.run(["kill", "-9", pid], capture_output=True, check=False)
            ip("link", "delete", outer, needed=False)
            ip("netns", "delete", name, needed=False)
        ip("link", "delete", self.bridge, needed=False)

    def cut(self) -> None:
        ip("link", "set", self.outer[1], "down")

    def mend(self) -> None:
        ip("link", "set", self.outer[1], "up")

    def torchrun(self, words: Sequence[str], folder: Path) -> list[subprocess.Popen[str]]:
        """Start a command of visattn on both hosts through torchrun."""
        place = ["--master_addr", self.addresses[0], "--master_port", PORT]
        run = ["-m", "torch.distributed.run", "--nnodes", "2", "--nproc_per_node", "1", *place]
        return [
            self._start(rank, [*run, "--node_rank", str(rank), *VISATTN, *words], folder)
            for rank in (0, 1)
        ]

    def plain(
        self, words: Sequence[str], *folders: Path, ranks: tuple[int, ...] = (0, 1)
    ) -> list[subprocess.Popen[str]]:
        """Start a command of visattn on the hosts, each in its own folder if there are several."""
        return [
            self._start(
                rank,
                ["-m", "visattn", *words],
                folders[rank % len(folders)],
                NODE_RANK=str(rank),
                MASTER_ADDR=self.addresses[0],
                MASTER_PORT=PORT,
            )
            for rank in ranks
        ]

    def _start(
        self, rank: int, words: list[str], folder: Path, **named: str
    ) -> subprocess.Popen[str]:
        name, inner, *_ = list(self._each())[rank]
        started = subprocess.Popen(
            ["ip", "netns", "exec", name, sys.executable, *words],
            cwd=folder,
            env={**environment(), "GLOO_SOCKET_IFNAME": inner, **named},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.started.append(started)
        return started

    def _each(self) -> "zip[tuple[str, str, str, str]]":
        return zip(self.names, self.inner, self.outer, self.addresses, strict=True)


def ip(*words: str, needed: bool = True) -> str:
    """Run `ip`; return its output.

    Raises:
        RuntimeError: If it fails and is needed.
    """
    ran = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if needed and ran.returncode:
        raise RuntimeError(f"ip {' '.join(words)}: {ran.stderr.strip()}")
    return ran.stdout
