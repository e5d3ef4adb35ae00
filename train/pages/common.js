// Both pages: elements, numbers, sortable tables, stacked areas. All text of the data goes through
// textContent or attributes, so that no name in it can become markup.
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);

// Bottom of a stack first: what stays all the time below, what comes and goes on top.
const kTags = ["parameter", "optimizer_state", "buffer", "cast_copy", "gradient", "input",
               "saved_activation", "temporary", "workspace", "other"];
const kSvg = document.getElementsByTagName("svg")[0].namespaceURI;

const by_id = (id) => document.getElementById(id);
const color_of = (tag) => `var(--${kTags.includes(tag) ? tag : "other"})`;
const title_of = (tag) => tag.replaceAll("_", " ");
const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);
const is_number = (value) => typeof value === "number";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === "onclick") node.addEventListener("click", value);
    else if (value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}
const el = (tag, attributes, ...children) =>
  fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) =>
  fill(document.createElementNS(kSvg, tag), attributes, children);

// ---- Numbers ----

const kUnits = ["B", "KiB", "MiB", "GiB", "TiB"];
const unit_of = (bytes) => {
  let unit = 0;
  while (unit + 1 < kUnits.length && Math.abs(bytes) >= 1024 ** (unit + 1)) ++unit;
  return unit;
};
function bytes_text(bytes) {
  if (!is_number(bytes)) return "–";
  const unit = unit_of(bytes);
  return `${(bytes / 1024 ** unit).toFixed(unit ? 1 : 0)} ${kUnits[unit]}`;
}
const exact_text = (bytes) => is_number(bytes) ? `${bytes.toLocaleString("en")} bytes` : null;
const minus = (text) => text.replace("-", "\u2212");
const fixed = (digits) => (value) => is_number(value) ? minus(value.toFixed(digits)) : "–";
const percent = (part, whole) => whole > 0 ? `${(100 * part / whole).toFixed(1)} %` : "–";
const milliseconds = (us) => `${(us / 1e3).toFixed(us < 1e4 ? 2 : 1)} ms`;

// Round values from 0 to `max`, at most `count` steps; `base` is the size of the unit.
function ticks(max, count, base = 1) {
  const rough = Math.max(max, 1e-9) / base / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = base * power * [1, 2, 5, 10].find((factor) => factor * power >= rough * (1 - 1e-9));
  const out = [];
  for (let i = 0; i * step <= max * (1 + 1e-9); ++i) out.push(i * step);
  return out;
}
function byte_ticks(max) {
  const unit = unit_of(max);
  const values = ticks(max, 5, 1024 ** unit);
  const whole = values.every((v) => Number.isInteger(v / 1024 ** unit));
  return values.map((value) => [value, value === 0 ? "0"
    : `${(value / 1024 ** unit).toFixed(whole ? 0 : 1)} ${kUnits[unit]}`]);
}

// ---- Parts of a page ----

const label = (x, y, anchor, text) => svg("text", {x, y, "text-anchor": anchor}, text);

// Lines and numbers of an axis of bytes.
const byte_grid = (max, left, right, y_of) => byte_ticks(max).flatMap(([value, text]) => [
  svg("line", {class: "grid", x1: left, x2: right, y1: y_of(value), y2: y_of(value)}),
  label(left - 8, y_of(value) + 4, "end", text)]);

function facts(host, list) {
  for (const [name, value, kind] of list) {
    if (value === null || value === undefined) continue;
    host.append(el("div", {}, el("dt", {}, name), el("dd", {class: kind}, String(value))));
  }
}

// The tags with their bytes. Pressing one leaves only its marks in `charts` in full colour.
function legend(host, charts) {
  let only = null;
  const numbers = {};
  const buttons = {};
  return (tags, value_of) => {
    if (tags.join() !== Object.keys(buttons).join()) {
      host.replaceChildren();
      for (const tag of Object.keys(buttons)) delete buttons[tag];
      for (const tag of tags) {
        numbers[tag] = el("span", {class: "number"});
        buttons[tag] = el("button", {type: "button", "aria-pressed": only === tag, onclick: () => {
          only = only === tag ? null : tag;
          for (const each of tags) buttons[each].setAttribute("aria-pressed", only === each);
          dim();
        }}, el("span", {class: "swatch", style: `background:${color_of(tag)}`}),
        el("span", {}, title_of(tag)), numbers[tag]);
        host.append(el("li", {}, buttons[tag]));
      }
    }
    for (const tag of tags) {
      numbers[tag].textContent = bytes_text(value_of(tag));
      numbers[tag].title = exact_text(value_of(tag));
    }
    dim();
  };
  function dim() {
    for (const chart of charts) {
      for (const mark of chart.querySelectorAll("[data-tag]")) {
        mark.classList.toggle("dimmed", only !== null && mark.dataset.tag !== only);
      }
    }
  }
}

// One horizontal bar: [tag, bytes] from left to right, `scale` bytes being the whole width.
function parts_bar(parts, scale, label) {
  const chart = svg("svg", {viewBox: "0 0 1000 10", preserveAspectRatio: "none", role: "img",
                            "aria-label": label, class: "parts"});
  let x = 0;
  for (const [tag, bytes] of parts) {
    const width = 1000 * bytes / scale;
    if (width > 0) {
      chart.append(svg("rect", {x, y: 0, width, height: 10, fill: color_of(tag), "data-tag": tag},
        svg("title", {}, `${title_of(tag)}: ${bytes_text(bytes)}`)));
      // A gap between neighbours, where both are wide enough to be seen beside it.
      if (x > 0) chart.append(svg("rect", {x: x - .5, y: 0, width: 1, height: 10,
                                           style: "fill:var(--ground)"}));
    }
    x += width;
  }
  return chart;
}

// A table whose every column sorts by its header's button. Columns: {name, value(row), text(value),
// title(value), right, header}; values that are missing come last in either direction.
function sortable_table(host, {caption, columns, rows, foot, sort, limit, on_row}) {
  let order = sort || null;  // {column, descending}
  let shown = limit && limit < rows.length ? limit : rows.length;
  const body = el("tbody");
  const heads = columns.map((column, i) => el("th",
    {scope: "col", class: column.right ? "right" : null},
    el("button", {type: "button", onclick: () => {
      const descending = order && order.column === i ? !order.descending : Boolean(column.right);
      order = {column: i, descending};
      draw();
    }}, column.name)));
  const cell = (column, row, first) => {
    const value = column.value(row);
    const text = column.text ? column.text(value, row) : String(value ?? "–");
    const kind = `${column.right ? "right" : ""} ${value ? "" : "zero"}`.trim();
    return el(first ? "th" : "td", {scope: first ? "row" : null, class: kind || null,
                                    title: column.title ? column.title(value) : null}, text);
  };
  function draw() {
    const sorted = rows.slice();
    if (order) {
      const {value} = columns[order.column];
      sorted.sort((a, b) => {
        const x = value(a), y = value(b);
        const missing = (x === null || x === undefined) - (y === null || y === undefined);
        if (missing) return missing;
        const compared = is_number(x) && is_number(y) ? x - y
          : String(x).localeCompare(String(y), "en", {numeric: true});
        return order.descending ? -compared : compared;
      });
    }
    heads.forEach((head, i) => {
      if (order && order.column === i) {
        head.setAttribute("aria-sort", order.descending ? "descending" : "ascending");
      } else {
        head.removeAttribute("aria-sort");
      }
    });
    body.replaceChildren(...sorted.slice(0, shown).map((row) => {
      const line = el("tr", {}, ...columns.map((column, i) => cell(column, row, i === 0)));
      if (on_row) on_row(line, row);
      return line;
    }));
  }
  draw();
  const table = el("table", {}, el("caption", {hidden: ""}, caption),
    el("thead", {}, el("tr", {}, ...heads)), body,
    foot ? el("tfoot", {}, el("tr", {}, ...columns.map((column, i) => cell(column, foot, i === 0))))
         : null);
  const parts = [el("div", {class: "scroll", role: "region", tabindex: 0, "aria-label": caption},
                    table)];
  if (shown < rows.length) {
    const more = el("button", {type: "button", class: "more", onclick: () => {
      shown = rows.length;
      more.remove();
      draw();
    }}, `Show all ${rows.length}`);
    parts.push(more);
  }
  host.replaceChildren(...parts);
}

const byte_column = (name, value) =>
  ({name, value, right: true, title: exact_text,
    text: (bytes) => bytes === 0 ? "0" : bytes_text(bytes)});

// ---- Stacked areas ----

// At most about 2 x `buckets` points to draw: of each bucket the lowest and the highest, so that no
// peak is lost.
function points_to_draw(totals, buckets = 1500) {
  const count = totals.length;
  if (count <= 2 * buckets) return totals.map((_, i) => i);
  const out = [];
  for (let bucket = 0; bucket < buckets; ++bucket) {
    const begin = Math.floor(bucket * count / buckets);
    const end = Math.floor((bucket + 1) * count / buckets);
    let low = begin, high = begin;
    for (let i = begin; i < end; ++i) {
      if (totals[i] < totals[low]) low = i;
      if (totals[i] > totals[high]) high = i;
    }
    out.push(...(low === high ? [low] : [Math.min(low, high), Math.max(low, high)]));
  }
  return out;
}

// Runs of equal phases: [name, begin, end).
function phase_runs(phases) {
  const out = [];
  phases.forEach((name, i) => {
    const last = out[out.length - 1];
    if (last && last[0] === name) last[2] = i + 1;
    else out.push([name, i, i + 1]);
  });
  return out;
}

// Bytes by tag over the points of a step; a value holds until the next point. `set(series)` takes
// {by_tag: {tag: [bytes]}, phases: [name], starts: [x of point], end, x_ticks: [[x, text]], max,
// peak, peak_label: [lines], describe(i)} and draws; `on_point(i)` runs whenever a point is chosen
// by pointer or keys.
function stacked_areas(host, on_point) {
  let series = null, chosen = 0, scale = null;
  const picture = svg("svg", {"aria-hidden": "true"});
  host.replaceChildren(picture);
  fill(host, {tabindex: 0, role: "slider", "aria-valuemin": 0}, []);
  const cursor = svg("line", {class: "cursor"});

  function draw() {
    if (!series || !host.clientWidth) return;
    const phone = host.clientWidth < 560;
    const width = host.clientWidth, height = phone ? 280 : 380;
    const left = 62, right = 8, top = 30, bottom = 44;
    const {by_tag, starts, end, max} = series;
    const x_of = (x) => left + (width - left - right) * (end > 0 ? x / end : 0);
    const y_of = (y) => top + (height - top - bottom) * (1 - y / max);
    const floor = y_of(0);
    scale = {x_of, left, right, width};
    picture.replaceChildren();
    picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
    picture.style.height = `${height}px`;
    picture.append(...byte_grid(max, left, width - right, y_of));
    const tags = Object.keys(by_tag);
    const totals = starts.map((_, i) => sum(tags.map((tag) => by_tag[tag][i])));
    const drawn = points_to_draw(totals);
    const left_of = (i) => x_of(i < drawn.length ? starts[drawn[i]] : end).toFixed(1);
    const edges = [];
    let below = drawn.map(() => 0);
    for (const tag of tags) {
      const above = below.map((y, i) => y + by_tag[tag][drawn[i]]);
      // Along the tops from left to right, and back along the floors.
      const forth = drawn.map((_, i) =>
        `${left_of(i)} ${y_of(above[i]).toFixed(1)}H${left_of(i + 1)}`).join("L");
      const back = drawn.map((_, i) =>
        `${left_of(i + 1)} ${y_of(below[i]).toFixed(1)}H${left_of(i)}`).reverse().join("L");
      picture.append(svg("path", {class: "area", "data-tag": tag, style: `fill:${color_of(tag)}`,
                                  d: `M${forth}L${back}Z`}));
      // Where both neighbours are wide enough; all around, it would hide what lasts for one event.
      const floors = drawn.flatMap((_, i) => below[i] > 0 && y_of(below[i]) - y_of(above[i]) >= 1.5
        ? [`M${left_of(i)} ${y_of(below[i]).toFixed(1)}H${left_of(i + 1)}`] : []);
      if (floors.length) edges.push(svg("path", {class: "edge", d: floors.join("")}));
      below = above;
    }
    picture.append(...edges);
    draw_phases(x_of, floor, top);
    for (const [x, text] of series.x_ticks(phone ? 4 : 8)) {
      const last = x_of(x) > width - 40;
      picture.append(label(last ? width - right : x_of(x), height - 4,
                           last ? "end" : x === 0 ? "start" : "middle", text));
    }
    const peak_x = x_of(starts[series.peak]), peak_y = y_of(totals[series.peak]);
    picture.append(cursor,
      svg("line", {class: "mark", x1: peak_x, x2: peak_x, y1: peak_y, y2: floor}),
      svg("circle", {class: "dot", cx: peak_x, cy: peak_y, r: 5}));
    draw_peak_label(peak_x, peak_y, width, left, right);
    place_cursor(top, floor);
  }

  // The strip under the areas; a name only where it fits.
  function draw_phases(x_of, floor, top) {
    const shade = {forward: .10, backward: .22, optimizer: .34, evaluation: .16, search: .28};
    for (const [name, begin, end] of phase_runs(series.phases)) {
      if (!shade[name]) continue;
      const x = x_of(series.starts[begin]);
      const width = x_of(end < series.starts.length ? series.starts[end] : series.end) - x;
      picture.append(svg("rect", {class: "band", x, y: floor + 4, width: Math.max(width - 1, .5),
                                  height: 18, opacity: shade[name], rx: 2},
                         svg("title", {}, name)));
      if (width > 7 * name.length + 6) {
        picture.append(svg("text", {class: "strong", x: x + width / 2, y: floor + 17,
                                    "text-anchor": "middle", style: "font-weight:500"}, name));
      }
    }
  }

  function draw_peak_label(x, y, width, left, right) {
    const lines = series.peak_label;
    const reach = 6.6 * Math.max(...lines.map((line) => line.length));
    const centre = Math.min(Math.max(x, left + reach / 2), width - right - reach / 2);
    lines.forEach((line, i) => picture.append(svg("text", {
      class: i ? "halo" : "strong halo", x: centre, "text-anchor": "middle",
      y: y - 10 - 14 * (lines.length - 1 - i)}, line)));
  }

  function place_cursor(top, floor) {
    if (top !== undefined) {
      cursor.setAttribute("y1", top);
      cursor.setAttribute("y2", floor);
    }
    const begin = series.starts[chosen];
    const end = chosen + 1 < series.starts.length ? series.starts[chosen + 1] : series.end;
    const x = scale.x_of(chosen === series.peak ? begin : (begin + end) / 2);
    cursor.setAttribute("x1", x);
    cursor.setAttribute("x2", x);
  }

  function choose(i) {
    chosen = Math.min(Math.max(i, 0), series.starts.length - 1);
    fill(host, {"aria-valuenow": chosen, "aria-valuetext": series.describe(chosen)}, []);
    if (scale) place_cursor();
    on_point(chosen);
  }

  function choose_at(event) {
    if (!scale) return;
    const box = host.getBoundingClientRect();
    const part = (event.clientX - box.left - scale.left) / (scale.width - scale.left - scale.right);
    const x = Math.min(Math.max(part, 0), 1) * series.end;
    let low = 0, high = series.starts.length;  // the last point that starts at x or before
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (series.starts[middle] <= x) low = middle;
      else high = middle;
    }
    choose(low);
  }
  host.addEventListener("pointermove", choose_at);
  host.addEventListener("pointerdown", choose_at);
  host.addEventListener("keydown", (event) => {
    const count = series.starts.length;
    const to = {ArrowLeft: chosen - 1, ArrowRight: chosen + 1, ArrowDown: chosen - 1,
                ArrowUp: chosen + 1, PageDown: chosen - Math.ceil(count / 20),
                PageUp: chosen + Math.ceil(count / 20), Home: 0, End: count - 1}[event.key];
    if (to === undefined) return;
    event.preventDefault();
    choose(to);
  });
  new ResizeObserver(draw).observe(host);
  return {
    set(next) {
      const keeps = series && series.starts.length === next.starts.length && next.keep_point;
      series = next;
      host.setAttribute("aria-valuemax", series.starts.length - 1);
      choose(keeps ? chosen : series.peak);
      draw();
    },
  };
}
