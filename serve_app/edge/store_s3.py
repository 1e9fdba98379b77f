"""A version in an S3-compatible store: every answer is held against what was asked.

Credentials come from where boto3 looks for them (environment, files, roles), the endpoint of a server that is not AWS's
from ``AWS_ENDPOINT_URL_S3`` or ``AWS_ENDPOINT_URL``. ETags are not read: of an object that came in parts it is no
digest.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import boto3
from boto3.exceptions import Boto3Error
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError,
    CredentialRetrievalError,
    HTTPClientError,
    NoCredentialsError,
    PartialCredentialsError,
)
from botocore.parsers import ResponseParserError
from urllib3.exceptions import HTTPError

from serve_app.edge.store_types import Held, Limits, NotThere, StoreAway, StoreError, Untrue

ENDPOINT_VARIABLES: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_SHA256_KEY: Final = "sha256"
_PIECE_BYTES: Final = 1 << 20
#: Parts of an upload; S3 takes 10,000 of an object.
_UPLOAD_PART_BYTES: Final = 64 << 20
_NO_CREDENTIALS: Final = (NoCredentialsError, PartialCredentialsError, CredentialRetrievalError)
_AWAY_STATUS: Final = (408, 429)
#: What of a server's words may be repeated: they come from outside, and may hold what was sent.
_CODE: Final = re.compile(r"[A-Za-z]{1,40}", re.ASCII)
_RANGE: Final = re.compile(r"bytes \d{1,20}-\d{1,20}/\d{1,20}", re.ASCII)


class S3Store:
    """See :class:`~serve_app.edge.store_types.Store`."""

    def __init__(self, bucket: str, prefix: str, limits: Limits) -> None:
        self.address = f"s3://{bucket}/{prefix}"
        self._bucket, self._prefix, self._limits = bucket, prefix, limits
        self._making = threading.Lock()
        self._made: dict[int, Any] = {}

    def look(self, name: str) -> Held | None:
        try:
            with self._faults(name):
                answer = self._client().head_object(Bucket=self._bucket, Key=self._key(name))
        except NotThere:
            return None
        size = answer.get("ContentLength")
        if size is None:
            raise Untrue(f"{self._at(name)}: the store gives no length")
        return Held(size, answer.get("Metadata", {}).get(_SHA256_KEY))

    def read(self, name: str, offset: int, size_bytes: int, total_bytes: int) -> Generator[bytes, None, None]:
        last = offset + size_bytes - 1
        with self._faults(name):
            answer = self._client().get_object(Bucket=self._bucket, Key=self._key(name), Range=f"bytes={offset}-{last}")
            # On the way in it gives urllib3's response, on the way out it closes the connection if bytes are left.
            with answer["Body"] as body:
                status, said = answer["ResponseMetadata"]["HTTPStatusCode"], answer.get("ContentRange")
                wanted = f"bytes {offset}-{last}/{total_bytes}"
                if status != 206 or said != wanted:
                    given = said if said and _RANGE.fullmatch(said) else "no range"
                    raise Untrue(f"{self._at(name)}: the store answers {status}, {given}; asked was 206, {wanted}")
                yield from self._pieces(name, body, size_bytes)

    def read_whole(self, name: str, most_bytes: int) -> bytes:
        with self._faults(name):
            answer = self._client().get_object(Bucket=self._bucket, Key=self._key(name))
            with answer["Body"] as body:
                size = answer.get("ContentLength")
                if size is None or size > most_bytes:
                    said = "no length" if size is None else f"{size} bytes"
                    raise Untrue(f"{self._at(name)}: the store gives {said}; allowed: at most {most_bytes} bytes")
                return b"".join(self._pieces(name, body, size))

    def write(self, name: str, file: Path, sha256: str, told: Callable[[int], None]) -> None:
        config = TransferConfig(
            multipart_threshold=_UPLOAD_PART_BYTES,
            multipart_chunksize=_UPLOAD_PART_BYTES,
            # In the thread of the caller, who has several: threads of its own would outlive an interrupted command.
            use_threads=False,
        )
        with self._faults(name):
            # One part of many that fails must not cost the others: here botocore tries again by itself.
            self._client(self._limits.attempts).upload_file(
                Filename=str(file),
                Bucket=self._bucket,
                Key=self._key(name),
                ExtraArgs={"Metadata": {_SHA256_KEY: sha256}},
                Callback=told,
                Config=config,
            )

    def write_once(self, name: str, data: bytes) -> bool:
        try:
            with self._faults(name):
                self._client().put_object(Bucket=self._bucket, Key=self._key(name), Body=data, IfNoneMatch="*")
        except _Taken:
            return False
        return True

    def _pieces(self, name: str, body: Any, size_bytes: int) -> Generator[bytes, None, None]:
        """So many bytes of a body, whatever it goes on with."""
        left, window_bytes, window_began_s = size_bytes, 0, time.monotonic()
        while left:
            # What has arrived, at once: to wait for a full piece would be to wait for ever on one that drips.
            piece = body.read1(min(left, _PIECE_BYTES))
            if not piece:
                raise StoreAway(f"{self._at(name)}: the store broke off {left} bytes before the end")
            left -= len(piece)
            window_bytes += len(piece)
            now_s = time.monotonic()
            if now_s - window_began_s >= self._limits.silence_s:
                if left and window_bytes < self._limits.slow_bytes:
                    raise StoreAway(
                        f"{self._at(name)}: the store gave {window_bytes} bytes in {now_s - window_began_s:.0f} s"
                    )
                window_bytes, window_began_s = 0, now_s
            yield piece

    def _client(self, attempts: int = 1) -> Any:
        with self._making:
            if attempts not in self._made:
                self._made[attempts] = _client(self._limits, attempts)
            return self._made[attempts]

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}"

    def _at(self, name: str) -> str:
        return f"{self.address}/{name}"

    @contextmanager
    def _faults(self, name: str) -> Generator[None, None, None]:
        """botocore's faults as ours. Their words are left out: they may repeat what was sent, and so a credential."""
        try:
            yield
        except ClientError as error:
            raise self._refused(name, error) from None
        except _NO_CREDENTIALS:
            raise StoreError(
                f"{self._at(name)}: there are no S3 credentials; allowed: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
                "a file in AWS_SHARED_CREDENTIALS_FILE, or a role"
            ) from None
        except (ConnectionError, HTTPClientError, HTTPError, ResponseParserError) as error:
            raise StoreAway(f"{self._at(name)}: {endpoint()} does not answer ({type(error).__name__})") from None
        except Boto3Error as error:
            # An upload wraps what has stopped it.
            cause = error.__context__
            if isinstance(cause, ClientError):
                raise self._refused(name, cause) from None
            raise StoreAway(f"{self._at(name)}: the upload has failed ({type(cause or error).__name__})") from None
        except (BotoCoreError, ValueError) as error:
            raise StoreError(f"{self._at(name)}: cannot be asked for ({type(error).__name__})") from None

    def _refused(self, name: str, error: ClientError) -> StoreError:
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        code = str(error.response.get("Error", {}).get("Code"))
        if code in ("NoSuchBucket", "404", "NoSuchKey") or status == 404:
            what = f"there is no bucket {self._bucket}" if code == "NoSuchBucket" else "is not in the store"
            return NotThere(f"{self._at(name)}: {what}")
        if status == 412:
            return _Taken(f"{self._at(name)}: is there already")
        if status == 416:
            return Untrue(f"{self._at(name)}: is shorter in the store than the manifest says")
        code = code if _CODE.fullmatch(code) else "without a code"
        if status >= 500 or status in _AWAY_STATUS or code == "SlowDown":
            return StoreAway(f"{self._at(name)}: the store answers {status} {code}")
        return StoreError(f"{self._at(name)}: the store refuses: {status} {code}")


class _Taken(StoreError):
    """A conditional write found something."""


def endpoint() -> str:
    """Host and port of the server that is asked, without what else an address may hold."""
    address = next((os.environ[name] for name in ENDPOINT_VARIABLES if os.environ.get(name)), None)
    if address is None:
        return "S3"
    try:
        parts = urlsplit(address)
        return f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)
    except ValueError:
        return "the endpoint in the environment"


def _client(limits: Limits, attempts: int) -> Any:
    own = any(os.environ.get(name) for name in ENDPOINT_VARIABLES)
    config = Config(
        connect_timeout=limits.connect_s,
        read_timeout=limits.silence_s,
        retries={"mode": "standard", "total_max_attempts": attempts},
        max_pool_connections=limits.parallel,
        # Other servers do not always know checksums of a newer S3; every byte is hashed here anyway.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        # Nor do they have a host name for each bucket.
        s3={"addressing_style": "path" if own else "auto"},
    )
    try:
        return boto3.session.Session().client("s3", config=config)
    except (BotoCoreError, ValueError) as error:
        raise StoreError(f"no client for {endpoint()} can be made ({type(error).__name__})") from None
