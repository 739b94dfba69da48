"""Tool calls written as a Python list of calls with keyword arguments, anywhere in the text. Core.

A list that turns out to be none is text, and so is one that the end cuts off.
"""

import ast
import json
import re
import warnings
from collections.abc import Iterator

from stages.detokenizer.parsers.arguments import MAX_LITERAL_CHARS
from stages.detokenizer.parsers.calls import Calls, Format, prose
from stages.detokenizer.parsers.markers import markers
from stages.detokenizer.parsers.reader import Malformed, Reader, Steps, Truncated

CALL_HEAD = re.compile(r"\s*([A-Za-z_][\w.\-]*)\(")
_MAY_BE_HEAD = re.compile(r"\s*([A-Za-z_][\w.\-]*)?")
_TOKEN = re.compile(r"""\\.|\\|["'()\[\]{}]""", re.DOTALL)
_WORDS = {"true": True, "false": False, "null": None}
MAX_CALL_CHARS = 100 * MAX_LITERAL_CHARS


def python_calls(*dropped: str) -> Format:
    """Return the format; the dropped markers are no text wherever they stand."""
    every, around = markers("[", *dropped), markers(*dropped)

    def read(reader: Reader, calls: Calls) -> Steps[None]:
        while True:
            if (yield from prose(reader, calls, every)) != "[":
                continue
            # From the bracket on.
            calls.is_inside = False
            while not reader.ended and _MAY_BE_HEAD.fullmatch(reader.text):
                yield
            if not CALL_HEAD.match(reader.text):
                calls.say("[")
                continue
            calls.is_inside = True
            try:
                for name, arguments in list(_calls((yield from _list_text(reader)))):
                    calls.call(name, arguments)
                reader.mark()
                yield from reader.close(around)
            except (Malformed, Truncated):
                reader.go_back()
                calls.say(reader.take(1))

    return read


def _list_text(reader: Reader) -> Steps[str]:
    """Read up to and over the bracket that closes the list."""
    parts: list[str] = []
    depth, quote = 1, ""
    while True:
        size = len(reader.text)
        for match in _TOKEN.finditer(reader.text):
            token = match[0]
            if token == "\\":
                size = match.start()
            elif token in "\"'":
                quote = token if not quote else "" if quote == token else quote
            elif len(token) == 1 and not quote:
                depth += 1 if token in "([{" else -1
                if depth == 0:
                    parts.append(reader.take(match.end()))
                    return "".join(parts)[:-1]
        parts.append(reader.take(size))
        yield from reader.more()


def _calls(text: str) -> Iterator[tuple[str, str]]:
    """Yield name and arguments of each call in a list, brackets left out; raises Malformed when it is no such list."""
    while text.strip():
        head = CALL_HEAD.match(text)
        if head is None:
            raise Malformed
        end = _end_of_call(text, head.end())
        yield head[1], _arguments(text[head.end() : end])
        text = text[end + 1 :].lstrip()
        if text and not text.startswith(","):
            raise Malformed
        text = text[1:]


def _end_of_call(text: str, start: int) -> int:
    depth, quote = 1, ""
    for match in _TOKEN.finditer(text, start):
        token = match[0]
        if token in "\"'":
            quote = token if not quote else "" if quote == token else quote
        elif len(token) == 1 and not quote:
            depth += 1 if token in "([{" else -1
            if depth == 0:
                return match.start()
    raise Malformed


def _arguments(text: str) -> str:
    if len(text) > MAX_CALL_CHARS:
        raise Malformed
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the model's escapes are not this program's
            call = ast.parse(f"f({text})", mode="eval").body
            if not isinstance(call, ast.Call) or call.args:
                raise Malformed
            values = {_key(each): ast.literal_eval(_JsonWords().visit(each.value)) for each in call.keywords}
        return json.dumps(values, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise Malformed from None


def _key(keyword: ast.keyword) -> str:
    if keyword.arg is None:
        raise Malformed
    return keyword.arg


class _JsonWords(ast.NodeTransformer):
    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Constant(_WORDS[node.id]) if node.id in _WORDS else node
