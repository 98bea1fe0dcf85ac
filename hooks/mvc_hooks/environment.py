"""What a run's bits depend on besides its state: versions, devices, switches, variables, code.

Two runs from the same state take the same path only if all of this is the same. The record is plain
data, goes into every commit, and is compared item by item at a resume. Reading it starts nothing:
CUDA is asked only if the run already uses it, and no random number is drawn. Two programs are called:
Git, which gets a minute to answer (a machine may be busy, but a file system that hangs must not hold up
the run), and nvidia-smi, ten seconds, by the first rank of a machine that uses CUDA.

What connects the ranks (interfaces, RDMA devices, links of GPUs) is read from the kernel's files under ``/sys``, which takes about a millisecond and starts nothing. How
GPUs are connected only ``nvidia-smi topo -m`` knows; it is asked once in a process.

A record that is compared from start to start must not change by itself. So it has no addresses, and only
interfaces with a device behind them: those of containers and bridges get random names. A speed that
the driver does not know (it says -1, or refuses) is left out.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import mvc

if TYPE_CHECKING:
    from collections.abc import Mapping


_GIT_TIMEOUT_S = 60.0
_PREFIXES = (
    *("NCCL_", "CUBLAS_", "CUDNN_", "CUDA_", "TORCH_", "PYTORCH_", "TORCHINDUCTOR_", "NVTE_"),
    *("OMP_", "MKL_", "KMP_", "GLOO_", "XLA_", "TRITON_", "ONEDNN_", "DNNL_", "ATEN_"),
    *("UCX_", "FI_", "RDMAV_", "MLX5_", "IBV_"),
)
_VARYING = ("NCCL_COMM_ID",)  # an address and a port, others at each start
_VARIABLES = ("PYTHONHASHSEED", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "TOKENIZERS_PARALLELISM")
# Others may read the history, so tokens and passwords must not get into it.
_SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|CREDENTIAL|(?:^|_)KEY(?:$|_)", re.IGNORECASE)
_ABSENT = "absent"
_SOMETIMES = ("fabric", "links", "ddp")
"""Subjects that are not read always, nor by older versions: only what both records have is compared."""
_SPEED = ".speed_mbps"  # a link that is down, or a virtual one, has none at times


def read_environment(script: Path | None = None) -> dict[str, Any]:
    """Return the environment of this process, nested by subject; plain data only.

    Args:
        script: file of the user's code; defaults to the script of this process.
    """
    return {
        "versions": _read_versions(),
        "machine": _read_machine(),
        "devices": [
            torch.cuda.get_device_name(index)
            for index in range(torch.cuda.device_count() if _uses_cuda() else 0)
        ],
        "determinism": _read_switches(),
        "world": _read_world(),
        "variables": read_variables(),
        "fabric": read_fabric(),
        # The first rank of each machine reads what all of them would read.
        "links": read_links() if _uses_cuda() and os.environ.get("LOCAL_RANK", "0") == "0" else {},
        "code": _read_code(script),
    }


def compare_environments(
    old: Mapping[str, Any], new: Mapping[str, Any]
) -> list[tuple[str, object, object]]:
    """Return (dotted name, old, new) for every item that differs; a missing value reads ``absent``."""
    unread = {name for name in _SOMETIMES if not (old.get(name) and new.get(name))}
    old, new = ({key: side[key] for key in side if key not in unread} for side in (old, new))
    left, right = dict(flatten_record(old)), dict(flatten_record(new))
    pairs = [
        (item, left.get(item, _ABSENT), right.get(item, _ABSENT)) for item in {**left, **right}
    ]
    return [
        (item, then, now)
        for item, then, now in pairs
        if then != now and not (item.endswith(_SPEED) and _ABSENT in (then, now))
    ]


def flatten_record(value: object, path: str = "") -> list[tuple[str, object]]:
    """Return the values of a nested record with their dotted names."""
    if not isinstance(value, dict):
        return [(path, value)]
    pairs: list[tuple[str, object]] = []
    for key, item in value.items():
        pairs += flatten_record(item, f"{path}.{key}" if path else str(key))
    return pairs


def _read_versions() -> dict[str, object]:
    return {
        "mvc": mvc.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": str(torch.__version__),
        "torch_git": torch.version.git_version,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        # Asking cuDNN loads it, so only a run that already uses CUDA does.
        "cudnn": torch.backends.cudnn.version() if _uses_cuda() else None,  # type: ignore[no-untyped-call]
        "nccl": _read_nccl(),
        "driver": _search_file("/proc/driver/nvidia/version", r"\b(\d{3}\.\d+(?:\.\d+)?)\b"),
    }


def _uses_cuda() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]  # torch has no types


def _read_nccl() -> str | None:
    if not _uses_cuda() or not torch.distributed.is_available():
        return None
    try:
        from torch.cuda import nccl  # noqa: PLC0415  not in every build

        return ".".join(map(str, nccl.version()))  # type: ignore[no-untyped-call]
    except (ImportError, AttributeError, RuntimeError):
        return None


def _search_file(path: str, pattern: str) -> str | None:
    """Return the first group of the first match near the start of a system file, or None."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            match = re.search(pattern, file.read(4096))  # all cores would take long
    except OSError:
        return None
    return match.group(1) if match else None


def _read_machine() -> dict[str, object]:
    return {
        "system": platform.system(),
        "release": platform.release(),
        "architecture": platform.machine(),
        "cpu": _search_file("/proc/cpuinfo", r"(?m)^model name[^:\n]*:[ \t]*(.*?)[ \t]*$")
        or platform.processor()
        or None,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
    }


def _read_switches() -> dict[str, object]:
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    switches: dict[str, object] = {
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "fill_uninitialized_memory": torch.utils.deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]  # set on the module
        "cudnn_deterministic": cudnn.deterministic,
        "cudnn_benchmark": cudnn.benchmark,
        "cudnn_enabled": cudnn.enabled,
        "default_dtype": str(torch.get_default_dtype()),
    }
    for name in ("fp16", "bf16"):
        value = getattr(matmul, f"allow_{name}_reduced_precision_reduction", None)
        switches[f"{name}_reduced_precision"] = value
    switches |= _read_precision()
    return switches


def _read_precision() -> dict[str, object]:
    """Return the precision of matrix products; torch refuses to mix its old and new switches."""
    read = {
        "matmul_precision": torch.get_float32_matmul_precision,
        "cuda_matmul_tf32": lambda: torch.backends.cuda.matmul.allow_tf32,
        "cudnn_tf32": lambda: torch.backends.cudnn.allow_tf32,
        "cuda_matmul_fp32": lambda: torch.backends.cuda.matmul.fp32_precision,
        "cudnn_conv_fp32": lambda: torch.backends.cudnn.conv.fp32_precision,  # type: ignore[attr-defined]  # set on the module
    }
    facts: dict[str, object] = {}
    for name, get in read.items():
        try:
            facts[name] = get()  # type: ignore[no-untyped-call]  # torch has no types
        except (RuntimeError, AttributeError):
            facts[name] = None
    return facts


def _read_world() -> dict[str, object]:
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return {"size": 1, "rank": 0, "backend": None}
    return {
        "size": distributed.get_world_size(),
        "rank": distributed.get_rank(),
        "backend": distributed.get_backend(),
    }


def read_variables() -> dict[str, str]:
    """Return the variables that matter to a run, with what NCCL's own files set; no secrets."""
    # NCCL reads its settings from these files; the last one that sets a name counts.
    own = os.environ.get("NCCL_CONF_FILE") or os.path.expanduser("~/.nccl.conf")
    settings = dict([*_read_settings(Path("/etc/nccl.conf")), *_read_settings(Path(own))])
    return {
        name: value
        for name, value in sorted({**settings, **os.environ}.items())
        if (name.startswith(_PREFIXES) or name in _VARIABLES)
        and name not in _VARYING
        and not _SECRET.search(name)
    }


def _read_settings(path: Path) -> list[tuple[str, str]]:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    pairs = (line.partition("=") for line in lines if not line.lstrip().startswith("#"))
    return [(name.strip(), value.strip()) for name, sign, value in pairs if sign]


def _read_code(script: Path | None) -> dict[str, object]:
    if script is None:
        name = getattr(sys.modules.get("__main__"), "__file__", None)
        script = None if name is None else Path(name)
    folder = script.resolve().parent if script else Path.cwd()
    commit = _ask_git(folder, "rev-parse", "HEAD")
    status = None if commit is None else _ask_git(folder, "status", "--porcelain", "-uno")
    return {
        "script": None if script is None else script.name,
        "commit": commit,
        "dirty": None if status is None else bool(status),
    }


def _ask_git(folder: Path, *arguments: str) -> str | None:
    """Return the output of Git in a folder, or None: no Git, no repository, or too slow."""
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    output = ask_program(command, _GIT_TIMEOUT_S)
    return None if output is None else output.strip()


_SYS = Path("/sys")
_SMI_TIMEOUT_S = 10.0
_LOOPBACK = 772  # ARPHRD_LOOPBACK of linux/if_arp.h
_MODULES = ("nvidia_peermem", "nv_peer_mem", "gdrdrv", "mlx5_core", "efa")
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
_LINKED = re.compile(r"(?:GPU|NIC)\d+|mlx5?_\w+")


@dataclass(frozen=True, slots=True)
class Interface:
    """A network interface."""

    name: str
    kind: str  # ``device``, ``loopback``, ``bridge`` or ``virtual``
    speed_mbps: int | None  # megabits a second; None if the driver does not know it
    mtu: int | None  # largest packet in bytes
    driver: str | None  # kernel module that drives it


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
    return parse_links(ask_program(["nvidia-smi", "topo", "-m"], _SMI_TIMEOUT_S) or "")


def ask_program(command: list[str], timeout_s: float) -> str | None:
    """Return the output of a program of this machine, or None: it is missing, fails, or is too slow."""
    try:
        done = subprocess.run(  # noqa: S603  fixed arguments
            command, capture_output=True, timeout=timeout_s, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else None


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
