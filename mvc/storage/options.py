"""How a store is reached, beside its URL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

DEFAULT_TIMEOUT_S = 60


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """How a store is reached, beside its URL.

    Attributes:
        endpoint: URL of an S3 server that is not Amazon's; else what the environment names.
        region: of the bucket; else what the environment names.
        timeout_s: after how many seconds without an answer a request is given up and tried again.
        spool: the folder of objects on their way; the system's own by default.
        bare_tags: whether it is known to want the tags of conditional puts without quotes.
    """

    endpoint: str | None = None
    region: str | None = None
    timeout_s: int = DEFAULT_TIMEOUT_S
    spool: Path | None = None
    bare_tags: bool = False
