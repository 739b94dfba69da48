"""A tiktoken vocabulary gives the ids that tiktoken's own merging gives, and its text back."""

import base64
import json
import re
from collections import Counter
from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import mkdtemp

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.detokenizer.vocabulary import open_vocabulary
from stages.errors import CheckpointError
from stages.prompt.segments import Control
from stages.prompt.tokenizer import PromptTokenizer, open_prompt_tokenizer
from stages.tokenizer_file import read_tokenizer_file
from tests.small_tokenizer import CORPUS

PATTERN = r" ?[^\W_]+|\s+|[^\w\s]+|_"
PROGRAM = '''
raise SystemExit("it ran")
class Tokenizer:
    """No one runs it."""
    pat_str = "|".join([r" ?[^\\W_]+", r"\\s+", r"""[^\\w\\s]+""", "_"])
'''
END = 600


@cache
def ranks() -> dict[bytes, int]:
    """The bytes, and merges of the most frequent neighbours."""
    found = {bytes([byte]): byte for byte in range(256)}
    words = [[bytes([byte]) for byte in word.encode()] for text in CORPUS for word in re.findall(PATTERN, text)]
    while len(found) < 500:
        counts = Counter(pair for word in words for pair in pairwise(word))
        if not counts:
            break
        left, right = max(counts, key=lambda pair: (counts[pair], pair))
        found[left + right] = len(found)
        words = [merged(word, left, right) for word in words]
    return found


def merged(word: list[bytes], left: bytes, right: bytes) -> list[bytes]:
    result: list[bytes] = []
    for part in word:
        if result and (result[-1], part) == (left, right):
            result[-1] = left + right
        else:
            result.append(part)
    return result


def reference(text: str) -> list[int]:
    ids: list[int] = []
    for piece in re.findall(PATTERN, text):
        parts = [bytes([byte]) for byte in piece.encode()]
        while known := [(ranks()[a + b], at) for at, (a, b) in enumerate(pairwise(parts)) if a + b in ranks()]:
            _, at = min(known)
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        ids += [ranks()[part] for part in parts]
    return ids


def write(folder: Path, name: str = "tiktoken.model") -> Path:
    lines = [f"{base64.b64encode(piece).decode()} {rank}" for piece, rank in ranks().items()]
    (folder / name).write_text("\n".join(lines) + "\n")
    (folder / "tokenization_x.py").write_text(PROGRAM)
    added = {str(END): {"content": "<|end|>", "special": True}, "601": {"content": "<shown>", "special": False}}
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
    return folder


@cache
def opened() -> PromptTokenizer:
    return open_prompt_tokenizer(str(write(Path(mkdtemp()))))


@given(st.text(alphabet=st.sampled_from("the Paris_é你🙂 .\n?"), max_size=30) | st.sampled_from(CORPUS))
def test_ids_are_those_of_merging_by_rank_and_say_the_text_again(text: str) -> None:
    (ids,) = opened().encode_texts([text])
    assert list(ids) == reference(text)
    assert opened().vocabulary.text(ids) == text


def test_added_tokens_are_control_tokens_special_or_not() -> None:
    tokenizer = opened()
    assert tokenizer.control_ids == {"<|end|>": END, "<shown>": 601}
    assert tokenizer.vocabulary.special == {END}
    (ids,) = tokenizer.encode_segments([["a<|end|>", Control("<|end|>")]])
    assert ids[-1] == END
    assert END not in ids[:-1]
    assert tokenizer.encode_texts(["<|end|>"]) == [(END,)]


def test_one_file_of_any_name_is_read_and_a_tokenizer_json_beats_it(tmp_path: Path) -> None:
    assert read_tokenizer_file(str(write(tmp_path, "x.tiktoken"))).is_byte_level
    open_vocabulary(str(tmp_path))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        read_tokenizer_file(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("tiktoken.model", "YQ== x", "no list of base64 and ranks"),
        ("tiktoken.model", "!! 5", "no list of base64 and ranks"),
        ("tiktoken.model", "YQ== 5\nYg== 5", "a rank of its own"),
        ("tiktoken.model", "", "a rank of its own"),
        ("tokenization_x.py", "x = (", "is not Python"),
        ("tokenization_x.py", "pat_str = 5", r"tokenizer\.json is missing, and its tiktoken file needs pat_str"),
        ("tokenization_x.py", "pat_str = f('x')", "needs pat_str"),
        ("tokenization_x.py", "pat_str = '|'.join([x])", "needs pat_str"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"x": {}}}', "added_tokens_decoder"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"5": 1}}', "added_tokens_decoder"),
    ],
)
def test_what_is_wrong_with_one_is_told(tmp_path: Path, name: str, text: str, said: str) -> None:
    (write(tmp_path) / name).write_text(text)
    with pytest.raises(CheckpointError, match=said):
        read_tokenizer_file(str(tmp_path))


def test_a_pattern_the_library_does_not_know_is_told(tmp_path: Path) -> None:
    (write(tmp_path) / "tokenization_x.py").write_text("PAT_STR = '('")
    with pytest.raises(CheckpointError, match="cannot use"):
        open_prompt_tokenizer(str(tmp_path))
