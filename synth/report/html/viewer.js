// The view: layout of rows, drawing, mouse and keys.

const GUTTER = 116; // width of the names beside the rows, in CSS pixels
const AXIS = 26; // height of the time axis
const HEAD = 24; // height of a schedule's title
const GAP = 5; // space below a rank
const ROWS = [6, 9, 13, 18, 24, 32, 44]; // heights of a row of ops
const MOST_MOVES = 2000; // transfers that are drawn at once
const PRINTED_RATIO = 2; // device pixels per CSS pixel on paper
const LEAST_US_PER_PIXEL = 0.01;
const THEME = [
  "paper", "ink", "quiet", "line", "idle", "memory", "swing", "fixed", "limit", "moved",
];
const byId = (id) => document.getElementById(id);

class Viewer {
  constructor(page, charts) {
    this.kinds = page.kinds;
    this.words = new Words(page.kinds, page.values);
    this.raster = new Raster(page.kinds, page.lightest, this.words);
    this.canvas = byId("canvas");
    this.context = this.canvas.getContext("2d", { alpha: false });
    this.scroller = byId("scroller");
    this.show = { memory: true, path: true, transfers: false, byRank: page.byRank };
    this.setCharts(charts);
    this.row = this.firstRow();
    new Controls(this);
  }

  /** Show other charts, from the top, with their whole time in sight. */
  setCharts(charts) {
    this.charts = charts;
    this.beginUs = Math.min(...charts.map((chart) => chart.beginUs));
    this.endUs = Math.max(...charts.map((chart) => chart.endUs));
    this.fullBytes = this.bytesOfRow();
    this.selected = this.hovered = null;
    this.moves = [];
    this.makeLegend();
    this.makeTables();
    this.dress();
    this.fit();
  }

  /** The bytes at the top of memory rows: the peaks, and limits that are not far above them. */
  bytesOfRow() {
    const peak = Math.max(...this.charts.map((chart) => chart.mostBytes));
    const caps = this.charts.flatMap((chart) => chart.capBytes || []);
    return Math.max(1, peak, ...caps.filter((cap) => cap < 2 * peak)) * 1.04;
  }

  /** The tallest rows with which everything is in sight, or a height at which labels fit. */
  firstRow() {
    const rows = this.charts.reduce((sum, chart) => sum + chart.numRanks, 0);
    const space = this.scroller.clientHeight - AXIS - HEAD * this.charts.length;
    const fits = ROWS.filter((height) => rows * (2.2 * height + GAP) <= space && height <= 32);
    return ROWS.indexOf(fits.length ? fits[fits.length - 1] : 13);
  }

  get width() {
    return this.size.width - GUTTER;
  }

  get fullUsPerPixel() {
    return Math.max(LEAST_US_PER_PIXEL, (this.endUs - this.beginUs) / Math.max(1, this.width - 14));
  }

  get size() {
    return this.printed || { width: this.scroller.clientWidth, height: this.scroller.clientHeight };
  }

  xOf(us) {
    return GUTTER + (us - this.fromUs) / this.usPerPixel;
  }

  usAt(x) {
    return this.fromUs + (x - GUTTER) * this.usPerPixel;
  }

  fit() {
    this.fromUs = this.beginUs;
    this.usPerPixel = this.fullUsPerPixel;
    this.draw();
  }

  zoom(factor, x = GUTTER + this.width / 2) {
    const us = this.usAt(x);
    const full = this.fullUsPerPixel;
    this.usPerPixel = Math.min(full, Math.max(LEAST_US_PER_PIXEL, this.usPerPixel * factor));
    this.fromUs = us - (x - GUTTER) * this.usPerPixel;
    this.keepInside();
    this.draw();
  }

  pan(pixels) {
    this.fromUs += pixels * this.usPerPixel;
    this.keepInside();
    this.draw();
  }

  keepInside() {
    const spareUs = this.fullUsPerPixel * (this.width - 14) - this.usPerPixel * (this.width - 14);
    const latestUs = this.beginUs + Math.max(0, spareUs);
    this.fromUs = Math.min(Math.max(this.fromUs, this.beginUs), latestUs);
  }

  /** Place all rows: of each schedule below its title, or of each rank under each other. */
  layOut() {
    const height = ROWS[this.row];
    const memory = this.show.memory ? Math.round(1.2 * height) : 0;
    const rows = [];
    const heads = [];
    let y = AXIS;
    const addHead = (chart) => {
      heads.push({ chart, y });
      y += HEAD;
    };
    const addRow = (chart, rank) => {
      rows.push({ chart, rank, y, height, memory });
      y += height + memory + GAP;
    };
    if (this.show.byRank) {
      this.charts.forEach(addHead);
      const most = Math.max(...this.charts.map((chart) => chart.numRanks));
      for (let rank = 0; rank < most; rank++) {
        for (const chart of this.charts) if (rank < chart.numRanks) addRow(chart, rank);
        y += GAP;
      }
    } else {
      for (const chart of this.charts) {
        addHead(chart);
        for (let rank = 0; rank < chart.numRanks; rank++) addRow(chart, rank);
      }
    }
    this.layout = { rows, heads, height: y + GAP };
    this.rowOf = new Map(rows.map((row) => [`${row.chart.number}/${row.rank}`, row]));
    const spare = this.layout.height - this.size.height;
    byId("spacer").style.height = `${Math.max(0, spare)}px`;
  }

  dress() {
    const style = getComputedStyle(document.documentElement);
    this.theme = Object.fromEntries(
      THEME.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]),
    );
    this.raster.dress(this.theme, this.charts);
    for (const [name, id] of [["memory"], ["path"], ["transfers"], ["byRank", "by-rank"]]) {
      byId(id || name).setAttribute("aria-pressed", String(this.show[name]));
    }
  }

  /** Draw in the next frame, however often it is asked for. */
  draw() {
    if (this.isAsked) return;
    this.isAsked = true;
    requestAnimationFrame(() => {
      this.isAsked = false;
      this.drawNow();
    });
  }

  drawNow() {
    const { canvas, context, size } = this;
    const ratio = this.printed ? PRINTED_RATIO : window.devicePixelRatio || 1;
    const [width, height] = [size.width, size.height].map((n) => Math.round(n * ratio));
    if (canvas.width !== width || canvas.height !== height) {
      Object.assign(canvas, { width, height });
      Object.assign(canvas.style, { width: `${size.width}px`, height: `${size.height}px` });
    }
    this.layOut();
    this.top = this.printed ? 0 : this.scroller.scrollTop;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.fillStyle = this.theme.paper;
    context.fillRect(0, 0, size.width, size.height);
    this.visible = this.layout.rows.filter(
      (row) => row.y + row.height + row.memory > this.top && row.y < this.top + size.height,
    );
    this.drawRows(ratio);
    this.clipped(() => {
      if (this.show.path) this.drawPath();
      this.drawMoves();
      this.drawMarks();
    });
    this.drawNames();
    this.drawAxis();
    if (this.selected && !this.isPointing) this.tipOfSelected();
  }

  drawRows(ratio) {
    const { raster, size, show } = this;
    const left = Math.round(GUTTER * ratio);
    raster.resize(Math.round(size.width * ratio) - left, Math.round(size.height * ratio), ratio);
    raster.clear();
    const view = { fromUs: this.fromUs, usPerPixel: this.usPerPixel / ratio };
    for (const { chart, rank, y, height, memory } of this.visible) {
      const top = Math.round((y - this.top) * ratio);
      const middle = Math.round((y - this.top + height) * ratio);
      const bottom = Math.round((y - this.top + height + memory) * ratio);
      raster.paintOps(chart, rank, view, top, middle - top, show.path);
      if (memory) {
        raster.paintMemory(chart, rank, view, middle + 1, bottom - middle - 1, this.fullBytes);
      }
    }
    this.context.putImageData(raster.image, left, 0);
  }

  /** Draw on the rows only, not on names and axis. */
  clipped(work) {
    const { context, size } = this;
    context.save();
    context.beginPath();
    context.rect(GUTTER, AXIS, size.width - GUTTER, size.height - AXIS);
    context.clip();
    work();
    context.restore();
  }

  middleOf(chart, rank) {
    const row = this.rowOf.get(`${chart.number}/${rank}`);
    return row.y - this.top + row.height / 2;
  }

  /** Join the ops of the critical path from rank to rank. */
  drawPath() {
    const { context } = this;
    const toUs = this.usAt(this.size.width);
    context.strokeStyle = this.theme.ink;
    context.lineWidth = 1.25;
    context.beginPath();
    for (const chart of this.charts) {
      const { path } = chart;
      const first = firstWhere(0, path.length, (i) => chart.end(path[i]) >= this.fromUs);
      let before = null;
      for (let i = Math.max(0, first - 2); i < path.length; i++) {
        const node = path[i];
        if (!chart.isOp(node)) continue;
        const rank = chart.rankOf(node);
        if (before !== null && before.rank !== rank) {
          context.moveTo(this.xOf(before.us), this.middleOf(chart, before.rank));
          context.lineTo(this.xOf(chart.start[node]), this.middleOf(chart, rank));
        }
        if (before !== null && before.us > toUs) break;
        before = { rank, us: chart.end(node) };
      }
    }
    context.stroke();
  }

  /** Draw the transfers in sight, if they are asked for and not too many. */
  drawMoves() {
    this.moves = [];
    let count = 0;
    if (this.show.transfers) {
      const shown = new Set(this.visible.map((row) => row.chart));
      for (const chart of shown) {
        const found = chart.movesWithin(this.fromUs, this.usAt(this.size.width), MOST_MOVES);
        if (typeof found === "number") count += found;
        else for (const node of found) this.moves.push(...this.linesOf(chart, node));
      }
    }
    this.say(count ? `${count} transfers in this range; zoom in to see them` : "");
    const { context } = this;
    context.lineWidth = 1;
    context.strokeStyle = context.fillStyle = this.theme.moved;
    for (const { from, to } of this.moves) {
      context.beginPath();
      context.moveTo(...from);
      context.lineTo(...to);
      context.stroke();
      context.beginPath();
      context.arc(...to, 2, 0, 7);
      context.fill();
    }
  }

  /** The lines of a transfer, or of a collective: one along each of its ranks. */
  linesOf(chart, node) {
    const x = [this.xOf(chart.start[node]), this.xOf(chart.end(node))];
    const ranks = chart.ranksOf(node);
    if (!chart.isTransfer(node)) {
      return ranks.map((rank) => {
        const y = this.middleOf(chart, rank) + ROWS[this.row] / 2;
        return { chart, node, from: [x[0], y], to: [x[1], y] };
      });
    }
    const own = ranks.find((rank) => rank >= 0);
    const beside = this.middleOf(chart, own) + ROWS[this.row] / 2 + 3;
    const [a, b] = ranks.map((rank) => (rank < 0 ? beside : this.middleOf(chart, rank)));
    return [{ chart, node, from: [x[0], a], to: [x[1], b] }];
  }

  /** Outline the ops that are selected and pointed at, and join them to what they waited for. */
  drawMarks() {
    const { context } = this;
    for (const mark of [this.hovered, this.selected]) {
      if (mark === null || !mark.chart.isOp(mark.node)) continue;
      const { chart, node } = mark;
      this.outline(chart, node, mark === this.selected ? 2.5 : 1.5);
      const before = chart.awaited(node);
      if (before < 0) continue;
      const cause = chart.isOp(before) ? before : chart.awaited(before);
      if (cause < 0 || !chart.isOp(cause)) continue;
      context.setLineDash([4, 3]);
      context.beginPath();
      context.moveTo(this.xOf(chart.end(cause)), this.middleOf(chart, chart.rankOf(cause)));
      context.lineTo(this.xOf(chart.start[node]), this.middleOf(chart, chart.rankOf(node)));
      context.stroke();
      context.setLineDash([]);
    }
  }

  outline(chart, op, thickness) {
    const { context } = this;
    const row = this.rowOf.get(`${chart.number}/${chart.rankOf(op)}`);
    const x = Math.max(GUTTER - 5, this.xOf(chart.start[op]));
    const end = Math.min(this.size.width + 5, this.xOf(chart.end(op)));
    context.strokeStyle = this.theme.ink;
    context.lineWidth = thickness;
    context.strokeRect(x, row.y - this.top, Math.max(2, end - x), row.height);
  }

  drawNames() {
    const { context, size } = this;
    context.fillStyle = this.theme.paper;
    context.fillRect(0, AXIS, GUTTER, size.height);
    context.textBaseline = "middle";
    for (const { chart, y } of this.layout.heads) {
      const middle = y - this.top + HEAD / 2;
      if (middle < -HEAD || middle > size.height + HEAD) continue;
      context.fillStyle = this.theme.ink;
      context.font = "bold 13px system-ui, sans-serif";
      context.fillText(chart.title, 10, middle);
      const x = 22 + context.measureText(chart.title).width;
      context.font = "12px system-ui, sans-serif";
      context.fillStyle = this.theme.quiet;
      context.fillText(chart.note, x, middle, size.width - x - 10);
    }
    for (const { chart, rank, y, height, memory } of this.visible) {
      const top = y - this.top;
      context.fillStyle = this.theme.ink;
      context.font = `${Math.min(12, height + 2)}px system-ui, sans-serif`;
      const name = this.show.byRank ? ` ${chart.title}` : "";
      context.fillText(`rank ${rank}${name}`, 10, top + height / 2, GUTTER - 16);
      if (memory < 13) continue;
      context.fillStyle = this.theme.quiet;
      context.font = "11px system-ui, sans-serif";
      const peak = `peak ${formatBytes(chart.peakBytes[rank])}`;
      context.fillText(peak, 10, top + height + memory / 2, GUTTER - 16);
    }
  }

  drawAxis() {
    const { context, size } = this;
    context.fillStyle = this.theme.paper;
    context.fillRect(0, 0, size.width, AXIS);
    context.strokeStyle = this.theme.line;
    context.lineWidth = 1;
    context.fillStyle = this.theme.ink;
    context.font = "12px system-ui, sans-serif";
    context.textBaseline = "middle";
    const step = niceStep(90 * this.usPerPixel);
    const [unit, unitUs] = unitOf(Math.max(this.endUs, step));
    context.fillText(`time, ${unit}`, 10, AXIS / 2);
    context.beginPath();
    const last = this.usAt(size.width);
    for (let us = Math.ceil(this.fromUs / step) * step; us <= last; us += step) {
      const x = this.xOf(us);
      context.moveTo(x, AXIS - 6);
      context.lineTo(x, AXIS);
      context.fillText(Number((us / unitUs).toPrecision(12)).toString(), x + 3, AXIS / 2);
    }
    context.moveTo(0, AXIS - 0.5);
    context.lineTo(size.width, AXIS - 0.5);
    context.stroke();
    this.drawEnds();
  }

  /** A line at the end of each schedule. */
  drawEnds() {
    const { context } = this;
    this.clipped(() => {
      context.strokeStyle = this.theme.quiet;
      context.setLineDash([2, 2]);
      context.beginPath();
      for (const { chart, y, height, memory } of this.visible) {
        const x = Math.round(this.xOf(chart.endUs)) + 0.5;
        context.moveTo(x, y - this.top - 2);
        context.lineTo(x, y - this.top + height + memory);
      }
      context.stroke();
    });
  }

  /** What is at a point: its chart and rank, and the op or transfer if there is one. */
  at(x, y) {
    if (x < GUTTER || y < AXIS) return null;
    const move = this.moves.find((line) => distance(x, y, line.from, line.to) < 4);
    if (move) return { chart: move.chart, node: move.node, us: this.usAt(x) };
    const inside = ({ y: top, height, memory }) =>
      y + this.top >= top && y + this.top < top + height + memory;
    const row = this.visible.find(inside);
    if (!row) return null;
    const us = this.usAt(x);
    const isMemory = y + this.top > row.y + row.height;
    const node = isMemory ? -1 : row.chart.opAt(row.rank, us);
    return { chart: row.chart, rank: row.rank, node, us };
  }

  linesAbout({ chart, rank, node, us }) {
    if (node < 0) return this.words.moment(chart, rank, us);
    return chart.isOp(node) ? this.words.op(chart, node) : this.words.move(chart, node);
  }

  hover(x, y) {
    const found = this.at(x, y);
    this.hovered = found && found.node >= 0 ? found : null;
    this.isPointing = found !== null;
    if (found) this.tip(found, x, y);
    else this.hideTip();
    this.draw();
  }

  /** Show the details beside a point of the canvas, inside the window. */
  tip(found, x, y) {
    const tip = byId("tip");
    tip.replaceChildren(...this.linesAbout(found).map(asLine));
    tip.hidden = false;
    const frame = this.canvas.getBoundingClientRect();
    const { width, height } = tip.getBoundingClientRect();
    const [px, py] = [frame.left + x, frame.top + y];
    const left = px + 16 + width < innerWidth ? px + 16 : px - 16 - width;
    const top = py + 16 + height < innerHeight ? py + 16 : py - 16 - height;
    tip.style.left = `${Math.max(4, left)}px`;
    tip.style.top = `${Math.max(4, top)}px`;
  }

  hideTip() {
    this.isPointing = false;
    byId("tip").hidden = true;
  }

  /** Show the details of the selected op beside it, if it is in sight. */
  tipOfSelected() {
    const { chart, node } = this.selected;
    const y = this.middleOf(chart, chart.rankOf(node));
    const toUs = this.usAt(this.size.width);
    const isInTime = chart.end(node) > this.fromUs && chart.start[node] < toUs;
    if (!isInTime || y < AXIS || y > this.size.height) {
      byId("tip").hidden = true;
      return;
    }
    const x = Math.min(this.size.width, Math.max(GUTTER, this.xOf(chart.end(node))));
    this.tip(this.selected, x, y);
  }

  say(text) {
    const note = byId("note");
    note.textContent = text;
    note.hidden = !text;
  }

  /** Select an op, bring it into sight, and tell of it. */
  select(chart, op) {
    this.selected = { chart, node: op };
    this.hovered = null;
    this.isPointing = false;
    this.bring(chart, op);
    this.drawNow();
    const text = this.words.op(chart, op).map(([name, words]) => `${name} ${words}`);
    byId("said").textContent = text.join(", ");
  }

  letGo() {
    this.selected = null;
    byId("tip").hidden = true;
    byId("said").textContent = "";
    this.draw();
  }

  bring(chart, op) {
    const row = this.rowOf.get(`${chart.number}/${chart.rankOf(op)}`);
    const [top, height] = [this.scroller.scrollTop, this.scroller.clientHeight];
    if (row.y - AXIS < top) this.scroller.scrollTop = row.y - AXIS - HEAD;
    if (row.y + row.height + row.memory > top + height) {
      this.scroller.scrollTop = row.y + row.height + row.memory - height + GAP;
    }
    const [begin, end] = [chart.start[op], chart.end(op)];
    if (end - begin < 8 * this.usPerPixel) {
      this.usPerPixel = Math.max(LEAST_US_PER_PIXEL, (end - begin) / 40);
      this.fromUs = (begin + end) / 2 - (this.width / 2) * this.usPerPixel;
    }
    if (begin < this.fromUs || end > this.usAt(this.size.width)) {
      this.fromUs = begin - (this.width / 3) * this.usPerPixel;
    }
    this.keepInside();
  }

  /** Select the next op of the rank that takes time, or the previous one. */
  step(by) {
    const [row] = this.visible;
    const { chart, node } = this.selected || {
      chart: row.chart,
      node: row.chart.firstEndingAfter(row.rank, this.fromUs) - by,
    };
    const rank = this.selected ? chart.rankOf(node) : row.rank;
    const [first, last] = chart.opsOf(rank);
    for (let op = node + by; op >= first && op < last; op += by) {
      if (chart.duration[op]) return this.select(chart, op);
    }
  }

  /** Select the op that the selected one waited for, through a transfer if need be. */
  follow() {
    if (!this.selected) return;
    const { chart, node } = this.selected;
    let before = chart.awaited(node);
    while (before >= 0 && !chart.isOp(before)) before = chart.awaited(before);
    if (before >= 0) this.select(chart, before);
  }

  toggle(name) {
    this.show[name] = !this.show[name];
    this.dress();
    this.draw();
  }

  resizeRows(by) {
    this.row = Math.min(ROWS.length - 1, Math.max(0, this.row + by));
    this.draw();
  }

  setTheme(name) {
    document.documentElement.dataset.theme = name;
    this.dress();
    this.draw();
  }

  makeLegend() {
    byId("legend").replaceChildren();
    const present = new Set();
    for (const { kind, duration } of this.charts) {
      kind.forEach((code, op) => duration[op] && present.add(code));
    }
    this.kinds.forEach(({ name, meaning, colour }, code) => {
      if (!present.has(code) || !colour) return;
      const entry = document.createElement("span");
      entry.textContent = `${name} ${meaning}`;
      entry.style.setProperty("--swatch", colour);
      byId("legend").append(entry);
    });
  }

  /** Fill the table of ranks, which says in words what the picture shows. */
  makeTables() {
    const head = ["rank", "busy", "idle", "peak", "limit"];
    byId("tables").replaceChildren();
    for (const chart of this.charts) {
      const table = document.createElement("table");
      const add = (cells, tag) => {
        const row = table.insertRow();
        cells.forEach((text) => {
          const cell = row.appendChild(document.createElement(tag));
          cell.textContent = text;
          cell.className = "number";
        });
      };
      add(head, "th");
      for (let rank = 0; rank < chart.numRanks; rank++) {
        const [first, last] = chart.opsOf(rank);
        let busyUs = 0;
        for (let op = first; op < last; op++) busyUs += chart.duration[op];
        const share = busyUs / Math.max(1, chart.endUs - chart.beginUs);
        const cap = chart.capBytes ? formatBytes(chart.capBytes[rank]) : "none";
        const idle = `${(100 - 100 * share).toFixed(1)} %`;
        add([rank, formatUs(busyUs), idle, formatBytes(chart.peakBytes[rank]), cap], "td");
      }
      const title = document.createElement("h3");
      title.textContent = `${chart.title}: ${chart.note}`;
      byId("tables").append(title, table);
    }
  }

  /** Draw everything at once for the printer, in light colours, and return to the screen. */
  print() {
    this.shown = document.documentElement.dataset.theme;
    document.documentElement.dataset.theme = "light";
    this.dress();
    this.layOut();
    this.printed = { width: Math.max(1100, this.scroller.clientWidth), height: this.layout.height };
    this.scale(this.printed.width);
    this.drawNow();
  }

  printedAll() {
    document.documentElement.dataset.theme = this.shown;
    const { width } = this.printed;
    this.printed = null;
    this.scale(this.scroller.clientWidth, width);
    this.dress();
    this.drawNow();
  }

  /** Keep the range of time in sight as the width changes. */
  scale(width, before = this.scroller.clientWidth) {
    this.usPerPixel *= (before - GUTTER) / Math.max(1, width - GUTTER);
  }
}

/** Mouse, keys and buttons of a view. */
class Controls {
  constructor(viewer) {
    this.viewer = viewer;
    const { canvas, scroller } = viewer;
    scroller.addEventListener("scroll", () => viewer.draw());
    new ResizeObserver(() => viewer.draw()).observe(scroller);
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    canvas.addEventListener("pointerdown", (event) => this.press(event));
    canvas.addEventListener("pointermove", (event) => this.move(event));
    canvas.addEventListener("pointerup", (event) => this.release(event));
    canvas.addEventListener("pointerleave", () => {
      viewer.hovered = null;
      viewer.hideTip();
      viewer.draw();
    });
    canvas.addEventListener("dblclick", () => viewer.fit());
    document.addEventListener("keydown", (event) => this.key(event));
    for (const [id, act] of Object.entries(this.buttons())) byId(id).addEventListener("click", act);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (event) =>
      viewer.setTheme(event.matches ? "dark" : "light"));
    addEventListener("beforeprint", () => viewer.print());
    addEventListener("afterprint", () => viewer.printedAll());
  }

  buttons() {
    const { viewer } = this;
    return {
      "zoom-in": () => viewer.zoom(1 / 1.5),
      "zoom-out": () => viewer.zoom(1.5),
      fit: () => viewer.fit(),
      left: () => viewer.pan(-viewer.width / 4),
      right: () => viewer.pan(viewer.width / 4),
      taller: () => viewer.resizeRows(1),
      lower: () => viewer.resizeRows(-1),
      memory: () => viewer.toggle("memory"),
      path: () => viewer.toggle("path"),
      transfers: () => viewer.toggle("transfers"),
      "by-rank": () => viewer.toggle("byRank"),
      theme: () => this.switchTheme(),
      "show-help": () => byId("help").showModal(),
      "show-table": () => byId("table").showModal(),
    };
  }

  switchTheme() {
    const isDark = document.documentElement.dataset.theme === "dark";
    this.viewer.setTheme(isDark ? "light" : "dark");
  }

  keys() {
    const { viewer } = this;
    const buttons = this.buttons();
    const scroll = (by) => viewer.scroller.scrollBy(0, by);
    return {
      "+": buttons["zoom-in"],
      "=": buttons["zoom-in"],
      "-": buttons["zoom-out"],
      0: buttons.fit,
      Home: buttons.fit,
      ArrowLeft: buttons.left,
      ArrowRight: buttons.right,
      ArrowUp: () => scroll(-60),
      ArrowDown: () => scroll(60),
      PageUp: () => scroll(-viewer.size.height * 0.9),
      PageDown: () => scroll(viewer.size.height * 0.9),
      "]": buttons.taller,
      "[": buttons.lower,
      m: buttons.memory,
      c: buttons.path,
      t: buttons.transfers,
      r: buttons["by-rank"],
      d: buttons.theme,
      s: () => byId("show-menu").click(),
      "?": buttons["show-help"],
      ".": () => viewer.step(1),
      ",": () => viewer.step(-1),
      w: () => viewer.follow(),
      Escape: () => viewer.letGo(),
    };
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) {
      return;
    }
    const act = this.keys()[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  }

  wheel(event) {
    const { viewer } = this;
    event.preventDefault();
    const lines = event.deltaMode === WheelEvent.DOM_DELTA_LINE ? 16 : 1;
    const [dx, dy] = [event.deltaX * lines, event.deltaY * lines];
    if (event.altKey || event.offsetX < GUTTER) viewer.scroller.scrollBy(0, dy);
    else if (event.shiftKey || Math.abs(dx) > Math.abs(dy)) viewer.pan(dx || dy);
    else viewer.zoom(Math.exp(dy * (event.ctrlKey ? 0.01 : 0.002)), event.offsetX);
    viewer.hover(event.offsetX, event.offsetY);
  }

  press(event) {
    if (event.button !== 0) return;
    this.viewer.canvas.setPointerCapture(event.pointerId);
    this.held = { x: event.offsetX, y: event.offsetY, isDragged: false };
  }

  move(event) {
    const { viewer, held } = this;
    if (!held) return viewer.hover(event.offsetX, event.offsetY);
    const [dx, dy] = [event.offsetX - held.x, event.offsetY - held.y];
    if (!held.isDragged && Math.hypot(dx, dy) < 4) return;
    viewer.canvas.classList.add("dragging");
    Object.assign(held, { x: event.offsetX, y: event.offsetY, isDragged: true });
    viewer.pan(-dx);
    viewer.scroller.scrollBy(0, -dy);
  }

  release(event) {
    const { viewer, held } = this;
    this.held = null;
    viewer.canvas.classList.remove("dragging");
    if (!held || held.isDragged) return;
    const found = viewer.at(event.offsetX, event.offsetY);
    if (found && found.node >= 0 && found.chart.isOp(found.node)) {
      viewer.select(found.chart, found.node);
    } else viewer.letGo();
  }
}

/** A line of details: a name and a text; the first line is the heading. */
function asLine([name, text], place) {
  const line = document.createElement(place ? "div" : "b");
  line.textContent = name && `${name} `;
  line.appendChild(document.createElement("span")).textContent = text;
  return line;
}

/** The smallest of 1, 2, 5, 10, … that is at least some length. */
function niceStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= least * 0.999);
}

function unitOf(us) {
  if (us < 2000) return ["µs", 1];
  return us < 2e6 ? ["ms", 1e3] : ["s", 1e6];
}

/** The distance of a point from a line between two points. */
function distance(x, y, [ax, ay], [bx, by]) {
  const length = (bx - ax) ** 2 + (by - ay) ** 2;
  const share = length ? ((x - ax) * (bx - ax) + (y - ay) * (by - ay)) / length : 0;
  const at = Math.min(1, Math.max(0, share));
  return Math.hypot(x - ax - at * (bx - ax), y - ay - at * (by - ay));
}
