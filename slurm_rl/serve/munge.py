"""Identifies the sender of a munge credential: Slurm's own way to identify users across machines.

A credential is bound to one request by its payload, and munged accepts each only once and for some minutes.
"""

from __future__ import annotations

import re
import subprocess

from slurm_rl.errors import EnvironmentMissing

SCHEME = "Munge "
_LONGEST = 4096
_SECONDS = 4.0
_SHAPE = re.compile(r"MUNGE:[A-Za-z0-9+/=]+:")


def payload(method: str, path: str) -> str:
    """What a credential for a request must say."""
    return f"slurm-rl {method} {path}"


def credential(method: str, path: str, socket: str = "") -> str:
    """A credential of the calling user for one request."""
    command = ["munge", f"--string={payload(method, path)}", *([f"--socket={socket}"] if socket else [])]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except FileNotFoundError:
        raise EnvironmentMissing("munge is not installed: the service identifies users by it") from None
    except subprocess.TimeoutExpired:
        raise EnvironmentMissing("munged does not answer; is munge.service running?") from None
    if done.returncode != 0:
        raise EnvironmentMissing(f"munge: {done.stderr.strip()}")
    return done.stdout.strip()


def uid_behind(given: str, method: str, path: str, socket: str = "") -> int | str:
    """The uid that made a credential for this request, or why it counts for nothing."""
    if len(given) > _LONGEST or not _SHAPE.fullmatch(given):
        return "not a munge credential"
    command = ["unmunge", "--keys=STATUS,UID", *([f"--socket={socket}"] if socket else [])]
    try:
        done = subprocess.run(command, input=given.encode(), capture_output=True, timeout=_SECONDS, check=False)
    except FileNotFoundError:
        return "unmunge is not installed on the service's machine"
    except subprocess.TimeoutExpired:
        return "munged does not answer on the service's machine"
    head, _, said = done.stdout.partition(b"\n\n")
    if done.returncode != 0:
        status = re.search(rb"^STATUS:\s+(.*)$", head, re.MULTILINE)
        why = status[1] if status else done.stderr.strip()
        return f"munge refuses the credential: {why.decode(errors='replace')[:200]}"
    uid = re.search(rb"^UID:\s+.*\((\d+)\)$", head, re.MULTILINE)
    if uid is None or said != payload(method, path).encode():
        return "the credential was made for another request"
    return int(uid[1])
