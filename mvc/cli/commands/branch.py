"""Name commits: branches and tags."""

from __future__ import annotations

import fnmatch
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mvc.cli.options import QUIET_JSON, check_alone, check_no_more, choose_one, name_and_start
from mvc.cli.output import Output, Shown, pick, printable, warn
from mvc.cli.parameters import CommandUsageError, arguments, flag, named, string
from mvc.cli.render.remotes import upstream_fields, upstream_text
from mvc.cli.render.text import cell_width, count_text, number_text, pad, short_id, step_text
from mvc.cli.session import open_repo
from mvc.errors import ConflictError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mvc.operations.best import BestCommit
    from mvc.operations.branch import RefInfo
    from mvc.repo import Repo


_OPTIONS = named(
    flag("-d, --delete", "Delete branches that are merged into HEAD."),
    flag("-D", "Delete branches even if that loses commits."),
    flag("-m, --move", "Rename: [OLD] NEW, with the reflog."),
    flag("-f, --force", "Move or overwrite an existing branch."),
    flag("-a, --all", "List remote branches too."),
    flag("-r, --remotes", "List remote branches only."),
    string("-u, --set-upstream-to REF", "Follow this one, such as origin/main."),
    flag("--unset-upstream", "Follow none any more."),
    flag("--show-current", "Print only the current branch."),
    flag("--contains", "List branches that have commit [REV], or HEAD."),
    flag("--merged", "List branches that are in [REV], or HEAD, as a whole."),
    flag("--no-merged", "List branches that are not in [REV], or HEAD."),
    flag("-v, --verbose", "List with commit, subject and what it follows."),
)

_RELATIONS = ("contains", "merged", "no-merged")


def branch(
    names: list[str] = arguments("[NAME [START]]"),
    options: dict[str, Any] = _OPTIONS,
    shown: Shown = QUIET_JSON,
) -> None:
    """List, create, rename or delete branches; one made from origin/NAME follows it."""
    upstream, force = options["set-upstream-to"], options["force"]
    check_alone([("-a", options["all"]), ("-r", options["remotes"])])
    relation = choose_one({name: options[name] for name in _RELATIONS}, "")
    check_alone([
        ("-d", options["delete"]), ("-D", options["D"]), ("-m", options["move"]),
        ("--show-current", options["show-current"]), ("--set-upstream-to", upstream is not None),
        ("--unset-upstream", options["unset-upstream"]), (f"--{relation}", relation),
    ])  # fmt: skip
    if options["delete"] or options["D"]:
        if not names:
            raise CommandUsageError("name a branch")
        repo, forced = open_repo(), options["D"] or force
        deleted = [(name, repo.branches.delete(name, force=forced)) for name in names]
        _show_deleted("Deleted branch {} (was {}).", deleted, shown)
    elif options["move"]:
        _rename_branch(names, shown, force=force)
    elif options["show-current"]:
        current = open_repo().head.branch
        lines = [] if current is None else [printable(current)]
        shown.aloud().answer({"branch": current}, Output.lines, lines)
    elif upstream is not None or options["unset-upstream"]:
        _follow(names, upstream, shown)
    elif names and not (relation or options["all"] or options["remotes"]):
        name, start = name_and_start(names)
        commit = open_repo().branches.create(name, start, force=force)
        shown.answer({"created": {"name": name, "commit": commit}}, Output.lines, ())
    else:
        _list_branches(names, relation, options, shown)


def _follow(names: Sequence[str], upstream: str | None, shown: Shown) -> None:
    check_no_more(names, 1)
    repo = open_repo()
    name = names[0] if names else repo.head.branch
    if name is None:
        raise ConflictError("HEAD is not on a branch", hint="name the branch")
    known = () if upstream is None else (ref.name for ref in repo.branches.list(remote=True))
    if upstream is not None and upstream not in known:
        raise NotFoundError(
            f"no branch {upstream!r} of a remote is known", hint='"mvc branch -r" lists them'
        )
    repo.remotes.set_upstream(name, upstream)
    following = upstream_fields(repo.remotes.upstream(name))
    shown.answer({"branch": name, "upstream": following}, Output.lines, ())


def _show_deleted(form: str, deleted: Sequence[tuple[str, str]], shown: Shown) -> None:
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
    shown.answer({"renamed": {"old_name": old, "name": names[-1]}}, Output.lines, ())


def _list_branches(
    names: Sequence[str], relation: str, options: Mapping[str, Any], shown: Shown
) -> None:
    check_no_more(names, 1 if relation else 0)
    repo, of_remotes = open_repo(), options["remotes"]
    found = [] if of_remotes else repo.branches.list()
    if of_remotes or options["all"]:
        mark = "" if of_remotes else "remotes/"
        found += [replace(ref, name=mark + ref.name) for ref in repo.branches.list(remote=True)]
    if relation:
        commit = repo.resolve(names[0] if names else "HEAD")
        wanted = commit if relation == "contains" else None
        found = [
            ref
            for ref in found
            if (repo.merge_base(ref.commit, commit) == (wanted or ref.commit))
            == (relation != "no-merged")
        ]

    def write(out: Output) -> None:
        if repo.head.branch is None and not relation and not of_remotes:
            out.line("* " + out.style(f"(HEAD detached at {short_id(repo.head.commit)})", "green"))
        if not options["verbose"]:
            out.lines(_branch_line(out, ref, 0, ()) for ref in found)
            return
        width = max((cell_width(printable(ref.name)) for ref in found), default=0)
        aliases = [ref for ref in repo.tags.list() if ref.is_alias]
        for ref in found:
            here = [f"@{printable(alias.name)}" for alias in aliases if alias.commit == ref.commit]
            following = repo.remotes.upstream(ref.name)
            text = "" if following is None else f"[{printable(upstream_text(following))}]"
            line = _branch_line(out, ref, width, here)
            out.line(f"{line} {out.style(text, 'blue')}".rstrip())

    fields = [pick(ref, "name commit current=is_current subject") for ref in found]
    shown.aloud().page(fields, write)


def _branch_line(out: Output, ref: RefInfo, width: int, aliases: Sequence[str]) -> str:
    name = pad(printable(ref.name), width)
    shown = out.style(name, "green") if ref.is_current else name
    names = out.style(f" ({', '.join(aliases)})", "yellow") if aliases else ""
    commit = f" {short_id(ref.commit)}{names} {printable(ref.subject)}" if width else ""
    return f"{'*' if ref.is_current else ' '} {shown}{commit}".rstrip()


def tag(
    names: list[str] = arguments("[NAME [REV]]"),
    annotate: bool = flag("-a, --annotate", "Create an annotated tag; needs -m."),
    message: str | None = string("-m, --message TEXT", "Message of an annotated tag."),
    delete: bool = flag("-d, --delete", "Delete tags."),
    force: bool = flag("-f, --force", "Move an existing tag; the log then shows it as @NAME."),
    by: str | None = string("--by NAME", "Tag the commit with the lowest metric NAME."),
    highest: bool = flag("--max", "With --by: the highest."),
    among: str | None = string("--among A..B", "With --by: only these commits."),
    listed: bool = flag("-l, --list", "List tags, only those that match a NAME if one is given."),
    shown: Shown = QUIET_JSON,
) -> None:
    """List, create or delete tags.

    A tag made or moved by -f or --by is an alias: the log shows it as @NAME, @NAME is a revision,
    and NAME@{1} is its previous commit.

    "mvc tag best --by loss" tags the commit with the lowest loss in the history of HEAD (or REV);
    of equal values the earliest wins. Commits abandoned by a rollback and values that are not
    finite do not count.
    """
    check_alone([("--list", listed), ("--delete", delete), ("--by", by)])
    if by is None and (highest or among is not None):
        raise CommandUsageError("--max and --among need --by")
    if annotate and not (message or "").strip():
        raise CommandUsageError("an annotated tag needs a message: give one with -m")
    if delete:
        if not names:
            raise CommandUsageError("name a tag")
        repo = open_repo()
        plain = (_plain(repo, name) for name in names)
        deleted = [(name, repo.tags.delete(name)) for name in plain]
        _show_deleted("Deleted tag '{}' (was {})", deleted, shown)
    elif by is not None:
        _tag_best(names, by, message, among, shown, force=force, highest=highest)
    elif names and not listed:
        written, revision = name_and_start(names)
        repo = open_repo()
        name = _plain(repo, written)
        before = _find_tag(repo, name)
        is_alias = force or (before is None and name != written)
        commit = repo.tags.create(name, revision, message=message, force=is_alias)
        lines = [] if before is None else [_move_text(name, before.commit, commit)]
        shown.answer({"created": {"name": name, "commit": commit}}, Output.lines, lines)
    else:
        _list_tags(names, shown)


def _find_tag(repo: Repo, name: str) -> RefInfo | None:
    return next((ref for ref in repo.tags.list() if ref.name == name), None)


def _plain(repo: Repo, name: str) -> str:
    """Return the name of a tag that may be written as the log shows aliases, with @."""
    return name if _find_tag(repo, name) else name[name[:1] == "@" and len(name) > 1 :]


def _move_text(name: str, before: str, commit: str) -> str:
    name = printable(name)
    if before == commit:
        return f"@{name} is at {short_id(commit)} already"
    back = f'"mvc tag -f {name} {name}@{{1}}" takes it back'
    return f"Moved @{name} from {short_id(before)} to {short_id(commit)} ({back})"


def _tag_best(
    names: Sequence[str],
    metric: str,
    message: str | None,
    among: str | None,
    shown: Shown,
    *,
    force: bool,
    highest: bool,
) -> None:
    """Tag the commit with the best value of a metric; an alias moves without -f."""
    if not names:
        raise CommandUsageError("name the tag: mvc tag best --by NAME")
    written, start = name_and_start(names)
    if among is not None and len(names) > 1:
        raise CommandUsageError(f"{start!r} and --among cannot be used together")
    repo = open_repo()
    name = _plain(repo, written)
    before = _find_tag(repo, name)
    if before is not None and not (force or before.is_alias):
        raise ConflictError(f"tag {name!r} already exists", hint="`force` moves it")
    best = repo.best(metric, among or start, maximise=highest)
    repo.tags.create(name, best.commit, message=message, force=True)
    facts = pick(best, "metric value step compared left_out released=is_released")
    old = None if before is None else before.commit
    created = {"name": name, "commit": best.commit, "before": old, **facts}
    shown.answer({"created": created}, _write_best, name, best, old)


def _write_best(out: Output, name: str, best: BestCommit, before: str | None) -> None:
    step = step_text(best.step)
    which = "highest" if best.maximise else "lowest"
    text = f"{printable(best.metric)} {number_text(best.value)} is the {which}"
    out.line(
        f"@{printable(name)} is {short_id(best.commit)}{step}: {text} of {count_text(best.compared, 'commit')}"
        + (f", {best.left_out:,} more do not count" if best.left_out else "")
    )
    if best.is_released:
        warn(f"content of {short_id(best.commit)} was released: it cannot be checked out")
    if before is not None:
        out.line(_move_text(name, before, best.commit))


def _list_tags(globs: Sequence[str], shown: Shown) -> None:
    repo = open_repo()
    found = [
        ref
        for ref in repo.tags.list()
        if not globs or any(fnmatch.fnmatchcase(ref.name, glob) for glob in globs)
    ]

    def fields() -> list[dict[str, object]]:
        messages = (repo.tags.message(f"refs/tags/{ref.name}") for ref in found)
        facts = (pick(ref, "name commit subject alias=is_alias") for ref in found)
        return [{**fact, "message": text} for fact, text in zip(facts, messages, strict=True)]

    shown.aloud().page(fields, Output.lines, (printable(ref.name) for ref in found))
