"""How a command ends: one sentence on stderr, a documented code, and no traceback."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from checkpointd.app.rooms import Rooms
from checkpointd.cli import common
from checkpointd.cli.commands import checkpointd
from checkpointd.cli.common import Asked, Code, CommandFailedError, printable
from checkpointd.cli.verbs import code_of, sentence_of
from checkpointd.domain.errors import (
    CheckpointdError,
    ConfigError,
    InvalidIdError,
    SourceUnreachableError,
    StoreRefusedError,
    StoreUnreachableError,
    WrongStoreError,
)
from checkpointd.registry.embedded import EmbeddedServerError


def every_command() -> Iterator[tuple[str, click.Command]]:
    """Each command by the words that call it."""

    def of(group: click.Group, words: str) -> Iterator[tuple[str, click.Command]]:
        for name, command in group.commands.items():
            path = f"{words} {name}".strip()
            yield path, command
            if isinstance(command, click.Group):
                yield from of(command, path)

    yield from of(checkpointd, "")


EVERY_COMMAND = dict(every_command())


class TestTheCode:
    @pytest.mark.parametrize(
        ("error", "code"),
        [
            (StoreUnreachableError("redis://h", "refused"), 69),
            (StoreRefusedError("run claim", "LOADING it reads its data"), 69),
            (StoreRefusedError("run claim", "NOPERM no"), 1),
            (EmbeddedServerError(Path("d"), "it is a file"), 69),
            (ConfigError(["wrong"]), 78),
            (WrongStoreError("of another environment"), 78),
            (click.UsageError("no such option"), 2),
            (click.BadParameter("no"), 2),
            (click.Abort(), 130),
            (SourceUnreachableError("sqlite:///x", "no such file"), 1),
            (InvalidIdError("thread_id", "", "it is empty"), 1),
            (CommandFailedError("no"), 1),
            (RuntimeError("a bug"), 1),
        ],
        ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
    )
    def test_says_what_a_script_would_do_about_the_error(self, error: Exception, code: int) -> None:
        assert code_of(error) == code

    def test_every_documented_code_has_its_number(self) -> None:
        numbers = {str(c): int(c) for c in Code}
        assert set(numbers.values()) == {0, 1, 2, 3, 4, 69, 78, 130}


class TestTheSentence:
    def test_of_an_error_of_ours_is_its_own(self) -> None:
        assert sentence_of(CheckpointdError("asked, true, do")) == "asked, true, do"

    def test_of_a_surprise_names_it_and_says_how_to_see_more(self) -> None:
        said = sentence_of(RuntimeError("a bug"))
        assert "RuntimeError: a bug" in said
        assert "--debug" in said

    def test_of_a_wrong_command_line_leads_to_the_help(self, command: Any) -> None:
        result = command("freeze")
        assert result.exit_code == 2
        assert result.stderr.count("\n") == 1
        assert "--reason" in result.stderr
        assert "checkpointd freeze --help" in result.stderr

    @pytest.mark.parametrize("words", ["nosuch", "once nosuch", "refs nosuch", "status --nosuch"])
    def test_of_an_unknown_word_is_one_line(self, command: Any, words: str) -> None:
        result = command(*words.split())
        assert result.exit_code == 2
        assert re.fullmatch(r"checkpointd: .+\n", result.stderr)
        assert result.stdout == ""

    def test_shows_no_control_character_of_what_it_repeats(self, command: Any) -> None:
        result = command("explain", "a\x1b[31mb")
        assert result.exit_code == 2
        assert "\x1b" not in result.stderr

    @pytest.mark.parametrize("thread", ["", "a\nb", "x" * 513])
    def test_refuses_an_id_that_names_nothing(self, command: Any, thread: str) -> None:
        result = command("explain", thread)
        assert result.exit_code == 2
        assert "is refused" in result.stderr
        assert len(result.stderr) < 500


class TestASurprise:
    @pytest.fixture
    def broken(self, command: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
        def fail(*_: object, **__: object) -> None:
            raise RuntimeError("a bug")

        monkeypatch.setattr(Asked, "settings", fail)
        return command

    def test_has_no_traceback(self, broken: Any) -> None:
        result = broken("check-config")
        assert result.exit_code == 1
        assert "Traceback" not in result.stderr

    @pytest.mark.parametrize("words", ["--debug check-config", "check-config --debug"])
    def test_has_one_with_debug(self, broken: Any, words: str) -> None:
        assert "Traceback" in broken(*words.split()).stderr


class TestAClosedPipe:
    def test_ends_the_command_quietly(self, command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        def closed(*_: object, **__: object) -> None:
            raise BrokenPipeError

        monkeypatch.setattr(common, "print_json", closed)
        result = command("check-config", "--json")
        assert result.exit_code == 1
        assert result.stderr == ""


class TestTheConfiguration:
    def test_brings_all_complaints_at_once(self, command: Any) -> None:
        Path("checkpointd.toml").write_text('[redis]\nurll = "x"\n[reconcile]\ngrace = 30\n')
        result = command("status")
        assert result.exit_code == 78
        assert "did you mean redis.url?" in result.stderr
        assert "30 of what?" in result.stderr
        assert result.stderr.count("\n") == 1

    def test_that_is_no_toml_is_one_sentence(self, command: Any) -> None:
        Path("wrong.toml").write_text("x = [")
        result = command("--config", "wrong.toml", "status")
        assert (result.exit_code, result.stderr.count("\n")) == (78, 1)

    @pytest.mark.parametrize("words", ["--config FILE status", "status --config FILE"])
    def test_may_be_named_before_the_command_and_after_it(self, command: Any, words: str) -> None:
        result = command(*words.replace("FILE", "missing.toml").split())
        assert result.exit_code == 78
        assert "missing.toml" in result.stderr

    def test_of_the_environment_is_used_where_none_is_named(self, command: Any) -> None:
        result = command("status", CHECKPOINTD_CONFIG="elsewhere.toml")
        assert result.exit_code == 78
        assert "elsewhere.toml" in result.stderr


class TestTheOptionsThatStandEverywhere:
    def test_json_may_stand_before_the_command(self, command: Any) -> None:
        assert command("--json", "check-config").stdout.startswith("{")

    def test_json_may_stand_after_it(self, command: Any) -> None:
        assert command("check-config", "--json").stdout.startswith("{")

    @pytest.mark.parametrize(
        ("words", "environ", "actor"),
        [
            ("--as anna freeze --reason r", {}, "anna"),
            ("freeze --as anna --reason r", {}, "anna"),
            ("freeze --reason r", {"CHECKPOINTD_ACTOR": "ben"}, "ben"),
            ("freeze --as anna --reason r", {"CHECKPOINTD_ACTOR": "ben"}, "anna"),
        ],
    )
    def test_the_actor_is_in_the_audit(
        self, command: Any, store: str, words: str, environ: dict[str, str], actor: str
    ) -> None:
        assert command(*words.split(), **environ).exit_code == 0
        assert command.json("audit")["entries"][-1]["by"] == actor

    def test_the_actor_is_user_at_host_where_nobody_says(self, command: Any) -> None:
        assert re.fullmatch(r"\S+@\S+", Asked().who())

    def test_a_user_without_a_name_has_a_number(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def nameless() -> str:
            raise KeyError("getpwuid(): uid not found")

        monkeypatch.delenv("CHECKPOINTD_ACTOR", raising=False)
        monkeypatch.setattr(common.getpass, "getuser", nameless)
        assert re.fullmatch(r"uid\d+@\S+", Asked().who())


class TestTheHelp:
    @pytest.mark.parametrize("words", EVERY_COMMAND)
    def test_of_every_command_is_there(self, command: Any, words: str) -> None:
        result = command(*words.split(), "--help")
        assert result.exit_code == 0
        assert "--json" in result.stdout
        assert max(map(len, result.stdout.splitlines())) <= 80

    @pytest.mark.parametrize(
        "words", [w for w, c in EVERY_COMMAND.items() if not isinstance(c, click.Group)]
    )
    def test_of_every_command_has_an_example_of_that_command(
        self, command: Any, words: str
    ) -> None:
        said = command(*words.split(), "--help").stdout
        example = said.partition("Example:\n")[2].strip()
        options_left_out = re.sub(r" --config \S+", "", example)
        assert options_left_out.startswith(f"checkpointd {words}")

    def test_lists_the_commands_in_the_order_of_their_use(self, command: Any) -> None:
        said = command("--help").stdout
        assert said.index("  run ") < said.index("  once ") < said.index("  demo ")

    def test_says_every_command_that_is_promised(self) -> None:
        promised = {
            *("run", "once", "status", "freeze", "thaw", "pause", "resume", "expiries allow"),
            *("explain", "refs list", "refs show", "refs expire", "refs resolve", "refs replay"),
            *("refs restore", "quarantine list", "quarantine release", "quarantine waive"),
            *("quarantine unwaive", "audit", "verify", "doctor", "check-config", "init", "demo"),
        }
        assert promised <= set(EVERY_COMMAND)

    @pytest.mark.parametrize("words", EVERY_COMMAND)
    def test_lists_every_command_with_a_whole_sentence(self, command: Any, words: str) -> None:
        *group, name = words.split()
        listed = command(*group, "--help").stdout
        line = next(line for line in listed.splitlines() if line.startswith(f"  {name} "))
        assert line.endswith(".")
        assert not line.endswith("...")

    def test_is_what_the_command_alone_prints(self, command: Any) -> None:
        result = command()
        assert (result.exit_code, result.stdout) == (0, command("--help").stdout)

    def test_is_named_by_a_family_alone(self, command: Any) -> None:
        result = command("refs")
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
        assert "checkpointd refs --help" in result.stderr

    def test_the_version_is_told(self, command: Any) -> None:
        assert re.fullmatch(r"checkpointd \d+\.\d+\.\d+\n", command("--version").stdout)


class TestPrintable:
    @pytest.mark.parametrize(
        ("given", "shown"),
        [
            ("plain é", "plain é"),
            ("tab\there", "tab\\there"),
            ("\x1b[31m", "\\x1b[31m"),
            ("a\u2028b", "a\\u2028b"),
            ("a\u202eb", "a\\u202eb"),
            ("👩\u200d💻", "👩\u200d💻"),
        ],
    )
    def test_text_cannot_command_a_terminal(self, given: str, shown: str) -> None:
        assert printable(given) == shown


class TestAStoreThatIsDown:
    def test_is_one_sentence_and_69(self, command: Any, tmp_path: Path) -> None:
        down = f"unix://{tmp_path}/none.sock"
        result = command("status", CHECKPOINTD_REDIS__URL=down)
        assert result.exit_code == 69
        assert result.stdout == ""
        assert result.stderr.count("\n") == 1

    def test_that_never_answers_is_given_up(
        self, command: Any, store: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import asyncio
        import contextlib

        @contextlib.asynccontextmanager
        async def silent(*_: object, **__: object) -> Any:
            await asyncio.Event().wait()
            yield

        monkeypatch.setattr("checkpointd.cli.common.open_rooms", silent)
        with pytest.raises(StoreUnreachableError, match=r"within 0\.01 s"):
            Asked().within(_nothing, patience_s=0.01)


async def _nothing(_: Rooms) -> None: ...


class TestAnInterrupt:
    def test_ends_with_130(self, command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        def interrupted(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(Asked, "settings", interrupted)
        result = command("check-config")
        assert result.exit_code == 130
        assert "Traceback" not in result.stderr
