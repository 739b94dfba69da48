"""Calls of InternLM and Intern-S1: a JSON object between action tags. Core."""

from stages.detokenizer.parsers.json_calls import json_body, tagged
from stages.detokenizer.parsers.text_tools import text_tool_parser

STARTS, ENDS = ("<|action_start|><|plugin|>", "<|action_start|> <|plugin|>"), ("<|action_end|>",)

PARSER = text_tool_parser("interns1", (*STARTS, *ENDS), tagged(STARTS, ENDS, json_body()))
