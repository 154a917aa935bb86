"""The pages and the layout are as ``python -m tests.lint`` wants them, and it finds what is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import lint

PAGE = lint.ROOT / "docs" / "policy.md"


@pytest.mark.parametrize("check", lint.OF_PAGES, ids=lambda check: check.__name__)
def test_pages_are_in_order(check: Callable[[Path, str], Iterator[str]]) -> None:
    found = {lint.named(page): list(check(page, lint.read(page))) for page in lint.PAGES}
    assert {page: said for page, said in found.items() if said} == {}


@pytest.mark.parametrize("check", lint.OF_PROJECT, ids=lambda check: check.__name__)
def test_the_project_is_in_order(check: Callable[[], Iterator[str]]) -> None:
    assert list(check()) == []


@pytest.mark.parametrize(
    ("check", "text", "said"),
    [
        (lint.wide_lines, f"{'word ' * 21}\n", "line 1 is wider"),
        (lint.wide_lines, f"```\n{'word ' * 21}\n```\n", "line 2 is wider"),
        (lint.broken_links, "[a](nowhere.md)", "nowhere.md"),
        (lint.broken_links, "# Some *part*\n[a](policy.md#no-part)", "#no-part"),
        (lint.unknown_files, "`flower_ldp/nothing.py`", "nothing.py"),
        (lint.unknown_files, "`tests/nothing/`", "tests/nothing"),
        (lint.unknown_modules, "flower_ldp.privacy.Nothing", "privacy.Nothing"),
        (lint.unknown_modules, "flower_ldp.nothing", "flower_ldp.nothing"),
        (lint.long_sentences, "One, two. Word " + "word " * 31 + "end.", "a sentence of 33 words"),
    ],
)
def test_what_is_wrong_with_a_page_is_found(
    check: Callable[[Path, str], Iterator[str]], text: str, said: str
) -> None:
    (found,) = check(PAGE, text)
    assert said in found


def test_a_readme_that_is_too_long_is_found() -> None:
    (found,) = lint.long_sentences(lint.README, "Two words more. " * 334)
    assert found == "1002 words, at most 1000"


def test_what_is_wrong_with_the_project_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in [one for places in lint.COPIES.values() for one in places]:
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(place)
    page = lint.read(lint.ROOT / "docs" / "threat_model.md")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "threat_model.md").write_text(
        page.replace("`test_server.py", "`test_no.py")
    )
    (tmp_path / "code.py").write_text("'ldp:refused:budget'")
    monkeypatch.setattr(lint, "ROOT", tmp_path)
    monkeypatch.setattr(lint, "PACKAGE", tmp_path)
    assert len(list(lint.different_copies())) == len(lint.COPIES)
    assert "no such test: test_no.py" in "".join(lint.attacks_without_test())
    assert list(lint.codes_elsewhere()) == ["code.py spells a refusal's code"]


def test_a_diff_that_is_another_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lint, "APPS", tuple(reversed(lint.APPS)))
    assert [said.rpartition(" ")[2] for said in lint.different_diffs()] == ["one", "one"]


def test_a_paragraph_is_wrapped_and_code_is_not() -> None:
    text = f"- {'word ' * 30}\n\n```\n{'code ' * 30}\n```\n"
    wrapped = lint.wrapped_page(text)
    assert [len(line) > lint.WIDTH for line in wrapped.splitlines()] == [False] * 4 + [True, False]
    assert wrapped.splitlines()[1].startswith("  word")
    assert list(lint.changed_by_wrapping(PAGE, "a\0b " * 40)) == [
        "wrapping its paragraphs changes a word"
    ]
