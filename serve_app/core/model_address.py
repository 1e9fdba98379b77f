"""Addresses of versions in model stores: ``s3://BUCKET/PREFIX`` or ``file:///FOLDER``, one prefix per version."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Final

_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", re.ASCII)
_NOT_IN_KEYS: Final = re.compile(r"[^A-Za-z0-9.-]+", re.ASCII)
_ALLOWED: Final = "allowed: s3://BUCKET/PREFIX or file:///FOLDER"


@dataclass(frozen=True, slots=True)
class Address:
    """Where a version lies. ``bucket`` is empty for a folder; ``path`` has no slash at its end, and for a bucket none
    at its beginning."""

    bucket: str
    path: str

    @property
    def uri(self) -> str:
        return f"s3://{self.bucket}/{self.path}" if self.bucket else f"file://{self.path}"

    @property
    def model(self) -> str:
        """The address above: that of all versions of a model."""
        return self.uri.rpartition("/")[0]

    @property
    def key(self) -> str:
        """A name for a folder: readable, and another one for every address."""
        last = "_".join(_NOT_IN_KEYS.sub("-", part)[:40].strip(".-") for part in self.path.split("/")[-2:] if part)
        return f"{last}-{hashlib.sha256(self.uri.encode()).hexdigest()[:16]}"


def parse_address(text: str) -> Address:
    """An address, one slash more or less at its end being the same.

    Raises:
        ValueError: naming what it is not.
    """
    if not text.isprintable() or any(char in text for char in "\\?#") or len(text) > 1024:
        raise ValueError(f"{ascii(text)[:80]} is no address of a version; {_ALLOWED}")
    scheme, found, rest = text.partition("://")
    bucket, slash, path = rest.partition("/")
    path = path.rstrip("/")
    parts = path.split("/")
    if not found or not slash or not path or any(part in ("", ".", "..") for part in parts):
        raise ValueError(f"{text!a} is no address of a version; {_ALLOWED}")
    if scheme == "file" and not bucket:
        return Address("", f"/{path}")
    if scheme == "s3" and _BUCKET.fullmatch(bucket):
        return Address(bucket, path)
    raise ValueError(f"{text!a} is no address of a version; {_ALLOWED}")
