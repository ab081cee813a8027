"""What a person sees: the report as a file, and the runs in a real MLflow server, in headless Chromium."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from draftproof.cli import main
from tests.builders.results import Truth, write_results

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        not (CHROMIUM and DRIVER), reason="no Chromium with ChromeDriver: make browser"
    ),
]
WAIT_S = 90
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--window-size=1500,1400"),
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    options = Options()
    options.binary_location = str(CHROMIUM)
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A diagnosed and reported experiment, told to MLflow."""
    folder = tmp_path_factory.mktemp("browser") / "demo"
    write_results(folder, Truth(requests=8, concurrency=(1,), hostile="<script>alert(1)</script>"))
    for command in (["diagnose"], ["report"], ["track", *tracking(folder)]):
        assert main([command[0], "--results", str(folder), *command[1:]]) == 0
    return folder


def tracking(folder: Path) -> list[str]:
    return ["--uri", f"sqlite:///{folder.parent}/mlflow.db", "--experiment", "draftproof"]


@pytest.fixture(scope="module")
def mlflow_url(results: Path) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        [
            *(sys.executable, "-m", "mlflow", "server", "--workers", "1", "--host", "127.0.0.1"),
            *("--port", str(port), "--backend-store-uri", f"sqlite:///{results.parent}/mlflow.db"),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + WAIT_S
        while not answers(url):
            assert server.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.5)
        yield url
    finally:
        server.terminate()
        server.wait()


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=2).status_code == 200
    except httpx.TransportError:
        return False


def text_with(browser: webdriver.Chrome, *parts: str) -> str:
    """Wait until the page shows all parts; return its text."""

    def shown(driver: webdriver.Chrome) -> str:
        text = driver.find_element(By.TAG_NAME, "body").text
        return text if all(part in text for part in parts) else ""

    return str(
        WebDriverWait(browser, WAIT_S, ignored_exceptions=[Exception]).until(
            shown, f"the page never showed all of {parts}"
        )
    )


def test_the_report_is_one_file_that_says_the_verdict_first(
    browser: webdriver.Chrome, results: Path
) -> None:
    verdict = json.loads((results / "diagnosis.json").read_text())["verdict"]
    browser.get_log("performance")
    browser.get((results / "report/report.html").as_uri())
    assert browser.find_element(By.CSS_SELECTOR, "h1 + .verdict").text == verdict
    drawn = browser.find_elements(By.CSS_SELECTOR, "figure svg")
    assert len(drawn) >= 2
    assert all(each.size["height"] > 100 for each in drawn)
    # Nothing wider than the window, nothing executed, nothing fetched.
    width = browser.execute_script("return document.documentElement.scrollWidth")  # type: ignore[no-untyped-call]
    assert width <= 1500
    assert not browser.find_elements(By.TAG_NAME, "script")
    assert browser.get_log("browser") == []
    assert requested(browser.get_log("performance")) == {(results / "report/report.html").as_uri()}


def requested(log: list[dict[str, Any]]) -> set[str]:
    """Return the addresses that the page asked for, data in the page itself aside."""
    events = [json.loads(entry["message"])["message"] for entry in log]
    urls = [
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    ]
    return {url for url in urls if not url.startswith("data:")}


def test_mlflow_shows_the_parent_its_children_metrics_and_the_report(
    browser: webdriver.Chrome, results: Path, mlflow_url: str
) -> None:
    track = json.loads((results / "track.json").read_text())
    diagnosis = json.loads((results / "diagnosis.json").read_text())
    page = f"{mlflow_url}/#/experiments/{track['experiment_id']}"
    browser.get(f"{page}?workflowType=machine_learning")
    text_with(browser, "demo", f"{len(track['runs']) + 1} matching runs")

    browser.get(f"{page}/runs/{track['parent']['run_id']}")
    text = text_with(browser, "accept_length/served", "Child runs", "8-report", "Finished")
    assert diagnosis["verdict"] in text
    served = diagnosis["acceptance"]["served"]["accept_length"]
    assert f"{served:.4f}"[:5] in text

    browser.get(f"{page}/runs/{track['parent']['run_id']}/artifacts")
    text_with(browser, "report.html", "diagnosis.md")

    browser.get(f"{page}/runs/{track['runs']['6-benchmark/spec-c1']['run_id']}")
    text_with(browser, "6-benchmark/spec-c1", "accept_length", "tokens_per_s")
