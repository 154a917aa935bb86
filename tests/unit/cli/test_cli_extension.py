"""``flower-ldp extension``: what it prints is what a policy needs, and it runs nothing."""

from __future__ import annotations

from pathlib import Path

from tests.cli import facts, flower_ldp, refused
from tests.extension_world import Installed, policy_text
from tests.fixtures import new_ledger, parse_policy, private_file


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
    path = private_file(tmp_path / "policy.yaml", policy_text("sha256:" + "0f" * 32))
    new_ledger(tmp_path / "spent.sqlite")
    warnings = facts("policy", "check", path)["warnings"]
    assert any("one_bit is an extension" in one and "author's" in one for one in warnings)


def test_what_no_policy_could_allow_is_an_error(tmp_path: Path) -> None:
    Installed(tmp_path).write(unlisted={"one_bit/more.py": "raise SystemExit\n"})
    Installed(tmp_path / "other", entry="").write()
    for name, said in (("one-bit", "does not name"), ("no-such-thing", "no-such-thing")):
        assert said in refused("extension", "digest", name, "--site", tmp_path)
    done = flower_ldp("extension", "digest", "one-bit", "--site", tmp_path / "other")
    assert (done.code, "names no mechanism" in done.err) == (1, True)
