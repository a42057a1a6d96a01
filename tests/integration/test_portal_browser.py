"""The portal as people see it: in a real browser, with a real build, a real job and a real pip."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select, WebDriverWait
from tests.integration.test_fits_libraries import extension, library
from tests.integration.test_fits_libraries import wheel as compiled
from tests.slurm_cluster import Cluster
from tests.tiny_packages import wheel
from tests.unit.test_portal_rooms import farm

from torchsmith.ship.publish import Places, publish

pytestmark = [
    pytest.mark.integration,
    # One browser and one portal for all of them.
    pytest.mark.xdist_group("portal"),
]

ROOT = Path(__file__).resolve().parents[2]
# Set to a folder, the screenshots of the documentation are written there.
PICTURES = os.environ.get("TORCHSMITH_PORTAL_PICTURES", "")
# A limit, not a length: machines that run tests are busy.
PATIENCE = 600
# What jumps about without the reader having done anything: 0.1 is where people begin to mind.
MOST_SHIFT = 0.1
LAUNCH = "/job/launch?file=job.toml"
SHIFTS = """
window.shifts = 0;
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.shifts += entry.value;
}).observe({ type: "layout-shift", buffered: true });
"""
JOB = """
name = "count"
[[role]]
name = "main"
command = "for n in 1 2 3 4 5; do echo step-$n; sleep 0.5; done; echo counted"
"""


class Portal:
    """A running portal and what it printed."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.folder = folder
        command = [sys.executable, "-m", "torchsmith", "portal", "--port", "0", *words]
        self.process = subprocess.Popen(
            [*command, "--store", str(folder / "store"), "--recipes", str(folder)],
            stdout=subprocess.PIPE,
            stderr=(folder / "portal.log").open("w"),
            text=True,
        )
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().removeprefix("portal at ").strip()
        assert self.address, (folder / "portal.log").read_text()

    @property
    def log(self) -> str:
        return (self.folder / "portal.log").read_text()

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(20)


class Browser:
    """Chromium, and how a person uses it."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def find(self, css: str) -> WebElement:
        return self.wait(lambda: self.driver.find_element(By.CSS_SELECTOR, css))

    def wait(self, true: Callable[[], WebElement]) -> WebElement:
        def tried(_: object) -> WebElement | None:
            try:
                return true()
            except Exception:
                return None

        found = WebDriverWait(self.driver, PATIENCE).until(tried)
        assert found is not None
        return found

    def reads(self, *words: str) -> None:
        """Wait until the page says all of these."""

        def said(_: object) -> bool:
            text = str(self.driver.execute_script("return document.body.innerText"))
            return all(word in text for word in words)

        try:
            WebDriverWait(self.driver, PATIENCE).until(said)
        except Exception:
            text = self.driver.find_element(By.TAG_NAME, "body").text
            raise AssertionError(f"{words} is not in:\n{text[:3000]}") from None

    def type(self, css: str, text: str) -> None:
        field = self.find(css)
        field.clear()
        field.send_keys(text)

    def click(self, how: str, where: str) -> None:
        """Click an element. A page that refreshes itself may replace it in between."""

        def clicked() -> WebElement:
            element = self.driver.find_element(how, where)
            element.click()
            return element

        self.wait(clicked)

    def press(self, words: str) -> None:
        self.click(By.XPATH, f"//button[normalize-space()='{words}']")

    def picture(self, name: str) -> None:
        """The page at two widths, light and dark; nothing jumped, or is wider than the screen."""
        assert self.driver.execute_script("return window.shifts") < MOST_SHIFT, name
        for width, height in ((1280, 900), (390, 844)):
            self.driver.execute_cdp_cmd(
                "Emulation.setDeviceMetricsOverride",
                {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500},
            )
            for scheme in ("light", "dark"):
                self.driver.execute_cdp_cmd(
                    "Emulation.setEmulatedMedia",
                    {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
                )
                wide = self.driver.execute_script("return document.documentElement.scrollWidth")
                assert wide <= width, f"{name} is {wide} wide on a screen of {width}"
                if PICTURES:
                    target = Path(PICTURES) / f"portal-{name}-{width}-{scheme}.png"
                    self.driver.save_screenshot(str(target))
        self.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    options = webdriver.ChromeOptions()
    binary = shutil.which("chromium")
    assert binary is not None, "tools/install_test_tools.sh installs it"
    options.binary_location = binary
    for word in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(word)
    options.add_argument("--window-size=1280,900")
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('chromium')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, Service(shutil.which("chromedriver")))
    driver.set_page_load_timeout(PATIENCE)
    driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": SHIFTS})
    yield Browser(driver)
    driver.quit()


@pytest.fixture(scope="module")
def portal(slurm: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Portal]:
    folder = tmp_path_factory.mktemp("forge")
    made = folder / "made"
    torch = folder / "env/lib/python3/site-packages/torch"
    library(torch / "lib/libc10.so", "int _ZN3c104kindEv(void) { return 1; }")
    made.mkdir()
    built = compiled(made, extension(folder, folder / "env", "+ _ZN2at4goneEv()"))
    wheels = [wheel(made, "torch", f"2.6.0+cu126.sm{arch}") for arch in ("70", "86")]
    publish([*wheels, built, wheel(made, "tiny-lib", "1.0")], Places(folder / "index"))
    (folder / "job.toml").write_text(JOB)
    found = Portal(folder, "--index", str(folder / "index"), "--allow-actions")
    yield found
    found.close()


@pytest.fixture(scope="module")
def inside(browser: Browser, portal: Portal) -> Browser:
    """The browser, logged in with the token of the file."""
    token = (portal.folder / "store/portal.token").read_text().strip()
    browser.driver.get(f"{portal.address}/builds")
    assert browser.driver.current_url.endswith("/login")
    browser.type("#token", "not-the-token-at-all")
    browser.press("Log in")
    browser.reads("This is not the token")
    browser.type("#token", token)
    browser.press("Log in")
    browser.reads("Packages", "Doctor")
    assert token not in browser.driver.current_url
    assert token not in browser.driver.page_source
    # No script reads it, no log has it.
    assert browser.driver.execute_script("return document.cookie") == ""
    assert token not in portal.log
    return browser


def small_build(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    programs = Path(sys.executable).parent
    return subprocess.Popen(
        [sys.executable, ROOT / "tests/small_build.py", folder, *words],
        env={**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"},
        stderr=(folder / "build.err").open("a"),
    )


def errors(browser: Browser) -> list[str]:
    """What the console complains of, but for answers that are refusals on purpose."""
    found = [str(line["message"]) for line in browser.driver.get_log("browser")]  # type: ignore[no-untyped-call]
    return [line for line in found if "favicon" not in line and "status of" not in line]


def test_a_build_is_watched_from_start_to_end(inside: Browser, portal: Portal) -> None:
    build = small_build(portal.folder)
    inside.driver.get(f"{portal.address}/builds")
    inside.wait(lambda: inside.driver.find_element(By.PARTIAL_LINK_TEXT, "20")).click()
    inside.reads("Compile small", "running", "Expected", "15 s", "Actual")
    inside.reads("limit", "cores")
    # Nothing is loaded again: the page is told.
    inside.driver.execute_script("window.mine = 1")
    compiling = inside.driver.find_elements(By.CSS_SELECTOR, ".flight li")
    if compiling:
        inside.picture("building")
    inside.reads("Pack small", "done")
    assert build.wait(PATIENCE) == 0, (portal.folder / "build.err").read_text()
    inside.wait(lambda: inside.driver.find_element(By.CSS_SELECTOR, "[data-over=yes]"))
    assert inside.driver.execute_script("return window.mine") == 1
    marks = inside.driver.find_elements(By.CSS_SELECTOR, "#part-steps .mark")
    assert {mark.text for mark in marks} == {"done"}
    inside.picture("build")
    # What a reader has selected stays until it is copied.
    inside.driver.execute_script(
        "getSelection().selectAllChildren(document.getElementById('part-state'));"
        "put(document.getElementById('part-state'), '<p>a newer state</p>')"
    )
    assert "newer state" not in inside.find("#part-state").text
    inside.driver.execute_script("getSelection().removeAllRanges()")
    inside.reads("a newer state")
    inside.driver.find_element(By.LINK_TEXT, "Timeline and critical path").click()
    inside.reads("Slowest", ".cpp")
    assert errors(inside) == []


def test_a_failing_build_names_its_cause_and_cure(inside: Browser, portal: Portal) -> None:
    build = small_build(portal.folder, "fails")
    assert build.wait(PATIENCE) != 0
    inside.driver.get(f"{portal.address}/builds")
    inside.reads("small-fails", "failed")
    inside.picture("builds")
    inside.wait(
        lambda: inside.driver.find_element(By.CSS_SELECTOR, "tbody tr:first-child .code a")
    ).click()
    inside.reads("no_such_header.h", "Cure:")
    inside.picture("failed")
    inside.driver.get(f"{inside.driver.current_url.partition('#')[0]}&step=notes")
    inside.reads("<script>alert(1)</script> True")
    assert errors(inside) == []


def test_a_package_is_found_and_installed_with_the_line_shown(
    inside: Browser, portal: Portal, tmp_path: Path
) -> None:
    inside.driver.get(f"{portal.address}/packages")
    inside.type("#words", "RTX 3090, torch 2.6")
    inside.press("Find")
    inside.reads("torch 2.6.0+cu126.sm86")
    assert "sm70" not in inside.driver.find_element(By.TAG_NAME, "main").text
    inside.picture("packages")
    line = inside.find("code[data-client=pip]").text
    inside.driver.find_element(By.LINK_TEXT, "torch 2.6.0+cu126.sm86").click()
    inside.reads("sha256", "Signature", "unsigned")
    # The token goes where installers look for passwords, not into the address.
    token = (portal.folder / "store/portal.token").read_text().strip()
    netrc = tmp_path / "netrc"
    netrc.write_text(f"machine 127.0.0.1 login any password {token}\n")
    netrc.chmod(0o600)
    words = shlex.split(line)
    assert words[:2] == ["pip", "install"]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            *words,
            "--no-deps",
            "--no-cache-dir",
            "--target",
            tmp_path / "site",
        ],
        env={**os.environ, "NETRC": str(netrc)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site/torch-2.6.0+cu126.sm86.dist-info").is_dir()


def test_a_compiled_package_says_which_torch_it_fits(inside: Browser, portal: Portal) -> None:
    inside.driver.get(f"{portal.address}/packages?name=demo")
    assert inside.find("code[data-client=docker]").text.startswith("printf 'FROM ")
    inside.driver.find_element(By.LINK_TEXT, "demo 1.0").click()
    inside.reads("Fits", "demo/_C.so needs at::gone()")
    inside.picture("package")
    assert errors(inside) == []


def test_a_recipe_is_refused_and_mended_in_the_form(inside: Browser, portal: Portal) -> None:
    inside.driver.get(f"{portal.address}/recipes")
    inside.reads("This can be built")
    inside.type("#field-cuda", "9.0")
    inside.type("#field-gpus", "RTX 3090")
    inside.reads("cannot exist", "Nearest that works")
    assert "cannot exist" in (inside.find("#verdict").get_attribute("textContent") or "")
    inside.picture("refused")
    inside.press("Take the nearest")
    inside.reads("This can be built", "GPU")
    inside.picture("recipe")
    toml = inside.find("[data-toml]").text
    assert 'gpus = ["RTX 3090"]' in toml
    assert "9.0" not in toml
    inside.type("#field-toml", "torch = 1")
    inside.reads("This is not a recipe yet")
    assert errors(inside) == []


def test_a_dropped_recipe_file_is_checked(inside: Browser, portal: Portal, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('torch = "2.6.0"\npython = "3.12"\ncuda = "none"\n')
    inside.driver.get(f"{portal.address}/recipes")
    place = inside.find("#field-torch").rect
    where = {"x": place["x"] + 5, "y": place["y"] + 5}
    data = {"items": [], "files": [str(file)], "dragOperationsMask": 1}
    for kind in ("dragEnter", "dragOver", "drop"):
        inside.driver.execute_cdp_cmd(
            "Input.dispatchDragEvent", {"type": kind, **where, "data": data}
        )
    inside.reads("Python 3.12", "This can be built")
    assert "3.12" in (inside.find("#field-toml").get_attribute("value") or "")
    # The same without a mouse.
    file.write_text('torch = "2.6.0"\npython = "2.7"\n')
    inside.find("#file").send_keys(str(file))
    inside.reads("2.7", "cannot exist")
    assert errors(inside) == []


def test_a_stopped_build_goes_on_from_the_page(inside: Browser, portal: Portal) -> None:
    build = small_build(portal.folder, "new")
    inside.driver.get(f"{portal.address}/builds")
    inside.reads("small-b")
    inside.click(By.CSS_SELECTOR, "tbody tr:first-child .code a")
    inside.reads("Compile small", "running")
    inside.reads("waits for", "of memory", "limit 1.5 GiB")
    inside.picture("waiting")
    first = inside.driver.current_url
    inside.press("Stop this build")
    inside.driver.switch_to.alert.accept()
    inside.reads("interrupted", "Resume this build")
    build.wait(PATIENCE)
    inside.picture("stopped")
    inside.press("Resume this build")
    WebDriverWait(inside.driver, PATIENCE).until(lambda d: d.current_url != first)
    inside.reads("Compile small", "Pack small")
    inside.wait(lambda: inside.driver.find_element(By.CSS_SELECTOR, "#part-state .mark.done"))
    marks = [mark.text for mark in inside.driver.find_elements(By.CSS_SELECTOR, "td .mark")]
    assert marks[:2] == ["cached", "cached"]
    assert marks[2:] == ["done", "done"]
    assert errors(inside) == []


def test_a_job_is_launched_and_followed(inside: Browser, portal: Portal) -> None:
    inside.driver.get(f"{portal.address}/jobs")
    inside.driver.find_element(By.LINK_TEXT, "job.toml").click()
    inside.reads("step-$n")
    inside.press("Launch")
    inside.reads("count", "What it said")
    inside.reads("counted", "succeeded")
    inside.picture("job")
    assert errors(inside) == []


def test_a_slurm_job_is_launched_and_followed(
    inside: Browser, portal: Portal, slurm: Cluster
) -> None:
    inside.driver.get(f"{portal.address}/jobs")
    inside.driver.find_element(By.LINK_TEXT, "job.toml").click()
    Select(inside.find("#to")).select_by_visible_text("slurm")
    inside.type("#changes", "role.main.tasks=none")
    inside.press("Check")
    inside.reads("This cannot be launched", "tasks")
    inside.type("#changes", "role.main.tasks=2")
    inside.press("Check")
    inside.reads("#SBATCH --ntasks=2")
    inside.press("Launch")
    # Followed while it runs: nothing is loaded again.
    inside.reads("slurm", "What it said", "step-1")
    inside.driver.execute_script("window.mine = 1")
    inside.reads("main-0 | counted", "main-1 | counted")
    inside.find("#job dl .mark.succeeded")
    assert inside.driver.execute_script("return window.mine") == 1
    inside.picture("slurm")
    states = slurm.ask("squeue", "--states=all", "--noheader", "--format=%T").split()
    assert states == ["COMPLETED"]
    assert errors(inside) == []


def test_the_doctor_sees_the_nodes(inside: Browser, portal: Portal) -> None:
    inside.driver.get(f"{portal.address}/doctor")
    inside.reads("n1", "n2", "idle", "gpu:2")
    inside.press("Look at the nodes")
    inside.click(By.CSS_SELECTOR, "#node-1 summary")
    inside.reads("compiler", "seen")
    inside.wait(lambda: _both_seen(inside))
    inside.find("#nodes").location_once_scrolled_into_view  # noqa: B018
    inside.picture("nodes")
    assert errors(inside) == []


def _both_seen(inside: Browser) -> WebElement:
    first, second = inside.driver.find_elements(By.CSS_SELECTOR, ".node summary .mark")
    assert {first.text, second.text} <= {"ok", "info", "warn"}
    return first


def test_a_farm_shows_its_variants_and_their_failures(inside: Browser, portal: Portal) -> None:
    farm(portal.folder)
    inside.driver.get(f"{portal.address}/matrix")
    inside.reads("py314", "node2", "2 of 7: py312, py313", "Cure:", "Shared")
    inside.picture("matrix")
    assert errors(inside) == []


def test_pages_can_be_used_with_the_keyboard_and_have_names(
    inside: Browser, portal: Portal
) -> None:
    levels = "return [...document.querySelectorAll('h1, h2, h3')].map(e => Number(e.tagName[1]))"
    for path in ("/", "/builds", "/matrix", "/packages", "/recipes", "/jobs", LAUNCH, "/doctor"):
        inside.driver.get(portal.address + path)
        nameless = inside.driver.execute_script(
            "return [...document.querySelectorAll('a, button, input, select, textarea')]"
            ".filter(e => e.type !== 'hidden' && !e.labels?.length && !e.getAttribute('aria-label')"
            " && !e.textContent.trim()).map(e => e.outerHTML)"
        )
        assert nameless == [], path
        inside.driver.execute_script("document.activeElement.blur()")
        assert inside.find("html").get_attribute("lang") == "en"
        # Who jumps from heading to heading misses none between.
        headings = inside.driver.execute_script(levels)
        assert headings.count(1) == 1
        assert all(after <= before + 1 for before, after in pairwise(headings)), path
    inside.driver.get(portal.address)
    inside.picture("start")
    inside.driver.get(f"{portal.address}/doctor")
    inside.reads("platform")
    inside.picture("doctor")


def test_a_page_of_another_site_can_do_nothing(
    inside: Browser, portal: Portal, tmp_path: Path
) -> None:
    """The reader's own browser, logged in, meets a page that posts to the portal."""
    import http.server
    import threading

    page = (
        f"<form method=post action='{portal.address}/job/launch'>"
        "<input name=file value=job.toml><button>Go</button></form>"
        f"<script>fetch('{portal.address}/builds', {{credentials: 'include'}})"
        ".then(r => r.text()).then(t => document.title = 'read', e => document.title = 'kept')"
        "</script>"
    ).encode()

    class Evil(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, *words: object) -> None:
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Evil) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        inside.driver.get(f"{portal.address}/jobs")
        before = len(inside.driver.find_elements(By.CSS_SELECTOR, "tbody tr"))
        # Another site by its name, though the same machine.
        inside.driver.get(f"http://localhost:{server.server_address[1]}/")
        inside.wait(lambda: inside.driver.find_element(By.TAG_NAME, "button"))
        WebDriverWait(inside.driver, PATIENCE).until(lambda d: d.title == "kept")
        inside.press("Go")
        inside.reads("may not")
        server.shutdown()
    inside.driver.get(f"{portal.address}/jobs")
    time.sleep(1)
    assert len(inside.driver.find_elements(By.CSS_SELECTOR, "tbody tr")) == before
    errors(inside)
