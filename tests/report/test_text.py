import pytest

from elinvar.report import text


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (335_000_000, "319 MiB"),
        (2**60, "1024 PiB"),
    ],
)
def test_size(value, said):
    assert text.size(value) == said


@pytest.mark.parametrize(
    ("value", "said"),
    [(0.004, "0.00 s"), (9.5, "9.50 s"), (59.94, "59.9 s"), (60, "1 min 00 s"), (245.4, "4 min 05 s"),
     (3600, "1 h 00 min"), (11_220, "3 h 07 min"), (187_200, "2 d 04 h")],
)  # fmt: skip
def test_duration(value, said):
    assert text.duration(value) == said


def test_numbers_and_times():
    assert text.count(1234567) == "1\u202f234\u202f567"
    assert [text.short_count(n) for n in (12, 1234, 45_678, 919_424, 7.5e9)] == [
        "12", "1.23 k", "45.7 k", "919 k", "7.50 B",
    ]  # fmt: skip
    assert text.moment(0) == "1970-01-01 00:00:00"
    assert text.moment(1e300) == "1e+300"
    assert [text.number(v) for v in (None, float("nan"), 2.34567, 1e-9)] == ["–", "–", "2.346", "1e-09"]
    assert text.code('"><x') == '<code title="&quot;&gt;&lt;x">&quot;&gt;&lt;x</code>'
