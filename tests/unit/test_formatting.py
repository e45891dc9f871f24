"""How numbers, times and errors are written."""

import math

import pytest

from phyla.formatting import duration, format_count, format_estimate, mask_password, number, params, size
from phyla.lineage import Schedule, Segment
from phyla.records import Json, summarize_error
from phyla.strategies import describe


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.2, "0.2 s"),
        (7.25, "7.25 s"),
        (59.99, "1:00"),
        (61, "1:01"),
        (3723, "1:02:03"),
        (183845, "2 d 3:04:05"),
        (-1, "0 s"),
        (math.inf, "?"),
        (None, "none yet"),
    ],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_counts_agree_with_their_nouns() -> None:
    assert [format_count(count, "trial") for count in (0, 1, 2000)] == ["0 trials", "1 trial", "2,000 trials"]
    assert [format_count(count, "study", "studies") for count in (1, 2)] == ["1 study", "2 studies"]


def test_numbers_and_sizes() -> None:
    assert [number(value) for value in (None, 0.1234567, math.nan, 3000, 12345.6, "x")] == [
        "none",
        "0.1235",
        "nan",
        "3,000",
        "12,346",
        "x",
    ]
    assert [number(value, 6) for value in (0.1234567, 12345.678)] == ["0.123457", "12345.7"]
    assert [size(value) for value in (0, 1023, 2048, 5 << 20, 3 << 40, 5 << 50)] == [
        "0 B",
        "1023 B",
        "2.0 KiB",
        "5.0 MiB",
        "3.0 TiB",
        "5120.0 TiB",
    ]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0.98765, "0.9877"),
        (0.99, "0.99"),
        (0.999, "0.999"),
        (0.998765, "0.99877"),
        (0.999961234, "0.9999612"),
        (1 - 2e-9, "0.999999998"),
        (math.nextafter(1, 0), "1"),
        (1.0, "1"),
        (1.00001, "1"),
    ],
)
def test_a_discount_near_1_is_not_rounded_to_1(value: float, words: str) -> None:
    assert number(value) == words
    if words != "1":
        change: Json = {"gamma": {"from": 0.9, "to": value, "by": "1 - x, x0.5"}}
        shown = [
            params({"gamma": value}).removeprefix("gamma="),
            describe({"decision": "explore", "changes": change}).split(" to ")[1].split(" (")[0],
            str(Schedule((Segment(0, 1, {"gamma": value}, 1, 0),))).split()[-1],
        ]
        assert [float(text) for text in shown] == pytest.approx([value] * 3, abs=(1 - value) / 10)
        assert "1" not in shown


def test_the_line_of_an_error_that_says_what_happened() -> None:
    assert (
        summarize_error("Traceback (most recent call last):\n  File ...\nValueError: lr is nan\n")
        == "ValueError: lr is nan"
    )
    assert summarize_error("NoFitness: never reported\ncall report") == "NoFitness: never reported"
    assert summarize_error(None) == summarize_error("  ") == "-"


def test_an_error_has_two_digits_and_its_value_as_many_decimals() -> None:
    assert format_estimate(0.93121, 0.00213) == "0.9312 ±0.0021"
    assert (
        format_estimate(0.93121, None)
        == format_estimate(0.93121, 0.0)
        == format_estimate(0.93121, math.nan)
        == "0.9312"
    )
    assert format_estimate(12345.6, 321.0) == "12,346 ±3.2e+02"
    assert format_estimate(math.nan, 0.1) == "nan"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:SECRET@host/db",
        "postgresql://me:SEC/RET@host:5432/db",
        "postgresql://host/db?user=me&password=SECRET",
        "postgresql://host/db?sslpassword=SECRET",
        "https://me:SECRET@host:8470",
        "postgresq://me:SEC@RET@host/db",
        "postgresql:/me:SEC:RET@host/db",
        "postgresql://me:/SECRET@host/db",
        "me:SECRET@host/db",
        "postgresql://me@server:SECRET@host/db",
    ],
)
def test_a_password_is_not_shown(url: str) -> None:
    assert "RET" not in mask_password(url)
    assert "host" in mask_password(url)


@pytest.mark.parametrize(
    "url",
    [
        "http://host:8470",
        "http://[::1]:8470",
        "postgresql://me@host:5432/db",
        "published:/home/a:b@c/service.json",
        "sqlite:////data/a:b@c.db",
    ],
)
def test_a_url_without_a_password_stays_as_it_is(url: str) -> None:
    assert mask_password(url) == url


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("a\nb", r"a\nb"),
        ("a\r\tb", r"a\r\tb"),
        ("\x1b[31m\x9b\u2028", r"\x1b[31m\x9b\u2028"),
        ("größer 模型 C:\\n", "größer 模型 C:\\n"),
    ],
)
def test_a_value_is_one_line_wherever_it_is_shown(value: str, words: str) -> None:
    assert number(value) == words
    assert params({"note": value, "n": 1}) == f"note={words} n=1"
    assert Schedule((Segment(0, 4, {"note": value}, 1, 0),)).table().splitlines()[1:] == [
        f"{0:>9}  {4:>7}  {0:>6}  {1:>5}  {words:>4}"
    ]
    assert describe({"decision": "explore", "changes": {"note": {"from": value, "to": 1, "by": "x2"}}}) == (
        f"explored; note {words} to 1"
    )
