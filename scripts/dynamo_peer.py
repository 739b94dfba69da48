"""Answers texts through Dynamo's own preprocessor and parsers; run by compare_dynamo.py with the peer's Python.

Its first argument is a file of {"models": {name: {tool_parser, reasoning_parser}}, "asks": [[model, text, finish]],
"tools": [...]}; what came of each ask, whole and a character a frame, goes to the file of its second.
"""

import asyncio
import json
import sys
import tempfile
from pathlib import Path

from dynamo_serving import ask, finish, serve
from tokenizers import Tokenizer, decoders, models, pre_tokenizers


def byte_tokenizer():
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={character: i for i, character in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def write_model(folder):
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens(["<|bos|>", "<|eos|>"])
    bos, eos = tokenizer.token_to_id("<|bos|>"), tokenizer.token_to_id("<|eos|>")
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 300,
        "max_position_embeddings": 100_000,
        "bos_token_id": bos,
        "eos_token_id": eos,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"bos_token_id": bos, "eos_token_id": eos}))
    template = "{{ messages[0].content }}"
    parts = {"chat_template": template, "bos_token": "<|bos|>", "eos_token": "<|eos|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(parts))
    return tokenizer


def whole(text):
    answer = json.loads(text)
    if "error" in answer:
        return {"error": answer["error"]}
    choice = answer["choices"][0]
    message = choice["message"]
    calls = [[call["function"]["name"], call["function"]["arguments"]] for call in message.get("tool_calls") or ()]
    return {
        "content": message.get("content") or "",
        "reasoning": message.get("reasoning_content") or "",
        "calls": calls,
        "finish": choice["finish_reason"],
    }


def streamed(text):
    said = {"content": "", "reasoning": "", "calls": [], "finish": None}
    for line in text.splitlines():
        if not line.startswith("data: ") or line == "data: [DONE]":
            continue
        frame = json.loads(line[6:])
        for choice in frame.get("choices", ()):
            delta = choice["delta"]
            said["content"] += delta.get("content") or ""
            said["reasoning"] += delta.get("reasoning_content") or ""
            for call in delta.get("tool_calls") or ():
                function = call["function"]
                if function.get("name"):
                    said["calls"].append([function["name"], ""])
                said["calls"][-1][1] += function.get("arguments") or ""
            said["finish"] = choice["finish_reason"] or said["finish"]
    return said


async def main(work, target):
    with tempfile.TemporaryDirectory() as name:
        tokenizer = write_model(Path(name))

        async def answer(request, context=None):
            kind, _, number = tokenizer.decode(request["token_ids"]).strip().partition(" ")
            _, text, finish = work["asks"][int(number)]
            pieces = list(text) if kind == "stream" else [text]
            for piece in pieces:
                yield {"token_ids": tokenizer.encode(piece, add_special_tokens=False).ids}
            yield {"token_ids": [], "finish_reason": finish}

        tasks = await serve({model: {**each, "folder": name} for model, each in work["models"].items()}, answer)
        results = []
        for number, (model, *_) in enumerate(work["asks"]):
            body = {"model": model, "tools": work["tools"], "chat_template_kwargs": {"enable_thinking": True}}
            body["messages"] = [{"role": "user", "content": f"whole {number}"}]
            if not work["models"][model]["tool_parser"]:
                del body["tools"]
            one = whole(await asyncio.to_thread(ask, body))
            body["messages"] = [{"role": "user", "content": f"stream {number}"}]
            two = streamed(await asyncio.to_thread(ask, {**body, "stream": True}))
            results.append([one, two])
        assert not any(task.done() for task in tasks)
        finish(results, target)


asyncio.run(main(json.loads(Path(sys.argv[1]).read_text()), sys.argv[2]))
