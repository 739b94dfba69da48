"""The renderer's image, as far as it can be looked at without an engine; test_clean_install.py runs its lines."""

import re
from pathlib import Path

import pytest

from tests.deploy.dockerfile import VARIABLE, read_dockerfile

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = ROOT / "deploy" / "renderer.Dockerfile"
READ_BY_OTHERS = {
    "PATH",
    "HOME",
    "HF_HOME",
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONUNBUFFERED",
    "PIP_DISABLE_PIP_VERSION_CHECK",
}


def test_it_has_two_stages_of_one_slim_base_for_any_platform():
    build, final = read_dockerfile(DOCKERFILE)
    assert build.base == final.base
    assert re.fullmatch(r"python:3\.\d+-slim-\w+", final.base)
    assert "--platform" not in DOCKERFILE.read_text().split("FROM", 1)[1]


def test_what_it_copies_exists_and_is_let_in_by_its_ignore_file():
    build, final = read_dockerfile(DOCKERFILE)
    ignored = (DOCKERFILE.with_name("renderer.Dockerfile.dockerignore")).read_text().splitlines()
    for copy in build.all("COPY"):
        *sources, target = copy.text.split()
        assert len(sources) == 1 or target.endswith("/"), copy
        for source in sources:
            assert (ROOT / source).exists(), source
            assert f"!{source.rstrip('/')}" in ignored
    assert all(copy.flags["from"] == build.name for copy in final.all("COPY"))
    assert not final.all("RUN")


def test_every_argument_and_variable_is_used():
    text = DOCKERFILE.read_text()
    used = {found[1] or found[2] for found in VARIABLE.finditer(text)}
    for stage in read_dockerfile(DOCKERFILE):
        for instruction in stage.all("ARG") + stage.all("ENV"):
            for name in instruction.pairs():
                assert name in used or name in READ_BY_OTHERS or name.startswith("TRNRT_"), name


def test_variables_that_the_server_reads_are_its_settings():
    import attrs

    from trnrt.render_config import RenderConfig

    names = {f"TRNRT_{each.name.upper()}" for each in attrs.fields(RenderConfig)}
    (environment,) = (each.pairs() for each in read_dockerfile(DOCKERFILE)[-1].all("ENV"))
    assert {name for name in environment if name.startswith("TRNRT_")} <= names


def test_it_runs_as_nobody_who_owns_only_the_cache():
    final = read_dockerfile(DOCKERFILE)[-1]
    assert final.one("USER").text == "65532:65532"
    owned = [copy.text.split()[1] for copy in final.all("COPY") if "chown" in copy.flags]
    (environment,) = (each.pairs() for each in final.all("ENV"))
    assert owned == [environment["HOME"]]
    assert final.one("VOLUME").command == [environment["HF_HOME"]]
    assert environment["HF_HOME"].startswith(environment["HOME"])
    assert final.one("EXPOSE").text == environment["TRNRT_PORT"] == "30000"
    assert final.one("STOPSIGNAL").text == "SIGTERM"
    assert final.one("ENTRYPOINT").command == ["trnrt", "render"]


def test_its_health_check_needs_nothing_that_the_image_lacks():
    check = read_dockerfile(DOCKERFILE)[-1].one("HEALTHCHECK")
    kind, _, command = check.text.partition(" ")
    assert kind == "CMD"
    assert command.strip() == '["python", "-m", "trnrt.probe", "/_sglang_renderer/ready"]'
    assert {"interval", "timeout", "start-period", "retries"} == set(check.flags)


def test_run_lines_name_no_path_of_their_own():
    """So that running them elsewhere runs the same lines."""
    for stage in read_dockerfile(DOCKERFILE):
        for run in stage.all("RUN"):
            assert not re.search(r"(?<![\w.}])/", run.text), run.text
            assert not run.flags


@pytest.mark.parametrize(
    "text",
    [
        "FROM a\nRUNN x",
        "FROM a\nENV B=$C",
        "RUN x\nFROM a",
        "FROM a\nRUN x \\",
        "FROM a b",
        "FROM a\nRUN x \\\n\n  y",
        "FROM $X",
        "FROM a\nCOPY <<E /b",
        "FROM a\nRUN",
        "ARG X=1\nFROM a\nCOPY $X b",
    ],
)
def test_a_dockerfile_that_no_builder_takes_is_told(tmp_path: Path, text: str):
    path = tmp_path / "Dockerfile"
    path.write_text(text)
    with pytest.raises(ValueError, match=r".+"):
        read_dockerfile(path)
