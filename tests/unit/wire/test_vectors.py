"""The test vectors of the wire: made from the page, and the package agrees with each."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from functools import cache, partial
from typing import Any

import numpy as np
import pytest

from flower_ldp import refusals
from flower_ldp.clients.release import ERROR_CODE
from flower_ldp.errors import WireError
from flower_ldp.extensions import ExtensionReport
from flower_ldp.mechanisms import Codeword, CodewordReport, Gaussian, RandomSource
from flower_ldp.mechanisms.hadamard import Subspace, signs
from flower_ldp.mechanisms.random import exp_lower
from flower_ldp.mechanisms.randomized_response import BinaryResponse
from flower_ldp.mechanisms.signds import top_by_sort
from flower_ldp.mechanisms.signds_round import SignDSRound, decode_report, encode_report
from flower_ldp.mechanisms.training_plan import TrainingPlan
from flower_ldp.wire import embedding, evaluation, training_plan
from flower_ldp.wire.layout import without_part
from flower_ldp.wire.proposal import UpdateProposal, append_health, split_health
from flower_ldp.wire.record_ids import Records
from tests.vectors.drawing import Stream
from tests.vectors.make import FOLDER, made, text
from tests.vectors.noise import discrete_laplace

Case = dict[str, Any]

READERS: dict[str, Callable[[Case], Any]] = {
    "str": str,
    "int": int,
    "float": float,
    "bool": bool,
    "bytes": bytes.fromhex,
    "list of str": list,
    "list of int": lambda found: [int(one) for one in found],
    "list of float": lambda found: [float(one) for one in found],
}


def any_extension(given: Case) -> Case:
    name = str(given.get("mechanism"))
    return {name: partial(ExtensionReport.named, name)}


PARSERS: dict[str, Callable[[Case], Any]] = {
    **{
        kind.name: partial(UpdateProposal.from_fields, known={kind.name: kind.of_parameters})
        for kind in (SignDSRound, Codeword, Gaussian)
    },
    "extension": lambda given: UpdateProposal.from_fields(
        given,
        {name: partial(ExtensionReport.named, name) for name in [str(given.get("mechanism"))]},
    ),
    "evaluation": evaluation.EvalProposal.from_fields,
    "embedding": embedding.EmbeddingProposal.from_fields,
    "training": training_plan.read_plan,
}


@cache
def vectors(name: str) -> Case:
    found: Case = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return found


def fields(record: Case) -> Case:
    """Return the fields of a record, each of its type."""
    return {name: READERS[kind](v) for name, typed in record.items() for kind, v in typed.items()}


def parsed(message: str, record: Case) -> Any:
    """Read a proposal as a gate does: what is about a part of the model first."""
    others, _ = without_part(fields(record))
    return PARSERS[message](others)


def check_refused(name: str, read: Callable[[Case, bytes], object]) -> None:
    """Check that bytes which are no report are refused, each for its reason."""
    for case in vectors(name)["refused"]:
        with pytest.raises(WireError) as caught:
            read(case, bytes.fromhex(case["bytes"]))
        assert caught.value.reason == case["reason"], case


def test_the_files_are_what_the_page_makes() -> None:
    files = made()
    assert {path.stem for path in FOLDER.glob("*.json")} == set(files)
    for name, content in files.items():
        assert (FOLDER / f"{name}.json").read_text(encoding="utf-8") == text(content), name


def test_nothing_of_the_package_makes_them() -> None:
    sources = [path.read_text(encoding="utf-8") for path in FOLDER.glob("*.py")]
    assert len(sources) == 10
    assert not any("flower_ldp" in source for source in sources)


def test_proposals_are_read_and_written() -> None:
    for case in vectors("proposals")["accepted"]:
        found, (others, part) = fields(case["fields"]), without_part(fields(case["fields"]))
        proposal = PARSERS[case["message"]](others)
        is_plan = isinstance(proposal, TrainingPlan)
        written = training_plan.plan_fields(proposal) if is_plan else proposal.to_fields()
        written |= part.to_fields()
        assert written == found, case["name"]
        assert {n: type(v) for n, v in written.items()} == {n: type(v) for n, v in found.items()}


def test_other_proposals_are_refused() -> None:
    for case in vectors("proposals")["refused"]:
        assert case["refusal"] == refusals.REFUSED_PROPOSAL
        try:
            found = parsed(case["message"], case["fields"])
        except WireError:
            continue
        pytest.fail(f"{case['message']}, {case['name']}: read as {found}")


def test_refusals_are_those_of_the_package() -> None:
    found = vectors("refusals")
    assert found["code"] == ERROR_CODE
    rows = {row["reason"]: row["charge"] for row in found["reasons"]}
    assert rows == {code: row.stage for code, row in refusals.MEANINGS.items()}


def test_signds_reports() -> None:
    for case in vectors("signds")["accepted"]:
        data, d, bit = bytes.fromhex(case["bytes"]), case["d"], case["magnitude-bit"]
        indices = np.array(case["indices"], dtype=np.int64)
        assert encode_report(indices, case["sign"], bit, dimension=d) == data
        back = decode_report(data, dimension=d, dim_out=case["h"], has_bit=bit is not None)
        assert (back[0].tolist(), *back[1:]) == (case["indices"], case["sign"], bit)
    check_refused(
        "signds",
        lambda case, data: decode_report(
            data, dimension=case["d"], dim_out=case["h"], has_bit=case["magnitude-bit-asked"]
        ),
    )


def test_codeword_reports() -> None:
    def mechanism(case: Case) -> Codeword:
        return Codeword(8.0, 1, case["rotations"], 0, case["blocks"])

    for case in vectors("codeword")["accepted"]:
        report = CodewordReport(case["n"], case["code"], case["row"], case["sign"])
        data = bytes.fromhex(case["bytes"])
        assert mechanism(case).encode(report, case["d"]) == data
        assert mechanism(case).decode(data, case["d"]) == report
    check_refused("codeword", lambda case, data: mechanism(case).decode(data, case["d"]))


def test_gaussian_reports() -> None:
    for case in vectors("gaussian")["accepted"]:
        data, proposal = bytes.fromhex(case["bytes"]), parsed("gaussian", case["proposal"])
        mechanism, d = proposal.mechanism, case["d"]
        assert mechanism.encode(np.array(case["entries"], dtype=np.int8), d) == data
        assert mechanism.decode(data, d).tolist() == case["entries"]
    check_refused(
        "gaussian",
        lambda case, data: parsed("gaussian", case["proposal"]).mechanism.decode(data, case["d"]),
    )


def test_reports_of_an_extension() -> None:
    for case in vectors("extension")["accepted"]:
        data, proposal = bytes.fromhex(case["bytes"]), parsed("extension", case["proposal"])
        assert proposal.report_bytes(7) == len(data)
        assert proposal.mechanism.decode(data, 7) == data
    check_refused(
        "extension",
        lambda case, data: parsed("extension", case["proposal"]).mechanism.decode(data, 7),
    )


def test_reports_of_an_evaluation() -> None:
    for case in vectors("evaluation")["accepted"]:
        data, proposal = bytes.fromhex(case["bytes"]), parsed("evaluation", case["proposal"])
        rows = np.array(case["rows"], dtype=np.int64)
        assert evaluation.encode_eval_report(proposal, rows, case["metrics"]) == data
        back = evaluation.decode_eval_report(data, proposal)
        assert [part.tolist() for part in back] == [case["rows"], case["metrics"]]
    check_refused(
        "evaluation",
        lambda case, data: evaluation.decode_eval_report(
            data, parsed("evaluation", case["proposal"])
        ),
    )


def test_embeddings_and_their_tables() -> None:
    def mechanism(case: Case) -> Any:
        return embedding.named(case["mechanism"], 4.0, case["width"], False)

    for case in vectors("embedding")["accepted"]:
        data, reports = bytes.fromhex(case["bytes"]), np.array(case["reports"])
        assert embedding.encode_embeddings(reports, mechanism(case)) == data
        rows = embedding.decode_embeddings(data, mechanism(case), case["records"])
        assert (rows.argmax(axis=1) if reports.ndim == 1 else rows).tolist() == case["reports"]
    check_refused(
        "embedding",
        lambda case, data: embedding.decode_embeddings(data, mechanism(case), case["records"]),
    )
    empty = {case["message"]: case["bytes"] for case in vectors("embedding")["acknowledgements"]}
    assert empty == dict.fromkeys((embedding.PREPARE, embedding.BACKWARD, embedding.REWIND), "")
    for table in vectors("embedding")["tables"]:
        records = Records.of(table["ids"])
        assert [table["ids"][row] for row in records.order] == table["order"]
        assert records.digest == table["digest"]


def test_the_health_bit() -> None:
    for case in vectors("health")["accepted"]:
        report, data = bytes.fromhex(case["report"]), bytes.fromhex(case["bytes"])
        assert append_health(report, case["bit"]) == data
        assert split_health(data, asked=True) == (report, case["bit"])
    check_refused("health", lambda _, data: split_health(data, asked=True))


def test_a_model_that_is_kept() -> None:
    def arrays(case: Case) -> dict[str, Any]:
        return {
            a["name"]: np.array(a["entries"], dtype=a["dtype"]).reshape(a["shape"])
            for a in case["arrays"]
        }

    for case in vectors("model")["accepted"]:
        data, sent = bytes.fromhex(case["bytes"]), arrays(case)
        assert training_plan.encode_model(sent, sent, case["weight"]) == data
        back, weight = training_plan.decode_model(data, sent)
        assert weight == case["weight"]
        assert all((back[name] == sent[name]).all() for name in sent)
    check_refused("model", lambda case, data: training_plan.decode_model(data, arrays(case)))


def test_signs_and_subspaces() -> None:
    for case in vectors("signs")["cases"]:
        bits = np.unpackbits(np.frombuffer(bytes.fromhex(case["bits"]), dtype=np.uint8))
        flips = signs(int(case["seed"]), case["number"], case["n"])
        assert ((flips < 0) == bits).all()
    for case in vectors("subspace")["cases"]:
        found = Subspace(case["subspace-dimension"], int(case["subspace-seed"]))
        assert found.project(np.array(case["update"])).tolist() == case["projected"]


class Given(RandomSource):
    """A source of the bytes of a vector, all of which must be taken."""

    __slots__ = ("left",)

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self.left = data

    def random_bytes(self, n: int) -> bytes:
        out, self.left = self.left[:n], self.left[n:]
        assert len(out) == n
        return out


def test_codewords_are_drawn_from_the_same_bytes() -> None:
    for case in vectors("codeword_draws")["cases"]:
        proposal, d = parsed("codeword", case["proposal"]), case["d"]
        plan = proposal.mechanism.plan(d)
        assert f"{plan.weight:064x}" == case["weight"]
        update = case["update"]
        with np.errstate(over="ignore"):
            update = update and np.array([float(one) for one in update]).astype(np.float32)
        rng = Given(bytes.fromhex(case["random"]))
        mechanism = proposal.mechanism
        report = mechanism.encode(mechanism.randomize(update, rng, d), d)
        neutral = update is None or len(update) != d or not np.isfinite(update).all()
        response = proposal.health
        bit = None if response is None else response.randomize(neutral, rng)
        payload = append_health(report, bit)
        assert payload.hex() == case["payload"], case["name"]
        assert rng.left == b"", case["name"]


def test_powers_are_the_largest_whole_numbers() -> None:
    for case in vectors("codeword_draws")["powers"]:
        assert f"{exp_lower(float(case['epsilon'])):x}" == case["power"], case["epsilon"]
        flip = BinaryResponse(float(case["epsilon"]), "health")._flip_weight
        assert f"{flip:x}" == case["flip"], case["epsilon"]


def test_selections_have_the_law_and_the_form_of_the_package() -> None:
    for case in vectors("signds_draws")["cases"]:
        proposal, d = parsed("signds", case["proposal"]), case["d"]
        mechanism = proposal.mechanism
        plan = mechanism.selection.plan(d, quiet=True)
        assert (plan.top_size, plan.threshold) == (case["top"], case["threshold"]), case["name"]
        weights = [int(weight, 16) for weight in case["weights"]]
        first = max(0, plan.dim_out - (d - plan.top_size))
        for inside, weight in enumerate(weights, start=first):
            ways = math.comb(plan.top_size, inside)
            ways *= math.comb(d - plan.top_size, plan.dim_out - inside)
            known = ways * plan.law.subset_probability(inside)
            assert known == Fraction(weight, sum(weights)), case["name"]
        payload = bytes.fromhex(case["payload"])
        report, bit = split_health(payload, asked=proposal.health is not None)
        assert (bit is None) == (proposal.health is None)
        selection, _ = mechanism.decode(report, d)
        if case["inside"] is not None:
            update = np.array(case["update"], dtype=np.float32)
            top = top_by_sort(update, plan.top_size, selection.sign)
            assert np.isin(selection.indices, top).sum() == case["inside"], case["name"]


def test_noised_rows_are_rounded_and_read_as_by_the_package() -> None:
    for case in vectors("laplace_draws")["cases"]:
        proposal = parsed("evaluation", case["proposal"])
        mechanism: Any = proposal.mechanism
        rows = case["rows"] and [[*map(float, row)] for row in case["rows"]]
        grid, good = mechanism._rounded(rows)
        for found, known, right in zip(grid.tolist(), case["grid"], good, strict=True):
            assert known == (found if right else None), case["name"]
        payload = bytes.fromhex(case["payload"])
        report, _ = split_health(payload, asked=proposal.health is not None)
        told, _ = evaluation.decode_eval_report(report, proposal)
        assert told.ravel().tolist() == case["entries"], case["name"]


def test_the_documented_draw_of_noise_has_its_law() -> None:
    random, draws = Stream("noise"), 30_000
    random._bytes = hashlib.shake_128(b"noise").digest(4_000_000)
    found = Counter(discrete_laplace((2, 5), random) for _ in range(draws))
    q = math.exp(-0.4)
    for x in range(-8, 9):
        p = (1 - q) / (1 + q) * q ** abs(x)
        assert abs(found[x] - draws * p) < 5.5 * math.sqrt(draws * p * (1 - p))  # 17 of 4e-8
