"""Everything a training run needs to go on exactly where it was, as one nested state and back.

For custom loops; ``Checkpointer`` does the same by itself. ``capture`` changes nothing and draws no
random number. ``restore`` is strict: a part that the state lacks, that the call does not pass, or
that has another form is an error before anything is touched, and a part that does not come back to
the bit is an error as well. A silently missing part is how resumed runs drift apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mvc import NotFoundError, UsageError
from mvc_hooks.parts.make import make_parts
from mvc_hooks.parts.part import DETAILS
from mvc_hooks.parts.restoring import capture_parts, from_values, restore_parts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def capture(**parts: object) -> dict[str, Any]:
    """Return the state of all parts and of the process's random number generators.

    Args:
        **parts: name → model, optimizer, scheduler, loader, generator, anything with
            ``state_dict``, a plain value (a step counter, a dict), or a dict or list of these.

    Returns:
        Name → state, ``rng``, and ``details``: what a state dict lacks (frozen parameters, ties,
        parameter names). Tensors are the live ones, not copies: commit them before the next
        optimizer step.

    Raises:
        UsageError: a reserved name, or an object that has no state.
    """
    return capture_parts(make_parts(parts))


def restore(
    state: Mapping[str, Any], *, allow: Sequence[str] = (), **parts: object
) -> dict[str, Any]:
    """Restore a captured state to the parts and to the random number generators, exactly.

    Args:
        state: what ``capture`` returned, as ``Repo.load_state`` returns it.
        allow: patterns (``model.head.*``) of what may have another form: it stays as it is.
        **parts: the same names; live objects take their state in place, for a plain value (None
            will do) the stored one is returned.

    Returns:
        Name → value of the parts that are plain values.

    Raises:
        NotFoundError: the state lacks a part; nothing was touched.
        UsageError: the state has a part that the call does not pass; nothing was touched.
        ConflictError: a part has another form than its state; nothing was touched.
        MvcError: something did not come back to the bit.
    """
    made = make_parts(parts)
    missing = [name for name in made if name not in state]
    if missing:
        raise NotFoundError(f"the state has no {missing[0]!r}")
    extra = [name for name in state if name not in made and name != DETAILS]
    if extra:
        raise UsageError(
            f"the state has {extra[0]!r}, which the call does not pass",
            hint=f"pass {extra[0]}=... (None returns its value)",
        )
    # A state that was put together by hand has no details, so they cannot be compared.
    older = () if DETAILS in state else (DETAILS,)
    return restore_parts(from_values(state), made, allow=[*allow, *older])
