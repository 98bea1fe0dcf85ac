"""What a remote has for sure: looked up there, now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc.chunkstore.listing import PACKS, index_key, pack_key
from mvc.errors import UsageError
from mvc.remotes.promised import remember_packs
from mvc.remotes.remote import Remote, open_remote
from mvc.remotes.settings import list_remotes
from mvc.remotes.tracking import find_remote

if TYPE_CHECKING:
    from mvc.chunkstore.copies import Ids, StoredCopies
    from mvc.ids import GitId, PackId
    from mvc.workspace.context import Context


@dataclass(frozen=True, slots=True)
class Pushed:
    """What was found on a remote."""

    remote: Remote
    commits: frozenset[GitId]  # those that its refs and channels lead to, as far as they are here
    copies: StoredCopies  # the chunks of its packs that are there, whole and with their index
    _packs: Mapping[PackId, int]

    def find_lacking(self, ids: Ids) -> Ids:
        """Return those of some chunks that the remote cannot give."""
        lacking: Ids = ids[~self.copies.decodes(ids)]
        return lacking

    def let_promise(self, context: Context) -> None:
        """Let reads take from the remote what is not here, from now on, durably."""
        name = self.remote.settings.name
        context.history.config.set(f"remote.{name}.promisor", "true")
        context.forget_settings()
        remember_packs(Remote(context, list_remotes(context)[str(name)]), self._packs)


def look_up(context: Context, name: str | None) -> Pushed:
    """Look up what a remote has; nothing that is remembered of it counts.

    Raises:
        UsageError: it is not one of those that are configured.
        NotFoundError: there is none of that name, or nothing was pushed to it.
        FormatError: it is not a sound remote.
    """
    there = open_remote(context, name or find_remote(context, to_push=True))
    if there.settings.name is None:
        raise UsageError(
            f"{there.settings.url} has no name here, so that reads could find it",
            hint='"mvc remote add NAME URL" names it',
        )
    root = there.read_root(hint='"mvc push" does it')
    sizes = {info.key: info.size_bytes for info in there.storage.list(PACKS)}
    packs = {
        pack: size_bytes
        for pack, size_bytes in there.roots.read_listing(root).packs.items()
        if sizes.get(pack_key(pack)) == size_bytes and index_key(pack) in sizes
    }
    history = context.history
    found = (history.find_commit(tip) for tip in root.tips() if history.has_object(tip))
    tips = dict.fromkeys(one for one in found if one is not None)
    commits = frozenset(info.id for info in history.walk(list(tips)))
    return Pushed(there, commits, there.packs.copies(packs), packs)
