from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ttrace.capture import settings
from ttrace.capture.settings import Settings, WatchSettings, is_asked, without_settings
from ttrace.core.drift import SharedKind
from ttrace.errors import UsageError

PLAIN = Settings(folder=Path("/traces/out"))
EVERYTHING = Settings(
    folder=Path("/traces/out"),
    steps=3,
    skip=2,
    every=5,
    max_bytes=10**12,
    resume=True,
    noise_seed=0,
    other_kernels=True,
    split=4,
    tap=True,
    inside=("layers.0", "a b"),
    sums=64,
    blocks=Path("/traces/blocks.json"),
    plan=Path("/traces/plans"),
    high_precision=("layers.*", "output"),
    payload="rounded",
)


@pytest.mark.parametrize("made", [PLAIN, EVERYTHING], ids=["plain", "everything"])
def test_settings_come_back_from_an_environment(made: Settings) -> None:
    assert Settings.from_environment({"HOME": "/root"} | made.to_environment()) == made


def test_every_field_has_a_variable() -> None:
    told = {*Settings.__slots__} - {"spool"}  # which belongs to a machine, and not to a run
    assert len(EVERYTHING.to_environment()) == len(told)


def test_folders_are_absolute_for_processes_that_start_elsewhere() -> None:
    relative = replace(EVERYTHING, folder=Path("out"), plan=Path("plans"), blocks=Path("b"))
    environment = relative.to_environment()
    assert environment[settings.OUT] == str(Path.cwd() / "out")
    assert environment[settings.PLAN] == str(Path.cwd() / "plans")
    assert environment[settings.BLOCKS] == str(Path.cwd() / "b")


@pytest.mark.parametrize("folder", [{}, {settings.OUT: ""}], ids=["absent", "empty"])
def test_without_a_folder_a_run_is_not_traced(folder: dict[str, str]) -> None:
    assert Settings.from_environment({settings.STEPS: "3"} | folder) is None


@pytest.mark.parametrize(
    "variable",
    [
        *(settings.STEPS, settings.SKIP, settings.NOISE_SEED),
        *(settings.SPLIT, settings.TAP),
    ],
)
def test_what_is_no_number_is_refused_by_name(variable: str) -> None:
    with pytest.raises(UsageError, match=f"{variable} must be a whole number, found '-1'"):
        Settings.from_environment({settings.OUT: "out", variable: "-1"})


@pytest.mark.parametrize("text", ["layers.0", '"layers.0"', "[0]"])
def test_what_is_no_list_of_paths_is_refused_by_name(text: str) -> None:
    with pytest.raises(UsageError, match=f"{settings.INSIDE} must be a list of module paths"):
        Settings.from_environment({settings.OUT: "out", settings.INSIDE: text})


def test_nothing_of_a_run_is_handed_on() -> None:
    kept = {"HOME": "/root", "TTRACE_KERNEL": "python"}
    assert without_settings(kept | EVERYTHING.to_environment()) == kept


def test_the_variables_are_spelled_in_one_file() -> None:
    root = Path(settings.__file__).parents[1]
    names = sorted(EVERYTHING.to_environment())
    spelled = {
        (file.name, name)
        for file in root.rglob("*.py")
        for name in names
        if f'"{name}"' in file.read_text()
    }
    assert spelled == {("settings.py", name) for name in names}


WATCHED = WatchSettings(
    folder=Path("/traces/out"), skip=2, every=5, without=frozenset({SharedKind.GRADIENT})
)


@pytest.mark.parametrize("made", [WatchSettings(folder=Path("/traces/out")), WATCHED])
def test_settings_of_watching_come_back_too(made: WatchSettings) -> None:
    environment = made.to_environment()
    assert WatchSettings.from_environment(environment) == made
    assert Settings.from_environment(environment) is None
    assert is_asked(environment)
    assert without_settings(environment) == {}


def test_a_run_that_is_traced_is_not_watched() -> None:
    assert WatchSettings.from_environment(WATCHED.to_environment() | {settings.OUT: "a"}) is None
    assert not is_asked({settings.WATCH: "", settings.OUT: ""})


def test_what_cannot_be_left_out_is_refused() -> None:
    with pytest.raises(UsageError, match=r"TTRACE_WITHOUT must list gradient, .*found 'loss'"):
        WatchSettings.from_environment({settings.WATCH: "a", settings.WITHOUT: "loss"})
