"""How calls are shown."""

from __future__ import annotations

import pytest

from dsh.core.messages import text_block
from dsh.tools.present import call_view, result_view
from tests.tools.kit import simple_tool


@pytest.mark.rule("TL-80")
def test_without_a_presenter_the_generic_card_shows_the_raw_call() -> None:
    plain = simple_tool("t")
    assert call_view(plain, "t", {"a": 1}) == {"card": "generic", "title": "t", "kind": "other", "rawInput": {"a": 1}}
    assert call_view(None, "gone", "{oops")["title"] == "gone"
    content = [text_block("x")]
    assert result_view(plain, {}, content, False) == {"card": "generic", "content": content}


@pytest.mark.rule("TL-71", "TL-82")
def test_presenters_see_fitting_arguments_and_meta_and_never_raise() -> None:
    tool = simple_tool(
        "t",
        parameters={"n": {"type": "integer", "required": True}},
        present_call=lambda args: {"card": "generic", "title": f"n={args['n']}"},
        present_result=lambda args, result: {"card": "generic", "title": result["meta"]["title"]},
    )
    assert call_view(tool, "t", {"n": 1})["title"] == "n=1"
    assert call_view(tool, "t", {"n": "x"})["title"] == "t"
    assert result_view(tool, {"n": 1}, [], False, {"title": "m"})["title"] == "m"
    assert result_view(tool, {"n": 1}, [], False, None) == {"card": "generic", "content": []}
