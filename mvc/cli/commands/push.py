"""Send commits and their content to a remote."""

from __future__ import annotations

from mvc.cli.options import DRY_RUN, LIMIT_RATE, QUIET_PROGRESS_JSON
from mvc.cli.output import Output, Shown, pick, printable
from mvc.cli.parameters import CommandUsageError, argument, arguments, flag, string
from mvc.cli.progress import byte_progress
from mvc.cli.render.remotes import push_fields, write_push
from mvc.cli.render.text import short_id, size_text
from mvc.cli.session import open_repo


def push(
    remote: str | None = argument("[REMOTE]"),
    refspecs: list[str] = arguments("[REFSPEC...]"),
    upstream: bool = flag("-u, --set-upstream", "Let the branches follow what they are pushed to."),
    everything: bool = flag("--all", "Push all branches."),
    tags: bool = flag("--tags", "Push all tags too."),
    delete: bool = flag("-d, --delete", "Delete these refs of the remote."),
    force: bool = flag("-f, --force", "Push even if the remote loses commits by it."),
    lease: bool = flag(
        "--force-with-lease", "Force, but only if the remote is where you last saw it."
    ),
    dry_run: bool = DRY_RUN,
    limit_bytes_s: int | None = LIMIT_RATE,
    shown: Shown = QUIET_PROGRESS_JSON,
) -> None:
    """Send commits and their content to a remote, then move its refs: all of them or none.

    Only what is missing there travels. Without a REFSPEC the current branch is pushed, without a REMOTE to the one that it follows
    (or remote.pushDefault). A REFSPEC is
    as in Git: main, main:other, +main to force, :other to delete. A push that is killed is
    resumed by the next one: finished packs are not sent again.
    """
    repo = open_repo()
    if delete and not refspecs:
        raise CommandUsageError("--delete needs the names of the refs to delete")
    specs = [f":{name}" for name in refspecs] if delete else refspecs
    with byte_progress("pushing", wanted=shown.progress):
        done = repo.push(
            remote,
            specs,
            force=force,
            all_branches=everything,
            tags=tags,
            lease=lease,
            set_upstream=upstream,
            dry_run=dry_run,
            limit_bytes_s=limit_bytes_s,
        )
    fields = {"dry_run": dry_run, **push_fields(done)}
    shown.answer(fields, write_push, done, dry_run=dry_run)


def publish(
    channel: str = argument("CHANNEL"),
    remote: str | None = argument("[REMOTE]"),
    to: str = string(
        "--to REV", "Publish this revision (HEAD), also an older one.", default="HEAD"
    ),
    limit_bytes_s: int | None = LIMIT_RATE,
    shown: Shown = QUIET_PROGRESS_JSON,
) -> None:
    """Send a commit to a remote and let a channel name it; those who follow the channel get it.

    Only what is missing there travels. Each move of a channel has a number, so taking it back with
    --to is a new version of old content.
    """
    with byte_progress("publishing", wanted=shown.progress):
        done = open_repo().publish(channel, to, remote=remote, limit_bytes_s=limit_bytes_s)
    facts = "url channel commit number previous new=is_new sent_bytes"
    sent = f", {size_text(done.sent_bytes)} sent" if done.sent_bytes else ""
    text = f"{printable(channel)} is version {done.number}, {short_id(done.commit)}"
    text += sent if done.is_new else ", as before"
    shown.answer(pick(done, facts), Output.line, text)
