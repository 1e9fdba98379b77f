"""Who is calling: keys are compared by SHA-256, expired ones refused."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass

from serve_app.core.table import Table, Tenant, TenantKey
from serve_app.outcomes import GrixError

#: The hash of no key.
_NO_HASH = "0" * 64
#: The caller when API keys are explicitly turned off.
ANYBODY = Tenant(name="anybody", keys=(), residency=frozenset({"any"}))


@dataclass(frozen=True, slots=True)
class KeyIndex:
    """Tenants by the SHA-256 of their keys, built once a table."""

    by_hash: dict[str, tuple[Tenant, TenantKey]]

    @classmethod
    def of(cls, tenants: Iterable[Tenant]) -> KeyIndex:
        return cls({key.sha256: (tenant, key) for tenant in tenants for key in tenant.keys})

    def find(self, sha256: str) -> tuple[Tenant, TenantKey] | None:
        """Whose key has this hash. A guess near a key has a hash far from it, so what a look-up by hash takes says
        nothing about the key; the comparison that decides takes the same time for a hit and a miss.
        """
        found = self.by_hash.get(sha256)
        same = hmac.compare_digest(found[1].sha256 if found else _NO_HASH, sha256)
        return found if same else None


@dataclass(frozen=True, slots=True)
class Caller:
    """Who is calling, and with which of the tenant's keys: an old key may go when nobody is seen with it."""

    tenant: Tenant
    key_id: str | None = None


def hash_key(key: str) -> str:
    """SHA-256 (64 hex characters) of an API key."""
    return hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()


def identify(table: Table, index: KeyIndex, authorization: str | None, today: str) -> Caller:
    """Who sent an ``Authorization: Bearer KEY`` header; ``today`` is an ISO date.

    Raises:
        GrixError: ``no_api_key`` or ``bad_api_key``. Never says which part was wrong.
    """
    if table.open_access:
        return Caller(ANYBODY)
    scheme, _, key = (authorization or "").strip().partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        raise GrixError("no_api_key", "Send an API key as 'Authorization: Bearer KEY'.")
    found = index.find(hash_key(key.strip()))
    if found is None:
        raise GrixError("bad_api_key", "This API key is not known here.")
    tenant, entry = found
    if entry.expires is not None and today > entry.expires:
        raise GrixError("bad_api_key", "This API key is not known here.")
    return Caller(tenant, entry.id)


def allowed_zones(tenant: Tenant, data_class: str | None) -> frozenset[str] | None:
    """Zones that may see a request; ``None``: any. ``data_class`` narrows the tenant's zones, never widens."""
    allowed = tenant.residency
    if data_class is not None:
        allowed = frozenset({data_class}) if "any" in allowed or data_class in allowed else frozenset()
    return None if "any" in allowed else allowed


def check_residency(tenant: Tenant, zones: frozenset[str], data_class: str | None) -> bool:
    """Whether a region in ``zones`` may see this request."""
    allowed = allowed_zones(tenant, data_class)
    return allowed is None or not allowed.isdisjoint(zones)
