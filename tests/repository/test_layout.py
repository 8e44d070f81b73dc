"""The repository as a whole: what it holds, what it must not say, and what ships with the package."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "daemon" / "checkpointd"
PYPROJECT = (ROOT / "pyproject.toml").read_text()
PROJECT: dict[str, Any] = tomllib.loads(PYPROJECT)["project"]

TOP_LEVEL = {
    *(".ci", ".editorconfig", ".gitignore", ".pre-commit-config.yaml"),
    *("CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "README.md"),
    *("config.example.toml", "pyproject.toml"),
    *("benchmarks", "daemon", "deploy", "tests"),
}


def project_files() -> tuple[Path, ...]:
    """The files that belong to the project: tracked, or new and not ignored."""
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():  # an unpacked archive holds nothing else
        return tuple(path for path in _all_files() if path.is_file())
    listed = subprocess.run(
        [git, "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        check=True,
    ).stdout.decode()
    paths = (ROOT / name for name in listed.split("\0") if name)
    return tuple(path for path in paths if path.is_file())


def _all_files() -> Iterator[Path]:
    made_here = re.compile(r"\.(venv.*|.*_cache|hypothesis|coverage.*)|__pycache__|.*\.egg-info")
    for path in ROOT.rglob("*"):
        if not any(made_here.fullmatch(part) for part in path.relative_to(ROOT).parts):
            yield path


def text_of(path: Path) -> str:
    """The text of a file; empty for one that is no text."""
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError:
        return ""


def requirements() -> Iterator[str]:
    yield from PROJECT["dependencies"]
    for extra in PROJECT["optional-dependencies"].values():
        yield from extra


class TestLayout:
    def test_daemon_is_a_source_root_and_no_package(self) -> None:
        assert not (ROOT / "daemon" / "__init__.py").exists()
        assert {path.relative_to(ROOT / "daemon").parts[0] for path in daemon_files()} == {
            "checkpointd"
        }

    def test_the_top_level_holds_only_what_is_listed_here(self) -> None:
        held = {path.relative_to(ROOT).parts[0] for path in project_files()}
        assert held <= TOP_LEVEL

    def test_every_folder_of_the_package_says_what_it_is_for(self) -> None:
        folders = {path.parent for path in daemon_files() if path.suffix == ".py"}
        silent = [
            str(folder.relative_to(ROOT))
            for folder in folders
            if len((folder / "__init__.py").read_text().strip().strip('"').split()) < 4
        ]
        assert silent == []


def daemon_files() -> tuple[Path, ...]:
    return tuple(path for path in project_files() if path.is_relative_to(ROOT / "daemon"))


class TestTheProjectStandsAlone:
    """It can be cloned anywhere, and says nothing of the place where it was written."""

    # In pieces, or this file would be the one that says it.
    OUTSIDE = (
        "../" + "shared",
        "/work" + "/",
        "/root" + "/",
        "/home" + "/",
        "pypi" + ".org",
        "pythonhosted" + ".org",
        "deb.debian" + ".org",
        "registry.npmjs" + ".org",
    )

    @pytest.mark.parametrize("place", OUTSIDE)
    def test_no_file_names_a_place_outside(self, place: str) -> None:
        naming = [str(path.relative_to(ROOT)) for path in project_files() if place in text_of(path)]
        assert naming == []

    def test_no_link_leads_out(self) -> None:
        outside = [
            path
            for path in project_files()
            if path.is_symlink() and not path.resolve().is_relative_to(ROOT)
        ]
        assert outside == []

    def test_every_link_of_a_page_leads_to_a_file(self) -> None:
        broken = [
            f"{page.name}: {target}"
            for page in project_files()
            if page.suffix == ".md"
            for target in re.findall(r"\]\((?!https?://|#)([^)#\s]+)", page.read_text())
            if not (page.parent / target).exists()
        ]
        assert broken == []


class TestPyproject:
    @pytest.mark.parametrize("requirement", sorted(set(requirements())))
    def test_every_dependency_says_why_it_is_there(self, requirement: str) -> None:
        lines = [line for line in PYPROJECT.splitlines() if f'"{requirement}"' in line]
        assert lines
        for line in lines:
            assert re.search(r"[,\]]\s*# \S+ \S+", line), f"{line.strip()} has no reason beside it"

    def test_it_says_why_the_package_is_not_called_daemon(self) -> None:
        assert "not called `daemon`" in PYPROJECT
        assert "python-daemon" in PYPROJECT

    def test_the_hooks_before_a_commit_use_the_linter_that_is_pinned(self) -> None:
        hooks = (ROOT / ".pre-commit-config.yaml").read_text()
        (pinned,) = [one for one in requirements() if one.startswith("ruff==")]
        assert set(re.findall(r"ruff==[\d.]+", hooks)) == {pinned}


class TestPages:
    def test_the_changelog_has_a_place_for_what_comes_next(self) -> None:
        assert "\n## [Unreleased]\n" in (ROOT / "CHANGELOG.md").read_text()

    def test_the_changelog_knows_the_released_version(self) -> None:
        version = re.search(r'^__version__ = "(.+)"$', (PACKAGE / "__init__.py").read_text(), re.M)
        assert version is not None
        headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.M)
        assert headings == ["Unreleased"] or version[1] in headings

    def test_make_without_a_target_lists_every_target(self) -> None:
        if shutil.which("make") is None:
            pytest.skip("the program make is not on PATH")
        listed = subprocess.run(
            ["make", "-C", ROOT, "--no-print-directory"], capture_output=True, text=True, check=True
        ).stdout
        wanted = {"help", "setup", "check", "test", "cover", "run", "bench"}
        assert wanted <= set(re.findall(r"^  make (\w+) +\w", listed, re.M))

    def test_the_readme_begins_with_the_two_commands(self) -> None:
        first = re.search(r"^```[a-z]*\n(.*?)^```", (ROOT / "README.md").read_text(), re.S | re.M)
        assert first is not None
        assert [line.split("#")[0].strip() for line in first[1].splitlines()] == [
            "make run",
            "make test",
        ]


class TestLua:
    SCRIPTS = tuple(sorted((PACKAGE / "registry" / "lua").glob("*.lua")))

    @pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
    def test_every_script_begins_with_its_contract(self, script: Path) -> None:
        header: list[str] = []
        for line in script.read_text().splitlines():
            if not line.startswith("--"):
                break
            header.append(line)
        assert header, "no header"
        assert re.match(rf"-- {script.stem}: \S", header[0])
        said = "\n".join(header)
        for part in ("KEYS", "ARGV", "Returns"):
            assert re.search(rf"^-- {part}\b", said, re.M), f"the header does not speak of {part}"

    @pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
    def test_no_script_uses_what_redis_6_2_lacks(self, script: Path) -> None:
        commands = set(re.findall(r"redis\.call\(\s*['\"](\w+)['\"]", script.read_text()))
        newer = {"EXPIRETIME", "PEXPIRETIME", "HEXPIRE", "HPEXPIRE", "ZMPOP", "LMPOP", "SINTERCARD"}
        newer |= {"DELEX", "DELIFEQ", "HGETDEL", "HGETEX", "HSETEX", "FCALL", "XACKDEL", "XDELEX"}
        assert {command.upper() for command in commands} & newer == set()


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The names in the wheel, built from here."""
    folder = tmp_path_factory.mktemp("wheel")
    build = "import sys, hatchling.build as b; print(b.build_wheel(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", build, folder],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    built = done.stdout.split()[-1]
    with zipfile.ZipFile(folder / built) as wheel:
        return set(wheel.namelist())


class TestTheBuiltPackage:
    def test_what_the_code_reads_at_run_time_ships_with_it(self, shipped: set[str]) -> None:
        wanted = {
            str(path.relative_to(ROOT / "daemon"))
            for path in daemon_files()
            if path.suffix in {".py", ".lua", ".sqlite", ".typed"}
        }
        assert wanted <= shipped
        assert {"checkpointd/py.typed", "checkpointd/sample/legacy.sqlite"} <= shipped

    def test_nothing_but_the_package_ships(self, shipped: set[str]) -> None:
        folders = {name.split("/")[0] for name in shipped}
        assert {name for name in folders if not name.endswith(".dist-info")} == {"checkpointd"}
