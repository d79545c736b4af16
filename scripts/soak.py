"""Keeps a server busy for a long time with clients of every kind, and looks whether it stays as it was:

    python scripts/soak.py --minutes 30 --clients 8 --json docs/soak.json --svg docs/soak.svg

Starts `lattice serve` itself (its other options after `--`), samples memory, open files, threads and /metrics every
few seconds, and says at the end whether memory is flat. The record is JSON; the figure needs the extra `plots`. Exit
status 1 when a request went wrong, the server ended, or something grew. Reads /proc, so it wants Linux.

Thread: any
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from lattice_cli.bench import machine
from scripts.soak_asks import Client, is_fine

WARM_SHARE = 1 / 3  # of the time, in which memory may find its level
GROWTH_MB = 40.0  # that it may rise afterwards, by the line through what is left
GROWTH_FILES = 4
GAUGES = re.compile(
    r"^(lattice_(?:rows|queue_depth|inflight_requests|\w*cache\w*|completion_tokens_total))(?:\{\})? (\S+)$", re.M
)


class Soak:
    """A server, its clients, and what was seen of them."""

    def __init__(self, command: list[str], clients: int, seed: int) -> None:
        self._server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self._talk: list[bytes] = []
        assert self._server.stdout is not None
        ready = self._server.stdout.readline()
        if not ready:
            raise SystemExit(f"the server did not start: {self._server.communicate()[1].decode()}")
        self.port = int(json.loads(ready.removeprefix(b"@@lattice "))["port"])
        for stream, keep in ((self._server.stdout, False), (self._server.stderr, True)):
            threading.Thread(target=self._drain, args=(stream, keep), daemon=True).start()
        self._clients = [Client(self.port, seed * 1000 + number) for number in range(clients)]
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self.went: Counter[tuple[str, str]] = Counter()
        self.samples: list[dict[str, float]] = []

    def _drain(self, stream: Any, keep: bool) -> None:
        for line in stream:
            if keep:
                self._talk.append(line)

    def run(self, seconds: float, every_s: float) -> None:
        threads = [threading.Thread(target=self._ask, args=(one,), daemon=True) for one in self._clients]
        began_s = time.monotonic()
        for thread in threads:
            thread.start()
        while (past_s := time.monotonic() - began_s) < seconds and self._server.poll() is None:
            self.samples.append({"second": round(past_s, 1), **self._sample()})
            time.sleep(min(every_s, max(0.1, seconds - past_s)))
        self._stopping.set()
        for thread in threads:
            thread.join(60)
        time.sleep(1)
        if self._server.poll() is None:
            self.samples.append({"second": round(time.monotonic() - began_s, 1), **self._sample(), "idle": 1})

    def _ask(self, client: Client) -> None:
        while not self._stopping.is_set():
            kind, went = client.ask()
            with self._lock:
                self.went[kind, went] += 1
            if went == "429":
                time.sleep(0.2)

    def _sample(self) -> dict[str, float]:
        proc = Path(f"/proc/{self._server.pid}")
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=30) as answer:
            gauges = {name: float(value) for name, value in GAUGES.findall(answer.read().decode())}
        pages = int((proc / "statm").read_text().split()[1])
        return {
            "resident_mb": round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1),
            "files": len(list((proc / "fd").iterdir())),
            "threads": len(list((proc / "task").iterdir())),
            **gauges,
        }

    def end(self) -> tuple[int, str]:
        """Its exit status after SIGTERM, and the end of what it said."""
        self._server.terminate()
        return self._server.wait(60), b"".join(self._talk[-20:]).decode(errors="replace")


def slope(xs: list[float], ys: list[float]) -> float:
    """Of the line through the points, by least squares."""
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - mean_x) ** 2 for x in xs)
    return sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread if spread else 0.0


def verdict(samples: list[dict[str, float]], went: Counter[tuple[str, str]], status: int) -> dict[str, Any]:
    """What is wrong, and the figures that say so."""
    busy = [one for one in samples if "idle" not in one]
    level = busy[int(len(busy) * WARM_SHARE) :]
    seconds = [one["second"] for one in level]
    risen_mb = slope(seconds, [one["resident_mb"] for one in level]) * (seconds[-1] - seconds[0]) if level else 0.0
    last = samples[-1]
    faults = [f"{kind}: {how} ({times} times)" for (kind, how), times in went.items() if not is_fine(kind, how)]
    if status:
        faults.append(f"the server ended with status {status}")
    if risen_mb > GROWTH_MB:
        faults.append(f"memory rose by {risen_mb:.0f} MB")
    if "idle" in last and last["files"] > samples[0]["files"] + GROWTH_FILES:
        faults.append(f"{last['files'] - samples[0]['files']:.0f} files stayed open")
    if last.get("lattice_rows") or last.get("lattice_queue_depth"):
        faults.append("rows or places in the queue were not given back")
    return {"risen_mb": round(risen_mb, 1), "faults": faults}


def draw(samples: list[dict[str, float]], file: Path) -> None:
    """Memory over time, with open files below."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    minutes = [one["second"] / 60 for one in samples]
    figure = Figure(figsize=(6.4, 4), layout="constrained")
    FigureCanvasSVG(figure)
    memory, files = figure.subplots(2, sharex=True, height_ratios=(2, 1))
    memory.plot(minutes, [one["resident_mb"] for one in samples], label="resident memory")
    caches = sorted({name for one in samples for name in one if "cache" in name and name.endswith("bytes")})
    for name in caches:
        memory.plot(minutes, [one.get(name, 0) / 1e6 for one in samples], label=name.removeprefix("lattice_"))
    memory.set_ylabel("MB")
    files.plot(minutes, [one["files"] for one in samples], label="open files")
    files.plot(minutes, [one["threads"] for one in samples], label="threads")
    files.set_xlabel("minutes")
    for axes in (memory, files):
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--every", type=float, default=5, metavar="SECONDS", help="between two samples")
    parser.add_argument("--cache-bytes", default="128M", help="so that the prefix cache is full early, and then level")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, default=Path("soak.json"))
    parser.add_argument("--svg", type=Path)
    parser.add_argument("serve", nargs="*", help="more options of `lattice serve`, after `--`")
    chosen = parser.parse_args(arguments)
    serve = ["--model", chosen.model, "--port", "0", "--tool-fallback", "hermes", "--cache-bytes", chosen.cache_bytes]
    serve += chosen.serve
    soak = Soak([sys.executable, "-m", "lattice_cli", "serve", *serve], chosen.clients, chosen.seed)
    soak.run(chosen.minutes * 60, chosen.every)
    status, talk = soak.end()
    told = verdict(soak.samples, soak.went, status)
    counts: dict[str, dict[str, int]] = {}
    for (kind, how), times in sorted(soak.went.items()):
        counts.setdefault(kind, {})[how] = times
    record = {
        "kind": "soak",
        "minutes": chosen.minutes,
        "clients": chosen.clients,
        "seed": chosen.seed,
        "serve": ["lattice", "serve", *serve],
        "machine": asdict(machine.describe()),
        "versions": machine.versions(),
        "requests": sum(soak.went.values()),
        "counts": counts,
        **told,
        "samples": soak.samples,
    }
    chosen.json.write_text(json.dumps(record, indent=1) + "\n")
    if chosen.svg:
        draw(soak.samples, chosen.svg)
    for fault in told["faults"]:
        print(f"fault: {fault}", file=sys.stderr)
    if told["faults"]:
        print(talk, file=sys.stderr)
    first, last = soak.samples[0]["resident_mb"], soak.samples[-1]["resident_mb"]
    print(f"{record['requests']} requests; {first} MB at first, {last} MB at last; risen by {told['risen_mb']} MB")
    return 1 if told["faults"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
