"""A self-test measures rates, and leaves nothing behind; rates of elsewhere are read."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ttrace.core.estimate import Rates
from ttrace.core.plain import to_dict
from ttrace.errors import UsageError
from ttrace.lab.rates import measured_rates, read_rates


@pytest.fixture(scope="module")
def rates(tmp_path_factory: pytest.TempPathFactory) -> Rates:
    folder = tmp_path_factory.mktemp("disk")
    found = measured_rates("full", None, "cuda", folder / "not-there-yet")
    assert list(folder.iterdir()) == []
    return found


def test_rates_are_those_of_a_machine(rates: Rates) -> None:
    """Bounds are a hundred times what any machine took."""
    assert rates.device in ("cpu", "cuda")
    assert 1e-7 < rates.record_seconds < 1e-2
    assert 0 <= rates.byte_seconds < 1e-6
    assert 1e-7 < rates.read_seconds < 1e-2
    assert rates.disk_rate > 1e5


def test_what_json_wrote_is_read(rates: Rates, tmp_path: Path) -> None:
    file = tmp_path / "there.json"
    file.write_text(json.dumps({"rates": to_dict(rates), "other": 1}))
    assert read_rates(file, "full") == rates
    with pytest.raises(UsageError, match="rates of --capture full"):
        read_rates(file, "auto")
    file.write_text(json.dumps({"rates": to_dict(replace(rates, capture="auto"))}))
    assert read_rates(file, "fingerprint").capture == "auto"


@pytest.mark.parametrize("text", ["{}", "[]", "no", '{"rates": {"device": 1}}', '{"rates": 3}'])
def test_what_is_none_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "there.json"
    file.write_text(text)
    with pytest.raises(UsageError, match="has no rates"):
        read_rates(file, "full")
