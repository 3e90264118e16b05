"""Runs every benchmark that makes a claim, one after another; writes results.json, the README's table and a plot.

    python benchmarks/run_all.py                 # all, about half an hour on two quiet cores
    python benchmarks/run_all.py --only 1 11     # some claims; the others keep the results they have

Each script measures its baseline in the same run, so that figures are ratios; the machine's load is noted with each.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from datetime import date
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
README = HERE.parent / "README.md"
RESULTS = HERE / "results.json"
PLOT = HERE.parent / "docs" / "benchmarks.png"
BEGIN, END = "<!-- benchmarks: begin -->", "<!-- benchmarks: end -->"

# Script and arguments by the claims it shows; the long ones last.
SCRIPTS: dict[tuple[int, ...], list[str]] = {
    (1, 2): ["payload_bytes.py"],
    (3,): ["receive.py"],
    (9,): ["resident_dit.py"],
    (10,): ["resident_text_encoder.py"],
    (11,): ["prompt_cache.py"],
    (14,): ["parallel_decode.py"],
    (8,): ["time_to_ready.py"],
    (12,): ["call_overhead.py"],
    (4, 5): ["pipeline_share.py", "--unit", "0.4"],
    (13,): ["memory_growth.py"],
    (15,): ["prediction.py"],
    (6, 7): ["split_against_unsplit.py"],
}


def run(script: list[str], timeout: float) -> dict[str, Any]:
    """What the script printed. Raises RuntimeError with its last words when it failed."""
    ended = subprocess.run(
        [sys.executable, str(HERE / script[0]), *script[1:]], capture_output=True, text=True, timeout=timeout
    )
    if ended.returncode:
        raise RuntimeError(f"{script[0]} ended with {ended.returncode}: {ended.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(ended.stdout[ended.stdout.index("{") :])
    return found


def table(results: dict[str, Any]) -> str:
    """The claims as a Markdown table."""
    lines = ["| # | claim | baseline, in the same run | figure | to reach | |", "|---|---|---|---|---|---|"]
    for claim in claims_of(results):
        sign = "≥" if claim["more_is_better"] else "≤"
        lines.append(
            f"| {claim['number']} | {claim['text']} | {claim['baseline']} | {shown(claim['figure'])} | "
            f"{sign} {claim['target']:g} | {'✓' if claim['met'] else 'missed'} |"
        )
    return "\n".join(lines)


def shown(figure: float) -> str:
    """Three significant digits."""
    return f"{figure:.3g}"


def claims_of(results: dict[str, Any]) -> list[dict[str, Any]]:
    """All claims, by number."""
    return sorted((claim for found in results.values() for claim in found["claims"]), key=lambda item: item["number"])


def plot(results: dict[str, Any]) -> None:
    """Every figure by its target: what lies left of the line is met."""
    from PIL import Image, ImageDraw, ImageFont

    claims = claims_of(results)
    width, row, left = 1100, 26, 560
    image = Image.new("RGB", (width, row * (len(claims) + 2)), "white")
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(14)
    scale = (width - left - 90) / 1.5
    for index, claim in enumerate(claims):
        # Of the target: what a claim where more is better would have to reach is turned round.
        share = (
            claim["target"] / claim["figure"] if claim["more_is_better"] else claim["figure"] / (claim["target"] or 1)
        )
        top = row * index + 6
        draw.text((10, top), f"{claim['number']}  {claim['text']}"[:78], "black", font)
        color = "#2e7d32" if claim["met"] else "#c62828"
        draw.rectangle((left, top, left + max(2, scale * min(share, 1.5)), top + 14), color)
        draw.text((left + scale * min(share, 1.5) + 6, top), shown(claim["figure"]), "black", font)
    line = left + scale
    draw.line((line, 0, line, row * len(claims)), "black", 2)
    draw.text((line - 30, row * len(claims) + 6), "target", "black", font)
    image.save(PLOT, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", type=int, nargs="*", help="claims to measure")
    parser.add_argument("--timeout", type=float, default=1200.0, help="seconds for each script")
    options = parser.parse_args()
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    failed = []
    for numbers, script in SCRIPTS.items():
        if options.only and not set(numbers) & set(options.only):
            continue
        began = time.monotonic()
        print(f"claims {', '.join(map(str, numbers))}: {' '.join(script)} ...", end=" ", flush=True)
        try:
            results[script[0]] = {**run(script, options.timeout), "date": date.today().isoformat()}
        except (RuntimeError, ValueError, subprocess.TimeoutExpired) as error:
            failed.append(f"{script[0]}: {error}")
            print("failed")
            continue
        print(f"{time.monotonic() - began:.0f} s")
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    text = README.read_text()
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    README.write_text(f"{before}{BEGIN}\n{table(results)}\n{END}{after}")
    plot(results)
    print(table(results))
    for line in failed:
        print(line, file=sys.stderr)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
