from __future__ import annotations

import errno
import os
import pickle
import traceback

import pytest

import mvc
from mvc import errors
from mvc.errors import MvcError, StorageError, UsageError, translate_os_errors

KINDS = {
    "MvcError": ("error", 8, Exception),
    "UsageError": ("usage", 2, MvcError),
    "NotFoundError": ("not-found", 3, MvcError),
    "RepositoryNotFoundError": ("no-repository", 10, errors.NotFoundError),
    "ConflictError": ("conflict", 4, MvcError),
    "FormatError": ("format", 5, MvcError),
    "CorruptionError": ("corruption", 5, errors.FormatError),
    "StorageError": ("storage", 6, MvcError),
    "UnsupportedError": ("unsupported", 7, MvcError),
    "ReleasedError": ("released", 9, MvcError),
    "GateError": ("gate", 1, MvcError),
}
CLASSES = sorted(
    (value for value in vars(errors).values() if isinstance(value, type)),
    key=lambda kind: kind.__name__,
)


def test_the_tree_is_the_one_that_programs_rely_on():
    """Kinds and exit codes are a promise: new ones may come, none may change or go."""
    assert {kind.__name__: (kind.kind, kind.exit_code, kind.__base__) for kind in CLASSES} == KINDS
    assert all(getattr(mvc, name) is getattr(errors, name) for name in KINDS)


def test_exit_codes_say_which():
    codes = [kind.exit_code for kind in CLASSES if kind is not errors.CorruptionError]
    assert len(set(codes)) == len(codes)
    assert 0 not in codes
    assert [kind.kind for kind in CLASSES if kind.exit_code == 1] == ["gate"]  # a negative answer


@pytest.mark.parametrize("kind", CLASSES)
def test_message_and_hint_also_in_another_process(kind):
    error = kind("pack 3f9c is short", hint='run "mvc fsck"')
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    for one in (error, again):
        assert (one.message, one.hint) == ("pack 3f9c is short", 'run "mvc fsck"')
        assert str(one) == 'pack 3f9c is short\nhint: run "mvc fsck"'
    assert (kind("x").hint, str(kind("x"))) == (None, "x")
    assert kind.__doc__


def test_released_says_when_by_what_and_what_is_nearest():
    facts = {"commit": "a" * 40, "policy": "--keep-last 5", "time_s": 7, "nearest": "b" * 40}
    error = errors.ReleasedError("content was released", hint="take another", **facts)
    for one in (error, pickle.loads(pickle.dumps(error))):
        assert {name: getattr(one, name) for name in facts} == facts
        assert (one.message, one.hint) == ("content was released", "take another")


class TestTranslation:
    @pytest.mark.parametrize(
        ("code", "hint"),
        [
            (errno.ENOSPC, "space"),
            (errno.EDQUOT, "quota"),
            (errno.EACCES, "permissions"),
            (errno.EPERM, "permissions"),
            (errno.EROFS, "read-only"),
            (errno.EIO, None),
        ],
    )
    def test_what_the_machine_said(self, code, hint):
        with pytest.raises(StorageError) as caught, translate_os_errors("write pack 3f9c"):
            raise OSError(code, os.strerror(code))
        assert caught.value.message == f"cannot write pack 3f9c: {os.strerror(code).lower()}"
        assert hint is None if caught.value.hint is None else hint in caught.value.hint
        assert isinstance(caught.value.__cause__, OSError)

    @pytest.mark.parametrize(
        "kind",
        [FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, MvcError],
    )
    def test_answers_and_errors_of_ours_pass_through(self, kind):
        with pytest.raises(kind, match=r"^x$"), translate_os_errors("look"):
            raise kind("x")

    def test_without_a_number(self):
        with pytest.raises(StorageError, match=r"^cannot look: odd$"), translate_os_errors("look"):
            raise OSError("Odd")


def test_a_traceback_shows_the_hint():
    lines = traceback.format_exception_only(UsageError("no such option", hint="try another"))
    assert "".join(lines) == "mvc.errors.UsageError: no such option\nhint: try another\n"
    assert traceback.format_exception_only(UsageError("that is all")) == [
        "mvc.errors.UsageError: that is all\n"
    ]
