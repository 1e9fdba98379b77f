from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster_configs.quantities import (
    LARGEST_BYTES,
    LONGEST_MS,
    QuantityError,
    format_duration,
    format_size,
    parse_duration_s,
    parse_size_bytes,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("250ms", 0.25),
        ("5s", 5.0),
        ("30m", 1800.0),
        ("1h30m", 5400.0),
        ("1h2m3s4ms", 3723.004),
        ("1.5s", 1.5),
        ("1000ms", 1.0),
        ("0h5s", 5.0),
        ("8784h", 31_622_400.0),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration_s(text) == seconds


_D = "a duration such as 250ms, 5s, 30m or 1h30m"
_S = "a size such as 512Mi or 24Gi"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("300", "'300' has no unit: write 300ms, 300s or 300m, whichever is meant"),
        ("0", "'0' has no unit: write 0ms, 0s or 0m, whichever is meant"),
        ("-5", f"'-5' is negative and has no unit; allowed: {_D}"),
        ("0s", f"'0s' is not more than 0; allowed: {_D}"),
        ("0h0m", f"'0h0m' is not more than 0; allowed: {_D}"),
        ("-5s", f"'-5s' is negative; allowed: {_D}"),
        ("24Gi", f"'24Gi' is a size; allowed: {_D}"),
        ("1.5ms", f"'1.5ms' is finer than a millisecond; allowed: {_D}"),
        ("8785h", "'8785h' is too long; allowed: up to 8784h"),
        ("999999999999999h", "'999999999999999h' is too long; allowed: up to 8784h"),
        ("5 s", f"'5 s': write it in small letters without spaces; allowed: {_D}"),
        ("5S", f"'5S': write it in small letters without spaces; allowed: {_D}"),
        ("30m1h", f"'30m1h' is no duration; allowed: {_D}, units h, m, s, ms in this order"),
        ("5sec", f"'5sec' is no duration; allowed: {_D}, units h, m, s, ms in this order"),
        ("", f"'' is no duration; allowed: {_D}, units h, m, s, ms in this order"),
        ("٥s", f"'٥s' is no duration; allowed: {_D}, units h, m, s, ms in this order"),
        ("5s\n", f"'5s?' is no duration; allowed: {_D}, units h, m, s, ms in this order"),
    ],
)
def test_durations_refused(text: str, message: str) -> None:
    with pytest.raises(QuantityError) as caught:
        parse_duration_s(text)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("1Ki", 1024),
        ("512Mi", 536_870_912),
        ("1Gi", 1_073_741_824),
        ("24Gi", 25_769_803_776),
        ("1.5Gi", 1_610_612_736),
        ("2Ti", 2_199_023_255_552),
    ],
)
def test_sizes(text: str, size_bytes: int) -> None:
    assert parse_size_bytes(text) == size_bytes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("24", "'24' has no unit: write 24Mi or 24Gi, whichever is meant"),
        ("24G", f"'24G': units are powers of 1024: write 24Gi; allowed: {_S}"),
        ("24GB", f"'24GB': units are powers of 1024: write 24Gi; allowed: {_S}"),
        ("24 GiB", f"'24 GiB': units are powers of 1024: write 24Gi; allowed: {_S}"),
        ("512mb", f"'512mb': units are powers of 1024: write 512Mi; allowed: {_S}"),
        ("30s", f"'30s' is a duration; allowed: {_S}"),
        ("0Gi", f"'0Gi' is not more than 0; allowed: {_S}"),
        ("-1Gi", f"'-1Gi' is negative; allowed: {_S}"),
        ("-1", f"'-1' is negative and has no unit; allowed: {_S}"),
        ("0.3Ki", f"'0.3Ki' is no whole number of bytes; allowed: {_S}"),
        ("1025Ti", "'1025Ti' is too large; allowed: up to 1024Ti"),
        ("much", f"'much' is no size; allowed: {_S}, units Ki, Mi, Gi, Ti"),
    ],
)
def test_sizes_refused(text: str, message: str) -> None:
    with pytest.raises(QuantityError) as caught:
        parse_size_bytes(text)
    assert str(caught.value) == message


@given(st.integers(1, LONGEST_MS))
def test_every_duration_is_written_so_that_it_is_read_back(ms: int) -> None:
    assert parse_duration_s(format_duration(ms / 1000)) == ms / 1000


@given(st.integers(1, LARGEST_BYTES))
def test_every_size_is_written_so_that_it_is_read_back(size_bytes: int) -> None:
    assert parse_size_bytes(format_size(size_bytes)) == size_bytes


@given(st.text(max_size=40))
def test_any_text_is_a_quantity_or_a_quantity_error(text: str) -> None:
    for parse in (parse_duration_s, parse_size_bytes):
        try:
            assert parse(text) > 0
        except QuantityError as error:
            assert "allowed:" in str(error) or "whichever is meant" in str(error)
