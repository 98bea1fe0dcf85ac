"""The command ``mvc NAME`` is the function ``NAME``, with ``_`` for ``-``, of a module of that name.

Those that share more than options are in one module, which ``HOMES`` names.
"""

HOMES = {
    "switch": "checkout",
    "reset": "restore",
    "cherry_pick": "pick",
    "revert": "pick",
    "pull": "fetch",
    "publish": "push",
    "repack": "gc",
    "mv": "rm",
    "tag": "branch",
    "reflog": "log",
    "rollback": "undo",
    "cat": "ls",
}
