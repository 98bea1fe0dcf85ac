"""Traces as torch.profiler writes them, put together by hand; times are in milliseconds."""

from __future__ import annotations

import gzip
import json

ORIGIN_US = 4657597565355.365
MIB = 2**20


def event(cat, name, start, end, *, tid=1, **args):
    return {
        "ph": "X", "cat": cat, "name": name, "pid": 7, "tid": tid,
        "ts": ORIGIN_US + start * 1e3, "dur": (end - start) * 1e3, "args": args,
    }  # fmt: skip


def step(number, start, end):
    return event("user_annotation", f"ProfilerStep#{number}", start, end)


def op(start, end, name="aten::mm", tid=1):
    return event("cpu_op", name, start, end, tid=tid)


def gloo(start, end, mib=None, tid=9):
    shapes = {} if mib is None else {"Input Dims": [[int(mib * MIB / 4)]], "Input type": ["float"]}
    return event("user_annotation", "gloo:all_reduce", start, end, tid=tid, **shapes)


def own(name, start, end, tid=1):
    return event("user_annotation", name, start, end, tid=tid)


def kernel(start, end, name="ampere_sgemm", stream=7):
    return event("kernel", name, start, end, tid=stream, device=0, stream=stream)


def nccl(start, end, mib=1, stream=20, kind="allreduce"):
    return event(
        "kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        start, end, tid=stream, device=0, stream=stream,
        **{"Collective name": kind, "In msg nelems": int(mib * MIB / 4),
           "Out msg nelems": int(mib * MIB / 4), "Group size": 2, "dtype": "Float"},
    )  # fmt: skip


def document(events, rank=0, ranks=2):
    return {
        "schemaVersion": 1,
        "deviceProperties": [],
        "distributedInfo": {"backend": "gloo", "rank": rank, "world_size": ranks},
        "displayTimeUnit": "ms",
        "traceEvents": [
            {"ph": "M", "name": "process_name", "pid": 7, "tid": 0, "args": {"name": "python"}},
            *events,
        ],
        "traceName": "trace.json",
    }


def write(path, events, rank=0, ranks=2):
    text = json.dumps(document(events, rank, ranks), indent=1)
    data = text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return str(path)
