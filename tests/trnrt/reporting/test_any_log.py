"""Whatever stands in a log, a report of it is made."""

import json
import xml.etree.ElementTree as ElementTree
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.stats.prodlog.lines import EndLine, GaugesLine, Header, LostLine, RequestLine
from stages.stats.prodlog.reader import read_log
from trnrt.reporting.columns import Columns
from trnrt.reporting.pictures import to_svg
from trnrt.reporting.summary import summarize
from trnrt.reporting.text import to_json, to_text

LAST_S = 253_402_300_799
VALUES = (
    st.integers(0, 3)
    | st.integers(0, 2**53)
    | st.floats(-LAST_S, LAST_S)
    | st.floats(0, 10)
    | st.sampled_from([None, True, False, "", "stop", "refused", "\0", "<&>", [], {}, -1, 2**64, 1e308])
)


def lines_of(cls: Any) -> st.SearchStrategy[dict[str, Any]]:
    names = [field.name for field in attrs.fields(cls)]
    return st.dictionaries(st.sampled_from(names), VALUES).map(lambda fields: {"kind": cls.kind, **fields})


ANY_LINE = st.one_of([lines_of(cls) for cls in (Header, RequestLine, GaugesLine, LostLine, EndLine)])


@given(st.lists(st.tuples(ANY_LINE, st.none() | st.integers(0, 2**60)), max_size=12))
@settings(max_examples=150)
def test_a_report_is_made_of_any_log(
    tmp_path_factory: pytest.TempPathFactory, lines: list[tuple[dict[str, Any], int | None]]
):
    file = tmp_path_factory.mktemp("log") / "prod-20231114T221500-0000000b-000001.jsonl"
    file.write_text("".join(json.dumps({"n": n, **line}) + "\n" for line, n in lines))
    columns = Columns(3)

    summary = summarize(read_log(file.parent, columns.take), columns)

    assert summary.calls == sum(line["kind"] == "request" for line, _ in lines)
    assert to_text(summary)
    json.loads(to_json(summary))
    ElementTree.fromstring(to_svg(summary, columns))
