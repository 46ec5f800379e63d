"""The page against budget.py, in a real browser: every number, every control, both themes, every width."""

import base64
import json
import math
import re
import shutil
import webbrowser
from fractions import Fraction
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import numpy as np
import pytest

from numpy_gpt import PRESETS, Config
from numpy_gpt.budget import ITEMSIZE, TILE, budget, step_ops, tensors
from numpy_gpt.cli import main
from numpy_gpt.explorer import PAGE, page_url
from numpy_gpt.explorer.excerpts import SPANS, excerpt, excerpts, with_excerpts
from numpy_gpt.ops import IGNORE_INDEX

ROOT = Path(__file__).parents[1]
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
FLAGS += ["--disable-quic", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
SIZES = ("V", "T_max", "d", "h", "L", "B", "T")

# The command and the file


def test_tensors_that_get_a_colour_by_name_are_the_budgets():
    names = {
        name
        for found in re.findall(r"\[(.*?)\]\.includes\(tensor\.name\)", PAGE.read_text("utf-8"))
        for name in json.loads(f"[{found}]")
    }
    assert {"scores", "h1"} < names <= {tensor.name for tensor in tensors(Config.preset("char"), 1, 1)}


def test_command_prints_the_address_and_opens_it(capsys, monkeypatch):
    opened = []
    monkeypatch.setattr(webbrowser, "open", lambda url: opened.append(url) or True)
    assert main(["explore"]) == 0
    assert capsys.readouterr().out == PAGE.as_uri() + "\n"
    assert opened == [PAGE.as_uri()]
    assert main(["explore", "--no-open", "--preset", "gpt2-xl"]) == 0
    url = capsys.readouterr().out.strip()
    assert url == page_url("gpt2-xl")
    settings = {name: str(size) for name, size in PRESETS["gpt2-xl"].items()}
    assert dict(parse_qsl(urlsplit(url).fragment)) == {**settings, "T": "1024"}
    assert len(opened) == 1


def test_command_without_a_browser_or_a_preset_of_that_name(capsys, monkeypatch):
    monkeypatch.setattr(webbrowser, "open", lambda url: False)
    assert main(["explore"]) == 0
    assert "No browser" in capsys.readouterr().out
    assert main(["explore", "--preset", "gpt3"]) == 2
    assert "no preset called 'gpt3'" in capsys.readouterr().err


def test_the_page_shows_the_source_as_it_is():
    page = PAGE.read_text(encoding="utf-8")
    assert with_excerpts(page) == page, "run `python -m numpy_gpt.explorer.excerpts`: the ops have changed"
    for op, ways in excerpts().items():
        for shown in ways["forward"] + ways["backward"]:
            lines = (ROOT / shown["file"]).read_text(encoding="utf-8").splitlines()[shown["line"] - 1 :]
            for line, text in zip(lines, shown["text"].splitlines()):
                assert line.strip() == text.strip(), (op, shown["file"], shown["line"])


def test_every_op_of_a_step_has_its_source():
    assert list(SPANS) == [op.name for op in step_ops(Config.preset("tiny"), 1, 2)]


def test_a_line_that_is_gone_is_an_error():
    function, first, last = SPANS["scores"][0][0]
    with pytest.raises(ValueError, match="0 lines that begin with 'no such line'"):
        excerpt(function, "no such line", last)
    with pytest.raises(ValueError, match="no line after"):
        excerpt(function, first, "no such line")


# The browser


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    binary, driver = next(filter(None, map(shutil.which, names)), None), shutil.which("chromedriver")
    if not binary or not driver:
        pytest.skip(f"no Chromium with its driver on the PATH: browser {binary}, chromedriver {driver}")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in [*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    browser.set_script_timeout(120)
    yield browser
    browser.quit()


class Page:
    """The open page, by what a reader does with it."""

    def __init__(self, browser):
        self.browser = browser

    def open(self, fragment=""):
        self.browser.get("about:blank")
        self.browser.get(PAGE.as_uri() + fragment)
        return self

    def run(self, script, *arguments):
        return self.browser.execute_script(script, *arguments)

    def find(self, selector):
        return self.browser.find_element("css selector", selector)

    def all(self, selector):
        return self.browser.find_elements("css selector", selector)

    def text(self, selector):
        return self.find(selector).text

    def type(self, name, text):
        """Type into a box as a reader does, and press Enter."""
        box = self.find(f"#{name}")
        box.send_keys("\ue009a\ue000", text, "\ue007")  # Ctrl-A, the text, Enter

    def press(self, selector, *keys):
        self.find(selector).send_keys(*keys)

    def state(self):
        return self.run("return state")

    def device(self, width, height=800, media=()):
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        features = [{"name": name, "value": value} for name, value in media]
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


@pytest.fixture
def page(chromium):
    """The page, fresh; whatever a test does with it must leave the console empty."""
    page = Page(chromium)
    page.device(1280)
    yield page.open()
    page.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    log = [entry["message"] for entry in page.browser.get_log("browser")]
    assert [message for message in log if not message.startswith("chrome://")] == []  # those are of its own pages


in_browser = pytest.mark.allow_hosts(["127.0.0.1", "::1", "localhost"])  # chromedriver listens there
LEFT, RIGHT, HOME, END, TAB, ENTER, SPACE, ESCAPE = (
    "\ue012", "\ue014", "\ue011", "\ue010", "\ue004", "\ue007", " ", "\ue00c",
)  # fmt: skip

# Numbers


def random_settings(seed, number):
    """Settings of every size, spread evenly over their logarithms, and some at the ends."""
    rng = np.random.default_rng(seed)

    def size(largest):
        return round(float(np.exp(rng.uniform(0, math.log(largest)))))

    extremes = [
        dict(V=1, T_max=1, d=1, h=1, L=1, B=1, T=1),
        dict(V=50257, T_max=10**6, d=1600, h=25, L=48, B=4096, T=10**6),
        dict(V=10**7, T_max=10**7, d=10**7, h=10, L=1000, B=10**7, T=10**7),
        *(dict(V=65, T_max=256, d=64, h=4, L=2, B=1, T=T) for T in (TILE - 1, TILE, TILE + 1, 2 * TILE, 255)),
        *(dict(V=65, T_max=1024, d=64, h=4, L=2, B=1, T=T) for T in (1023, 1024)),  # 4·R·d about BLOCK
    ]
    for count in range(number):
        if count < len(extremes):
            sizes = extremes[count]
        else:
            d, T_max = size(4096), size(131072)
            heads = [h for h in range(1, d + 1) if d % h == 0]
            sizes = dict(V=size(300_000), T_max=T_max, d=d, h=int(rng.choice(heads)), L=size(96), B=size(512))
            sizes["T"] = min(T_max, size(T_max))
        tokens, rate = (None if rng.random() < 0.1 else float(f"{10 ** rng.uniform(0, 13):.4g}") for _ in range(2))
        yield {
            **sizes, "dtype": str(rng.choice(["float32", "float64"])), "tie": bool(rng.random() < 0.7),
            "tokens": tokens, "rate": rate, "share": str(rng.choice(["parameters", "flops"])),
            "op": str(rng.choice(["", *SPANS])),
        }  # fmt: skip


def fragment(settings):
    as_text = {"True": "true", "False": "false", "None": ""}
    return "#" + "&".join(f"{name}={as_text.get(str(value), value)}" for name, value in settings.items())


def expected(settings):
    """What budget.py counts for these settings, with what the page adds to it."""
    config = Config(**{name: settings[name] for name in ("V", "T_max", "d", "h", "L", "tie")})
    B, T, dtype = settings["B"], settings["T"], settings["dtype"]
    counted = budget(config, B, T, dtype, settings["tokens"], settings["rate"])
    N, N_lesson, flops = config.n_parameters(), counted["parameters"]["N_lesson"], counted["flops"]
    shapes = {name: math.prod(shape) for name, shape in config.parameter_shapes().items()}
    block = {name.removeprefix("block.0."): n for name, n in shapes.items() if name.startswith("block.0.")}
    owned = {
        "embedding": shapes["W_te"] + shapes["W_pe"], "ln_1": block["ln_1.gamma"] + block["ln_1.beta"],
        "qkv": block["W_qkv"] + block["b_qkv"], "W_o": block["W_o"] + block["b_o"],
        "ln_2": block["ln_2.gamma"] + block["ln_2.beta"], "W_1": block["W_1"] + block["b_1"],
        "W_2": block["W_2"] + block["b_2"], "ln_f": shapes["ln_f.gamma"] + shapes["ln_f.beta"],
        "head": shapes.get("W_head", 0),
    }  # fmt: skip
    ops = {}
    for op in flops["ops"]:
        parameters, forward, backward = (
            op["times"] * n for n in (owned.get(op["name"], 0), op["forward"], op["backward"])
        )
        ops[op["name"]] = {
            "parameters": parameters, "forward": forward, "backward": backward,
            "parameters_share": parameters / N, "flops_share": (forward + backward) / flops["step"],
        }  # fmt: skip
    assert sum(op["parameters"] for op in ops.values()) == N
    itemsize, attention, hours = ITEMSIZE[dtype], counted["attention"], counted["run"]["hours"]
    counted["page"] = {
        "ops": ops,
        "x_bytes": B * T * config.d * itemsize,
        "scores_bytes": next(t["bytes"] for t in counted["tensors"] if t["name"] == "scores"),
        "block_bytes": sum(block.values()) * itemsize,
        "lesson_2N": 2 * N_lesson, "lesson_4N": 4 * N_lesson, "lesson_6N": 6 * N_lesson,
        "n_ratio": N_lesson / N,
        "pair_share": (attention["forward"] + attention["backward"]) / flops["step"],
        "days": None if hours is None else hours / 24,
    }  # fmt: skip
    return counted


READ = """
  const shown = [...document.querySelectorAll("[data-key]")].map(
    (e) => [e.dataset.key, e.dataset.format ?? "int", e.dataset.value, e.textContent]);
  const rows = [...document.querySelectorAll("ol.tensors li")].map((row) => [
    row.querySelector(".name").textContent, row.querySelector(".formula").textContent,
    row.querySelector(".shape").textContent.split(" = ")[0], row.querySelector(".memory").textContent,
    row.parentElement.id, parseFloat(row.querySelector(".bar").style.width)]);
  const boxes = [...document.querySelectorAll("g.op")].filter((g) => g.style.display !== "none").map((g) => [
    g.dataset.op, Number(g.children[1].getAttribute("height")), g.children[4].textContent]);
  const tree = JSON.stringify(counted, (_, value) => (typeof value === "bigint" ? `${value}` : value));
  const spare = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), loose = [];
  while (spare.nextNode())
    if (!spare.currentNode.parentElement.closest(ELSEWHERE)) loose.push(spare.currentNode.textContent);
  return { shown, rows, boxes, tree, loose: loose.join(" "), state: { ...state } };
"""
# Most settings by the address, every fourth by the page's own controls.
DRIVE = """
  const ELSEWHERE = "[data-key], script, noscript, svg, pre, select, .equation, .source, .message, [role=status]";
  const [all, done] = arguments, read = () => { READ };
  const type = (name, text) => { $(`#${name}`).value = text; $(`#${name}`).dispatchEvent(new Event("change")); };
  const drive = async ([settings, fragment], number) => {
    if (number % 4) {
      const changed = new Promise((then) => addEventListener("hashchange", then, { once: true }));
      location.hash = fragment;
      await changed;
      return read();
    }
    type("T", 1); type("h", 1);
    for (const name of ["T_max", "T", "d", "h", "L", "B", "V"]) type(name, String(settings[name]));
    for (const name of ["tokens", "rate"]) type(name, settings[name] === null ? "" : String(settings[name]));
    for (const name of ["dtype", "share"]) $(`input[name=${name}][value=${settings[name]}]`).click();
    if ($("#tie").checked !== settings.tie) $("#tie").click();
    const op = settings.op || state.op; // the box that opens, or closes
    if (settings.op !== state.op) $(`#op-${op}`).dispatchEvent(new Event("click"));
    return read();
  };
  (async () => {
    const found = [];
    for (const [number, one] of all.entries()) found.push(await drive(one, number));
    done(found);
  })();
""".replace("READ", READ)


@in_browser
def test_every_number_is_the_budgets(page):
    asked = list(random_settings(seed=0, number=200))
    found = page.browser.execute_async_script(DRIVE, [[settings, fragment(settings)] for settings in asked])
    for settings, seen in zip(asked, found, strict=True):
        want = expected(settings)
        if not settings["tie"] and settings["op"] == "tied_sum":
            settings["op"] = ""  # the op is gone, and its panel with it
        assert seen["state"] == settings
        check_tree(json.loads(seen["tree"]), want, "counted")
        check_shown(seen, want, settings)
        check_drawn(seen, want, settings)


def check_tree(found, want, path):
    """Every entry of what the page counted is the budget's own, to the last digit."""
    if isinstance(found, dict | list):
        for name, part in found.items() if isinstance(found, dict) else enumerate(found):
            check_tree(part, want[name], f"{path}.{name}")
        assert isinstance(found, dict) or len(found) == len(want), path
    elif isinstance(want, float):
        assert float(found) == want, path
    else:
        assert (int(found) if isinstance(want, int) and isinstance(found, str) else found) == want, path


def check_shown(seen, want, settings):
    """The page shows every tensor, parameter and byte, and no number that is not one of the budget's."""
    keys = {key for key, *_ in seen["shown"]}
    assert {f"tensors.{i}.{what}" for i in range(len(want["tensors"])) for what in ("shape", "bytes")} < keys
    assert {f"parameters.{name}" for name in want["parameters"]} < keys
    assert {f"memory.{name}" for name in want["memory"]} < keys
    assert {f"run.{name}" for name in ("C", "counted", "hours", "hours_counted", "step_seconds")} < keys
    assert {f"flops.per_token.{name}" for name in want["flops"]["per_token"]} < keys
    opened = {key.split(".")[2] for key in keys if key.startswith("page.ops.")}
    assert opened == ({settings["op"]} if settings["op"] else set())
    for key, form, value, text in seen["shown"]:
        number = want
        for name in key.split("."):
            number = number[int(name)] if isinstance(number, list) else number[name]
        check_text(key, form, value, text, number)
    assert set(re.findall(r"\d[\d,.]*\d{2}", seen["loose"])) == {str(TILE), str(-IGNORE_INDEX)}


def check_text(key, form, value, text, number):
    """data-value is the number exactly; the text is it, rounded as its form says."""
    if number is None:
        assert (value, text) == ("null", "–"), key
    elif form == "shape":
        assert value == ",".join(map(str, number)), key
        assert text == "(" + ", ".join(f"{n:,}" for n in number) + ")", key
    elif form == "int":
        assert (int(value), text) == (number, f"{number:,}"), key
    else:
        assert (float(value) if isinstance(number, float) else int(value)) == number, key
        step, read = rounded(form, text, number)
        assert abs(read - decimal(number)) <= step / 2, (key, text, number)


def decimal(number):
    """A browser rounds the shortest decimal that stands for a float: 0.2375 up, though the float lies just below."""
    return Fraction(str(number))


def rounded(form, text, number):
    """Return what a text says, and the size of one unit of its last digit."""
    if form == "whole":
        return max(Fraction(1), Fraction(math.ulp(number))), Fraction(text.replace(",", ""))
    if form.startswith("percent"):
        if text == "< 0.1%":
            assert 0 < number < 0.001
            return Fraction(1, 500), Fraction(0)
        digits = int(form.removeprefix("percent") or 1)
        assert text == "0%" or len(text.partition(".")[2]) == digits + 1
        return Fraction(1, 100 * 10**digits), Fraction(text.rstrip("%")) / 100
    if form == "bytes":
        digits, unit = text.split()
        assert len(digits.partition(".")[2]) == (0 if unit.startswith("byte") else 1)
        power = ["byte", "kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"].index(unit.rstrip("s"))
        return (Fraction(1000**power, 10) if power else Fraction(0)), Fraction(digits) * 1000**power
    assert form == "power"
    digits, _, power = text.replace(",", "").partition(" × 10")
    exponent = int(power.translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")) or 0)
    return Fraction(10) ** (math.floor(math.log10(number)) - 3), Fraction(digits) * Fraction(10) ** exponent


def check_drawn(seen, want, settings):
    """Names, shapes, bars and boxes: each bar and box as long as its number says."""
    largest = max(t["bytes"] for t in want["tensors"])
    for t, (name, formula, letters, memory, place, width) in zip(want["tensors"], seen["rows"], strict=True):
        assert (name, formula, letters, memory) == (t["name"], t["formula"], t["letters"], t["memory"])
        assert place == f"tensors-{t['part']}"
        assert width == pytest.approx(100 * t["bytes"] / largest, rel=1e-4, abs=1e-4)
    assert [name for name, *_ in seen["boxes"]] == list(want["page"]["ops"])
    for name, height, text in seen["boxes"]:
        share = want["page"]["ops"][name][f"{settings['share']}_share"]
        assert height == pytest.approx(420 * share, rel=1e-12)
        step, read = rounded("percent", text, share)
        assert abs(read - decimal(share)) <= step / 2


@in_browser
def test_gpt2_small_by_the_lessons_own_numbers(page):
    shown = {e.get_attribute("data-key"): e.text for e in page.all("[data-key]")}
    assert shown["parameters.N"] == "124,439,808"
    assert shown["parameters.N_lesson"] == "124,318,464"
    assert shown["parameters.attn_per_block"] == f"{4 * 768**2:,}"
    assert shown["parameters.mlp_per_block"] == f"{8 * 768**2:,}"
    assert shown["parameters.head"] == "0"
    assert shown["flops.per_token.6N"] == f"{6 * 124_439_808:,}"


# Presets, snapping, and what cannot be


@in_browser
def test_presets_are_the_configs(page):
    assert page.run("return PRESETS") == PRESETS
    for button in page.all("#presets button"):
        button.click()
        state, sizes = page.state(), PRESETS[button.text]
        assert {name: state[name] for name in sizes} == sizes
        assert state["T"] == sizes["T_max"]
        assert page.find("#presets [aria-pressed=true]").text == button.text
        assert page.text("[data-key='parameters.N']") == f"{Config.preset(button.text).n_parameters():,}"
    page.type("L", "7")
    assert page.all("#presets [aria-pressed=true]") == []


def config_error(**sizes):
    with pytest.raises(ValueError) as caught:
        Config(**sizes)
    return str(caught.value)


@in_browser
def test_changing_d_snaps_h_to_a_divisor(page):
    for _ in range(12):  # from 768 on, by the slider's stops
        page.press("#d-slider", RIGHT)
        state = page.state()
        if state["d"] % 12:
            assert config_error(d=state["d"], h=12).endswith(f"is {state['h']}")
            told = f"h snapped from 12 to {state['h']}, the nearest that divides d = {state['d']}"
            assert page.text("#h-message") == told
        else:
            assert (state["h"], page.text("#h-message")) == (12, "")
        assert page.find("#h").get_property("value") == str(state["h"])
    page.type("d", "97")  # a prime
    assert page.state()["h"] == 1
    page.type("d", "768")
    assert (page.state()["h"], page.text("#h-message")) == (12, "")  # what was asked for comes back


@in_browser
def test_the_snap_is_configs_for_any_d_and_h(page):
    rng = np.random.default_rng(1)
    pairs = [[int(d), int(h)] for d, h in rng.integers(1, 2000, (300, 2)) if d % h]
    found = page.run("return arguments[0].map(([d, h]) => nearest(divisors(d), h))", pairs)
    for (d, h), heads in zip(pairs, found, strict=True):
        assert config_error(d=d, h=h).endswith(f"is {heads}")


@in_browser
def test_the_slider_of_h_has_the_divisors_of_d_alone(page):
    page.press("#h-slider", HOME)
    seen = [page.state()["h"]]
    while seen[-1] < 768:
        page.press("#h-slider", RIGHT)
        seen.append(page.state()["h"])
    assert seen == [h for h in range(1, 769) if 768 % h == 0]
    assert page.find("#h-slider").get_attribute("aria-valuetext") == "768"


@in_browser
def test_T_never_passes_T_max(page):
    page.type("T_max", "500")
    assert page.state()["T"] == 500
    assert page.text("#T-message") == "T cut from 1024 to T_max = 500"
    page.type("T", "501")
    with pytest.raises(ValueError) as caught:
        budget(Config(T_max=500), 1, 501)
    assert page.text("#T-message") == str(caught.value)
    assert page.state()["T"] == 500
    page.press("#T-slider", LEFT, END)
    assert page.state()["T"] == 500
    assert page.text("#T-message") == ""
    page.press("#T_max-slider", END)
    assert (page.state()["T"], page.state()["T_max"]) == (500, 131072)


BAD = [
    *((name, text, f"{name} must be a whole number of at least 1") for name in SIZES for text in ("abc", "0", "1.5")),
    ("L", "-3", "L must be a whole number of at least 1"),
    ("d", "1,5", "d must be a whole number of at least 1"),
    ("V", "1e99", "more than this page counts"),
    ("h", "13", "d = 768 is not divisible by h = 13 heads; the nearest h that divides it is 12"),
    ("tokens", "many", "tokens must be a number from 1 to 1e36"),
    ("tokens", "1e300", "tokens must be a number from 1 to 1e36"),
    ("rate", "1e-300", "rate must be a number from 1e-9 to 1e36"),
    ("rate", "-1", "rate must be a number from 1e-9 to 1e36"),
    ("rate", "1e999", "rate must be a number from 1e-9 to 1e36"),
]


@in_browser
def test_a_bad_value_is_told_and_changes_nothing(page):
    before, N = page.state(), page.text("[data-key='parameters.N']")
    for name, text, message in BAD:
        page.type(name, text)
        assert message in page.text(f"#{name}-message")
        box = page.find(f"#{name}")
        assert (box.get_property("value"), box.get_attribute("aria-invalid")) == (text, "true")
        assert box.get_attribute("aria-describedby") == f"{name}-message"
        assert (page.state(), page.text("[data-key='parameters.N']")) == (before, N)
        page.type(name, str(before[name]))
        assert (page.text(f"#{name}-message"), box.get_attribute("aria-invalid")) == ("", "false")
    page.type("d", "x")
    page.type("B", "2")  # another setting: what d is stands in its box again
    assert (page.find("#d").get_property("value"), page.text("#d-message")) == ("768", "")


@in_browser
def test_typed_numbers_may_be_grouped(page):
    for text, value in (("50,304", 50304), ("100 000", 100_000), ("1e3", 1000), (" 65 ", 65)):
        page.type("V", text)
        assert page.state()["V"] == value


@in_browser
def test_the_vocabularies(page):
    options = page.all("#vocabulary option")
    options[1].click()
    assert page.state()["V"] == 256
    page.type("V", "1000")
    assert page.find("#vocabulary").get_property("value") == ""


# The address


@in_browser
def test_a_link_reproduces_the_settings(page):
    settings = dict(zip(("op", "share"), ("scores", "flops")))
    settings |= dict(V=1000, T_max=300, d=96, h=8, L=5, B=3, T=200, dtype="float64", tie=False, tokens=2.5e9, rate=None)
    page.open(fragment(settings))
    assert page.state() == settings
    page.press("#L-slider", RIGHT)
    page.run("window.copied = []; navigator.clipboard.writeText = async (text) => copied.push(text)")
    page.find("#copy").click()
    (link,) = page.run("return copied")
    page.browser.execute_async_script("setTimeout(arguments[0], 300)")
    assert page.browser.current_url == link  # the address follows, once the slider rests
    shown = page.run("return [...document.querySelectorAll('[data-key]')].map((e) => [e.dataset.key, e.textContent])")
    page.browser.get("about:blank")
    page.browser.get(link)
    assert page.state() == {**settings, "L": 6}
    again = page.run("return [...document.querySelectorAll('[data-key]')].map((e) => [e.dataset.key, e.textContent])")
    assert again == shown


@in_browser
def test_where_copying_is_not_allowed_the_link_is_shown(page):
    page.run("navigator.clipboard.writeText = async () => { throw new Error('not allowed') }")
    page.find("#copy").click()
    box = page.find("#link-box")
    assert box.is_displayed()
    assert box.get_property("value") == PAGE.as_uri() + page.run("return hash()")


@in_browser
def test_a_link_with_mistakes_says_so(page):
    page.open("#d=abc&L=0&colour=red&toString=1&dtype=float16&op=nothing&h=7&T_max=64")
    told = page.text("#link-problem")
    for part in ("d must be a whole", "L must be a whole", "no setting “colour”", "“toString”", "dtype must", "no op"):
        assert part in told
    state = page.state()
    assert (state["d"], state["h"], state["L"], state["T"]) == (768, 6, 12, 64)
    assert "h snapped from 7 to 6" in page.text("#h-message")
    assert "T cut from 1024" in page.text("#T-message")


# By keyboard, by ear, in the dark, on a phone


@in_browser
def test_by_keyboard_alone(page):
    active = "return document.activeElement.id || document.activeElement.name || document.activeElement.value"
    reached = []
    while len(reached) < 80:
        page.browser.switch_to.active_element.send_keys(TAB)
        name = page.run(active)
        outlined = page.run(
            "const e = document.activeElement, s = getComputedStyle(e.querySelector?.('.box') ?? e);"
            "return s.outlineStyle !== 'none' || s.strokeWidth === '3px'"
        )
        assert outlined, f"no one sees that {name} has the focus"
        reached.append(name)
        if name == "op-tied_sum":
            break
    wanted = [
        *PRESETS,
        *(f"{name}{part}" for name in ("d", "h", "L", "B", "T", "T_max", "V") for part in ("", "-slider")),
    ]
    wanted += ["vocabulary", "dtype", "tie", "copy", "tokens", "rate", "share", *(f"op-{op}" for op in SPANS)]
    assert reached == wanted


@in_browser
@pytest.mark.parametrize("key", [ENTER, SPACE])
def test_a_box_opens_and_closes_by_keyboard(page, key):
    page.press("#op-scores", key)
    assert page.text("#op-title") == "Scores"
    assert "scores = q kᵀ / √d_head" in page.text("#op")
    assert "dk = dscoresᵀ q / √d_head" in page.text("#op")
    for way in ("forward", "backward"):
        (shown,) = excerpts()["scores"][way]
        assert f"{shown['file']}:{shown['line']}" in page.text("#op")
        assert shown["text"].splitlines()[0] in page.text("#op")
    assert page.find("#op-scores").get_attribute("aria-expanded") == "true"
    assert page.run("return document.activeElement.id") == "op"
    page.browser.switch_to.active_element.send_keys(ESCAPE)
    assert page.run("return document.activeElement.id") == "op-scores"
    assert page.find("#op-scores").get_attribute("aria-expanded") == "false"
    assert page.text("#op-title") == "No box is open"


@in_browser
def test_a_click_opens_a_box_and_the_button_closes_it(page):
    for op in ("qkv", "tied_sum"):
        page.find(f"#op-{op} .name").click()
        assert page.text("#op .hint code") == op
    page.find("#close").click()
    assert page.text("#op-title") == "No box is open"
    page.find("#op-tied_sum .name").click()
    page.find("#tie").click()  # no tied sum in an untied model
    assert page.text("#op-title") == "No box is open"


@in_browser
def test_everything_has_a_name_to_be_read_out(page):
    for control in page.all("input:not([hidden]), select, button, g.op, [role=region], section"):
        assert control.accessible_name, control.get_attribute("outerHTML")
    assert page.find("#op-scores").accessible_name == "scores: q @ k.T / √d_head, 0% of the parameters"
    page.press("#T-slider", HOME)
    assert page.find("#T-slider").get_attribute("aria-valuetext") == "1"
    page.browser.execute_async_script("setTimeout(arguments[0], 900)")
    assert "a block’s scores take 48 bytes" in page.find("#spoken").get_property("textContent")


@in_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_in_both_themes(page, scheme):
    page.device(1280, media=[("prefers-color-scheme", scheme)])
    page.open("#op=scores")
    style = (
        "const style = getComputedStyle(document.documentElement);"
        "return arguments[0].map((name) => style.getPropertyValue('--' + name))"
    )
    names = ("ink", "soft", "bad", "note", "accent", "paper", "card", "track")
    colours = dict(zip(names, page.run(style, names)))
    assert (luminance(colours["paper"]) > 0.5) == (scheme == "light")
    for ground in ("paper", "card"):
        for text in ("ink", "soft", "bad", "note", "accent"):
            assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
    assert contrast(colours["ink"], colours["track"]) >= 4.5


def luminance(colour):
    """WCAG's relative luminance of #rrggbb."""
    parts = [int(colour.strip()[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a, b):
    light, dark = sorted((luminance(a), luminance(b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


BROKEN_NUMBERS = """
return [...document.querySelectorAll('[data-key]')].filter((element) => {
  const range = document.createRange();
  range.selectNodeContents(element);
  const tops = new Set([...range.getClientRects()].map((line) => Math.round(line.top)));
  return /^[\\d,]+$/.test(element.textContent) && tops.size > 1;
}).map((element) => element.dataset.key)
"""


@in_browser
@pytest.mark.parametrize("width", [320, 375, 600, 900, 1300])
def test_no_number_takes_two_lines(page, width):
    page.device(width)
    for settings in ("", "V=50257&T_max=1024&d=1600&h=25&L=48&B=8&T=1024"):
        page.open("#" + settings)
        assert page.run(BROKEN_NUMBERS) == []


@in_browser
@pytest.mark.parametrize("width", [320, 360, 400, 768, 1024, 1440])
def test_nothing_runs_off_a_narrow_screen(page, width):
    page.device(width)
    large = "V=10000000&T_max=10000000&d=9999360&h=10&L=1000&B=10000000&T=10000000"
    for settings in (
        "op=attn",
        "V=50257&d=1600&h=25&L=48&B=512&op=qkv&share=flops",
        f"{large}&op=loss",
        "d=97&T_max=100",
    ):
        page.open("#" + settings)
        seen = page.run("return [document.documentElement.scrollWidth, window.innerWidth]")
        assert seen[0] <= width, (settings, seen)


@in_browser
def test_no_motion_where_none_is_wanted(page):
    moving = (
        "return [...document.querySelectorAll('.bar, .area, .stack div')]"
        ".map((moved) => getComputedStyle(moved).transitionDuration)"
    )
    assert set(page.run(moving)) == {"0.18s"}
    page.device(1280, media=[("prefers-reduced-motion", "reduce")])
    assert set(page.run(moving)) == {"0s"}


@in_browser
def test_the_score_tensor_swells_with_T_squared(page):
    page.device(1280, media=[("prefers-reduced-motion", "reduce")])
    areas = {}
    for T in (256, 512):
        page.type("T", str(T))
        x, scores, weights = (square.rect["width"] ** 2 for square in page.all(".area"))
        areas[T] = x / weights, scores / weights
    assert areas[512][0] / areas[256][0] == pytest.approx(2, rel=0.05)  # widths are whole fractions of a pixel
    assert areas[512][1] / areas[256][1] == pytest.approx(4, rel=0.05)


@in_browser
def test_nothing_is_fetched_and_a_picture_can_be_taken(page):
    assert page.run("return performance.getEntriesByType('resource').length") == 0
    assert not re.search(r"(src|href)=\"(?!data:)", PAGE.read_text(encoding="utf-8"))
    picture = base64.b64decode(page.browser.get_screenshot_as_base64())
    assert picture.startswith(b"\x89PNG")
