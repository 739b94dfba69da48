"""The manifests: what the restricted pod security standard wants, and that their parts name each other."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.dockerfile import read_dockerfile
from tests.deploy.test_dockerfile import DOCKERFILE
from trnrt.render_config import load_render_config
from trnrt.workers import STOP_MARGIN_S

FOLDER = DOCKERFILE.parent / "kubernetes"
FILES = sorted(FOLDER.glob("*.yaml"))
READY = "/_sglang_renderer/ready"


class OneOfAKey(yaml.SafeLoader):
    """Refuses a key that comes twice, which YAML's reader takes the last of."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        assert len(keys) == len(set(keys)), f"a key twice: {node.start_mark}"
        return super().construct_mapping(node, deep)


def objects(path: Path) -> dict[str, dict[str, Any]]:
    found = list(yaml.load_all(path.read_text(), OneOfAKey))
    by_kind = {each["kind"]: each for each in found}
    assert len(by_kind) == len(found)
    return by_kind


def pod(path: Path) -> dict[str, Any]:
    return objects(path)["Deployment"]["spec"]["template"]["spec"]


def containers(path: Path) -> Iterator[dict[str, Any]]:
    yield from pod(path).get("initContainers", [])
    yield from pod(path)["containers"]


def renderer(path: Path) -> dict[str, Any]:
    return next(each for each in containers(path) if each["name"] == "renderer")


def seconds(probe: dict[str, Any]) -> int:
    return probe["periodSeconds"] * probe["failureThreshold"]


@pytest.fixture(params=FILES, ids=lambda path: path.stem)
def path(request: pytest.FixtureRequest) -> Path:
    return request.param


def test_both_forms_are_there():
    assert [path.stem for path in FILES] == ["renderer-sidecar", "renderer"]


def test_selectors_choose_the_pods(path: Path):
    found = objects(path)
    labels = found["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert found["Deployment"]["spec"]["selector"]["matchLabels"] == labels
    assert found["Service"]["spec"]["selector"] == labels
    assert found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert pod(path)["serviceAccountName"] == found["ServiceAccount"]["metadata"]["name"]
    if "HorizontalPodAutoscaler" in found:
        target = found["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]
        assert (target["kind"], target["name"]) == ("Deployment", found["Deployment"]["metadata"]["name"])


def test_ports_are_the_ones_that_it_listens_on(path: Path):
    settings = {each["name"]: each["value"] for each in renderer(path)["env"]}
    (port,) = renderer(path)["ports"]
    assert str(port["containerPort"]) == settings["TRNRT_PORT"]
    (served,) = objects(path)["Service"]["spec"]["ports"]
    assert served["targetPort"] == port["name"]
    # Loopback addresses of the pod are nobody else's.
    assert settings["TRNRT_HOST"] == "0.0.0.0"


def test_the_renderer_fits_the_restricted_standard(path: Path):
    whole, own = pod(path)["securityContext"], renderer(path)["securityContext"]
    merged = whole | own
    assert merged["runAsNonRoot"] is True
    assert merged["runAsUser"] == merged["runAsGroup"] == merged["fsGroup"] == 65532
    assert merged["seccompProfile"] == {"type": "RuntimeDefault"}
    assert own["allowPrivilegeEscalation"] is False
    assert own["readOnlyRootFilesystem"] is True
    assert own["capabilities"] == {"drop": ["ALL"]}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod(path))
    assert pod(path)["automountServiceAccountToken"] is False
    assert all("emptyDir" in volume or "persistentVolumeClaim" in volume for volume in pod(path)["volumes"])
    assert read_dockerfile(DOCKERFILE)[-1].one("USER").text == "65532:65532"


def test_what_it_writes_is_mounted(path: Path):
    mounts = {each["mountPath"]: each["name"] for each in renderer(path)["volumeMounts"]}
    (cache,) = read_dockerfile(DOCKERFILE)[-1].one("VOLUME").command
    assert set(mounts) == {cache, "/tmp"}
    assert set(mounts.values()) <= {volume["name"] for volume in pod(path)["volumes"]}
    assert all(volume["emptyDir"]["sizeLimit"] for volume in pod(path)["volumes"])


def test_everything_has_requests_and_a_limit_of_memory(path: Path):
    for each in containers(path):
        resources = each["resources"]
        assert {"cpu", "memory"} <= set(resources["requests"])
        assert "memory" in resources["limits"]


def test_a_drain_ends_before_it_is_ended(path: Path):
    settings = {each["name"]: each["value"] for each in renderer(path)["env"]}
    pause_s = 5 if "lifecycle" in renderer(path) else 0
    limit_s = float(settings["TRNRT_DRAIN_TIMEOUT"]) + STOP_MARGIN_S
    assert pod(path)["terminationGracePeriodSeconds"] > pause_s + limit_s


def test_probes_ask_what_the_renderer_answers_itself(path: Path):
    asked = renderer(path)
    for name in ("startupProbe", "livenessProbe"):
        assert asked[name]["httpGet"] == {"path": READY, "port": "http"}, name
    assert seconds(asked["startupProbe"]) >= 120
    # A drain is not taken for death.
    settings = {each["name"]: each["value"] for each in asked["env"]}
    assert seconds(asked["livenessProbe"]) > float(settings["TRNRT_DRAIN_TIMEOUT"]) + 10
    assert asked["readinessProbe"]["httpGet"]["path"] == ("/health" if "sidecar" in path.stem else READY)
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert asked[name]["httpGet"]["port"] in {port["name"] for port in asked["ports"]}


def test_a_sidecar_starts_first_and_ends_last():
    path = FOLDER / "renderer-sidecar.yaml"
    (sidecar,) = pod(path)["initContainers"]
    assert (sidecar["name"], sidecar["restartPolicy"]) == ("renderer", "Always")
    (engine,) = pod(path)["containers"]
    host, port = (
        next(a.partition("=")[2] for a in engine["args"] if a.startswith(f"--{n}=")) for n in ("host", "port")
    )
    assert f"--engine-url=http://{host}:{port}" in sidecar["args"]
    assert host == "127.0.0.1"
    assert "ports" not in engine


def test_secrets_are_named_never_written(path: Path):
    for each in containers(path):
        for variable in each.get("env", []):
            assert not any(word in variable["name"] for word in ("KEY", "TOKEN", "PASSWORD")), variable
        assert not any("key" in argument for argument in each["args"])


def test_the_renderer_takes_its_flags(path: Path):
    settings = {each["name"]: each["value"] for each in renderer(path)["env"]}
    config = load_render_config(renderer(path)["args"], settings)
    assert config.mode == ("hosted" if "sidecar" in path.stem else "serving")
    assert config.workers <= int(renderer(path)["resources"]["limits"]["cpu"])
