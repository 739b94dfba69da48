"""Tool parsers say what tests/golden/tool_calls.txt says they do: text in quotes, then each call with its arguments."""

from tests.golden.tool_calls import FILE, table


def test_every_case_comes_to_what_the_table_says() -> None:
    assert FILE.read_text().split("\n") == table().split("\n")
