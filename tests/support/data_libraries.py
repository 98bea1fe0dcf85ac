"""Loaders of other libraries, each as its users write it, in trainings that are stopped and resumed.

A loader is a function (folder, ``How``) → what ``Checkpointer(dataloader=...)`` is given. All read the
same lines of Python's own source, in the format of their library. ``docs/data-libraries.md`` says what
is found; this writes its table:

    python tests/support/data_libraries.py docs/data-libraries.md

The functions at the end are verbs of ``support.zygote``.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import types
import warnings
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

import textwrap

import torch
from torch import nn
from torch.utils.data import _utils

SAMPLES, BATCH, FILES = 48, 4, 4
PASS = SAMPLES // BATCH
TOTAL = 3 * PASS


@dataclass(frozen=True)
class How:
    """How a loader is made: by which rank of how many, with how many workers, for one pass or more."""

    workers: int = 0
    rank: int = 0
    size: int = 1
    persistent: bool = False

    @property
    def torch(self):
        """What a torch DataLoader is told."""
        lives_on = self.persistent and self.workers > 0
        return {"num_workers": self.workers, "persistent_workers": lives_on}


@dataclass(frozen=True)
class Loader:
    """A loader of a library.

    Attributes:
        make: (folder, how) → the loader.
    """

    library: str
    name: str
    make: Any
    has_workers: bool = True


def list_samples():
    """Return lines of Python's own source, numbered."""
    lines = [line for line in Path(textwrap.__file__).read_text().splitlines() if line.strip()]
    return [{"index": index, "text": line} for index, line in enumerate(lines[:SAMPLES])]


def _split():
    samples = list_samples()
    return [samples[start::FILES] for start in range(FILES)]


# What a dataset becomes.


def make_stateful(dataset, how, **options):
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(dataset, batch_size=BATCH, **options, **how.torch)


def make_plain(dataset, how, **options):
    return torch.utils.data.DataLoader(dataset, batch_size=BATCH, **options, **how.torch)


def make_itself(dataset, _how):
    return dataset.batch(BATCH)


# torchdata.


def make_nodes(folder, how):
    import torchdata.nodes as tn
    from torch.utils.data import RandomSampler

    samples = list_samples()
    node = tn.SamplerWrapper(RandomSampler(samples, generator=torch.Generator().manual_seed(0)))
    if how.workers:
        node = tn.ParallelMapper(node, samples.__getitem__, num_workers=how.workers)
    else:
        node = tn.Mapper(node, samples.__getitem__)
    node = tn.Mapper(tn.Batcher(node, BATCH), torch.utils.data.default_collate)
    return tn.Loader(node)


# Hugging Face datasets.


def _write_parquet(folder):
    from datasets import Dataset

    files = [folder / f"{number}.parquet" for number in range(FILES)]
    for path, samples in zip(files, _split(), strict=True):
        if not path.exists():
            Dataset.from_list(samples).to_parquet(path)
    return [str(path) for path in files]


def open_dataset(folder, how, *, streaming):
    from datasets import load_dataset
    from datasets.distributed import split_dataset_by_node

    dataset = load_dataset(
        "parquet", data_files=_write_parquet(folder), split="train", streaming=streaming,
        cache_dir=str(folder / "cache"),
    )  # fmt: skip
    if how.size > 1:
        dataset = split_dataset_by_node(dataset, rank=how.rank, world_size=how.size)
    return dataset


def open_streamed(folder, how):
    return open_dataset(folder, how, streaming=True)


def open_shuffled(folder, how):
    return open_streamed(folder, how).shuffle(seed=1, buffer_size=9)


# webdataset.


def _write_tars(folder):
    import webdataset

    paths = [folder / f"{number}.tar" for number in range(FILES)]
    for path, samples in zip(paths, _split(), strict=True):
        if path.exists():
            continue
        with webdataset.TarWriter(str(path)) as writer:
            for one in samples:
                writer.write({"__key__": f"{one['index']:04}", "txt": one["text"]})
    return [str(path) for path in paths]


def _load_tars(dataset, how):
    import webdataset

    dataset = dataset.decode().map(lambda one: {"index": int(one["__key__"]), "text": one["txt"]})
    return webdataset.WebLoader(dataset, batch_size=BATCH, **how.torch)


def make_tars(folder, how):
    import webdataset

    splitter = webdataset.split_by_node if how.size > 1 else webdataset.single_node_only
    dataset = webdataset.WebDataset(
        _write_tars(folder), shardshuffle=FILES, detshuffle=True, seed=1, nodesplitter=splitter
    )
    return _load_tars(dataset.compose(webdataset.detshuffle(9)), how)


def make_tars_unseeded(folder, how):
    import webdataset

    dataset = webdataset.WebDataset(_write_tars(folder), shardshuffle=False)
    return _load_tars(dataset.shuffle(9), how)


def make_tars_resampled(folder, how):
    import webdataset

    dataset = webdataset.WebDataset(_write_tars(folder), resampled=True)
    return _load_tars(dataset.with_epoch(SAMPLES), how)


# mosaicml-streaming.


def import_streaming():
    # It imports torchvision for datasets of pictures; PyPI's needs torch for CUDA.
    sys.modules.setdefault("streaming.vision", types.ModuleType("streaming.vision"))
    import streaming

    return streaming


def write_mds(folder):
    streaming = import_streaming()
    if not folder.exists():
        columns = {"index": "int", "text": "str"}
        with streaming.MDSWriter(out=str(folder), columns=columns, size_limit=600) as writer:
            for one in list_samples():
                writer.write(one)
    return str(folder)


def _open_mds(folder, _how=None):
    streaming = import_streaming()
    return streaming.StreamingDataset(
        local=write_mds(folder / "mds"), shuffle=True, shuffle_seed=1, batch_size=BATCH,
        num_canonical_nodes=2,
    )  # fmt: skip


# litdata.


def write_chunks(folder):
    from litdata.streaming.writer import BinaryWriter

    if not (folder / "index.json").exists():
        folder.mkdir()
        writer = BinaryWriter(str(folder), chunk_size=SAMPLES // FILES)
        for one in list_samples():
            writer[one["index"]] = one
        writer.done()
        writer.merge()
    return str(folder)


def _open_chunks(folder, _how=None):
    import litdata

    return litdata.StreamingDataset(write_chunks(folder / "chunks"), shuffle=True, seed=1)


def make_chunks(folder, how):
    import litdata

    return litdata.StreamingDataLoader(_open_chunks(folder), batch_size=BATCH, **how.torch)


# Grain.


def make_grain(folder, how):
    import grain

    return grain.DataLoader(
        data_source=list_samples(),
        sampler=grain.samplers.IndexSampler(SAMPLES, shuffle=True, seed=1, num_epochs=1),
        operations=[grain.transforms.Batch(BATCH)],
        worker_count=how.workers,
        shard_options=grain.sharding.ShardOptions(how.rank, how.size),
    )


def make_grain_dataset(folder, how):
    import grain

    dataset = grain.MapDataset.source(list_samples()).shuffle(seed=1)[how.rank :: how.size]
    loader = dataset.repeat().batch(BATCH).to_iter_dataset()
    if how.workers:
        loader = loader.mp_prefetch(grain.multiprocessing.MultiprocessingOptions(how.workers))
    return loader


def _over(open_dataset, make, **options):
    return lambda folder, how: make(open_dataset(folder, how), how, **options)


def make_mds(dataset, how):
    return import_streaming().StreamingDataLoader(dataset, batch_size=BATCH, **how.torch)


_MAPPED = partial(open_dataset, streaming=False)
LOADERS = {
    f"{one.library}: {one.name}": one
    for one in (
        Loader("torchdata", "StatefulDataLoader", _over(lambda *_: list_samples(), make_stateful, shuffle=True)),
        Loader("torchdata", "nodes", make_nodes),
        Loader("datasets", "map-style in DataLoader", _over(_MAPPED, make_plain, shuffle=True)),
        Loader("datasets", "streamed in StatefulDataLoader", _over(open_streamed, make_stateful)),
        Loader("datasets", "streamed, passed itself", _over(open_streamed, make_itself), has_workers=False),
        Loader("datasets", "shuffle buffer in DataLoader", _over(open_shuffled, make_plain)),
        Loader("datasets", "shuffle buffer, passed itself", _over(open_shuffled, make_itself), has_workers=False),
        Loader("datasets", "shuffle buffer in StatefulDataLoader", _over(open_shuffled, make_stateful)),
        Loader("webdataset", "detshuffle", make_tars),
        Loader("webdataset", "shuffle without a seed", make_tars_unseeded),
        Loader("webdataset", "resampled", make_tars_resampled),
        Loader("streaming", "StreamingDataLoader", _over(_open_mds, make_mds)),
        Loader("streaming", "StreamingDataset in DataLoader", _over(_open_mds, make_plain)),
        Loader("litdata", "StreamingDataLoader", make_chunks),
        Loader("litdata", "StreamingDataset in DataLoader", _over(_open_chunks, make_plain)),
        Loader("Grain", "DataLoader", make_grain),
        Loader("Grain", "Dataset", make_grain_dataset),
    )
}  # fmt: skip


# A training.


class Trained:
    """A small model that draws random numbers, and a trace: a line for every step."""

    def __init__(self, path):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.5), nn.Linear(4, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.trace = path.open("a")

    def join(self, store, how):
        """Be a rank of a run of several."""
        os.environ |= {"RANK": str(how.rank), "LOCAL_RANK": str(how.rank), "WORLD_SIZE": str(how.size),
                       "LOCAL_WORLD_SIZE": str(how.size)}  # fmt: skip
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{store}", rank=how.rank, world_size=how.size
        )
        self.model = nn.parallel.DistributedDataParallel(self.model)

    def step(self, batch, epoch, step):
        ids = [int(index) for index in batch["index"]]
        inputs = torch.tensor([[len(text), text.count(" ")] for text in batch["text"]]) / 80
        loss = self.model(inputs).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        line = {"step": step, "epoch": epoch, "ids": ids, "loss": loss.item().hex()}
        print(json.dumps(line), file=self.trace, flush=True)
        return loss


def read_trace(path):
    """Return step → what it had, the last one that was trained."""
    return {one["step"]: one for one in map(json.loads, path.read_text().splitlines())}


# Verbs of the zygote.


def warm_up():
    """Import what forked children may use."""
    import datasets
    import litdata  # noqa: F401
    import webdataset  # noqa: F401

    import mvc_hooks.checkpointer  # noqa: F401
    from support.forking import import_for
    from support.writers import use_forked

    use_forked()
    import_streaming()
    datasets.disable_progress_bars()
    # It waits after each pass for threads of Arrow, for the sake of processes that end by themselves.
    datasets.config.SLEEP_TIME_ON_THREADS_SHUTDOWN = 0
    torch.set_num_threads(1)
    # Loader workers of a killed child look that often whether it is still there.
    _utils.worker.MP_STATUS_CHECK_INTERVAL = 0.1
    warnings.simplefilter("ignore")
    if "VERBOSE" not in os.environ:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    import_for(_train_a_step)


def _train_a_step(folder):
    from mvc import UsageError

    for number, name in enumerate(LOADERS):
        with contextlib.suppress(UsageError):  # some are refused
            train(Path(folder), name, f"{number}", until=1, commits=(1,))


def train(
    root, name, run, *, until=TOTAL, commits=(), dies=False, back_at=None, iterates=False, **how
):
    """Train to a step, from the run's last commit if it has one; be killed there if asked to."""
    from mvc_hooks import Checkpointer

    how = How(**how)
    trained = Trained(root / f"{run}-{how.rank}.jsonl")
    if how.size > 1:
        trained.join(root / f"{run}-{os.getppid()}-{until}.store", how)
    loader = LOADERS[name].make(root, how)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        ckpt = Checkpointer(
            root / run, model=trained.model, optimizer=trained.optimizer, dataloader=loader,
            every=None, signals=False, detectors=(),
        )  # fmt: skip
        began = ckpt.step_count
        for batch in _iterate(ckpt, loader, until, iterates):
            loss = trained.step(batch, None if iterates else ckpt.epoch, ckpt.step_count)
            ckpt.step(loss=loss.detach())
            if ckpt.step_count in commits:
                ckpt.commit("now")
                ckpt.wait()
            if ckpt.step_count == back_at:
                back_at = None
                ckpt.roll_back("last")
        if dies:
            for worker in multiprocessing.active_children():
                worker.kill()  # Grain's would live on
            os.kill(os.getpid(), signal.SIGKILL)
        ckpt.close()
    return {
        "began": began,
        "said": [str(one.message) for one in said if "drawn" in str(one.message)],
    }


def _iterate(ckpt, loader, until, iterates):
    while ckpt.step_count < until:
        if not iterates:
            yield ckpt.next_batch()
            continue
        for batch in loader:
            yield batch
            if ckpt.step_count >= until:
                break


# What is found, and the table of it.


CUTS = {"in a pass": 5, "a second time": 8, "end of a pass": 12, "in a later pass": 17}
"""Where a run is killed, one after the other: what of it → after how many steps."""


def examine(zygote, root, name):
    """Return what is found of a loader, by column of the table."""
    many = 2 if LOADERS[name].has_workers else 0
    plain = zygote.run("train", root, name=name, run=f"plain-{many}", workers=many)
    if plain.error:
        assert plain.kind == "UsageError", plain.error
        return dict.fromkeys(COLUMNS, "refused")
    found = dict.fromkeys(COLUMNS, "exact")
    for workers in {many, 0}:
        if workers != many:
            plain = zygote.run("train", root, name=name, run="plain-0", workers=workers)
            assert not plain.error, plain.error
        expected = read_trace(root / f"plain-{workers}-0.jsonl")
        found |= {column: said for column, said in _cut(zygote, root, name, workers, expected).items()
                  if said != "exact"}  # fmt: skip
    found["rolled back"] = _roll_back(zygote, root, name, many)
    found["other workers"] = (
        _move(zygote, root, name, [{"workers": 2}], [{"workers": 0}]) if many else "-"
    )
    one, two = [{}], [{"rank": rank, "size": 2} for rank in range(2)]
    moved = {_move(zygote, root, name, *pair) for pair in ((one, two), (two, one))}
    found["other ranks"] = " or ".join(sorted(moved))
    return found


COLUMNS = (*CUTS, "rolled back", "other workers", "other ranks")


def run_cut(zygote, root, name, run, cuts, **options):
    """Train, killed a step after each of these commits; return what the last part says."""
    for cut in cuts:
        outcome = zygote.run(
            "train", root, name=name, run=run, until=cut + 1, commits=[cut], dies=True, **options
        )
        assert outcome.killed, outcome.error
    outcome = zygote.run("train", root, name=name, run=run, **options)
    assert not outcome.error, outcome.error
    assert outcome.result["began"] == max(cuts)
    return outcome.result


def _cut(zygote, root, name, workers, expected):
    run_cut(zygote, root, name, f"cut-{workers}", CUTS.values(), workers=workers)
    got = read_trace(root / f"cut-{workers}-0.jsonl")
    ends = [*list(CUTS.values())[1:], TOTAL]
    return {
        column: "exact"
        if all(got[step] == expected[step] for step in range(start, end))
        else "not exact"
        for (column, start), end in zip(CUTS.items(), ends, strict=True)
    }


def _roll_back(zygote, root, name, workers):
    outcome = zygote.run(
        "train", root, name=name, run="back", workers=workers, until=PASS + 9, commits=[PASS + 2],
        back_at=PASS + 4,
    )  # fmt: skip
    if outcome.error:
        return "refused"
    got, expected = (read_trace(root / f"{run}-0.jsonl") for run in ("back", f"plain-{workers}"))
    return "exact" if all(got[step] == expected[step] for step in got) else "not exact"


def _move(zygote, root, name, before, after):
    """Return what comes of a run that goes on with other workers or ranks, in the middle of a pass."""
    run = f"moved-{len(before)}-{before[0].get('workers', 0)}"
    part = {"name": name, "run": run}
    outcomes = zygote.run_all(
        [("train", root, {**part, **how, "until": 2, "commits": [2]}) for how in before]
    )
    assert not any(one.error for one in outcomes), [one.error for one in outcomes]
    outcomes = zygote.run_all(
        [
            ("train", root, {**part, **how, "until": PASS * len(before) // len(after)})
            for how in after
        ]
    )
    if any(one.error for one in outcomes):
        assert {one.kind for one in outcomes} <= {"ConflictError", "MisfitError"}, outcomes
        return "refused"
    steps = [line for path in root.glob(f"{run}-?.jsonl") for line in read_trace(path).values()]
    seen = Counter(index for line in steps for index in line["ids"] if not line["epoch"])
    return "exact" if all(seen[index] == 1 for index in range(SAMPLES)) else "not exact"


def format_row(name, found):
    one = LOADERS[name]
    return f"| {one.library} | {one.name} | {' | '.join(found[column] for column in COLUMNS)} |"


def rewrite(path):
    """Examine all loaders and write the table of a page."""
    from support.zygote import Zygote

    text = Path(path).read_text()
    start = text.index("| library |")
    rows = []
    with Zygote("support.data_libraries") as zygote:
        for name in LOADERS:
            with tempfile.TemporaryDirectory() as folder:
                rows.append(format_row(name, examine(zygote, Path(folder), name)))
                print(rows[-1], flush=True)
    head = ["library", "loader", *COLUMNS]
    table = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}", *rows]
    end = text.index("\n\n", start)
    Path(path).write_text(text[:start] + "\n".join(table) + text[end:])


if __name__ == "__main__":
    rewrite(sys.argv[1])
