"""Scripts that run a lab's programs where the installed ones do not do: those of another release, without munge, or
in fast-forward.

Daemons of a root run in a mount namespace of their own, in which the root's /usr lies over the machine's: the machine's
users and files are there, its programs are not. A namespace ends with its last process, so no mount is left behind.
Slurm's commands need neither namespace nor rights: the root's own loader runs them.

auth/slurm has its sockets at fixed paths below /run. So that labs keep apart, daemons and commands of such a lab see a
directory of the lab there.
"""

from __future__ import annotations

from pathlib import Path

from slurm_rl.lab import requirements
from slurm_rl.lab.clock import LabClock
from slurm_rl.lab.roots import Root
from slurm_rl.lab.spec import Auth

# In bin/, for the front of PATH, and run as any user.
COMMANDS = (
    *("sacct", "sacctmgr", "salloc", "sattach", "sbatch", "sbcast", "scancel", "scontrol", "scrontab", "sdiag"),
    *("sinfo", "sprio", "squeue", "sreport", "srun", "sshare", "sstat", "strigger"),
)
# In sbin/, and run as root: daemons, and programs that see what they see.
DAEMONS = ("munged", "slurmctld", "slurmd", "slurmdbd", "mariadbd", "mariadb-install-db", "mariadb")
IN_LAB_TIME = ("slurmctld", "slurmd", "slurmdbd")  # munge and MariaDB go by real time
LUAS = ("lua5.1", "lua5.3", "lua5.4")
OWN_RUN = "SLURM_RL_LAB_RUN"  # names the directory a daemon sees as /run, if that is not run/ of the lab

# Only root may mount, and only in a namespace of its own may another user be root: then that user again.
_WITH_OWN_RUN = """\
run=${{{variable}:-{directory}/run}} user=$(id -u) group=$(id -g)
if [ "$user" = 0 ]; then
  exec unshare --mount --propagation private /bin/sh -c 'mount --bind "$0" /run && exec "$@"' "$run" "$@"
fi
exec unshare --map-root-user --mount /bin/sh -c \\
  'user=$1 group=$2; shift 2; mount --bind "$0" /run && exec unshare --map-user=$user --map-group=$group "$@"' \\
  "$run" "$user" "$group" "$@"
"""


def write(directory: Path, root: Root | None, auth: Auth, clock: LabClock | None = None) -> None:
    """Fills bin/ and sbin/ of a lab, unless the installed programs do as they are."""
    if root is None and auth is Auth.MUNGE and clock is None:
        return
    before = ""
    if auth is Auth.SLURM:
        before = f"{directory}/sbin/with-own-run "
        _write(Path(before.strip()), _WITH_OWN_RUN.format(variable=OWN_RUN, directory=directory))
    hasten = f"{clock.prefix()} " if clock else ""
    for name in COMMANDS:
        if command := root.by_loader(name) if root else requirements.find(name):
            _write(directory / "bin" / name, f'exec {hasten}{before}{command} "$@"\n')
    for name in (*DAEMONS, *LUAS):
        if command := root.in_namespace(name) if root else requirements.find(name):
            _write(directory / "sbin" / name, f'exec {hasten if name in IN_LAB_TIME else ""}{before}{command} "$@"\n')


def _write(path: Path, script: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}")
    path.chmod(0o755)
