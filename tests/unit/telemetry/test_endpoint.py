"""The agent's endpoint: what it shows to whom, in names that Prometheus and dcgm-exporter's users know."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import ssl
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_nvml import LOST, MIB
from fake_nvml.node import Node
from prometheus_client.parser import text_string_to_metric_families

from slurm_rl.cli.app import main
from slurm_rl.errors import InputError
from slurm_rl.telemetry.endpoint import Access, Endpoint, networks

TOKEN = "t" * 40


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    running: list[Endpoint] = []

    def start(node: Node, access: Access, certificate: Path | None = None, key: Path | None = None) -> str:
        endpoint = Endpoint(node.agent, "127.0.0.1:0", access, certificate, key)
        threading.Thread(target=endpoint.serve_forever, kwargs={"poll_interval": 0.01}).start()
        running.append(endpoint)
        return f"http{'s' if certificate else ''}://127.0.0.1:{endpoint.server_address[1]}"

    yield start
    for endpoint in running:
        endpoint.shutdown()
        endpoint.server_close()


def get(url: str, token: str = "", context: ssl.SSLContext | None = None) -> tuple[int, str]:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(request, timeout=20, context=context) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def busy_node(node: Callable[..., Node]) -> Node:
    """GPU 0 and 1 are job 5's, 2 is in MIG mode with job 6 on an instance, 3 is lost."""
    n = node(4)
    n.world[2].split(3, 4)
    n.begin(5, 0, 1, user="ann")
    n.begin(6, 3, user="bob")
    gpu = n.world[0]
    gpu.util, gpu.memory_util, gpu.milliwatts, gpu.millijoules = 91, 33, 387_500, 123_456_789
    gpu.used, gpu.celsius, gpu.sm_clock, gpu.memory_clock, gpu.throttle = 20_480 * MIB, 66, 1410, 1593, 4
    gpu.corrected, gpu.uncorrected = 3, 1
    gpu.run(n.process(70, 5))
    n.world[2].instance[1].used = 1024 * MIB
    for _ in range(3):
        n.step()
    n.world[3].error = LOST
    n.world.xid(3, 79)
    for _ in range(12):
        n.step()
    return n


def metrics(text: str) -> dict[str, list[Any]]:
    return {family.name: family.samples for family in text_string_to_metric_families(text)}


def test_metrics_have_the_names_and_units_of_dcgm_exporter(
    node: Callable[..., Node], serve: Callable[..., str]
) -> None:
    status, text = get(serve(busy_node(node), Access(TOKEN)) + "/metrics", TOKEN)
    assert status == 200
    found = metrics(text)

    def value(name: str, gpu: str = "0", **labels: str) -> float:
        wanted = {"gpu": gpu} | labels
        [sample] = [s for s in found[name] if wanted.items() <= s.labels.items()]
        return float(sample.value)

    assert value("DCGM_FI_DEV_GPU_UTIL") == 91
    assert value("DCGM_FI_DEV_MEM_COPY_UTIL") == 33
    assert value("DCGM_FI_DEV_POWER_USAGE") == 387.5
    assert value("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION") == 123_456_789
    assert (value("DCGM_FI_DEV_FB_USED"), value("DCGM_FI_DEV_FB_FREE")) == (20_480, 20_480)
    assert (value("DCGM_FI_DEV_SM_CLOCK"), value("DCGM_FI_DEV_MEM_CLOCK")) == (1410, 1593)
    assert (value("DCGM_FI_DEV_GPU_TEMP"), value("DCGM_FI_DEV_CLOCKS_EVENT_REASONS")) == (66, 4)
    assert (value("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL"), value("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL")) == (3, 1)
    assert value("DCGM_FI_DEV_FB_USED", "2", GPU_I_PROFILE="4g.20gb", GPU_I_ID="8") == 1024
    assert (value("DCGM_FI_DEV_XID_ERRORS", "3"), value("slurmrl_gpu_lost", "3")) == (79, 1)
    labels = found["DCGM_FI_DEV_GPU_UTIL"][0].labels
    assert labels == {
        "gpu": "0",
        "UUID": "GPU-00000000",
        "pci_bus_id": "00000000:01:00.0",
        "device": "nvidia0",
        "modelName": "NVIDIA A100-SXM4-40GB",
        "Hostname": "n1",
        "hpc_job": "5",
    }
    assert {s.labels["hpc_job"]: s.value for s in found["slurmrl_job_gpus"]} == {"5": 2, "6": 1}


def test_without_the_token_there_is_nothing(node: Callable[..., Node], serve: Callable[..., str]) -> None:
    url = serve(busy_node(node), Access(TOKEN))
    for route in ("/metrics", "/v1/jobs", "/v1/records", "/anything"):
        for token in ("", "wrong", TOKEN + "x", TOKEN[:-1]):
            status, text = get(url + route, token)
            assert status == 401
            assert "ann" not in text
    assert get(url + "/healthz")[0] == 200


def test_on_loopback_without_a_token_nothing_tells_of_jobs(
    node: Callable[..., Node], serve: Callable[..., str]
) -> None:
    url = serve(busy_node(node), Access())
    status, text = get(url + "/metrics")
    assert status == 200
    assert "DCGM_FI_DEV_GPU_UTIL" in text
    assert not any(word in text for word in ("hpc_job", '"ann"', '"bob"', "slurmrl_job"))
    assert get(url + "/v1/jobs")[0] == get(url + "/v1/records")[0] == 403
    assert "ann" not in get(url + "/healthz")[1]


def test_elsewhere_than_on_loopback_it_needs_a_token(node: Callable[..., Node]) -> None:
    n = node(1)
    for address in ("0.0.0.0:0", "[::]:0", "10.1.2.3:9410"):
        with pytest.raises(InputError, match="give --token-file"):
            Endpoint(n.agent, address, Access(), None, None)


def test_peers_of_other_networks_are_turned_away(node: Callable[..., Node], serve: Callable[..., str]) -> None:
    url = serve(node(1), Access(TOKEN, networks(["10.0.0.0/8", "fd00::/8"])))
    with pytest.raises((urllib.error.URLError, ConnectionError)):
        get(url + "/healthz")
    access = Access(TOKEN, networks(["10.0.0.0/8"]))
    assert [access.allows(a) for a in ("10.2.3.4", "::ffff:10.2.3.4", "192.168.0.1", "fe80::1%eth0")] == [
        True,
        True,
        False,
        False,
    ]
    with pytest.raises(InputError, match="--allow"):
        networks(["10.0.0.0/33"])


def test_records_are_paged(node: Callable[..., Node], serve: Callable[..., str]) -> None:
    n = node(1)
    for job in range(1, 6):
        n.begin(job, 0)
        n.step()
        n.step()
        n.end(job)
        n.step()
        n.step()
    url = serve(n, Access(TOKEN))
    first = json.loads(get(url + "/v1/records?limit=3", TOKEN)[1])
    assert [r["job_id"] for r in first["records"]] == [1, 2, 3]
    rest = json.loads(get(url + f"/v1/records?after={first['records'][-1]['number']}", TOKEN)[1])
    assert [r["job_id"] for r in rest["records"]] == [4, 5]
    assert rest["ring"] == first["ring"]
    for wrong in ("after=-1", "after=x", "limit=0", "limit=501", "after=" + "9" * 40):
        assert get(url + "/v1/records?" + wrong, TOKEN)[0] == 422


def test_over_tls(node: Callable[..., Node], serve: Callable[..., str], tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl, which the roots of other Pythons lack")
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=agent -addext subjectAltName=IP:127.0.0.1"
    subprocess.run(
        [*command.split(), "-keyout", str(key), "-out", str(certificate)],
        check=True,
        capture_output=True,
    )
    url = serve(node(1), Access(TOKEN), certificate, key)
    trusting = ssl.create_default_context(cafile=str(certificate))
    assert get(url + "/metrics", TOKEN, trusting)[0] == 200
    with pytest.raises(urllib.error.URLError):
        get(url + "/metrics", TOKEN, ssl.create_default_context())
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as plain:
        plain.settimeout(20)
        answer = b""
        with contextlib.suppress(ConnectionError):
            plain.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
            answer = plain.recv(100)
        assert b"alive" not in answer


def test_idle_connections_do_not_keep_others_out_for_long(node: Callable[..., Node], serve: Callable[..., str]) -> None:
    url = serve(node(1), Access(TOKEN))
    port = int(url.rpartition(":")[2])
    idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(40)]
    try:
        for held in idle:
            held.settimeout(60)
            assert held.recv(10) == b""  # each is turned away, at once or after its seconds
        assert get(url + "/healthz")[0] == 200
    finally:
        for held in idle:
            held.close()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--interval", "0"], "--interval"),
        (["--ring-mb", "0"], "--ring-mb"),
        (["--listen", "nowhere"], "HOST:PORT"),
        (["--listen", "0.0.0.0:9410"], "--token-file"),
        (["--allow", "x"], "--allow"),
        (["--tls-cert", "x"], "go together"),
        (["--token-file", "/nowhere"], "cannot be read"),
        (["--log-level", "loud"], "--log-level"),
    ],
)
def test_wrong_options_are_refused(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["node-agent", "--dir", str(tmp_path), "--spool", str(tmp_path), "--node", "n1"]
    with pytest.raises(SystemExit) as ended:
        main([*common, *words])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
