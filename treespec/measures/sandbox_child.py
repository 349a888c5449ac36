"""The process in which an unread program runs; started by ``sandbox``, never imported.

Reads its order from standard input, locks itself in, runs the program, and writes to a
pipe: a line that says what keeps it in, then the word that says "passed", or the error.
"""

import ctypes
import json
import os
import platform
import resource
import struct
import sys
import sysconfig

_REFUSED = (
    "ctypes",
    "os.chmod",
    "os.chown",
    "os.exec",
    "os.fork",
    "os.forkpty",
    "os.kill",
    "os.killpg",
    "os.posix_spawn",
    "os.spawn",
    "os.system",
    "resource",
    "signal.pthread_kill",
    "socket",
    "subprocess",
)
_REFUSED_MODULES = ("_ctypes", "_posixsubprocess", "_socket", "_testcapi")
_PATH_EVENTS = (
    "open",
    "os.chdir",
    "os.link",
    "os.listdir",
    "os.mkdir",
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.scandir",
    "os.symlink",
    "os.truncate",
    "os.utime",
)
_READING_EVENTS = ("os.listdir", "os.scandir")
_READ_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

# Landlock and seccomp have no functions in the C library; numbers are of the kernel's
# headers. The three of Landlock are the same on every architecture.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_READ_FILE, _READ_FOLDER = 1 << 2, 1 << 3
_FILE_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
_SCOPES = 3
_MACHINES = {
    "x86_64": (
        0xC000003E,
        # socket, socketpair, fork, vfork, execve, kill, ptrace, mount, tkill, tgkill,
        # unshare, prlimit64, setns, process_vm_writev, bpf, execveat, io_uring_setup
        (41, 53, 57, 58, 59, 62, 101, 165, 200, 234, 272, 302, 308, 311, 321, 322, 425),
        56,
    ),
    "aarch64": (
        0xC00000B7,
        # the same without fork and vfork, which it does not have
        (198, 199, 221, 129, 117, 40, 130, 131, 97, 261, 268, 271, 280, 281, 425),
        220,
    ),
}
_PIDFD_SEND_SIGNAL, _CLONE3 = 424, 435
_CLONE_THREAD = 0x10000
_EPERM, _ENOSYS = 1, 38
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000


def main() -> None:
    """Run the program of the order."""
    pipe = os.fdopen(int(sys.argv[1]), "w")
    order = json.load(sys.stdin)
    # A program that waits for input or meets another's cache has no business here.
    sys.stdin = open(os.devnull)  # noqa: SIM115 (open for the life of the process)
    program, word = order["program"], order["word"]
    limit(order)
    kept_in_by = lock_in()
    pipe.write(f"{kept_in_by}\n")
    pipe.flush()
    names = {"__name__": "__main__", "__builtins__": __builtins__}
    try:
        exec(compile(program, "program", "exec", dont_inherit=True), names)
        sys.stdout.flush()
    except BaseException as error:  # SystemExit is no success either
        pipe.write(f"{type(error).__name__}: {error}"[:500] or "failed")
    else:
        pipe.write(word)
    pipe.flush()
    os._exit(0)  # no handler of the program's comes after the verdict


def limit(order: dict) -> None:
    """Limit time, memory, output and processes."""
    seconds = int(order["timeout_s"]) + 1
    limits = {
        resource.RLIMIT_CPU: (seconds, seconds + 1),
        resource.RLIMIT_AS: (order["memory_bytes"],) * 2,
        resource.RLIMIT_FSIZE: (order["output_bytes"],) * 2,
        resource.RLIMIT_NPROC: (0, 0),
        resource.RLIMIT_NOFILE: (64, 64),
        resource.RLIMIT_CORE: (0, 0),
    }
    for what, most in limits.items():
        try:
            resource.setrlimit(what, most)
        except (OSError, ValueError):  # such a limit is not known everywhere
            continue


def lock_in() -> str:
    """Close what can be closed; return in words what keeps the program in."""
    roots = readable_places()
    means = []
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(38, 1, 0, 0, 0)  # no new privileges: both ask for it
        if landlock(libc, roots):
            means.append("Landlock (files)")
        if seccomp(libc):
            means.append("seccomp (processes, network)")
    means.append("Python's audit hook")
    for name in ("ctypes", "_ctypes", "resource"):
        sys.modules.pop(name, None)
    guard(roots)
    return ", ".join(means)


def readable_places() -> list[str]:
    """Return where the standard library is, and what it is linked with."""
    library = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib")]
    linked = ["/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache"]
    linked.append(os.path.join(sys.base_prefix, "lib"))
    places = {os.path.realpath(place) for place in (*library, *linked)}
    return sorted(place for place in places if os.path.exists(place))


def guard(roots: list[str]) -> None:
    """Refuse by Python's audit hook, which cannot be taken off again."""
    own = os.path.realpath(os.getcwd())

    def within(path: object, folders: list[str]) -> bool:
        if isinstance(path, int):
            return path <= 2
        place = os.path.realpath(os.fsdecode(path))
        return any(place == f or place.startswith(f + os.sep) for f in folders)

    def allowed(event: str, given: tuple) -> bool:
        paths = [p for p in given[:2] if isinstance(p, (str, bytes, os.PathLike))]
        if event == "open":
            paths = paths[:1] or [given[0]]
            reads = not (given[2] or 0) & _READ_FLAGS
        else:
            reads = event in _READING_EVENTS
        return all(within(path, [own, *roots] if reads else [own]) for path in paths)

    def hook(event: str, given: tuple) -> None:
        if event in _PATH_EVENTS:
            if not allowed(event, given):
                raise PermissionError(f"the sandbox refuses {event} of {given[0]!r}")
        elif event.startswith(_REFUSED):
            raise PermissionError(f"the sandbox refuses {event}")
        elif event == "import" and given[0] in _REFUSED_MODULES:
            raise PermissionError(f"the sandbox refuses to import {given[0]}")

    sys.addaudithook(hook)


def landlock(libc: ctypes.CDLL, roots: list[str]) -> bool:
    """Let the kernel refuse all files but the library's and the own folder's."""
    version = libc.syscall(_CREATE_RULESET, None, 0, 1)
    if version < 1:
        return False
    handled = max(rights for v, rights in _FILE_RIGHTS.items() if v <= version)
    scoped = _SCOPES if version >= 6 else 0  # no sockets, no signals to others
    attributes = struct.pack("QQQ", handled, 0, scoped)
    size = 24 if version >= 6 else 8
    ruleset = libc.syscall(_CREATE_RULESET, attributes, size, 0)
    if ruleset < 0:
        return False
    own = handled & ~(1 << 0)  # everything but executing
    for place in (os.getcwd(), *roots):
        reading = _READ_FILE | (_READ_FOLDER if os.path.isdir(place) else 0)
        rights = own if place == os.getcwd() else reading
        opened = os.open(place, os.O_RDONLY)
        rule = struct.pack("=Qi", rights, opened)
        if libc.syscall(_ADD_RULE, ruleset, 1, rule, 0) != 0:
            return False
        os.close(opened)
    done = libc.syscall(_RESTRICT_SELF, ruleset, 0) == 0
    os.close(ruleset)
    return done


def seccomp(libc: ctypes.CDLL) -> bool:
    """Let the kernel refuse new processes, sockets, and signals."""
    known = _MACHINES.get(platform.machine())
    if known is None:
        return False
    architecture, refused, clone = known
    load, equal, at_least, bits, back = 0x20, 0x15, 0x35, 0x45, 0x06

    def refuse(number: int, error: int) -> list:
        return [(equal, 0, 1, number), (back, 0, 0, _ERRNO | error)]

    lines = [
        (load, 0, 0, 4),
        (equal, 1, 0, architecture),
        (back, 0, 0, _ERRNO | _EPERM),
        (load, 0, 0, 0),
        (at_least, 0, 1, 0x40000000),  # numbers of a second table on x86
        (back, 0, 0, _ERRNO | _EPERM),
    ]
    for number in (*refused, _PIDFD_SEND_SIGNAL):
        lines += refuse(number, _EPERM)
    lines += refuse(_CLONE3, _ENOSYS)  # then the C library asks clone, which is below
    lines += [
        (equal, 0, 3, clone),
        (load, 0, 0, 16),
        (bits, 1, 0, _CLONE_THREAD),
        (back, 0, 0, _ERRNO | _EPERM),
        (back, 0, 0, _ALLOW),
    ]
    packed = b"".join(struct.pack("HBBI", *line) for line in lines)
    buffer = ctypes.create_string_buffer(packed, len(packed))
    program = struct.pack("HxxxxxxQ", len(lines), ctypes.addressof(buffer))
    return libc.prctl(22, 2, program, 0, 0) == 0


if __name__ == "__main__":
    main()
