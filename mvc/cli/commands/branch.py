"""List, create, rename or delete branches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from mvc.cli.options import CommandUsageError, Json, Quiet, check_alone, choose_one, name_and_start
from mvc.cli.output import Output, paged, pick, printable, stdout, write_json
from mvc.cli.parameters import Argument, Option
from mvc.cli.render.text import cell_width, pad, short_id
from mvc.cli.session import open_repo
from mvc.errors import ConflictError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mvc.operations.branch import RefInfo
    from mvc.repo import Repo


def branch(
    names: Annotated[list[str] | None, Argument(metavar="[NAME [START]]")] = None,
    delete: Annotated[
        bool, Option("-d", "--delete", help="Delete branches that are merged into HEAD.")
    ] = False,
    delete_any: Annotated[
        bool, Option("-D", help="Delete branches even if that loses commits.")
    ] = False,
    move: Annotated[
        bool, Option("-m", "--move", help="Rename: [OLD] NEW, with the reflog.")
    ] = False,
    force: Annotated[
        bool, Option("-f", "--force", help="Move or overwrite an existing branch.")
    ] = False,
    everything: Annotated[bool, Option("-a", "--all", help="List remote branches too.")] = False,
    show_current: Annotated[
        bool, Option("--show-current", help="Print only the current branch.")
    ] = False,
    contains: Annotated[
        bool, Option("--contains", help="List branches that have commit [REV], or HEAD.")
    ] = False,
    merged: Annotated[
        bool, Option("--merged", help="List branches that are in [REV], or HEAD, as a whole.")
    ] = False,
    no_merged: Annotated[
        bool, Option("--no-merged", help="List branches that are not in [REV], or HEAD.")
    ] = False,
    verbose: Annotated[
        bool, Option("-v", "--verbose", help="List with commit and subject.")
    ] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """List, create, rename or delete branches."""
    del everything  # accepted because Git users type it; there are no remote branches yet
    relations = {"contains": contains, "merged": merged, "no-merged": no_merged}
    relation = choose_one(relations, "")
    changing = [("-d", delete), ("-D", delete_any), ("-m", move), ("--show-current", show_current)]
    check_alone([*changing, (f"--{relation}", relation)])
    given = names or []
    if delete or delete_any:
        if not given:
            raise CommandUsageError("name a branch")
        repo, forced = open_repo(), delete_any or force
        deleted = [(name, repo.delete_branch(name, force=forced)) for name in given]
        form = "Deleted branch {} (was {})."
        write_deleted(form, deleted, quiet=quiet, as_json=as_json)
    elif move:
        _rename_branch(given, force=force, as_json=as_json)
    elif show_current:
        current = open_repo().head.branch
        if as_json:
            write_json({"branch": current})
        elif current is not None:
            stdout().line(printable(current))
    elif relation:
        _list_branches(relation, given, verbose=verbose, as_json=as_json)
    elif given:
        name, start = name_and_start(given)
        commit = open_repo().create_branch(name, start, force=force)
        if as_json:
            write_json({"created": {"name": name, "commit": commit}})
    else:
        _list_branches(verbose=verbose, as_json=as_json)


def write_deleted(
    form: str, deleted: Sequence[tuple[str, str]], *, quiet: bool, as_json: bool
) -> None:
    """Write which names were deleted, and where they pointed."""
    if as_json:
        write_json({"deleted": [{"name": name, "commit": commit} for name, commit in deleted]})
    elif not quiet:
        stdout().lines(form.format(printable(name), short_id(commit)) for name, commit in deleted)


def _rename_branch(names: Sequence[str], *, force: bool, as_json: bool) -> None:
    if len(names) not in (1, 2):
        raise CommandUsageError("-m takes [OLD] NEW")
    repo = open_repo()
    current = repo.head.branch
    if len(names) == 1 and current is None:
        raise ConflictError("HEAD is not on a branch", hint='name both: "mvc branch -m OLD NEW"')
    old = names[0] if len(names) == 2 else current or ""  # noqa: PLR2004  old and new
    repo.rename_branch(old, names[-1], force=force)
    if as_json:
        write_json({"renamed": {"old_name": old, "name": names[-1]}})


def _list_branches(
    relation: str = "", names: Sequence[str] = (), *, verbose: bool, as_json: bool
) -> None:
    if len(names) > 1:
        raise CommandUsageError(f"unexpected argument {names[1]!r}")
    repo = open_repo()
    found = repo.branches()
    if relation:
        commit = repo.resolve(names[0] if names else "HEAD")
        found = [ref for ref in found if _is_related(repo, ref.commit, commit, relation)]
    if as_json:
        write_json([pick(ref, "name commit current=is_current subject") for ref in found])
        return
    out = paged()
    width = max((cell_width(printable(ref.name)) for ref in found), default=0)
    if repo.head.branch is None and not relation:
        out.line("* " + out.style(f"(HEAD detached at {short_id(repo.head.commit)})", "green"))
    aliases = [ref for ref in repo.tags() if ref.is_alias] if verbose else []
    for ref in found:
        here = [f"@{printable(one.name)}" for one in aliases if one.commit == ref.commit]
        out.line(_branch_line(out, ref, width if verbose else 0, here))


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
