"""Gates: limits on the health of what is committed."""

import numpy as np
import pytest
from safetensors.numpy import save_file

from mvc import FormatError, GateError, Repo, UsageError
from mvc.workspace.health import GATES, CheckpointHealth, Gates, check_gate, read_failed, read_gates

MODEL = "model.safetensors"
RECIPE = "merge_method: passthrough\nmodels: [{model: side~1}]\n"
WEIGHTS = np.linspace(-1, 1, 1000, dtype=np.float32)


@pytest.fixture
def repo(tmp_path):
    made = Repo.init(tmp_path / "repo")
    save(made, WEIGHTS)
    made.commit("one", paths=".")
    return made


def save(repo, weights, **others):
    save_file({"first": np.ones(3, np.float32), "w": weights, **others}, repo.worktree / MODEL)


def break_weights(value=np.nan):
    weights = WEIGHTS.copy()
    weights[5] = value
    return weights


def entry(repo):
    return next(iter(repo.log(limit=1)))


def health(path=MODEL, *, nan=0, inf=0, largest=1.0, norm=10.0):
    return CheckpointHealth(path, nan, inf, largest, norm)


@pytest.mark.parametrize(
    ("gate", "limit", "broken", "value"),
    [
        ("nan", "0", break_weights(), 1),
        ("inf", "0", break_weights(-np.inf), 1),
        ("max", "2.5", break_weights(-3.0), 3.0),
        ("norm", "25", 1.5 * WEIGHTS, np.linalg.norm([*(1.5 * WEIGHTS), 1, 1, 1])),
        ("norm-growth", "4", 5 * WEIGHTS, None),
    ],
)
def test_a_gate_refuses_what_is_beyond_it_and_nothing_else(repo, gate, limit, broken, value):
    repo.set_config(f"gate.{gate}", limit)
    save(repo, broken)
    before, staged = repo.head, repo.status().files
    with pytest.raises(GateError, match=f"most in tensor 'w'; gate.{gate} allows {limit}") as error:
        repo.commit("bad", everything=True)
    assert (repo.head, repo.status().files) == (before, staged)
    (failure,) = error.value.failures
    assert (failure["gate"], failure["path"], failure["tensor"]) == (gate, MODEL, "w")
    if value is not None:
        assert failure["value"] == pytest.approx(value, rel=1e-5)
    assert [str(one) for one in repo.check_gates().failures] == [error.value.message]
    assert repo.check_gates("HEAD", "HEAD").failures == ()
    save(repo, 1.2 * WEIGHTS)
    assert repo.check_gates().failures == ()
    repo.commit("good", everything=True)
    assert entry(repo).failed_gates == ()


def test_a_marked_commit_is_made_and_says_why(repo):
    repo.set_config("gate.nan", "0")
    repo.set_config("gate.mode", "mark")
    save(repo, break_weights())
    marked = repo.commit("bad", everything=True)
    (reason,) = entry(repo).failed_gates
    assert reason.startswith(f"nan: {MODEL} has 1 NaN, most in tensor 'w'")
    repo.commit("reworded", amend=True)
    assert entry(repo).failed_gates == (reason,)
    repo.commit("insisted", amend=True, no_gate=True)
    assert entry(repo).failed_gates == ()
    assert repo.check_gates(f"{marked.commit}~", marked.commit).failures


def test_no_gate_commits_anyway(repo):
    repo.set_config("gate.nan", "0")
    save(repo, break_weights())
    repo.commit("bad", everything=True, no_gate=True)
    assert entry(repo).failed_gates == ()
    assert entry(repo).health[0].nan == 1
    (repo.worktree / "notes").write_text("of what went wrong")
    repo.commit("as it was", paths="notes")  # nobody has to insist twice
    repo.set_config("gate.mode", "mark")
    repo.commit("still not sound", allow_empty=True)
    assert entry(repo).failed_gates


@pytest.fixture
def broken(repo):
    """On main another tensor changed; on side a harmless commit, one that brings NaN, one that takes it away."""
    repo.set_config("gate.nan", "0")
    repo.switch("side", create=True)
    for text, weights in (("calm", 2 * WEIGHTS), ("bad", break_weights()), ("good", WEIGHTS)):
        save(repo, weights)
        repo.commit(text, everything=True, no_gate=True)
    repo.switch("main")
    save(repo, WEIGHTS, mine=np.ones(3, np.float32))
    repo.commit("mine", everything=True)
    return repo


def refused(repo, act):
    """Return what is left after a refusal: nothing but what was there before."""
    head, tree = repo.head, repo.status().files
    with pytest.raises(GateError, match="1 NaN, most in tensor 'w'"):
        act()
    assert repo.status().files == tree == ()
    return head


@pytest.mark.parametrize(
    ("branch", "act"),
    [
        ("main", lambda repo, **options: repo.merge("side~1", **options)),
        ("side", lambda repo, **options: repo.revert("HEAD", **options)),
        ("main", lambda repo, **options: repo.commit_recipe(RECIPE, **options)),
    ],
)
def test_what_a_verb_brings_is_judged_unless_somebody_insists(broken, branch, act):
    broken.switch(branch)
    head = refused(broken, lambda: act(broken))
    assert (broken.head, broken.status().pending) == (head, None)
    act(broken, no_gate=True)
    assert entry(broken).health[0].nan == 1


def test_a_merge_that_waited_is_judged_too(broken):
    save(broken, 3 * WEIGHTS)
    broken.commit("conflicts", everything=True)
    assert broken.merge("side~1").kind == "conflicts"
    with pytest.raises(GateError):
        broken.conclude(rules=[("w", "theirs")])
    assert broken.status().pending is not None
    assert broken.conclude(no_gate=True).kind == "merged"
    assert entry(broken).health[0].nan == 1


def test_a_sequence_waits_at_the_pick_that_a_gate_refuses(broken):
    refused(broken, lambda: broken.cherry_pick("side~3..side"))
    assert entry(broken).info.subject == "calm"
    broken.conclude("cherry-pick", no_gate=True)  # for all that is left
    log = [one.info.subject for one in broken.log(limit=4)]
    assert log == ["good", "bad", "calm", "mine"]
    assert [one.health[0].nan for one in broken.log(limit=3)] == [0, 1, 0]


def test_that_somebody_insists_is_not_forgotten_at_a_conflict(broken):
    save(broken, 3 * WEIGHTS)
    broken.commit("conflicts", everything=True)
    assert broken.cherry_pick("side~3..side", no_gate=True).kind == "conflicts"
    broken.conclude("cherry-pick", rules=[("w", "theirs")])
    assert [one.info.subject for one in broken.log(limit=3)] == ["good", "bad", "calm"]


def test_states_in_memory_have_gates_too(repo):
    repo.set_config("gate.nan", "0")
    state = {"model": {"w": WEIGHTS}, "optimizer": {"m": break_weights()}}
    with pytest.raises(GateError, match=r"optimizer.safetensors has 1 NaN, most in tensor 'm'"):
        repo.commit_state(state, message="bad", branch="run")
    assert [ref.name for ref in repo.branches.list()] == ["main"]
    repo.commit_state(state, message="bad", branch="run", no_gate=True)


def test_a_gate_is_checked_even_where_nothing_is_known(repo):
    """The cache may be lost and the file large: a gate that nobody looks at is none."""
    with pytest.raises(UsageError, match="no gate is set"):
        repo.check_gates()
    repo.set_config("gate.nan", "2")
    many = np.full(9, np.nan, np.float32)
    save(repo, many, a=break_weights(), large=np.zeros((2**22 * 5,), np.float32))
    repo.add(".")
    (repo.git_dir / "statistics.db").unlink()
    with pytest.raises(GateError, match=r"10 NaN, most in tensor 'w'; gate.nan allows 2"):
        repo.commit("bad")
    assert repo.check_gates(staged=True).failures


def test_optimizer_state_may_grow():
    gates = Gates({"max": 5, "norm": 50, "norm-growth": 2, "inf": 0})
    before = [health(), health("optimizer.pt", norm=1.0)]
    found = [health(norm=11.0), health("optimizer.pt", norm=1e9, largest=1e9, inf=3)]
    assert [(one.gate, one.path) for one in gates.judge(found, before)] == [("inf", "optimizer.pt")]


def test_growth_needs_something_to_grow_from():
    gates = Gates({"norm-growth": 2})
    for before in ([], [health("other.pt")], [health(norm=0.0)]):
        assert gates.judge([health(norm=1e30)], before) == []
    assert gates.judge([health(norm=20.0)], [health()]) == []
    (failure,) = gates.judge([health(norm=20.1)], [health()])
    assert (failure.value, failure.limit) == (pytest.approx(2.01), 2)


def test_only_gates_are_settings(repo):
    assert read_gates({"gate.mode": "mark", "user.name": "x"}) is None
    for key in ("gate.nam", "gate.modes", "gate.norm.growth"):
        with pytest.raises(UsageError, match="is not a gate"):
            repo.set_config(key, "0")
    assert set(GATES) == {"nan", "inf", "max", "norm", "norm-growth"}


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("gate.nan", ["-1", "x", "1.5", "", "9" * 40, "nan", "²"]),
        ("gate.inf", ["none", "1e3"]),
        ("gate.max", ["0", "-3", "nan", "inf", "big", ""]),
        ("gate.norm", ["0", "1,5"]),
        ("gate.norm-growth", ["1", "0.5", "10x", "inf"]),
        ("gate.mode", ["warn", "REFUSE", ""]),
    ],
)
def test_mistyped_values_are_errors(repo, key, values):
    for value in values:
        with pytest.raises(UsageError, match="not "):
            repo.set_config(key, value)
        with pytest.raises(UsageError):
            check_gate(key, value)


def test_a_config_written_by_hand_is_checked(repo):
    with (repo.git_dir / "config").open("a") as file:
        file.write("[gate]\n\tnan = many\n")
    save(repo, 2 * WEIGHTS)
    with pytest.raises(FormatError, match=r"gate.nan must be a whole number, not 'many'"):
        repo.commit("two", everything=True)


def test_marks_of_strangers_are_left_out():
    trailers = [("Gate", "passed"), ("Gate", "failed nan: 3"), ("Step", "failed"), ("Gate", "")]
    assert read_failed(trailers) == ("nan: 3",)


def test_a_marked_commit_is_no_place_to_go_back_to(repo):
    good = repo.head.commit
    repo.runs.mark_healthy(good)
    repo.set_config("gate.nan", "0")
    repo.set_config("gate.mode", "mark")
    save(repo, break_weights())
    repo.runs.mark_healthy(repo.commit("bad", everything=True).commit)
    save(repo, 2 * WEIGHTS)
    repo.commit("tip", everything=True)
    assert repo.runs.plan_rollback(healthy=True).target == good
