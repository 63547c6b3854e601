// The view: layout of rows, drawing, and what is pointed at and selected.

const GUTTER = 116; // width of the names beside the rows, in CSS pixels
const AXIS = 26; // height of the time axis
const HEAD = 24; // height of a schedule's title
const NOTE = 16; // height of each further line of its figures
const GAP = 5; // space below a rank
const ROWS = [6, 9, 13, 18, 24, 32, 44]; // heights of a row of ops
const PRINTED_RATIO = 2; // device pixels per CSS pixel on paper
const LEAST_US_PER_PIXEL = 0.01;
const THEME = [
  "paper", "ink", "quiet", "line", "idle", "memory", "swing", "fixed", "limit", "moved",
];

class Viewer {
  constructor(page, charts) {
    this.kinds = page.kinds;
    this.words = new Words(page.kinds, page.values);
    this.raster = new Raster(page.kinds, page.lightest, this.words);
    this.canvas = byId("canvas");
    this.context = this.canvas.getContext("2d", { alpha: false });
    this.scroller = byId("scroller");
    this.show = { memory: true, path: true, transfers: false, byRank: page.byRank };
    this.overlays = new Overlays(this);
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
    showLegend(this.kinds, charts);
    showTables(charts);
    showReasons(charts);
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
    const heads = this.charts.reduce((sum, chart) => sum + this.heightOfHead(chart), 0);
    const space = this.scroller.clientHeight - AXIS - heads;
    const fits = ROWS.filter((height) => rows * (2.2 * height + GAP) <= space && height <= 32);
    return ROWS.indexOf(fits.length ? fits[fits.length - 1] : 13);
  }

  heightOfHead(chart) {
    return HEAD + NOTE * (this.overlays.linesOfHead(chart).length - 1);
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
    this.usPerPixel = this.fittedUsPerPixel = this.fullUsPerPixel;
    this.draw();
  }

  /** Draw in another size of the window; the whole time stays in sight. */
  resized() {
    if (this.usPerPixel === this.fittedUsPerPixel) this.fit();
    else this.draw();
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
      y += this.heightOfHead(chart);
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
    const isDark = document.documentElement.dataset.theme === "dark";
    this.raster.dress(this.theme, this.charts, isDark);
    for (const [name, id] of [["memory"], ["path"], ["transfers"], ["byRank", "by-rank"]]) {
      byId(id || name).setAttribute("aria-pressed", String(this.show[name]));
    }
    byId("legend").classList.toggle("no-memory", !this.show.memory);
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
    const { overlays } = this;
    overlays.clipped(() => {
      if (this.show.path) overlays.drawPath();
      overlays.drawMoves();
      overlays.drawMarks();
    });
    overlays.drawNames();
    overlays.drawAxis();
    if (this.selected && !this.isPointing) this.tipOfSelected();
  }

  drawRows(ratio) {
    const { raster, size, show } = this;
    const left = Math.round(GUTTER * ratio);
    raster.resize(Math.round(size.width * ratio) - left, Math.round(size.height * ratio), ratio);
    raster.clear();
    raster.chooseForm(this.charts, this.usPerPixel / ratio);
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
    const form = raster.isNumbered ? FORMS[raster.form] : "";
    if (byId("numbers").textContent !== form) byId("numbers").textContent = form;
  }

  middleOf(chart, rank) {
    const row = this.rowOf.get(`${chart.number}/${rank}`);
    return row.y - this.top + row.height / 2;
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

/** The distance of a point from a line between two points. */
function distance(x, y, [ax, ay], [bx, by]) {
  const length = (bx - ax) ** 2 + (by - ay) ** 2;
  const share = length ? ((x - ax) * (bx - ax) + (y - ay) * (by - ay)) / length : 0;
  const at = Math.min(1, Math.max(0, share));
  return Math.hypot(x - ax - at * (bx - ax), y - ay - at * (by - ay));
}
