// The page of a run. Texts from outside (names, errors, classes) become text nodes, never markup.
"use strict";

const WIDTHS = [320, 640, 960, 1280, 1920];
const CLOCK = { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" };
const KEPT = 600; // samples of the curves
const SILENT_MS = 3000; // without figures: the run or the connection has ended
const STILL_MS = 2000; // a live camera without a new picture
const STAGES = ["read", "preprocess", "infer", "head", "nms", "annotate", "write"];
const place = (name) => STAGES.includes(name) ? STAGES.indexOf(name) : STAGES.indexOf("nms") + 0.5; // others come after nms
const SVG = "http://www.w3.org/2000/svg";
const STATES = {
  live: ["good", "live"], connecting: ["wait", "connecting"], stalled: ["bad", "stalled"],
  waiting: ["bad", "disconnected"], ended: ["over", "ended"],
};

const $ = (id) => document.getElementById(id);
const tiles = new Map();
const history = { times: [], age: new Map(), processed: new Map(), dropped: new Map() };
let figures = null; // the last ones
let before = null; // the previous ones
let heardAt = 0; // performance.now() of the last message
let over = false; // the run has ended
let finished = false; // the server announced the end
let big = null; // name of the enlarged camera

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

function draw(tag, attributes) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

const say = (element, text) => { if (element.textContent !== text) element.textContent = text; };
const known = (value) => value !== null && value !== undefined;
const count = (value) => value.toLocaleString("en");

function rate(value) { return known(value) ? (value >= 100 ? value.toFixed(0) : value.toFixed(1)) : "–"; }

function milliseconds(value) {
  if (!known(value)) return "–";
  return value >= 10000 ? `${(value / 1000).toFixed(0)} s` : value >= 1000 ? `${(value / 1000).toFixed(1)} s` : `${value.toFixed(0)} ms`;
}

function pair(low, high) {
  if (known(low) && known(high) && high < 1000) return `${low.toFixed(0)} / ${high.toFixed(0)} ms`;
  return known(low) ? `${milliseconds(low)} / ${milliseconds(high)}` : "–";
}

function span(seconds) {
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
  say($("toast"), text);
  $("toast").hidden = false;
  clearTimeout(toast.timer);
  toast.timer = setTimeout(() => { $("toast").hidden = true; }, 5000);
}

// Fetch a document of the API; null if there is none now, so the caller retries later.
const read = (path) => fetch(path).then((answer) => answer.ok ? answer.json() : null).catch(() => null);

// ---------------------------------------------------------------- one camera

class Tile {
  constructor(name) {
    this.name = name;
    this.pictureAt = 0;
    this.pending = null;
    this.busy = false;
    this.seen = false;
    this.shown = 0; // pictures
    this.canvas = make("canvas", { width: 640, height: 360 });
    this.words = make("div", { class: "over-picture" });
    this.view = make("button", { class: "view", type: "button", "aria-label": `Enlarge ${name}`, onclick: () => enlarge(name) }, this.canvas, this.words);
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
    this.why = make("p", { class: "why", hidden: "" });
    this.way = make("div", { class: "way", hidden: "" }, make("i"));
    this.spark = make("div", { class: "spark", title: "frame age over the last minutes" });
    this.url = make("span", { class: "url" });
    this.change = make("button", { type: "button", hidden: "", onclick: () => this.ask() });
    this.lines = make("button", { type: "button", hidden: "", onclick: () => this.draw() }, "Draw lines");
    this.board = make("div", { class: "board" }, this.view);
    const snapshot = make("a", { class: "button", href: `/api/streams/${encodeURIComponent(name)}/snapshot.jpg`, download: `${name}.jpg` }, "Snapshot");
    this.element = make("article", { class: "tile", id: `camera-${name}` }, this.board,
      make("div", { class: "name" }, make("b", { title: name }, name), this.state, this.size), list, this.zones, this.why, this.way,
      make("div", { class: "foot" }, this.spark, this.url, this.change, this.lines, snapshot));
    observer.observe(this.element);
    this.element.tile = this;
  }

  show(one, index) {
    const [kind, word] = STATES[one.state] ?? ["over", one.state];
    const file = one.kind === "file";
    this.one = one;
    this.state.className = `pill ${one.frozen && one.state === "live" ? "wait" : kind}`;
    say(this.state, one.frozen && one.state === "live" ? "frozen" : file && one.state === "live" ? "running" : word);
    say(this.size, one.size ? one.size.replace("x", "×") : "");
    const total = Object.values(one.dropped).reduce((sum, n) => sum + n, 0);
    const reasons = Object.entries(one.dropped).filter(([, n]) => n).map(([reason, n]) => `${reason}: ${count(n)}`).join(", ");
    say(this.facts.fps, `${rate(one.processed_fps)}${known(one.camera_fps) ? ` / ${rate(one.camera_fps)}` : ""}`);
    say(this.facts.age, pair(one.age_ms.p50, one.age_ms.p99));
    this.facts.age.title = "from the arrival of a frame to its detections";
    say(this.facts.dropped, one.received ? `${(100 * total / one.received).toFixed(total && total < one.received / 10 ? 1 : 0)}%` : "–");
    this.facts.dropped.title = reasons || "none";
    say(this.facts.outages, `${count(one.reconnects)} / ${count(one.stalls)}`);
    this.list.hidden = file && !known(one.processed_fps) && one.state === "ended";
    for (const key of ["age", "dropped", "outages"]) this.facts[key].parentElement.hidden = file;
    say(this.facts.fps.previousSibling, file ? "FPS" : "FPS / camera FPS");
    counts(this);
    this.why.hidden = !one.error || one.state === "live";
    say(this.why, one.error ?? "");
    this.way.hidden = !file;
    if (file) this.way.firstChild.style.width = `${known(one.expected) && one.expected > 0 ? Math.min(100, 100 * one.processed / one.expected) : one.state === "ended" ? 100 : 0}%`;
    const left = known(one.expected) && one.processed_fps && one.state === "live" ? (one.expected - one.processed) / one.processed_fps : 0;
    say(this.url, file ? `${count(one.processed)}${known(one.expected) ? ` of ${count(one.expected)}` : ""} frames${left >= 1 ? `, ${span(left)} left` : ""}` : one.url);
    this.url.title = one.url;
    this.url.hidden = !file;
    this.spark.hidden = file;
    this.change.hidden = !one.controllable;
    this.lines.hidden = file || !one.size || typeof drawLines === "undefined";
    say(this.change, one.state === "ended" ? "Start" : "Stop");
    this.index = index;
    this.speak();
  }

  // Return the text over the picture: why it does not move.
  speak() {
    const one = this.one, lines = [];
    const still = this.pictureAt && performance.now() - this.pictureAt;
    let out = over || one.state !== "live";
    if (over) lines.push(finished ? "the run has ended" : "connection lost");
    else if (one.state === "waiting") lines.push("no connection", known(one.next_try_s) ? `next try in ${Math.max(0, Math.ceil(one.next_try_s))} s` : `for ${span(one.since_s)}`);
    else if (one.state === "stalled") lines.push("no frames", `for ${span(one.since_s)}`);
    else if (one.state === "connecting") lines.push("connecting", `for ${span(one.since_s)}`);
    else if (one.state === "ended") lines.push(one.kind === "file" ? "finished" : "stopped");
    else if (!this.shown) lines.push(this.seen ? "waiting for a frame" : "");
    else if (this.seen && !document.hidden && still > STILL_MS + this.patience()) { lines.push("no new frame", `for ${span(still / 1000)}`); out = true; }
    this.element.classList.toggle("out", out);
    const text = lines.join("|");
    if (this.said !== text) {
      this.said = text;
      this.words.replaceChildren(...lines.filter(Boolean).map((line, i) => make(i ? "span" : "div", {}, line)));
    }
  }

  patience() { return known(this.one.processed_fps) && this.one.processed_fps > 0 ? 2000 / this.one.processed_fps : 0; }

  // Draw only the newest picture: one that arrives while another is decoded replaces it.
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
        if (this.said && this.one) this.speak();
      }
    } finally { this.busy = false; }
  }

  async ask() {
    const word = this.one.state === "ended" ? "start" : "stop";
    this.change.disabled = true;
    await this.post(word, "{}").catch((error) => toast(error.message));
    setTimeout(() => { this.change.disabled = false; }, 1000);
  }

  // Return the run's response. Throws an Error if it refuses.
  async post(word, body) {
    const type = { "Content-Type": "application/json" };
    const answer = await fetch(`/api/streams/${encodeURIComponent(this.name)}/${word}`, { method: "POST", headers: type, body })
      .catch(() => { throw new Error("The run did not respond."); });
    const said = await answer.json();
    if (!answer.ok) throw new Error(said.error);
    return said;
  }

  // Draw lines and zones over the live picture; the run counts at them from its next frame on.
  draw() {
    const [width, height] = this.one.size.split("x").map(Number), panel = make("div", { class: "drawing" });
    const shapes = this.one.zones.map(({ kind, name, points, sides }) => ({
      kind, name, points: points.map(([x, y]) => [x * width, y * height]), in: sides[0] === "in" ? "" : sides[0], out: sides[1] === "out" ? "" : sides[1],
    }));
    if (big !== this.name) enlarge(this.name);
    this.board.after(panel);
    const drawing = drawLines({ width, height, board: this.board, panel, shapes });
    const end = () => { drawing.end(); panel.remove(); this.lines.disabled = false; };
    const save = () => this.post("zones", drawing.text(true)).then((said) => { end(); toast(`${said.asked}; kept in ${said.file}`); }, (error) => drawing.complain(error.message));
    panel.append(make("div", { class: "row" }, make("button", { type: "button", class: "save", onclick: save }, "Save"), make("button", { type: "button", onclick: end }, "Cancel")));
    this.lines.disabled = true;
  }
}

function enlarge(name) {
  big = big === name ? null : name;
  for (const tile of tiles.values()) tile.element.classList.toggle("big", tile.name === big);
  if (big) tiles.get(big).element.scrollIntoView({ block: "nearest" });
  watch();
}

// ---------------------------------------------------------------- pictures: one response for all cameras of one width

const observer = new IntersectionObserver((entries) => {
  for (const entry of entries) entry.target.tile.seen = entry.isIntersecting;
  watch();
}, { rootMargin: "100px" });

const groups = new Map(); // request -> AbortController

function wishes() {
  const wanted = new Map();
  const seen = [...tiles.values()].filter((tile) => tile.seen && tile.one && tile.one.state !== "ended");
  if (document.hidden || over) return wanted;
  for (const tile of seen) {
    const wish = tile.view.clientWidth * Math.min(devicePixelRatio, 2);
    const width = WIDTHS.find((one) => one >= wish * .9) ?? WIDTHS.at(-1);
    wanted.set(width, [...(wanted.get(width) ?? []), tile.name]);
  }
  const few = seen.length <= 1 ? 25 : seen.length <= 4 ? 15 : Math.max(3, Math.floor(60 / seen.length));
  const urls = new Map();
  for (const [width, names] of wanted) {
    const pace = big && !names.includes(big) ? Math.min(few, 4) : big ? 25 : few;
    urls.set(`/api/pictures?cameras=${names.sort().map(encodeURIComponent).join(",")}&width=${width}&rate=${pace}`, names);
  }
  return urls;
}

function watch() {
  clearTimeout(watch.timer);
  watch.timer = setTimeout(() => {
    const urls = wishes();
    for (const [url, control] of groups) if (!urls.has(url)) { control.abort(); groups.delete(url); }
    for (const url of urls.keys()) if (!groups.has(url)) follow(url);
  }, 150);
}

async function follow(url) {
  const control = new AbortController();
  groups.set(url, control);
  try {
    const answer = await fetch(url, { signal: control.signal });
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    await parts(answer.body.getReader());
  } catch { /* requested again below, if still needed */ }
  if (groups.get(url) === control) {
    groups.delete(url);
    setTimeout(watch, 1000);
  }
}

// Read multipart: a head up to an empty line, then as many bytes as it states.
async function parts(reader) {
  const text = new TextDecoder();
  let held = new Uint8Array(0), head = null;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const joined = new Uint8Array(held.length + value.length);
    joined.set(held);
    joined.set(value, held.length);
    held = joined;
    for (;;) {
      if (!head) {
        const end = blank(held);
        if (end < 0) break;
        head = text.decode(held.subarray(0, end));
        held = held.subarray(end);
      }
      const length = Number(/content-length: (\d+)/i.exec(head)?.[1] ?? 0);
      if (held.length < length) break;
      const name = /x-camera: (\S+)/i.exec(head)?.[1];
      tiles.get(name)?.picture(held.slice(0, length)).catch(() => {});
      held = held.subarray(length);
      head = null;
    }
  }
}

function blank(data) {
  for (let i = 0; i + 3 < data.length; i += 1) if (data[i] === 13 && data[i + 1] === 10 && data[i + 2] === 13 && data[i + 3] === 10) return i + 4;
  return -1;
}

// ---------------------------------------------------------------- figures

function show(now) {
  before = figures;
  figures = now;
  heardAt = performance.now();
  over = false;
  const lost = now.streams.filter((one) => one.state !== "live");
  const file = now.streams.length > 0 && now.streams.every((one) => one.kind === "file");
  health(now.healthy ? lost.length && !file ? "wait" : "good" : "bad", now.healthy ? lost.length && !file ? `${lost.length} of ${now.streams.length} down` : "healthy" : "not healthy");
  say($("uptime"), `up ${span(now.uptime_s)}`);
  const live = now.streams.filter((one) => one.state === "live");
  number("live", file ? `${now.streams.length}` : `${live.length} of ${now.streams.length}`, file ? (now.streams.length === 1 ? "file" : "files") : "cameras live");
  number("fps", rate(now.end_to_end_fps));
  number("inference", rate(now.inference_fps));
  const ages = live.map((one) => one.age_ms.p50).filter(known).sort((a, b) => a - b);
  number("age", milliseconds(ages.length ? ages[Math.floor(ages.length / 2)] : null));
  number("cpu", known(now.cpu_share) ? `${(100 * now.cpu_share).toFixed(0)}%` : "–",
    known(now.computer_share) ? `CPU used (${(100 * now.computer_share).toFixed(0)}% by all programs)` : "CPU used");
  number("capacity", known(now.capacity) ? now.capacity.toFixed(1) : "–");
  $("n-age").hidden = $("n-capacity").hidden = $("events").hidden = file;
  $("bottleneck").hidden = !now.bottleneck;
  say($("bottleneck"), now.bottleneck);
  $("bottleneck").classList.toggle("bad", known(now.capacity) && now.capacity < live.length); // frames are dropped
  document.querySelector("main").classList.toggle("counting", now.streams.some((one) => one.zones?.length));
  cameras([...now.streams, ...now.stopped.map(stopped)]);
  stages(now.busy);
  remember(now);
  curves();
}

function number(id, text, label) {
  const box = $(`n-${id}`);
  say(box.firstElementChild, text);
  if (label) say(box.lastElementChild, label);
}

function health(kind, text) {
  $("health").className = `pill ${kind}`;
  say($("health"), text);
  document.title = kind === "good" ? "detect-video" : `${text} · detect-video`;
}

function cameras(streams) {
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
  if (changed) watch();
}

// A camera that a user stopped has no figures; its tile stays, so that it can be started again.
function stopped(name) {
  return { name, kind: "camera", url: "", state: "ended", since_s: 0, received: 0, processed: 0, dropped: {}, reconnects: 0, stalls: 0, age_ms: {},
    camera_fps: null, processed_fps: null, size: null, frozen: false, error: null, next_try_s: null, expected: null, zones: [], controllable: true };
}

// ---------------------------------------------------------------- lines and zones

const past = { days: [], sums: new Map() }; // each camera's lines and zones on the last days

const sums = (one) => `${count(one.in)} / ${count(one.out)}`;
const added = (all) => all.reduce((sum, one) => ({ in: sum.in + one.in, out: sum.out + one.out }), { in: 0, out: 0 });

function counts(tile) {
  const found = tile.one.zones ?? [], names = found.map((one) => one.name).join("\n");
  tile.zones.hidden = !found.length;
  if (tile.zones.names !== names) {
    tile.zones.names = names;
    tile.zones.replaceChildren(...found.map((one) => make("div", { class: "counted" }, make("b", { title: one.name }, one.name), make("span", { class: "now" }),
      bars(), make("span", { class: "dim small" }), bars(), make("span", { class: "dim small" }))));
  }
  found.forEach((one, i) => {
    const [, now, hours, today, days, before] = tile.zones.children[i].children;
    say(now, `${one.sides[0]} ${count(one.today.in)}, ${one.sides[1]} ${count(one.today.out)}${known(one.inside) ? `, ${count(one.inside)} inside` : ""}`);
    hours.toggleAttribute("hidden", tile.one.kind === "file");
    today.hidden = tile.one.kind === "file"; // a file has its own time
    fill(hours, one.hours, (hour) => `${hour}:00 to ${hour + 1}:00`);
    say(today, `today by the hour (the machine's time), ${one.sides.join(" and ")}`);
    const old = past.sums.get(`${tile.name}\n${one.name}`);
    before.hidden = !old;
    days.toggleAttribute("hidden", !old);
    if (!old) return;
    fill(days, old, (day) => past.days[day]);
    say(before, `yesterday ${sums(old.at(-1))}, last ${old.length} days ${sums(added(old))}`);
  });
}

function bars() { return draw("svg", { class: "bars", preserveAspectRatio: "none", role: "img" }); }

// Draw one bar per pair: in stacked on out.
function fill(svg, pairs, name) {
  const text = pairs.map(sums).join();
  if (svg.text === text) return;
  svg.text = text;
  svg.setAttribute("viewBox", `0 0 ${pairs.length} 100`);
  svg.setAttribute("aria-label", pairs.map((one, i) => one.in + one.out ? `${name(i)}: in ${one.in}, out ${one.out}` : "").filter(Boolean).join("; ") || "nothing");
  const most = Math.max(1, ...pairs.map((one) => one.in + one.out));
  svg.replaceChildren(...pairs.map((one, i) => {
    const group = draw("g", {}), title = draw("title", {}), below = 100 * one.out / most, above = 100 * one.in / most;
    title.textContent = `${name(i)}: in ${one.in}, out ${one.out}`;
    group.append(title, draw("rect", { class: "all", x: i, y: 0, width: 1, height: 100 }),
      draw("rect", { class: "came", x: i + .1, y: 100 - below - above, width: .8, height: above }), draw("rect", { class: "went", x: i + .1, y: 100 - below, width: .8, height: below }));
    return group;
  }));
}

async function earlier() {
  const found = await read("/api/counts");
  past.days = found?.days ?? past.days;
  past.sums = found ? new Map(found.zones.map((one) => [`${one.camera}\n${one.name}`, one.sums])) : past.sums;
}

function stages(busy) {
  const names = Object.keys(busy).sort((a, b) => place(a) - place(b));
  $("work").hidden = names.length === 0;
  const box = $("stages");
  if (stages.names !== names.join()) {
    stages.names = names.join();
    box.replaceChildren(...names.map((name) => make("div", { class: `stage ${STAGES.includes(name) ? name : ""}` }, name, make("div", { class: "track" }, make("i")), make("b"))));
  }
  names.forEach((name, i) => {
    const row = box.children[i];
    row.querySelector("i").style.width = `${Math.min(100, 100 * busy[name])}%`;
    say(row.lastElementChild, `${(100 * busy[name]).toFixed(0)}%`);
  });
}

// ---------------------------------------------------------------- curves

function remember(now) {
  const at = Date.parse(now.time_utc) / 1000;
  const last = history.times.at(-1);
  if (last !== undefined && (at <= last || !before)) return; // the first rates need two samples
  const old = new Map((before?.streams ?? []).map((one) => [one.name, one]));
  const seconds = before ? at - Date.parse(before.time_utc) / 1000 : 0;
  const all = (one) => Object.values(one.dropped).reduce((sum, n) => sum + n, 0);
  history.times.push(at);
  for (const one of now.streams) {
    const then = old.get(one.name);
    const each = (value, past) => then && seconds > 0 && value >= past ? (value - past) / seconds : null;
    put(history.age, one.name, one.state === "live" ? one.age_ms.p50 : null);
    put(history.processed, one.name, each(one.processed, then?.processed));
    put(history.dropped, one.name, then ? each(all(one), all(then)) : null);
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

function put(map, name, value) {
  if (!map.has(name)) map.set(name, new Array(history.times.length - 1).fill(null));
  map.get(name).push(value);
}

async function recall() {
  const past = await read("/api/history");
  if (!past) return; // the curves start now
  history.times = past.times_s;
  history.age = new Map(Object.entries(past.age_ms));
  history.processed = new Map(Object.entries(past.processed_fps));
  history.dropped = new Map(Object.entries(past.dropped_fps));
}

const charts = {
  age: { values: () => history.age, text: milliseconds },
  drops: { values: () => history.dropped, text: rate },
  rate: { values: () => history.processed, text: rate },
};

function round(value) {
  if (!(value > 0)) return 1;
  const unit = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].find((step) => step * unit >= value) * unit;
}

function line(values, top, from, to) {
  const step = 100 / Math.max(1, to - from - 1);
  let path = "", pen = false;
  for (let i = from; i < to; i += 1) {
    const value = values[i];
    if (!known(value)) { pen = false; continue; }
    path += `${pen ? "L" : "M"}${((i - from) * step).toFixed(2)} ${(100 - 100 * Math.min(value, top) / top).toFixed(2)}`;
    pen = true;
  }
  return path;
}

function curves() {
  const size = history.times.length, from = Math.max(0, size - KEPT);
  for (const [id, chart] of Object.entries(charts)) {
    const entries = [...chart.values()].filter(([, values]) => values.some(known));
    const highest = Math.max(0, ...entries.map(([, values]) => values.reduce((most, v) => known(v) && v > most ? v : most, 0)));
    $(id).hidden = size < 3 || !entries.length || (id === "drops" && !figures.streams.some((one) => Object.keys(one.dropped).length || one.received > one.processed + 1000));
    if ($(id).hidden) continue;
    const top = round(highest);
    plot($(id).querySelector(".plot"), chart, entries, top, from, size);
  }
  for (const tile of tiles.values()) {
    const values = history.age.get(tile.name);
    if (tile.spark.hidden || !values || size < 3) continue;
    const start = Math.max(0, size - 120);
    const top = Math.max(1, ...values.slice(start).filter(known)) * 1.15;
    let svg = tile.spark.firstChild;
    if (!svg) {
      svg = draw("svg", { class: "curves", viewBox: "0 0 100 100", preserveAspectRatio: "none", "aria-hidden": "true" });
      svg.append(draw("path", {}));
      tile.spark.append(svg);
    }
    svg.firstChild.setAttribute("d", line(values, top, start, size));
  }
}

function plot(box, chart, entries, top, from, to) {
  if (!box.firstChild) {
    const svg = draw("svg", { class: "curves", viewBox: "0 0 100 100", preserveAspectRatio: "none", "aria-hidden": "true" });
    const area = make("div", { class: "area" }, svg);
    box.append(make("div", { class: "scale" }, make("span"), make("span"), make("span", {}, "0")), area,
      make("div", { class: "times" }, make("span"), make("span")), make("div", { class: "key" }));
    area.addEventListener("pointermove", (event) => { const b = area.getBoundingClientRect(); box.at = Math.min(1, Math.max(0, (event.clientX - b.x) / b.width)); curves(); });
    area.addEventListener("pointerleave", () => { box.at = undefined; curves(); });
  }
  const svg = box.querySelector("svg"), [high, middle] = box.querySelectorAll(".scale span");
  say(high, String(top));
  say(middle, String(top / 2));
  const at = box.at === undefined ? to - 1 : from + Math.round(box.at * (to - from - 1));
  const lines = [draw("line", { x1: 0, x2: 100, y1: 0, y2: 0 }), draw("line", { x1: 0, x2: 100, y1: 50, y2: 50 }), draw("line", { x1: 0, x2: 100, y1: 100, y2: 100 })];
  if (box.at !== undefined) lines.push(draw("line", { class: "pointer", x1: 100 * box.at, x2: 100 * box.at, y1: 0, y2: 100 }));
  svg.replaceChildren(...lines, ...entries.map(([name, values]) => draw("path", { class: series(name), d: line(values, top, from, to) })));
  const [first, last] = box.querySelectorAll(".times span");
  const clock = (s) => new Date(s * 1000).toLocaleTimeString([], CLOCK);
  say(first, clock(history.times[from]));
  say(last, box.at === undefined ? "now" : clock(history.times[at]));
  box.querySelector(".key").replaceChildren(...entries.map(([name, values]) => make("span", {}, make("i", { class: series(name) }), `${name} `, make("b", {}, chart.text(values[at])))));
}

const series = (name) => `s${(tiles.get(name)?.index ?? 0) % 8}`;

// ---------------------------------------------------------------- events and recordings

const WORDS = { camera_up: "connected", camera_down: "connection lost", appears: "appears", leaves: "leaves" };

function happened(one) {
  const list = $("events").querySelector("ol");
  const what = one.class ? `${one.class}${known(one.track) ? ` ${one.track}` : known(one.count) && one.count > 1 ? ` (${one.count})` : ""} ${WORDS[one.event] ?? one.event}${one.zone ? ` ${one.zone}` : ""}${one.direction ? ` (${one.side ?? one.direction})` : ""}` : `${WORDS[one.event] ?? one.event}${one.reason ? `: ${one.reason}` : ""}`;
  const kind = one.event === "camera_down" ? "down" : one.event === "camera_up" ? "up" : "";
  const when = new Date(one.time_utc);
  list.prepend(make("li", { class: kind }, make("time", { datetime: one.time_utc, title: when.toLocaleString() }, when.toLocaleTimeString([], CLOCK)),
    make("span", { class: "of", title: one.camera }, one.camera), make("span", { class: "what" }, what, ...(one.snapshot ? [" ", make("a", { href: `/api/recordings/${one.snapshot.split("/").map(encodeURIComponent).join("/")}`, target: "_blank" }, "picture")] : []))));
  while (list.children.length > 100) list.lastChild.remove();
  $("events").querySelector(".empty").hidden = true;
}

async function recordings() {
  const answer = await read("/api/recordings?kind=video&limit=30");
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

// Show the newest pictures of events; do not request one again that is already shown.
async function snapshots() {
  const found = (await read("/api/recordings?kind=snapshots&limit=8"))?.recordings, box = $("snapshots").querySelector(".shots");
  if (!found) return;
  $("snapshots").hidden = !found.length;
  const there = new Map([...box.children].map((one) => [one.getAttribute("href"), one]));
  box.replaceChildren(...found.map((one) => there.get(one.url) ?? make("a", { href: one.url, target: "_blank", title: one.name },
    make("img", { src: one.url, alt: `${one.camera}, ${one.name}`, loading: "lazy" }),
    make("span", {}, `${new Date(one.start_utc).toLocaleTimeString([], CLOCK)} ${one.camera}`))));
}

// ---------------------------------------------------------------- the connection to the run

function gone(text) {
  over = true;
  health("bad", text);
  for (const tile of tiles.values()) if (tile.one) tile.speak();
  watch();
}

function listen() {
  const source = new EventSource("/api/events");
  source.addEventListener("figures", (event) => { finished = false; const was = over; show(JSON.parse(event.data)); if (was) watch(); });
  source.addEventListener("event", (event) => { if (event.lastEventId) { if (Number(event.lastEventId) <= listen.last) return; listen.last = Number(event.lastEventId); } happened(JSON.parse(event.data)); });
  source.addEventListener("lost", (event) => toast(`${JSON.parse(event.data).lost} events came too fast to be shown.`));
  source.addEventListener("silent", () => { if (figures) gone("the run is not responding"); });
  source.addEventListener("end", () => { finished = true; gone("the run has ended"); });
  source.onerror = async () => {
    if (!finished) gone("connection lost");
    if (source.readyState === EventSource.CLOSED) { // refused: the login may have ended
      const answer = await fetch("/api/history").catch(() => null);
      if (answer?.status === 401) location.assign("/login");
      else setTimeout(listen, 2000);
    }
  };
}
listen.last = 0;

setInterval(() => {
  if (!over && figures && performance.now() - heardAt > SILENT_MS) gone("connection lost");
  for (const tile of tiles.values()) if (tile.one) tile.speak();
}, 500);
document.addEventListener("visibilitychange", watch);
addEventListener("resize", watch);
recall().then(listen);
const files = () => { recordings(); snapshots(); };
files();
setInterval(() => { if (!document.hidden) files(); }, 10000);
earlier();
setInterval(() => { if (!document.hidden && figures?.streams.some((one) => one.zones?.length)) earlier(); }, 60000);
