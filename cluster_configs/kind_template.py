"""PromptTemplate: how agents speak one language. Data, with a version and a digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from cluster_configs.faults import Problem
from cluster_configs.fields import Block, Document, LanguageCode, Text, Version, Word, under


def _plain(text: str) -> str:
    if "<|" in text:
        raise ValueError("'<|' starts a special token of the tokenizer; allowed: plain text")
    if not text.strip():
        raise ValueError("the text is blank; allowed: what the agent is told or says")
    return text


Prompt = Annotated[Text, AfterValidator(_plain)]


class TemplateMetadata(Block):
    """A template is named by its language code."""

    name: LanguageCode


class TemplateSpec(Block):
    """``system`` leads the prompt; ``confirmations`` are short fixed answers by what they say."""

    version: Version
    language: LanguageCode
    register_: Literal["formal", "plain", "honorific"] = Field(alias="register")
    system: Prompt
    confirmations: Annotated[Mapping[Word, Prompt], Field(max_length=16)] = Field(default_factory=dict)


class PromptTemplate(Document):
    """The document of kind PromptTemplate."""

    kind: Literal["PromptTemplate"] = "PromptTemplate"
    metadata: TemplateMetadata
    spec: TemplateSpec

    @property
    def digest(self) -> str:
        """SHA-256 (64 hex digits) of what it says; the order of keys in the file does not matter."""
        spec = self.spec.model_dump(mode="json", by_alias=True)
        text = json.dumps(spec, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(text.encode("utf-8")).hexdigest()

    def problems(self) -> Iterator[Problem]:
        """Its name and its language are one."""
        if self.metadata.name != self.spec.language:
            yield Problem(
                under("language"),
                f"'{self.spec.language}' is not the template's name '{self.metadata.name}'; both must be the same",
                (under("language"), ("metadata", "name")),
            )
