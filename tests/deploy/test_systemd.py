"""The unit: read by systemd's own reader where that is installed."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.deploy.test_dockerfile import ROOT
from trnrt.render_config import RenderConfig, load_render_config
from trnrt.workers import STOP_MARGIN_S

UNIT = ROOT / "deploy" / "trnrt-render.service"
# "1.3" now; what is left is the network, and reading of model folders.
MOST_EXPOSED_TENTHS = 15
needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")


def settings() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in UNIT.read_text().splitlines():
        if line and line[0] not in "#[":
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


def render_config() -> RenderConfig:
    """What the unit starts with the file of settings beside it."""
    lines = (UNIT.with_name("render.env")).read_text().splitlines()
    environ = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    return load_render_config(environ.pop("ARGS").split(), environ)


@needs_systemd
def test_systemd_takes_every_line(tmp_path: Path):
    unit = tmp_path / UNIT.name
    # The programs are not installed here; everything else stays as it is.
    unit.write_text(re.sub(r"/opt/trnrt/bin/\w+", "/bin/true", UNIT.read_text()))
    checked = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True)
    assert (checked.returncode, checked.stderr) == (0, "")


@needs_systemd
def test_it_is_exposed_to_little_of_the_system():
    rule = [f"--threshold={MOST_EXPOSED_TENTHS}", "--offline=true", "--no-pager"]
    checked = subprocess.run(["systemd-analyze", "security", *rule, str(UNIT)], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout[-200:] + checked.stderr


def test_a_wrong_setting_is_not_tried_again():
    assert settings()["RestartPreventExitStatus"] == ["2"]
    assert settings()["Restart"] == ["on-failure"]


def test_a_drain_ends_before_it_is_ended():
    assert float(settings()["TimeoutStopSec"][0]) > render_config().drain_timeout + STOP_MARGIN_S


def test_start_is_told_when_the_probe_says_so():
    (probe,) = settings()["ExecStartPost"]
    (limit,) = settings()["TimeoutStartSec"]
    found = re.fullmatch(r"\S+/python -m trnrt.probe /_sglang_renderer/ready --wait (\d+)", probe)
    assert found is not None
    assert int(found[1]) < int(limit)


def test_the_file_of_settings_sets_what_the_unit_uses():
    given = [line.partition("=")[0] for line in (UNIT.with_name("render.env")).read_text().splitlines()]
    (command,) = settings()["ExecStart"]
    for name in re.findall(r"\$\{?(\w+)", command):
        assert name in given
    assert render_config().mode == "serving"
    for line in given:
        assert not line or line.startswith("# ") or re.fullmatch(r"#?[A-Z][A-Z0-9_]*", line), line
