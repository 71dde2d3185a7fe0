"""Files and directories that only this user can write, opened so that no other process can swap them.

The cache's files are run as code, so a user who can write there can run code as this user. The path to a directory is
walked from the root: each directory and link on it must belong to this user or to root, and no other user may be able
to replace it. Every component is opened relative to its parent and checked after it is open (`openat`, `fstat`), so the
checked object is the one that is used.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import grp
import os
import pwd
import shlex
import stat
from collections.abc import Iterable
from pathlib import Path

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
_DIRECTORY = _FLAGS | os.O_DIRECTORY
_PASSED = getattr(os, "O_PATH", os.O_RDONLY) | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_DIRECTORY  # needs no right to read
_MOST_LINKS = 40  # as many as the kernel follows
_NOT_A_DIRECTORY = (errno.ENOTDIR, errno.ELOOP, errno.ENXIO)


class Refused(Exception):
    """Another user could change it. `command` fixes that, if a command can."""

    def __init__(self, reason: str, command: str = "") -> None:
        super().__init__(f"{reason}; {f'run: {command}' if command else 'choose another directory'}")
        self.reason = reason
        self.command = command


class NotAFile(Exception):
    """Not a regular file of this user (a link, a pipe, a directory, another user's file)."""


# -- directories ---------------------------------------------------------------------------------------------------


def open_private(path: Path, *, make: bool = True) -> tuple[int, str]:
    """A descriptor of the directory, and where it really is. What is missing is made, for this user alone. Raises
    Refused, or OSError."""
    real = _walk(path, make)
    return open_own(real), real


def open_own(real: str) -> int:
    """Open it again, after `open_private` has checked that no other user can replace it."""
    return _own(os.open(real, _DIRECTORY), real)


def open_below(parent: int, name: str, shown: str, *, make: bool = False) -> int:
    """A directory within one of this user's, which must also belong to this user. `shown` is its displayed path. If
    others could have written it, the only fix is to remove it."""
    return _own(_opened_or_made(name, parent, _DIRECTORY, make), shown, f"rm -r {shlex.quote(shown)}")


def _own(descriptor: int, shown: str, mend: str = "") -> int:
    """The descriptor, if its object belongs to this user and no other user may write it."""
    try:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid():
            raise Refused(f"{shown} belongs to user {status.st_uid}, not to this one ({os.geteuid()})")
        if others := _writers(status.st_mode):
            raise Refused(f"{shown} can be written by {others}", mend or f"chmod go-w {shlex.quote(shown)}")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _writers(mode: int) -> str:
    return "every user" if mode & stat.S_IWOTH else "its group" if mode & stat.S_IWGRP else ""


def _walk(path: Path, make: bool) -> str:
    """A directory's real path, after checking all its parents."""
    left = list(reversed(os.path.abspath(path).split("/")[1:]))
    here, shown, links = os.open("/", _PASSED), "/", 0
    try:
        while left:
            if not (name := left.pop()):
                continue
            _check_on_the_way(here, shown)
            below = os.path.normpath(os.path.join(shown, name))
            try:
                found = _opened_or_made(name, here, _PASSED, make)
            except OSError as error:
                if error.errno not in _NOT_A_DIRECTORY or (target := _link(name, here, below)) is None:
                    raise OSError(error.errno, error.strerror, below) from None
                links += 1
                if links > _MOST_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), below) from None
                left += reversed(target.split("/"))
                if not target.startswith("/"):
                    continue
                found, below = os.open("/", _PASSED), "/"
            os.close(here)
            here, shown = found, below
    finally:
        os.close(here)
    return shown


def _opened_or_made(name: str, parent: int, flags: int, make: bool) -> int:
    try:
        return os.open(name, flags, dir_fd=parent)
    except FileNotFoundError:
        if not make:
            raise
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=parent)
    return os.open(name, flags, dir_fd=parent)


def _link(name: str, parent: int, shown: str) -> str | None:
    """The target of a link; None if it is not a link. Its directory has been checked, so no other user can replace
    it."""
    try:
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
        target = os.readlink(name, dir_fd=parent)
    except OSError:
        return None
    if status.st_uid not in _trusted():
        raise Refused(f"{shown} is a link of user {status.st_uid}'s")
    return target


def _trusted() -> tuple[int, ...]:
    return os.geteuid(), 0


def _check_on_the_way(directory: int, shown: str) -> None:
    """Raises Refused if another user could replace the content of this directory. With the sticky bit (/tmp) only an
    entry's owner can."""
    status = os.fstat(directory)
    if status.st_uid not in _trusted():
        raise Refused(f"{shown} belongs to user {status.st_uid}, who could put another directory there")
    others = _writers(status.st_mode)
    if not others or status.st_mode & stat.S_ISVTX:
        return
    if others == "its group" and _has_only_trusted_members(status.st_gid, _trusted()) and not _has_acl(shown):
        return
    raise Refused(f"{shown} can be written by {others}", f"chmod go-w {shlex.quote(shown)}")


@functools.cache
def _has_only_trusted_members(group: int, trusted: tuple[int, ...]) -> bool:
    """Whether a group is this user's own, as where each user has one and directories are made writable by it."""
    try:
        named = [pwd.getpwnam(name).pw_uid for name in grp.getgrgid(group).gr_mem]
    except KeyError:  # nobody knows who is in it
        return False
    first = (user.pw_uid for user in pwd.getpwall() if user.pw_gid == group)
    return all(user in trusted for user in (*named, *first))


def _has_acl(path: str) -> bool:
    """Whether an access list grants rights to other users: the group's bits then include theirs."""
    try:
        return "system.posix_acl_access" in os.listxattr(path)
    except AttributeError:  # macOS, where such lists never show in the mode
        return False
    except OSError as error:
        return error.errno not in (errno.ENOTSUP, errno.EOPNOTSUPP)


# -- files ---------------------------------------------------------------------------------------------------------


def read_file(name: str, directory: int, at_most: int) -> bytes:
    """Raises NotAFile for anything but a file that only this user can have written."""
    try:
        descriptor = os.open(name, _FLAGS | os.O_NONBLOCK, dir_fd=directory)
    except OSError as error:
        if error.errno in _NOT_A_DIRECTORY:
            raise NotAFile(f"its {name} is not a file") from None
        raise
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise NotAFile(f"its {name} is not a file of this user's")
        if others := _writers(status.st_mode):
            raise NotAFile(f"its {name} can be written by {others}")
        if status.st_size > at_most:  # the size is checked first: read(n) would allocate the n that meta.json claims
            raise NotAFile(f"its {name} is longer than it may be")
        return file.read(status.st_size)


def write_file(name: str, directory: int, data: bytes) -> None:
    """A new file, for this user alone."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(name, flags, 0o600, dir_fd=directory), "wb") as file:
        file.write(data)


def names_in(directory: int) -> Iterable[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return ()
