"""``response_format`` with bounded white space, for the reason that ``tool_calls`` tells.

Each backend is told in its own words; what a request itself says of white space vLLM ignores.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.v1.structured_output.backend_xgrammar import validate_xgrammar_grammar

from deployments.tool_calls import MOST_WHITESPACE

#: llguidance reads it in the schema itself; separators are regular expressions.
_GUIDANCE: Final = {"whitespace_flexible": False, "key_separator": ": ?", "item_separator": ", ?"}


def terse(response_format: Mapping[str, Any]) -> dict[str, Any]:
    """A checked format as vLLM is to get it: where xgrammar takes its schema a structural tag, which has a bound."""
    kind = response_format["type"]
    if kind == "text":
        return dict(response_format)
    schema = response_format["json_schema"]["schema"] if kind == "json_schema" else {"type": "object"}
    if _is_for_xgrammar(schema):
        form = {"type": "json_schema", "json_schema": schema, "max_whitespace_cnt": MOST_WHITESPACE}
        return {"type": "structural_tag", "format": form}
    told = {**response_format["json_schema"], "schema": {**schema, "x-guidance": _GUIDANCE}}
    return {**response_format, "json_schema": told}


def _is_for_xgrammar(schema: dict[str, Any]) -> bool:
    """vLLM's own question when it chooses a backend."""
    try:
        validate_xgrammar_grammar(SamplingParams(structured_outputs=StructuredOutputsParams(json=schema)))
    except (TypeError, ValueError, VLLMValidationError):
        return False
    return True
