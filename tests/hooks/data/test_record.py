"""What commits say that a run saw is what its weights saw."""

import itertools
import random
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from mvc import ConflictError, Repo, UsageError
from mvc.sampling import SampleDigest, SamplePlan, Skips, Source, parse_ledger
from mvc.sampling.stretch import find_stretch
from mvc_data import ConsistentDataLoader
from mvc_data.tallies import PlanTally
from mvc_hooks import Checkpointer, Ring
from support.bounds import rest_nightly
from support.seeing_runs import SeeingRuns
from support.seen_samples import (
    SAMPLES,
    Numbers,
    PlanLoader,
    check_commits,
    make_loader,
    make_parts,
    train_step,
)

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata calls it
stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader


def train(folder, loader, total, **options):
    parts = make_parts(loader)
    with Checkpointer(folder, every=3, parts=parts, **options) as ckpt:
        for _ in ckpt.steps(total):
            train_step(ckpt, parts)
    return ckpt


def read(repo, revision="HEAD"):
    return parse_ledger(
        repo.open_state(revision).load(("data_record", "ledger"), framework="numpy")
    )


@pytest.mark.parametrize(
    ("kind", "options"),
    rest_nightly(
        [
            (DataLoader, {"num_workers": 2}),
            (stateful, {}),
            (DataLoader, {}),
            (DataLoader, {"num_workers": 2, "persistent_workers": True}),
            (stateful, {"num_workers": 2}),
            (stateful, {"num_workers": 2, "persistent_workers": True}),
        ],
        kept=2,
    ),
)
def test_what_loaders_hand_out_across_epochs_and_a_resume(kind, options, tmp_path):
    torch.manual_seed(0)
    train(tmp_path, make_loader(kind, **options), 10)
    train(tmp_path, make_loader(kind, **options), 14)
    repo = Repo.open(tmp_path)
    assert check_commits(repo) == 7
    assert read(repo)["dataloader"].digest.count == 4 * 13 + 2  # an epoch ends with a batch of 2


class Both:
    """Two loaders with a computed order, and one without, as one."""

    def __init__(self):
        self.parts = {
            "short": ConsistentDataLoader(Numbers(), 9, seed=1, drop_last=True),
            "long": ConsistentDataLoader(Numbers(), 5, seed=2),
            "drawn": make_loader(num_workers=1),
        }

    def __iter__(self):
        for found in itertools.zip_longest(*self.parts.values()):
            yield torch.cat([one for one in found if one is not None])


@pytest.mark.parametrize(
    "stops", [(3, 7), *(pytest.param(one, marks=pytest.mark.nightly) for one in [(8, 9), (4, 17)])]
)
def test_computed_orders_in_a_loader_of_the_users_own(stops, tmp_path):
    def fit(folder, total):
        torch.manual_seed(0)
        parts = make_parts(Both())
        back_at = None if folder == "through" else total - 1
        with Checkpointer(tmp_path / folder, every=2, parts=parts) as ckpt:
            for _ in ckpt.steps(total):
                batches[ckpt.step_count] = train_step(ckpt, parts).tolist()
                if ckpt.step_count == back_at:
                    back_at = None
                    ckpt.roll_back("last")

    batches = {}
    fit("through", 18)
    expected, batches = batches, {}
    for total in (*stops, 18):
        fit("kept", total)
    assert batches == expected
    state = Repo.open(tmp_path / "kept").load_state()
    through = Repo.open(tmp_path / "through").load_state()
    assert torch.equal(state["model"]["seen"], through["model"]["seen"])
    seen = Repo.open(tmp_path / "kept").data.seen("HEAD", "main@0", prove=True)
    assert [loader.name for loader in seen.loaders] == [
        f"dataloader.parts.{name}" for name in ("drawn", "long", "short")
    ]
    assert all(loader.is_proven for loader in seen.loaders)
    assert sum(loader.total.count for loader in seen.loaders) == sum(map(len, expected.values()))


def test_the_record_draws_nothing(tmp_path):
    torch.manual_seed(0)
    plain = [batch.tolist() for batch in make_loader(num_workers=1)]
    after = torch.rand(1)
    torch.manual_seed(0)
    parts = make_parts(make_loader(num_workers=1))
    torch.manual_seed(0)
    with Checkpointer(tmp_path, every=None, parts=parts) as ckpt:
        drawn = [ckpt.next_batch().tolist() for _ in plain]
    assert drawn == plain
    assert torch.rand(1) == after


def run_program(folder, seed, make):
    """Do steps, failing commits, rollbacks and resumes at random."""
    draw, done = random.Random(seed), 0
    lock = folder / ".mvc" / "refs" / "heads" / "main.lock"
    options = {"every": 3, "ring": Ring(every=2), "on_failure": "continue", "when_behind": "sync"}
    for _ in range(3):
        parts = make_parts(make(draw))
        with Checkpointer(folder, **options, parts=parts) as ckpt:
            for _ in range(draw.randint(7, 14)):
                action = draw.random()
                if action < 0.15 and ckpt.step_count > 4:
                    has_two = sum(commit.error is None for commit in ckpt.commits) > 1
                    ckpt.roll_back("main~1" if has_two and draw.random() < 0.4 else "last")
                ckpt.wait()
                if action > 0.8:
                    lock.touch()
                train_step(ckpt, parts)
                ckpt.wait()
                lock.unlink(missing_ok=True)
                done += 1
    return done


@pytest.mark.parametrize("seed", rest_nightly(range(40)))
def test_failures_rollbacks_and_resumes(seed, tmp_path):
    torch.manual_seed(seed)
    kind, workers = stateful if seed % 2 else DataLoader, {"num_workers": seed % 3}
    run_program(tmp_path, seed, lambda draw: make_loader(kind, **workers))
    assert check_commits(Repo.open(tmp_path)) > 4


_DRAWING = SimpleNamespace(is_dropping=False, is_redrawing=False)
PLAN = SamplePlan((Source("dataloader", SAMPLES),), seed=3, batch=4)


def plan_loader(draw):
    skips = Skips()
    for _ in range(draw.randint(0, 2)):
        first = draw.randrange(SAMPLES - 3)
        skips = skips.add_samples("dataloader", first, first + 2, reason="bad")
    return PlanLoader(PLAN, skips)


@pytest.mark.parametrize("seed", rest_nightly(range(4)))
def test_a_loader_with_a_plan(seed, tmp_path):
    run_program(tmp_path, seed, plan_loader)
    assert check_commits(Repo.open(tmp_path)) > 4


@pytest.mark.parametrize("tail", ["short", "drop", "wrap"])
@pytest.mark.parametrize("skipped", [2, 33, 170])
def test_rank_0_of_several_knows_what_all_fetched(tail, skipped):
    """Also after a window of several epochs is skipped."""
    plan = SamplePlan((Source("dataloader", SAMPLES),), seed=3, batch=4, tail=tail)
    loader = PlanLoader(plan, None, 0, 2)
    ranks = SimpleNamespace(size=2, is_first=True)
    tally, batches = PlanTally(loader, _DRAWING, ranks), iter(loader)
    for _ in range(3):
        for _ in range(9):
            next(batches)
        start = loader.cursor
        loader.skips = loader.skips.add_window(start, start + skipped, reason="rollback")
    next(batches)
    assert tally.entry.digest.count > 9 * 3 * 4 - 8
    assert find_stretch("dataloader", None, tally.entry).prove()


@pytest.mark.parametrize("ranks", [1, 2])
def test_what_set_epoch_leaves_out_was_not_seen(ranks):
    plan = SamplePlan((Source("dataloader", SAMPLES),), seed=3, batch=4, tail="wrap")
    loader = PlanLoader(plan, None, 0, ranks)
    tally = PlanTally(loader, _DRAWING, SimpleNamespace(size=ranks, is_first=True))
    batches = iter(loader)
    for epoch in (0, 3, 4):
        loader.cursor = max(loader.cursor, epoch * SAMPLES)  # as set_epoch does
        for _ in range(5):
            next(batches)
    assert tally.entry.digest.count == 60
    assert find_stretch("dataloader", None, tally.entry).prove()
    assert [(window.start, window.stop) for window in tally.entry.passed.windows] == [
        (20, 90),
        (110, 120),
    ]


class Part(Dataset):
    """Some of the numbers."""

    def __init__(self, numbers):
        self.numbers = numbers

    def __len__(self):
        return len(self.numbers)

    def __getitem__(self, index):
        return self.numbers[index]


WEB, CODE = range(20), range(20, SAMPLES)


def make_mixture(web, code):
    weights = {"web": web, "code": code} if code else {"web": web}
    parts = {"web": Part(WEB), "code": Part(CODE)} if code else {"web": Part(WEB)}
    return ConsistentDataLoader(parts, 4, seed=2, weights=weights, drop_last="wrap")


def read_truth(repo, revision):
    """Return how often the weights of a commit saw each number."""
    return repo.open_state(revision).load(("model", "seen"), framework="numpy")


def sum_up(counts):
    """Return the digest of numbers that were seen so often."""
    web, code = (
        np.repeat(np.arange(len(part)), counts[part.start : part.stop]) for part in (WEB, CODE)
    )
    return SampleDigest.of("web", web) + SampleDigest.of("code", code)


def test_other_weights_of_a_mixture_are_refused_or_begin_another_entry(tmp_path):
    train(tmp_path, make_mixture(0.8, 0.2), 7)
    before = [entry.info.id for entry in Repo.open(tmp_path).log()]
    with pytest.raises(ConflictError, match=r"dataloader\.plan"):
        train(tmp_path, make_mixture(0.2, 0.8), 12)
    repo = Repo.open(tmp_path)
    assert [entry.info.id for entry in repo.log()] == before
    train(tmp_path, make_mixture(0.2, 0.8), 12, allow=["dataloader.*"])
    train(tmp_path, make_mixture(0.2, 0.8), 16)
    change = read_truth(repo, "main@7")
    for step in (9, 12, 15, 16):
        truth, entry = read_truth(repo, f"main@{step}"), read(repo, f"main@{step}")["dataloader"]
        assert (entry.start, entry.cursor) == (28, 4 * step)
        assert entry.digest == sum_up(truth - change)
    for first, last in [(0, 16), (3, 9), (7, 9), (9, 16)]:
        (seen,) = repo.data.seen(f"main@{last}", f"main@{first}", prove=True).loaders
        assert seen.is_proven
        assert seen.digest == sum_up(
            read_truth(repo, f"main@{last}") - read_truth(repo, f"main@{first}")
        )
        assert seen.positions == (4 * first, 4 * last)
    for number in (*WEB[::5], *CODE[::5]):
        name = f"web:{number}" if number in WEB else f"code:{number - CODE.start}"
        told = set(repo.data.who_saw(name).affected)
        assert told == {
            entry.info.id for entry in repo.log() if read_truth(repo, entry.info.id)[number]
        }


@pytest.mark.slow
def test_a_rollback_to_other_weights(tmp_path):
    train(tmp_path, make_mixture(0.8, 0.2), 6)
    parts, repo = make_parts(make_mixture(0.2, 0.8)), Repo.open(tmp_path)
    with Checkpointer(tmp_path, every=3, parts=parts, allow=["dataloader.*"]) as ckpt:
        for _ in range(4):
            train_step(ckpt, parts)
        ckpt.roll_back("main@3")
        for _ in range(3):
            train_step(ckpt, parts)
    entry = read(repo)["dataloader"]
    assert (entry.start, entry.cursor) == (12, 24)
    assert entry.digest == sum_up(read_truth(repo, "main@6") - read_truth(repo, "main@3"))
    assert repo.data.seen(since="main@0", prove=True).loaders[0].is_proven


@pytest.mark.slow
def test_a_dataset_that_was_taken_out_can_still_be_asked_for(tmp_path):
    train(tmp_path, make_mixture(0.5, 0.5), 6)
    train(tmp_path, make_mixture(1, 0), 9, allow=["dataloader.*"])
    repo = Repo.open(tmp_path)
    number = int(np.flatnonzero(read_truth(repo, "main@6")[CODE.start :])[0])
    assert next(repo.log()).info.id in repo.data.who_saw(f"code:{number}").affected


def test_a_commit_with_a_plan_of_many_samples_stays_small(tmp_path):
    skips = Skips()
    draw = np.random.default_rng(0)
    for start in draw.integers(0, 10**9, 1000).tolist():
        skips = skips.add_window(start, start + 4096, reason="rollback")
    loader = PlanLoader(SamplePlan((Source("dataloader", 10**9),), seed=1, batch=8), skips)
    parts = {"model": torch.nn.Linear(1, 1), "dataloader": loader}
    with Checkpointer(tmp_path, every=1, parts=parts) as ckpt:
        for _ in range(3):
            ckpt.next_batch()
            ckpt.step()
    first, last = (
        read(Repo.open(tmp_path), "HEAD~2")["dataloader"],
        read(Repo.open(tmp_path))["dataloader"],
    )
    assert len(first.passed.windows) > 990
    stored = last.to_json()
    windows = stored.pop("windows")
    assert windows == first.to_json()["windows"]  # so it is stored once
    assert len(windows) < 4096
    assert len(repr(stored)) < 1024


def test_streams_are_what_the_user_says(tmp_path):
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(8))

    parts = {"model": torch.nn.Linear(1, 1), "dataloader": DataLoader(Stream())}
    with Checkpointer(tmp_path, every=1, parts=parts) as ckpt:
        for key in ("a.tar#1", "a.tar#2"):
            ckpt.next_batch()
            ckpt.saw([key], source="web")
            ckpt.saw(["broken"], source="web", skipped="cannot be decoded")
            ckpt.step()
    found = read(Repo.open(tmp_path))
    assert list(found) == ["web"]
    assert found["web"].seen.ids == ("a.tar#2",)
    assert found["web"].digest.count == 2
    assert found["web"].skipped["cannot be decoded"].digest.count == 2


def test_keys_of_a_webdataset_are_recorded_by_themselves(tmp_path):
    class Stream(IterableDataset):
        def __iter__(self):
            return iter([{"__key__": f"k{number}", "x": number} for number in range(9)])

    parts = make_parts(DataLoader(Stream(), batch_size=2, num_workers=1))
    with Checkpointer(tmp_path, every=3, parts=parts) as ckpt:
        for _ in ckpt.steps(3):
            ckpt.next_batch()
            parts["model"].layer(torch.ones(1, 1)).sum().backward()
            ckpt.step()
    repo = Repo.open(tmp_path)
    assert repo.data.seen(prove=True).loaders[0].samples[0].keys == tuple(f"k{n}" for n in range(6))
    assert repo.data.who_saw("k5").affected


def test_a_run_without_data_has_no_entry(tmp_path):
    with Checkpointer(tmp_path, every=1, model=torch.nn.Linear(1, 1)) as ckpt:
        ckpt.step()
    assert "data_record" not in Repo.open(tmp_path).open_state().outline
    assert not [name for name in Repo.open(tmp_path).show().annotations.meta if "data" in name]


@pytest.mark.parametrize(
    ("arguments", "options", "line"),
    [
        ([object()], {}, "the samples of 'stream' are not named"),
        (["x" * 2000], {}, "the samples of 'stream' are not named"),
        ([1], {"source": ""}, "source is ''"),
        ([1], {"source": "web", "skipped": ""}, "skipped is ''"),
        ([1], {"source": "dataloader"}, "recorded as the loader draws them"),
        ([1], {"source": "keys"}, "were named by key before"),
    ],
)
def test_wrong_words(arguments, options, line, tmp_path):
    parts = make_parts(make_loader())
    with Checkpointer(tmp_path, every=None, parts=parts) as ckpt:
        train_step(ckpt, parts)
        ckpt.saw("one", source="keys")
        with pytest.raises(UsageError, match=line):
            ckpt.saw(arguments, **options)


RUNS = SeeingRuns(Path(__file__).with_name("seen_by_ranks.py"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", rest_nightly(["plan", "drawn"]))
def test_two_and_three_ranks_with_rollbacks(kind, tmp_path):
    for ranks, total in [(2, 7), (3, 13), (1, 16)]:
        RUNS.train(tmp_path, ranks, total, kind)
    assert check_commits(Repo.open(tmp_path)) > 6


@pytest.mark.slow
def test_ranks_are_killed_between_rollbacks_and_others_go_on(tmp_path):
    killed, plain = tmp_path / "killed", tmp_path / "plain"
    RUNS.kill(killed, 9, 40, "order", size=2)
    assert "resumed at step" in RUNS.train(killed, 3, 17, "order")
    RUNS.train(plain, 1, 17, "order")
    repos = [Repo.open(folder) for folder in (killed, plain)]
    for repo in repos:
        assert check_commits(repo, "data") > 8
    for back in range(3):  # to the commit in front of the last rollback
        ends = [repo.data.seen(f"HEAD~{back}", prove=True).loaders[0] for repo in repos]
        assert ends[0].total == ends[1].total
        assert all(end.is_proven for end in ends)
