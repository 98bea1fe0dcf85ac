"""Merges of commits and of models."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mvc import merging, operations
from mvc.errors import UsageError
from mvc.repo.opening import OpenRepo

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mvc.merging import strategies as _strategies  # noqa: F401
    from mvc.operations import conclude, pick  # noqa: F401
    from mvc.operations.merge import MergeResult
    from mvc.operations.merge_recipe import RecipeResult
    from mvc.operations.preview_merge import MergePreview
    from mvc.operations.replay_merge import MergeReplay
    from mvc.repo.opening import Progress, StrPath
    from mvc.workspace.checkout_plan import CheckoutResult


class Merging(OpenRepo):
    """Merges of commits and of models."""

    def merge(
        self,
        *revisions: str,
        strategy: str | None = None,
        rules: Sequence[tuple[str, str]] = (),
        parameters: Mapping[str, Any] | None = None,
        seed: int = 0,
        tokenizer: str | None = None,
        message: str | None = None,
        fast_forward: Literal["allowed", "only", "never"] = "allowed",
        allow_unrelated: bool = False,
        commit: bool = True,
        no_gate: bool = False,
        progress: Progress = None,
    ) -> MergeResult:
        """Merge branches into the current one, tensor by tensor.

        A change on one side is taken without reading the tensor. A change on both sides is a
        conflict, unless a strategy resolves it: ``ours``, ``theirs``, ``base``, or a merge method
        such as ``linear``. After a conflict the merge is under way until ``conclude`` or ``abort``.

        Args:
            revisions: branches or other revisions, at least one.
            strategy: what decides by default; a method only over weights, never over the optimizer
                and other state of a training run.
            rules: (pattern, strategy), for tensors or files that the pattern fits; the first that
                fits decides.
            parameters: of the methods; a sequence has one value for each side, ours first.
            seed: of methods that draw random numbers.
            tokenizer: align embeddings and heads by token, and take the tokenizer that is the
                ``union``, of the ``base``, ``ours``, ``theirs``, or a branch.
            message: of the commit; defaults to Git's words.
            fast_forward: whether the branch may simply move on; ``never`` makes a commit even then.
            allow_unrelated: merge histories without a common commit, too.
            commit: make the commit if there are no conflicts.
            no_gate: as for ``commit``.
            progress: called with bytes stored and written.

        Raises:
            ConflictError: local changes would be lost, a merge is under way, the histories are not
                related, or several branches conflict.
            NotFoundError: no such revision or method; a rule that matches nothing.
            GateError: the result fails a gate.
            UsageError: a parameter out of range, shapes or vocabularies that do not fit.
        """
        told = merging.strategies.make_choices(strategy, rules, parameters or {}, seed, tokenizer)
        return operations.merge.merge(
            self._context,
            revisions,
            told=told,
            message=message,
            fast_forward=fast_forward,
            allow_unrelated=allow_unrelated,
            commit=commit,
            no_gate=no_gate,
            progress=progress,
        )

    def preview_merge(
        self,
        *revisions: str,
        strategy: str | None = None,
        rules: Sequence[tuple[str, str]] = (),
        parameters: Mapping[str, Any] | None = None,
        recipe: str | None = None,
        seed: int = 0,
        tokenizer: str | None = None,
        progress: Progress = None,
    ) -> MergePreview:
        """Show what a merge would do, and how much its models interfere.

        Nothing is written. For every tensor changed on several sides it measures how much each of
        them changed, how often they moved in opposite directions, and the cosine of their task
        vectors.

        Args:
            revisions: as for ``merge``; none with a recipe.
            strategy: as for ``merge``.
            rules: as for ``merge``.
            parameters: as for ``merge``.
            recipe: the text of a recipe instead, as for ``merge_recipe``.
            seed: of methods that draw random numbers.
            tokenizer: as for ``merge``.
            progress: called with bytes read of the base.

        Raises:
            NotFoundError: no such revision, method or model.
            UsageError: things that do not fit together, or both revisions and a recipe.
        """
        if recipe is not None:
            if revisions or tokenizer is not None:
                what = "models: give no revisions" if revisions else "tokenizer: give no other"
                raise UsageError(f"a recipe names its own {what}")
            return operations.preview_merge.preview_recipe(
                self._context, recipe, seed=seed, progress=progress
            )
        told = merging.strategies.make_choices(strategy, rules, parameters or {}, seed, tokenizer)
        return operations.preview_merge.preview_merge(
            self._context, revisions, told, progress=progress
        )

    def conclude(
        self,
        kind: Literal["merge", "cherry-pick", "revert"] = "merge",
        *,
        strategy: str | None = None,
        rules: Sequence[tuple[str, str]] = (),
        parameters: Mapping[str, Any] | None = None,
        seed: int = 0,
        message: str | None = None,
        no_gate: bool = False,
        progress: Progress = None,
    ) -> MergeResult:
        """Finish a merge, cherry-pick or revert that is under way.

        Args:
            kind: what is under way.
            strategy: decides what is undecided, as in ``merge``; ``rules``, ``parameters`` and
                ``seed`` too.
            rules: (pattern, strategy).
            parameters: of the methods.
            seed: of methods that draw random numbers.
            message: of the commit; by default the one that it would have had.
            no_gate: as for ``commit``.
            progress: called with bytes stored and written.

        Raises:
            ConflictError: nothing of that kind is under way, or something is still undecided.
            GateError: the result fails a gate.
        """
        told = merging.strategies.make_choices(strategy, rules, parameters or {}, seed)
        if kind == "merge":
            return operations.conclude.conclude(
                self._context, kind, told=told, message=message, no_gate=no_gate, progress=progress
            )
        return operations.pick.resume(
            self._context, kind, told=told, message=message, no_gate=no_gate, progress=progress
        )

    def abort(self, kind: Literal["merge", "cherry-pick", "revert"] = "merge") -> CheckoutResult:
        """Abort a merge, cherry-pick or revert, and restore index and files.

        Raises:
            ConflictError: nothing of that kind is under way, or a file that it brought was changed.
        """
        return operations.conclude.abort(self._context, kind)

    def skip(
        self, kind: Literal["cherry-pick", "revert"], *, progress: Progress = None
    ) -> MergeResult:
        """Skip the commit at which a cherry-pick or revert stopped, and continue.

        Raises:
            ConflictError: nothing of that kind is under way.
        """
        return operations.pick.skip(self._context, kind, progress=progress)

    def cherry_pick(
        self,
        *revisions: str,
        strategy: str | None = None,
        rules: Sequence[tuple[str, str]] = (),
        parameters: Mapping[str, Any] | None = None,
        seed: int = 0,
        mainline: int | None = None,
        record_origin: bool = False,
        commit: bool = True,
        no_gate: bool = False,
        progress: Progress = None,
    ) -> MergeResult:
        """Apply the changes of commits to the current branch.

        Stops at the first commit with conflicts; continue with ``conclude``, ``skip`` or ``abort``.
        A commit that would change nothing is left out.

        Args:
            revisions: commits, or ranges ``A..B``, in the order in which they are applied.
            strategy: what decides conflicts, as in ``merge``; ``rules``, ``parameters`` and
                ``seed`` too. ``base`` is the commit's parent.
            rules: (pattern, strategy).
            parameters: of the methods.
            seed: of methods that draw random numbers.
            mainline: the parent, from 1, that a merge is compared with.
            record_origin: name the original commit in the message.
            commit: make commits; otherwise only stage the changes.
            no_gate: as for ``commit``.
            progress: called with bytes stored and written.

        Returns:
            The result of the last step.

        Raises:
            GateError: a commit fails a gate; those before it are made.
            ConflictError: local changes would be lost, or something is under way.
            UsageError: a merge without ``mainline``, no commit in a range.
        """
        return operations.pick.pick(
            self._context,
            "cherry-pick",
            revisions,
            told=merging.strategies.make_choices(strategy, rules, parameters or {}, seed),
            mainline=mainline,
            record_origin=record_origin,
            commit=commit,
            no_gate=no_gate,
            progress=progress,
        )

    def revert(
        self,
        *revisions: str,
        strategy: str | None = None,
        rules: Sequence[tuple[str, str]] = (),
        arithmetic: bool = False,
        mainline: int | None = None,
        commit: bool = True,
        no_gate: bool = False,
        progress: Progress = None,
    ) -> MergeResult:
        """Undo the changes of commits on the current branch.

        A tensor becomes what it was in the commit's parent, bit for bit. One that changed again
        since is a conflict. With ``arithmetic`` the commit's update is subtracted from it instead:
        new = now − (commit − parent), rounded to its dtype, which is not bit-exact.

        Args:
            revisions: commits, or ranges ``A..B``, the newest of a range first.
            strategy: what else decides conflicts, as in ``merge``; ``theirs`` is the parent.
            rules: (pattern, strategy).
            arithmetic: subtract task vectors where tensors changed since.
            mainline: the parent, from 1, that a merge is compared with.
            commit: make commits; otherwise only stage the changes.
            no_gate: as for ``commit``.
            progress: called with bytes stored and written.

        Returns:
            What the last step did; with conflicts, ``conclude``, ``skip`` or ``abort`` goes on.

        Raises:
            GateError: a commit fails a gate; those before it are made.
            ConflictError: local changes would be lost, or something is under way.
            UsageError: a merge without ``mainline``, a strategy together with ``arithmetic``.
        """
        if arithmetic and strategy is not None:
            raise UsageError("`arithmetic` is a strategy; give no other")
        parameters = {"weight": 1.0} if arithmetic else {}
        chosen = "task_arithmetic" if arithmetic else strategy
        return operations.pick.pick(
            self._context,
            "revert",
            revisions,
            told=merging.strategies.make_choices(chosen, rules, parameters, 0),
            mainline=mainline,
            commit=commit,
            no_gate=no_gate,
            progress=progress,
        )

    def merge_recipe(
        self,
        recipe: str,
        output: StrPath,
        *,
        seed: int = 0,
        force: bool = False,
        progress: Progress = None,
    ) -> RecipeResult:
        """Merge models by a mergekit recipe into a new file or folder; nothing is committed.

        Everything is checked before a weight is read. The same recipe, seed and models give the
        same bytes on any machine with the same versions.

        Args:
            recipe: the text of the recipe; its models are revisions, ``REV:PATH``, checkpoint files
                or folders.
            output: a safetensors file, or a folder, which also gets the base model's
                configuration and tokenizer, and the recipe.
            seed: of methods that draw random numbers.
            force: replace files that are there.
            progress: called with bytes written.

        Raises:
            FormatError: the recipe is not valid.
            NotFoundError: a method, model, layer or tensor that does not exist.
            UsageError: models or parameters that do not fit together.
            UnsupportedError: something that mvc leaves out, or elements that cannot be averaged.
            ConflictError: the output exists.
        """
        return operations.merge_recipe.merge_recipe(
            self._context, recipe, Path(output), seed=seed, force=force, progress=progress
        )

    def commit_recipe(
        self,
        recipe: str,
        *,
        seed: int = 0,
        message: str | None = None,
        no_gate: bool = False,
        progress: Progress = None,
    ) -> MergeResult:
        """Merge models by a mergekit recipe and commit the result to the current branch.

        The result replaces the base model's file, or the first model's; the commits of the models
        become parents. The commit holds the recipe, and its trailers record what the names stood
        for, so that ``replay_merge`` can repeat it.

        Args:
            recipe: the text of the recipe, as for ``merge_recipe``.
            seed: of methods that draw random numbers.
            message: of the commit.
            no_gate: as for ``commit``.
            progress: called with bytes stored and written.

        Raises:
            FormatError: the recipe is not valid.
            NotFoundError: a method, model, layer or tensor that does not exist.
            UsageError: models or parameters that do not fit together.
            UnsupportedError: something that mvc leaves out, or elements that cannot be averaged.
            GateError: the result fails a gate.
            ConflictError: local changes would be lost, or a merge is under way.
        """
        return operations.commit_recipe.commit_recipe(
            self._context, recipe, seed=seed, message=message, no_gate=no_gate, progress=progress
        )

    def replay_merge(self, revision: str = "HEAD", *, progress: Progress = None) -> MergeReplay:
        """Repeat a merge from the record in its commit, and compare the result to the bit.

        Nothing moves. Strategy, rules, parameters and seed come from the trailers, a recipe from
        the commit's files. Plain files named by a recipe must still be there, unchanged.

        Args:
            revision: a merge commit, or one made by a recipe.
            progress: called with bytes computed.

        Raises:
            NotFoundError: no such revision, or a file that the recipe named is gone.
            UsageError: the commit merges nothing.
        """
        return operations.replay_merge.replay_merge(self._context, revision, progress=progress)
