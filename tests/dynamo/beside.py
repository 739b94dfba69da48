"""What Dynamo's preprocessor, this renderer and `transformers` make of the same bodies."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import trio
from attrs import frozen

from stages.stats.stage import open_stats
from tests.dynamo.cases import Body
from tests.stages.ingress.http import connected
from tests.stages.prompt.jinja.styles import VARIABLES, tokenizer_of, transformers_of, write_folder
from trnrt.render import RenderServer, model_of, serve_render
from trnrt.render_config import load_render_config

PEER = Path(__file__).parents[2] / "scripts" / "dynamo_prompts_peer.py"
CONTEXT_TOKENS = 4096
DEFAULTS = {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "repetition_penalty": 1.1}


@frozen
class Model:
    """A model folder to be written: a style's template and tokenizer, its parsers, its sampling defaults."""

    style: str
    tool_parser: str = "hermes"
    reasoning_parser: str = "qwen3"
    # The name Dynamo knows the tool parser by.
    peer_parser: str | None = None
    defaults: Mapping[str, Any] | None = None
    structural_tag: Mapping[str, Any] | None = None

    def write(self, folder: Path) -> Path:
        folder.mkdir(exist_ok=True)
        write_folder(self.style, folder)
        tokenizer = tokenizer_of(self.style)
        ids = {f"{name}_token_id": tokenizer.token_to_id(VARIABLES[f"{name}_token"]) for name in ("bos", "eos")}
        config = {
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "vocab_size": tokenizer.get_vocab_size(),
            "max_position_embeddings": CONTEXT_TOKENS,
            **ids,
        }
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "generation_config.json").write_text(json.dumps({**ids, **(self.defaults or {})}))
        return folder


@frozen
class Case:
    """A body put to a model, and what came of it: a body or {"error": ...}."""

    model: str
    name: str
    body: Body
    theirs: Mapping[str, Any]
    ours: Mapping[str, Any]


def compare(python: str, models: Mapping[str, Model], bodies: Mapping[str, Mapping[str, Body]]) -> list[Case]:
    """Put each model's bodies to both; raises RuntimeError where the peer does not run."""
    with TemporaryDirectory() as name:
        root = Path(name)
        folders = {key: models[key].write(root / f"m{number}") for number, key in enumerate(models)}
        asks = [(key, case, body) for key in models for case, body in bodies[key].items()]
        theirs = _theirs(python, models, folders, [(key, body) for key, _, body in asks], root)
        ours = trio.run(_ours, models, folders, bodies)
    return [Case(*ask, peers, own) for ask, peers, own in zip(asks, theirs, ours, strict=True)]


def _theirs(
    python: str,
    models: Mapping[str, Model],
    folders: Mapping[str, Path],
    asks: Sequence[tuple[str, Body]],
    root: Path,
) -> list[Any]:
    peers = {
        key: {
            "folder": str(folders[key]),
            "tool_parser": model.peer_parser or model.tool_parser,
            "reasoning_parser": model.reasoning_parser,
            "structural_tag": model.structural_tag,
        }
        for key, model in models.items()
    }
    source, target = root / "work.json", root / "got.json"
    source.write_text(json.dumps({"models": peers, "asks": asks}))
    run = subprocess.run([python, str(PEER), str(source), str(target)], check=False, capture_output=True, text=True)
    if run.returncode:
        raise RuntimeError(f"the peer failed: {run.stderr[-2000:]}")
    got: list[Any] = json.loads(target.read_text())
    return got


async def _ours(
    models: Mapping[str, Model], folders: Mapping[str, Path], bodies: Mapping[str, Mapping[str, Body]]
) -> list[Any]:
    return [each for key in models for each in await _rendered(models[key], folders[key], bodies[key].values())]


async def _rendered(model: Model, folder: Path, bodies: Any) -> list[Any]:
    parsers = ("--tool-call-parser", model.tool_parser, "--reasoning-parser", model.reasoning_parser)
    config = load_render_config([str(folder), "--port", "0", "--served-model-name", "m", *parsers], {})
    server = RenderServer(config, model_of(config), open_stats(), 0)
    result = []
    async with trio.open_nursery() as nursery:
        await nursery.start(serve_render, server)
        assert server.port is not None
        async with connected(server.port) as client:
            for body in bodies:
                await client.post("/v1/chat/completions/render", {"model": "m", **body})
                reply = (await client.reply()).json
                result.append({"error": reply["error"]["message"]} if "error" in reply else reply)
        nursery.cancel_scope.cancel()
    return result


def prompt_text(style: str, answer: Mapping[str, Any]) -> str:
    """Return the prompt an answer of either has, or its error."""
    if "error" in answer:
        return f"ERROR {answer['error']}"
    ids = answer["token_ids"] if "token_ids" in answer else answer["input_ids"]
    return tokenizer_of(style).decode(list(ids), skip_special_tokens=False)


def prompt_ids(answer: Mapping[str, Any]) -> list[int] | None:
    return None if "error" in answer else list(answer["token_ids"] if "token_ids" in answer else answer["input_ids"])


def judged(style: str, body: Body) -> list[int] | str:
    """Return the ids transformers makes of a body as it is, arguments as objects, or what it fails with."""
    tokenizer = transformers_of(style)
    tools = None if body.get("tool_choice") == "none" else body.get("tools")
    continues = bool(body.get("continue_final_message"))
    try:
        text = tokenizer.apply_chat_template(
            [_with_objects(message) for message in body["messages"]],
            tools=tools,
            tokenize=False,
            add_generation_prompt=not continues,
            continue_final_message=continues,
            **body.get("chat_template_kwargs", {}),
        )
    except Exception as error:  # a template fails in any way it likes
        return f"{type(error).__name__}: {error}"
    ids: list[int] = tokenizer(str(text), add_special_tokens=False)["input_ids"]
    return ids


def _with_objects(message: Body) -> Body:
    if not message.get("tool_calls"):
        return message
    calls = []
    for each in message["tool_calls"]:
        arguments = each["function"]["arguments"]
        arguments = json.loads(arguments or "{}") if isinstance(arguments, str) else arguments
        calls.append({**each, "function": {**each["function"], "arguments": arguments}})
    return {**message, "tool_calls": calls}
