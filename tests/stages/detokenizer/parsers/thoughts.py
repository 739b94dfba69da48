"""What models say while they think, for each reasoning format."""

from attrs import frozen


@frozen
class Thinker:
    """How a format opens and closes its thinking, and whether an answer begins inside of it by itself."""

    opening: str = "<think>"
    closing: str = "</think>"
    begins_inside: bool = False
    exits: tuple[str, ...] = ()
    # What stands between two blocks of an answer in front of its text.
    before_text: str = ""


INSIDE = Thinker(begins_inside=True)

THINKERS: dict[str, Thinker] = {
    "basic": Thinker(),
    "deepseek_r1": INSIDE,
    "deepseek_v3": INSIDE,
    "deepseek_v3_1": INSIDE,
    "deepseek_v3_2": INSIDE,
    "deepseek_v4": Thinker(exits=("<｜DSML｜tool_calls>", "<｜DSML｜invoke name=")),
    "deepseek_v4_1": Thinker(exits=("<｜DSML｜ calls>", "<｜DSML｜ invoke name=")),
    "gemma4": Thinker("<|channel>thought\n", "<channel|>"),
    "glm45": Thinker(),
    "gpt_oss": Thinker(
        "<|channel|>analysis<|message|>", "<|end|>", before_text="<|start|>assistant<|channel|>final<|message|>"
    ),
    "granite": Thinker("Here is my thought process:", "Here is my response:"),
    "inkling": Thinker(
        "<|message_model|><|content_thinking|>", "<|end_message|>", before_text="<|message_model|><|content_text|>"
    ),
    "kimi": Thinker("◁think▷", "◁/think▷"),
    "kimi_k25": Thinker(begins_inside=True, exits=("<|tool_calls_section_begin|>",)),
    "kimi_k3": Thinker("<|open|>think<|sep|>", "<|close|>think<|sep|>", exits=("<|open|>", "<|close|>")),
    "minimax_m2": Thinker(begins_inside=True, exits=("<minimax:tool_call>", "<invoke name=")),
    "minimax_m3": Thinker("<mm:think>", "</mm:think>", exits=("]<]minimax[>[",)),
    "mistral": Thinker("[THINK]", "[/THINK]"),
    "nemotron3": INSIDE,
    "nemotron_deci": Thinker(),
    "nemotron_nano": INSIDE,
    "qwen3": Thinker(),
    "step3": INSIDE,
}
