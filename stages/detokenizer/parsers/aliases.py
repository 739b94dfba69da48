"""Other names of the parsers: what SGLang and Dynamo call them, and names that are refused on purpose. Core.

A name that is not here is looked up with underscores for its hyphens.
"""

from collections.abc import Mapping

TOOLS: Mapping[str, str] = {
    "llama3": "llama3_json",
    "qwen": "qwen25",
    "qwen3": "qwen25",
    "glm": "glm45",
    "deepseekv3": "deepseek_v3",
    "deepseekv31": "deepseek_v3_1",
    "deepseekv32": "deepseek_v3_2",
    "deepseekv4": "deepseek_v4",
    "deepseek_v41": "deepseek_v4_1",
    "gpt_oss": "harmony",
    "gemma_4": "gemma4",
    "kimi_k25": "kimi_k2",
    "minimax_m3_nom": "minimax_m3",
    "mimo": "qwen3_coder",
    "step3p5": "qwen3_coder",
}

REASONING: Mapping[str, str] = {
    # As SGLang has it: not taken for begun. With an underscore it is Dynamo's, which is.
    "deepseek-v3": "basic",
    "deepseekv4": "deepseek_v4",
    "deepseek_v41": "deepseek_v4_1",
    "step3p5": "deepseek_r1",
    "qwen3_thinking": "deepseek_r1",
    "minimax": "deepseek_r1",
    "minimax_m3_nom": "minimax_m3",
    "kimi_k2": "kimi_k25",
    "nemotron_3": "nemotron3",
    "nemotron_v3": "nemotron3",
    "gemma_4": "gemma4",
    "glm47": "glm45",
    "interns1": "qwen3",
    "mimo": "basic",
    "qwen3_coder": "qwen3",
}

# Formats that are known elsewhere and not here: a wrong guess would lose calls without a word.
REFUSED_TOOLS = (
    *("cohere_command4", "dots", "gigachat3", "gigachat35", "hunyuan", "k2_horizon", "ling3", "minicpm5"),
    *("muse", "muse_glimmer", "poolside_v1", "spark25", "trinity"),
)
REFUSED_REASONING = ("cohere_command4", "hunyuan", "poolside_v1")
