"""What a repository is, without any of its machinery: three dicts, some commits, some names.

Written from Git's rules (two-way merge, ``git help read-tree``), not from the code: a verb either
changes the dicts or raises ``Refused`` and changes nothing. Contents are (mode, bytes), so what is
equal here must be equal there. Only verbs on single paths and on everything (``""``) are modelled.
"""

from __future__ import annotations

from dataclasses import dataclass, field

PLAIN, PROGRAM, LINK = 0o100644, 0o100755, 0o120000

Content = tuple[int, bytes]
Tree = dict[str, Content]


class Refused(Exception):  # noqa: N818  an answer of the model, not a failure
    """The verb has to fail, with one of these classes of ``mvc``."""

    def __init__(self, *kinds):
        super().__init__(kinds)
        self.kinds = kinds or ("ConflictError",)


@dataclass
class Commit:
    """A snapshot; ``parents`` are positions in the list of commits."""

    tree: Tree
    parents: tuple[int, ...]
    id: str = ""


@dataclass
class PlainRepo:
    """HEAD, index and worktree as dicts; commits and names by position."""

    branch: str | None = "main"
    detached: int | None = None
    index: Tree = field(default_factory=dict)
    work: Tree = field(default_factory=dict)
    commits: list[Commit] = field(default_factory=list)
    branches: dict[str, int] = field(default_factory=dict)
    tags: dict[str, int] = field(default_factory=dict)

    @property
    def at(self):
        return self.detached if self.branch is None else self.branches.get(self.branch)

    @property
    def head(self) -> Tree:
        return {} if self.at is None else self.commits[self.at].tree

    # What is where.

    def status(self):
        """Return path → (staged, worktree, old path)."""
        gone = {path: self.head[path] for path in sorted(self.head) if path not in self.index}
        found = {}
        for path in sorted(self.index, key=str.encode):
            if path not in self.head:
                old = next((name for name in gone if gone[name] == self.index[path]), None)
                gone.pop(old, None)
                found[path] = ("added" if old is None else "renamed", old)
            elif self.head[path] != self.index[path]:
                found[path] = ("modified", None)
        found.update((path, ("removed", None)) for path in gone)
        rows = {path: (staged, "unmodified", old) for path, (staged, old) in found.items()}
        for path, content in self.index.items():
            now = self.work.get(path)
            if now != content:
                staged, _, old = rows.get(path, ("unmodified", "", None))
                rows[path] = (staged, "removed" if now is None else "modified", old)
        rows.update(
            (path, ("unmodified", "untracked", None))
            for path in self.work
            if path not in self.index
        )
        return rows

    def is_folder(self, path):
        return any(name.startswith(path + "/") for name in self.work)

    def _place(self, changes):
        """Put entries into the index; files and folders of the same name give way."""
        for path, content in changes.items():
            if content is None:
                self.index.pop(path, None)
        placed = {path: content for path, content in changes.items() if content is not None}
        for path in list(self.index):
            if path not in placed and any(clash(path, new) for new in placed):
                del self.index[path]
        self.index.update(placed)

    def _blocked(self, write, remove):
        """Whether files that stay are in the way of those to write."""
        stays = set(self.work) - set(remove)
        return any(clash(path, name) for path in write for name in stays)

    # The user's own hands.

    def put(self, path, content):
        for name in [name for name in self.work if clash(name, path)]:
            del self.work[name]
        self.work[path] = content

    # Verbs.

    def add(self, path, *, tracked_only=False):
        known = [name for name in self.index if below(path, name)]
        files = [] if tracked_only else [name for name in self.work if below(path, name)]
        if path and not known and not files:
            # Nothing there, an empty folder, or a name below a file.
            raise Refused("NotFoundError", "UsageError")
        self._place({name: self.work.get(name) for name in {*known, *files}})

    def commit(self, *, everything=False, amend=False):
        if amend and self.at is None:
            raise Refused("UsageError")
        last = self.commits[self.at] if amend else None
        parents = last.parents if last else () if self.at is None else (self.at,)
        base = self.commits[parents[0]].tree if parents else {}
        before = dict(self.index)
        if everything:
            self.add("", tracked_only=True)
        if self.index == base and not (last and last.tree == base):
            self.index = before
            raise Refused
        self.commits.append(Commit(dict(self.index), parents))
        self._move(len(self.commits) - 1)

    def _move(self, commit):
        if self.branch is None:
            self.detached = commit
        else:
            self.branches[self.branch] = commit

    def create_branch(self, name, start, *, force=False):
        if name in self.branches and (not force or name == self.branch):
            raise Refused
        self.branches[name] = start

    def delete_branch(self, name, *, force=False):
        if name not in self.branches:
            raise Refused("NotFoundError")
        if name == self.branch or not (force or self._is_merged(self.branches[name])):
            raise Refused
        del self.branches[name]

    def _is_merged(self, commit):
        todo = [] if self.at is None else [self.at]
        while todo:
            now = todo.pop()
            if now == commit:
                return True
            todo.extend(self.commits[now].parents)
        return False

    def tag(self, name, commit, *, force=False):
        if name in self.tags and not force:
            raise Refused
        self.tags[name] = commit

    def switch(self, name, *, force=False):
        if name not in self.branches:
            if name == self.branch:
                return
            raise Refused("NotFoundError")
        self._go(self.commits[self.branches[name]].tree, force=force)
        self.branch, self.detached = name, None

    def switch_new(self, name, start=None, *, force=False):
        if name in self.branches:
            raise Refused
        if start is None and self.at is None:
            self.branch = name
            return
        if start is not None and start != self.at:
            self._go(self.commits[start].tree, force=force)
        self.branches[name] = self.at if start is None else start
        self.branch, self.detached = name, None

    def checkout(self, commit, *, force=False):
        self._go(self.commits[commit].tree, force=force)
        self.branch, self.detached = None, commit

    def _go(self, target, *, force):
        """Git's two-way merge of HEAD → target into index and worktree."""
        if force:
            self._go_by_force(target)
            return
        write, remove, entries = {}, [], {}
        for path in {*self.head, *target, *self.index}:
            old, wanted = self.head.get(path), target.get(path)
            staged, lies = self.index.get(path), self.work.get(path)
            if wanted in (old, staged):
                continue
            if staged != old or lies not in (None, staged, wanted):
                raise Refused
            if wanted is None:
                # A file that was deleted or replaced by a folder is gone already.
                entries[path] = None
                if lies is not None:
                    remove.append(path)
            else:
                entries[path] = wanted
                if lies != wanted:
                    write[path] = wanted
        after = {**self.index, **entries}
        kept = {path for path, content in after.items() if content is not None}
        if any(clash(one, other) for one in kept for other in entries if entries[other]):
            raise Refused
        if self._blocked(write, remove):
            raise Refused
        self._apply(write, remove)
        self._place(entries)

    def _go_by_force(self, target):
        remove = [path for path in self.index if path not in target and path in self.work]
        write = {path: content for path, content in target.items() if self._is_other(path, content)}
        if self._blocked(write, remove):
            raise Refused
        self._apply(write, remove)
        self.index = dict(target)

    def _is_other(self, path, content):
        return self.index.get(path) != content or self.work.get(path) != content

    def _apply(self, write, remove):
        for path in remove:
            del self.work[path]
        self.work.update(write)

    def reset(self, commit, mode):
        tree = self.head if commit is None else self.commits[commit].tree
        if mode == "hard":
            self._go_by_force(tree)
        elif mode == "mixed":
            self.index = dict(tree)
        if commit is not None:
            self._move(commit)

    def restore(self, path, *, source=None, staged=False, worktree=True, overlay=False):
        """``source`` is a position; None is the index, or HEAD where ``staged``."""
        if source is not None:
            tree = self.commits[source].tree
        else:
            tree = dict(self.head if staged else self.index)
        lacking = set() if overlay else {name for name in self.index if name not in tree}
        chosen = {name for name in {*tree, *lacking} if below(path, name)}
        if path and not chosen:
            raise Refused("NotFoundError")
        write, remove = {}, []
        if worktree:
            write = {
                name: tree[name]
                for name in chosen
                if name in tree and self.work.get(name) != tree[name]
            }
            remove = [name for name in chosen & lacking if name in self.work]
            if any(self.work[name] != self.index[name] for name in remove):
                raise Refused
            if self._blocked(write, remove):
                raise Refused
        self._apply(write, remove)
        if staged:
            self._place({name: tree.get(name) for name in chosen})

    def remove(self, path, *, cached=False, force=False, recursive=False):
        chosen = [name for name in self.index if below(path, name)]
        if path and not chosen:
            raise Refused("NotFoundError")
        if path not in self.index and not recursive:
            raise Refused("UsageError")
        for name in chosen:
            staged = self.index[name] != self.head.get(name)
            changed = name in self.work and self.work[name] != self.index[name]
            if not force and ((staged and changed) or (not cached and (staged or changed))):
                raise Refused
        for name in chosen:
            del self.index[name]
            if not cached:
                self.work.pop(name, None)

    def move(self, source, target, *, force=False):
        """Rename a file or folder to a name, or into the folder of that name."""
        tracked = [name for name in self.index if below(source, name)]
        if not tracked:
            raise Refused("NotFoundError")
        place = target
        if self.is_folder(target):
            place = f"{target}/{source.rpartition('/')[2]}"
        if below(source, place):
            raise Refused("UsageError")
        if any(name not in self.work for name in tracked):
            raise Refused("NotFoundError")
        blocked = any(place.startswith(name + "/") for name in self.work) or self.is_folder(place)
        taken = place in self.work or place in self.index
        if blocked or (taken and not force):
            raise Refused
        if place in self.work and source not in self.index:
            raise Refused
        self.work.pop(place, None)
        for name in [name for name in self.work if below(source, name)]:
            self.work[place + name.removeprefix(source)] = self.work.pop(name)
        entries = {place + name.removeprefix(source): self.index.pop(name) for name in tracked}
        self._place(entries)


def below(name, path):
    """Whether a path is what a name says, or lies in the folder of that name."""
    return name in ("", path) or path.startswith(name + "/")


def clash(one, other):
    """Whether one path needs for a folder what is a file to the other."""
    return one.startswith(other + "/") or other.startswith(one + "/")
