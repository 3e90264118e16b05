"""The studio in a real browser, on a real server process with the tiny checkpoint and keys."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from diffusers import MiniMaxH3Transformer3DModel
from PIL import Image

from lora_files import make_factors, tensors_of, write
from samples import picture, tone, write_wav
from servers import Server, body, timed_server, until_ended, wait_for
from splitreel.h3.tiny import cached_tiny
from splitreel.serve.http.keys import key_digest

pytest.importorskip("gradio", reason="the studio's package is not installed: pip install 'splitreel[studio]'")

pytestmark = pytest.mark.timeout(180)

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
ARGUMENTS = (
    "--headless --no-sandbox --disable-gpu --disable-background-networking --disable-component-update --disable-sync"
)
ALICE, BOB = "sr-alice", "sr-bob"
SIZE = "64x32"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose page is ready."""
    keys = [{"name": name, "sha256": key_digest(key)} for name, key in (("alice", ALICE), ("bob", BOB))]
    folder = tmp_path_factory.mktemp("studio")
    transformer = MiniMaxH3Transformer3DModel.from_pretrained(str(cached_tiny()), subfolder="transformer")
    turbo = write(folder / "turbo.safetensors", tensors_of(make_factors(transformer, modules=["proj_in"])))
    lora = {"turbo": {"path": str(turbo), "scale": 0.5}}
    limits = {"max_upload_bytes": 200_000, "max_field_bytes": 100_000, "max_pixels": 500_000}
    with timed_server(folder, step_seconds=None, lora=lora, studio=True, keys=keys, **limits) as running:
        running.until_ready()
        wait_for(lambda: httpx.get(running.address, auth=("any", ALICE)).status_code == 200, 60, running.said)
        yield running


def client(server: Server, key: str | None = ALICE) -> httpx.Client:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return httpx.Client(base_url=server.address, headers=headers, timeout=30)


def jobs(server: Server) -> list[dict[str, Any]]:
    """Alice's, newest first."""
    found: list[dict[str, Any]] = httpx.get(f"{server.address}/v1/videos", auth=("any", ALICE)).json()["data"]
    return found


@pytest.fixture
def page(server: Server) -> Iterator[Any]:
    """Alice's page; ends with an error if it asked anything of another host, or said an error itself."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no chromium found: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS.split())
        context = browser.new_context(
            viewport={"width": 1280, "height": 900}, http_credentials={"username": "any", "password": ALICE}
        )
        context.set_default_timeout(30_000)
        opened = context.new_page()
        asked: list[str] = []
        thrown: list[str] = []
        opened.on("request", lambda request: asked.append(request.url))
        opened.on("pageerror", lambda error: thrown.append(str(error)))
        opened.goto(f"{server.address}/")
        opened.get_by_label("Prompt").wait_for()
        yield opened
        browser.close()
    own = (server.address, server.address.replace("http", "ws"), "data:", "blob:")
    assert [url for url in asked if not url.startswith(own)] == []
    assert thrown == []


def order(page: Any, prompt: str, steps: int) -> None:
    """Fill the form and make the film."""
    page.get_by_label("Prompt").fill(prompt)
    page.get_by_label("Size", exact=True).fill(SIZE)
    page.get_by_label("Size", exact=True).press("Enter")
    page.get_by_label("Steps").fill(str(steps))
    page.get_by_role("button", name="Make the film").click()
    page.locator("#sr-film .sr-prompt", has_text=prompt).wait_for()


def test_a_film_is_made_played_cancelled_and_found_again(page: Any, server: Server) -> None:
    page.get_by_role("button", name="Make the film").click()
    alert = page.get_by_role("alert")
    alert.wait_for()
    assert "prompt: expected a text that is not empty" in alert.inner_text()
    prompt = "A lake <b>at dawn</b> ${1+1} {{birds}}"
    order(page, prompt, 150)
    seen: set[str] = set()

    def moved() -> bool:
        seen.update(text for text in page.locator(".sr-stages").all_inner_texts() if "step" in text)
        return len(seen) > 1 or page.locator("video").count() > 0

    wait_for(moved, 40, server.said)
    assert len(seen) > 1, "progress was seen to move"
    assert "of 149" in "".join(seen)
    page.locator("video").wait_for()
    played = page.locator("video").evaluate(_PLAY)
    assert played["duration"] == pytest.approx(124 / 24, abs=0.1)
    assert played["time"] > 0.2
    assert played["sound"] > 0
    assert page.locator(".sr-gantt img").evaluate(
        "image => image.decode().then(() => image.naturalWidth)"
    ) == 2400  # fmt: skip

    order(page, "Another one", 1000)
    page.locator(".sr-stages", has_text="of 999").wait_for()
    page.reload()
    page.locator(".sr-stages", has_text="of 999").wait_for()  # live again
    assert page.locator(".sr-film").count() == 2
    page.locator("#sr-film").get_by_role("button", name="Cancel").click()
    page.locator("#sr-film .sr-badge.cancelled").wait_for()
    page.reload()
    page.locator(".sr-film .sr-badge.cancelled").wait_for()
    assert page.locator(".sr-film .sr-badge.completed").count() == 1
    assert [row.split("\n")[0] for row in page.locator(".sr-film").all_inner_texts()] == ["Another one", prompt]

    # The settings of the first one again, chosen by keyboard.
    page.locator(".sr-film").nth(1).focus()
    page.keyboard.press("Enter")
    page.locator("video").wait_for()
    page.get_by_role("button", name="Use these settings again").press("Enter")
    wait_for(lambda: page.get_by_label("Prompt").input_value() == prompt, 10)
    shown = jobs(server)[1]
    assert page.get_by_label("Seed").input_value() == str(shown["seed"])
    assert page.get_by_label("Steps").input_value() == "150"
    assert page.get_by_label("Size", exact=True).input_value() == SIZE
    assert "transformer" in page.locator("#sr-cluster").inner_text(), "memory of each component"

    # Every width and both schemes: nothing is wider than the window.
    for width in (390, 768, 1280):
        page.set_viewport_size({"width": width, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.emulate_media(color_scheme="dark")
    page.reload()
    page.locator(".sr-card").first.wait_for()
    ground = "element => getComputedStyle(element).backgroundColor.match(/\\d+/g).slice(0, 3).every(part => part < 80)"
    assert page.locator(".sr-card").first.evaluate(ground)


def test_media_and_the_keyboard(page: Any, server: Server, tmp_path: Path) -> None:
    picture(tmp_path / "first.png", 64, 32, seed=1)
    picture(tmp_path / "cat.png", 64, 32, seed=2)
    write_wav(tmp_path / "voice.wav", tone((440.0,), 1.0, 16000))
    page.get_by_role("button", name="References, in order").click()
    page.locator("input[type=file][multiple]").set_input_files([tmp_path / "voice.wav", tmp_path / "cat.png"])
    page.locator("#sr-references li").nth(1).wait_for()
    page.get_by_label("Move picture cat.png up").press("Enter")
    wait_for(lambda: "1. picture cat.png" in page.locator("#sr-references").inner_text(), 10)
    order(page, "She sings", 1000)
    job = jobs(server)[0]
    assert job["workflow"] == "ref2va"
    page.locator("#sr-film").get_by_role("button", name="Cancel").click()
    page.locator("#sr-film .sr-badge.cancelled").wait_for()
    page.reload()
    page.get_by_role("button", name="Use these settings again").click()
    page.locator("#sr-references li").nth(1).wait_for()
    assert page.locator("#sr-references .sr-name").all_inner_texts() == [
        "1. picture reference 1.png",
        "2. sound reference 2",
    ]
    for number in (2, 1):
        page.get_by_label(f"Remove {'sound' if number == 2 else 'picture'} reference {number}").click()
        wait_for(lambda left=number - 1: page.locator("#sr-references li").count() == left, 10)
    page.get_by_role("button", name="First and last frame").click()
    page.locator("#sr-first input[type=file]").set_input_files(tmp_path / "first.png")
    page.locator("#sr-first img").wait_for()
    order(page, "The fog lifts", 1000)
    assert jobs(server)[0]["workflow"] == "fl2va"
    page.locator("#sr-film").get_by_role("button", name="Cancel").click()
    page.locator("#sr-film .sr-badge.cancelled").wait_for()
    # Every control that Tab reaches has a name, and shows that it has the focus.
    page.get_by_label("Prompt").focus()
    page.keyboard.press("Shift+Tab")
    names = []
    for _ in range(12):
        page.keyboard.press("Tab")
        names.append(page.evaluate(_FOCUSED))
    assert all(name and outline == "solid" for name, outline in names), names


def test_adapters_are_the_servers_own_chosen_or_none(page: Any, server: Server) -> None:
    field = page.get_by_label("LoRA", exact=True)

    def choose(name: str) -> None:
        field.click()
        page.get_by_role("option", name=name, exact=True).click()
        page.keyboard.press("Escape")

    def made(prompt: str) -> Any:
        order(page, prompt, 2)
        return jobs(server)[0]["lora"]

    assert made("The server's own") == [{"name": "turbo", "scale": 0.5}]
    choose("none")
    assert made("None at all") == []
    page.reload()
    page.locator(".sr-film", has_text="None at all").first.wait_for()
    page.locator("#sr-film .sr-badge.completed").wait_for()
    page.get_by_role("button", name="Use these settings again").click()
    wait_for(lambda: page.get_by_label("Prompt").input_value() == "None at all", 10)
    assert made("None again") == []
    choose("turbo")
    page.get_by_role("button", name="Make the film").click()
    alert = page.get_by_role("alert")
    alert.wait_for()
    assert "lora: expected none or adapters, found none and turbo" in alert.inner_text()


_PLAY = """video => new Promise((done, fail) => {
  video.muted = true;
  video.addEventListener("timeupdate", () => video.currentTime > 0.2 && done(
    {duration: video.duration, time: video.currentTime, sound: video.webkitAudioDecodedByteCount}));
  video.addEventListener("error", () => fail(new Error(video.error.message)));
  video.play().catch(fail);
})"""
_FOCUSED = """() => {
  const element = document.activeElement;
  const name = element.getAttribute("aria-label") || element.labels?.[0]?.innerText || element.innerText;
  return [name, getComputedStyle(element).outlineStyle];
}"""


# Without a browser -----------------------------------------------------------------------------------------------------------


def call(http: httpx.Client, function: int, data: list[Any]) -> httpx.Response:
    """An event of the page, as a hostile client may send it."""
    return http.post(
        "/gradio_api/run/predict", json={"fn_index": function, "data": data, "session_hash": "x", "event_data": None}
    )


def functions(http: httpx.Client) -> dict[str, tuple[int, int]]:
    """The page's handlers by name: their index, and how many inputs each takes."""
    found = http.get("/config").json()["dependencies"]
    return {item["api_name"]: (item["id"], len(item["inputs"])) for item in found}


def test_nothing_without_a_key_and_nothing_of_another(server: Server) -> None:
    with client(server, None) as nobody:
        for path in ("/", "/config", "/theme.css", "/assets/index.js", "/gradio_api/upload"):
            answer = nobody.get(path)
            assert answer.status_code == 401, path
            assert answer.headers["www-authenticate"].startswith("Basic")
        assert nobody.post("/gradio_api/run/predict", json={}).status_code == 401
        assert nobody.get("/", auth=("any", "sr-wrong")).status_code == 401
    with client(server, ALICE) as alice, client(server, BOB) as bob:
        made = bob.post("/v1/videos", json=body("Bob's own film", size=SIZE)).json()
        name, inputs = functions(alice)["look"]
        assert inputs == 2
        assert "Bob&#x27;s own" in call(bob, name, [made["id"], 10]).text
        assert "Bob" not in call(alice, name, [made["id"], 10]).text
        assert until_ended(bob, made["id"])["status"] == "completed"


def test_the_page_reads_no_file_but_uploads_and_fetches_nothing(server: Server, tmp_path: Path) -> None:
    with client(server) as http:
        assert "default-src 'self'" in http.get("/").headers["content-security-policy"]
        submit, inputs = functions(http)["submit"]
        values: list[Any] = [10, "A lake", None, None, [], SIZE, "", 2, "", 0, [], 1.0]
        assert len(values) == inputs
        before = len(http.get("/v1/videos").json()["data"])
        for path in (
            "/etc/hostname",
            "http://127.0.0.1:9/x.png",
            "http://169.254.169.254/",
            "../jobs.db",
            "a\0b",
            "",
            7,
        ):
            hostile = {"path": path, "url": path, "meta": {"_type": "gradio.FileData"}}
            for place, value in (
                (2, hostile),
                (4, [{**hostile, "kind": "image"}]),
                (1, hostile),
                (5, {"a": [hostile]}),
            ):
                answer = call(http, submit, [*values[:place], value, *values[place + 1 :]])
                assert answer.status_code == 500
                assert "upload: expected a file that is on this server" in answer.text
                assert "hostname" not in answer.text
        for wrong in ([10], [*values[:6], "five", *values[7:]], [*values[:7], "many", *values[8:]]):
            answer = call(http, submit, wrong)
            assert answer.status_code == 500 or "expected a" in answer.text
        assert len(http.get("/v1/videos").json()["data"]) == before
        for path in (
            "/gradio_api/file=/etc/hostname",
            "/gradio_api/file=http://127.0.0.1:9/",
            "/gradio_api/proxy=http://127.0.0.1:9/",
            "/gradio_api/info",
            "/gradio_api/queue/data",
            "/monitoring",
            "/login",
            "/v1/nothing",
            "/nothing",
        ):
            answer = http.get(path)
            assert answer.status_code == 404, path
            assert "expected a path of this API" in answer.json()["error"]["message"]
        assert http.post("/health").status_code == 405
        folder = server.output.parent / "jobs" / "studio-uploads"
        assert http.get(f"/gradio_api/file={folder}/../jobs.db").status_code in (403, 404)


def test_uploads_are_bounded(server: Server, tmp_path: Path) -> None:
    with client(server) as http:
        head = b'--b\r\nContent-Disposition: form-data; name="files"; filename="a.png"\r\n\r\n'
        for sent in ({"content": head + b"x" * 300_000}, {"content": iter([head, *[b"x" * 50_000] * 6])}):
            kind = {"Content-Type": "multipart/form-data; boundary=b"}
            answer = http.post("/gradio_api/upload", headers=kind, **sent)  # type: ignore[arg-type]
            assert answer.status_code == 413
            assert "serve.max_upload_bytes" in answer.json()["error"]["message"]
        assert call(http, 0, ["x" * 200_000]).status_code == 413
        # A picture within the bytes and beyond the pixels: refused by the service, in words.
        Image.new("RGB", (1000, 600)).save(tmp_path / "large.png")
        large = (tmp_path / "large.png").read_bytes()
        path = http.post("/gradio_api/upload", files={"files": ("large.png", large)}).json()[0]
        submit, _ = functions(http)["submit"]
        file = {"path": path, "meta": {"_type": "gradio.FileData"}}
        answer = call(http, submit, [10, "A lake", file, None, [], SIZE, "", 2, "", 0, [], 1.0])
        assert "500000 pixels" in json.dumps(answer.json())
