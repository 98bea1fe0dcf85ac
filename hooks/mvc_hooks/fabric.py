"""What connects the ranks of a run: network interfaces, RDMA devices, drivers for GPUDirect, GPU links.

All is read from the kernel's files under ``/sys``, which takes about a millisecond and starts nothing. How
GPUs are connected only ``nvidia-smi topo -m`` knows; it is asked once in a process.

A record that is compared from start to start must not change by itself. So it has no addresses, and only
interfaces with a device behind them: those of containers and bridges get random names. A speed that
the driver does not know (it says -1, or refuses) is left out.
"""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

_SYS = Path("/sys")
_SMI_TIMEOUT_S = 10.0
_LOOPBACK = 772  # ARPHRD_LOOPBACK of linux/if_arp.h
_MODULES = ("nvidia_peermem", "nv_peer_mem", "gdrdrv", "mlx5_core", "efa")
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
_LINKED = re.compile(r"(?:GPU|NIC)\d+|mlx5?_\w+")


@dataclass(frozen=True, slots=True)
class Interface:
    """A network interface.

    Attributes:
        kind: ``device``, ``loopback``, ``bridge`` or ``virtual``.
        speed_mbps: megabits a second; None if the driver does not know it.
        mtu: largest packet in bytes.
        driver: kernel module that drives it.
    """

    name: str
    kind: str
    speed_mbps: int | None
    mtu: int | None
    driver: str | None


def read_fabric(root: Path = _SYS) -> dict[str, Any]:
    """Return what a commit records of the network, nested by subject; plain data only."""
    return {
        "nics": {
            interface.name: _known(
                speed_mbps=interface.speed_mbps, mtu=interface.mtu, driver=interface.driver
            )
            for interface in list_interfaces(root)
            if interface.kind == "device"
        },
        "rdma": read_rdma(root),
        "modules": {
            name: _read(root / "module" / name / "version") or "loaded"
            for name in _MODULES
            if (root / "module" / name).is_dir()
        },
    }


def list_interfaces(root: Path = _SYS) -> list[Interface]:
    """Return all network interfaces, by name."""
    return [_read_interface(root / "class/net" / name) for name in _list(root / "class/net")]


def read_rdma(root: Path = _SYS) -> dict[str, dict[str, object]]:
    """Return the InfiniBand and RoCE devices: ``{name: {"firmware", "port_1": ...}}``."""
    folder = root / "class/infiniband"
    return {name: _read_device(folder / name) for name in _list(folder)}


@cache
def read_links() -> dict[str, str]:
    """Return how each GPU is connected to the others, as ``nvidia-smi`` calls it; empty if it is not there."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "topo", "-m"],  # noqa: S607  the machine's own
            capture_output=True,
            timeout=_SMI_TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError):
        return {}
    return parse_links(done.stdout.decode("utf-8", "replace")) if done.returncode == 0 else {}


def parse_links(text: str) -> dict[str, str]:
    """Return ``{"GPU0": "GPU1 NV18, NIC0 PXB", ...}`` of the matrix that ``nvidia-smi topo -m`` prints."""
    rows = [
        [cell.strip() for cell in line.split("\t")] for line in _ESCAPE.sub("", text).splitlines()
    ]
    heads = next((row for row in rows if len(row) > 1 and not row[0] and row[1] == "GPU0"), [])
    return {
        row[0]: ", ".join(
            f"{head} {cell}"
            for head, cell in zip(heads, row, strict=False)
            if _LINKED.fullmatch(head) and cell != "X"
        )
        for row in rows
        if re.fullmatch(r"GPU\d+", row[0])
    }


def _read_interface(folder: Path) -> Interface:
    speed = _read_number(folder / "speed")
    return Interface(
        folder.name,
        _find_kind(folder),
        speed if speed is not None and speed > 0 else None,
        _read_number(folder / "mtu"),
        _follow(folder / "device/driver"),
    )


def _find_kind(folder: Path) -> str:
    if _read_number(folder / "type") == _LOOPBACK:
        return "loopback"
    if (folder / "bridge").is_dir() or folder.name.startswith(("docker", "virbr", "br-")):
        return "bridge"
    return "device" if (folder / "device").exists() else "virtual"


def _read_device(folder: Path) -> dict[str, object]:
    facts = _known(firmware=_read(folder / "fw_ver"))
    for port in _list(folder / "ports"):
        place = folder / "ports" / port
        parts = (_read(place / name) for name in ("link_layer", "rate", "state"))
        facts[f"port_{port}"] = ", ".join(part for part in parts if part)
    return facts


def _known(**values: object) -> dict[str, object]:
    return {name: value for name, value in values.items() if value is not None}


def _list(folder: Path) -> list[str]:
    try:
        return sorted(name for name in os.listdir(folder) if (folder / name).is_dir())
    except OSError:
        return []


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None


def _read_number(path: Path) -> int | None:
    text = _read(path)
    return int(text) if text is not None and re.fullmatch(r"-?[0-9]{1,12}", text) else None


def _follow(link: Path) -> str | None:
    try:
        return Path(os.readlink(link)).name
    except OSError:
        return None
