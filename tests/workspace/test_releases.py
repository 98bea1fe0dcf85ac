import subprocess

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.errors import FormatError
from mvc.history.notes import read_notes, write_notes
from mvc.ids import GitId
from mvc.workspace.releases import (
    RELEASED_REF,
    Release,
    add_releases,
    drop_releases,
    encode_release,
    find_release,
    parse_releases,
    read_releases,
    release_notes,
)
from support.releases import released_commits

COMMIT = GitId("c" * 40)
BLOB = GitId("b" * 40)


@pytest.fixture
def commits(repo):
    return [
        repo.commit_state(
            {"model": {"w": np.full(9, step)}}, message=f"step {step}", step=step
        ).commit
        for step in range(3)
    ]


def record(commit, *paths, policy="--keep-last 1", time_s=1000):
    return Release(commit, paths or ("model.safetensors",), policy, time_s)


class TestText:
    def test_as_it_stands_in_the_note(self):
        release = Release(
            COMMIT, ("a.pt", 'b "x"\n.pt'), "--keep-last 5", 1_795_190_400, (BLOB, BLOB)
        )
        assert encode_release(release) + "\n" == (
            "Released: 2026-11-20T16:00:00Z\n"
            "Policy: --keep-last 5\n"
            f'File: "a.pt" {BLOB}\n'
            f'File: "b \\"x\\"\\n.pt" {BLOB}\n'
        )

    RELEASES = st.lists(
        st.builds(
            Release,
            st.just(COMMIT),
            st.lists(st.text(min_size=1), min_size=1, unique=True).map(tuple),
            st.text("abc -'*5", max_size=20).map(lambda text: " ".join(text.split())),
            st.integers(0, 4_000_000_000),
        )
    )

    @given(RELEASES)
    def test_reads_back(self, releases):
        assert parse_releases(COMMIT, "\n\n".join(map(encode_release, releases))) == tuple(releases)

    @given(st.text())
    def test_garbage_is_no_record_or_a_format_error(self, text):
        for candidate in (
            text,
            f"Released: {text}",
            f"Released: 2026-01-01T00:00:00Z\nFile: {text}",
        ):
            try:
                found = parse_releases(COMMIT, candidate)
            except FormatError:
                continue
            assert all(release.paths for release in found)

    @pytest.mark.parametrize(
        "text",
        [
            'Released: today\nFile: "a"',
            'Released: 2026-13-01T00:00:00Z\nFile: "a"',
            "Released: 2026-01-01T00:00:00Z\nFile: a",
            'Released: 2026-01-01T00:00:00Z\nFile: ""',
            'Released: 2026-01-01T00:00:00Z\nFile: "\\x"',
        ],
    )
    def test_malformed(self, text):
        with pytest.raises(FormatError):
            parse_releases(COMMIT, text)


class TestRecords:
    def test_none(self, context, commits):
        assert read_releases(context) == {}
        assert released_commits(context) == set()
        assert find_release(context, commits[0]) is None
        drop_releases(context, {commits[0]: ["model.safetensors"]})
        assert context.history.find_ref(RELEASED_REF) is None

    def test_added_and_dropped(self, context, commits):
        add_releases(context, [record(commits[0]), record(commits[1])])
        assert released_commits(context) == {commits[0], commits[1]}
        (found,) = read_releases(context)[commits[0]]
        blob = context.history.read_tree(commits[0])["model.safetensors"].blob
        assert found == Release(commits[0], ("model.safetensors",), "--keep-last 1", 1000, (blob,))
        drop_releases(context, {commits[0]: ["model.safetensors"], commits[2]: ["x"]})
        assert released_commits(context) == {commits[1]}
        assert set(read_releases(context)) == {commits[1]}

    def test_several_acts(self, context, commits):
        add_releases(context, [record(commits[0], policy="--keep-last 2 --weights-only")])
        assert find_release(context, commits[0]).keeps_model
        add_releases(context, [record(commits[0], "state.json", time_s=5000)])
        joined = find_release(context, commits[0])
        assert (joined.paths, joined.policy, joined.time_s, joined.keeps_model) == (
            ("model.safetensors", "state.json"), "--keep-last 1", 5000, False,
        )  # fmt: skip
        drop_releases(context, {commits[0]: ["state.json"]})
        assert find_release(context, commits[0]).paths == ("model.safetensors",)

    def test_what_somebody_else_wrote_stays(self, context, commits):
        text = "a note by hand\n\nReleased: never\nFile: x\n"
        notes = {commits[0]: text.encode()}
        write_notes(context.history, RELEASED_REF, notes, message="x", stamp=context.stamp())
        assert read_releases(context) == {}
        assert [commit for commit, _ in release_notes(context).check()] == [commits[0]]
        assert find_release(context, commits[0]) is None
        add_releases(context, [record(commits[0])])
        drop_releases(context, {commits[0]: ["model.safetensors"]})
        blob = read_notes(context.history, RELEASED_REF)[commits[0]]
        assert context.history.read_blob(blob).decode() == text

    def test_hostile_notes(self, context, commits):
        notes = {commits[0]: b"\xff\xfe", commits[1]: b"", commits[2]: b"Released: \n" * 1000}
        write_notes(context.history, RELEASED_REF, notes, message="x", stamp=context.stamp())
        assert read_releases(context) == {}
        assert {commit for commit, _ in release_notes(context).check()} == {commits[0], commits[2]}

    def test_another_process_is_seen(self, repo, context, commits):
        other = type(repo).open(repo.worktree)._context
        assert read_releases(other) == {}
        add_releases(context, [record(commits[0])])
        assert set(read_releases(other)) == released_commits(other) == {commits[0]}

    def test_stock_git_shows_them(self, repo, context, commits):
        add_releases(context, [record(commits[0])])
        shown = subprocess.run(
            ["git", f"--git-dir={repo.git_dir}", "log", "--notes=released", commits[0]],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        assert "Policy: --keep-last 1" in shown
        assert 'File: "model.safetensors"' in shown
