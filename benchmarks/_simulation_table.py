"""The rows of the table in docs/simulation.md."""

from __future__ import annotations

from typing import Any

NAMES = {
    "flower": "Flower's engine",
    "strict": "strict",
    "fast": "not strict",
    "strict-2": "strict, two workers",
}
WHAT = {"nothing": "nothing", "lenet": "a LeNet-5 back", "record": "a step on a digit"}


def table(result: dict[str, Any]) -> str:
    """Return the figures of a result in Markdown."""
    rows = []
    if "rounds" in result:
        rows += ["| clients do | nodes | engine | messages/s | times | peak MiB |"]
        rows += ["|---|---|---|---|---|---|"]
        theirs = {
            (one["kind"], one["nodes"]): one["messages_a_second"]
            for one in result["rounds"]
            if one["way"] == "flower"
        }
        for one in result["rounds"]:
            speed = one["messages_a_second"]
            times = speed / theirs[one["kind"], one["nodes"]]
            below = "< " if one["unfinished"] else ""
            rows.append(
                f"| {WHAT[one['kind']]} | {one['nodes']:,} | {NAMES[one['way']]} | "
                f"{below}{speed:,.0f} | {times:.1f} | {one['peak_mib']:,.0f} |"
            )
    for part, example in (("example", "the digits example"), ("signds", "a CNN, 30 rounds")):
        if part not in result:
            continue
        command = result[part]
        rows += ["", f"| {example} | seconds to the last round | peak MiB |"]
        rows += ["|---|---|---|"]
        for name, called in (("flower", NAMES["flower"]), ("process", "in one process")):
            one = command[name]
            rows.append(f"| {called} | {one['last_round']:.1f} | {one['peak_mib']:,.0f} |")
    many = [
        (f"{one['nodes']:,} nodes: {WHAT[one['kind']]}", one)
        for one in (result.get("once"), result.get("memory"))
        if one is not None
    ]
    if many:
        rows += ["", "| strict, one worker | rounds | seconds in all | peak MiB |"]
        rows += ["|---|---|---|---|"]
    for called, one in many:
        rows.append(
            f"| {called} | {len(one['seconds'])} | {one['seconds_in_all']:.0f} | "
            f"{one['peak_mib']:,.0f} |"
        )
    return "\n".join(rows)
