"""``caslock run`` holds a lock while a command runs, and is otherwise not to be noticed."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from caslock import ClosableStore, Lock
from caslock.testing.stopwatch import Stopwatch
from tests.conftest import NewServer
from tests.support.command_line import CASLOCK, AtTerminal, caslock, environment, finished, line, start
from tests.support.locations import until

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="it needs process groups")

READY = "echo ready; while :; do sleep 0.02; done"


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_the_end_of_the_command_is_seen_though_its_signal_was_blocked(url: str) -> None:
    """A parent that blocks SIGCHLD passes that on to all that it starts."""
    command, blocked = [*CASLOCK, "run", "key", "--", "sleep", "0.2"], {signal.SIGCHLD}
    block = lambda: signal.pthread_sigmask(signal.SIG_BLOCK, blocked)  # noqa: E731 - an argument
    assert subprocess.run(command, env=environment(url), check=False, timeout=20, preexec_fn=block).returncode == 0


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (["true"], 0),
        (["sh", "-c", "exit 7"], 7),
        (["sh", "-c", "kill -TERM $$"], 143),
        (["sh", "-c", "kill -KILL $$"], 137),
        (["no-such-command"], 127),
        (["/"], 126),
    ],
    ids=str,
)
def test_the_status_is_that_of_the_command(command: list[str], status: int, url: str, store: ClosableStore) -> None:
    """Its exit status, 128 + n after signal n, 126 and 127 as a shell has them; and the key is free again."""
    code, output, errors = caslock("run", "key", "--", *command, store=url)
    assert (code, output) == (status, "")
    assert bool(errors) == (status in {126, 127})
    assert not Lock(store, "key").locked()


@pytest.mark.long
def test_the_key_is_held_while_the_command_runs(url: str, store: ClosableStore) -> None:
    """The record has the note and the owner; with the same owner another one holds it, too; else it is busy."""
    with start("run", "key", "--note", "nightly", "--owner", "me", "--", "sh", "-c", READY, store=url) as process:
        assert line(process) == "ready"
        assert (holder := Lock(store, "key").holder()) is not None
        assert (holder.owner, holder.note) == ("me", "nightly")
        assert caslock("run", "key", "--owner", "me", "--no-wait", "--", "true", store=url) == (0, "", "")
        for options in (["--no-wait"], ["--timeout", "0.2"]):
            code, output, errors = caslock("run", *options, "key", "--", "echo", "ran", store=url)
            assert (code, output) == (124, "")
            assert "'key'" in errors
            assert "nightly" in errors
        for status in (0, 124):  # who names the status expects it, and cron mails every word
            options = ["--no-wait", "--busy-exit-code", str(status)]
            assert caslock("run", *options, "key", "--", "echo", "ran", store=url) == (status, "", "")
        process.terminate()
        assert finished(process) == (143, "", "")
    assert not Lock(store, "key").locked()


def test_the_command_knows_its_keys_and_fences(url: str) -> None:
    """Its environment has the key, the fence and the owner; of several keys, one in a line, as they were given."""
    told = 'import os; print([os.environ[f"CASLOCK_{name}"].split("\\n") for name in ("KEY", "FENCE", "OWNER")])'
    first: list[list[str]] = eval(caslock("run", "k", "--owner", "me", "--", "python3", "-c", told, store=url)[1])  # noqa: S307
    assert [first[0], first[2]] == [["k"], ["me"]]
    several = caslock("run", "z", "k", "z", "--owner", "me", "--", "python3", "-c", told, store=url)[1]
    keys, fences, owners = eval(several)  # noqa: S307 - as our program has printed it
    assert (keys, owners) == (["z", "k"], ["me", "me"])
    assert all(int(fence) > int(first[1][0]) for fence in fences)


def test_all_keys_or_none(url: str, store: ClosableStore) -> None:
    """While one of the keys is held, the command does not run, and no other key is kept."""
    with Lock(store, "b"):
        code, output, _ = caslock("run", "a", "b", "c", "--no-wait", "--", "echo", "ran", store=url)
        assert (code, output) == (124, "")
        assert [key for key in "ac" if Lock(store, key).locked()] == []


def test_input_and_output_pass_untouched(url: str) -> None:
    """Every byte reaches the command, and comes back; other files that are open are there, too."""
    sent = os.urandom(300_000)
    command = [*CASLOCK, "run", "key", "--", "sh", "-c", "cat; cat /dev/fd/$FD >&2"]
    reading, writing = os.pipe()
    os.write(writing, b"from another file")
    os.close(writing)
    env, files = environment(url, FD=str(reading)), [reading]
    done = subprocess.run(command, input=sent, capture_output=True, env=env, pass_fds=files, timeout=30, check=False)
    os.close(reading)
    assert (done.returncode, done.stderr) == (0, b"from another file")
    assert done.stdout == sent


NAMES = ["USR1", "HUP", "INT", "TERM", "QUIT", "ALRM", "XCPU"]
GROUP = f"trap 'wait; exit 3' TERM; (trap 'echo TERM; exit' TERM; {READY}) & wait"
SCRIPTS = [(name, f"trap 'echo {name}; exit 3' {name}; {READY}") for name in NAMES]


@pytest.mark.parametrize(("name", "script"), [*SCRIPTS, ("TERM", GROUP)])
def test_signals_are_passed_on(name: str, script: str, url: str, store: ClosableStore) -> None:
    """The command gets them, and what it has started, and may go on; the lock is held until it ends."""
    with start("run", "key", "--", "sh", "-c", script, store=url) as process:
        assert line(process) == "ready"
        process.send_signal(signal.Signals[f"SIG{name}"])
        assert finished(process)[:2] == (3, f"{name}\n")
    assert not Lock(store, "key").locked()


def test_an_ignored_signal_stays_ignored(url: str) -> None:
    """With nohup, SIGHUP ends neither caslock nor the command."""
    command = ["nohup", *CASLOCK, "run", "key", "--", "sh", "-c", "echo ready; read line; echo $line"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment(url), text=True, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert line(process) == "ready"
        process.send_signal(signal.SIGHUP)
        assert process.communicate("on\n", timeout=20)[0] == "on\n"
        assert process.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT], ids=lambda number: number.name)
def test_a_signal_ends_the_wait(number: signal.Signals, url: str, store: ClosableStore) -> None:
    """A signal ends the wait; the command does not run, and nothing takes the key later."""
    with Lock(store, "key", note="in the way") as hold:
        process = start("run", "key", "--", "echo", "ran", store=url)
        assert until(lambda: listens(process))
        process.send_signal(number)
        code, output, _ = finished(process)
        assert (code, output) == (-number if number == signal.SIGINT else 128 + number, "")
        hold.ensure_held()
    assert not Lock(store, "key").locked()


def listens(process: subprocess.Popen[str]) -> bool:
    """Tell whether a process has a handler of SIGTERM, as it has while it waits."""
    text = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
    caught = re.findall("^SigCgt:\\s(.*)$", text, re.MULTILINE)
    return bool(int(caught[0], 16) >> (signal.SIGTERM - 1) & 1)


@pytest.mark.long
def test_a_lost_lock_ends_the_command(url: str, store: ClosableStore) -> None:
    """SIGTERM first; a group that ignores it is killed after a while, and the status is of its own."""
    script = f"trap 'echo asked' TERM; (trap '' TERM; exec sleep 100) & echo $!; {READY}"
    arguments = ["run", "key", "--ttl", "3", "--kill-after", "5", "--", "sh", "-c", script]
    with start(*arguments, store=url) as process:
        inner = int(line(process))
        assert line(process) == "ready"
        Lock(store, "key").force_release()
        code, output, errors = finished(process)
    assert (code, output) == (123, "asked\n")
    assert "caslock: lock 'key' was lost: " in errors  # the shell may have said that it was terminated
    assert errors.count("was lost") == 1
    assert until(lambda: gone(inner))


def test_a_loss_that_the_release_finds_is_told_once(url: str, store: ClosableStore) -> None:
    """As one that a renewal finds."""
    with start("run", "key", "--", "sh", "-c", "echo ready; read x", store=url, stdin=subprocess.PIPE) as process:
        assert line(process) == "ready"
        Lock(store, "key").force_release()
        code, _, errors = finished(process)
    assert code == 123
    assert "caslock: lock 'key' was lost: " in errors
    assert errors.count("was lost") == 1


def test_a_command_that_ends_when_asked_is_not_waited_for(url: str, store: ClosableStore) -> None:
    """The status says that the lock was lost, also if the command has ended well, and at once."""
    arguments = ["run", "a", "b", "--ttl", "3", "--kill-after", "60"]
    with start(*arguments, "--", "sh", "-c", f"trap 'exit 0' TERM; {READY}", store=url) as process:
        assert line(process) == "ready"
        Lock(store, "b").force_release()
        assert finished(process)[0] == 123
    assert not Lock(store, "a").locked()


def test_kill_minus_nine_leaves_at_most_one_lease(url: str, store: ClosableStore) -> None:
    """Nobody renews the lease of a caslock that was killed."""
    with start("run", "key", "--ttl", "1", "--", "sh", "-c", "echo $$; exec sleep 60", store=url) as process:
        command = line(process)
        process.kill()
        with Stopwatch() as watch:
            assert Lock(store, "key", timeout=50).acquire()
        assert watch.seconds < 5
        with contextlib.suppress(ValueError, ProcessLookupError):  # where its lease has ended before
            os.kill(int(command), signal.SIGKILL)


@pytest.mark.long
def test_a_store_that_goes_away_does_not_change_the_status(new_redis: NewServer) -> None:
    """When the release gets no answer, the status is still that of the command; before, it is 125."""
    server = new_redis()
    arguments = ["run", "key", "--store", f"{server.url}?socket_timeout=0.3", "--"]
    with start(*arguments, "sh", "-c", "echo on; read x; exit 5", stdin=subprocess.PIPE) as process:
        assert line(process) == "on"
        server.pause()
        code, _, errors = finished(process)
        assert (code, "redis://" in errors) == (5, True)
        code, output, errors = caslock(*arguments, "echo", "ran")
        assert (code, output, "no answer" in errors) == (125, "", True)
        server.resume()


def test_a_cron_job_of_several_machines_runs_once(url: str, tmp_path: Path) -> None:
    """Four that start a job of 50 ms one after the other, within --min-hold, run it once; the others are not errors."""
    began = tmp_path / "began"
    arguments = ["run", "job", "--no-wait", "--busy-exit-code", "0", "--min-hold", "600"]
    processes = []
    for _ in range(4):
        processes.append(start(*arguments, "--", "sh", "-c", f"echo ran >> {began}; sleep 0.05", store=url))
        time.sleep(0.4)  # their clocks differ
    assert [finished(process)[0] for process in processes] == [0, 0, 0, 0]
    assert began.read_text() == "ran\n"
    assert caslock("run", "job", "--no-wait", "--", "true", store=url)[0] == 124


BAD = {
    ("run", "key", "--min-hold", "5", "--owner", "me", "--", "true"): (2, "min_hold needs a private owner"),
    ("run", "key", "--min-hold", "5", "--store", "dynamodb://eu-central-1", "--", "true"): (2, "would not get the key"),
    ("run",): (2, "KEY"),
    ("run", "key"): (2, "--"),
    ("run", "key", "--"): (2, "command"),
    ("run", "key", "--", ""): (2, "command"),
    ("run", "--", "true"): (2, "KEY"),
    ("run", "key", "--ttl", "0", "--", "true"): (2, "ttl must be"),
    ("run", "key", "--ttl", "x", "--", "true"): (2, "--ttl"),
    ("run", "key", "--timeout", "5", "--no-wait", "--", "true"): (2, "not both"),
    ("run", "key", "--kill-after", "nan", "--", "true"): (2, "'nan' is not a number"),
    ("top", "--interval", "nan", "--json"): (2, "'nan' is not a number"),
    ("verify", "nosuch://host", "--seconds", "nan"): (2, "'nan' is not a number"),
    ("verify",): (2, "Usage: caslock verify"),
    ("verify", "redis://h", "--store", "a:b"): (2, "Usage: caslock verify"),
    ("verify", "redis://h", "--seconds", "0"): (2, "Usage: caslock verify"),
    ("verify", "memory://", "--seconds", "x"): (2, "Invalid value for '--seconds': 'x' is not a valid"),
    ("run", "key", "--busy-exit-code", "256", "--", "true"): (2, "--busy-exit-code"),
    ("run", "", "--", "true"): (2, "key must be"),
    ("run", "key", "--store", "nonsense", "--", "true"): (2, "begin with a scheme"),
    ("run", "key", "--store", "memory://", "--", "true"): (2, "one process"),
    ("run", "key", "--store", "sqlite:////no/such/folder/l.db", "--", "true"): (125, "directory must exist"),
    ("run", "key", "--", "echo a && echo b"): (127, "-- sh -c 'LINE'"),
    ("doctr",): (2, "No such command 'doctr'. Did you mean 'doctor'?"),
}


@pytest.mark.parametrize("arguments", BAD, ids=lambda arguments: " ".join(arguments)[:50])
def test_bad_input_gets_a_sentence(arguments: tuple[str, ...], url: str) -> None:
    """A sentence that says what is wrong, a status, and no traceback."""
    status, told = BAD[arguments]
    code, output, errors = caslock(*arguments, store=url)
    assert (code, output) == (status, "")
    assert told in errors


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("show", "key", "--store", "nosuch://host"), 2),
        (("break", "key"), 2),
        (("run", "key", "--no-wait", "--", "true"), 124),
        (("run", "other", "--", "no-such-command"), 127),
    ],
    ids=str,
)
@pytest.mark.parametrize("streams", ["<&- >&- 2>&-", "2>/dev/full"])
def test_the_status_is_right_though_nothing_can_be_said(
    arguments: tuple[str, ...], status: int, streams: str, url: str, store: ClosableStore
) -> None:
    """A parent that has closed the standard streams, or whose disk is full, still learns what has happened."""
    without = ["sh", "-c", f'exec "$@" {streams}', "sh", *CASLOCK, *arguments]
    with Lock(store, "key"):
        assert subprocess.run(without, env=environment(url), check=False, timeout=250).returncode == status
        assert Lock(store, "key").locked()


def test_the_usual_store_is_a_file_of_the_user(tmp_path: Path) -> None:
    """Without a store, the locks are in the user's state folder, which is made where there is none."""
    env = environment(XDG_STATE_HOME=str(tmp_path / "state"), HOME=str(tmp_path))
    inner = [*CASLOCK, "run", "key", "--no-wait", "--", "true"]
    done = subprocess.run([*CASLOCK, "run", "key", "--", *inner], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, "'key'" in done.stderr) == (124, True)
    files = list(tmp_path.rglob("locks.db"))
    assert len(files) == 1
    assert files[0].parent.stat().st_mode & 0o077 == 0
    done = subprocess.run(
        [*CASLOCK, "run", "key", "--", "true"],
        env=env | {"XDG_STATE_HOME": str(files[0])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, "can't be made: Not a directory" in done.stderr) == (125, True)


LOADED = """
import atexit, runpy, sys
atexit.register(lambda: print(*sys.modules, file=sys.stderr))
runpy.run_module("caslock", run_name="__main__", alter_sys=True)
"""
"""Runs the command line, and prints which modules it has loaded."""


def test_it_loads_only_what_it_needs(url: str) -> None:
    """Neither asyncio nor another store nor a table is imported: they would take longer than all the rest."""
    command = [sys.executable, "-c", LOADED, "run", "key", "--", "true"]
    done = subprocess.run(command, env=environment(url), capture_output=True, text=True, check=True)
    too_much = {"asyncio", "redis", "rich", "pytest", "argparse", "subprocess", "platformdirs"}
    modules = set(done.stderr.split())
    assert "caslock.stores.sqlite" in modules
    assert not modules & too_much


def test_the_terminal_is_the_commands(url: str) -> None:
    """It may read what is typed, is in the foreground, and afterwards caslock's own group is."""
    script = "'read x; echo got $x; ps -o stat= -p $$ | tr -d \"\\n\" | grep + >/dev/null && echo in front'"
    after = f"{' '.join(CASLOCK)} run key -- sh -c {script}; read y; echo then $y"
    with AtTerminal("sh", "-c", after, env=environment(url)) as terminal:
        terminal.type("one\ntwo\n", shows="got one")
        terminal.read_until("in front")
        terminal.read_until("then two")
        assert terminal.status() == 0


def test_ctrl_c_ends_the_command_and_the_script_around_it(url: str, store: ClosableStore) -> None:
    """As without caslock: the script does not go on."""
    script = f"{' '.join(CASLOCK)} run key -- sh -c 'echo ready; exec sleep 100'; echo went on"
    with AtTerminal("bash", "-c", script, env=environment(url)) as terminal:
        terminal.read_until("ready")
        terminal.type("\x03")
        assert terminal.status() in {-signal.SIGINT, 130}
    assert not Lock(store, "key").locked()


def test_a_command_may_handle_ctrl_c(url: str) -> None:
    """Then the script around it goes on."""
    script = f"{' '.join(CASLOCK)} run key -- sh -c \"trap 'exit 9' INT; {READY}\"; echo went on with $?"
    with AtTerminal("bash", "-c", script, env=environment(url)) as terminal:
        terminal.read_until("ready")
        terminal.type("\x03", shows="went on with 9")
        assert terminal.status() == 0


@contextlib.contextmanager
def in_a_shell(url: str) -> Iterator[AtTerminal]:
    """Begin with the prompt of a shell that has job control, and leave the shell at the end."""
    with AtTerminal("bash", "--norc", "-i", env=environment(url, PS1="prompt$ ")) as terminal:
        terminal.read_until("prompt$ ")
        yield terminal
        terminal.type("exit 0\n")
        assert terminal.status() == 0


def in_front(terminal: AtTerminal) -> None:
    """Wait until the command is in the foreground, and has read there: what ends a stop for that undoes a Ctrl-Z."""
    terminal.type("go\n")
    pid = ""
    while not pid.isdigit():  # what was typed is shown, too
        terminal.read_until("pid ")
        pid = terminal.read_until(".")[:-1]
    assert until(lambda: terminal.foreground() == int(pid))


def test_ctrl_z_stops_and_fg_continues(url: str) -> None:
    """In a shell with job control, Ctrl-Z gives the prompt back, and `fg` gives the command the terminal again."""
    with in_a_shell(url) as terminal:
        command = 'read go; echo pid $$.; read x; echo "got $x"; read y; exit $y'
        terminal.type(f"{' '.join(CASLOCK)} run key -- sh -c '{command}'\n")
        in_front(terminal)
        terminal.type("\x1a", shows="Stopped")
        terminal.type("fg\n")
        terminal.type("one\n", shows="got one")
        terminal.type("6\necho status $?\n", shows="status 6")


def test_the_next_program_of_a_pipeline_has_the_terminal(url: str, tmp_path: Path) -> None:
    """As a pager needs it: it reads the terminal while the command runs, and Ctrl-Z and Ctrl-C reach both."""
    # None of them forks once Ctrl-Z may come: a shell in vfork() waits for its child, which is stopped, and can't stop.
    command = f"{' '.join(CASLOCK)} run key -- sh -c 'echo $$ > {tmp_path}/pid; echo ready; exec sleep 100'"
    pager = 'sh -c \'read x; echo a""sks; read y < /dev/tty; echo "$x, $y"; read z < /dev/tty\''
    with in_a_shell(url) as terminal:
        terminal.type(f"{command} | {pager}; echo $((41 + 1)) after\n", shows="asks")
        terminal.type("typed\n", shows="ready, typed")
        terminal.type("\x1a", shows="Stopped")
        terminal.read_until("prompt$ ")
        terminal.type("fg\n", shows="read z")
        assert until(lambda: terminal.foreground() != terminal.pid)
        terminal.type("\x03", shows="prompt$ ")
        assert until(lambda: gone(int((tmp_path / "pid").read_text())))


def test_a_job_in_the_background_waits_for_the_terminal(url: str) -> None:
    """A command that reads the terminal from the background is stopped, as any other job, until `fg`."""
    with in_a_shell(url) as terminal:
        terminal.type(f"{' '.join(CASLOCK)} run key -- sh -c 'read x; echo \"got $x\"' &\n", shows="prompt$ ")
        for _ in range(200):  # the shell tells of it at its next prompt
            if "Stopped" in terminal.type("jobs\n", shows="prompt$ "):
                break
            time.sleep(0.05)
        terminal.type("fg\n", shows="run key")
        terminal.type("one\n", shows="got one")


def test_a_stopped_command_whose_lock_is_lost_does_not_go_on(url: str, store: ClosableStore, tmp_path: Path) -> None:
    """Nobody renews the lease of a stopped caslock; when it continues and the lease is over, the command is ended."""
    program, goes_on = tmp_path / "program.py", tmp_path / "goes on"
    clock = f"lambda of: read(of) if os.path.exists({str(goes_on)!r}) else first.setdefault(of, read(of))"
    begin = f"import os, sys, time\nread, first = time.clock_gettime, {{}}\ntime.clock_gettime = {clock}\n"
    program.write_text(f"{begin}from caslock.cli import main\nsys.exit(main())")  # no lease of it ends before the stop
    with in_a_shell(url) as terminal:
        command = 'read go; echo pid $$.; read x; echo "g""ot"'
        terminal.type(f"{sys.executable} {program} run key --ttl 0.5 -- sh -c '{command}'\n")
        in_front(terminal)
        terminal.type("\x1a", shows="Stopped")
        assert Lock(store, "key", timeout=10).acquire()
        goes_on.touch()
        terminal.type("fg\n", shows="run key")
        assert "got" not in terminal.type("echo status $?\n", shows="status 123")
