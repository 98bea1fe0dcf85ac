import math
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.checkpoints.names import is_model_path
from mvc.errors import UsageError
from mvc.ids import GitId
from mvc.upkeep.retention import (
    Candidate,
    Landmarks,
    RetentionPolicy,
    choose,
    find_protected,
    state_paths,
)

NOW_S = 1_000_000


def name(number):
    return GitId(f"{number:040x}")


def line(count, *, first=0, parent=None, **facts):
    """Return commits first..first+count-1 on one line, newest first, one second apart."""
    found = []
    for number in range(first, first + count):
        parents = () if parent is None else (parent,)
        values = {key: value[number - first] for key, value in facts.items()}
        found.append(Candidate(name(number), parents, NOW_S - 1000 + number, **values))
        parent = name(number)
    return found[::-1]


def kept(commits, landmarks, **policy):
    chosen = choose(commits, landmarks, RetentionPolicy(**policy), NOW_S)
    assert set(chosen) == {commit.id for commit in commits}
    return {int(commit, 16) for commit, reasons in chosen.items() if reasons}


def on_main(count):
    return Landmarks(name(count - 1), {"main": name(count - 1)})


class TestRules:
    def test_last(self):
        assert kept(line(9), on_main(9), keep_last=3) == {6, 7, 8}

    def test_last_counts_on_every_branch_along_first_parents(self):
        commits = [
            Candidate(name(20), (name(8), name(12)), NOW_S),
            *line(3, first=10, parent=name(4)),
            *line(9),
        ]
        marks = Landmarks(name(20), {"main": name(20), "side": name(12)})
        assert kept(commits, marks, keep_last=2) == {20, 8, 12, 11}

    def test_last_of_a_detached_head(self):
        marks = Landmarks(name(4), {"main": name(8)})
        assert kept(line(9), marks, keep_last=2) == {8, 7, 4, 3}

    def test_what_is_gone_takes_no_place(self):
        commits = line(6, has_content=[True, True, False, True, False, True])
        assert kept(commits, on_main(6), keep_last=3) == {5, 3, 1}
        commits = line(3, has_content=[True, False, True], metrics=[{"loss": 2}, {"loss": 1}, {}])
        assert kept(commits, on_main(3), keep_best=1, metric="loss") == {0, 2}

    def test_every(self):
        commits = line(6, step=[0, 500, 1000, None, 1500, 2000])
        assert kept(commits, on_main(6), keep_every=1000) == {0, 2, 5}

    def test_best(self):
        losses = [{"loss": 3.0}, {"loss": 1.0}, {"loss": math.nan}, {"acc": 9}, {"loss": 1.0}, {}]
        commits = line(6, metrics=losses)
        tip = {5}
        assert kept(commits, on_main(6), keep_best=1, metric="loss") == {4} | tip  # newer of two
        assert kept(commits, on_main(6), keep_best=2, metric="loss") == {4, 1} | tip
        assert kept(commits, on_main(6), keep_best=9, metric="loss") == {4, 1, 0} | tip
        assert kept(commits, on_main(6), keep_best=1, metric="loss", maximise=True) == {0} | tip
        assert kept(commits, on_main(6), keep_best=3, metric="nope") == tip

    def test_best_of_numbers_that_no_float_holds(self):
        commits = line(3, metrics=[{"loss": 10**400}, {"loss": 5}, {}])
        assert kept(commits, on_main(3), keep_best=1, metric="loss") == {1, 2}

    def test_within(self):
        assert kept(line(9), on_main(9), keep_within_s=1000 - 6) == {6, 7, 8}

    def test_tags_other_refs_and_head_stay(self):
        marks = Landmarks(name(2), {"main": name(8)}, {"v1": name(1)}, {"refs/stash": name(4)})
        chosen = choose(line(9), marks, RetentionPolicy(keep_tagged=True), NOW_S)
        assert {int(one, 16): why for one, why in chosen.items() if why} == {
            8: ("tip of main",),
            4: ("refs/stash",),
            2: ("HEAD",),
            1: ("tag v1",),
        }


class TestDiverged:
    COMMITS = (*line(3, first=10, parent=name(4)), *line(9))
    MARKS = Landmarks(name(8), {"main": name(8), "diverged/main/1000": name(12)})

    def test_all_of_it_stays(self):
        assert kept(self.COMMITS, self.MARKS, keep_last=1) == {8, 10, 11, 12}

    @pytest.mark.parametrize("pattern", ["diverged/main/1000", "main/1000", "main/*", "*"])
    def test_unless_named(self, pattern):
        policy = {"also_diverged": (pattern,)}
        assert kept(self.COMMITS, self.MARKS, keep_last=1, **policy) == {8}
        both = {"keep_last": 1, "keep_branch_tips": True}
        assert kept(self.COMMITS, self.MARKS, **both, **policy) == {8, 12}

    def test_another_one_is_not_meant(self):
        policy = {"keep_last": 1, "also_diverged": ("side/*",)}
        assert kept(self.COMMITS, self.MARKS, **policy) == {8, 10, 11, 12}


class TestSense:
    @pytest.mark.parametrize(
        "fields",
        [
            {},
            {"weights_only": True},
            {"keep_last": 0},
            {"keep_every": -5},
            {"keep_best": 3},
            {"keep_last": 1, "metric": "loss"},
            {"keep_last": 1, "maximise": True},
            {"keep_within_s": -1},
        ],
    )
    def test_what_makes_none(self, fields):
        with pytest.raises(UsageError):
            choose(line(2), on_main(2), RetentionPolicy(**fields), NOW_S)

    def test_text(self):
        policy = RetentionPolicy(
            5, 1000, 3, "val loss", True, True, True, 7 * 86_400, True, ("main/*",)
        )
        assert policy.text() == (
            "--keep-last 5 --keep-every 1000 --keep-best 3 --metric 'val loss' --max --keep-tagged "
            "--keep-branch-tips --keep-within 7d --weights-only --also-diverged 'main/*'"
        )

    def test_text_of_a_rule_that_keeps_nothing_old(self):
        assert RetentionPolicy(keep_within_s=0).text() == "--keep-within 0s"

    @given(st.text(min_size=1))
    def test_text_is_one_line_that_a_shell_reads(self, pattern):
        text = RetentionPolicy(keep_last=1, also_diverged=(pattern,)).text()
        assert text.isprintable()
        words = shlex.split(text)
        assert words[:3] == ["--keep-last", "1", "--also-diverged"]
        assert len(words) == 4
        if pattern.isprintable():
            assert words[3] == pattern


@st.composite
def histories(draw):
    count = draw(st.integers(1, 14))
    commits = []
    for number in range(count):
        parents = draw(
            st.lists(st.integers(0, number - 1), max_size=2, unique=True) if number else st.just([])
        )
        commits.append(
            Candidate(
                name(number),
                tuple(map(name, parents)),
                NOW_S - draw(st.integers(0, 50)),
                draw(st.none() | st.integers(0, 6)),
                draw(st.dictionaries(st.sampled_from(["loss"]), st.floats() | st.integers())),
                draw(st.booleans()),
            )
        )
    ids = st.integers(0, count - 1).map(name)
    names = st.sampled_from(["main", "side", "diverged/main/1", "diverged/side/2"])
    marks = Landmarks(
        draw(st.none() | ids),
        draw(st.dictionaries(names, ids)),
        draw(st.dictionaries(st.sampled_from(["v1", "v2"]), ids)),
    )
    return commits[::-1], marks


POLICIES = st.builds(
    RetentionPolicy,
    keep_last=st.none() | st.integers(1, 4),
    keep_every=st.none() | st.integers(1, 4),
    keep_best=st.just(2),
    metric=st.just("loss"),
    maximise=st.booleans(),
    keep_within_s=st.none() | st.integers(0, 50),
    keep_branch_tips=st.booleans(),
    also_diverged=st.sampled_from([(), ("main/*",), ("*",)]),
)


class TestProperties:
    @given(histories(), POLICIES)
    def test_every_commit_is_judged_and_what_is_protected_stays(self, history, policy):
        commits, marks = history
        chosen = choose(commits, marks, policy, NOW_S)
        assert list(chosen) == [commit.id for commit in commits]
        stays = {commit for commit, reasons in chosen.items() if reasons}
        assert find_protected(commits, marks, policy) <= stays
        assert {*marks.tags.values(), *([marks.head] if marks.head else [])} <= stays
        for branch, tip in marks.branches.items():
            assert tip in stays or policy.names_diverged(branch)

    @given(histories(), POLICIES)
    def test_a_rule_more_keeps_no_less(self, history, policy):
        commits, marks = history
        least = RetentionPolicy(keep_tagged=True, also_diverged=policy.also_diverged)
        few = choose(commits, marks, least, NOW_S)
        many = choose(commits, marks, policy, NOW_S)
        assert all(many[commit] for commit, reasons in few.items() if reasons)

    @given(histories(), st.integers(1, 5))
    def test_no_more_than_best_asks_for(self, history, count):
        commits, _ = history
        policy = RetentionPolicy(keep_best=count, metric="loss")
        best = {one for one, why in choose(commits, Landmarks(), policy, NOW_S).items() if why}
        able = [
            one
            for one in commits
            if one.has_content
            and "loss" in one.metrics
            and one.metrics["loss"] == one.metrics["loss"]
        ]
        assert len(best) == min(count, len(able))
        worst = max((one.metrics["loss"] for one in able if one.id in best), default=math.inf)
        assert all(one.metrics["loss"] >= worst for one in able if one.id not in best)


class TestModelFiles:
    @pytest.mark.parametrize(
        "path",
        ["model.safetensors", "ema.pt", "ema_model.pt", "weights.npz", "model_optim_rng.pt",
         "pytorch_model-00001-of-00002.bin", "adapter.bin", "model_state.pt",
         "mp_rank_00_model_states.pt", "optimizer/model.pt"],
    )  # fmt: skip
    def test_model(self, path):
        assert is_model_path(path) is True

    @pytest.mark.parametrize(
        "path",
        ["optimizer.pt", "optim_states.pt", "scheduler.pt", "rng_state_0.pth", "scaler.pt",
         "trainer_state.json", "training_state.pt", "model/optimizer.pt", "optimizer/0.distcp",
         "optimizer_state_dict.pt"],
    )  # fmt: skip
    def test_state(self, path):
        assert is_model_path(path) is False

    @pytest.mark.parametrize("path", ["a.gguf", "state_dict.pt", "data/tokens.npy"])
    def test_neither(self, path):
        assert is_model_path(path) is None

    def test_of_a_state(self):
        names = ["model.safetensors", "opt.safetensors", "extra.safetensors", "other.npz"]
        assert state_paths(names, set(names[:3])) == ("opt.safetensors", "extra.safetensors")
        assert state_paths(["net.safetensors", "rng.safetensors"], {"net.safetensors"}) == (
            "rng.safetensors",
        )
