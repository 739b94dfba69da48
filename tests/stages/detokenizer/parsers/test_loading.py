"""Names: every spelling of the peers is known or refused on purpose, and a wrong one is told the nearest."""

from pathlib import Path

import pytest

from stages.detokenizer.parsers import aliases, reasoning, tools
from stages.detokenizer.parsers.loading import (
    load_id_reasoning_parser,
    load_id_tool_parser,
    load_reasoning_parser,
    load_tool_parser,
    names,
)
from stages.errors import ConfigError

DYNAMO_TOOLS = """
hermes qwen25 llama3_json mistral nemotron_deci nemotron_nano jamba phi4 pythonic harmony default deepseek_v3
deepseek_v3_1 deepseek_v3_2 deepseek_v4 deepseek-v4 deepseekv4 qwen3_coder glm47 minimax_m2 minimax_m3
minimax-m3 minimax_m3_nom minimax-m3-nom kimi_k2 kimi_k3 kimi-k3 gemma4 gemma-4 inkling
"""
SGLANG_TOOLS = """
llama3 qwen qwen25 glm glm45 glm47 hermes mistral pythonic qwen3_coder kimi_k2 kimi_k3 inkling deepseekv3
deepseekv31 deepseekv32 deepseekv4 gpt-oss minimax-m2 minimax-m3 gemma4 step3 step3p5 apertus2509 interns1
lfm2 mimo
"""
REASONING = """
basic qwen3 glm45 nemotron_deci glm47 qwen3_coder kimi_k2 deepseek_v4 deepseek-v4 deepseekv4 deepseek_v41
deepseek_r1 deepseek_v3 deepseek_v3_1 deepseek_v3_2 step3 nemotron_nano nemotron3 nemotron_v3 kimi_k25
minimax_m2 kimi kimi_k3 kimi-k3 mistral granite minimax_m3 minimax-m3 minimax_append_think
minimax-append-think gemma4 gemma-4 gpt_oss inkling deepseek-r1 step3p5 qwen3-thinking minimax gpt-oss
nemotron_3 interns1 deepseek-v3 mimo
"""


@pytest.mark.parametrize("name", [*DYNAMO_TOOLS.split(), *SGLANG_TOOLS.split()])
def test_peers_names_of_tool_parsers_are_known(name: str) -> None:
    assert load_tool_parser(name).name


@pytest.mark.parametrize("name", REASONING.split())
def test_peers_names_of_reasoning_parsers_are_known(name: str) -> None:
    assert load_reasoning_parser(name).name


@pytest.mark.parametrize(
    ("name", "means"),
    [("qwen3", "qwen25"), ("glm45", "glm45"), ("kimi_k25", "kimi_k2"), ("deepseek_v41", "deepseek_v4_1")],
)
def test_names_that_parse_nothing_elsewhere_parse_here(name: str, means: str) -> None:
    assert load_tool_parser(name).name == means


def test_a_hyphen_means_sglangs_parser_where_the_two_differ() -> None:
    assert load_reasoning_parser("deepseek-v3").name == "basic"
    assert load_reasoning_parser("deepseek_v3").name == "deepseek_v3"


@pytest.mark.parametrize("name", ["cohere_command4", "hunyuan", "poolside_v1"])
def test_a_format_nobody_can_vouch_for_is_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match=f"--tool-call-parser: the format of '{name}' is not supported"):
        load_tool_parser(name)
    with pytest.raises(ConfigError, match=f"--reasoning-parser: the format of '{name}' is not supported"):
        load_reasoning_parser(name)


def test_a_wrong_name_is_told_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"--tool-call-parser: there is no 'hermez' \(did you mean hermes.*\); there"):
        load_tool_parser("hermez")
    with pytest.raises(ConfigError, match=r"--reasoning-parser: there is no 'qwen33' \(did you mean .*qwen3"):
        load_reasoning_parser("qwen33")
    with pytest.raises(ConfigError, match=r"there is no 'zzzzzzzzz'; there are: "):
        load_tool_parser("zzzzzzzzz")


def test_every_name_is_in_the_docs() -> None:
    text = (Path(__file__).parents[4] / "docs/PARSERS.md").read_text()
    known = [*names(tools), *names(reasoning), *aliases.TOOLS, *aliases.REASONING]
    for name in [*known, *aliases.REFUSED_TOOLS, *aliases.REFUSED_REASONING]:
        assert f"`{name}`" in text or f"`{name.replace('_', '-')}`" in text, name


def test_only_glm_is_read_by_ids() -> None:
    assert load_id_tool_parser("glm47") is not None
    assert load_id_reasoning_parser("glm45") is not None
    assert load_id_tool_parser("hermes") is None
    assert load_id_reasoning_parser("qwen3") is None
