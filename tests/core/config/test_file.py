"""The configuration file: its location, and its errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from aethermind.config.file import find_file, read_file
from aethermind.errors import SettingsError


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory; `home` in it is the user's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AETHERMIND_CONFIG", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", "home")
    Path("home/aethermind").mkdir(parents=True)
    return tmp_path


def test_the_nearest_file_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_file() is None
    for name in ("home/aethermind/config.yml", "aethermind.yaml"):
        Path(name).touch()
        assert find_file() == Path(name)
    for name in ("from_variable.toml", "from_flag.toml"):
        Path(name).touch()
    monkeypatch.setenv("AETHERMIND_CONFIG", "from_variable.toml")
    assert find_file() == Path("from_variable.toml")
    assert find_file("from_flag.toml") == Path("from_flag.toml")


def test_without_xdg_the_user_s_directory_is_in_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", "me")
    path = Path("me/.config/aethermind/config.toml")
    path.parent.mkdir(parents=True)
    path.touch()
    assert find_file() == path


def test_a_file_that_is_named_must_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match=r"^--config names nope.toml, which does not exist\. Name"):
        find_file("nope.toml")
    monkeypatch.setenv("AETHERMIND_CONFIG", "none.toml")
    with pytest.raises(SettingsError, match=r"^AETHERMIND_CONFIG names none.toml, which does not exist"):
        find_file()


def test_two_files_in_one_place_are_refused() -> None:
    Path("aethermind.toml").touch()
    Path("aethermind.yml").touch()
    with pytest.raises(SettingsError, match=r"aethermind.toml and aethermind.yml are side by side\. Keep one"):
        find_file()


@pytest.mark.parametrize(
    ("name", "text"),
    [("a.json", '{"oven": {"heat": 2}}'), ("a.toml", "[oven]\nheat = 2"), ("a.yaml", "oven: {heat: 2}")],
)
def test_a_byte_order_mark_is_no_part_of_the_text(name: str, text: str) -> None:
    Path(name).write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert read_file(Path(name)) == {"oven": {"heat": 2}}


def test_toml_yaml_and_json_are_equivalent() -> None:
    Path("a.toml").write_text('[oven]\nheat = 200\nrate = 0.5\n[bread]\nname = "ä"\nseeds = ["x", "y"]\n')
    Path("a.yaml").write_text("oven: {heat: 200, rate: 0.5}\nbread:\n  name: ä\n  seeds: [x, y]\n")
    Path("a.json").write_text('{"oven": {"heat": 200, "rate": 0.5}, "bread": {"name": "ä", "seeds": ["x", "y"]}}')
    assert read_file(Path("a.toml")) == read_file(Path("a.yaml")) == read_file(Path("a.json"))
    for empty, content in (("e.toml", "# nothing\n"), ("e.yml", "# nothing\n"), ("e.json", "\n"), ("n.json", "{}")):
        Path(empty).write_text(content)
        assert read_file(Path(empty)) == {}


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.ini", b"{}", "a.ini has an unknown ending. Configuration files end in .toml, .yaml, .yml, .json."),
        ("a.json", b'{"oven": 1,}', "a.json is not valid JSON: "),
        ("a.json", b"[" * 100_000, "a.json is not valid JSON: "),
        ("a.json", b"[1]", "a.json holds a list, not sections."),
        ("a.json", b'{"oven": {"heat": 1, "heat": 2}}', "a.json has heat twice. Remove one of them."),
        ("a.toml", b"\xff", "a.toml is not UTF-8 text (byte 0). Convert it first."),
        ("a.toml", b"[oven", "a.toml is not valid TOML: "),
        ("a.toml", b"[oven]\nheat=1\nheat=2", "a.toml is not valid TOML: Cannot overwrite a value"),
        ("a.yaml", b"oven: [", "a.yaml is not valid YAML: "),
        ("a.yaml", b"oven: !!python/object:os.system {}", "a.yaml is not valid YAML: "),
        ("a.yaml", b"- oven", "a.yaml holds a list, not sections."),
        ("a.yaml", b"oven", "a.yaml holds a str, not sections."),
        ("a.yaml", b"oven:\n  heat: 1\n  heat: 2", "a.yaml has heat twice, again in line 3. Remove one of them."),
        ("a.yaml", b"oven: {}\nbread: {}\noven: {}", "a.yaml has oven twice, again in line 3."),
        ("a.yaml", b"oven: &o {heat: 1}\nbread: *o", "a.yaml has an alias (*name), which can stand for any amount."),
        ("a.yaml", b"? [a]\n: 1", "a.yaml is not valid YAML: "),
    ],
)
def test_invalid_files_are_one_line_errors(name: str, content: bytes, words: str) -> None:
    Path(name).write_bytes(content)
    with pytest.raises(SettingsError) as caught:
        read_file(Path(name))
    assert str(caught.value).startswith(words)
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read() -> None:
    Path("a.toml").mkdir()
    with pytest.raises(SettingsError, match=r"^a.toml cannot be read: .*\. Name another file"):
        read_file(Path("a.toml"))
