"""What Ollama's info routes hold; core, values come from Info."""

import hashlib

from stages.ingress.dialects.ollama_common import API_VERSION, TAG, details
from stages.ingress.info import Info
from stages.ingress.instants import rfc3339


def tags(info: Info) -> dict[str, object]:
    """Return the list of the one served model."""
    served = info.model
    name = served.served_model_name + TAG
    identity = f"{served.served_model_name}\0{served.model_path}".encode()
    return {
        "models": [
            {
                "name": name,
                "model": name,
                "modified_at": rfc3339(info.started_s),
                "size": info.device.weight_bytes,
                "digest": hashlib.sha256(identity).hexdigest(),
                "details": details(served),
            }
        ]
    }


def version() -> dict[str, object]:
    """Return the version of Ollama whose API is followed, which is what its clients decide by."""
    return {"version": API_VERSION}
