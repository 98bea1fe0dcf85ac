"""Check that the model is the same as in a commit, or that its training repeats."""

from __future__ import annotations

import importlib.util
import math
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from mvc.cli.errors import NEGATIVE
from mvc.cli.options import CommandUsageError, Json, Quiet, ShowProgress
from mvc.cli.output import Output, pick, printable, stdout, write_json
from mvc.cli.parameters import Argument, Exit, Option
from mvc.cli.progress import byte_progress
from mvc.cli.render.files import change_rows, shape_change
from mvc.cli.render.text import count_text, in_layer_order, number_text, short_id
from mvc.cli.session import open_repo, split_revision
from mvc.errors import NotFoundError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mvc.operations.verify import FileCheck, WorktreeCheck
    from mvc.repo import Repo
    from mvc.workspace.tensor_compare import TensorCheck


_REPLAY = "mvc_hooks.replay"
_SIGNAL_BASE = 128
_ROWS_ON_TERMINAL = 20
_FILES_NAMED = 3
_COLOURS = {"same": "green", "same-tensors": "green", "not-in-worktree": "dim"}
_WORDS = {"same-tensors": "same tensors", "not-in-worktree": "not in the worktree"}
_MARKS = {"modified": "M", "missing": "D", "extra": "A"}


def verify(
    names: Annotated[
        list[str] | None, Argument(metavar="[REV] [[--] PATH...]", show_default=False)
    ] = None,
    replay: Annotated[
        int | None,
        Option("--replay", metavar="K", help="Train K steps from REV and compare the result."),
    ] = None,
    entry: Annotated[
        str | None,
        Option(
            "--entry",
            metavar="FILE.py:FUNCTION",
            help="With --replay: the function that sets up the training.",
        ),
    ] = None,
    quiet: Quiet = False,
    progress: ShowProgress = True,
    as_json: Json = False,
) -> None:
    """Compare the model in the worktree with a commit (HEAD), tensor by tensor, to the bit.

    Every file is read, whatever its modification time. A file that was saved again with another
    header, in another format or in other shards, but with the same tensors, counts as the same. For
    a tensor that differs, verify prints how many elements differ and by how much. Files of a state
    committed from memory are in the worktree only if they were checked out.

    --replay compares the training instead: REV is loaded and trained for K steps, and every tensor
    is compared with the commits that followed; at the tip of a branch, these are the last K steps.
    FUNCTION runs in a separate process.

    The exit code is 1 if anything differs, or if there was nothing to compare.
    """
    repo = open_repo()
    revision, paths = split_revision(repo, names)
    revision = revision or "HEAD"
    if replay is not None or entry is not None:
        if replay is None or entry is None or paths:
            raise CommandUsageError("--replay needs --entry and takes no path")
        if replay < 1:
            raise CommandUsageError(f"--replay {replay}: train at least one step")
        code = _replay(repo, revision, replay, entry, quiet=quiet, as_json=as_json)
        raise Exit(code)
    with byte_progress("verifying", wanted=progress and not quiet) as bar:
        check = repo.verify_worktree(revision, paths=paths, progress=bar)
    if as_json:
        write_json(_fields(check))
    else:
        write_check(stdout(), check, revision, quiet=quiet)
    if not check.is_same:
        raise Exit(NEGATIVE)


def _replay(
    repo: Repo, revision: str, steps: int, entry: str, *, quiet: bool, as_json: bool
) -> int:
    """Run the replay in a separate process on the same streams; return its exit code."""
    file, colon, function = entry.rpartition(":")
    if not (file and colon and function):
        raise NotFoundError(
            f"--entry {entry!r} names no function", hint="write it as FILE.py:FUNCTION"
        )
    if not Path(file).is_file():
        raise NotFoundError(f"file {file!r} does not exist")
    for name in ("torch", "mvc_hooks", _REPLAY):  # a package before what is in it
        if importlib.util.find_spec(name) is None:
            raise UnsupportedError(
                f"--replay needs {name}, which is not installed",
                hint='install the training hooks: pip install "mvc-models[torch]"',
            )
    commit = repo.resolve(revision)
    command = [sys.executable, "-m", _REPLAY, str(repo.worktree), commit, str(steps), entry]
    sys.stdout.flush()  # before the other process writes to the same stream
    # In another process, because this one never imports torch or runs a user's code.
    done = subprocess.run(  # noqa: S603  the user's own code, which they name, is what is to run
        [*command, "--json"] if as_json else command,
        check=False,
        env=os.environ,
        stdout=subprocess.DEVNULL if quiet and not as_json else None,
    )
    return done.returncode if done.returncode >= 0 else _SIGNAL_BASE - done.returncode


def _fields(check: WorktreeCheck) -> dict[str, object]:
    facts = "path status format size_bytes tensors_total found_in reason"
    files = [
        {
            **pick(file, facts),
            "tensors": [_tensor_fields(one) for one in in_layer_order(file.tensors)],
        }
        for file in check.files
    ]
    return {"commit": check.commit, "same": check.is_same, "files": files}


def _tensor_fields(tensor: TensorCheck) -> dict[str, object]:
    before = pick(tensor, "old_dtype old_shape").items()
    return {
        **pick(tensor, "name status dtype shape"),
        "elements": {"changed": tensor.elements_changed, "total": tensor.elements_total},
        **pick(tensor, "bytes_changed largest_difference"),
        **{name: value for name, value in before if value is not None},
    }


def write_check(out: Output, check: WorktreeCheck, revision: str, *, quiet: bool) -> None:
    """Write a line per file that differs, its tensors, and the verdict."""
    for file in check.files:
        if file.status == "same" or (quiet and file.status in _COLOURS):
            continue
        word = _WORDS.get(file.status, file.status)
        word = out.style(f"{word}:", _COLOURS.get(file.status, "red"))
        out.line(f"{word} {printable(file.path)}{_explain(file)}")
        _write_tensors(out, file.tensors)
    if not quiet:
        out.line(_verdict(out, check, revision))


def _explain(file: FileCheck) -> str:
    parts = []
    if file.found_in:
        named, more = file.found_in[:_FILES_NAMED], len(file.found_in) - _FILES_NAMED
        rest = f" and {more:,} more" if more > 0 else ""
        parts.append(f"in {', '.join(map(printable, named))}{rest}")
    if file.status == "same-tensors":
        where = "other files" if file.found_in[1:] else "another file"
        parts.append(f"the same {count_text(file.tensors_total, 'tensor')} in {where}")
    if file.reason is not None:
        parts.append(printable(file.reason))
    if file.tensors:
        known = sum(tensor.status != "extra" for tensor in file.tensors)
        verb = "differs" if known == 1 else "differ"
        parts.append(f"{known:,} of {count_text(file.tensors_total, 'tensor')} {verb}")
    return f"  ({'; '.join(parts)})" if parts else ""


def _write_tensors(out: Output, tensors: Sequence[TensorCheck]) -> None:
    shown = tensors = in_layer_order(tensors)
    if out.width is not None and len(tensors) > _ROWS_ON_TERMINAL:
        shown = tensors[: _ROWS_ON_TERMINAL - 1]
    changes = [
        (_MARKS[one.status], "red", (printable(one.name), shape_change(one), _difference(one)))
        for one in shown
    ]
    out.lines(change_rows(out, changes, "<<<", spare=1))
    if len(shown) < len(tensors):
        out.line(out.style(f"  … and {len(tensors) - len(shown):,} more (--json has all)", "dim"))


def _difference(tensor: TensorCheck) -> str:
    if tensor.status != "modified":
        return "only in the file" if tensor.status == "extra" else "missing"
    parts = []
    if tensor.elements_changed is not None:
        parts.append(f"{tensor.elements_changed:,} of {tensor.elements_total:,} elements")
    elif tensor.bytes_changed is not None:
        parts.append(count_text(tensor.bytes_changed, "byte"))
    if tensor.largest_difference is not None:
        parts.append(_largest(tensor.largest_difference))
    return ", ".join(parts)


def _largest(difference: float) -> str:
    if math.isnan(difference):
        return "some NaN on one side only"
    if not difference:
        return "equal as numbers (-0 or another NaN)"
    return f"by up to {number_text(difference)}"


def _verdict(out: Output, check: WorktreeCheck, revision: str) -> str:
    name = revision
    if not check.commit.startswith(revision):
        name += f" ({short_id(check.commit)})"
    counts = Counter(file.status for file in check.files)
    absent = counts["not-in-worktree"]
    compared = len(check.files) - absent
    rest = f"; {count_text(absent, 'file')} not in the worktree" if absent else ""
    if check.is_same:
        tensors = sum(
            file.tensors_total for file in check.files if file.status != "not-in-worktree"
        )
        what = f"{count_text(compared, 'file')}, {count_text(tensors, 'tensor')}"
        return f"{out.style('the same:', 'green', 'bold')} {what} as in {printable(name)}{rest}"
    if not compared:
        text = f"no file of {printable(name)} is in the worktree"
        return f"{out.style('nothing to compare:', 'yellow', 'bold')} {text}"
    wrong = compared - counts["same"] - counts["same-tensors"]
    verb = "differs" if wrong == 1 else "differ"
    text = f"{wrong:,} of {count_text(compared, 'file')} {verb} from {printable(name)}{rest}"
    return f"{out.style('not the same:', 'red', 'bold')} {text}"
