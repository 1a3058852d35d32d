"""Every finding of the doctor, each against a site that has just that fault."""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from slurm_rl.cli import main
from slurm_rl.slurm import inspect, scontrol
from slurm_rl.slurm.doctor import examine, examine_socket, unreachable
from slurm_rl.slurm.findings import Finding, LuaPlugin, Severity, SiteFacts, SocketFile, worst
from slurm_rl.slurm.installation import examine_installation
from slurm_rl.slurm.model import Health, SlurmNode
from slurm_rl.slurm.release import Release

OK, INFO, WARNING, ERROR = Severity.OK, Severity.INFO, Severity.WARNING, Severity.ERROR


@pytest.fixture
def healthy(recorded: Callable[[str], str]) -> SiteFacts:
    """The lab's recorded site, with the plugin and a fixed Slurm: nothing to complain about."""
    config = scontrol.config(recorded("22.05/config.txt")) | {"JobSubmitPlugins": "lua"}
    return SiteFacts(
        release=Release(22, 5, 9),
        config=config,
        weights=scontrol.weights(config),
        nodes=tuple(scontrol.nodes(recorded("22.05/nodes.txt"))),
        partitions=tuple(scontrol.partitions(recorded("22.05/partitions.txt"))),
        health=Health(up=True, controller="up", answer_seconds=0.01),
        lua=LuaPlugin(version="5.1", has_socket=True),
    )


def with_config(site: SiteFacts, **settings: str) -> SiteFacts:
    config = dict(site.config) | settings
    return replace(site, config=config, weights=scontrol.weights(config))


def found(site: SiteFacts, code: str) -> Finding:
    """The one finding with this code."""
    (finding,) = [f for f in examine(site) if f.code == code]
    return finding


def test_a_healthy_site_has_nothing_to_change(healthy: SiteFacts) -> None:
    assert {f.code for f in examine(healthy) if f.severity is not OK} == {"release-lacks"}


def test_every_finding_above_ok_says_why(healthy: SiteFacts) -> None:
    sick = replace(
        with_config(
            healthy,
            PriorityType="priority/basic",
            SchedulerType="sched/builtin",
            SelectType="select/linear",
            JobSubmitPlugins="",
            SchedulerParameters="",
        ),
        release=Release(31, 5),
        nodes=(),
        user="ada",
    )
    findings = [f for f in examine(sick) if f.severity is not OK]
    assert len(findings) >= 7
    assert all(f.why for f in findings)
    assert all(f.remedy for f in findings if f.severity >= WARNING)


Fault = tuple[dict[str, str], str, Severity, str]

FAULTS: list[Fault] = [
    ({"PriorityType": "priority/basic"}, "priority-type", ERROR, "PriorityType=priority/multifactor"),
    ({"PriorityWeightAge": "0"}, "weight-age", WARNING, "PriorityWeightAge=1000"),
    (
        {"PrioritySiteFactorPlugin": "site_factor/other"},
        "site-factor-plugin",
        ERROR,
        "remove the line PrioritySiteFactorPlugin=",
    ),
    ({"PriorityCalcPeriod": "00:30:00"}, "calc-period", WARNING, "PriorityCalcPeriod=5"),
    ({"SchedulerType": "sched/builtin"}, "scheduler-type", WARNING, "SchedulerType=sched/backfill"),
    (
        {"SchedulerParameters": "defer,bf_interval=30"},
        "bf-continue",
        WARNING,
        "SchedulerParameters=defer,bf_interval=30,bf_continue",
    ),
    (
        {"SchedulerParameters": "bf_continue"},
        "defer",
        INFO,
        "SchedulerParameters=bf_continue,sched_min_interval=2000000",
    ),
    (
        {"JobSubmitPlugins": "require_timelimit"},
        "job-submit",
        INFO,
        "slurm-rl install-plugin, then JobSubmitPlugins=require_timelimit,lua",
    ),
    ({"SelectType": "select/linear"}, "select-type", ERROR, "SelectType=select/cons_tres"),
    ({"DefMemPerCPU": "UNLIMITED"}, "default-memory", WARNING, "DefMemPerCPU=4096"),
    (
        {"AccountingStorageTRES": "cpu,mem,gres/gpu,gres/gpu:a100"},
        "accounting-tres",
        WARNING,
        "AccountingStorageTRES=gres/gpu,gres/gpu:a100,gres/gpu:t4,gres/gpu:v100",
    ),
    (
        {"AccountingStorageType": "accounting_storage/none"},
        "accounting",
        WARNING,
        "AccountingStorageType=accounting_storage/slurmdbd",
    ),
]


@pytest.mark.parametrize(("settings", "code", "severity", "remedy"), FAULTS, ids=[f[1] for f in FAULTS])
def test_a_fault_in_slurm_conf(
    healthy: SiteFacts, settings: dict[str, str], code: str, severity: Severity, remedy: str
) -> None:
    finding = found(with_config(healthy, **settings), code)
    assert (finding.severity, finding.remedy) == (severity, remedy)


def test_all_weights_zero(healthy: SiteFacts) -> None:
    zero = {f"PriorityWeight{name}": "0" for name in ("Age", "Assoc", "FairShare", "JobSize", "Partition", "QOS")}
    assert found(with_config(healthy, **zero), "weights").severity is ERROR


def test_ageing_that_slurm_ignores(healthy: SiteFacts) -> None:
    finding = found(with_config(healthy, AccountingStorageType="accounting_storage/none"), "weight-age")
    assert (finding.severity, finding.remedy) == (WARNING, "AccountingStorageType=accounting_storage/slurmdbd")


def test_default_memory_set_by_every_partition_will_do(healthy: SiteFacts) -> None:
    site = with_config(healthy, DefMemPerCPU="UNLIMITED")
    partitions = tuple(msgspec.structs.replace(p, has_default_memory=True) for p in site.partitions)
    assert all(f.code != "default-memory" for f in examine(replace(site, partitions=partitions)))


def test_an_unknown_release_is_an_error(healthy: SiteFacts) -> None:
    finding = found(replace(healthy, release=Release(31, 5)), "release")
    assert finding.severity is ERROR
    assert "never written" in finding.what


@pytest.mark.parametrize(
    ("running", "untried", "missing"),
    [
        (Release(22, 5, 8), "", ["SiteFactor", "scrontab", "metrics"]),
        (Release(23, 11, 4), "its source", ["SiteFactor", "by record", "scrontab", "metrics"]),
        (Release(25, 11, 7), "what 25.11.7 printed", ["SiteFactor", "by record"]),
        (Release(26, 5, 5), "", ["SiteFactor", "by record", "JSON"]),
    ],
)
def test_what_a_release_lacks_is_told_with_what_we_do(
    healthy: SiteFacts, running: Release, untried: str, missing: list[str]
) -> None:
    findings = examine(replace(healthy, release=running))
    told = [f for f in findings if f.code == "release-lacks"]
    assert len(told) == len(missing)
    assert all(word in f.what and f.why.startswith("instead: ") for word, f in zip(missing, told, strict=True))
    assert [f.what.partition(" by ")[2].partition(",")[0] for f in findings if f.code == "release-untried"] == (
        [untried] if untried else []
    )


def test_metrics_that_slurmctld_could_export_are_named(healthy: SiteFacts) -> None:
    newest = replace(healthy, release=Release(26, 5, 5))
    assert found(newest, "openmetrics").remedy == "MetricsType=metrics/openmetrics"
    exporting = replace(newest, config={**newest.config, "MetricsType": "metrics/openmetrics"})
    assert all(f.code != "openmetrics" for f in examine(exporting))


def test_prefer_before_its_fix(healthy: SiteFacts) -> None:
    assert found(replace(healthy, release=Release(22, 5, 8)), "prefer").remedy == "update Slurm to 22.05.9 or later"
    assert all(f.code != "prefer" for f in examine(replace(healthy, release=Release(25, 5, 0))))


@pytest.mark.parametrize(
    ("lua", "code", "severity"),
    [
        (LuaPlugin(plugin_dir_readable=False, plugin_found=False), "lua", INFO),
        (LuaPlugin(plugin_found=False), "lua", ERROR),
        (LuaPlugin(version=""), "lua", INFO),
        (LuaPlugin(version="5.4", has_socket=False), "luasocket", ERROR),
        (LuaPlugin(version="5.4", has_socket=True), "lua", OK),
    ],
)
def test_lua(healthy: SiteFacts, lua: LuaPlugin, code: str, severity: Severity) -> None:
    assert found(replace(healthy, lua=lua), code).severity is severity


def test_lua_is_looked_up_in_the_plugin_itself(tmp_path: Path) -> None:
    assert not inspect.lua_plugin(tmp_path / "absent").plugin_dir_readable
    assert not inspect.lua_plugin(tmp_path).plugin_found
    (tmp_path / "job_submit_lua.so").write_bytes(b"no library")
    assert inspect.lua_plugin(tmp_path).version == ""


def test_gpus_without_type(healthy: SiteFacts) -> None:
    node = SlurmNode(name="old1", state="IDLE", gpus={"": 4})
    finding = found(replace(healthy, nodes=(*healthy.nodes, node)), "gpu-types")
    assert (finding.severity, finding.remedy) == (WARNING, "NodeName=old1 Gres=gpu:TYPE:4")


def test_gpu_types_that_are_no_features(healthy: SiteFacts) -> None:
    node = SlurmNode(name="gpu9", state="IDLE", gpus={"h100": 8}, features=("ib",))
    finding = found(replace(healthy, nodes=(*healthy.nodes, node)), "gpu-features")
    assert (finding.severity, finding.remedy) == (WARNING, "NodeName=gpu9 Features=ib,h100")


def test_one_type_only_needs_no_features(healthy: SiteFacts) -> None:
    node = SlurmNode(name="gpu9", state="IDLE", gpus={"h100": 8})
    assert all(f.code != "gpu-features" for f in examine(replace(healthy, nodes=(node,))))


def test_no_gpus_at_all(healthy: SiteFacts) -> None:
    assert found(replace(healthy, nodes=(SlurmNode(name="c1", state="IDLE"),)), "gpus").severity is WARNING


def test_several_tiers_are_mentioned(healthy: SiteFacts) -> None:
    (batch,) = healthy.partitions
    urgent = msgspec.structs.replace(batch, name="urgent", priority_tier=10)
    assert "1, 10" in found(replace(healthy, partitions=(batch, urgent)), "tiers").what


def test_an_overloaded_controller(healthy: SiteFacts) -> None:
    busy = msgspec.structs.replace(healthy.health, agent_queue=5000, backfill_mean_cycle_us=45_000_000)
    site = replace(healthy, health=busy)
    assert found(site, "load").severity is WARNING
    assert found(site, "backfill-slow").what == "a backfill cycle takes 45 s on average"


@pytest.mark.parametrize(
    ("user", "level", "severity"),
    [("root", "", OK), ("ada", "", ERROR), ("ada", "None", ERROR), ("ada", "Operator", OK), ("slurm", "", OK)],
)
def test_rights(healthy: SiteFacts, user: str, level: str, severity: Severity) -> None:
    site = with_config(replace(healthy, user=user, admin_level=level), SlurmUser="slurm(64030)")
    finding = found(site, "rights")
    assert finding.severity is severity
    assert finding.remedy == ("" if severity is OK else "sacctmgr modify user ada set AdminLevel=Operator")


def test_private_data_and_rate_limits_matter_to_ordinary_users_only(healthy: SiteFacts) -> None:
    site = with_config(healthy, PrivateData="jobs,cloud", SlurmctldParameters="rl_enable,rl_bucket_size=50")
    assert worst(examine(site)).exit_code == 0
    ada = replace(site, user="ada", admin_level="None")
    assert found(ada, "private-data").severity is ERROR
    assert found(replace(site, user="ada", admin_level="Operator"), "rate-limit").severity is WARNING


@pytest.mark.parametrize(
    ("facts", "severity"),
    [
        ({"exists": False}, INFO),
        ({"exists": True, "is_socket": False}, ERROR),
        ({"exists": True, "directory_mode": 0o777}, ERROR),
        ({"exists": True, "mode": 0o666, "reserved_mode": 0o660}, OK),  # as the service makes them
        ({"exists": True, "mode": 0o666, "reserved_mode": 0o666}, ERROR),
        ({"exists": True, "mode": 0o660}, WARNING),  # users could not ask
    ],
)
def test_socket_permissions(facts: dict[str, Any], severity: Severity) -> None:
    assert examine_socket(SocketFile("/run/slurm-rl/s", **facts)).severity is severity


def test_a_real_socket_is_seen_with_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        path.chmod(0o600)
        seen = inspect.socket_file(path)
        (tmp_path / "s.admin").touch(0o640)
        beside = inspect.socket_file(path)
    assert (seen.exists, seen.is_socket, seen.mode, seen.reserved_mode) == (True, True, 0o600, None)
    assert beside.reserved_mode == 0o640
    assert not inspect.socket_file(tmp_path / "other").exists


def test_the_configuration_and_its_model(tmp_path: Path) -> None:
    config, model = tmp_path / "slurm-rl.toml", tmp_path / "model"

    def severities() -> dict[str, Severity]:
        return {f.code: f.severity for f in examine_installation(config)}

    assert severities() == {"config": INFO, "socket": INFO}
    config.write_text("mode = ")
    assert severities()["config"] is ERROR
    config.write_text('mode = "full speed"')
    assert severities()["config"] is ERROR
    config.write_text(f'mode = "enforce"\nsocket = "{tmp_path}/s"\nmodel = "{model}"\n')
    assert severities() == {"config": OK, "socket": INFO, "model": ERROR}
    model.mkdir()
    (model / "policy.safetensors").write_bytes(b"weights")
    (model / "manifest.toml").write_text(f'[weights]\nsha256 = "{hashlib.sha256(b"weights").hexdigest()}"\n')
    assert severities()["model"] is OK
    (model / "policy.safetensors").write_bytes(b"tampered")
    assert severities()["model"] is ERROR


def test_the_exit_code_is_that_of_the_worst() -> None:
    assert [s.exit_code for s in (OK, INFO, WARNING, ERROR)] == [0, 0, 1, 2]
    assert worst([]) is OK
    assert worst([unreachable("x"), Finding("a", OK, "fine")]) is ERROR


def test_the_command_reports_an_unreachable_slurm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["doctor", "--slurm-conf", str(tmp_path / "none"), "--config", str(tmp_path / "no.toml")]
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--json"])
    assert ended.value.code == 2
    value = json.loads(capsys.readouterr().out)
    assert value["worst"] == "error"
    assert value["findings"][0]["code"] == "reachable"
    with pytest.raises(SystemExit):
        main(arguments)
    assert capsys.readouterr().out.startswith("error   Slurm does not answer: SLURM_CONF=")
