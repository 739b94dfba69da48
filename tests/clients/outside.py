"""Programs of others, run against our server when asked for only.

TRNRT_CLIENTS names them, by commas, or is `all`; TRNRT_CLIENTS_FOLDER is where scripts/install_clients put them.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from trnrt.served import DEMO_FILES

NAMES = ("claude-code", "codex", "opencode", "lm-eval", "langchain")
MODEL = "glm-5.3-flash-demo"
# As long as a shared core may take over an agent's prompt.
PATIENCE_S = 1500


def folder_of(name: str) -> Path:
    """The folder of installed programs; skips the test unless `name` was asked for."""
    assert name in NAMES
    asked = os.environ.get("TRNRT_CLIENTS", "").split(",")
    if not {name, "all"} & set(asked):
        pytest.skip(f"runs {name}, which is asked for by TRNRT_CLIENTS={name} (tests/clients/README.md)")
    folder = os.environ.get("TRNRT_CLIENTS_FOLDER")
    if folder is None:
        pytest.fail("TRNRT_CLIENTS_FOLDER must name the folder given to scripts/install_clients")
    return Path(folder)


def roomy_model(folder: Path, context_tokens: int = 65_536) -> Path:
    """The shipped model with a longer context: it has no positions to run out of, only a number in its config."""
    folder.mkdir()
    for file in DEMO_FILES.iterdir():
        if file.name != "config.json":
            (folder / file.name).symlink_to(file)
    config = json.loads((DEMO_FILES / "config.json").read_text())
    config["text_config"]["max_position_embeddings"] = context_tokens
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def run(command: list[str | Path], home: Path, stdin: str = "", **environ: str) -> "subprocess.CompletedProcess[str]":
    """Run a program in a home and a working folder of its own, with nothing of this environment but PATH."""
    work = home / "work"
    work.mkdir(parents=True, exist_ok=True)
    return subprocess.run(
        [str(part) for part in command],
        cwd=work,
        env={"PATH": os.environ["PATH"], "HOME": str(home), **environ},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def told(done: "subprocess.CompletedProcess[str]") -> str:
    """All that a program said, for an assertion's message."""
    return f"exit {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"


def json_lines(text: str) -> list[dict[str, Any]]:
    """The objects among the lines of an output."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]
