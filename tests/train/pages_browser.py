"""Looks at the two pages as a reader does: pages_browser.py BROWSER COMPARISON REPORT [FOLDER]

Prints a line per fault and ends with 1 if there is any. With FOLDER, keeps pictures there."""

import json
import pathlib
import sys

from browser import Browser, Failure

# Desktop in both colour schemes, and a phone's width.
VIEWS = [("light", 1280, False), ("dark", 1280, True), ("phone", 375, False),
         ("phone-dark", 375, True)]

# In every view, of both pages.
LAYOUT = """((wanted) => {
  const out = [];
  // A phone widens its window to what overflows, so innerWidth alone would not tell.
  const width = Math.max(document.documentElement.scrollWidth, innerWidth);
  if (width > wanted) out.push(`the page is ${width} wide in a window of ${wanted}`);
  const channel = (s) => s <= 0.04045 ? s / 12.92 : ((s + 0.055) / 1.055) ** 2.4;
  const luminance = (color) => {
    const [r, g, b] = color.match(/[\\d.]+/g).map((s) => channel(s / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground_of = (node) => {
    for (; node; node = node.parentElement) {
      const color = getComputedStyle(node).backgroundColor;
      if (!/, 0\\)$/.test(color)) return color;
    }
    return "rgb(255, 255, 255)";
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let texts = 0;
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || !node.getClientRects().length) continue;
    const is_drawn = node instanceof SVGElement;
    if (is_drawn && node.tagName !== "text") continue;
    const style = getComputedStyle(node);
    const [a, b] = [luminance(is_drawn ? style.fill : style.color), luminance(ground_of(node))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    ++texts;
    if (contrast < 4.5) {
      out.push(`contrast ${contrast.toFixed(2)} of "${walker.currentNode.textContent.trim()}"`);
    }
  }
  if (texts < 50) out.push(`only ${texts} texts are visible`);
  for (const text of document.querySelectorAll("svg text")) {
    const box = text.getBoundingClientRect();
    if (box.width && (box.left < -1 || box.right > innerWidth + 1)) {
      out.push(`"${text.textContent}" reaches out of the window`);
    }
  }
  return out;
})"""

# The stack of areas: as many as tags with bytes, its top where the mark of the peak is.
STACK = """(() => {
  const out = [];
  const areas = [...document.querySelectorAll("#step .area")];
  const visible = areas.filter((area) => area.getBBox().height > 1 && area.getBBox().width > 100);
  if (visible.length < 2) out.push(`only ${visible.length} areas are drawn`);
  const top = Math.min(...areas.map((area) => area.getBBox().y));
  const dot = document.querySelector("#step .dot").cy.baseVal.value;
  if (Math.abs(top - dot) > 1) out.push(`the stack ends at ${top}, the peak's mark is at ${dot}`);
  const colors = visible.map((area) => getComputedStyle(area).fill);
  if (new Set(colors).size !== colors.length) out.push(`areas share a colour: ${colors}`);
  const phases = [...document.querySelectorAll("#step .band title")].map((it) => it.textContent);
  const runs = phases.filter((name, i) => name !== phases[i - 1]).join(" ");
  if (runs !== "forward backward optimizer") out.push(`the phases are: ${runs}`);
  return out;
})()"""

# Bytes of the chosen point: the sum of the legend, and what the readout says.
POINT = """(() => {
  const exact = (node) => Number(node.title.replace(/[^0-9]/g, ""));
  return {total: exact(document.querySelector("#point strong")),
          legend: [...document.querySelectorAll("#step-legend .number")].map(exact)
                    .reduce((a, b) => a + b, 0),
          index: Number(document.getElementById("step").getAttribute("aria-valuenow")),
          said: document.getElementById("step").getAttribute("aria-valuetext")};
})()"""

SHAPES = "[...document.querySelectorAll('#step .area')].map(a => a.getAttribute('d')).join()"

# The values of a column as drawn, as numbers where all are, and how it says it is sorted.
COLUMN = """((table, column) => {
  const host = document.querySelectorAll("table")[table];
  const text = (cell) => (/ bytes$/.test(cell.title) ? cell.title : cell.textContent).trim();
  const cells = [...host.querySelectorAll("tbody tr")].map((row) => text(row.children[column]));
  const known = cells.filter((cell) => cell !== "\\u2013" && cell !== "");
  const number = (cell) => Number(cell.replace("\\u2212", "-").replace(/,| bytes| %/g, ""));
  const numeric = known.every((cell) => Number.isFinite(number(cell)));
  const in_order = (a, b) => numeric ? number(a) <= number(b)
    : a.localeCompare(b, "en", {numeric: true}) <= 0;
  const state = host.querySelectorAll("thead th")[column].getAttribute("aria-sort");
  const down = state === "descending";
  return {state, name: host.querySelectorAll("thead th")[column].textContent, cells, numeric,
          gaps_last: cells.slice(known.length).every((cell) => !known.includes(cell)),
          sorted: known.every((cell, i) => i === 0 ||
            (down ? in_order(cell, known[i - 1]) : in_order(known[i - 1], cell)))};
})"""


class Check:
    def __init__(self, browser, page):
        self.browser, self.page, self.faults = browser, page, 0

    def that(self, holds, what):
        if not holds:
            self.faults += 1
            print(f"{self.page.stem}: {what}")

    def equal(self, got, wanted, what):
        self.that(got == wanted, f"{what} is {got!r} instead of {wanted!r}")

    def none(self, faults, where):
        for fault in faults:
            self.that(False, f"{where}: {fault}")

    def value(self, expression):
        return self.browser.evaluate(expression)

    def looks(self, folder):
        url = self.page.as_uri()
        for name, width, dark in VIEWS:
            self.browser.open(url, width=width, dark=dark)
            self.none(self.browser.complaints, name)
            self.equal(self.browser.requests, [url], f"{name}: what the page loads")
            self.none(self.value(f"{LAYOUT}({width})"), name)
            self.none(self.value(STACK), name)
            if folder:
                self.browser.picture(f"{folder}/{self.page.stem}-{name}.png")
        dark_ground = self.value("getComputedStyle(document.body).backgroundColor")
        self.browser.open(url)
        self.that(self.value("getComputedStyle(document.body).backgroundColor") != dark_ground,
                  "light and dark have the same ground")

    def names(self):
        """Everything that takes the focus tells a screen reader what it is."""
        nodes = self.browser.call("Accessibility.getFullAXTree")["nodes"]
        roles = {"button", "slider", "radio", "checkbox", "combobox", "link", "textbox"}
        found = [node for node in nodes if node.get("role", {}).get("value") in roles]
        self.that(len(found) > 20, f"only {len(found)} controls are in the accessibility tree")
        for node in found:
            name = node.get("name", {}).get("value", "").strip()
            self.that(name, f"a {node['role']['value']} has no name")

    def point(self):
        """Reading the chart with the mouse and with keys."""
        peak = self.value(POINT)
        self.equal(peak["legend"], peak["total"], "the sum of the legend at the peak")
        self.browser.point_at("#step", 0.25, 0.5)
        moved = self.value(POINT)
        self.that(moved["index"] != peak["index"] and moved["total"] < peak["total"],
                  f"moving the mouse leads from {peak} to {moved}")
        self.equal(moved["legend"], moved["total"], "the sum of the legend at another point")
        self.value("document.getElementById('step').focus()")
        for key, index in (("Home", 0), ("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1)):
            self.browser.press(key)
            now = self.value(POINT)
            self.equal(now["index"], index, f"the point after {key}")
            self.that(f"event {index}" in now["said"], f"{key} is announced as {now['said']!r}")
        return peak

    def alone(self):
        """A tag's button leaves its area alone in full colour; a second press brings all back."""
        dimmed = "document.querySelectorAll('#step .dimmed').length"
        areas = self.value("document.querySelectorAll('#step .area').length")
        for wanted in (areas - 1, 0):
            self.browser.point_at("#step-legend li:last-child button", click=True)
            self.equal(self.value(dimmed), wanted, "the number of dimmed areas")

    def sorts(self):
        """Every column of every table, with the keyboard."""
        tables = self.value("[...document.querySelectorAll('table')].map("
                            "table => table.querySelectorAll('thead button').length)")
        self.that(tables and min(tables) > 0, f"tables with so many sortable columns: {tables}")
        for table, columns in enumerate(tables):
            self.value(f"document.querySelectorAll('table')[{table}].closest('details')"
                       "?.setAttribute('open', '')")
            for column in range(columns):
                self.value(f"document.querySelectorAll('table')[{table}]"
                           f".querySelectorAll('thead button')[{column}].focus()")
                states = set()
                for _ in range(2):
                    self.browser.press("Enter")
                    got = self.value(f"{COLUMN}({table}, {column})")
                    where = f"table {table}, column {got['name']}"
                    self.that(got["sorted"], f"{where} {got['state']}: {got['cells'][:12]}")
                    self.that(got["gaps_last"], f"{where}: missing values are not last")
                    states.add(got["state"])
                self.equal(states, {"ascending", "descending"}, f"{where}: its states")


def check_report(check, data):
    peak = data["peak"]["allocated"]
    count = len(data["timeline"]["allocated"])
    point = check.point()
    check.equal(point["total"], peak, "the readout at the peak")
    check.equal(point["index"], data["peak"]["index"], "the point chosen first")
    check.that(data["peak"]["path"] in check.value(
        "document.querySelector('#step svg').textContent"), "the peak's mark names no layer")
    check.that("context and librariesnot predicted" in check.value(
        "document.querySelector('#facts').textContent"), "what no prediction covers is not named")
    check.alone()
    check.sorts()

    by_event = check.value(SHAPES)
    check.browser.point_at("input[value=time]", click=True)
    check.that(check.value(SHAPES) != by_event, "the chart by time is that by event")
    check.none(check.value(STACK), "by time")
    check.browser.point_at("#step", 0.999, 0.5)
    check.equal(check.value(POINT)["index"], count - 1, "the last point by time")
    check.browser.point_at("input[value=event]", click=True)
    check.equal(check.value(SHAPES), by_event, "the chart after switching back")

    for host, rows in (("layers", data["layers"]), ("largest", data["peak"]["parts"])):
        check.value(f"document.querySelector('#{host} .more')?.click()")
        check.equal(check.value(f"document.querySelectorAll('#{host} tbody tr').length"), len(rows),
                    f"the number of rows of {host}")
    exact = "(cell) => Number((cell.title || '0').replace(/[^0-9]/g, ''))"
    for host, column in (("layers", 1), ("largest", 1), ("parts-table", 1)):
        check.equal(check.value(f"[...document.querySelectorAll('#{host} tbody tr')].map((row) =>"
                                f"({exact})(row.children[{column}])).reduce((a, b) => a + b, 0)"),
                    peak, f"the sum of the rows of {host}")
    sums = check.value(f"[...document.querySelector('#layers tfoot tr').children].map({exact})")
    check.equal(sums[1], peak, "the row of sums of layers")
    check.equal(sum(sums[2:]), peak, "the sums by tag of layers")


def check_comparison(check, data):
    rows = data["rows"]
    check.equal(check.value("document.querySelectorAll('img').length"), 0, "elements out of names")
    check.equal(check.value("[...document.querySelectorAll('#bars .name')].map(it => "
                            "it.textContent)"),
                [row["name"] for row in rows], "the names of the bars")
    check.equal(check.value("document.getElementById('command').textContent"), data["command"],
                "the command")
    with_peak = [row for row in rows if row["peak_allocated"] is not None]
    check.equal(check.value("document.querySelectorAll('#bars svg').length"), len(with_peak),
                "the number of bars")
    # The longest bar is as wide as its share of the scale, and parts are in proportion.
    got = check.value("""[...document.querySelectorAll('#bars svg')].map((bar) =>
        [...bar.querySelectorAll('rect[data-tag]')].reduce((sum, part) => sum +
            part.getBoundingClientRect().width, 0))""")
    scale = got[0] / with_peak[0]["peak_allocated"]
    for row, width in zip(with_peak, got):
        wanted = sum(row["parts"].values()) * scale
        check.that(abs(width - wanted) < 1,
                   f"the bar of {row['name']} is {width} wide, not {wanted}")
    for row in rows:
        if row["status"] != "ok":
            check.that(row["status"] in check.value(
                f"document.querySelectorAll('#bars li')[{rows.index(row)}].textContent"),
                f"{row['name']} does not say: {row['status']}")

    timed = [row for row in rows if row["status"] == "ok" and row["step_ms"] is not None]
    check.equal(check.value("document.querySelectorAll('.scatter .point').length"), len(timed),
                "the number of points")
    places = check.value("""[...document.querySelectorAll('.scatter .point')].map((point) => {
        const text = point.querySelector('text')?.getBoundingClientRect();
        const circle = point.querySelector('circle');
        return {x: circle.cx.baseVal.value, y: circle.cy.baseVal.value,
                name: point.querySelector('text')?.textContent,
                box: text && [text.left, text.top, text.right, text.bottom]};
    })""")
    by_name = {row["name"]: row for row in timed}
    check.equal(sorted(place["name"] or "" for place in places), sorted(by_name),
                "the names beside the points")
    for a in places:
        for b in places:
            row, other = by_name[a["name"]], by_name[b["name"]]
            if a is b:
                continue
            check.equal(a["x"] < b["x"], row["step_ms"] < other["step_ms"],
                        f"{row['name']} being left of {other['name']}")
            check.equal(a["y"] > b["y"], row["peak_allocated"] < other["peak_allocated"],
                        f"{row['name']} being below {other['name']}")
            apart = (a["box"][2] <= b["box"][0] or b["box"][2] <= a["box"][0]
                     or a["box"][3] <= b["box"][1] + 3 or b["box"][3] <= a["box"][1] + 3)
            check.that(apart, f"the names {row['name']} and {other['name']} overlap")

    # A press on a bar shows that row everywhere; one without a recorded step says why.
    totals = map(sum, zip(*rows[0]["timeline"]["by_tag"].values()))
    check.equal(check.point()["total"], max(totals), "the readout at the peak")
    check.alone()
    before = check.value(SHAPES)
    check.browser.point_at("#bars li:nth-child(2) button", click=True)
    check.equal(check.value("document.getElementById('row').value"), "1", "the chosen row")
    check.that(check.value(SHAPES) != before, "another row has the same chart")
    check.equal(check.value("[...document.querySelectorAll('#table tr[aria-selected=true] th')]"
                            ".map(cell => cell.textContent)"), [rows[1]["name"]],
                "the row marked in the table")
    failed = next(i for i, row in enumerate(rows) if row["status"] == "failed")
    check.browser.point_at(f"#bars li:nth-child({failed + 1}) button", click=True)
    check.that(rows[failed]["message"] in check.value(
        "document.getElementById('no-timeline').innerText"), "a failed row does not say why")
    check.that(not check.value("document.getElementById('step').getClientRects().length"),
               "a failed row has a chart")
    check.browser.point_at("#bars li:first-child button", click=True)
    check.equal(check.value(SHAPES), before, "the chart after coming back to the first row")
    name = check.value("(() => { const point = document.querySelectorAll('.scatter .point')[2];"
                       "point.focus(); return point.querySelector('text').textContent; })()")
    check.browser.press("Enter")
    check.equal(check.value("document.getElementById('row').value"),
                str(rows.index(by_name[name])), "the row chosen by a point")
    check.that(check.value("document.getElementById('spot').textContent").startswith(name + ": "),
               "the chosen point's numbers are not shown")
    check.equal(check.value("document.activeElement.querySelector('text')?.textContent"), name,
                "what has the focus after choosing a point")

    columns = "document.querySelectorAll('#table thead th').length"
    few = check.value(columns)
    check.browser.point_at("#with-parts", click=True)
    check.that(check.value(columns) >= few + 3, "parts by tag add no columns")
    check.sorts()


def main(browser_program, comparison, report, folder=None):
    faults = 0
    with Browser(browser_program) as browser:
        for file, check_page in ((report, check_report), (comparison, check_comparison)):
            page = pathlib.Path(file).resolve()
            check = Check(browser, page)
            check.looks(folder)
            check.names()
            data = check.value("document.getElementById('data').textContent")
            check_page(check, json.loads(data))
            check.none(browser.complaints, "after all that")
            faults += check.faults
    return 1 if faults else 0


if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:]))
    except Failure as failure:
        sys.exit(f"browser: {failure}")
