"""Real signals to real processes: held back until the step is over, and then obeyed."""

import signal
import textwrap

import pytest

from support.programs import start

_HEAD = """
import os, signal, sys, threading
from mvc_hooks.run.signals import SignalWatch
def send(number): os.kill(os.getpid(), number)
def say(*words): print(*words, flush=True)
watch = SignalWatch()
"""


def _run(body):
    text = _HEAD + textwrap.dedent(body)
    process = start("-c", text)
    out, err = (said.decode() for said in process.communicate(timeout=300))
    return process.returncode, out.split("\n")[:-1], err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_default(number):
    code, words, errors = _run(f"""
        watch.start()
        send({number:d})
        say("step goes on", watch.caught)
        watch.deliver()
        say("never")
    """)
    assert words == [f"step goes on {number.name}"]
    assert code == -number
    assert ("KeyboardInterrupt" in errors) == (number == signal.SIGINT)


def test_ctrl_c_can_be_caught():
    code, words, _ = _run("""
        watch.start()
        send(signal.SIGINT)
        try:
            watch.deliver()
        except KeyboardInterrupt:
            say("caught", watch.caught)
        say(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
    """)
    assert (code, words) == (0, ["caught None", "True"])


def test_custom_handler_that_lets_the_run_go_on():
    code, words, _ = _run("""
        def requeue(number, frame):
            say("requeue", number)
        signal.signal(signal.SIGTERM, requeue)
        watch.start()
        for _ in range(2):
            send(signal.SIGTERM)
            say("caught", watch.caught)
            watch.deliver()
        watch.stop()
        say(signal.getsignal(signal.SIGTERM) is requeue)
    """)
    assert code == 0
    assert words == ["caught SIGTERM", "requeue 15"] * 2 + ["True"]


def test_ignored_stays_ignored():
    code, words, _ = _run("""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        watch.start()
        send(signal.SIGTERM)
        say(watch.caught, signal.getsignal(signal.SIGTERM) is signal.SIG_IGN)
        watch.deliver()
        watch.stop()
        say("alive")
    """)
    assert (code, words) == (0, ["None True", "alive"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_one_is_not_held_back(number):
    code, words, _ = _run(f"""
        watch.start()
        send({number:d})
        say("held")
        send({number:d})
        say("never")
    """)
    assert (code, words) == (-number, ["held"])


def test_another_one_is_the_one_that_waits():
    code, words, _ = _run("""
        watch.start()
        send(signal.SIGINT)
        send(signal.SIGTERM)
        say(watch.caught)
        watch.deliver()
    """)
    assert (code, words) == (-signal.SIGTERM, ["SIGTERM"])


def test_started_twice_gives_the_first_handlers_back():
    code, words, _ = _run("""
        watch.start()
        watch.start()
        watch.stop()
        say(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)
    """)
    assert (code, words) == (0, ["True"])


def test_a_handler_that_came_later_stays():
    code, words, _ = _run("""
        watch.start()
        def later(number, frame):
            say("later")
        signal.signal(signal.SIGTERM, later)
        watch.stop()
        send(signal.SIGTERM)
    """)
    assert (code, words) == (0, ["later"])


def test_made_in_another_thread_it_does_nothing():
    code, words, _ = _run("""
        thread = threading.Thread(target=watch.start)
        thread.start()
        thread.join()
        say(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)
    """)
    assert (code, words) == (0, ["True"])


def test_delivered_in_another_thread():
    code, words, _ = _run("""
        watch.start()
        send(signal.SIGTERM)
        say(watch.caught)
        thread = threading.Thread(target=watch.deliver)
        thread.start()
        thread.join()
        signal.pause()
    """)
    assert (code, words) == (-signal.SIGTERM, ["SIGTERM"])


def test_stopped_in_another_thread_it_holds_nothing_back():
    code, words, _ = _run("""
        watch.start()
        thread = threading.Thread(target=watch.stop)
        thread.start()
        thread.join()
        say("stopped")
        send(signal.SIGTERM)
        signal.pause()
    """)
    assert (code, words) == (-signal.SIGTERM, ["stopped"])
