"""What a repository does for the training runs that write to it, beyond what everybody asks of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from mvc import operations, runs, workspace
from mvc.lazy import verb
from mvc.repo.namespaces import Namespace

if TYPE_CHECKING:
    from mvc.chunkstore.nearby import Nearby
    from mvc.operations import catch_up, commit_shares, commit_state, load_state, send_share  # noqa: F401
    from mvc.repo.opening import OpenRepo
    from mvc.runs import feed  # noqa: F401
    from mvc.workspace import held, whereabouts  # noqa: F401


class RunStore(Namespace):
    """A repository as the processes of a training run use it: ``RunStore(repo).commit_image(...)``."""

    def __init__(self, repo: OpenRepo) -> None:
        super().__init__(repo._context)  # noqa: SLF001  the same package

    # states that lie in memory as the files they would be
    commit_image = verb(lambda: operations.commit_state.commit_image)
    outline_state = verb(lambda: operations.load_state.outline_state)
    find_held = verb(lambda: workspace.held.find_held)

    # one commit of many ranks
    open_share = verb(lambda: operations.commit_shares.open_share)
    store_share = verb(lambda: operations.commit_shares.store_share)
    commit_shares = verb(lambda: operations.commit_shares.commit_shares)

    # ranks whose machines have a repository each
    leave_mark = verb(lambda: workspace.whereabouts.leave_mark)
    look_for_mark = verb(lambda: operations.send_share.look_for_mark)
    bring_commit = verb(lambda: operations.send_share.bring_commit)
    catch_up = verb(lambda: operations.catch_up.catch_up)

    # what `mvc watch` follows
    open_feed = verb(lambda: runs.feed.open_feed)

    @contextlib.contextmanager
    def reading_nearby(self, *nearby: Nearby) -> Iterator[None]:
        """Meanwhile, ask for chunks in the memory of other processes before they are read from the store.

        They are hashed like all others; those that are wrong come from the store. Several places are asked
        in turn, those of an inner block first.
        """
        places = self._context.nearby
        places[:0] = nearby
        try:
            yield
        finally:
            del places[: len(nearby)]
