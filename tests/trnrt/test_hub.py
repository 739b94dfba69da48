"""Models by their hub names, fetched from a hub on this machine."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fake_hub import BRANCH_COMMIT, FakeHub, fake_hub
from tests.small_tokenizer import write_small_tokenizer
from trnrt.served import DEMO_FILES

FETCH = """
import sys
from stages.errors import StartupError
from trnrt.model_folder import read_model_folder
for revision in sys.argv[2:] or [None]:
    try:
        model = read_model_folder(sys.argv[1], revision=revision)
        settings = model.settings
        print(model.folder, settings.served_model_name, settings.context_length_tokens, model.template.texts)
    except StartupError as error:
        print(f"trnrt: {error}")
"""


SERVED = """
import sys
from trnrt.config import Config
from trnrt.served import read_served_model
model = read_served_model(Config(model_path="org/name", revision="other"))
names = sorted(file.name for file in model.folder.iterdir())
print(model.settings.served_model_name, model.card.name, model.folder.name, *names)
"""


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[FakeHub]:
    tokenizer = write_small_tokenizer(tmp_path)
    files = {
        "config.json": json.dumps({"vocab_size": 9, "max_position_embeddings": 77}).encode(),
        "tokenizer.json": (Path(tokenizer) / "tokenizer.json").read_bytes(),
        "tokenizer_config.json": b"{}",
        "chat_template.jinja": b"T",
        "additional_chat_templates/tool_use.jinja": b"U",
        "model-00001-of-00002.safetensors": b"weights",
        "pytorch_model.bin": b"weights",
        "README.md": b"read",
    }
    with fake_hub(FakeHub(files)) as running:
        yield running


def fetch(hub: FakeHub, home: Path, name: str = "org/name", *revisions: str, **environ: str) -> list[str]:
    """Return what each revision came to, in a process of its own, since the library reads its environment once."""
    ours = {"HF_ENDPOINT": hub.url, "HF_HOME": str(home), "PATH": os.environ["PATH"], "PYTHONPATH": "."}
    command = [sys.executable, "-c", environ.pop("code", FETCH), name, *revisions]
    run = subprocess.run(command, env=ours | environ, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


def test_the_small_files_of_a_name_are_fetched_once_and_weights_never(hub: FakeHub, tmp_path: Path) -> None:
    (said,) = fetch(hub, tmp_path / "home")
    folder, name, context, texts = said.split(" ", 3)
    assert (name, context, texts) == ("org/name", "77", "{'default': 'T', 'tool_use': 'U'}")
    there = {str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file()}
    assert there == {
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "additional_chat_templates/tool_use.jinja",
    }

    # What the cache has is enough without a network.
    hub.asked.clear()
    assert fetch(hub, tmp_path / "home", HF_HUB_OFFLINE="1") == [said]
    assert hub.asked == []


def test_a_revision_is_a_branch_or_a_commit_and_an_unknown_one_is_told(hub: FakeHub, tmp_path: Path) -> None:
    branch, commit, again, unknown = fetch(hub, tmp_path, "org/name", "other", BRANCH_COMMIT, "other", "nothing")
    assert BRANCH_COMMIT in branch
    assert branch == commit == again
    assert unknown == "trnrt: --revision: org/name has no revision 'nothing' on the hub"
    # Each file once.
    resolved = [path for path in hub.asked if "/resolve/" in path]
    assert len(set(resolved)) == 5


def test_a_name_the_hub_does_not_have_is_told(hub: FakeHub, tmp_path: Path) -> None:
    (complained,) = fetch(hub, tmp_path, "org/other")
    assert "MODEL: there is no folder org/other, nor a model" in complained


def test_a_private_model_wants_the_token(hub: FakeHub, tmp_path: Path) -> None:
    hub.token = "secret"
    assert "HF_TOKEN" in fetch(hub, tmp_path)[0]
    hub.is_gated = True
    assert "is gated" in fetch(hub, tmp_path)[0]
    assert "77" in fetch(hub, tmp_path, HF_TOKEN="secret")[0]


@pytest.mark.parametrize("environ", [{"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}])
def test_without_a_hub_and_without_a_cache_what_to_do_is_told(
    hub: FakeHub, tmp_path: Path, environ: dict[str, str]
) -> None:
    (complained,) = fetch(hub, tmp_path / "home", **environ)
    assert "HF_HUB_OFFLINE" in complained
    assert "give a folder, or fetch it once while online" in complained


def test_a_server_of_the_model_itself_fetches_the_weights_too(hub: FakeHub, tmp_path: Path) -> None:
    hub.files = {file.name: file.read_bytes() for file in DEMO_FILES.iterdir()} | {"README.md": b"x", "x.bin": b"y"}
    (said,) = fetch(hub, tmp_path, code=SERVED)
    name, card, commit, *names = said.split(" ")
    assert (name, card, commit) == ("org/name", "glm-5.3-flash", BRANCH_COMMIT)
    assert names == sorted(file.name for file in DEMO_FILES.iterdir())
