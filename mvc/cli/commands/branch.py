"""List, create, rename or delete branches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mvc.cli.options import QUIET_JSON, check_alone, choose_one, name_and_start
from mvc.cli.output import Output, Shown, paged, pick, printable, write_json
from mvc.cli.parameters import CommandUsageError, arguments, flag, string
from mvc.cli.render.remotes import upstream_fields, upstream_text
from mvc.cli.render.text import cell_width, pad, short_id
from mvc.cli.session import open_repo
from mvc.errors import ConflictError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mvc.operations.branch import RefInfo
    from mvc.repo import Repo


def branch(
    names: list[str] = arguments("[NAME [START]]"),
    delete: bool = flag("-d, --delete", "Delete branches that are merged into HEAD."),
    delete_any: bool = flag("-D", "Delete branches even if that loses commits."),
    move: bool = flag("-m, --move", "Rename: [OLD] NEW, with the reflog."),
    force: bool = flag("-f, --force", "Move or overwrite an existing branch."),
    everything: bool = flag("-a, --all", "List remote branches too."),
    remotes: bool = flag("-r, --remotes", "List remote branches only."),
    upstream: str | None = string(
        "-u, --set-upstream-to REF", "Follow this one, such as origin/main."
    ),
    unset: bool = flag("--unset-upstream", "Follow none any more."),
    show_current: bool = flag("--show-current", "Print only the current branch."),
    contains: bool = flag("--contains", "List branches that have commit [REV], or HEAD."),
    merged: bool = flag("--merged", "List branches that are in [REV], or HEAD, as a whole."),
    no_merged: bool = flag("--no-merged", "List branches that are not in [REV], or HEAD."),
    verbose: bool = flag("-v, --verbose", "List with commit, subject and what it follows."),
    shown: Shown = QUIET_JSON,
) -> None:
    """List, create, rename or delete branches; one made from origin/NAME follows it."""
    check_alone([("-a", everything), ("-r", remotes)])
    relations = {"contains": contains, "merged": merged, "no-merged": no_merged}
    relation = choose_one(relations, "")
    changing = [("-d", delete), ("-D", delete_any), ("-m", move), ("--show-current", show_current)]
    following = [("--set-upstream-to", upstream is not None), ("--unset-upstream", unset)]
    check_alone([*changing, *following, (f"--{relation}", relation)])
    listing = _Listing(relation, verbose, "remotes" if remotes else "all" if everything else "")
    if delete or delete_any:
        if not names:
            raise CommandUsageError("name a branch")
        repo, forced = open_repo(), delete_any or force
        deleted = [(name, repo.branches.delete(name, force=forced)) for name in names]
        show_deleted("Deleted branch {} (was {}).", deleted, shown)
    elif move:
        _rename_branch(names, shown, force=force)
    elif show_current:
        current = open_repo().head.branch
        lines = [] if current is None else [printable(current)]
        shown.aloud().answer({"branch": current}, Output.lines, lines)
    elif upstream is not None or unset:
        _follow(names, upstream, shown)
    elif names and not (relation or listing.remotes):
        name, start = name_and_start(names)
        commit = open_repo().branches.create(name, start, force=force)
        if shown.as_json:
            write_json({"created": {"name": name, "commit": commit}})
    else:
        _list_branches(listing, names, shown)


def _follow(names: Sequence[str], upstream: str | None, shown: Shown) -> None:
    if len(names) > 1:
        raise CommandUsageError(f"unexpected argument {names[1]!r}")
    repo = open_repo()
    name = names[0] if names else repo.head.branch
    if name is None:
        raise ConflictError("HEAD is not on a branch", hint="name the branch")
    if upstream is not None and not any(
        one.name == upstream for one in repo.branches.list(remote=True)
    ):
        raise NotFoundError(
            f"no branch {upstream!r} of a remote is known", hint='"mvc branch -r" lists them'
        )
    repo.remotes.set_upstream(name, upstream)
    if shown.as_json:
        write_json({"branch": name, "upstream": upstream_fields(repo.remotes.upstream(name))})


def show_deleted(form: str, deleted: Sequence[tuple[str, str]], shown: Shown) -> None:
    """Show which names were deleted, and where they pointed."""
    fields = {"deleted": [{"name": name, "commit": commit} for name, commit in deleted]}
    lines = (form.format(printable(name), short_id(commit)) for name, commit in deleted)
    shown.answer(fields, Output.lines, lines)


def _rename_branch(names: Sequence[str], shown: Shown, *, force: bool) -> None:
    if len(names) not in (1, 2):
        raise CommandUsageError("-m takes [OLD] NEW")
    repo = open_repo()
    current = repo.head.branch
    if len(names) == 1 and current is None:
        raise ConflictError("HEAD is not on a branch", hint='name both: "mvc branch -m OLD NEW"')
    old = names[0] if len(names) == 2 else current or ""  # noqa: PLR2004  old and new
    repo.branches.rename(old, names[-1], force=force)
    if shown.as_json:
        write_json({"renamed": {"old_name": old, "name": names[-1]}})


@dataclass(frozen=True, slots=True)
class _Listing:
    """What to list: which branches, of what relation, and how much of each."""

    relation: str
    verbose: bool
    remotes: str
    """``all`` for those of remotes too, ``remotes`` for no others."""


def _list_branches(listing: _Listing, names: Sequence[str], shown: Shown) -> None:
    relation, verbose = listing.relation, listing.verbose
    if len(names) > bool(relation):
        raise CommandUsageError(f"unexpected argument {names[-1]!r}")
    repo = open_repo()
    found = [] if listing.remotes == "remotes" else repo.branches.list()
    if listing.remotes:
        mark = "" if listing.remotes == "remotes" else "remotes/"
        found += [replace(ref, name=mark + ref.name) for ref in repo.branches.list(remote=True)]
    if relation:
        commit = repo.resolve(names[0] if names else "HEAD")
        found = [ref for ref in found if _is_related(repo, ref.commit, commit, relation)]
    if shown.as_json:
        write_json([pick(ref, "name commit current=is_current subject") for ref in found])
        return
    out = paged()
    width = max((cell_width(printable(ref.name)) for ref in found), default=0)
    if repo.head.branch is None and not relation and listing.remotes != "remotes":
        out.line("* " + out.style(f"(HEAD detached at {short_id(repo.head.commit)})", "green"))
    aliases = [ref for ref in repo.tags.list() if ref.is_alias] if verbose else []
    for ref in found:
        here = [f"@{printable(alias.name)}" for alias in aliases if alias.commit == ref.commit]
        line = _branch_line(out, ref, width if verbose else 0, here)
        following = repo.remotes.upstream(ref.name) if verbose else None
        if following is not None:
            line = (
                line.rstrip() + " " + out.style(f"[{printable(upstream_text(following))}]", "blue")
            )
        out.line(line)


def _is_related(repo: Repo, tip: str, commit: str, relation: str) -> bool:
    if relation == "contains":
        return repo.merge_base(tip, commit) == commit
    return (repo.merge_base(tip, commit) == tip) == (relation == "merged")


def _branch_line(out: Output, ref: RefInfo, width: int, aliases: Sequence[str]) -> str:
    name = pad(printable(ref.name), width)
    shown = out.style(name, "green") if ref.is_current else name
    names = out.style(f" ({', '.join(aliases)})", "yellow") if aliases else ""
    commit = f" {short_id(ref.commit)}{names} {printable(ref.subject)}" if width else ""
    return f"{'*' if ref.is_current else ' '} {shown}{commit}".rstrip()
