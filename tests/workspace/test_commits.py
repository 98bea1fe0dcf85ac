"""What all commits have in common: the message, and the account of what is new."""

import numpy as np
import pytest
from safetensors.numpy import save_file

from mvc import Repo, UsageError
from support.models import write_model
from support.opened_repo import message, write
from support.stockgit import git


class TestMessage:
    @pytest.mark.parametrize(
        ("given", "stored"),
        [
            ("one line", "one line\n"),
            ("\n\n  \nsubject\n\n\n\nbody  \n  indented\n\n\n", "subject\n\nbody\n  indented\n"),
            ("subject\r\n\r\nbody\r\n", "subject\n\nbody\n"),
            ("# no comment here", "# no comment here\n"),
            ("grüße 你好 🎉", "grüße 你好 🎉\n"),
        ],
    )
    def test_is_tidied_as_git_does(self, repo, root, given, stored):
        repo.commit(given, allow_empty=True)
        assert message(repo) == stored
        oracle = git(root / ".mvc", "stripspace", data=given.encode())
        assert oracle + "\n" == stored

    @pytest.mark.parametrize("text", ["a\0b", "lone \ud800 surrogate"])
    def test_what_git_cannot_store(self, repo, text):
        with pytest.raises(UsageError, match="message"):
            repo.commit(text, allow_empty=True)

    def test_trailers(self, one, root):
        expected = "first\n\nwith a body\n\nStep: 10\nMetric: loss=0.5\nMeta: run=x\n"
        assert message(one) == expected
        assert git(root / ".mvc", "log", "-1", "--format=%(trailers:key=Step,valueonly)") == "10\n"

    def test_trailers_join_those_of_the_message(self, repo):
        repo.commit("s\n\nReviewed-by: Ann", allow_empty=True, step=3)
        assert message(repo) == "s\n\nReviewed-by: Ann\nStep: 3\n"


class TestResult:
    def tensors(self, **changes):
        rng = np.random.default_rng(0)
        made = {name: rng.standard_normal((64, 32)).astype(np.float32) for name in "uvw"}
        return {**made, **changes}

    def test_numbers(self, repo, root):
        repo.set_config("mvc.chunkbytes", "4096")
        path = root / "m.safetensors"
        save_file(self.tensors(), path)
        write(root, "config.json", "{}")
        first = repo.commit("base", paths=".")
        size_bytes = path.stat().st_size
        assert (first.tensors_total, first.tensors_new) == (3, 3)
        assert (first.files_total, first.files_changed) == (2, 2)
        assert (first.plain_bytes, first.reused_bytes) == (size_bytes + 2, 0)
        assert 0.7 * size_bytes < first.written_bytes < size_bytes
        assert first.seconds > 0

        changed = self.tensors()
        changed["v"][0] += 1  # one of its two chunks
        save_file(changed, path)
        second = repo.commit("v", paths=".")
        assert (second.tensors_total, second.tensors_new) == (3, 1)
        assert (second.files_total, second.files_changed) == (2, 1)
        assert second.plain_bytes == size_bytes + 2
        assert second.reused_bytes == size_bytes - 4096 + 2
        assert 0 < second.written_bytes < 4096 + 256

    def test_the_same_tensors_under_another_path_are_reused(self, repo, root):
        save_file(self.tensors(), root / "m.safetensors")
        repo.commit("base", paths=".")
        save_file(self.tensors(), root / "copy.safetensors")
        result = repo.commit("copy", paths=".")
        assert (result.tensors_total, result.tensors_new) == (6, 0)
        assert result.written_bytes == 0
        assert result.reused_bytes == result.plain_bytes

    def test_a_tensor_that_is_there_twice_is_written_once(self, repo, root):
        twin = self.tensors()["u"]
        save_file({"a": twin, "b": twin.copy()}, root / "m.safetensors")
        result = repo.commit("twins", paths=".")
        assert result.reused_bytes == twin.nbytes
        assert result.written_bytes < twin.nbytes + 512

    def test_new_means_by_name_and_bytes(self, repo, root):
        save_file(self.tensors(), root / "m.safetensors")
        repo.commit("base", paths=".")
        made = self.tensors()
        made["renamed"] = made.pop("u")
        save_file(made, root / "m.safetensors")
        result = repo.commit("renamed", paths=".")
        assert (result.tensors_total, result.tensors_new) == (3, 1)

    def test_a_damaged_parent_is_not_counted_but_followed(self, repo, root):
        write_model(root / "m.safetensors", seed=1)
        blob = repo.commit("base", paths=".") and repo.ls()[0].blob
        path = root / ".mvc/objects" / blob[:2] / blob[2:]
        path.chmod(0o644)
        path.write_bytes(b"damaged")
        write_model(root / "m.safetensors", seed=2)
        opened = Repo.open(root)
        result = opened.commit("healed", paths=".")
        assert opened.head.commit == result.commit
        assert result.tensors_new == result.tensors_total > 0

    def test_amending_counts_against_the_parent(self, repo, root):
        write(root, "a", "a")
        repo.commit("root", paths=".")
        write_model(root / "m.safetensors")
        repo.commit("model", paths=".")
        result = repo.commit("model, better", amend=True)
        assert result.tensors_new == result.tensors_total > 0
        assert result.files_changed == 1
