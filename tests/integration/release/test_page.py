"""The report page, in a real browser: the numbers it shows, and that it fits phone and desktop, light and dark."""

import html
import html.parser
import json
import re
import shutil
import subprocess

import pytest

FLAGS = """--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
--disable-component-update --disable-sync --virtual-time-budget=3000"""

# The page lies in a frame as wide as a screen; the script outside reads off what the browser made of it.
WRAPPER = """<!doctype html><iframe id=frame width={width} height=900 srcdoc="{page}"></iframe><pre id=out></pre>
<script>
document.getElementById("frame").onload = function () {{
  const view = this.contentDocument, root = view.documentElement;
  const text = (query) => [...view.querySelectorAll(query)].map((each) => each.textContent);
  const sticking = [...view.querySelectorAll("body *")].filter((each) =>
    !each.closest(".wide") && each.getBoundingClientRect().right > root.clientWidth + 1);
  document.getElementById("out").textContent = JSON.stringify({{
    width: root.clientWidth, scroll: root.scrollWidth, sticking: sticking.map((each) => each.outerHTML.slice(0, 80)),
    numbers: Object.fromEntries([...view.querySelectorAll(".numbers li")].map((each) =>
      [each.querySelector("span").textContent, each.querySelector("b").textContent])),
    headings: text("h2"), nodes: text(".graph text"), findings: text("#verification td code"),
    bars: text("#sizes .bars > span"), background: this.contentWindow.getComputedStyle(view.body).backgroundColor,
    heights: [...view.querySelectorAll("rect.value")].map((each) => each.getBoundingClientRect().width),
  }});
}};
</script>"""


@pytest.fixture(scope="session")
def browser():
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("no Chromium is installed: the page was not opened")
    return found


def _open(browser, page, tmp_path, *, width, dark):
    wrapper = tmp_path / "wrapper.html"
    wrapper.write_text(WRAPPER.format(width=width, page=html.escape(page)))
    done = subprocess.run(
        [
            browser,
            *FLAGS.split(),
            f"--user-data-dir={tmp_path / 'profile'}",
            f"--blink-settings=preferredColorScheme={0 if dark else 1}",
            "--window-size=1500,1000",
            "--dump-dom",
            wrapper.as_uri(),
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    found = re.search(r'<pre id="out">(.+?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stderr[-2000:]
    return json.loads(html.unescape(found[1]))


@pytest.mark.parametrize(("width", "dark"), [(360, False), (360, True), (1280, False), (1280, True)])
def test_the_page_in_a_browser(browser, release, tmp_path, width, dark):
    seen = _open(browser, (release / "report-cpu.html").read_text(), tmp_path, width=width, dark=dark)
    assert seen["scroll"] <= seen["width"] <= width
    assert seen["sticking"] == []
    red, *_ = map(int, re.findall(r"\d+", seen["background"]))
    assert (red < 60) == dark
    shutil.unpack_archive(release / "llama-small-cpu.tar.gz", tmp_path / "unpacked", filter="data")
    files = [path for path in (tmp_path / "unpacked").rglob("*") if path.is_file() and not path.is_symlink()]
    assert seen["numbers"]["files"] == str(len(files))
    assert seen["numbers"]["verification"] == "passed"
    assert seen["numbers"]["patches"] == "1"
    assert seen["numbers"]["errors, warnings"] == "0, 0"
    unpacked = sum(path.stat().st_size for path in files)
    assert seen["numbers"]["unpacked"] == f"{unpacked / 1000:.0f} kB"
    assert seen["numbers"]["to download"] == f"{(release / 'llama-small-cpu.tar.zst').stat().st_size / 1000:.0f} kB"
    assert {"llama-server", "libggml-cpu.so", "libggml-base.so.0"} <= set(seen["nodes"])
    assert "glibc.floor" in seen["findings"]
    assert seen["bars"][0].startswith("libgomp")
    assert seen["heights"][0] > seen["heights"][1] > 0
    assert seen["headings"][:2] == ["What it is", "Verification"]


class _Loads(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        self.found += [(tag, name) for name, _ in attrs if name in {"src", "href", "srcset", "data", "action"}]
        if tag in {"script", "link", "iframe", "object", "embed", "img", "base"}:
            self.found.append((tag, ""))


def test_the_page_loads_nothing(release):
    page = (release / "report-cpu.html").read_text()
    parser = _Loads()
    parser.feed(page)
    assert parser.found == []
    assert not re.search(r"url\(|@import", page)


def test_nothing_from_outside_becomes_markup(release):
    page = (release / "report-cpu.html").read_text()
    assert "graph: clear the state | with a &lt;fill&gt;" in page
    assert "Needs &lt;GLIBC&gt; &amp; more." in page
    assert "<fill>" not in page
