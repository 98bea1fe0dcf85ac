"""When repack is due again."""

import numpy as np
import pytest

from mvc.upkeep.repacked import AUTO_COMMITS, AUTO_PACKS, is_due, write_note
from mvc.upkeep.sweep import upkeep_lock
from support.kept_repo import commit_step


class TestDue:
    def test_new_repository(self, repo, context):
        assert not is_due(context)
        commit_step(repo, 1)
        assert not is_due(context)

    @pytest.mark.parametrize("fresh", [AUTO_COMMITS - 1, AUTO_COMMITS, AUTO_COMMITS + 7])
    def test_commits_since_the_note(self, repo, context, fresh):
        """However many there are, as long as the note can be seen or not."""
        noted = repo.commit("noted", allow_empty=True).commit
        write_note(context, [noted])
        for number in range(fresh):
            repo.commit(f"{number}", allow_empty=True)
        assert is_due(context) == (fresh >= AUTO_COMMITS)

    def test_many_small_packs(self, repo, context):
        for number in range(AUTO_PACKS):
            assert not is_due(context)
            with upkeep_lock(context):  # else they are joined
                repo.commit_state({"w": np.full(300, number)}, message="m", branch="other")
            write_note(context, [repo.resolve("other")])
        assert is_due(context)
        repo.upkeep.repack()
        assert not is_due(context)
