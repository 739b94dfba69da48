import logging
import os
import pickle
import time
from pathlib import Path

import pytest
import torch

from graphs import background, compile
from graphs.background import Bodies
from graphs.catalog import bodies
from graphs.compile import Job, captured, is_stored, stored
from graphs.config import Config
from graphs.settings import GraphSettings
from tests.graphs import tiny
from tests.graphs.steps import BUCKETS, EDITING, SETTINGS

CONFIG = Config.from_json(tiny.config_json(hc_sinkhorn_iters=2))
SPARSE = Config.from_json(tiny.config_json(hc_sinkhorn_iters=2, index_topk=64))


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job.of(CONFIG, SETTINGS, tmp_path)


@pytest.mark.parametrize("name", [body.name for body in bodies(SPARSE, EDITING)])
def test_every_body_is_captured_without_weights_and_with_open_rows(name: str) -> None:
    body = next(body for body in bodies(SPARSE, EDITING) if body.name == name)
    program = captured(body, SPARSE, EDITING)
    first = next(node for node in program.graph.nodes if node.name in program.graph_signature.user_inputs)
    assert not program.state_dict
    assert not program.constants
    assert isinstance(first.meta["val"].shape[0], torch.SymInt) != (name == "score")
    writes = [
        node for node in program.graph.nodes if "index_copy_" in str(node.target) or "index_put_" in str(node.target)
    ]
    written = {node.args[0] for node in writes}
    assert all(node.op == "placeholder" for node in written)
    assert len(written) == {"kda": 2, "dsa": 3}.get(body.part, 0)


def test_the_folder_is_named_by_all_that_could_change_the_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = Job.of(CONFIG, SETTINGS, tmp_path).folder
    assert Job.of(CONFIG, SETTINGS, tmp_path).folder == base
    other_settings = GraphSettings(BUCKETS, num_slots=10, num_pages=33, page_size_tokens=32, dtype="float32")
    others = [
        Job.of(SPARSE, SETTINGS, tmp_path).folder,
        Job.of(CONFIG, other_settings, tmp_path).folder,
        Job.of(CONFIG, SETTINGS, tmp_path, threads=2).folder,
    ]
    for name in ("source_digest", "processor"):
        with monkeypatch.context() as patch:
            patch.setattr(compile, name, lambda: "another")
            others.append(Job.of(CONFIG, SETTINGS, tmp_path).folder)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "__version__", "3.0")
        others.append(Job.of(CONFIG, SETTINGS, tmp_path).folder)
    assert len({base, *others}) == 7


def test_turning_edits_on_or_changing_them_compiles_no_layer_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, editing = Job.of(CONFIG, SETTINGS, tmp_path), Job.of(CONFIG, EDITING, tmp_path)
    assert editing.folder == plain.folder
    assert len({plain.folder, plain.ending_folder, editing.ending_folder}) == 3
    parts = {body.part for body in bodies(CONFIG, EDITING) if editing.folder_of(body) == editing.ending_folder}
    assert parts == {"mask", "adjust", "score"}
    monkeypatch.setattr(compile, "ending_digest", lambda: "another")
    later = Job.of(CONFIG, EDITING, tmp_path)
    assert later.folder == plain.folder
    assert later.ending_folder != editing.ending_folder


def test_a_damaged_file_is_removed_with_one_log_line(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    body = bodies(CONFIG, SETTINGS)[0]
    job.folder.mkdir(parents=True)
    path = job.folder / f"{body.name}.0123456789abcdef.so"
    path.write_bytes(b"half a file")
    assert is_stored(job, body)
    assert stored(job, body) is None
    assert not path.exists()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert path.name in caplog.text


def test_a_file_of_the_right_digest_that_does_not_load_is_removed_too(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    body = bodies(CONFIG, SETTINGS)[0]
    job.folder.mkdir(parents=True)
    made = job.folder / "made"
    made.write_bytes(b"not a package")
    made.rename(job.folder / f"{body.name}.{compile._digest(made)}.so")
    assert stored(job, body) is None
    assert not list(job.folder.iterdir())
    assert [record.name for record in caplog.records].count("trnrt") == 1


def test_closing_ends_the_compile_process_and_its_children(job: Job) -> None:
    running = Bodies(job)
    process = running._process
    assert process is not None
    running.close()
    running.close()
    assert process.returncode == -9
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
    assert running.num_total == len(bodies(CONFIG, SETTINGS))
    assert not running.ready


def test_closing_ends_the_compiler_that_the_process_runs(
    job: Job, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake, pid = tmp_path / "python", tmp_path / "pid"
    fake.write_text(f"#!/bin/sh\ncat > /dev/null\nsleep 1000 &\necho $! > {pid}.new\nmv {pid}.new {pid}\nwait\n")
    fake.chmod(0o755)
    monkeypatch.setattr(background.sys, "executable", str(fake))
    running = Bodies(job)
    while not pid.exists():
        time.sleep(0.01)
    running.close()
    stat = Path(f"/proc/{pid.read_text().strip()}/stat")
    # It was killed; when it is gone is the system's to say.
    while is_alive(stat):
        time.sleep(0.01)


def is_alive(stat: Path) -> bool:
    try:
        return stat.read_text().split()[2] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_body_that_fails_stays_eager_with_one_log_line(
    job: Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\ncat > /dev/null\necho failed decode-kda 'OSError: no room left'\nexit 3\n")
    fake.chmod(0o755)
    monkeypatch.setattr(background.sys, "executable", str(fake))
    with caplog.at_level(logging.WARNING, "trnrt"):
        running = Bodies(job)
        running.wait()
    running.close()
    assert caplog.records[0].message == "graph decode-kda stays eager: OSError: no room left"
    assert "code 3" in caplog.records[1].message
    assert len(caplog.records) == 2


def test_a_job_survives_the_trip_to_the_compile_process(job: Job) -> None:
    assert pickle.loads(pickle.dumps(job)) == job
