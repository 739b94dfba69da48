"""`POST /api/show`: what Ollama's clients ask of a model before they use it: its context and what it can do."""

from attrs import field, frozen

from stages.ingress.dialect import BodyForm, Call, Dialect, Lookup, Route
from stages.ingress.dialects.fields import shown
from stages.ingress.dialects.ollama_common import check_name, details
from stages.ingress.dialects.openai_common import invalid, read_body
from stages.ingress.error_bodies import ollama_error
from stages.settings import ModelSettings


@frozen(kw_only=True)
class ShowBody:
    """The body of /api/show; name is the older name of model, verbose tells nothing more here."""

    model: str = field(default="", metadata=shown(required=True))
    name: str = ""


def parse(call: Call, model: ModelSettings) -> Lookup:
    """Return the model's facts; raises NotFound for another model."""
    body = read_body(ShowBody, call.body)
    wanted = body.model or body.name
    if not wanted:
        raise invalid("model", "model is required")
    check_name(wanted, model)
    return Lookup((), lambda _: show(model))


def show(model: ModelSettings) -> dict[str, object]:
    """Return what /api/show holds."""
    family, context = model.model_type, model.context_length_tokens
    sampling = model.default_sampling
    defaults = {
        "num_ctx": context,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
    }
    able = {"tools": model.tool_call_parser, "thinking": model.reasoning_parser}
    return {
        "modelfile": f"FROM {model.model_path}\n",
        "parameters": "\n".join(f"{name:<30} {value:g}" for name, value in defaults.items()),
        "template": "",
        "details": details(model),
        "model_info": {
            "general.architecture": family,
            "general.basename": model.served_model_name,
            f"{family}.context_length": context,
            f"{family}.vocab_size": model.vocab_size,
        },
        "capabilities": ["completion", *(name for name, parser in able.items() if parser is not None)],
    }


DIALECT = Dialect(
    name="ollama_show",
    routes=(Route("/api/show", form=BodyForm((ShowBody,)), samples=({},), data_keyed=frozenset({"model_info"})),),
    parse=parse,
    error=ollama_error,
    json_only=False,
    generates=False,
)
