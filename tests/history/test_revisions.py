import contextlib
import hashlib
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.errors import FormatError, NotFoundError
from mvc.history.git import GitHistory
from support.stockgit import (
    START_S,
    at,
    build_tangle,
    commit_on_head,
    create_ref,
    git_or_none,
    run_git,
    write_commit,
)


def ask_git(git_dir, revisions):
    """Return revision → id, or None where Git finds none (it dies of some, and is asked again)."""
    answers, pending = {}, list(dict.fromkeys(revisions))
    while pending:
        lines = "".join(f"{revision}\n" for revision in pending).encode()
        shown = run_git(git_dir, "cat-file", "--batch-check", data=lines, check=False)
        told = shown.stdout.decode().splitlines()
        for revision, line in zip(pending, told, strict=False):
            name, *rest = line.split(" ")
            answers[revision] = name if len(rest) == 2 else None
        if len(told) < len(pending):
            answers[pending[len(told)]] = None
        pending = pending[len(told) + 1 :]
    return answers


def ask_us(history, revision):
    try:
        return history.resolve(revision)
    except NotFoundError:
        return None


@pytest.fixture(scope="module")
def tangle(tmp_path_factory):
    history = GitHistory.init(tmp_path_factory.mktemp("tangle") / ".mvc")
    build_tangle(history, seed=7, moves=70)
    run_git(history.git_dir, "update-ref", "refs/remotes/origin/main", "HEAD~3")
    run_git(history.git_dir, "symbolic-ref", "refs/remotes/origin/HEAD", "refs/remotes/origin/main")
    # a tag and a branch of one name, a branch that looks like an id, one with an at sign
    run_git(history.git_dir, "update-ref", "refs/tags/both", "HEAD~1")
    run_git(history.git_dir, "update-ref", "refs/heads/both", "HEAD~2")
    run_git(history.git_dir, "update-ref", "refs/heads/beefcafe", "HEAD~4")
    run_git(history.git_dir, "update-ref", "refs/heads/user@host", "HEAD~5")
    run_git(history.git_dir, "update-ref", "refs/heads/at@12", "HEAD~6")
    run_git(history.git_dir, "tag", "-a", "-m", "tag of a tag", "outer", "both")
    run_git(history.git_dir, "tag", "-a", "-m", "tag of a tag", "outermost", "outer")
    run_git(history.git_dir, "update-ref", "refs/seen/both", "HEAD~7")
    for key, value in (
        ("remote.origin.url", "/nowhere"),
        ("remote.origin.fetch", "+refs/heads/m*:refs/remotes/origin/m*"),
        ("remote.origin.fetch", "refs/heads/both:refs/seen/both"),
        ("branch.main.remote", "origin"),
        ("branch.main.merge", "refs/heads/main"),
        ("branch.both.remote", "origin"),
        ("branch.both.merge", "refs/heads/both"),
        ("branch.at@12.remote", "origin"),
        ("branch.at@12.merge", "refs/heads/moon"),
        ("branch.user@host.remote", "nobody"),
        ("branch.user@host.merge", "refs/heads/main"),
    ):
        run_git(history.git_dir, "config", "--add", key, value)
    run_git(history.git_dir, "checkout", "-q", "--detach", "HEAD~2", "--", check=False)
    return history


def bases(history):
    names = ["HEAD", "@", "main", "both", "origin", "origin/main", "beefcafe", "user@host", "at@12"]
    names += ["outer", "outermost", "tags/both", "heads/both", "refs/heads/main", "@{-1}", "@{-2}"]
    names += ["remotes/origin", "refs/remotes/origin/HEAD", "nothing", "@{-99}", "main@{99}"]
    names += [f"HEAD@{{{n}}}" for n in (0, 1, 5)] + [f"main@{{{n}}}" for n in (0, 1, 3)]
    names += ["@{0}", "@{1}", "@{2}", "@{u}", "main@{u}", "main@{UpStream}", "main@{push}"]
    names += ["both@{u}", "at@12@{u}", "user@host@{u}", "beefcafe@{upstream}", "nothing@{u}"]
    names += [ref.removeprefix("refs/tags/") for ref in history.list_refs("refs/tags/")]
    names += [ref.removeprefix("refs/heads/") for ref in history.list_refs("refs/heads/topic/")]
    head = history.resolve("HEAD")
    names += [head, head.upper(), head[:8], head[:7].upper(), "0" * 40, "abc"]
    return names


def compare(history, revisions):
    """Return revision → (Git's answer, ours) where they differ."""
    # Where Git names a tag object, mvc goes on to the commit: ask Git for that.
    asked = {r: r if "@{" in r or r.endswith("}") else r + "^{}" for r in revisions}
    theirs = ask_git(history.git_dir, asked.values())
    found = {revision: (theirs[ask], ask_us(history, revision)) for revision, ask in asked.items()}
    # Git takes HEAD@{0}^9^{commit}, which does not exist, for HEAD@{date}, the date "0}^9^{commit".
    odd = {r for r, (_, ours) in found.items() if "@{" in r and r.count("}") > 1 and not ours}
    assert sum(ours is not None for _, ours in found.values()) > len(found) // 3
    return {r: pair for r, pair in found.items() if pair[0] != pair[1] and r not in odd}


def test_every_base_and_suffix_means_what_it_means_to_git(tangle):
    suffixes = ["", "~", "^", "~1", "~2", "~3", "^1", "^2", "^3", "^0", "~0", "^{}", "^{commit}"]
    suffixes += ["^{tree}", "^^", "~~", "^2~1", "~2^2", "^{commit}~1", "~1^{tree}", "~500", "^0^0"]
    assert compare(tangle, [base + suffix for base in bases(tangle) for suffix in suffixes]) == {}


def test_random_chains_mean_what_they_mean_to_git(tangle):
    chooser = random.Random(3)
    steps = ["~", "^", "^2", "~2", "^{}", "^{commit}", "^0", "~1"]
    names = bases(tangle)
    chains = ["".join(chooser.choices(steps, k=chooser.randint(1, 5))) for _ in range(400)]
    assert compare(tangle, [chooser.choice(names) + chain for chain in chains]) == {}


def test_logs_reach_as_far_back_as_git_s(tangle):
    for ref in ("HEAD", "main"):
        full = "HEAD" if ref == "HEAD" else f"refs/heads/{ref}"
        count = len(tangle.read_reflog(full))
        for number in (0, 1, count - 1, count, count + 1):
            revision = f"{ref}@{{{number}}}"
            expected = git_or_none(tangle.git_dir, "rev-parse", "--verify", "-q", revision)
            assert ask_us(tangle, revision) == (expected or None), revision


def test_short_ids_that_fit_several_objects_are_listed(history):
    by_prefix = {}
    commits = []
    for number in range(1200):
        commit = write_commit(history, [], f"c{number}", time_s=number, files={})
        commits.append(commit)
        by_prefix.setdefault(commit[:4], []).append(commit)
    history.update_head(commits[0], expected=None, message="", stamp=at())
    prefix, both = next((p, found) for p, found in by_prefix.items() if len(found) == 2)
    with pytest.raises(NotFoundError, match=f"{prefix}' is ambiguous") as caught:
        history.resolve(prefix)
    assert all(one in caught.value.message for one in both)
    assert "more digits" in caught.value.hint
    for one in both:
        assert history.resolve(one[:12]) == one
    alone = next(prefix for prefix, found in by_prefix.items() if len(found) == 1)
    assert history.resolve(alone) == by_prefix[alone][0]
    run_git(history.git_dir, "repack", "-a", "-d", "-q")
    for commit in commits:  # unreachable ones stay loose, so both places are searched
        if commit[:4] == alone:
            assert history.resolve(alone) == commit


def test_a_blob_does_not_make_the_short_id_of_a_commit_ambiguous(history):
    commit = commit_on_head(history, "c")
    data = next(
        text for text in map(str.encode, map(str, range(10**6))) if blob_id(text)[:4] == commit[:4]
    )
    assert history.write_blob(data)[:4] == commit[:4]
    assert history.resolve(commit[:4]) == commit
    second = next(
        text
        for text in map(b"x%d".__mod__, range(10**6))
        if blob_id(text)[:4] == blob_id(b"lonely")[:4]
    )
    history.write_blob(second)
    history.write_blob(b"lonely")
    with pytest.raises(NotFoundError, match="ambiguous"):
        history.resolve(blob_id(b"lonely")[:4])


def blob_id(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def test_a_training_step_names_the_nearest_commit_that_has_it(history):
    steps = {}
    for number in range(5):
        for step in (0, 100, 200):
            text = f"epoch {number}\n\nStep: {step}\nMetric: loss=1"
            steps[number, step] = commit_on_head(history, text, time_s=START_S + number)
    create_ref(history, "refs/heads/side", steps[2, 200])
    create_ref(history, "refs/heads/run@7", steps[0, 0])
    assert history.resolve("main@100") == steps[4, 100]
    assert history.resolve("side@100") == steps[2, 100]
    assert history.resolve("HEAD@0") == history.resolve("@0") == steps[4, 0]
    assert history.resolve("main@100~1") == steps[4, 0]
    assert history.resolve("main~3@200") == steps[3, 200]
    assert history.resolve("main@0^@0") == steps[3, 0]
    assert history.resolve(steps[1, 200][:8] + "@100") == steps[1, 100]
    assert history.resolve("run@7") == steps[0, 0]
    assert history.resolve("run@7@0") == steps[0, 0]
    with pytest.raises(NotFoundError, match="no commit of step 150") as caught:
        history.resolve("main@150")
    assert caught.value.hint == "the nearest step there is 100"


def test_a_step_follows_first_parents_only(history):
    base = commit_on_head(history, "base\n\nStep: 1")
    side = write_commit(history, [base], "s", time_s=START_S + 1, message="side\n\nStep: 2")
    merge = write_commit(history, [base, side], "m", time_s=START_S + 2)
    history.update_head(merge, expected=base, message="merge", stamp=at())
    assert history.resolve("HEAD@1") == base
    with pytest.raises(NotFoundError):
        history.resolve("HEAD@2")
    assert history.resolve("HEAD^2@2") == side


def test_steps_of_any_shape_are_no_crash(history):
    for value in ("", "-5", "abc", "\uff19", "9" * 400, "1.5", "7"):
        commit_on_head(history, f"s\n\nStep: {value}")
    assert history.resolve("@7") == history.resolve("HEAD")
    for revision in ("@8", "@999999999999999999", "@" + "9" * 50):
        with pytest.raises(NotFoundError):
            history.resolve(revision)


def test_a_mistake_is_answered_with_close_names(history):
    head = commit_on_head(history, "one")
    history.update_ref("refs/heads/fine-tune", head, expected=None, message="", stamp=at())
    history.create_tag("baseline", head, message=None, stamp=at())
    for revision, close in (
        ("fine-tume", "fine-tune"),
        ("basline~1", "baseline"),
        ("mian", "main"),
    ):
        with pytest.raises(NotFoundError, match="does not exist") as caught:
            history.resolve(revision)
        assert repr(close) in caught.value.hint
    with pytest.raises(NotFoundError) as caught:
        history.resolve("abc")
    assert "4 digits" in caught.value.hint


def test_short_names_become_full_names(tangle):
    assert tangle.resolve_ref_name("main") == "refs/heads/main"
    assert tangle.resolve_ref_name("both") == "refs/tags/both"
    assert tangle.resolve_ref_name("heads/both") == "refs/heads/both"
    assert tangle.resolve_ref_name("origin") == "refs/remotes/origin/HEAD"
    assert tangle.resolve_ref_name("@") == tangle.resolve_ref_name("HEAD") == "HEAD"
    assert tangle.resolve_ref_name("nothing") is None
    assert tangle.resolve_ref_name("../x") is None


def test_a_log_that_leads_round_in_a_circle_is_no_trap(history):
    commit_on_head(history, "one")
    log = history.git_dir / "logs" / "HEAD"
    line = log.read_text().splitlines()[0].partition("\t")[0]
    log.write_text(f"{line}\tcheckout: moving from @{{-1}} to x\n")
    with pytest.raises(NotFoundError):
        history.resolve("@{-1}")


_PIECES = st.sampled_from(
    ["HEAD", "@", "main", "~", "^", "{", "}", "1", "-1", "/", ".", ":", "^{tree}", "@{0}", "abcd",
     "\\", " ", "\n", "\0", "é", "\udc80", "refs/", "..", "~99999", "@{-1}", "@5", "*"]
)  # fmt: skip


@given(st.lists(_PIECES, max_size=8).map("".join))
def test_any_text_is_found_or_not_found_and_nothing_else(tangle, text):
    with contextlib.suppress(NotFoundError, FormatError):
        tangle.resolve(text)
        tangle.resolve_ref_name(text)


@pytest.mark.parametrize(
    "text", ["^" * 5000, "HEAD" + "~" * 4000, "HEAD" + "^0" * 1500, "@5" * 900]
)
def test_long_chains_end(tangle, text):
    with contextlib.suppress(NotFoundError):
        tangle.resolve(text)
