"""Settings in one word: what arrives behind shells, JSON and YAML, and what is refused."""

from __future__ import annotations

import json
import logging
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml
from torch import nn

import ttrace
from ttrace.capture.settings import OUT, PACKED, STEPS, Settings, is_asked, pack, unpack, unpacked
from ttrace.errors import UsageError

HOSTILE = {
    OUT: "/my 'runs'/$HOME `id` \"x\" \\ %s {env},;&|\n\t#*~ü\u202e",
    "TTRACE_INSIDE": '["a,b", "c\'d"]',
    STEPS: "3",
}
WORD = pack(HOSTILE)


def said(script: str, **environment: str) -> str:
    """By a shell, of a word that it was given."""
    known = {"PATH": "/usr/bin:/bin", "W": WORD}
    return subprocess.run(
        ["/bin/sh", "-c", script],
        env=known | environment,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.rstrip("\n")


def nested(script: str, depth: int) -> str:
    return script if depth == 0 else nested(f"sh -c {shlex.quote(script)}", depth - 1)


@pytest.mark.flow
@pytest.mark.parametrize(
    "script",
    [
        f"env X={WORD} sh -c 'echo $X'",
        f"sh -c \"env X={WORD} sh -c 'echo \\$X'\"",
        f"echo {WORD}",
        f'sh -c "sh -c \\"echo {WORD}\\""',
        f"eval eval eval echo {WORD}",
        nested(f"echo {WORD}", 5),
        'sh -c "echo $W"',
        'eval "echo $W"',
        "echo 'a: @W@' | sed \"s/@W@/$W/\" | sed 's/a: //'",
        "cat <<END\n$W\nEND",
        "echo $W | xargs -n 1 echo",
    ],
)
def test_no_shell_changes_it(script: str) -> None:
    assert unpack(said(script)) == HOSTILE


@pytest.mark.flow
def test_a_plain_value_would_be_changed() -> None:
    """The companion: the same ways change what is not packed."""
    assert said('sh -c "echo $W"', W="a  $HOME 'b'") != "a  $HOME 'b'"


def test_it_stands_in_json_and_yaml_as_it_is() -> None:
    assert json.loads(f'{{"env_vars": {{"{PACKED}": "{WORD}"}}}}') == {"env_vars": {PACKED: WORD}}
    assert yaml.safe_load(f"value: {WORD}") == {"value": WORD}
    assert "," not in WORD  # what sbatch --export splits at


@pytest.mark.parametrize(
    "word",
    [
        "",
        f"${PACKED}",
        WORD[:-5],
        WORD[4:],
        WORD.upper(),
        WORD + "=",
        f"{WORD}\n",
        "eyJ9",
        pack({}) + "!",
        "WzFd",
        "eyJhIjogMX0",
    ],
)
def test_a_word_that_is_cut_or_changed_is_none(word: str) -> None:
    assert unpack(word) is None


def test_it_is_read_where_nothing_else_has_arrived() -> None:
    told = {OUT: "/here", STEPS: "3"}
    assert unpacked({"HOME": "/", STEPS: "9", PACKED: pack(told)}) == {"HOME": "/"} | told
    assert is_asked({PACKED: pack(told)})
    settings = Settings.from_environment(unpacked({PACKED: pack(told)}))
    assert settings == Settings(folder=Path("/here"), steps=3)


def test_what_has_arrived_is_not_overruled() -> None:
    there = {OUT: "/there", PACKED: pack({OUT: "/here"})}
    assert unpacked(there) == there


@pytest.mark.parametrize("word", [f"${PACKED}", pack({"TTRACE_NEWER": "1"}), pack({"PATH": "/x"})])
def test_what_cannot_be_read_is_refused(word: str) -> None:
    with pytest.raises(UsageError, match="hand it on to all ranks as it is"):
        unpacked({PACKED: word})


def test_training_goes_on_where_it_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(PACKED, "cut")
    with caplog.at_level(logging.ERROR):
        for _ in range(2):
            assert not ttrace.attach(nn.Linear(1, 1)).enabled
    assert len(caplog.records) == 1
    assert f"{PACKED} is not what `ttrace` gave to the command" in caplog.text
