"""A small but real Ceph cluster on loopback: monitors, OSDs with three replicas, an S3 gateway.

Only Debian's packages are needed: no systemd, no root, everything below one folder. Authentication inside the
cluster is off, which is right for a test and nothing else; S3 requests are signed as ever.
"""

from __future__ import annotations

import concurrent.futures
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import time
import uuid
from pathlib import Path

from support.s3_server import KEYS

PROGRAMS = ("ceph", "ceph-mon", "ceph-osd", "monmaptool", "radosgw", "radosgw-admin")
_START_S = 60
_COMMAND_S = 60
_PAUSE_S = 0.1
_PR_SET_PDEATHSIG = 1
_POOLS = (
    ".rgw.root",
    *(f"default.rgw.{name}" for name in ("log", "control", "meta")),
    *(f"default.rgw.buckets.{name}" for name in ("index", "non-ec", "data")),
)
_QUIET = ("ms", "osd", "bluestore", "bluefs", "rocksdb", "mon", "paxos", "rgw", "bdev")
_CONFIG = """\
[global]
fsid = {fsid}
mon host = {mon_host}
mon initial members = {mons}
auth cluster required = none
auth service required = none
auth client required = none
# A gateway insists on encrypted monitors otherwise, which there are none of without authentication.
ms mon client mode = crc
ms bind ipv4 = true
ms bind ipv6 = false
ms bind msgr1 = false
public addr = 127.0.0.1
cluster addr = 127.0.0.1
keyring = /dev/null
run dir = {folder}
pid file =
admin socket =
crash dir = {folder}/crash
log file = {folder}/$name.log
mon cluster log file = {folder}/cluster.log
log to stderr = false
osd pool default size = {osds}
osd pool default min size = {min_size}
osd pool default pg num = 4
osd pool default pgp num = 4
osd pool default pg autoscale mode = off
mon max pg per osd = 1000
# An OSD that does not answer, but is not gone either, is out after this.
osd heartbeat interval = 1
osd heartbeat grace = 6
{quiet}
[mon]
mon data = {folder}/mon.$id
mon data avail crit = 0
auth allow insecure global id reclaim = false
mon election timeout = 2
mon lease = 3
paxos propose interval = 0.1
paxos min wait = 0.02
[osd]
osd data = {folder}/osd.$id
osd objectstore = bluestore
osd class update on start = false
bluestore block size = 10737418240
bluestore block db create = false
bluestore block wal create = false
bluestore cache autotune = false
bluestore cache size = 67108864
# A file looks like a spinning disk, which recovery would spare by sleeping.
osd recovery sleep hdd = 0
osd recovery sleep hybrid = 0
osd max backfills = 8
osd recovery max active = 10
[client]
rgw data = {folder}/$name
rgw dynamic resharding = false
rgw override bucket index max shards = 1
rgw gc max objs = 4
rgw lc max objs = 4
rgw data log num shards = 4
rgw md log max shards = 4
rgw usage max shards = 4
rgw thread pool size = 64
# Small answers wait 40 ms for Nagle's algorithm otherwise.
rgw frontends = beast endpoint=127.0.0.1:{port} tcp_nodelay=1
"""


def missing_program() -> str | None:
    """Return the first program that is not installed, or None."""
    return next((name for name in PROGRAMS if shutil.which(name) is None), None)


def _free_ports(count):
    """Return ports below the range that outgoing connections take, so that they stay free."""
    sockets = []
    try:
        for port in range(20_000 + os.getpid() * 7 % 10_000, 32_000):
            one = socket.socket()
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                one.close()
                continue
            sockets.append(one)
            if len(sockets) == count:
                return [each.getsockname()[1] for each in sockets]
    finally:
        for one in sockets:
            one.close()
    raise OSError("no free ports")


_libc = ctypes.CDLL(None)


def _die_with_parent():
    """Let a daemon end with the tests, however they end."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Cluster:
    """A cluster below a folder; ``start`` it, and ``stop`` it."""

    def __init__(self, folder: Path, *, mons: int = 3, osds: int = 3) -> None:
        self.folder = folder
        self.mons = "abc"[:mons]
        self.osds = range(osds)
        *mon_ports, self.port = _free_ports(mons + 1)
        self._mon_addresses = {
            name: f"[v2:127.0.0.1:{port}]" for name, port in zip(self.mons, mon_ports, strict=True)
        }
        self._config = folder / "ceph.conf"
        self._daemons: dict[str, subprocess.Popen] = {}
        self._hurt: set[str] = set()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Make the cluster and wait until the gateway answers."""
        self.folder.mkdir(parents=True, exist_ok=True)
        fsid = str(uuid.uuid4())
        self._write_config(fsid)
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            self._make_mons(fsid, pool)
            self._make_osds(pool)
        self._make_pools()
        self.start_gateway()

    def _write_config(self, fsid):
        osds = len(self.osds)
        text = _CONFIG.format(
            fsid=fsid,
            mon_host=",".join(self._mon_addresses.values()),
            mons=",".join(self.mons),
            folder=self.folder,
            osds=osds,
            min_size=max(1, osds - 1),
            port=self.port,
            quiet="\n".join(f"debug {name} = 0/0" for name in _QUIET),
        )
        # Each OSD counts as a machine of its own, or there is none for the second replica.
        for number in self.osds:
            text += f"[osd.{number}]\ncrush location = root=default host=machine{number}\n"
        self._config.write_text(text)

    def _run(self, *command, stdin=None):
        done = subprocess.run(
            [command[0], "--conf", str(self._config), *command[1:]],
            input=stdin,
            capture_output=True,
            check=False,
            timeout=_COMMAND_S,
            text=True,
        )
        if done.returncode:
            raise OSError(f"{' '.join(command)}: {done.stderr[-500:]}")
        return done.stdout

    def ceph(self, *words, stdin=None):
        """Run a command of the administrator; return what it prints."""
        return self._run("ceph", "--connect-timeout", "30", *words, stdin=stdin)

    def _make_mons(self, fsid, pool):
        monmap = str(self.folder / "monmap")
        added = [word for one in self._mon_addresses.items() for word in ("--addv", *one)]
        self._run(
            "monmaptool", "--create", "--fsid", fsid, "--set-min-mon-release", "pacific",
            *added, monmap,
        )  # fmt: skip

        def make(name):
            (self.folder / f"mon.{name}").mkdir()
            self._run("ceph-mon", "--mkfs", "-i", name, "--monmap", monmap)
            return name

        # A daemon dies with the thread that started it: this one, not one of the pool.
        for name in pool.map(make, self.mons):
            self.start_mon(name)

    def _make_osds(self, pool):
        def make(number):
            one = str(uuid.uuid4())
            (self.folder / f"osd.{number}").mkdir()
            self._run("ceph-osd", "--mkfs", "-i", str(number), "--osd-uuid", one)
            return one

        made = pool.map(make, self.osds)
        for number, one in enumerate(made):
            self.ceph("osd", "new", one, str(number))
            self.start_osd(number)
        self.wait(lambda: self.count_up() == len(self.osds), "the OSDs")

    def _make_pools(self):
        """A gateway makes its pools itself, but one by one, and that takes seconds."""
        lines = []
        for name in _POOLS:
            groups = 16 if name.endswith(".data") else 4
            lines += [f"osd pool create {name} {groups} {groups}"]
            lines += [f"osd pool application enable {name} rgw"]
        self.ceph(stdin="\n".join(lines) + "\n")
        self._run(
            "radosgw-admin", "user", "create", "--uid", "mvc", "--display-name", "mvc",
            "--access-key", KEYS["AWS_ACCESS_KEY_ID"], "--secret", KEYS["AWS_SECRET_ACCESS_KEY"],
        )  # fmt: skip

    def count_up(self) -> int:
        """Return how many OSDs the monitors take to be up."""
        return json.loads(self.ceph("osd", "stat", "-f", "json"))["num_up_osds"]

    def leader(self) -> str:
        """Return the monitor that leads."""
        return json.loads(self.ceph("quorum_status", "-f", "json"))["quorum_leader_name"]

    def wait(self, is_true, what):
        """Look until something is so."""
        give_up_s = time.monotonic() + _START_S
        while not is_true():
            if time.monotonic() > give_up_s:
                raise OSError(f"{what} did not come up; see {self.folder}")
            time.sleep(_PAUSE_S)

    def _launch(self, name, *command):
        with (self.folder / f"{name}.out").open("ab") as log:
            self._daemons[name] = subprocess.Popen(
                [*command, "--conf", str(self._config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_die_with_parent,  # noqa: PLW1509  one call that takes no lock
            )

    def start_mon(self, name: str) -> None:
        self._launch(f"mon.{name}", "ceph-mon", "-f", "-i", name)

    def start_osd(self, number: int) -> None:
        self._launch(f"osd.{number}", "ceph-osd", "-f", "-i", str(number))

    def start_gateway(self) -> None:
        """Start the gateway, and wait until it answers."""
        (self.folder / "client.rgw.0").mkdir(exist_ok=True)
        self._launch("rgw", "radosgw", "-f", "-n", "client.rgw.0")
        self.wait(self._is_answering, "the gateway")

    def _is_answering(self):
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=5).close()
        except OSError:
            return False
        return True

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """Send a signal to a daemon: ``osd.0``, ``mon.a``, ``rgw``."""
        process = self._daemons[name]
        self._hurt.add(name)
        process.send_signal(number)
        if number == signal.SIGKILL:
            process.wait()

    def heal(self) -> None:
        """Bring back what was killed or stopped, and wait until it serves."""
        for name in sorted(self._hurt):
            kind, _, number = name.partition(".")
            if self._daemons[name].poll() is None:
                self._daemons[name].send_signal(signal.SIGCONT)
            elif kind == "osd":
                self.start_osd(int(number))
            elif kind == "mon":
                self.start_mon(number)
            else:
                self.start_gateway()
        if any(name.startswith("osd.") for name in self._hurt):
            self.wait(lambda: self.count_up() == len(self.osds), "the OSDs")
        self._hurt.clear()

    def stop(self) -> None:
        """End all daemons and remove the folder."""
        for process in self._daemons.values():
            process.kill()
        for process in self._daemons.values():
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
