"""``flower-ldp extension``: what it prints is what a policy needs, and it runs nothing."""

from __future__ import annotations

from pathlib import Path

from flower_ldp.accounting.ledger import Ledger
from tests.cli import facts, flower_ldp
from tests.extension_world import Installed, policy_text
from tests.fixtures import parse_policy


def test_the_lines_that_are_printed_allow_what_is_installed(tmp_path: Path) -> None:
    installed = Installed(tmp_path).write()
    done = flower_ldp("extension", "digest", "One.Bit", "--site", tmp_path)
    first, _, rest = done.out.partition("\n")
    assert (done.code, first) == (0, installed.digest)
    policy = parse_policy(policy_text(installed.digest).partition("extensions:")[0] + rest)
    (entry,) = policy.extensions.values()
    assert (entry.distribution, entry.version, entry.digest) == ("one-bit", "0.1.0", first)
    found = facts("extension", "digest", "one-bit", "--site", tmp_path)
    assert (found["digest"], found["extensions"]) == (first, ["one_bit"])


def test_the_check_of_a_policy_says_whose_claim_it_is(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(policy_text("sha256:" + "0f" * 32))
    path.chmod(0o600)
    Ledger.open(tmp_path / "spent.sqlite", create=True).close()
    warnings = facts("policy", "check", path)["warnings"]
    assert any("one_bit is an extension" in one and "author's" in one for one in warnings)


def test_what_no_policy_could_allow_is_an_error(tmp_path: Path) -> None:
    Installed(tmp_path).write(unlisted={"one_bit/more.py": "raise SystemExit\n"})
    done = flower_ldp("extension", "digest", "one-bit", "--site", tmp_path)
    assert (done.code, done.out) == (1, "")
    assert "does not name" in done.err
    assert flower_ldp("extension", "digest", "no-such-thing", "--site", tmp_path).code == 1


def test_one_that_names_no_mechanism_is_an_error(tmp_path: Path) -> None:
    Installed(tmp_path, entry="").write()
    done = flower_ldp("extension", "digest", "one-bit", "--site", tmp_path)
    assert done.code == 1
    assert "names no mechanism" in done.out + done.err
