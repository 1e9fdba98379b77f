"""The format of tool calls, with bounded white space.

vLLM's grammar of a call allows any amount of it between the parts of the arguments, and a small model that is lost
there writes nothing else until its tokens are gone. Its option ``disable_any_whitespace`` does not reach the grammar of
calls, and would take the other backends away from ``response_format``.
"""

from __future__ import annotations

from typing import Any, Final

from vllm.tool_parsers.abstract_tool_parser import ToolParserManager
from vllm.tool_parsers.hermes_tool_parser import Hermes2ProToolParser
from xgrammar.structural_tag import JSONSchemaFormat

#: As Qwen is trained: one space after a colon or a comma.
MOST_WHITESPACE: Final = 1
NAME: Final = "hermes_terse"


class TerseHermes(Hermes2ProToolParser):  # type: ignore[misc]
    def get_structural_tag(self, *args: Any, **named: Any) -> Any:
        tag = super().get_structural_tag(*args, **named)
        for call in tag.format.tags if tag is not None and hasattr(tag.format, "tags") else ():
            if isinstance(call.content, JSONSchemaFormat):
                call.content.max_whitespace_cnt = MOST_WHITESPACE
        return tag


def register() -> str:
    """The name by which vLLM's OpenAI layer finds it."""
    ToolParserManager.register_module(NAME, module=TerseHermes)
    return NAME
