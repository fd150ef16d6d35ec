"use strict";

const POLL_MILLISECONDS = 2000;
const MOST_ROWS = 200;
const BLUE = "#0072B2", ORANGE = "#D55E00", GREEN = "#009E73";
const SVG = "http://www.w3.org/2000/svg";
const by = (id) => document.getElementById(id);
let last = null;

// All text comes from devices, files and people: it is set as text, never as HTML.
function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function drawn(name, attributes = {}, text = "") {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  return made;
}

function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (count >= 1024 && unit < units.length - 1) { count /= 1024; unit += 1; }
  return `${unit && count < 100 ? count.toFixed(1) : Math.round(count)} ${units[unit]}`;
}

function seconds(count) {
  if (count > 0 && count < 0.95) return `${count.toFixed(1)} s`;
  if (count < 120) return `${Math.round(count)} s`;
  if (count < 7200) return `${Math.round(count / 60)} min`;
  return count < 172800 ? `${Math.round(count / 3600)} h` : `${Math.round(count / 86400)} days`;
}

const isAccuracy = (status) => status.task === "classification";
const percent = (share) => `${(100 * share).toFixed(1)} %`;
const scoreText = (status, score) => score === null ? "–" : isAccuracy(status) ? percent(score) : shortNumber(score);
const shortNumber = (value) => value === 0 ? "0" : Math.abs(value) >= 0.001 && Math.abs(value) < 1e5
  ? String(+value.toPrecision(3)) : value.toExponential(1);

function deviceState(status, device) {
  if (device.revoked) return "revoked";
  return status.running && device.node !== null ? "connected" : "disconnected";
}

// Round numbers between which all values are; those of bytes are round in their unit.
function ticks(low, high, whole, base = 1) {
  if (base > 1) {
    const unit = base ** Math.floor(Math.log(Math.max(high, 1)) / Math.log(base));
    return ticks(low / unit, high / unit, whole).map((each) => each * unit);
  }
  const span = high - low || Math.abs(high) || 1;
  const size = 10 ** Math.floor(Math.log10(span / 3));
  const step = Math.max([1, 2, 5, 10].map((each) => each * size).find((each) => span / each <= 4) || size, whole ? 1 : 0);
  const found = [];
  for (let tick = Math.floor(low / step) * step; tick < high + step * 0.999; tick += step) found.push(+tick.toPrecision(12));
  return found.length > 1 ? found : [found[0], found[0] + step];
}

// A chart over exchanges; null in a series is a gap.
function lineChart(place, exchanges, series, { text, zero = true, most = Infinity, whole = false, base = 1 }) {
  const values = series.flatMap((each) => each.values).filter((value) => value !== null && Number.isFinite(value));
  if (exchanges.length < 2 || values.length < 2) {
    place.replaceChildren(element("p", { class: "empty" }, exchanges.length < 2 ? "not enough exchanges yet" : "devices report none"));
    return;
  }
  // In pixels of the screen, so that text has the same size on a phone.
  const width = Math.max(240, place.clientWidth), height = 230, left = 62, right = 12, top = 10, bottom = 34;
  const marks = ticks(zero ? 0 : Math.min(...values), Math.max(...values), whole, base).filter((mark) => mark <= most);
  const low = marks[0], high = marks[marks.length - 1];
  const first = exchanges[0], stop = exchanges[exchanges.length - 1];
  const across = (exchange) => left + (width - left - right) * (exchange - first) / (stop - first || 1);
  const up = (value) => height - bottom - (height - top - bottom) * (value - low) / (high - low || 1);
  const chart = drawn("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "data-chart": place.id });
  for (const mark of marks) {
    chart.append(drawn("line", { class: mark === low ? "axis" : "grid", x1: left, x2: width - right, y1: up(mark), y2: up(mark) }));
    chart.append(drawn("text", { x: left - 6, y: up(mark) + 4, "text-anchor": "end" }, text(mark)));
  }
  for (const mark of ticks(first, stop, true).filter((each) => each >= first && each <= stop)) {
    chart.append(drawn("text", { x: across(mark), y: height - bottom + 16, "text-anchor": "middle" }, String(mark)));
  }
  chart.append(drawn("text", { x: (left + width - right) / 2, y: height - 3, "text-anchor": "middle" }, "exchange"));
  const lines = drawn("g", { class: "chart-lines" });
  for (const { values: own, colour, dashed } of series) {
    let path = "", open = false;
    own.forEach((value, index) => {
      if (value === null || !Number.isFinite(value)) { open = false; return; }
      path += `${open ? "L" : "M"}${across(exchanges[index]).toFixed(1)} ${up(value).toFixed(1)}`;
      open = true;
    });
    lines.append(drawn("path", { d: path, stroke: colour, ...(dashed ? { "stroke-dasharray": "5 4" } : {}) }));
  }
  chart.append(lines);
  const legend = element("div", { class: "legend" });
  for (const { label, colour } of series.filter((each) => each.label)) {
    const swatch = element("span", { class: "swatch" });
    swatch.style.background = colour;
    legend.append(element("span", {}, swatch, label));
  }
  place.replaceChildren(chart, legend);
}

function bar(share, colour) {
  const shape = drawn("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" });
  shape.append(drawn("rect", { width: (100 * share).toFixed(1), height: 10, fill: colour, "fill-opacity": 0.3 }));
  return element("span", { class: "bar" }, shape, element("span", {}, percent(share)));
}

const differences = (values) => values.map((value, index) => index ? value - values[index - 1] : null);
// Means of up to `count` values before and at each place.
function smoothed(values, count) {
  return values.map((value, index) => {
    const some = values.slice(Math.max(0, index - count + 1), index + 1).filter((each) => each !== null);
    return value === null || !some.length ? null : some.reduce((sum, each) => sum + each, 0) / some.length;
  });
}

function showFigures(status) {
  const active = status.devices.filter((device) => !device.revoked);
  const connected = active.filter((device) => deviceState(status, device) === "connected").length;
  const closed = status.recent[status.recent.length - 1];
  const scored = status.recent.slice(-12).filter((each) => each.samples);
  const samples = scored.reduce((sum, each) => sum + each.samples, 0);
  const score = samples ? scored.reduce((sum, each) => sum + each.score * each.samples, 0) / samples : null;
  const refused = status.devices.reduce((sum, device) => sum + device.refused, 0);
  const figures = [
    ["devices connected", String(connected), `of ${active.length}`],
    ["exchanges", String(status.exchange), status.exchanges === null ? "" : `of ${status.exchanges}`],
    [isAccuracy(status) ? "accuracy" : "mean squared error", scoreText(status, score), score === null ? "not reported" : `last ${scored.length}`],
    ["last exchange", closed ? seconds(Math.max(0, Date.now() / 1000 - closed.closed)) : "–", closed ? "ago" : ""],
    ["bytes", bytes(status.bytes_down), `down, ${bytes(status.bytes_up)} up`],
    ["rejected messages", String(refused), ""],
  ];
  by("figures").replaceChildren(...figures.map(([label, value, note]) =>
    element("div", {}, element("dt", {}, label), element("dd", {}, `${value} `, element("small", {}, note)))));
}

function showCharts(status) {
  const recent = status.recent, exchanges = recent.map((each) => each.exchange);
  const scores = recent.map((each) => each.score);
  const accuracy = isAccuracy(status);
  by("score-caption").textContent = accuracy ? "Accuracy that devices report" : "Mean squared error that devices report";
  lineChart(by("score-chart"), exchanges, [
    { label: "each exchange", values: scores, colour: "#56B4E9" },
    { label: "mean of 12", values: smoothed(scores, 12), colour: ORANGE },
  ], accuracy ? { text: (value) => `${Math.round(100 * value)} %`, zero: false, most: 1 } : { text: shortNumber });
  lineChart(by("answers-chart"), exchanges, [
    { label: "in the exchange", values: recent.map((each) => each.granted), colour: ORANGE, dashed: true },
    { label: "answered", values: recent.map((each) => each.answered), colour: GREEN },
    ...(status.quorum < 1 ? [{ label: "late", values: recent.map((each) => each.late || 0), colour: BLUE }] : []),
  ], { text: String, whole: true });
  lineChart(by("bytes-chart"), exchanges, [
    { label: "down", values: differences(recent.map((each) => each.bytes_down)), colour: BLUE },
    { label: "up", values: differences(recent.map((each) => each.bytes_up)), colour: ORANGE },
  ], { text: bytes, base: 1024 });
  lineChart(by("time-chart"), exchanges, [{ values: differences(recent.map((each) => each.closed)), colour: BLUE }], { text: seconds });
}

function showModels(status) {
  const { held, used, reporting } = status.use;
  by("use-text").textContent = reporting
    ? `Used: weights in predictions, means over the ${reporting} device${reporting > 1 ? "s" : ""} that reported them in the last exchange. Held by: the share of devices, which the server knows.`
    : "Devices do not report which models predict. Held by: the share of devices, which the server knows.";
  // Until their next grant, devices may still hold a model that was retired.
  const inUse = new Set(status.in_use || status.models);
  const order = status.models.map((name, index) => ({ name, version: status.versions[index] })).filter(({ name }) => inUse.has(name));
  const retired = status.models.filter((name) => !inUse.has(name));
  by("retired").textContent = retired.length ? `Retired: ${retired.join(", ")}.` : "";
  order.sort((one, other) => (used[other.name] || 0) - (used[one.name] || 0) || (held[other.name] || 0) - (held[one.name] || 0));
  by("models").tBodies[0].replaceChildren(...order.map(({ name, version }) => element("tr", {},
    element("td", {}, name),
    element("td", {}, name in used ? bar(used[name], BLUE) : "–"),
    element("td", {}, name in held ? bar(held[name], GREEN) : "–"),
    element("td", {}, String(version)))));
}

function showDevices(status) {
  const wanted = by("filter").value.trim().toLowerCase();
  const found = status.devices.filter((device) => device.name.toLowerCase().includes(wanted));
  by("score-column").textContent = isAccuracy(status) ? "accuracy" : "squared error";
  by("shown").textContent = found.length > MOST_ROWS ? `the first ${MOST_ROWS} of ${found.length}` : "";
  by("devices").tBodies[0].replaceChildren(...found.slice(0, MOST_ROWS).map((device) => {
    const state = deviceState(status, device);
    const score = device.last_samples ? device.last_score / device.last_samples : null;
    return element("tr", {},
      element("td", {}, device.name),
      element("td", {}, element("span", { class: `dot ${state}` }), state),
      element("td", {}, scoreText(status, score)),
      element("td", {}, `${device.exchanges - device.missed + device.late} of ${device.exchanges}`),
      element("td", {}, String(device.late)),
      element("td", {}, device.last_exchange < 0 ? "–" : String(device.last_exchange)),
      element("td", {}, String(device.samples)),
      element("td", {}, bytes(device.bytes_down)),
      element("td", {}, bytes(device.bytes_up)),
      element("td", {}, `${bytes(device.held_bytes)} of ${bytes(device.budget)}`),
      element("td", device.refused ? { class: "alarm" } : {}, String(device.refused)),
      element("td", device.outliers ? { class: "alarm" } : {}, String(device.outliers ?? 0)));
  }));
}

function show(status) {
  const state = status.running ? "running" : status.finished ? "finished" : "stopped";
  by("name").textContent = status.name;
  document.title = `${status.name}: ${state}`;
  by("state").textContent = state + (status.frozen ? ", frozen" : "");
  by("state").className = `state ${status.running ? "good" : status.finished ? "" : "bad"}`;
  const ago = seconds(Math.max(0, Date.now() / 1000 - status.written));
  by("summary").textContent = `${status.policy}, ${(status.in_use || status.models).length} models, ${status.quorum < 1 ? `quorum ${percent(status.quorum)}, ` : ""}deployment ${status.deployment}, ofms ${status.version}; status of ${ago} ago.`;
  document.querySelector("main").hidden = false;
  showFigures(status);
  showCharts(status);
  showModels(status);
  showDevices(status);
  by("refusals").textContent = status.refusals.slice(-30).reverse().join("\n") || "none";
  by("events").textContent = status.events.slice().reverse().join("\n") || "none";
}

async function poll() {
  try {
    const answer = await fetch("status.json", { cache: "no-store" });
    if (!answer.ok) throw new Error((await answer.text()).trim());
    last = await answer.json();
    show(last);
    by("problem").hidden = true;
  } catch (error) {
    by("problem").textContent = `No status: ${error.message}`;
    by("problem").hidden = false;
    by("state").textContent = "unreachable";
    by("state").className = "state bad";
  }
  setTimeout(poll, POLL_MILLISECONDS);
}

addEventListener("resize", () => last && showCharts(last));
by("filter").addEventListener("input", () => last && showDevices(last));
poll();
