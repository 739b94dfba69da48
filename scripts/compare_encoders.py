"""Puts random conversations to a checkpoint's own encoder and to ours, and shows where they differ.

    python scripts/compare_encoders.py FOLDER [--num 3000] [--seed 0]

FOLDER has config.json and encoding/encoding_dsv32.py or encoding_dsv4.py, which this script runs: it is somebody's
program, so use one you trust.
"""

import argparse
import importlib.util
import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stages.messages import Chat, Tool
from stages.prompt.jinja.template import open_jinja
from trnrt.chat_templates import choose_template
from trnrt.native_formats import native_name

WORDS = ("a", "b c", "é\n", "", "<x>", "'q'", "\\n {y}", "{tool_schemas}")
VALUES = ("s", "", 1, None, [1, "é"], {"a": True}, 1.5)
PARAMETERS = {"type": "object", "properties": {"x": {"type": "string", "description": "<é>"}}}
FUNCTIONS: tuple[dict[str, Any], ...] = ({"name": "f", "description": "d", "parameters": PARAMETERS}, {"name": "g"})
ENCODERS = {"deepseek_v32": "encoding_dsv32.py", "deepseek_v4": "encoding_dsv4.py"}
SHOWN = 3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--num", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    flags = parser.parse_args()
    config = json.loads((flags.folder / "config.json").read_text())
    name = native_name(config.get("model_type", ""), tuple(config.get("architectures") or ()))
    if name not in ENCODERS:
        parser.error(f"{flags.folder}: has no encoder of its own that is known here")
    template = open_jinja(choose_template(flags.folder, model_type=name), (), time.monotonic)
    encode = encoder(flags.folder / "encoding" / ENCODERS[name])
    rng = random.Random(flags.seed)
    different = 0
    for _ in range(flags.num):
        messages, is_thinking = conversation(rng, name), rng.random() < 0.6
        functions = FUNCTIONS if rng.random() < 0.5 else ()
        effort = rng.choice((None, "high", "max")) if name == "deepseek_v4" else None
        switches = {"thinking": is_thinking, **({"reasoning_effort": effort} if effort else {})}
        more = {"reasoning_effort": effort} if name == "deepseek_v4" else {}
        theirs = encode(as_openai(messages, functions), "thinking" if is_thinking else "chat", **more)
        ours = template(Chat(tuple(messages), tuple(Tool(each["name"], each) for each in functions), switches)).text
        if ours != theirs:
            different += 1
            if different <= SHOWN:
                at = next(at for at in range(len(ours) + 1) if ours[: at + 1] != theirs[: at + 1])
                print(f"theirs {theirs[max(0, at - 60) : at + 60]!r}\nours   {ours[max(0, at - 60) : at + 60]!r}")
    print(f"{name}: {flags.num - different} of {flags.num} conversations are the same")
    return 1 if different else 0


def encoder(path: Path) -> Callable[..., str]:
    spec = importlib.util.spec_from_file_location("encoder", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    encode: Callable[..., str] = module.encode_messages
    return encode


def conversation(rng: random.Random, name: str) -> list[dict[str, Any]]:
    def said(role: str, **more: Any) -> dict[str, Any]:
        return {"role": role, "content": rng.choice(WORDS), **more}

    messages = [said("system")] if rng.random() < 0.5 else []
    for _ in range(rng.randint(1, 4)):
        messages += [said("user") for _ in range(2 if name == "deepseek_v4" and rng.random() < 0.2 else 1)]
        for _ in range(rng.randint(0, 2)):
            calls = [call(rng) for _ in range(rng.randint(1, 3))]
            results = [said("tool", tool_call_id=each["id"]) for each in calls]
            if name == "deepseek_v4":
                rng.shuffle(results)
            messages += [said("assistant", reasoning_content=f"r{rng.choice(WORDS)}", tool_calls=calls), *results]
        if rng.random() < 0.8:
            messages.append(said("assistant", reasoning_content=f"r{rng.choice(WORDS)}"))
    if messages[-1]["role"] == "assistant" and rng.random() < 0.7:
        messages.append(said("user"))
    return messages


def call(rng: random.Random) -> dict[str, Any]:
    arguments = {key: rng.choice(VALUES) for key in rng.sample("xyz", rng.randint(0, 3))}
    return {"id": f"c{rng.randrange(10**9)}", "name": rng.choice("fg"), "arguments": arguments}


def as_openai(messages: list[dict[str, Any]], functions: tuple[dict[str, Any], ...]) -> list[dict[str, Any]]:
    result = [dict(message) for message in messages]
    for message in result:
        if "tool_calls" in message:
            message["tool_calls"] = [
                {
                    "id": each["id"],
                    "type": "function",
                    "function": {"name": each["name"], "arguments": json.dumps(each["arguments"])},
                }
                for each in message["tool_calls"]
            ]
    if functions:
        if result[0]["role"] != "system":
            result.insert(0, {"role": "system", "content": ""})
        result[0]["tools"] = [{"type": "function", "function": each} for each in functions]
    return result


if __name__ == "__main__":
    sys.exit(main())
