"""Check that two models are the same, or that training repeats."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from mvc.cli.comparing import open_repo_or_say
from mvc.cli.errors import NEGATIVE
from mvc.cli.options import HTML, QUIET_PROGRESS_JSON
from mvc.cli.output import Shown
from mvc.cli.parameters import CommandUsageError, Exit, arguments, decimal, integer, named, string
from mvc.cli.progress import byte_progress
from mvc.cli.session import is_revision, open_repo, split_revision, to_paths
from mvc.cli.training_code import run_behaviour, run_replay
from mvc.errors import MvcError, RepositoryNotFoundError
from mvc.history.revisions import split_range

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mvc.repo import Repo

    Operand = str | None


_LAYERS = ("unit", "module", "system")
_WORKTREE = "the worktree"


_OPTIONS = named(
    decimal("--atol X", "Elements may differ by X; dtypes may differ too."),
    decimal("--rtol X", "Elements may differ by X times the old value."),
    string(
        "--entry FILE.py:FUNCTION",
        "The function that builds the model, or with --replay the training; also package.module:FUNCTION.",
    ),
    string("--inputs FILE", "Inputs for both models (docs/verify.md)."),
    string("--layers KIND,...", "Only some layers: unit, module, system."),
    decimal("--cosine X", "Lowest cosine of a module's outputs (0.9999)."),
    decimal("--bound X", "Largest relative L2 difference of a module's outputs."),
    decimal("--significance P", "Chance of a false alarm in system (0.01)."),
    decimal("--agreement SHARE", "Top predictions that must agree (0.99)."),
    integer("--batch-size N", "Samples per batch (8)."),
    integer("--seed N", "Seed of the models' random numbers (0)."),
    string("--devices A,B", "Run one model on both, such as cpu,cuda."),
    string("--dtypes A,B", "Run one model in both, such as fp32,bf16."),
    string("--threads A,B", "Run one model with each number of threads, such as 1,8."),
    integer("--replay K", "Train K steps from REV and compare the result."),
    HTML,
)
_RUN_BY = (
    "inputs", "cosine", "bound", "significance", "agreement", "batch-size", "seed", "devices",
    "dtypes", "threads",
)  # fmt: skip
"""The options that say how models run."""


def verify(
    names: list[str] = arguments("[REV] [[--] PATH...] | REV|PATH REV|PATH"),
    options: dict[str, Any] = _OPTIONS,
    shown: Shown = QUIET_PROGRESS_JSON,
) -> None:
    """Check that two models are the same: to the bit, in each module, in their predictions.

    With one revision (HEAD), compare the model in the worktree with it, tensor by tensor, to the bit.
    Every file is read, whatever its modification time. A file that was saved again with another
    header, in another format or in other shards, but with the same tensors, counts as the same. For
    a tensor that differs, verify prints how many elements differ and by how much. Files of a state
    committed from memory are in the worktree only if they were checked out.

    With two models (revisions, REV:PATH, files or folders, inside or outside a repository), or with
    the options below, compare up to three layers. Each passes or fails:

    unit: every tensor to the bit, or within --atol and --rtol.

    module, with --entry and --inputs: FUNCTION builds the model, the weights of both sides are
    loaded into it, and the outputs of each module for the same inputs are compared by their cosine
    (--cosine) or relative L2 difference (--bound). The first module that fails is named.

    system, with the same options: a test whether the outputs have the same distribution.

    Several --devices, --dtypes or --threads run one model with the first value and compare it with
    each of the others, within 1e-5 or --bound; the worst modules are listed first.

    --html writes these results as a web page.

    --replay compares the training instead: REV is loaded and trained for K steps, and every tensor
    is compared with the commits that followed; at the tip of a branch, these are the last K steps.
    FUNCTION runs in a separate process, or in as many as the run had ranks: they are started as by
    torchrun, and each compares its part.

    The exit code is 1 if anything differs, or if there was nothing to compare.
    """
    entry, html, layers = options["entry"], options["html"], options["layers"]
    if options["replay"] is not None:
        for name in (*_RUN_BY, "atol", "rtol", "layers", "html"):
            if options[name] is not None:
                text = "compares two models and does not go with --replay"
                raise CommandUsageError(f"--{name} {text}")
        quiet, as_json = shown.quiet, shown.as_json
        raise Exit(run_replay(names, options["replay"], entry, quiet=quiet, as_json=as_json))
    if entry is not None and options["inputs"] is None:
        raise CommandUsageError("--entry needs --inputs; for training, --replay needs --entry")
    if html is not None:
        from mvc.cli.pages.report import check_target

        check_target(html)
    runs = {name: options[name] for name in _RUN_BY}
    chosen = _choose_layers(layers, entry, runs)
    asked = (html, layers, options["atol"], options["rtol"])
    is_new = chosen != ["unit"] or any(value is not None for value in asked)
    found = find_models(names, insist=is_new, alone=chosen == [])
    if found is None:
        _verify_worktree(names, shown)
    else:
        _verify_models(found, chosen, runs, options, shown)


def _verify_models(
    models: tuple[Repo | None, Operand, Operand],
    chosen: Sequence[str],
    runs: Mapping[str, object],
    options: Mapping[str, Any],
    shown: Shown,
) -> None:
    """Compare two models layer by layer; a layer that fails is a negative answer."""
    repo, old, new = models
    behaviour: dict[str, Any] = {"module": None, "system": None, "settings": []}
    if chosen != ["unit"]:
        may_skip = options["layers"] is None
        behaviour = run_behaviour(models, options["entry"], chosen, runs, may_skip=may_skip)
    check = None
    if "unit" in chosen:
        from mvc.repo.outside import verify_models

        verify_unit = verify_models if repo is None else repo.verify_models
        within = {"atol": options["atol"], "rtol": options["rtol"]}
        with byte_progress("verifying", wanted=shown.progress):
            check = verify_unit(old, new, **within)
    fields = _fields(check, behaviour)
    if options["html"] is not None:
        sides = (old, None if chosen == [] else new or _WORKTREE)
        _write_report(fields, sides, options["html"], quiet=not shown.as_text)
    from mvc.cli.render.verify import write_models

    shown.aloud(when=not fields["passed"]).answer(fields, write_models, behaviour, check)
    raise Exit(0 if fields["passed"] else NEGATIVE)


def _choose_layers(text: str | None, entry: str | None, runs: Mapping[str, object]) -> list[str]:
    """Return the layers that are asked for; none if one model is compared with itself."""
    is_comparison = any("," in str(runs[name]) for name in ("devices", "dtypes", "threads"))
    given = [name for name, value in runs.items() if value is not None]
    if entry is None or runs["inputs"] is None:
        if given:
            raise CommandUsageError(f"--{given[0]} needs --entry and --inputs: it runs the models")
        layers = ["unit"]
    else:
        layers = [] if is_comparison else list(_LAYERS)
    if text is None:
        return layers
    if is_comparison:
        raise CommandUsageError("--layers compares two models, not one model on several devices")
    wanted = [one.strip() for one in text.split(",")]
    for one in wanted:
        if one not in _LAYERS:
            raise CommandUsageError(f"--layers {text!r}: choose of {', '.join(_LAYERS)}")
        if one not in layers:
            raise CommandUsageError(f"--layers {one} needs --entry and --inputs")
    return [layer for layer in layers if layer in wanted]


def _verify_worktree(names: list[str], shown: Shown) -> None:
    from mvc.cli.render.verify import check_fields, write_check

    repo = open_repo()
    revision, paths = split_revision(repo, names)
    revision = revision or "HEAD"
    with byte_progress("verifying", wanted=shown.progress):
        check = repo.verify_worktree(revision, paths=paths)
    fields = check_fields(check)
    shown.aloud().answer(fields, write_check, check, revision, quiet=shown.quiet)
    if not check.is_same:
        raise Exit(NEGATIVE)


def _fields(check: Any, behaviour: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was found for ``--json``."""
    from mvc.cli.render.verify import model_fields

    verdicts = [behaviour[layer]["passed"] for layer in _LAYERS[1:] if behaviour[layer]]
    verdicts += [setting["passed"] for setting in behaviour["settings"]]
    verdicts += [check.passed] if check is not None else []
    unit = None if check is None else model_fields(check)
    return {"passed": False not in verdicts, "unit": unit, **behaviour}


def _write_report(
    fields: Mapping[str, Any], models: tuple[Operand, Operand], html: str, *, quiet: bool
) -> None:
    """Write the page; the second model is None if there is only one."""
    from mvc.cli.pages.report import write_comparison_page

    unit, (old, new) = fields["unit"] or {}, models
    sides = {
        "old": {"label": unit.get("old", old or _WORKTREE), "commit": unit.get("old_commit")},
        "new": new and {"label": unit.get("new", new), "commit": unit.get("new_commit")},
    }
    write_comparison_page("verify", {**fields, **sides}, html, quiet=quiet)


def find_models(
    names: Sequence[str], *, insist: bool, alone: bool
) -> tuple[Repo | None, Operand, Operand] | None:
    """Return the repository and the two models that a line names; None is the worktree.

    Return None if the line is of the form ``REV PATH...`` and nothing in it asks for more.
    """
    parts = split_range(names[0]) if len(names) == 1 else None
    if parts is not None and parts[1] == ".." and not os.path.lexists(names[0]):
        names = [parts[0], parts[2]]
    most = 1 if alone else 2
    try:
        repo = open_repo_or_say()
    except RepositoryNotFoundError:
        if len(names) != most:
            raise
        return None, names[0], names[1] if len(names) > 1 else None
    if "--" in names or len(names) > most:
        if insist:
            what = "one model is run in several ways" if alone else "two models are compared"
            raise CommandUsageError(f"{what}; name a file as REV:PATH")
        return None
    if len(names) > 1:
        return _find_pair(repo, *names, insist=insist)
    if names:
        return _find_partner(repo, names[0], insist=insist)
    return (repo, "HEAD", None) if insist else None


def _find_pair(
    repo: Repo, old: str, new: str, *, insist: bool
) -> tuple[Repo, Operand, Operand] | None:
    if is_revision(repo, old) and _is_stored(repo, old, new):
        return (repo, f"{old}:{_place(repo, new)}", _as_path(new)) if insist else None
    if not insist and all(_is_stored(repo, "HEAD", name) for name in (old, new)):
        return None
    return repo, old, new


def _find_partner(repo: Repo, name: str, *, insist: bool) -> tuple[Repo, Operand, Operand] | None:
    """Return what one model is compared with: the same file, or all, of the worktree or HEAD."""
    revision, colon, path = name.partition(":")
    if is_revision(repo, name):
        return (repo, name, None) if insist else None
    if os.path.lexists(name):
        if not insist:
            return None
        if _is_stored(repo, "HEAD", name):
            return repo, f"HEAD:{_place(repo, name)}", _as_path(name)
        return repo, name, None
    if colon and is_revision(repo, revision or "HEAD"):
        live = repo.worktree / path
        return repo, name, _as_path(os.path.relpath(live)) if live.exists() else None
    return (repo, name, None) if insist else None


def _is_stored(repo: Repo, revision: str, name: str) -> bool:
    """Return whether a revision holds a path of the current folder."""
    with suppress(MvcError):
        return bool(repo.ls(revision, paths=to_paths([name])))
    return False


def _place(repo: Repo, name: str) -> str:
    return os.path.relpath(to_paths([name])[0], repo.worktree)


def _as_path(name: str) -> str:
    """Return a path so that it cannot be taken for a revision."""
    return name if os.path.isabs(name) else os.path.join(".", name)
