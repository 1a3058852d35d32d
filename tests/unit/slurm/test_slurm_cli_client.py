"""The command-line client against recorded answers: what it asks, what it refuses, and how it fails."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_rl.errors import EnvironmentMissing, InputError, SlurmError
from slurm_rl.slurm import history, squeue_more
from slurm_rl.slurm.cli import CliClient
from slurm_rl.slurm.command import Commands, failed, separator
from slurm_rl.slurm.connect import connect
from slurm_rl.slurm.model import JobUpdate

Fake = Callable[[str, str], Path]
FIXTURES = Path(__file__).parent / "fixtures"


@pytest.fixture
def site(fake: Fake) -> Fake:
    """Slurm 22.05 as recorded; the separator of each call is put in place of the recorded one."""
    r = FIXTURES / "22.05"
    config = f'if [ -n "$RELEASE" ]; then sed "s/22.05.8/$RELEASE/" {r}/config.txt; else cat {r}/config.txt; fi'
    fake(
        "scontrol",
        f'case "$*" in "show config") {config} ;; *--json*) cat {FIXTURES}/24.05/nodes.json ;;'
        f" *node*) cat {r}/nodes.txt ;; *partition*) cat {r}/partitions.txt ;;"
        " ping) echo 'Slurmctld(primary) at head is UP' ;; esac",
    )
    put = r"mark=$(printf %s \"$last\" | grep -oP '\x1f[0-9a-f]{8}x' | head -1)"
    put = put.replace('\\"', '"')
    last = 'for last in "$@"; do :; done'
    # A separator of its own for each field, or, where none is asked for, between records alone.
    as_asked = (
        f'{put}; case "$last" in *:\x1f,*|*%i\x1f%Y*) sed "s/\x1fmarkx$/$mark/; s/\x1fmarkx/\x1f/g" ;;'
        ' *) sed "s/\x1fmarkx/$mark/g" ;; esac'
    )
    fake(
        "squeue",
        f'{last}; case "$last" in --json) cat {r}/squeue.json ;; *tres-per-socket*|%A*) ;; '  # nobody asks for such
        f'*) sed "s/cpuonly/${{NAME:-cpuonly}}/" {r}/squeue.txt | {{ {as_asked}; }} ;; esac',
    )
    fake("sprio", f"{last}; cat {r}/sprio.txt | {{ {as_asked}; }}")
    fake("sshare", f"cat {r}/sshare.txt")
    fake("sdiag", f"cat {r}/sdiag.txt")
    return fake


def test_a_snapshot_holds_everything(site: Fake) -> None:
    state = CliClient().snapshot()
    assert str(state.release) == "22.05.8"
    assert state.cluster == "lab"
    assert (len(state.jobs), len(state.nodes), len(state.partitions)) == (30, 6, 1)
    assert state.weights.total == 3500
    assert next(j for j in state.jobs if j.name == "waiting").site_factor == -25
    assert ("root", "root") in state.fairshare
    assert abs(state.taken - time.time()) < 30


def test_rare_parts_of_requests_are_asked_of_new_jobs_alone(site: Fake) -> None:
    client, asked = CliClient(), []
    read = client._read_details

    def noted(*jobs: int) -> dict[int, squeue_more.RequestDetails]:
        asked.append(jobs)
        return read(*jobs)

    client._read_details = noted  # type: ignore[method-assign]
    first = client.snapshot()
    assert asked == [()]
    again = client.snapshot()
    assert asked == [()]  # nobody has come
    assert all(a is b for a, b in zip(first.jobs, again.jobs, strict=True))
    client._seen.asked -= {23, 26}
    client.snapshot()
    assert asked == [(), (23, 26)]
    client._seen.asked_at -= 61
    client.snapshot()
    assert asked[2:] == [()]


def test_a_separator_in_a_name_is_read_as_a_part_of_it(site: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = CliClient()
    usual = plain.snapshot()
    monkeypatch.setenv("NAME", "a\x1fb")
    careful = CliClient()
    for _ in range(2):
        state = careful.snapshot()
        assert [j.name for j in state.jobs] == [j.name.replace("cpuonly", "a\x1fb") for j in usual.jobs]
        assert "a\x1fb" in [j.name for j in state.jobs]
    assert careful.load()[0] > 2 * plain.load()[0] - 4  # both ways once, then only the one that can tell
    monkeypatch.delenv("NAME")
    careful._careful_until = 0.0
    assert [j.name for j in careful.snapshot().jobs] == [j.name for j in usual.jobs]


def test_what_slurm_is_asked_is_counted(site: Fake) -> None:
    client = CliClient()
    client.snapshot()
    calls, said = client.load()
    assert calls == 9  # config, partitions, reservations, nodes, squeue three times, sprio, sshare
    assert said > 10_000
    client.snapshot()
    assert client.load()[0] == 7  # nobody has come: two fewer
    assert client.load() == (0, 0)


def test_an_unknown_release_is_read_as_json_and_never_written(site: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELEASE", "31.05.0")
    client = CliClient()
    site("squeue", f'case "$*" in *--json*) cat {FIXTURES}/22.05/squeue.json ;; *) exit 1 ;; esac')
    state = client.snapshot()
    assert (len(state.jobs), [n.name for n in state.nodes]) == (30, ["gpu01", "gpu02"])
    with pytest.raises(SlurmError, match=r"31\.05\.0 is not known.*never written"):
        client.update([JobUpdate(job_id=1, site_factor=1)])


def test_an_unknown_release_is_written_if_that_is_forced(site: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELEASE", "31.05.0")
    client = connect(force=True)
    assert [r.applied for r in client.update([JobUpdate(job_id=1, site_factor=1)])] == [True]


def test_a_release_that_is_too_old_is_refused(site: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELEASE", "21.08.5")
    with pytest.raises(SlurmError, match=r"21\.08\.5 is too old: slurm-rl needs 22\.05"):
        CliClient().snapshot()


def test_an_empty_batch_asks_nobody() -> None:
    assert CliClient(Path("/nowhere/slurm.conf")).update([]) == []


def test_health_of_a_controller_that_is_up_and_one_that_is_down(site: Fake) -> None:
    up = CliClient().health()
    assert up.up
    assert up.controller == "Slurmctld(primary) at head is UP"
    site("scontrol", "echo 'Slurmctld(primary) at head is DOWN'; exit 1")
    down = CliClient().health()
    assert not down.up
    assert "DOWN" in down.controller


def test_a_missing_slurm_conf_is_named_at_once() -> None:
    with pytest.raises(SlurmError, match=r"SLURM_CONF=/nowhere/slurm\.conf cannot be read"):
        CliClient(Path("/nowhere/slurm.conf")).snapshot()


def test_slurm_not_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("SLURM_CONF", raising=False)
    with pytest.raises(EnvironmentMissing, match="apt-get install slurm-client"):
        CliClient().snapshot()


def test_something_that_is_not_slurm(fake: Fake) -> None:
    fake("scontrol", "echo hello")
    with pytest.raises(SlurmError, match="SLURM_VERSION"):
        CliClient().config()


def test_a_hanging_command_ends_within_the_timeout(fake: Fake) -> None:
    fake("scontrol", "exec sleep 60")
    began = time.monotonic()
    with pytest.raises(SlurmError, match=r"no answer within 1\.5 s"):
        CliClient(timeout=1.5).snapshot()
    assert time.monotonic() - began < 6


def test_a_dead_slurmctld_is_noticed_before_the_timeout(fake: Fake) -> None:
    fake(
        "scontrol", 'if [ "$1" = ping ]; then echo "Slurmctld(primary) at head is DOWN"; exit 1; else exec sleep 60; fi'
    )
    began = time.monotonic()
    with pytest.raises(SlurmError, match="head is DOWN"):
        CliClient(timeout=30).config()
    assert time.monotonic() - began < 6


def test_a_dead_munged_is_named_with_its_socket(fake: Fake, tmp_path: Path) -> None:
    fake("scontrol", "exec sleep 60")
    (tmp_path / "slurm.conf").write_text(f"ClusterName=x\nAuthInfo=cred_expire=60,socket={tmp_path}/munge\n")
    began = time.monotonic()
    with pytest.raises(SlurmError, match=f"munged does not answer on {tmp_path}/munge"):
        CliClient(timeout=30).config()
    assert time.monotonic() - began < 6


def test_what_slurm_says_is_kept_and_explained() -> None:
    error = failed("squeue", "squeue: error: Unable to contact slurm controller (connect failure)\n")
    assert str(error) == (
        "squeue: Unable to contact slurm controller (connect failure) (slurmctld does not answer: is it running?)"
    )
    assert str(failed("squeue", "")) == "squeue: failed without a word"


def test_the_environment_of_commands_is_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQUEUE_FORMAT", "%i")
    monkeypatch.setenv("SLURM_TIME_FORMAT", "relative")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    env = Commands(Path("/x/slurm.conf")).env()
    assert "SQUEUE_FORMAT" not in env
    assert (env["SLURM_TIME_FORMAT"], env["LC_ALL"], env["SLURM_CONF"]) == ("%s", "C", "/x/slurm.conf")


def test_separators_differ_from_call_to_call() -> None:
    assert len({separator() for _ in range(100)}) == 100


def test_history_of_an_array_a_cancelled_job_and_an_odd_name(mark: str) -> None:
    def row(*values: str) -> str:
        return "".join(value + mark for value in values) + "\n"

    output = row(
        *("12", "10_2", "a|b\nc", "ada", "phys", "gpu", "normal", "CANCELLED by 1000", "1750000000", "1750000000"),
        *("1750000060", "1750000160", "100", "60", "cpu=4,gres/gpu=2,mem=8G,node=1"),
        *("cpu=4,gres/gpu=2,gres/gpu:a100=2,mem=8G,node=1", "1", "4", "gpu01", "77", "0:15"),
    ) + row(
        *("13", "13", "never", "emmy", "phys", "gpu", "normal", "PENDING", "1750000001", "Unknown"),
        *("Unknown", "Unknown", "0", "UNLIMITED", "cpu=1,mem=1G,node=1", "", "1", "1", "None assigned", "5", "0:0"),
    )
    first, second = history.parse(output, mark)
    assert (first.job_id, first.display_id, first.name, first.state) == (12, "10_2", "a|b\nc", "CANCELLED")
    assert (first.elapsed, first.time_limit, first.mem_mb, first.node_list) == (100, 3600, 8192, ("gpu01",))
    assert (first.gpus_requested, first.gpus_allocated) == ({"": 2}, {"a100": 2})
    assert (second.start_time, second.time_limit, second.node_list) == (None, None, ())


def test_a_history_that_ends_before_it_begins_is_refused(mark: str) -> None:
    with pytest.raises(InputError, match="not before its end"):
        history.command(10.0, 10.0, mark)


def test_the_client_is_chosen_by_name() -> None:
    assert isinstance(connect(kind="cli"), CliClient)
    with pytest.raises(InputError, match="did you mean 'pyslurm'"):
        connect(kind="pyslur")
