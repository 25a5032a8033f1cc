// The page of a run. Foreign texts (names, errors, classes) become text nodes, never markup.
"use strict";

const WIDTHS = [320, 640, 960, 1280, 1920];
const CLOCK = { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" };
const KEPT = 600; // samples in the curves
const SILENT_MS = 3000; // after this time without figures, the connection is lost
const STILL_MS = 2000; // after this time without a new picture, a live camera shows a notice
const STAGES = ["read", "preprocess", "infer", "head", "nms", "annotate", "write"];
const stageOrder = (name) => STAGES.includes(name) ? STAGES.indexOf(name) : STAGES.indexOf("nms") + 0.5; // other stages come after nms
const SVG = "http://www.w3.org/2000/svg";
const STATES = {
  live: ["good", "live"], connecting: ["wait", "connecting"], stalled: ["bad", "stalled"],
  waiting: ["bad", "disconnected"], ended: ["over", "ended"],
};

const $ = (id) => document.getElementById(id);
const tiles = new Map();
const history = { times: [], age: new Map(), processed: new Map(), dropped: new Map() };
let figures = null; // the newest figures
let before = null; // the figures before the newest
let lastMessageAt = 0; // performance.now() of the last figures
let disconnected = false; // the run has ended, or the connection is lost
let runEnded = false; // the server sent the event "end"
let enlarged = null; // name of the enlarged camera

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

function makeSvg(tag, attributes) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

const setText = (element, text) => { if (element.textContent !== text) element.textContent = text; };
const isKnown = (value) => value !== null && value !== undefined;
const count = (value) => value.toLocaleString("en");

function formatRate(value) { return isKnown(value) ? (value >= 100 ? value.toFixed(0) : value.toFixed(1)) : "–"; }

function milliseconds(value) {
  if (!isKnown(value)) return "–";
  return value >= 10000 ? `${(value / 1000).toFixed(0)} s` : value >= 1000 ? `${(value / 1000).toFixed(1)} s` : `${value.toFixed(0)} ms`;
}

function pair(low, high) {
  if (isKnown(low) && isKnown(high) && high < 1000) return `${low.toFixed(0)} / ${high.toFixed(0)} ms`;
  return isKnown(low) ? `${milliseconds(low)} / ${milliseconds(high)}` : "–";
}

function duration(seconds) {
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor(seconds % 3600 / 60)} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor(seconds % 86400 / 3600)} h`;
}

function bytes(value) {
  for (const unit of ["B", "kB", "MB"]) {
    if (value < 1000) return `${value < 10 && unit !== "B" ? value.toFixed(1) : value.toFixed(0)} ${unit}`;
    value /= 1000;
  }
  return `${value.toFixed(1)} GB`;
}

function toast(text) {
  setText($("toast"), text);
  $("toast").hidden = false;
  clearTimeout(toast.timer);
  toast.timer = setTimeout(() => { $("toast").hidden = true; }, 5000);
}

// Return a document of the API; null if the request fails, which callers repeat later.
const fetchJson = (path) => fetch(path).then((answer) => answer.ok ? answer.json() : null).catch(() => null);

// ---------------------------------------------------------------- one camera

class Tile {
  constructor(name) {
    this.name = name;
    this.pictureAt = 0;
    this.pending = null;
    this.busy = false;
    this.visible = false;
    this.shown = 0; // number of pictures
    this.canvas = make("canvas", { width: 640, height: 360 });
    this.notice = make("div", { class: "over-picture" });
    this.view = make("button", { class: "view", type: "button", "aria-label": `Enlarge ${name}`, onclick: () => enlarge(name) }, this.canvas, this.notice);
    this.state = make("span", { class: "pill wait" }, "connecting");
    this.size = make("span", { class: "dim" });
    this.facts = {};
    const list = make("dl", { class: "facts" });
    for (const [key, label] of [["fps", "FPS / camera FPS"], ["age", "age p50 / p99"], ["dropped", "dropped"], ["outages", "reconnects / stalls"]]) {
      this.facts[key] = make("dd", {}, "–");
      list.append(make("div", {}, make("dt", {}, label), this.facts[key]));
    }
    this.list = list;
    this.zones = make("div", { class: "zones", hidden: "" });
    this.error = make("p", { class: "why", hidden: "" });
    this.progress = make("div", { class: "way", hidden: "" }, make("i"));
    this.spark = make("div", { class: "spark", title: "frame age over the last minutes" });
    this.url = make("span", { class: "url" });
    this.startStopButton = make("button", { type: "button", hidden: "", onclick: () => this.startOrStop() });
    this.drawButton = make("button", { type: "button", hidden: "", onclick: () => this.openDrawing() }, "Draw lines");
    this.board = make("div", { class: "board" }, this.view);
    const snapshot = make("a", { class: "button", href: `/api/streams/${encodeURIComponent(name)}/snapshot.jpg`, download: `${name}.jpg` }, "Snapshot");
    this.element = make("article", { class: "tile", id: `camera-${name}` }, this.board,
      make("div", { class: "name" }, make("b", { title: name }, name), this.state, this.size), list, this.zones, this.error, this.progress,
      make("div", { class: "foot" }, this.spark, this.url, this.startStopButton, this.drawButton, snapshot));
    observer.observe(this.element);
    this.element.tile = this;
  }

  show(one, index) {
    const [kind, word] = STATES[one.state] ?? ["over", one.state];
    const file = one.kind === "file";
    this.one = one;
    this.state.className = `pill ${one.frozen && one.state === "live" ? "wait" : kind}`;
    setText(this.state, one.frozen && one.state === "live" ? "frozen" : file && one.state === "live" ? "running" : word);
    setText(this.size, one.size ? one.size.replace("x", "×") : "");
    const share = 100 * countDrops(one) / Math.max(1, one.received - (one.dropped.rate ?? 0));
    const reasons = Object.entries(one.dropped).filter(([, n]) => n).map(([reason, n]) => `${reason}: ${count(n)}`).join(", ");
    setText(this.facts.fps, `${formatRate(one.processed_fps)}${isKnown(one.camera_fps) ? ` / ${formatRate(one.camera_fps)}` : ""}`);
    setText(this.facts.age, pair(one.age_ms.p50, one.age_ms.p99));
    this.facts.age.title = "from the arrival of a frame to its detections";
    setText(this.facts.dropped, one.received ? `${share.toFixed(share && share < 10 ? 1 : 0)}%` : "–");
    this.facts.dropped.title = reasons || "none";
    setText(this.facts.outages, `${count(one.reconnects)} / ${count(one.stalls)}`);
    this.list.hidden = file && !isKnown(one.processed_fps) && one.state === "ended";
    for (const key of ["age", "dropped", "outages"]) this.facts[key].parentElement.hidden = file;
    setText(this.facts.fps.previousSibling, file ? "FPS" : "FPS / camera FPS");
    showCounts(this);
    this.error.hidden = !one.error || one.state === "live";
    setText(this.error, one.error ?? "");
    this.progress.hidden = !file;
    if (file) this.progress.firstChild.style.width = `${isKnown(one.expected) && one.expected > 0 ? Math.min(100, 100 * one.processed / one.expected) : one.state === "ended" ? 100 : 0}%`;
    const left = isKnown(one.expected) && one.processed_fps && one.state === "live" ? (one.expected - one.processed) / one.processed_fps : 0;
    setText(this.url, file ? `${count(one.processed)}${isKnown(one.expected) ? ` of ${count(one.expected)}` : ""} frames${left >= 1 ? `, ${duration(left)} left` : ""}` : one.url);
    this.url.title = one.url;
    this.url.hidden = !file;
    this.spark.hidden = file;
    this.startStopButton.hidden = !one.controllable;
    this.drawButton.hidden = file || !one.size || typeof drawLines === "undefined";
    setText(this.startStopButton, one.state === "ended" ? "Start" : "Stop");
    this.index = index;
    this.showNotice();
  }

  // Show over the picture why it does not move.
  showNotice() {
    const one = this.one, lines = [];
    const still = this.pictureAt && performance.now() - this.pictureAt;
    let out = disconnected || one.state !== "live";
    if (disconnected) lines.push(runEnded ? "the run has ended" : "connection lost");
    else if (one.state === "waiting") lines.push("no connection", isKnown(one.next_try_s) ? `next try in ${Math.max(0, Math.ceil(one.next_try_s))} s` : `for ${duration(one.since_s)}`);
    else if (one.state === "stalled") lines.push("no frames", `for ${duration(one.since_s)}`);
    else if (one.state === "connecting") lines.push("connecting", `for ${duration(one.since_s)}`);
    else if (one.state === "ended") lines.push(one.kind === "file" ? "finished" : "stopped");
    else if (!this.shown) lines.push(this.visible ? "waiting for a frame" : "");
    else if (this.visible && !document.hidden && still > STILL_MS + this.expectedGap()) { lines.push("no new frame", `for ${duration(still / 1000)}`); out = true; }
    this.element.classList.toggle("out", out);
    const text = lines.join("|");
    if (this.noticeText !== text) {
      this.noticeText = text;
      this.notice.replaceChildren(...lines.filter(Boolean).map((line, i) => make(i ? "span" : "div", {}, line)));
    }
  }

  expectedGap() { return isKnown(this.one.processed_fps) && this.one.processed_fps > 0 ? 2000 / this.one.processed_fps : 0; }

  // Draw only the newest of the pictures that arrive while another one is decoded.
  async picture(data) {
    this.pending = data;
    if (this.busy) return;
    this.busy = true;
    try {
      while (this.pending) {
        const newest = this.pending;
        this.pending = null;
        const bitmap = await createImageBitmap(new Blob([newest], { type: "image/jpeg" }));
        if (this.canvas.width !== bitmap.width || this.canvas.height !== bitmap.height) {
          this.canvas.width = bitmap.width;
          this.canvas.height = bitmap.height;
          this.view.style.aspectRatio = `${bitmap.width} / ${bitmap.height}`;
        }
        this.canvas.getContext("2d").drawImage(bitmap, 0, 0);
        bitmap.close();
        this.shown += 1;
        this.pictureAt = performance.now();
        if (this.noticeText && this.one) this.showNotice();
      }
    } finally { this.busy = false; }
  }

  async startOrStop() {
    const word = this.one.state === "ended" ? "start" : "stop";
    this.startStopButton.disabled = true;
    await this.post(word, "{}").catch((error) => toast(error.message));
    setTimeout(() => { this.startStopButton.disabled = false; }, 1000);
  }

  // Return the run's response. Throws an Error if the run refuses.
  async post(word, body) {
    const type = { "Content-Type": "application/json" };
    const answer = await fetch(`/api/streams/${encodeURIComponent(this.name)}/${word}`, { method: "POST", headers: type, body })
      .catch(() => { throw new Error("The run did not respond."); });
    const said = await answer.json();
    if (!answer.ok) throw new Error(said.error);
    return said;
  }

  // Let the user draw lines and zones over the live picture.
  openDrawing() {
    const [width, height] = this.one.size.split("x").map(Number), panel = make("div", { class: "drawing" });
    const shapes = this.one.zones.map(({ kind, name, points, sides }) => ({
      kind, name, points: points.map(([x, y]) => [x * width, y * height]), in: sides[0] === "in" ? "" : sides[0], out: sides[1] === "out" ? "" : sides[1],
    }));
    if (enlarged !== this.name) enlarge(this.name);
    this.board.after(panel);
    const drawing = drawLines({ width, height, board: this.board, panel, shapes });
    const end = () => { drawing.end(); panel.remove(); this.drawButton.disabled = false; };
    const save = () => this.post("zones", drawing.text(true)).then((said) => { end(); toast(`${said.asked}; kept in ${said.file}`); }, (error) => drawing.complain(error.message));
    panel.append(make("div", { class: "row" }, make("button", { type: "button", class: "save", onclick: save }, "Save"), make("button", { type: "button", onclick: end }, "Cancel")));
    this.drawButton.disabled = true;
  }
}

function enlarge(name) {
  enlarged = enlarged === name ? null : name;
  for (const tile of tiles.values()) tile.element.classList.toggle("big", tile.name === enlarged);
  if (enlarged) tiles.get(enlarged).element.scrollIntoView({ block: "nearest" });
  updateStreams();
}

// ---------------------------------------------------------------- pictures: one response for all cameras with the same width

const observer = new IntersectionObserver((entries) => {
  for (const entry of entries) entry.target.tile.visible = entry.isIntersecting;
  updateStreams();
}, { rootMargin: "100px" });

const requests = new Map(); // request -> AbortController

function pictureUrls() {
  const byWidth = new Map();
  const visible = [...tiles.values()].filter((tile) => tile.visible && tile.one && tile.one.state !== "ended");
  if (document.hidden || disconnected) return byWidth;
  for (const tile of visible) {
    const pixels = tile.view.clientWidth * Math.min(devicePixelRatio, 2);
    const width = WIDTHS.find((one) => one >= pixels * .9) ?? WIDTHS.at(-1);
    byWidth.set(width, [...(byWidth.get(width) ?? []), tile.name]);
  }
  const rate = visible.length <= 1 ? 25 : visible.length <= 4 ? 15 : Math.max(3, Math.floor(60 / visible.length));
  const urls = new Map();
  for (const [width, names] of byWidth) {
    const ownRate = enlarged && !names.includes(enlarged) ? Math.min(rate, 4) : enlarged ? 25 : rate;
    urls.set(`/api/pictures?cameras=${names.sort().map(encodeURIComponent).join(",")}&width=${width}&rate=${ownRate}`, names);
  }
  return urls;
}

function updateStreams() {
  clearTimeout(updateStreams.timer);
  updateStreams.timer = setTimeout(() => {
    const urls = pictureUrls();
    for (const [url, control] of requests) if (!urls.has(url)) { control.abort(); requests.delete(url); }
    for (const url of urls.keys()) if (!requests.has(url)) readStream(url);
  }, 150);
}

async function readStream(url) {
  const control = new AbortController();
  requests.set(url, control);
  try {
    const answer = await fetch(url, { signal: control.signal });
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    await readParts(answer.body.getReader());
  } catch { /* requested again below, if still needed */ }
  if (requests.get(url) === control) {
    requests.delete(url);
    setTimeout(updateStreams, 1000);
  }
}

// Read a multipart response: each part is a head, an empty line, and as many bytes as the head says.
async function readParts(reader) {
  const text = new TextDecoder();
  let buffer = new Uint8Array(0), head = null;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const joined = new Uint8Array(buffer.length + value.length);
    joined.set(buffer);
    joined.set(value, buffer.length);
    buffer = joined;
    for (;;) {
      if (!head) {
        const end = endOfHead(buffer);
        if (end < 0) break;
        head = text.decode(buffer.subarray(0, end));
        buffer = buffer.subarray(end);
      }
      const length = Number(/content-length: (\d+)/i.exec(head)?.[1] ?? 0);
      if (buffer.length < length) break;
      const name = /x-camera: (\S+)/i.exec(head)?.[1];
      tiles.get(name)?.picture(buffer.slice(0, length)).catch(() => {});
      buffer = buffer.subarray(length);
      head = null;
    }
  }
}

function endOfHead(data) {
  for (let i = 0; i + 3 < data.length; i += 1) if (data[i] === 13 && data[i + 1] === 10 && data[i + 2] === 13 && data[i + 3] === 10) return i + 4;
  return -1;
}

// ---------------------------------------------------------------- figures

function show(now) {
  before = figures;
  figures = now;
  lastMessageAt = performance.now();
  disconnected = false;
  const lost = now.streams.filter((one) => one.state !== "live");
  const file = now.streams.length > 0 && now.streams.every((one) => one.kind === "file");
  const problems = lost.length && !file ? [`${lost.length} of ${now.streams.length} down`] : [];
  if (now.failing.length) problems.push(`not written: ${now.failing.join(", ")}`);
  setHealth(now.healthy ? problems.length ? "wait" : "good" : "bad", problems.join("; ") || (now.healthy ? "healthy" : "not healthy"));
  setText($("uptime"), `up ${duration(now.uptime_s)}`);
  const live = now.streams.filter((one) => one.state === "live");
  setNumber("live", file ? `${now.streams.length}` : `${live.length} of ${now.streams.length}`, file ? (now.streams.length === 1 ? "file" : "files") : "cameras live");
  setNumber("fps", formatRate(now.end_to_end_fps));
  setNumber("inference", formatRate(now.inference_fps));
  const ages = live.map((one) => one.age_ms.p50).filter(isKnown).sort((a, b) => a - b);
  setNumber("age", milliseconds(ages.length ? ages[Math.floor(ages.length / 2)] : null));
  setNumber("cpu", isKnown(now.cpu_share) ? `${(100 * now.cpu_share).toFixed(0)}%` : "–",
    isKnown(now.computer_share) ? `CPU used (${(100 * now.computer_share).toFixed(0)}% by all programs)` : "CPU used");
  setNumber("capacity", isKnown(now.capacity) ? now.capacity.toFixed(1) : "–");
  $("n-age").hidden = $("n-capacity").hidden = $("events").hidden = file;
  $("bottleneck").hidden = !now.bottleneck;
  setText($("bottleneck"), now.bottleneck);
  $("bottleneck").classList.toggle("bad", isKnown(now.capacity) && now.capacity < live.length); // frames are dropped
  document.querySelector("main").classList.toggle("counting", now.streams.some((one) => one.zones?.length));
  showCameras([...now.streams, ...now.stopped.map(stoppedCamera)]);
  showStages(now.busy);
  addSample(now);
  showCurves();
}

function setNumber(id, text, label) {
  const box = $(`n-${id}`);
  setText(box.firstElementChild, text);
  if (label) setText(box.lastElementChild, label);
}

function setHealth(kind, text) {
  $("health").className = `pill ${kind}`;
  setText($("health"), text);
  document.title = kind === "good" ? "detect-video" : `${text} · detect-video`;
}

function showCameras(streams) {
  $("none").hidden = streams.length > 0;
  $("cameras").classList.toggle("two", streams.length <= 3);
  let changed = false;
  const names = new Set(streams.map((one) => one.name));
  for (const [name, tile] of tiles) if (!names.has(name)) { observer.unobserve(tile.element); tile.element.remove(); tiles.delete(name); changed = true; }
  streams.forEach((one, index) => {
    let tile = tiles.get(one.name);
    if (!tile) {
      tile = new Tile(one.name);
      tiles.set(one.name, tile);
      $("cameras").append(tile.element);
      changed = true;
    }
    changed ||= tile.one && (tile.one.state === "ended") !== (one.state === "ended");
    tile.show(one, index);
  });
  if (changed) updateStreams();
}

// Return the figures of a camera that a user stopped. Its tile stays, so that it can be started again.
function stoppedCamera(name) {
  return { name, kind: "camera", url: "", state: "ended", since_s: 0, received: 0, processed: 0, dropped: {}, reconnects: 0, stalls: 0, age_ms: {},
    camera_fps: null, processed_fps: null, size: null, frozen: false, error: null, next_try_s: null, expected: null, zones: [], controllable: true };
}

// ---------------------------------------------------------------- lines and zones

const past = { days: [], sums: new Map() }; // counts of each camera's lines and zones on earlier days

const sums = (one) => `${count(one.in)} / ${count(one.out)}`;
const added = (all) => all.reduce((sum, one) => ({ in: sum.in + one.in, out: sum.out + one.out }), { in: 0, out: 0 });

function showCounts(tile) {
  const found = tile.one.zones ?? [], names = found.map((one) => one.name).join("\n");
  tile.zones.hidden = !found.length;
  if (tile.zones.names !== names) {
    tile.zones.names = names;
    tile.zones.replaceChildren(...found.map((one) => make("div", { class: "counted" }, make("b", { title: one.name }, one.name), make("span", { class: "now" }),
      makeBars(), make("span", { class: "dim small" }), makeBars(), make("span", { class: "dim small" }))));
  }
  found.forEach((one, i) => {
    const [, now, hours, today, days, before] = tile.zones.children[i].children;
    setText(now, `${one.sides[0]} ${count(one.today.in)}, ${one.sides[1]} ${count(one.today.out)}${isKnown(one.inside) ? `, ${count(one.inside)} inside` : ""}`);
    hours.toggleAttribute("hidden", tile.one.kind === "file");
    today.hidden = tile.one.kind === "file"; // a file has its own time
    drawBars(hours, one.hours, (hour) => `${hour}:00 to ${hour + 1}:00`);
    setText(today, `today by the hour (the machine's time), ${one.sides.join(" and ")}`);
    const old = past.sums.get(`${tile.name}\n${one.name}`);
    before.hidden = !old;
    days.toggleAttribute("hidden", !old);
    if (!old) return;
    drawBars(days, old, (day) => past.days[day]);
    setText(before, `yesterday ${sums(old.at(-1))}, last ${old.length} days ${sums(added(old))}`);
  });
}

function makeBars() { return makeSvg("svg", { class: "bars", preserveAspectRatio: "none", role: "img" }); }

// Draw a bar for each pair, with in stacked on out.
function drawBars(svg, pairs, name) {
  const text = pairs.map(sums).join();
  if (svg.text === text) return;
  svg.text = text;
  svg.setAttribute("viewBox", `0 0 ${pairs.length} 100`);
  svg.setAttribute("aria-label", pairs.map((one, i) => one.in + one.out ? `${name(i)}: in ${one.in}, out ${one.out}` : "").filter(Boolean).join("; ") || "nothing");
  const most = Math.max(1, ...pairs.map((one) => one.in + one.out));
  svg.replaceChildren(...pairs.map((one, i) => {
    const group = makeSvg("g", {}), title = makeSvg("title", {}), below = 100 * one.out / most, above = 100 * one.in / most;
    title.textContent = `${name(i)}: in ${one.in}, out ${one.out}`;
    group.append(title, makeSvg("rect", { class: "all", x: i, y: 0, width: 1, height: 100 }),
      makeSvg("rect", { class: "came", x: i + .1, y: 100 - below - above, width: .8, height: above }), makeSvg("rect", { class: "went", x: i + .1, y: 100 - below, width: .8, height: below }));
    return group;
  }));
}

async function loadCounts() {
  const found = await fetchJson("/api/counts");
  past.days = found?.days ?? past.days;
  past.sums = found ? new Map(found.zones.map((one) => [`${one.camera}\n${one.name}`, one.sums])) : past.sums;
}

function showStages(busy) {
  const names = Object.keys(busy).sort((a, b) => stageOrder(a) - stageOrder(b));
  $("work").hidden = names.length === 0;
  const box = $("stages");
  if (showStages.names !== names.join()) {
    showStages.names = names.join();
    box.replaceChildren(...names.map((name) => make("div", { class: `stage ${STAGES.includes(name) ? name : ""}` }, name, make("div", { class: "track" }, make("i")), make("b"))));
  }
  names.forEach((name, i) => {
    const row = box.children[i];
    row.querySelector("i").style.width = `${Math.min(100, 100 * busy[name])}%`;
    setText(row.lastElementChild, `${(100 * busy[name]).toFixed(0)}%`);
  });
}

// ---------------------------------------------------------------- curves

function countDrops(one) { // without frames above the camera's rate, as count_drops in base.py
  return Object.entries(one.dropped).reduce((sum, [why, n]) => why === "rate" ? sum : sum + n, 0);
}

function addSample(now) {
  const at = Date.parse(now.time_utc) / 1000;
  const last = history.times.at(-1);
  if (last !== undefined && (at <= last || !before)) return; // the first rates need two samples
  const old = new Map((before?.streams ?? []).map((one) => [one.name, one]));
  const seconds = before ? at - Date.parse(before.time_utc) / 1000 : 0;
  history.times.push(at);
  for (const one of now.streams) {
    const then = old.get(one.name);
    const each = (value, past) => then && seconds > 0 && value >= past ? (value - past) / seconds : null;
    addValue(history.age, one.name, one.state === "live" ? one.age_ms.p50 : null);
    addValue(history.processed, one.name, each(one.processed, then?.processed));
    addValue(history.dropped, one.name, then ? each(countDrops(one), countDrops(then)) : null);
  }
  for (const map of [history.age, history.processed, history.dropped]) {
    for (const [name, values] of map) {
      while (values.length < history.times.length) values.push(null);
      if (!now.streams.some((one) => one.name === name)) map.delete(name);
    }
  }
  while (history.times.length > KEPT) {
    history.times.shift();
    for (const map of [history.age, history.processed, history.dropped]) for (const values of map.values()) values.shift();
  }
}

function addValue(map, name, value) {
  if (!map.has(name)) map.set(name, new Array(history.times.length - 1).fill(null));
  map.get(name).push(value);
}

async function loadHistory() {
  const past = await fetchJson("/api/history");
  if (!past) return; // the curves start now
  history.times = past.times_s;
  history.age = new Map(Object.entries(past.age_ms));
  history.processed = new Map(Object.entries(past.processed_fps));
  history.dropped = new Map(Object.entries(past.dropped_fps));
}

const charts = {
  age: { values: () => history.age, text: milliseconds },
  drops: { values: () => history.dropped, text: formatRate },
  rate: { values: () => history.processed, text: formatRate },
};

function round(value) {
  if (!(value > 0)) return 1;
  const unit = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].find((step) => step * unit >= value) * unit;
}

function linePath(values, top, from, to) {
  const step = 100 / Math.max(1, to - from - 1);
  let path = "", pen = false;
  for (let i = from; i < to; i += 1) {
    const value = values[i];
    if (!isKnown(value)) { pen = false; continue; }
    path += `${pen ? "L" : "M"}${((i - from) * step).toFixed(2)} ${(100 - 100 * Math.min(value, top) / top).toFixed(2)}`;
    pen = true;
  }
  return path;
}

function showCurves() {
  const size = history.times.length, from = Math.max(0, size - KEPT);
  for (const [id, chart] of Object.entries(charts)) {
    const entries = [...chart.values()].filter(([, values]) => values.some(isKnown));
    const highest = Math.max(0, ...entries.map(([, values]) => values.reduce((most, v) => isKnown(v) && v > most ? v : most, 0)));
    $(id).hidden = size < 3 || !entries.length || (id === "drops" && !figures.streams.some((one) => Object.keys(one.dropped).length || one.received > one.processed + 1000));
    if ($(id).hidden) continue;
    const top = round(highest);
    plot($(id).querySelector(".plot"), chart, entries, top, from, size);
  }
  for (const tile of tiles.values()) {
    const values = history.age.get(tile.name);
    if (tile.spark.hidden || !values || size < 3) continue;
    const start = Math.max(0, size - 120);
    const top = Math.max(1, ...values.slice(start).filter(isKnown)) * 1.15;
    let svg = tile.spark.firstChild;
    if (!svg) {
      svg = makeSvg("svg", { class: "curves", viewBox: "0 0 100 100", preserveAspectRatio: "none", "aria-hidden": "true" });
      svg.append(makeSvg("path", {}));
      tile.spark.append(svg);
    }
    svg.firstChild.setAttribute("d", linePath(values, top, start, size));
  }
}

function plot(box, chart, entries, top, from, to) {
  if (!box.firstChild) {
    const svg = makeSvg("svg", { class: "curves", viewBox: "0 0 100 100", preserveAspectRatio: "none", "aria-hidden": "true" });
    const area = make("div", { class: "area" }, svg);
    box.append(make("div", { class: "scale" }, make("span"), make("span"), make("span", {}, "0")), area,
      make("div", { class: "times" }, make("span"), make("span")), make("div", { class: "key" }));
    area.addEventListener("pointermove", (event) => { const b = area.getBoundingClientRect(); box.at = Math.min(1, Math.max(0, (event.clientX - b.x) / b.width)); showCurves(); });
    area.addEventListener("pointerleave", () => { box.at = undefined; showCurves(); });
  }
  const svg = box.querySelector("svg"), [high, middle] = box.querySelectorAll(".scale span");
  setText(high, String(top));
  setText(middle, String(top / 2));
  const at = box.at === undefined ? to - 1 : from + Math.round(box.at * (to - from - 1));
  const lines = [makeSvg("line", { x1: 0, x2: 100, y1: 0, y2: 0 }), makeSvg("line", { x1: 0, x2: 100, y1: 50, y2: 50 }), makeSvg("line", { x1: 0, x2: 100, y1: 100, y2: 100 })];
  if (box.at !== undefined) lines.push(makeSvg("line", { class: "pointer", x1: 100 * box.at, x2: 100 * box.at, y1: 0, y2: 100 }));
  svg.replaceChildren(...lines, ...entries.map(([name, values]) => makeSvg("path", { class: series(name), d: linePath(values, top, from, to) })));
  const [first, last] = box.querySelectorAll(".times span");
  const clock = (s) => new Date(s * 1000).toLocaleTimeString([], CLOCK);
  setText(first, clock(history.times[from]));
  setText(last, box.at === undefined ? "now" : clock(history.times[at]));
  box.querySelector(".key").replaceChildren(...entries.map(([name, values]) => make("span", {}, make("i", { class: series(name) }), `${name} `, make("b", {}, chart.text(values[at])))));
}

const series = (name) => `s${(tiles.get(name)?.index ?? 0) % 8}`;

// ---------------------------------------------------------------- events and recordings

const WORDS = { camera_up: "connected", camera_down: "disconnected", appears: "appears", leaves: "leaves" };

function addEvent(one) {
  const list = $("events").querySelector("ol");
  const what = one.class ? `${one.class}${isKnown(one.track) ? ` ${one.track}` : isKnown(one.count) && one.count > 1 ? ` (${one.count})` : ""} ${WORDS[one.event] ?? one.event}${one.zone ? ` ${one.zone}` : ""}${one.direction ? ` (${one.side ?? one.direction})` : ""}` : `${WORDS[one.event] ?? one.event}${one.reason ? `: ${one.reason}` : ""}`;
  const kind = one.event === "camera_down" ? "down" : one.event === "camera_up" ? "up" : "";
  const when = new Date(one.time_utc);
  list.prepend(make("li", { class: kind }, make("time", { datetime: one.time_utc, title: when.toLocaleString() }, when.toLocaleTimeString([], CLOCK)),
    make("span", { class: "of", title: one.camera }, one.camera), make("span", { class: "what" }, what, ...(one.snapshot ? [" ", make("a", { href: `/api/recordings/${one.snapshot.split("/").map(encodeURIComponent).join("/")}`, target: "_blank" }, "picture")] : []))));
  while (list.children.length > 100) list.lastChild.remove();
  $("events").querySelector(".empty").hidden = true;
}

async function recordings() {
  const answer = await fetchJson("/api/recordings?kind=video&limit=30");
  if (!answer) return;
  const { recordings: found, more } = answer;
  $("recordings").hidden = !found.length;
  $("more").hidden = !more;
  $("recordings").querySelector("tbody").replaceChildren(...found.map((one) => make("tr", {},
    make("td", { title: one.name }, new Date(one.start_utc).toLocaleString([], { month: "short", day: "numeric", ...CLOCK })),
    make("td", {}, one.camera), make("td", { class: "right" }, bytes(one.bytes)),
    make("td", { class: "right" }, make("a", { href: one.url, download: "", title: `Download ${one.name}` }, one.finished ? "Download" : "Recording …"),
      ...(one.boxes_url ? [" ", make("a", { href: one.boxes_url, download: "", title: "Boxes as subtitles: save them next to the video" }, "Boxes")] : [])))));
}

// Show the newest pictures of events, without requesting shown ones again.
async function snapshots() {
  const found = (await fetchJson("/api/recordings?kind=snapshots&limit=8"))?.recordings, box = $("snapshots").querySelector(".shots");
  if (!found) return;
  $("snapshots").hidden = !found.length;
  const existing = new Map([...box.children].map((one) => [one.getAttribute("href"), one]));
  box.replaceChildren(...found.map((one) => existing.get(one.url) ?? make("a", { href: one.url, target: "_blank", title: one.name },
    make("img", { src: one.url, alt: `${one.camera}, ${one.name}`, loading: "lazy" }),
    make("span", {}, `${new Date(one.start_utc).toLocaleTimeString([], CLOCK)} ${one.camera}`))));
}

// ---------------------------------------------------------------- the connection to the run

function showDisconnected(text) {
  disconnected = true;
  setHealth("bad", text);
  for (const tile of tiles.values()) if (tile.one) tile.showNotice();
  updateStreams();
}

function listen() {
  const source = new EventSource("/api/events");
  source.addEventListener("figures", (event) => { runEnded = false; const wasDisconnected = disconnected; show(JSON.parse(event.data)); if (wasDisconnected) updateStreams(); });
  source.addEventListener("event", (event) => { if (event.lastEventId) { if (Number(event.lastEventId) <= listen.last) return; listen.last = Number(event.lastEventId); } addEvent(JSON.parse(event.data)); });
  source.addEventListener("lost", (event) => toast(`${JSON.parse(event.data).lost} events came too fast to be shown.`));
  source.addEventListener("silent", () => { if (figures) showDisconnected("the run is not responding"); });
  source.addEventListener("end", () => { runEnded = true; showDisconnected("the run has ended"); });
  source.onerror = async () => {
    if (!runEnded) showDisconnected("connection lost");
    if (source.readyState === EventSource.CLOSED) { // the server refused it: the session may have ended
      const answer = await fetch("/api/history").catch(() => null);
      if (answer?.status === 401) location.assign("/login");
      else setTimeout(listen, 2000);
    }
  };
}
listen.last = 0;

setInterval(() => {
  if (!disconnected && figures && performance.now() - lastMessageAt > SILENT_MS) showDisconnected("connection lost");
  for (const tile of tiles.values()) if (tile.one) tile.showNotice();
}, 500);
document.addEventListener("visibilitychange", updateStreams);
addEventListener("resize", updateStreams);
loadHistory().then(listen);
const files = () => { recordings(); snapshots(); };
files();
setInterval(() => { if (!document.hidden) files(); }, 10000);
loadCounts();
setInterval(() => { if (!document.hidden && figures?.streams.some((one) => one.zones?.length)) loadCounts(); }, 60000);
