"""Apps that ``flower-ldp adopt`` cannot change surely: a line says why, and nothing is written."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.cli import Done, facts, flower_ldp
from tests.unit.cli import adopt_apps as apps

pytest.importorskip("scipy")
FEW = ("--clients", 5, "--examples", 100)
MADE = '"Größe"; app = ClientApp()\n'
MINE = "from ward.my import ClientApp\n"
FLOWERS = "from flwr.clientapp import ClientApp\n"
STRATEGY = "    strategy = FedAvg(fraction_train=0.5, min_available_nodes=3)\n"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flower"))


def contents(folder: Path) -> dict[str, bytes]:
    """Return all files of a folder, but for what Python compiles of an imported model."""
    return {
        file.relative_to(folder).as_posix(): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file() and file.suffix != ".pyc"
    }


def refusal(folder: Path, *words: object, code: int = 1) -> str:
    """Return the one line by which nothing is written."""
    before = contents(folder)
    done: Done = flower_ldp("adopt", folder, *(words or FEW), "--write")
    assert (done.code, contents(folder)) == (code, before)
    lines = [line for line in done.err.splitlines() if line.lower().startswith("error: ")]
    assert len(lines) == 1, done.err
    return lines[0]


@pytest.mark.parametrize(
    "again",
    [
        "app, other = ClientApp(), None",
        "(app := ClientApp())",
        "import other as app",
        "from other import *",
        "for app in [1]: pass",
        "def app(): pass",
        "class app: pass",
        "with open(one) as app: pass",
        "try: pass\nexcept ValueError as app: pass",
        "match one:\n    case {'a': app}: pass",
        "match one:\n    case {**app}: pass",
        "app += 1",
        "del app",
        "def other():\n    global app\n    app = None",
        "ClientApp = made",
    ],
)
def test_the_gate_is_put_on_a_name_that_nothing_else_binds(tmp_path: Path, again: str) -> None:
    for number, client in enumerate(
        [apps.CLIENT + f"\n{again}\n", apps.CLIENT.replace(MADE, f"{again}\n{MADE}")]
    ):
        told = refusal(apps.write(tmp_path / str(number), client))
        reasons = ("app and ClientApp mean nothing else", "imports *", "answers train messages")
        assert any(one in told for one in reasons), told


@pytest.mark.parametrize(
    "again", ["for strategy in [made()]:\n        pass", "FedAvg = made()", "strategy = made()"]
)
def test_a_strategy_that_something_else_binds_is_left_to_the_author(
    tmp_path: Path, again: str
) -> None:
    server = apps.SERVER.replace(STRATEGY, f"{STRATEGY}    {again}\n")
    found = facts("adopt", apps.write(tmp_path / "app", server=server), *FEW)
    assert "put `strategy = DPSGDStrategy(" in found["by_hand"][1]["text"]
    assert "+    strategy" not in found["diff"]


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (FLOWERS, MINE, "has no line app = ClientApp(...) of Flower's ClientApp"),
        ("ClientApp()", "ClientApp(None, [])", "write the arguments of ClientApp as client_fn="),
        ("ClientApp()", "ClientApp(*both)", "write the arguments"),
        ("ClientApp()", "ClientApp(**both)", "write the arguments"),
        ("ClientApp()", "ClientApp((\n    one\n))", "cannot be changed surely"),
        ("ClientApp()", "ClientApp(mods=MODS)", "write mods=MODS, line 8, as a list of mods"),
        ("ClientApp()", "ClientApp(mods=[one] + [\n    two])", "write mods=[one] + [ "),
        ("ClientApp()", "ClientApp(mods=[*MODS])", "write mods=[*MODS]"),
        ("app.train()", "app.train(mods=MODS)", "write mods=MODS, line 11"),
        (MADE, f"{MADE}LdpMod = None\n", "has a LdpMod of its own"),
        (MADE, f"{MADE}def f(): supervised = 1\n", "has a supervised of its own"),
        (MADE, f"{MADE}{'-' * 50_000}1\n", "nest too deep"),
        (MADE, f"{MADE}a{'.a' * 2_000}()\n", "nest too deep"),
        ("from flwr", "from __future__ import annotations; from flwr", "no line that imports"),
        ("@app.train()", "@other.train()", "answers train messages"),
    ],
)
def test_a_client_that_cannot_be_changed_surely_is_refused(
    tmp_path: Path, old: str, new: str, why: str
) -> None:
    client = apps.CLIENT.replace("from flwr.app import ArrayRecord, Message, RecordDict\n", "")
    client = client.replace(old, new)
    assert client != apps.CLIENT
    assert why in refusal(apps.write(tmp_path / "app", client))


@pytest.mark.parametrize(
    ("made", "changed"),
    [
        ("(\n    client_fn=make,\n)", "(\n    client_fn=make, mods=[GATE, legacy_client_mod],\n)"),
        ("(make,)", "(make, mods=[GATE, legacy_client_mod],)"),
        ("(mods=((one), two))", "(mods=(GATE, (one), two))"),
        ("(mods=())", "(mods=(GATE,))"),
    ],
)
def test_arguments_of_any_form_stay(tmp_path: Path, made: str, changed: str) -> None:
    folder = apps.write(tmp_path / "app", apps.CLIENT.replace("ClientApp()", f"ClientApp{made}"))
    assert flower_ldp("adopt", folder, *FEW, "--write").code == 0
    text = (folder / "ward" / "client_app.py").read_text(encoding="utf-8")
    assert f"ClientApp{changed.replace('GATE', 'LdpMod(train=DPSGDRelease())')}" in text


def test_mods_of_one_function_are_told(tmp_path: Path) -> None:
    client = apps.CLIENT.replace("app.train()", "app.train(mods=[secagg_mod, noting])")
    found = facts("adopt", apps.write(tmp_path / "app", client), *FEW)
    assert found["by_hand"][1]["text"].startswith("take out the mod secagg_mod: a masked sum")
    assert any("the mod noting sees the app's raw reply" in told for told in found["warnings"])


def test_all_functions_of_the_app_are_told_and_no_others(tmp_path: Path) -> None:
    more = '@app.train("more")\ndef more(msg, context):\n    pass\n'
    more += "@app.query()\ndef query(msg, context):\n    pass\n"
    more += "@other.train()\ndef another(msg, context):\n    pass\n"
    found = facts("adopt", apps.write(tmp_path / "app", f"{apps.CLIENT}\n{more}"), *FEW)
    assert found["route"] == "dpsgd"
    assert [one["place"] for one in found["by_hand"]] == [
        "ward/client_app.py:18",
        "ward/client_app.py:31",
    ]
    assert any("is not asked: the gate refuses query" in told for told in found["warnings"])


@pytest.mark.parametrize(
    ("words", "why", "code"),
    [
        (("--epsilon", "nan"), "--epsilon", 2),
        (("--epsilon", "inf"), "--epsilon", 2),
        (("--epsilon", "1e-300"), "--epsilon", 2),
        (("--delta", "nan"), "--delta", 2),
        (("--delta", "inf"), "--delta", 2),
        (("--epsilon", 50), "DP-SGD in 4 rounds (num-server-rounds) of 5 steps: epsilon must", 1),
    ],
)
def test_numbers_out_of_bounds_are_told_with_their_route(
    tmp_path: Path, words: tuple[object, ...], why: str, code: int
) -> None:
    folder = apps.write(tmp_path / "app")
    assert why in refusal(folder, *FEW, *words, code=code)


def test_too_many_rounds_are_told(tmp_path: Path) -> None:
    folder = apps.write(tmp_path / "app")
    project = apps.PROJECT.replace("rounds = 4", "rounds = 100000000")
    (folder / "pyproject.toml").write_text(project)
    assert "DP-SGD in 100000000 rounds (num-server-rounds)" in refusal(folder)


def test_files_outside_of_the_folder_are_neither_read_nor_changed(tmp_path: Path) -> None:
    folder = apps.write(tmp_path / "app")
    client = folder / "ward" / "client_app.py"
    client.rename(tmp_path / "client_app.py")
    client.symlink_to(tmp_path / "client_app.py")
    assert "client_app.py: is a link, or not in" in refusal(folder)
    client.unlink()
    (tmp_path / "client_app.py").rename(client)
    project = folder / "pyproject.toml"
    for name in (f"{tmp_path}/other", "ward/client_app", "..other"):
        project.write_text(apps.PROJECT.replace("ward.client_app:", f"{name}:"))
        assert f"names '{name[:60]}" in refusal(folder)
    for name in ("ward.client_app", "ward.client_app:apps.one"):
        project.write_text(apps.PROJECT.replace("ward.client_app:app", name))
        assert f"names '{name}', not the MODULE:NAME of an app" in refusal(folder)
    (tmp_path / "real.toml").write_text(apps.PROJECT)
    project.unlink()
    project.symlink_to(tmp_path / "real.toml")
    assert "pyproject.toml: is a link" in refusal(folder)


def test_a_policy_that_is_a_link_to_nothing_is_not_followed(tmp_path: Path) -> None:
    folder = apps.write(tmp_path / "app")
    (folder / "policy.yaml").symlink_to(tmp_path / "elsewhere")
    assert "is there, so nothing was written" in refusal(folder)
    assert not (tmp_path / "elsewhere").exists()


def test_one_file_that_cannot_be_written_leaves_all_as_they_were(tmp_path: Path) -> None:
    folder = apps.write(tmp_path / "app")
    name = "s" * 245  # the new file beside it would have too long a name
    (folder / "ward" / "server_app.py").rename(folder / "ward" / f"{name}.py")
    (folder / "pyproject.toml").write_text(apps.PROJECT.replace("server_app", name))
    assert "File name too long" in refusal(folder)


@pytest.mark.parametrize(
    ("old", "new", "added"),
    [
        ('[\n    "flwr>=1.32",\n]', '["flwr>=1.32"]', False),
        ("\n", "\r\n", False),
        ('[\n    "flwr>=1.32",\n]', "5", False),
        ('"flwr>=1.32"', '"Flower_LDP[dpsgd]>=0.1"', True),
        ('"ward"', '"ward"\ndescription = "no flower-ldp[dpsgd]"', True),
    ],
)
def test_a_dependency_that_is_not_added_is_told(
    tmp_path: Path, old: str, new: str, added: bool
) -> None:
    folder = apps.write(tmp_path / "app")
    (folder / "pyproject.toml").write_bytes(apps.PROJECT.replace(old, new).encode())
    found = facts("adopt", folder, *FEW)
    told = 'add "flower-ldp[dpsgd]" to the dependencies'
    assert (told in [one["text"] for one in found["by_hand"]]) is not added
    assert ('+    "flower-ldp[dpsgd]"' in found["diff"]) is ("description" in new)


def test_git_applies_diffs_of_files_with_other_line_separators(tmp_path: Path) -> None:
    odd = apps.CLIENT.replace(MADE, f'X = "\x85\u2028"\n\x0c\n{MADE}')
    folder = apps.write(tmp_path / "app", odd)
    diff = facts("adopt", folder, *FEW)["diff"]
    subprocess.run(["git", "apply", "-"], cwd=folder, check=True, input=diff.encode())
    patched = contents(folder)
    folder = apps.write(tmp_path / "again", odd)
    assert flower_ldp("adopt", folder, *FEW, "--write").code == 0
    assert contents(folder) == patched


def test_a_gate_in_another_file_of_the_app_is_not_doubled(tmp_path: Path) -> None:
    gate = "from flower_ldp.clients import LdpMod\nGATE = LdpMod()\n"
    client = apps.CLIENT.replace("ClientApp()", "ClientApp(mods=[GATE])")
    client = f"from ward.task import GATE\n{client}"
    folder = apps.write(tmp_path / "app", client, task=f"{gate}{apps.TASK}")
    assert "task.py: has LdpMod already" in refusal(folder)


def test_the_half_of_a_server_that_was_done_before_stays(tmp_path: Path) -> None:
    server = apps.SERVER.replace("FedAvg(", "DPSGDStrategy(FedAvg(").replace("=3)", "=3))")
    server = f"from flower_ldp.strategies import DPSGDStrategy\n{server}"
    folder = apps.write(tmp_path / "app", server=server)
    told = facts("adopt", folder, *FEW, "--write")
    assert "server_app" not in told["diff"] + str(told["by_hand"])
    assert (folder / "ward" / "server_app.py").read_text() == server
    assert "LdpMod" in (folder / "ward" / "client_app.py").read_text()


def test_the_mistakes_of_a_project_are_one_line(tmp_path: Path) -> None:
    folder = apps.write(tmp_path / "app")
    (folder / "pyproject.toml").write_text("")
    assert f"{folder}: Invalid pyproject.toml: - Missing [project] section -" in refusal(folder)


def test_a_model_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    folder = apps.write(tmp_path / "app")
    (folder / "ward_broken.py").write_text("def made():\n    raise RuntimeError('no\\nweights')\n")
    asked = ("--clients", 1000, "--import-model", "ward_broken:made")
    assert "makes no torch model: RuntimeError: no weights" in refusal(folder, *asked, code=2)
