"""``flower-ldp adopt``: the route, the diff and the policy of apps in the shape of each library."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.policy import load_policy
from tests.cli import facts, flower_ldp, refused
from tests.unit.cli import adopt_apps as apps

pytest.importorskip("scipy")
FEW = ("--clients", 5, "--examples", 100)
MANY = ("--clients", 1000, "--params", 2010)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flower"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return apps.write(tmp_path / "app")


def lines_of(diff: str, sign: str) -> list[str]:
    """Return the lines that a diff adds or takes out, without those of files' names."""
    found = re.findall(rf"(?m)^[{sign}](?![{sign}]{{2}} )(.*)$", diff)
    return [line for line in found if line]


def test_few_sites_train_by_dpsgd_and_their_loop_is_left_to_the_author(folder: Path) -> None:
    found = facts("adopt", folder, *FEW)
    assert (found["route"], found["library"], found["clients"]) == ("dpsgd", "torch", 5)
    code, policy = found["diff"].split("--- /dev/null\n")
    assert lines_of(code, "+") == [
        "import torch",
        "from flower_ldp.clients import DPSGDRelease, LdpMod",
        "from flower_ldp.training import private_training, supervised",
        '"Größe"; app = ClientApp(mods=[LdpMod(train=DPSGDRelease())])',
        "from flower_ldp.strategies import DPSGDStrategy",
        "    strategy = DPSGDStrategy(FedAvg(fraction_train=0.5, min_available_nodes=3, "
        "fraction_evaluate=0.0))",
        '    "flower-ldp[dpsgd]",',
    ]
    assert lines_of(code, "-") == [
        '"Größe"; app = ClientApp()',
        "    strategy = FedAvg(fraction_train=0.5, min_available_nodes=3)",
    ]
    assert "\n".join(lines_of(policy, "+")) + "\n" == found["policy"]
    (by_hand,) = found["by_hand"]
    assert by_hand == {
        "place": "ward/client_app.py:18",
        "text": "in place of `loss = train_fn(model, trainloader)`\n"
        "    private_training(\n"
        "        context,\n"
        "        model,\n"
        "        trainloader.dataset,\n"
        "        supervised(torch.nn.CrossEntropyLoss()),\n"
        "        optimizer=lambda weights: torch.optim.SGD(weights, lr=0.5),\n"
        "        like=...,  # a public row: entries, types and shapes of a row\n"
        "    )\n"
        "    Take out what reads loss after it.\n"
        "    Take out the device, line 16: training is on the CPU.",
    }
    assert len(found["warnings"]) == 1
    assert "ward/client_app.py:27: is not asked" in found["warnings"][0]


def test_many_clients_are_asked_once_by_codewords(folder: Path) -> None:
    found = facts("adopt", folder, *MANY)
    assert (found["route"], found["by_hand"]) == ("codeword", [])
    assert "good: most of what can be learned is learned" in found["reason"]
    assert lines_of(found["diff"].partition("--- /dev/null")[0], "+-") == [
        "from flower_ldp.clients import CodewordRelease, LdpMod",
        '"Größe"; app = ClientApp()',
        '"Größe"; app = ClientApp(mods=[LdpMod(train=CodewordRelease())])',
        "from flower_ldp.mechanisms import Codeword",
        "from flower_ldp.strategies import CodewordStrategy",
        "    strategy = FedAvg(fraction_train=0.5, min_available_nodes=3)",
        "    strategy = CodewordStrategy(Codeword(epsilon=8.0), answers_per_client=1, "
        "min_available_nodes=3)",
        '    "flower-ldp",',
    ]


def test_a_command_runs_what_was_written_and_another_lets_it_run_again(folder: Path) -> None:
    told = flower_ldp("adopt", folder, *FEW, "--write").out.splitlines()[-4:]
    policy = shlex.quote(str(folder / "policy.yaml"))
    assert told[0] == "written. Once that is done by hand, try it:"
    assert told[1] == f"  flower-ldp simulate {folder} --nodes 5 --policy {policy}"
    Ledger.open(folder / "ledger.sqlite", create=True).close()
    forgotten = flower_ldp(*shlex.split(told[3])[1:])
    assert (forgotten.code, (folder / "ledger.sqlite").exists()) == (0, False)


def test_what_is_printed_is_a_diff_that_makes_what_write_writes(
    folder: Path, tmp_path: Path
) -> None:
    printed = flower_ldp("adopt", folder, *FEW).out
    patched = apps.write(tmp_path / "patched")
    given = {"input": printed, "text": True, "capture_output": True}
    subprocess.run(["git", "apply", "-"], cwd=patched, check=True, **given)
    written = facts("adopt", folder, *FEW, "--write")["written"]
    assert written == ["ward/client_app.py", "ward/server_app.py", "pyproject.toml", "policy.yaml"]
    for name in written:
        assert (folder / name).read_bytes() == (patched / name).read_bytes()
    policy = load_policy(folder / "policy.yaml")
    plan = policy.plan("train", None)
    assert policy.is_simulation
    assert (policy.examples, plan.rounds, plan.steps, plan.rate) == (100, 4, 5, 0.2)
    assert "has LdpMod already: nothing is changed" in flower_ldp("adopt", folder, *FEW).err


@pytest.mark.parametrize(
    ("client", "library", "place", "lines"),
    [
        (
            apps.LIGHTNING,
            "lightning",
            14,
            ["model,", "train_loader.dataset,", "**ldp_lightning(model),", "reads trainer"],
        ),
        (apps.FASTAI, "fastai", 11, ["learn.dls.train_ds,", "**ldp_fastai(learn),"]),
        (
            apps.TRANSFORMERS,
            "transformers",
            15,
            ["ctx,", "hugging_face,", "Collated(rows, collator),"],
        ),
        (apps.SKLEARN, "sklearn", 15, ["model,\n        X, y,", "rate=0.5,", "classes=...,"]),
    ],
)
def test_the_lines_by_hand_are_those_of_the_library(
    tmp_path: Path, client: str, library: str, place: int, lines: list[str]
) -> None:
    found = facts("adopt", apps.write(tmp_path / "app", client, task=""), *FEW)
    (by_hand,) = found["by_hand"]
    assert (found["library"], by_hand["place"]) == (library, f"ward/client_app.py:{place}")
    assert all(line in by_hand["text"] for line in lines), by_hand["text"]


def test_rows_that_are_dicts_and_losses_that_are_none_are_said(tmp_path: Path) -> None:
    rows = apps.TASK.replace("images, labels in", "batch in").replace(
        "model(images), labels", 'model(batch["image"]), batch["label"]'
    )
    (by_hand,) = facts("adopt", apps.write(tmp_path / "dicts", task=rows), *FEW)["by_hand"]
    loss = 'lambda model, row: torch.nn.CrossEntropyLoss()(model(row["image"]), row["label"]),'
    assert loss in by_hand["text"]
    own = apps.TASK.replace("nn.CrossEntropyLoss()", "made()")
    (by_hand,) = facts("adopt", apps.write(tmp_path / "own", task=own), *FEW)["by_hand"]
    assert "the loss of one row, as ward/task.py:10 has it" in by_hand["text"]


def test_old_clients_keep_their_mods_behind_the_gate(tmp_path: Path) -> None:
    server = apps.SERVER.replace("strategy.start(", "workflow(")
    folder = apps.write(tmp_path / "app", apps.OLD, server=server)
    found = facts("adopt", folder, *MANY)
    by_hand = facts("adopt", folder, *FEW)["by_hand"][0]
    assert (
        "context,  # that client_fn got\n        self.net,\n        self.trainloader"
        in by_hand["text"]
    )
    mods = "mods=[LdpMod(train=CodewordRelease()), legacy_client_mod, secaggplus_mod, noting, "
    assert mods in found["diff"]
    told = "\n".join(found["warnings"])
    assert "the mod noting sees the app's raw reply" in told
    secagg, clipping, by_hand = found["by_hand"]
    assert secagg["text"] == "take out the mod secaggplus_mod: a masked sum has no epsilon"
    assert "take out the mod fixedclipping_mod" in clipping["text"]
    assert by_hand["place"] == "ward/server_app.py"
    assert "answers_per_client=1)` and" in by_hand["text"]


def test_other_forms_of_mods_and_strategies(tmp_path: Path) -> None:
    client = apps.CLIENT.replace("ClientApp()", "ClientApp(mods=[\n    one,  # kept\n])")
    server = apps.SERVER.replace("FedAvg", "FedAdam")
    found = facts("adopt", apps.write(tmp_path / "list", client, server=server), *MANY)
    assert "(mods=[LdpMod(train=CodewordRelease()),\n     one,  # kept\n" in found["diff"]
    assert any("the rule of FedAdam goes" in told for told in found["warnings"])
    server = apps.SERVER.replace("strategy import FedAvg", "strategy import FedAvg as Mean")
    server = server.replace("FedAvg(", "Mine(").replace("import Net", "import Mine, Net")
    found = facts("adopt", apps.write(tmp_path / "name", server=server), *FEW)
    assert found["by_hand"][1]["text"].endswith("in place of ward.task.Mine")
    for number, call in enumerate(["FedAvg(**OPTIONS)", "FedAvg(0.5)", "QFedAvg()"]):
        server = apps.SERVER.replace("FedAvg(fraction_train=0.5, min_available_nodes=3)", call)
        server = server.replace("import FedAvg", "import FedAvg, QFedAvg")
        found = facts("adopt", apps.write(tmp_path / str(number), server=server), *FEW)
        assert found["by_hand"][1]["place"] == "ward/server_app.py:14"


@pytest.mark.parametrize(
    ("client", "route", "why"),
    [
        ("import xgboost\n" + apps.CLIENT, "none", "Train LogisticRegression by private_fit"),
        ("import jax\n" + apps.CLIENT, "none", "trains torch models, and this one is of jax"),
        ("import trl\n" + apps.CLIENT, "none", "a language model's adapters"),
        (apps.PARTY, "embedding", "EmbeddingOnceRelease(...)"),
    ],
)
def test_what_has_no_diff_has_a_reason(tmp_path: Path, client: str, route: str, why: str) -> None:
    task = "" if "import jax" in client else apps.TASK
    folder = apps.write(tmp_path / "app", client, task)
    done = flower_ldp("adopt", folder, *FEW, "--write", "--json")
    assert (done.code, done.json["route"]) == (1, route)
    assert why in done.json["reason"]
    assert why in done.err
    assert not (folder / "policy.yaml").exists()


@pytest.mark.parametrize(
    ("client", "columns", "rows"),
    [
        (
            apps.HISTOGRAMS,
            '{"age": np.linspace(0, 100, 6), "weight": np.linspace(0, 100, 6)}',
            "reply with the rows in place of their counts: frame[name]",
        ),
        (apps.TIMES, '{"T": ..., "E": ...}', None),
        (apps.QUERY, "{}", None),
    ],
)
def test_an_app_that_asks_by_query_asks_for_tables(
    tmp_path: Path, client: str, columns: str, rows: str | None
) -> None:
    folder = apps.write(tmp_path / "app", client, "", apps.ASKING)
    found = facts("adopt", folder, *FEW, "--epsilon", 2, "--write")
    assert (found["route"], found["warnings"]) == ("statistics", [])
    assert lines_of(found["diff"].partition("--- /dev/null")[0], "+") == [
        "from flower_ldp.clients import CountsRelease, LdpMod",
        "app = ClientApp(mods=[LdpMod(query=CountsRelease())])",
        "from flower_ldp.strategies import CountsQuery",
        f"query = CountsQuery({columns}, epsilon=2.0)",
        "    content = query.content()",
        '    "flower-ldp",',
    ]
    told = [one["text"] for one in found["by_hand"]]
    assert told.pop().startswith("read tables = query.aggregate(replies) in place of the replies")
    if rows is not None:
        assert told == [rows]
    else:
        (levels,) = told
        assert "the public levels of each column" in levels
    policy = load_policy(folder / "policy.yaml")
    assert policy.examples == 100
    assert policy.messages["query"]["counts"].epsilon == 2


def test_what_a_server_sends_of_its_own_is_left_to_its_author(tmp_path: Path) -> None:
    server = apps.ASKING.replace("content = RecordDict()", "content = RecordDict({})")
    found = facts("adopt", apps.write(tmp_path / "own", apps.TIMES, "", server), *FEW)
    assert "query.content()" not in found["diff"]
    assert found["by_hand"][1]["text"] == "send the records of query.content() too"
    for number, text in enumerate(("app = made()\napp = 1\n", "query = 1\napp = ServerApp()\n")):
        server = apps.ASKING.replace("app = ServerApp()\n", text)
        done = flower_ldp("adopt", apps.write(tmp_path / str(number), apps.TIMES, "", server), *FEW)
        assert "has no one line app = ServerApp(), or its own query" in done.err


def test_without_rows_a_question_has_no_policy(tmp_path: Path) -> None:
    folder = apps.write(tmp_path / "app", apps.TIMES, "", apps.ASKING)
    found = facts("adopt", folder, "--clients", 5)
    assert found["policy"] is None
    assert any("without --examples" in told for told in found["warnings"])
    done = flower_ldp("adopt", folder, "--clients", 5, "--write")
    assert (done.code, done.out, "--examples" in done.err) == (2, "", True)


def test_arrays_of_any_library_go_by_codewords(tmp_path: Path) -> None:
    folder = apps.write(tmp_path / "app", "import jax\n" + apps.CLIENT, "")
    assert facts("adopt", folder, *MANY)["route"] == "codeword"


def test_the_route_follows_from_clients_and_weights(folder: Path) -> None:
    ask = ("adopt", folder, "--examples", 100)
    hopeless = facts(*ask, "--clients", 100, "--params", 62_006)
    assert hopeless["route"] == "dpsgd"
    assert "for codewords 62,006 weights are hopeless" in hopeless["reason"]
    assert facts(*ask, "--clients", 100)["route"] == "codeword"
    assert facts(*ask, "--clients", 49)["route"] == "dpsgd"
    assert facts(*ask, "--clients", 49, "--for", "codeword")["route"] == "codeword"
    found = facts(*ask)
    assert (found["clients"], found["clients_from"]) == (2, "Flower's default")
    assert any("give --clients" in told for told in found["warnings"])
    federation = "\n[tool.flwr.federations]\ndefault = 'here'\n[tool.flwr.federations.here]\n"
    project = folder / "pyproject.toml"
    project.write_text(apps.PROJECT + federation + "options.num-supernodes = 300\n")
    assert (facts(*ask)["route"], facts(*ask)["clients"]) == ("codeword", 300)


def test_rounds_that_the_app_does_not_name_are_told(folder: Path) -> None:
    told = "num-server-rounds is no number, so the plan has 10 rounds"
    assert not any(told in one for one in facts("adopt", folder, *FEW)["warnings"])
    project = folder / "pyproject.toml"
    project.write_text(apps.PROJECT.replace("num-server-rounds = 4", 'num-server-rounds = "4"'))
    found = facts("adopt", folder, *FEW)
    assert any(told in one for one in found["warnings"])
    assert "rounds: 10," in found["policy"]


def test_a_model_is_imported_only_if_asked(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    ask = ("--clients", 1000, "--import-model")
    folder = apps.write(tmp_path / "app")
    (folder / "ward_model.py").write_text("import torch\nNet = lambda: torch.nn.Linear(30000, 9)\n")
    assert (
        "270,009 weights are hopeless" in facts("adopt", folder, *ask, "ward_model:Net")["reason"]
    )
    told = refused("adopt", folder, *ask, "ward_model:Nothing", code=2)
    assert "makes no torch model" in told


def test_what_no_mod_can_stop_is_told(tmp_path: Path) -> None:
    folder = apps.write(tmp_path / "rows", apps.SKLEARN)
    text = "ward/client_app.py:13: scaler.fit is fitted to private rows"
    assert any(text in told for told in facts("adopt", folder, *FEW)["warnings"])
    # A scaler of one client's rows is hidden with the client.
    assert not any(text in told for told in facts("adopt", folder, *MANY)["warnings"])
    task = "import wandb, opacus\n" + apps.TASK + "\nNORM = nn.BatchNorm1d(3)\n"
    told = "\n".join(facts("adopt", apps.write(tmp_path / "task", task=task), *FEW)["warnings"])
    assert "ward/task.py: wandb may write or send" in told
    assert "ward/task.py: opacus adds noise that no ledger counts" in told
    assert "ward/task.py:16: BatchNorm1d mixes rows" in told
    server = "import wandb\n" + apps.SERVER  # sees what the gate let out
    folder = apps.write(tmp_path / "server", server=server)
    assert not any("wandb" in told for told in facts("adopt", folder, *FEW)["warnings"])


def test_mistakes_are_told_and_nothing_is_written(folder: Path) -> None:
    client = folder / "ward" / "client_app.py"

    def problem(*more: object, code: int = 1) -> str:
        done = flower_ldp("adopt", folder, *FEW, "--write", *more)
        assert done.code == code
        assert "flower_ldp" not in client.read_bytes().decode("latin-1")
        return done.err

    (folder / "policy.yaml").write_text("mine\n")
    assert "is there, so nothing was written" in problem()
    (folder / "policy.yaml").unlink()
    without = flower_ldp("adopt", folder, "--clients", 5, "--write")
    assert (without.code, without.out, "--examples" in without.err) == (2, "", True)
    for text, why in [
        (apps.CLIENT.replace("ClientApp()", "made()"), "has no line app = ClientApp(...)"),
        (apps.CLIENT.replace("\n", "\r\n"), "must be UTF-8 with \\n"),
        (apps.CLIENT + "(", "is no Python in UTF-8"),
        (apps.CLIENT.replace("app.train", "app.other"), "answers train messages"),
    ]:
        client.write_bytes(text.encode())
        assert why in problem()
    client.write_bytes(apps.CLIENT.encode("latin-1"))
    assert "is no Python in UTF-8" in problem()
    client.rename(folder / "ward" / "other.py")
    assert "has no module ward.client_app" in flower_ldp("adopt", folder, *FEW).err
    (folder / "pyproject.toml").unlink()
    assert "Cannot find pyproject.toml" in flower_ldp("adopt", folder, *FEW).err
