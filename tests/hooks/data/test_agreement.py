"""A resume with another pipeline, and ranks with different ones."""

import logging

import pytest
import torch
from torch.utils.data import DataLoader

from mvc import ConflictError, Repo, UsageError
from mvc_data import node
from mvc_data.pipeline import read_run
from mvc_data.run import check_resume
from mvc_hooks import Checkpointer
from support.cases import for_each
from support.programs import started_ranks

pytestmark = pytest.mark.torch


def join(batch, size):
    return torch.tensor([[float(sample)] * size for sample in batch])


def join_twice(batch, size):
    return torch.tensor([[2.0 * sample] * size for sample in batch])


def gather(batch):
    return torch.tensor([[float(sample)] * 2 for sample in batch])


def gather_more(batch):
    return torch.tensor([[float(sample)] * 2 for sample in batch]) + 1


def train(root, steps, collate, **options):
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    loader = DataLoader(range(40), batch_size=2, shuffle=True, collate_fn=collate)
    with Checkpointer(
        root, model=model, optimizer=optimizer, dataloader=loader, every=2, **options
    ) as ckpt:
        for _ in ckpt.steps(steps):
            optimizer.zero_grad()
            model(ckpt.next_batch()).sum().backward()
            optimizer.step()
            ckpt.step()


def resume(old, now, *allow):
    """Return what a resume says of another pipeline, and which of its nodes differ."""
    stored, live = (read_run({}, end) for end in (old, now))
    return check_resume({"pipeline": stored}, live, allow)


@for_each(
    "other, words",
    [
        (
            lambda: node(join, name="join", size=3),
            "node 'join' changed .parameter size was 2, is 3",
        ),
        (lambda: node(join_twice, name="join", size=2), r"join_twice: \+def join_twice"),
        (lambda: node(join, name="other", size=2), "'join' was removed|'other' was added"),
        (lambda: node(join, node(len), name="join", size=2), "input len was added"),
    ],
)
def test_another_pipeline_is_refused_and_named(other, words):
    with pytest.raises(ConflictError, match=words) as caught:
        resume(node(join, name="join", size=2), other())
    assert 'allow=["pipeline"]' in caught.value.hint


def test_a_run_with_another_pipeline_leaves_the_branch_where_it_is(tmp_path):
    train(tmp_path, 2, node(join, name="join", size=2))
    tip = Repo.open(tmp_path).resolve("main")
    with pytest.raises(ConflictError, match="parameter size was 2, is 3"):
        train(tmp_path, 4, node(join, name="join", size=3))
    assert Repo.open(tmp_path).resolve("main") == tip
    train(tmp_path, 4, node(join, name="join", size=2))


@for_each("allow", ["pipeline", "data.pipeline.join", "data.*", "pipeline.jo*"])
def test_patterns_allow_nodes_by_their_names(allow):
    nodes = node(join, name="join", size=2), node(join_twice, name="join", size=2)
    lines, differing = resume(*nodes, allow)
    assert differing == ["join"]
    assert lines[0].startswith("pipeline: node 'join' changed (code of ")


@pytest.mark.filterwarnings("ignore:the first batch of this pass")
def test_what_is_allowed_is_said_and_recorded(tmp_path, caplog):
    train(tmp_path, 2, node(join, name="join", size=2))
    with caplog.at_level(logging.WARNING, "mvc_hooks"):
        train(tmp_path, 4, node(join_twice, name="join", size=2), allow=["pipeline.jo*"])
    [said] = [message for message in caplog.messages if message.startswith("pipeline: ")]
    assert said.startswith("pipeline: node 'join' changed (code of ")
    repo = Repo.open(tmp_path)
    assert repo.show("main").annotations.meta["new_nodes"] == "join"
    [state] = [change for change in repo.changes("main") if change.path == "state.json"]
    [change] = state.nodes
    assert (change.name, change.status) == ("join", "modified")
    assert any("2.0 * sample" in line for _, lines in change.code for line in lines)
    assert not any("join_twice" in line for line in state.lines)
    train(tmp_path, 6, node(join_twice, name="join", size=2))


@pytest.mark.filterwarnings("ignore:the first batch of this pass")
def test_what_is_no_node_is_told_and_not_refused(tmp_path, caplog):
    train(tmp_path, 2, gather)
    with caplog.at_level(logging.WARNING, "mvc_hooks"):
        train(tmp_path, 4, gather)
        assert not [message for message in caplog.messages if "pipeline" in message]
        train(tmp_path, 6, gather_more)
    [said] = [message for message in caplog.messages if "pipeline" in message]
    assert said.startswith("pipeline: the code of dataloader.collate_fn changed")


def test_a_run_that_begins_to_name_its_nodes_goes_on(tmp_path):
    train(tmp_path, 2, gather)
    train(tmp_path, 4, node(gather, name="gather"))
    with pytest.raises(ConflictError, match="'gather' was removed"):
        train(tmp_path, 6, gather)


def test_a_library_of_another_version_is_told(tmp_path, caplog, monkeypatch):
    def count(batch):
        return torch.tensor([[1.0, 2.0]] * len(batch)) + (pytest is None)

    train(tmp_path, 2, node(count))
    monkeypatch.setattr("mvc_data.reading._find_distribution", lambda top: (top, "99"))
    with caplog.at_level(logging.WARNING, "mvc_hooks"):
        train(tmp_path, 4, node(count))
    said = [
        message
        for message in caplog.messages
        if message.startswith("pipeline: library pytest was ")
    ]
    assert len(said) == 1
    assert said[0].endswith("is 99 (used by count)")


@pytest.mark.filterwarnings("ignore:the first batch of this pass")
def test_a_rollback_to_before_a_change_is_no_resume(tmp_path):
    train(tmp_path, 2, node(join, name="join", size=2))
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    loader = DataLoader(range(40), 2, collate_fn=node(join_twice, name="join", size=2))
    parts = {"model": model, "optimizer": optimizer, "dataloader": loader}
    with Checkpointer(tmp_path, **parts, every=2, allow=["pipeline"]) as ckpt:
        for _ in ckpt.steps(5):
            model(ckpt.next_batch()).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            ckpt.step()
        assert ckpt.roll_back("main@2").to_step == 2


def test_nodes_that_no_loader_uses_are_passed(tmp_path):
    train(tmp_path, 2, gather, pipeline=[node(join, name="prepare", size=2)])
    assert "prepare" in Repo.open(tmp_path).load_state()["data_record"]["pipeline"]
    with pytest.raises(ConflictError, match="'prepare' was removed"):
        train(tmp_path, 4, gather)
    with pytest.raises(UsageError, match="which is not a node"):
        train(tmp_path, 4, gather, pipeline=[join])


def test_nodes_of_torchdata_are_nodes(tmp_path):
    nodes = pytest.importorskip("torchdata.nodes")

    def run(count, factor):
        source = nodes.IterableWrapper(range(50))
        scaled = node(nodes.Mapper(source, lambda one: one * factor), name="scale")
        loader = nodes.Loader(nodes.Prefetcher(node(nodes.Batcher(scaled, 4), name="batch"), 2))
        model = torch.nn.Linear(1, 1)
        with Checkpointer(tmp_path, model=model, dataloader=loader, every=1) as ckpt:
            for _ in ckpt.steps(count):
                ckpt.next_batch()
                ckpt.step()

    run(3, factor=3)
    entry = Repo.open(tmp_path).load_state()["data_record"]["pipeline"]
    assert entry["batch"]["inputs"] == ["scale"]
    with pytest.raises(
        ConflictError, match=r"node 'scale' changed .parameter <lambda>.factor was 3, is 4"
    ):
        run(5, factor=4)


_RANK = """
import os, sys, torch
from torch import distributed
from mvc import MvcError
from mvc_hooks import Checkpointer
from mvc_data import node
from mvc_data.run import check_resume
from mvc_data.pipeline import read_run
distributed.init_process_group("gloo")
def join(batch, size):
    return torch.tensor([[1.0] * 2] * len(batch))
torch.manual_seed(0)
size = 2 + (distributed.get_rank() == 1 and sys.argv[2] == "differ")
loader = torch.utils.data.DataLoader(range(8), 2, collate_fn=node(join, size=size))
try:
    Checkpointer(sys.argv[1], model=torch.nn.Linear(2, 1), dataloader=loader).close()
    print("begun")
except MvcError as error:
    print(type(error).__name__, error.message)
distributed.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["differ", "agree"])
def test_ranks_with_different_pipelines_do_not_begin(tmp_path, how):
    with started_ranks("-c", 2, _RANK, tmp_path / "run", how) as ranks:
        said = [one.communicate()[0].decode().strip() for one in ranks]
    text = "UsageError rank 1 has another data pipeline than rank 0: node 'join' changed"
    expected = f"{text} (parameter size was 2, is 3)" if how == "differ" else "begun"
    assert said == [expected, expected]
    assert (tmp_path / "run").exists() == (how == "agree")
