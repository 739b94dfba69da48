"""Model folders by name: a folder here is taken as it is, of org/name on the hub the files that are needed are fetched.

HF_TOKEN, HF_HOME, HF_ENDPOINT and HF_HUB_OFFLINE mean what they mean to every tool: the cache is shared with them.
"""

import logging
import re
from collections.abc import Sequence
from pathlib import Path

from stages.errors import ConfigError

# All that text needs; weights stay where they are.
SMALL_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "*.tiktoken",
    "tiktoken.model",
    "tokenization_*.py",
    "chat_template.json",
    "*.jinja",
    "encoding/encoding_dsv32.py",
    "encoding/encoding_dsv4.py",
)
# What a server of the model itself needs too.
WITH_WEIGHTS = (*SMALL_FILES, "*.safetensors", "*.safetensors.index.json")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*\Z")

log = logging.getLogger("trnrt")


def local_folder(name: str, flag: str, revision: str | None = None, files: Sequence[str] = SMALL_FILES) -> Path:
    """Return the folder `name` means: itself, a file's, or one of the hub's; raises ConfigError with `flag`."""
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if path.is_file():
        return path.parent
    if _NAME.match(name) is None:
        raise ConfigError(f"{flag}: there is no folder {name}, and it is no name on the hub (org/name)")
    return _fetched(name, flag, revision, files)


def _fetched(name: str, flag: str, revision: str | None, files: Sequence[str]) -> Path:
    # Reads its environment when it is imported, and takes half a second of it.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        folder = Path(snapshot_download(name, revision=revision, allow_patterns=list(files)))
    except GatedRepoError:
        raise ConfigError(f"{flag}: {name} is gated; ask for access on the hub and set HF_TOKEN") from None
    except RepositoryNotFoundError:
        text = f"{flag}: there is no folder {name}, nor a model of that name on the hub; a private one needs HF_TOKEN"
        raise ConfigError(text) from None
    except RevisionNotFoundError:
        raise ConfigError(f"--revision: {name} has no revision {revision!r} on the hub") from None
    except LocalEntryNotFoundError:
        text = (
            f"{flag}: there is no folder {name}, the hub cannot be reached (or HF_HUB_OFFLINE forbids it), and its "
            f"cache under HF_HOME does not have {name}; give a folder, or fetch it once while online"
        )
        raise ConfigError(text) from None
    except Exception as error:  # its HTTP client's errors too, whichever client that is in its version
        said = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ConfigError(f"{flag}: {name} cannot be fetched from the hub: {said}") from None
    log.info("%s is %s", name, folder)
    return folder
