"""Whether a store keeps what refs need is asked once, and remembered in the config."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.errors import UnsupportedError, UsageError
from mvc.storage.opening import open_store

if TYPE_CHECKING:
    from mvc.remotes.settings import RemoteSettings
    from mvc.storage.probe import ProbeReport
    from mvc.workspace.context import Context

_TRUSTED = ("file", "memory")  # no store that others made


def check_store(context: Context, settings: RemoteSettings) -> ProbeReport:
    """Return what the store of a remote keeps of its promises, and remember whether it is enough."""
    from mvc.storage.probe import probe_store  # noqa: PLC0415  rarely needed

    if settings.store is None:
        raise UsageError(f"{settings.url} is a Git host without a store: there is nothing to check")
    report = probe_store(open_store(settings.store, settings.options))
    _remember(context, settings, report)
    return report


def require_safe_refs(context: Context, settings: RemoteSettings, *, has_root: bool) -> None:
    """Refuse a store that does not keep what refs need, unless it is known that it does.

    A store that is given by its URL alone is asked before its first root is written.
    """
    store = settings.store
    if store is None or store.scheme in _TRUSTED or settings.is_checked:
        return
    if settings.name is None and has_root:
        return
    from mvc.storage.probe import probe_refs  # noqa: PLC0415  as above

    report = probe_refs(open_store(store, settings.options))
    _remember(context, settings, report)
    if report.failed:
        first = report.failed[0]
        raise UnsupportedError(
            f"{store} is not safe for refs: {first.name}: {first.detail}",
            hint=f'"mvc remote check {settings.name or store}" shows all that it lacks',
        )


def _remember(context: Context, settings: RemoteSettings, report: ProbeReport) -> None:
    if settings.name is None:
        return
    key = f"remote.{settings.name}.checked"
    if report.ok:
        context.history.config.set(key, f"{report.tags} {settings.place}")
    elif key in context.history.config.read():
        context.history.config.unset(key)
