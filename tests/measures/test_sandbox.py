"""The sandbox is attacked: whatever a program does, it fails, and the run goes on."""

import math
import subprocess
import sys
import tempfile
import time

import pytest

from treespec.errors import TreespecError
from treespec.measures import sandbox
from treespec.measures.sandbox import CHILD, Sandbox

SANDBOX = Sandbox(timeout_s=1.0, memory_mb=256)

ATTACKS = {
    "sys.exit with success": "import sys\nsys.exit(0)",
    "os._exit with success": "import os\nos._exit(0)",
    "an exit handler": "import atexit, os\natexit.register(os._exit, 0)\n1 / 0",
    "a fork bomb": "import os\nwhile True:\n    os.fork()",
    "a fork bomb past os": "from _posixsubprocess import fork_exec",
    "a shell": "import os\nassert os.system('true') == 0",
    "10 GB at once": "hoard = bytearray(10 << 30)",
    "memory piece by piece": "hoard = []\nwhile True:\n    hoard.append('x' * 9**7)",
    "megabytes of output": "for _ in range(4000):\n    print('x' * 1000)",
    "killing the parent": "import os\nos.kill(os.getppid(), 9)",
    "killing everybody": "import os\nos.kill(-1, 9)",
    "reading a file": "open('/etc/hostname').read()",
    "reading through a link": "import os\nos.symlink('/etc', 'x')\nopen('x/hostname')",
    "listing a folder": "import os\nos.listdir('/')",
    "writing elsewhere": "open('{outside}', 'w').write('x')",
    "removing elsewhere": "import os\nos.remove('{outside}')",
    "moving away": "import os\nos.chdir('/')",
    "a socket": "import socket\nsocket.socket()",
    "an address": "import urllib.request as r\nr.urlopen('http://127.0.0.1:1')",
    "the C library": "import ctypes\nctypes.CDLL(None).getpid()",
    "endless recursion": "def f():\n    f()\n\n\nf()",
    "no Python": "def",
    "a nul": "\0",
    "half a character": "x = '\ud800'",
    "a word of its own": "import os\nos.write(3, b'passed')\nos._exit(0)",
    "its own error": "class E(Exception):\n    __str__ = None\n\n\nraise E",
    "a deaf error": "raise type('E', (BaseException,), {{'__str__': lambda s: 1 / 0}})",
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_fails_and_the_run_goes_on(attack, tmp_path):
    kept = tmp_path / "kept"
    kept.write_text("kept")
    program = ATTACKS[attack].replace("{outside}", str(kept))
    trial = SANDBOX.run(program.replace("{{", "{").replace("}}", "}"))
    assert not trial.passed
    assert trial.reason
    assert "\n" not in trial.reason
    assert kept.read_text() == "kept"


@pytest.mark.parametrize(
    "program", ["while True:\n    pass", "import time\ntime.sleep(99)"]
)
def test_an_endless_program_ends(program, monkeypatch):
    monkeypatch.setattr(sandbox, "_START_S", 0.5)
    began = time.perf_counter()
    trial = SANDBOX.run(program)
    assert (trial.passed, trial.reason) == (False, "out of time")
    assert time.perf_counter() - began < 30


def test_memory_is_limited_and_not_only_time():
    """Half a gigabyte is there on any machine: only the limit can refuse it."""
    trial = SANDBOX.run("hoard = bytearray(512 << 20)")
    assert trial.reason.startswith("MemoryError")


def test_sound_code_passes_with_the_standard_library_and_files_of_its_own():
    trial = SANDBOX.run(
        "import collections, decimal, hashlib, itertools, json, math, random, re\n"
        "hashlib.md5(b'x')\n"
        "with open('own', 'w') as file:\n    file.write('x')\n"
        "assert open('own').read() == 'x'\n"
    )
    assert trial.passed
    assert "audit hook" in trial.kept_in_by


def test_the_folder_is_empty_the_environment_too_and_nothing_stays(
    monkeypatch, tmp_path
):
    """Python itself may set one variable, for a locale that it does not like."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("SECRET", "1")
    trial = SANDBOX.run(
        "import os\n"
        "assert os.listdir() == []\n"
        "assert set(os.environ) <= {'LC_CTYPE'}, os.environ\n"
        "open('own', 'w').write('x')\n"
    )
    assert trial.passed, trial.reason
    assert list(tmp_path.iterdir()) == []


def test_a_program_cannot_say_that_it_passed():
    """The word is drawn for each trial; an earlier one, or none, does not count."""
    trial = SANDBOX.run("print('passed')\nraise SystemExit")
    assert not trial.passed


KERNEL = """
import importlib.util, os, socket, sys
spec = importlib.util.spec_from_file_location("child", sys.argv[1])
child = importlib.util.module_from_spec(spec)
spec.loader.exec_module(child)
child.guard = lambda roots: None
os.chdir(sys.argv[2])
means = child.lock_in()
attacks = {
    "seccomp": [os.fork, lambda: os.kill(os.getppid(), 0), socket.socket,
                lambda: os.execv("/bin/true", ["true"])],
    "Landlock": [lambda: open("/etc/hostname"), lambda: os.listdir("/root"),
                 lambda: open("/tmp/never", "w")],
}
for name, tries in attacks.items():
    for attack in tries if name in means else []:
        try:
            attack()
        except PermissionError:
            continue
        print("got away:", name)
open("own", "w").write("x")
print(means)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks the Linux kernel")
def test_the_kernel_refuses_what_gets_past_the_audit_hook(tmp_path):
    ended = subprocess.run(
        [sys.executable, "-c", KERNEL, str(CHILD), str(tmp_path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert "got away" not in ended.stdout


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        ((0, 256), "timeout_s must be above 0 and at most 86400, got 0"),
        ((math.inf, 256), "at most 86400, got inf"),
        (("x", 256), "timeout_s must be a number"),
        ((1.0, 1), "memory_mb must be an integer >= 64"),
    ],
)
def test_limits_that_are_none_are_refused(limits, says):
    with pytest.raises(TreespecError, match=says):
        Sandbox(*limits)
