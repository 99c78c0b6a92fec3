"""What a run of the simulation came to, for people and for programs."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from lucius_lab.sim.faults import FaultKind
from lucius_lab.sim.fleet import ScheduleTally
from lucius_lab.sim.run import SimOutcome, SimShape
from lucius_lab.verdicts import ProtocolVerdict


def summary(
    tally: ScheduleTally, shape: SimShape, *, took_seconds: float, found: Sequence[ProtocolVerdict] = ()
) -> dict[str, Any]:
    """Everything that is known, ready to be encoded. Latencies are in virtual seconds. `found`: the verdicts
    on the protocols that were asked about."""
    seconds = sorted(tally.seconds)
    missing = tally.never_injected(shape)
    succeeded, failed = tally.ended["SUCCEEDED"], tally.ended["FAILED_FINAL"]
    return {
        "schedules": tally.schedules,
        "schedules_per_second": round(tally.schedules / max(took_seconds, 1e-9), 1),
        "took_seconds": round(took_seconds, 1),
        "violations": tally.failed,
        "failures": [
            {"seed": failure.seed, "violation": failure.violation, "faults": failure.faults}
            for failure in tally.failures
        ],
        "jobs": tally.jobs,
        "ended": dict(sorted(tally.ended.items())),
        "completion": round(succeeded / (succeeded + failed), 4) if succeeded + failed else None,
        "attempts": tally.attempts,
        "latency_seconds": {
            "p50": _at(seconds, 0.5),
            "p99": _at(seconds, 0.99),
            "worst": tally.slowest[0] if seconds else None,
            "worst_seed": tally.slowest[1] if seconds else None,
        },
        "commits": tally.commits,
        "virtual_hours": round(tally.virtual_seconds / 3600, 1),
        "faults": {kind.value: tally.faults[kind.value] for kind in FaultKind if tally.faults[kind.value]},
        "faults_never_injected": [kind.value for kind in missing],
        "deployments": dict(sorted(tally.deployments.items())),
        "scarce": dict(sorted(tally.scarce.items())),
        "protocols": [msgspec.to_builtins(verdict) for verdict in found],
    }


def summary_text(found: Mapping[str, Any], *, replay: str) -> str:
    latency = found["latency_seconds"]
    completion = found["completion"]
    lines = [
        f"{found['schedules']:,} schedules in {found['took_seconds']:g} s "
        f"({found['schedules_per_second']:g}/s), {found['virtual_hours']:,g} virtual hours, "
        f"{found['commits']:,} commits",
        "",
        f"  {'jobs':<24}{found['jobs']:>12,}",
        *(f"    {state:<22}{count:>12,}" for state, count in found["ended"].items()),
        f"  {'completion':<24}{'-' if completion is None else f'{completion:.2%}':>12}"
        "   succeeded, of those that were not cancelled",
        f"  {'attempts a job':<24}{found['attempts'] / max(1, found['jobs']):>12.2f}",
        f"  {'latency p50':<24}{_span(latency['p50']):>12}   virtual time, from accepted to ended",
        f"  {'latency p99':<24}{_span(latency['p99']):>12}",
        f"  {'latency worst':<24}{_span(latency['worst']):>12}   seed {latency['worst_seed']}",
        "",
        "  faults injected",
        *(f"    {kind:<22}{count:>12,}" for kind, count in found["faults"].items()),
    ]
    if found["faults_never_injected"]:
        lines.append(f"    never: {', '.join(found['faults_never_injected'])}")
    lines += [
        "",
        "  deployments, in schedules",
        *(f"    {deployment:<44}{count:>8,}" for deployment, count in found["deployments"].items()),
        "",
        "  what was scarce, in schedules",
        *(f"    {what:<44}{count:>8,}" for what, count in found["scarce"].items()),
        "",
    ]
    if found["violations"]:
        lines.append(f"{found['violations']:,} schedules broke a promise:")
        lines += [f"  seed {failure['seed']}: {failure['violation']}" for failure in found["failures"]]
        lines.append(f"See what happened: {replay.format(seed=found['failures'][0]['seed'])}")
    else:
        lines.append("Every promise was kept: no job was lost, doubled or left behind.")
    return "\n".join(lines)


def replay_summary(outcome: SimOutcome) -> dict[str, Any]:
    return {
        "seed": outcome.seed,
        "passed": outcome.passed,
        "violations": [str(violation) for violation in outcome.violations],
        "trace_hash": outcome.trace_hash,
        "topology": outcome.topology.value,
        "layout": outcome.layout.value,
        "spans": outcome.spans,
        "commits": outcome.commits,
        "virtual_seconds": round(outcome.virtual_seconds, 3),
        "faults": [
            {
                "number": fault.number,
                "kind": fault.kind.value,
                "at_ms": fault.at_ms,
                "process": fault.process,
                "what": fault.what,
            }
            for fault in outcome.faults
        ],
        "jobs": [
            {"jobId": job.job_id, "state": job.state, "attempts": job.attempts, "seconds": job.seconds}
            for job in outcome.jobs
        ],
        "timeline": list(outcome.timeline),
    }


def _at(seconds: list[float], lane_leases: float) -> float | None:
    return seconds[min(len(seconds) - 1, int(len(seconds) * lane_leases))] if seconds else None


def _span(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.1f} min"
