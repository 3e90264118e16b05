"""The command line as a user runs it: real processes, real files, exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from samples import picture, tone, write_wav
from splitreel.media import film_facts

CONFIG = """\
model: {path: tiny, workflow: [t2va, fl2va]}
cluster: {address: local}
roles:
  encoder_decoder: {device: cpu, dtype: float32, threads: 1}
  dit: {device: cpu, dtype: float32, threads: 1}
"""
SOURCES = Path(__file__).resolve().parents[2] / "src"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(SOURCES), "COLUMNS": "100", "NO_COLOR": "1"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory with a config and some media, where commands run."""
    (tmp_path / "splitreel.yaml").write_text(CONFIG)
    picture(tmp_path / "first.png", 96, 48, seed=1)
    write_wav(tmp_path / "voice.wav", tone((440.0,), 1.0, 16000))
    (tmp_path / "notes.txt").write_text("no media")
    (tmp_path / "old.mp4").write_bytes(b"an older film")
    return tmp_path


def splitreel(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "splitreel", *arguments],
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


@contextmanager
def started(folder: Path, *arguments: str, until: str) -> Iterator[subprocess.Popen[str]]:
    """A command that has printed a line with `until` on stderr."""
    with subprocess.Popen(
        [sys.executable, "-m", "splitreel", *arguments],
        cwd=folder,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stderr is not None
            seen = []
            for line in process.stderr:
                seen.append(line)
                if until in line:
                    break
            else:
                raise AssertionError(f"ended before {until!r}: {''.join(seen)}")
            yield process
        finally:
            process.kill()


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


# Help -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["generate"],
        ["make-tiny"],
        ["config"],
        ["plan"],
        ["cluster"],
        ["serve"],
        ["key"],
        ["trace"],
        ["doctor"],
        ["config", "init"],
        ["config", "show"],
        ["config", "schema"],
        ["config", "convert"],
        ["cluster", "commands"],
        ["cluster", "status"],
    ],
)
def test_help_gives_examples_and_exit_codes(tmp_path: Path, command: list[str]) -> None:
    done = splitreel(tmp_path, *command, "--help")
    assert done.returncode == 0
    assert "Examples:" in done.stdout
    assert "Exit codes:" in done.stdout
    assert f"splitreel {' '.join(command)}".strip() in done.stdout
    assert done.stderr == ""


def test_version_and_no_command(tmp_path: Path) -> None:
    from splitreel.version import __version__

    assert splitreel(tmp_path, "--version").stdout == f"splitreel {__version__}\n"
    bare = splitreel(tmp_path)
    assert bare.returncode == 2
    assert "make-tiny" in bare.stdout


# Refusals that need no model --------------------------------------------------------------------------------------------

PROMPT = ["--prompt", "A lake."]
REFUSALS: list[tuple[str, list[str], str]] = [
    ("unknown option", [*PROMPT, "--fps", "30"], "--fps"),
    ("steps no number", [*PROMPT, "--steps", "few"], "--steps"),
    ("steps 1", [*PROMPT, "--steps", "1"], "steps: expected 2 or more, found 1. Steps are sigma points"),
    ("seed negative", [*PROMPT, "--seed", "-1"], "seed: expected a whole number from 0 to"),
    ("seconds nan", [*PROMPT, "--seconds", "nan"], "seconds: expected a finite number"),
    ("two lengths", [*PROMPT, "--num-frames", "124", "--seconds", "6"], "seconds: expected either num_frames or seconds"),
    ("height alone", [*PROMPT, "--height", "64"], "height, width: expected both or neither"),
    ("no prompt", [], "--prompt, --prompts, --request: expected what to show, once, found none of them"),
    ("two prompts", [*PROMPT, "--prompts", "notes.txt"], "--prompt, --prompts, --request: expected what to show, once, found --prompt and --prompts"),
    ("empty prompt", ["--prompt", " "], "prompt: expected a text that is not empty"),
    ("unknown setting", [*PROMPT, "--set", "engine.max_in_fligth=2"], "--set engine.max_in_fligth=2: unknown setting. Did you mean max_in_flight?"),
    ("set without value", [*PROMPT, "--set", "engine"], "--set engine: expected SECTION.NAME=VALUE"),
    ("no such config", [*PROMPT, "--config", "other.yaml"], "other.yaml: expected a readable YAML file, found no such file or directory. Name a config"),
    ("no such image", [*PROMPT, "--image", "no.png"], "image: expected"),
    ("image is text", [*PROMPT, "--last-image", "notes.txt"], "last_image: expected"),
    ("reference without a kind", [*PROMPT, "--reference", "first.png"], "--reference: expected image:PATH, video:PATH or audio:PATH, found 'first.png'"),
    ("reference of no kind", [*PROMPT, "--reference", "text:notes.txt"], "--reference: expected image:PATH"),
    ("reference is text", [*PROMPT, "--reference", "video:notes.txt"], "references[0]: expected"),
    ("output no mp4", [*PROMPT, "--output", "lake.gif"], "expected a name that ends in .mp4"),
    ("output under a file", [*PROMPT, "--output", "notes.txt/lake.mp4"], "expected a place where a file can be written"),
    ("output in no place", [*PROMPT, "--output", "/proc/none/lake.mp4"], "expected a place where a file can be written"),
    ("output exists", [*PROMPT, "--output", "old.mp4"], "--output: expected a free name, found old.mp4. Choose another one, or give --overwrite"),
    ("output is an input", [*PROMPT, "--image", "first.png", "--reference", "video:old.mp4", "--output", "old.mp4", "--overwrite"], "--output: old.mp4 is an input of its own film"),
    ("no prompts file", ["--prompts", "none.txt"], "--prompts: none.txt: expected a text file, found no such file"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "message"), [case[1:] for case in REFUSALS], ids=[case[0] for case in REFUSALS])
def test_refused_with_code_2_and_nothing_left(folder: Path, options: list[str], message: str) -> None:
    before = files(folder)
    done = splitreel(folder, "generate", "--json", *options)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert message in json.loads(done.stdout)["error"]["message"]
    assert files(folder) == before
    assert (folder / "old.mp4").read_bytes() == b"an older film"


@pytest.mark.parametrize(
    ("command", "kind", "message"),
    [
        (
            ["doctor", "--config", "notes.txt"],
            "ConfigError",
            "notes.txt: expected a mapping with model, cluster, roles",
        ),
        (["doctor", "--set", "model.path=3"], "ConfigError", "--set model.path=3: expected a text, found 3."),
        (["plan", "--node", "a"], "ConfigError", "--node: expected NAME=GB"),
        (["generate", "--no-such-option"], "UsageError", "o such option: --no-such-option"),
    ],
)
def test_whoever_reads_json_gets_the_refusal_as_json(folder: Path, command: list[str], kind: str, message: str) -> None:
    done = splitreel(folder, *command, "--json")
    assert done.returncode == 2
    error = json.loads(done.stdout)["error"]
    assert error["type"] == kind
    assert message in error["message"]
    assert done.stderr == f"error: {error['message']}\n"


def test_without_a_config_it_shows_one_that_works(tmp_path: Path) -> None:
    done = splitreel(tmp_path, "generate", *PROMPT)
    assert done.returncode == 2
    assert "no splitreel.yaml in this directory" in done.stderr
    assert "model: {path: tiny}" in done.stderr
    assert files(tmp_path) == set()


def test_prompts_files_name_every_bad_line(folder: Path) -> None:
    (folder / "prompts.txt").write_text("# nothing\n\n")
    assert "expected a prompt per line" in splitreel(folder, "generate", "--prompts", "prompts.txt").stderr
    (folder / "prompts.jsonl").write_text(
        "# a comment\n"
        '{"prompt": "fine"}\n'
        '{"prompt": "no json"\n'
        '{"prompt": "steps", "steps": 1}\n'
        '{"prompt": "unknown", "guidance": 3}\n'
        '{"steps": 5}\n'
    )
    before = files(folder)
    done = splitreel(folder, "generate", "--prompts", "prompts.jsonl", "-vv")
    assert done.returncode == 2
    for line, words in {
        3: "expected a JSON object",
        4: "steps: expected 2",
        5: "guidance: not a field",
        6: "prompt: expected",
    }.items():
        assert f"prompts.jsonl line {line}: {words}" in done.stderr
    assert "prompts.jsonl line 2" not in done.stderr
    assert "Traceback" in done.stderr  # asked for with -vv
    assert files(folder) == before


# Refusals by the model's rules: the geometry is read, nothing is started --------------------------------------------------


def test_the_models_rules_refuse_before_a_cluster_is_started(folder: Path) -> None:
    lines: list[tuple[dict[str, object], str]] = [
        ({"num_frames": 100}, "num_frames: expected 124 to 345 frames"),
        ({"seconds": 15}, "seconds: expected 124 to 345 frames"),
        ({"height": 50, "width": 64}, "height, width: expected multiples of 32"),
        ({"references": ["image:first.png"]}, "workflow: this deployment serves t2va and fl2va"),
        ({"image": "first.png", "references": ["image:first.png"]}, "references, image: expected keyframes"),
    ]
    (folder / "prompts.jsonl").write_text("".join(f"{json.dumps({'prompt': 'p', **fields})}\n" for fields, _ in lines))
    before = files(folder)
    done = splitreel(folder, "generate", "--prompts", "prompts.jsonl", "--set", "cluster.address=embedded", "--json")
    assert done.returncode == 2
    for number, (_, message) in enumerate(lines, start=1):
        assert f"prompts.jsonl line {number}: {message}" in done.stderr
    assert "Ray" not in done.stderr
    assert list(json.loads(done.stdout)) == ["error"]
    assert files(folder) == before


def test_a_hub_model_is_not_loaded_for_a_workflow_it_is_not_asked_to_serve(folder: Path) -> None:
    """The geometry of a hub id is not known here, but its deployment's workflows are."""
    hub = ["--set", "model.path=someone/some-model", "--set", "model.workflow=t2va"]
    done = splitreel(folder, "generate", *PROMPT, "--image", "first.png", *hub)
    assert done.returncode == 2
    assert "error: workflow: this deployment serves t2va" in done.stderr
    assert "checking the model's files" not in done.stderr


def test_a_model_that_is_nowhere_is_named_before_ray_starts(folder: Path) -> None:
    text = CONFIG.replace("path: tiny", "path: /nonexistent").replace("address: local", "address: embedded")
    (folder / "splitreel.yaml").write_text(text)
    done = splitreel(folder, "generate", *PROMPT)
    assert done.returncode == 3
    assert "expected a directory, a hub id (owner/name) or tiny, found '/nonexistent'" in done.stderr
    assert "Ray node" not in done.stderr


def test_a_broken_checkpoint_is_code_3(folder: Path) -> None:
    (folder / "model").mkdir()
    done = splitreel(folder, "generate", *PROMPT, "--set", "model.path=model")
    assert done.returncode == 3
    assert "error: model.path: expected modular_model_index.json in model, found none" in done.stderr
    assert not (folder / "outputs").exists()


# Films ----------------------------------------------------------------------------------------------------------------


def test_one_film_of_a_checkpoint_made_before(folder: Path) -> None:
    made = splitreel(folder, "make-tiny", "models/other", "--geometry", "other")
    assert (made.returncode, made.stdout) == (0, "models/other\n"), made.stderr
    done = splitreel(
        folder, "generate", *PROMPT, "--set", "model.path=models/other", "--image", "first.png", "--seconds", "5.1",
        "--steps", "3", "--output", "new/folder/lake.mp4",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    facts = film_facts(folder / "new/folder/lake.mp4")
    assert (facts.fps, facts.sample_rate, facts.channels) == (24.0, 24000, 2)
    assert files(folder / "new") == {"folder", "folder/lake.mp4"}
    assert splitreel(folder, "make-tiny", "notes.txt/tiny").returncode == 2
    first, *rest = done.stdout.splitlines()
    assert first.startswith("new/folder/lake.mp4  ")
    assert rest[0].startswith(f"  {facts.frames} frames at 24 fps = {facts.video_seconds:.3f} s, {facts.width} wide")
    assert "fl2va, 3 sigma points, 2 transformer calls, seed " in rest[1]
    for stage in ("encode", "denoise", "decode"):
        assert any(line.startswith(f"    {stage} ") for line in rest)
    assert "note: seconds 5.1 was rounded up" in done.stdout
    for words in ("importing torch", "checking the model's files", "dit on ", "(1 of ", "lake.mp4: denoise, step"):
        assert words in done.stderr
    for noise in ("torchao", "register_constant", "Warning"):
        assert noise not in made.stderr + done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    assert "\r" not in done.stdout + done.stderr


def test_a_batch_as_json_goes_on_after_a_failure(folder: Path) -> None:
    """The second film cannot be written: its name became a directory meanwhile. A full queue is waited for."""
    (folder / "prompts.jsonl").write_text(
        '{"prompt": "one"}\n{"prompt": "two"}\n\n{"prompt": "three", "steps": 2, "seed": 5, "seconds": 5.5}\n'
    )
    with started(
        folder, "generate", "--prompts", "prompts.jsonl", "--json", "--steps", "3", "--seed", "40", "--num-frames", "124",
        "--set", "engine.max_waiting=0", "--output", "out/lake.mp4", until="checking the model's files",
    ) as process:  # fmt: skip
        (folder / "out/lake-0002.mp4").mkdir(parents=True)
        stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 1, stderr
    one, two, three = [json.loads(line) for line in stdout.splitlines()]
    assert one["file"] == "out/lake-0001.mp4"
    assert (one["seed"], one["steps"], one["transformer_calls"], one["num_frames"]) == (40, 3, 2, 124)
    assert one["bytes"] == (folder / one["file"]).stat().st_size
    assert [stage["stage"] for stage in one["stages"]] == ["encode", "denoise", "decode"]
    assert (two["prompt"], two["seed"]) == ("two", 41)
    assert "could not be written" in two["error"]["message"]
    assert "error: prompts.jsonl line 2: out/lake-0002.mp4: the film was made and could not be written" in stderr
    assert (three["seed"], three["steps"], three["num_frames"]) == (5, 2, 141)
    assert film_facts(folder / three["file"]).frames == 141
    assert files(folder / "out") == {"lake-0001.mp4", "lake-0002.mp4", "lake-0003.mp4"}


def test_a_film_on_two_ray_nodes_replaces_an_older_one(folder: Path) -> None:
    done = splitreel(
        folder, "generate", *PROMPT, "--set", "cluster.address=embedded", "--steps", "2", "--seed", "7",
        "--output", "old.mp4", "--overwrite",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert film_facts(folder / "old.mp4").frames == 124
    assert "starting 2 Ray nodes on this machine" in done.stderr
    assert "dit on 127.0.0.3" in done.stdout


# Interrupts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("until", "number", "code", "word"),
    [
        ("importing torch", signal.SIGTERM, 143, "terminated"),
        ("loaded", signal.SIGINT, 130, "interrupted"),
        ("denoise, step", signal.SIGINT, 130, "interrupted"),
    ],
    ids=["TERM before opening", "INT while loading", "INT while denoising"],
)
def test_a_signal_ends_it_in_order(folder: Path, until: str, number: int, code: int, word: str) -> None:
    before = files(folder)
    options = ["--steps", "1000", "--output", "out/long.mp4"]
    with started(folder, "generate", *PROMPT, *options, until=until) as process:
        began = time.monotonic()
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=20)
    assert process.returncode == code
    assert time.monotonic() - began < 10
    assert stderr.splitlines()[-1] == f"{word}: the film was cancelled."
    assert "Traceback" not in stderr
    assert stdout == ""
    assert files(folder) == before
