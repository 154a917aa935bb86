"""``flower-ldp policy`` and ``config``: what they say, and what they find wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from flower_ldp import cli
from flower_ldp.accounting.ledger import Ledger, Limit
from flower_ldp.accounting.zcdp import zcdp_cost
from flower_ldp.mechanisms import SignDS
from flower_ldp.privacy import PrivacyEvent, PrivacySpent, Unit, meaning
from tests.cli import facts, flower_ldp, refused
from tests.fixtures import CONFIGS, charge, new_ledger, parse_policy, private_file

APPS = Path(__file__).parents[3] / "examples"
SAMPLES = Path(cli.__file__).parent / "samples"
BY_ZCDP = "life: {epsilon: 4.0, delta: 1.0e-5, by: zcdp}"
LIFE = [Limit(Unit.CLIENT, "life", 90.0)]

POLICY = """\
data_id: ward-7
ledger: ledger.sqlite
mode: deployment
messages:
  train: {signds: {epsilon: 0.8}, magrr: {epsilon: 0.1}}
  evaluate: {gauss: {epsilon: 2.0, delta: 1.0e-6, unit: example}}
budgets:
  client:
    run: {epsilon: 9.0}
    window: {epsilon: 4.5, days: 30}
    life: {epsilon: 90.0}
  example:
    life: {epsilon: 10.0, delta: 3.0e-6}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    new_ledger(tmp_path / "ledger.sqlite")
    return private_file(tmp_path / "policy.yaml", POLICY)


@pytest.mark.parametrize("name", sorted(path.name for path in SAMPLES.iterdir()))
def test_a_sample_is_the_file_in_configs(name: str) -> None:
    assert (SAMPLES / name).read_bytes() == (CONFIGS / name).read_bytes()


@pytest.mark.parametrize(("words", "mode"), [((), "deployment"), (("--simulation",), "simulation")])
def test_a_sample_passes_the_check(words: tuple[str, ...], mode: str, tmp_path: Path) -> None:
    done = flower_ldp("policy", "sample", *words)
    assert parse_policy(done.out).mode == mode
    found = facts("policy", "sample", *words)
    assert found["text"] == done.out == (CONFIGS / found["name"]).read_text()
    path = private_file(tmp_path / "policy.yaml", done.out)
    if mode == "deployment":
        assert flower_ldp("policy", "check", path).code == 1
        new_ledger(tmp_path / "privacy-ledger.sqlite")
    assert facts("policy", "check", path)["warnings"] == []


@pytest.mark.parametrize(
    ("words", "message", "mechanism", "unit", "life"),
    [
        (("codeword",), "train", "codeword", "client", (8.0, 0.0)),
        (("signds", "--epsilon", 0.1, "--answers", 3), "train", "signds", "client", (0.3, 0.0)),
        (
            ("gaussian", "--delta", 1e-6, "--answers", 20),
            "train",
            "gaussian",
            "client",
            (160, 2e-5),
        ),
        (("dpsgd", "--examples", 500), "train", "dpsgd", "example", (8.0, 1e-5)),
        (
            ("dpsgd", "--delta", 1e-6, "--examples", 500, "--answers", 2),
            *("train", "dpsgd", "example", (16.0, 2e-6)),
        ),
        (("labels", "--epsilon", 1), "train", "kary_response", "label", (1.0, 0.0)),
        (("laplace", "--simulation"), "evaluate", "laplace", "client", (8.0, 0.0)),
    ],
)
def test_a_route_has_a_policy_that_allows_it_alone(
    words: tuple[object, ...], message: str, mechanism: str, unit: str, life: tuple[float, float]
) -> None:
    policy = parse_policy(flower_ldp("policy", "sample", "--for", *words).out)
    ((found, allowances),) = policy.messages.items()
    ((name, allowance),) = allowances.items()
    assert (found, name, allowance.unit) == (message, mechanism, unit)
    (limit,) = policy.limits()
    assert (limit.unit.value, limit.scope) == (unit, "life")
    assert (limit.epsilon, limit.delta) == life
    assert policy.is_simulation == ("--simulation" in words)


def test_a_plan_has_the_least_noise_that_the_route_s_cost_allows() -> None:
    pytest.importorskip("scipy")
    plan = ("--epsilon", 5, "--examples", 91, "--rounds", 8, "--steps", 5, "--rate", 0.25)
    policy = parse_policy(flower_ldp("policy", "sample", "--for", "dpsgd", *plan).out)
    found = policy.messages["train"]["dpsgd"].plan
    assert found is not None
    planned = facts("plan", "dpsgd", *plan, "--delta", 1e-5)
    assert found.model_dump(exclude_none=True) == yaml.safe_load(planned["policy"])


def test_an_app_that_was_read_is_the_only_one(tmp_path: Path) -> None:
    words = ("--for", "dpsgd", "--examples", 91, "--app", APPS / "few_sites" / "private")
    policy = parse_policy(flower_ldp("policy", "sample", *words).out)
    digest = facts("app", "digest", words[-1])["digest"]
    assert {name: list(app.releases) for name, app in policy.apps.items()} == {digest: ["dpsgd"]}
    assert policy.unlisted_apps == "refuse"


def test_an_example_may_be_a_patient() -> None:
    words = ("--for", "dpsgd", "--examples", 91, "--example", "patient")
    policy = parse_policy(flower_ldp("policy", "sample", *words).out)
    assert (policy.example, policy.examples) == ("patient", 91)


def test_a_route_that_no_policy_can_be_is_refused() -> None:
    sample = ("policy", "sample", "--for")
    assert "--examples" in refused(*sample, "dpsgd", code=2)
    told = refused(*sample, "dpsgd", "--examples", 200_000, code=2)
    needed = "--delta: dpsgd needs one above 0 and, over all answers, below 1 / examples, got "
    assert f"{needed}1e-05\n" in told
    life = ("--examples", 99_999, "--delta", 9e-6, "--answers")
    assert flower_ldp(*sample, "dpsgd", *life, 1).code == 0
    assert f"{needed}9e-06 times 2 answers\n" in refused(*sample, "dpsgd", *life, 2, code=2)
    assert "--delta" in refused(*sample, "dpsgd", "--examples", 5, "--delta", 0, code=2)
    assert "--rounds" in refused(*sample, "dpsgd", "--examples", 5, "--steps", 3, code=2)
    plan = ("--rounds", 1, "--steps", 1, "--rate", 1)
    assert "a plan is for dpsgd" in refused(*sample, "codeword", *plan, code=2)
    assert "protects a whole client" in refused(*sample, "codeword", "--app", "app.fab", code=2)
    told = refused(*sample, "signds", "--epsilon", 1e6, "--answers", 2)
    assert "budgets.client.life.epsilon must be a number in (0, 1000000], got 2000000.0" in told


@pytest.mark.parametrize(
    ("option", "value", "interval"),
    [
        *[("--epsilon", value, "(0, 1000000]") for value in ("nan", "inf", "0")],
        *[("--delta", value, "[0, 1)") for value in ("nan", "inf", "-1", "1")],
    ],
)
@pytest.mark.parametrize("route", ["codeword", "dpsgd"])
def test_a_cost_that_is_none_is_refused(option: str, value: str, interval: str, route: str) -> None:
    words = ("--for", route, "--examples", 5, option, value)
    told = refused("policy", "sample", *words, code=2)
    assert f"Invalid value for {option}: must be in {interval}, got {float(value)}\n" in told


@pytest.mark.parametrize(
    "words",
    [
        ("--epsilon", 8),  # the default, but given
        ("--delta", 0),
        ("--answers", 1),
        ("--examples", 5),
        ("--example", "row"),
        ("--rounds", 1),
        ("--steps", 1),
        ("--rate", 1),
        ("--app", "app.fab"),
    ],
)
def test_an_option_of_a_route_is_refused_without_one(words: tuple[object, ...]) -> None:
    told = refused("policy", "sample", "--simulation", *words, code=2)
    assert f"{words[0]}: it is for the policy of one route: name the route by --for\n" in told


def test_check_says_what_is_allowed(file: Path) -> None:
    found = facts("policy", "check", file)
    assert (found["data_id"], found["mode"], found["warnings"]) == ("ward-7", "deployment", [])
    assert [(r["message"], r["mechanism"], r["epsilon"], r["unit"]) for r in found["allowed"]] == [
        ("train", "signds", 0.8, "client"),
        ("train", "magrr", 0.1, "client"),
        ("evaluate", "gauss", 2.0, "example"),
    ]
    assert [(r["unit"], r["scope"], r["full_releases"]) for r in found["budgets"]] == [
        ("client", "run", {"train": 10}),
        ("client", "window", {"train": 5}),
        ("client", "life", {"train": 100}),
        ("example", "life", {"train": 11, "evaluate": 3}),
    ]
    assert found["meaning"]["client"] == meaning(PrivacySpent(Unit.CLIENT, 90.0))
    assert found["ledger"] == {"file": str(file.with_name("ledger.sqlite")), "entries": 0}


def test_check_counts_what_fits_a_life_by_zcdp(file: Path) -> None:
    small = POLICY.replace("0.8", "0.08").replace("0.1", "0.01")
    file.write_text(small.replace("life: {epsilon: 90.0}", BY_ZCDP))
    life = facts("policy", "check", file)["budgets"][2]
    limit = Limit(Unit.CLIENT, "life", 4.0, 1e-5, release_deltas=1e-8)
    one = zcdp_cost(PrivacyEvent("signds", 0.08)) + zcdp_cost(PrivacyEvent("magrr", 0.01))
    assert limit.allowed_zcdp is not None
    assert life["rho"] == limit.allowed_zcdp.epsilon_text
    assert life["full_releases"] == {"train": limit.allowed_zcdp.epsilon // one.epsilon}
    assert life["full_releases"]["train"] > 100  # sums allow 44
    spent = [PrivacyEvent("signds", 0.08, count=5), PrivacyEvent("magrr", 0.01, count=5)]
    with Ledger.open(file.with_name("ledger.sqlite")) as ledger:
        for number in range(life["full_releases"]["train"] // 5):
            ledger.charge(charge(number, data_id="ward-7", events=tuple(spent)), [limit])
    assert "a further train release at its largest" not in flower_ldp("policy", "check", file).err
    file.write_text(small.replace("life: {epsilon: 90.0}", BY_ZCDP.replace("4.0", "1.0")))
    told = "".join(facts("policy", "check", file)["warnings"])
    assert re.search(r"\(rho 0\.3\d+\) was spent in all, over .* life, by zCDP rho 0\.0", told)


def test_check_says_that_an_account_has_another_rule(file: Path) -> None:
    by_zcdp = POLICY.replace("life: {epsilon: 90.0}", BY_ZCDP)
    with Ledger.open(file.with_name("ledger.sqlite"), create=True) as ledger:
        ledger.charge(charge(0, data_id="ward-7"), LIFE)
    assert flower_ldp("policy", "check", file).code == 0
    file.write_text(by_zcdp)
    found = flower_ldp("policy", "check", file)
    assert found.code == 1
    assert "each charge is refused: ward-7: it was charged by sums before" in found.err


def test_check_counts_normal_releases_by_their_own_rho(file: Path) -> None:
    life = "life: {epsilon: 4.89, delta: 2.0e-5, by: zcdp}"
    text = POLICY.replace("life: {epsilon: 90.0}", life).replace(
        "{signds: {epsilon: 0.8}, magrr: {epsilon: 0.1}}", "{gaussian: {epsilon: 1, delta: 1.0e-6}}"
    )
    file.write_text(text)
    assert facts("policy", "check", file)["budgets"][2]["full_releases"] == {"train": 20}


def test_check_says_what_stands_beside_budgets(file: Path) -> None:
    found = facts("policy", "check", file)
    assert (found["least_epsilon"], found["repeats"], found["anchor"]) == (0.001, 100_000, None)
    assert (found["releases"], found["answer_after"]) == ({"life": 10_000, "window": None}, {})
    releases = "releases: {life: 9, window: {number: 2, days: 1}}"
    own = f"least_epsilon: 1\n{releases}\nrepeats: 5\nanswer_after: {{train: 30}}\n"
    file.write_text(POLICY + own)
    done = flower_ldp("policy", "check", file)
    assert "9 releases per life and 2 releases per 86400 s" in done.out
    assert re.search("answers that are none +5 at most", done.out)
    assert re.search("seconds until answers leave +train 30\n", done.out)
    assert "no train release per client is allowed: its largest cost 0.9 is below" in done.err
    found = facts("policy", "check", file)
    assert found["releases"] == {"life": 9, "window": {"number": 2, "days": 1}}
    assert found["answer_after"] == {"train": 30.0}


def test_declared_post_processing_fits_the_finer_budget_for_ever(file: Path) -> None:
    declared = re.sub("(epsilon: 0.[81])", r"\1, post_processing: [example]", POLICY)
    file.write_text(declared)
    found = facts("policy", "check", file)
    assert found["budgets"][3]["full_releases"] == {"evaluate": 3}
    assert [row["post_processing"] for row in found["allowed"]] == [["example"], ["example"], []]


def test_a_ledger_over_its_limits_is_said_with_the_figures(file: Path) -> None:
    with Ledger.open(file.with_name("ledger.sqlite")) as ledger:
        ledger.charge(charge(epsilon=11.0), LIFE)
    done = flower_ldp("policy", "check", file)
    assert done.code == 0
    for of in ("4.5 per client and 2.592e+06 s", "10, delta 0.000003 per example"):
        said = f"ward-7: epsilon 11 was spent in all, over the limit of epsilon {of}"
        assert said in done.err


def test_a_ledger_at_its_limits_is_said_before_the_next_message(file: Path) -> None:
    file.write_text(POLICY + "releases: {life: 5}\n")
    with Ledger.open(file.with_name("ledger.sqlite")) as ledger:
        for message in "abcd":
            ledger.charge(charge(message, 0.9), LIFE)
        assert facts("policy", "check", file)["warnings"] == []
        ledger.charge(charge("e", 0.9), LIFE)
    for command in (["policy", "check", file], ["doctor", "--policy", file]):
        found = facts(*command)
        assert found["ok"]
        assert found["warnings"] == [
            "ward-7: epsilon 4.5 of epsilon 4.5 per client and 2.592e+06 s was spent: a "
            "further train release at its largest cost is refused, unless it was paid for",
            "ward-7: 5 releases per life are there: a further one is refused",
        ]


def test_a_policy_that_others_can_write_is_said(file: Path) -> None:
    file.with_name("ledger.sqlite").unlink()
    file.write_text(POLICY.replace("deployment", "simulation"))
    file.chmod(0o620)
    said = f"warning: policy {file} can be written by others (mode 0620): chmod go-w\n"
    done = flower_ldp("policy", "check", file)
    assert (done.code, done.err) == (0, said)
    file.chmod(0o602)
    assert flower_ldp("policy", "check", file).code == 1
    file.write_text(POLICY)
    for mode in (0o620, 0o602):
        file.chmod(mode)
        said = refused("policy", "check", file)
        assert said.startswith(f"error: policy {file} can be written by others")
    new_ledger(file.with_name("ledger.sqlite"))
    file.chmod(0o644)
    file.parent.chmod(0o777)
    assert f"error: folder {file.parent} can be" in flower_ldp("policy", "check", file).err
    file.parent.chmod(0o1777)
    assert flower_ldp("policy", "check", file).err == ""


@pytest.mark.parametrize(
    ("old", "new", "warning"),
    [
        ("run: {epsilon: 9.0}", "run: {epsilon: 0.89}", "one train release at its largest cost"),
        ("delta: 3.0e-6", "delta: 1.0e-7", "one evaluate release at its largest cost"),
        ("mode: deployment", "mode: deployment\nunlisted_messages: answer", "any mechanism"),
        (POLICY[POLICY.index("messages") : POLICY.index("budgets")], "messages: {}\n", "nothing"),
    ],
)
def test_what_may_be_a_slip_is_said(file: Path, old: str, new: str, warning: str) -> None:
    file.write_text(POLICY.replace(old, new))
    done = flower_ldp("policy", "check", file)
    assert (done.code, done.err.startswith("warning: ")) == (0, True)
    assert warning in done.err


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("epsilon: 0.8", "epsilon: none", "line 5"),
        ("mode: deployment", "mode: test", "line 3"),
        ("data_id: ward-7", "data-id: ward-7", "data-id is not a known field"),
        (POLICY, "a: [", "not valid YAML"),
    ],
)
def test_an_invalid_policy_ends_with_1(file: Path, old: str, new: str, problem: str) -> None:
    file.write_text(POLICY.replace(old, new))
    said = refused("policy", "check", file)
    assert all(line.startswith(f"error: {file}") for line in said.splitlines())
    assert problem in said
    assert problem in facts("policy", "check", file)["problems"][0]


def test_a_ledger_that_cannot_be_used_ends_with_1(file: Path) -> None:
    ledger = file.with_name("ledger.sqlite")
    ledger.chmod(0o666)
    assert "can be written by others" in flower_ldp("policy", "check", file).err
    ledger.write_text("no ledger")
    ledger.chmod(0o600)
    assert flower_ldp("policy", "check", file).code == 1
    ledger.unlink()
    assert f"flower-ldp ledger create {ledger}" in flower_ldp("policy", "check", file).err
    assert not ledger.exists()


def test_a_simulation_makes_its_ledger_itself(file: Path) -> None:
    for ledger in file.parent.glob("ledger.sqlite*"):
        ledger.unlink()
    file.write_text(POLICY.replace("deployment", "simulation"))
    done = flower_ldp("policy", "check", file)
    assert (done.code, done.err) == (0, "")
    assert "a simulation makes it" in done.out
    assert not list(file.parent.glob("ledger.sqlite*"))
    file.write_text(file.read_text().replace("ledger.sq", "no/l.sq"))
    assert flower_ldp("policy", "check", file).code == 1


@pytest.mark.parametrize("command", ["policy", "config"])
def test_what_is_no_file_is_one_line(tmp_path: Path, command: str) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "missing", tmp_path, tmp_path / "bytes"):
        (line,) = refused(command, "check", path).splitlines()
        assert str(path) in line


CONFIG = """\
encrypt:
  encrypt_train_type: SIGNDS
  signds:
    sign_k: 0.2
    sign_eps: 0.7
    sign_mag_eps: 0.1
"""


@pytest.fixture
def signds(tmp_path: Path) -> Path:
    return private_file(tmp_path / "signds.yaml", CONFIG)


def changed(path: Path, old: str, new: str) -> Path:
    """Return the file with one piece replaced."""
    assert old in path.read_text()
    return private_file(path, path.read_text().replace(old, new))


def test_config_check_says_what_a_round_costs(signds: Path) -> None:
    found = facts("config", "check", signds)
    assert found["epsilon"]["round"] == pytest.approx(0.8)
    assert found["meaning"]["round"] == meaning(PrivacySpent(Unit.CLIENT, 0.8))
    assert (found["step"], found["server_optimizer"]) == ("learned", None)
    assert found["parameters"]["sign_eps"] == 0.7
    assert found["parameters"]["sign_scaling"] == "published"


def test_config_check_of_a_fixed_rate(signds: Path) -> None:
    changed(signds, "sign_mag_eps: 0.1", "sign_dim_out: 7")
    words = flower_ldp("config", "check", signds).out
    assert "0.7 per client" in words
    assert "7 of 2,000" in words
    assert re.search("step +fixed", words)


def test_config_check_says_that_the_sizes_are_chosen(signds: Path) -> None:
    changed(signds, "sign_k: 0.2", "sign_k:")
    found = facts("config", "check", signds)["reports"]["2000"]
    plan = SignDS(0.7).plan(2_000)
    assert (found["h"], found["top_size"]) == (plan.dim_out, plan.top_size)


def test_config_check_of_planned_steps(signds: Path) -> None:
    planned = "sign_server_optimizer: {kind: fixed_length, length: 0.5, rounds: 80}"
    changed(signds, "sign_mag_eps: 0.1", planned)
    assert "FixedLength(length=0.5, " in flower_ldp("config", "check", signds).out


def test_config_check_warns_of_no_protection(signds: Path) -> None:
    changed(signds, "SIGNDS", "NOT_ENCRYPT")
    assert "raw updates leave the clients" in flower_ldp("config", "check", signds).err


def test_an_invalid_config_ends_with_1_and_names_all_lines(signds: Path) -> None:
    changed(signds, "sign_eps: 0.7", "sign_eps: 101\n    sign_gamma: 1")
    first, second = refused("config", "check", signds).splitlines()
    assert "line 5" in first
    assert "sign_gamma is not a known field" in second
    assert facts("config", "check", signds)["problems"]
