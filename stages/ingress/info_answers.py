"""Examples of what the info routes answer, by path, for the document; core."""

from collections.abc import Mapping

import orjson

from stages.ingress import info as facts
from stages.ingress import ollama
from stages.ingress.info import Info
from stages.ingress.stats_routes import encoded
from stages.stats.example import example_statistics

RUNNING = "TrnRT is running"


def info_answers(info: Info) -> Mapping[str, list[object]]:
    """Return, by path, answers that together show what each may hold; of this server, whose settings are in them."""
    sections = ["all", "core", *sorted(facts.LOAD_SECTIONS - {"all", "core"})]
    loads: list[object] = [facts.loads(info, info.started_s, section) for section in sections]
    loads.append(facts.loads(info, info.started_s, dp_rank=1))
    by_name: dict[str, list[object]] = {
        "/model_info": [facts.model_info(info)],
        "/server_info": [facts.server_info(info)],
        "/version": [{"version": info.version}],
    }
    return {
        **by_name,
        **{f"/get_{path[1:]}": values for path, values in by_name.items()},
        "/": [RUNNING],
        "/v1/models": [facts.models(info)],
        "/get_models": [facts.models(info)],
        "/v1/models/{model_id}": [facts.model(info, info.model.served_model_name)],
        "/get_load": [facts.get_load(info)],
        "/v1/loads": loads,
        "/get_loads": loads,
        "/api/tags": [ollama.tags(info)],
        "/api/version": [ollama.version()],
        "/openapi.json": [{}],
        "/v1/stats": [orjson.loads(encoded(one)) for one in example_statistics()],
    }
