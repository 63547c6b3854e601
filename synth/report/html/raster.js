// Rows of ops and memory as pixels. A pixel column has the mean colour, in linear light, of the
// time that it covers, so that any number of ops is drawn truly and without moiré.

const OPAQUE = 0xff; // alpha, the highest byte of a pixel
const LINEAR_STEPS = 4095; // levels of linear light: enough that every level of sRGB occurs
const THIN = 2; // device pixels, below which the edges of ops would make beats with the columns
const TO_SRGB = Uint8Array.from({ length: LINEAR_STEPS + 1 }, (_, i) => {
  const x = i / LINEAR_STEPS;
  return Math.round(255 * (x <= 0.0031308 ? 12.92 * x : 1.055 * x ** (1 / 2.4) - 0.055));
});

/** The red, green and blue of `#rrggbb` in linear light, 0 to 1. */
function linear(hex) {
  return [1, 3, 5].map((at) => {
    const x = parseInt(hex.slice(at, at + 2), 16) / 255;
    return x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4;
  });
}

const mixed = (a, b, share) => a.map((x, i) => x * (1 - share) + b[i] * share);
const luminance = ([r, g, b]) => 0.2126 * r + 0.7152 * g + 0.0722 * b;

/** A pixel of an ImageData, as a little-endian word. */
function word(red, green, blue) {
  return (
    ((OPAQUE << 24) |
      (TO_SRGB[(blue * LINEAR_STEPS) | 0] << 16) |
      (TO_SRGB[(green * LINEAR_STEPS) | 0] << 8) |
      TO_SRGB[(red * LINEAR_STEPS) | 0]) >>>
    0
  );
}

/** The letters of labels as coverage, drawn once for a size in pixels. */
class Glyphs {
  constructor(size, letters) {
    const canvas = new OffscreenCanvas(2 * size, 2 * size);
    const context = canvas.getContext("2d", { willReadFrequently: true });
    context.font = `${size}px system-ui, "DejaVu Sans", sans-serif`;
    context.textBaseline = "middle";
    this.height = Math.ceil(1.3 * size);
    this.glyphs = {};
    for (const letter of letters) {
      const width = Math.max(1, Math.round(context.measureText(letter).width));
      context.clearRect(0, 0, 2 * size, 2 * size);
      context.fillText(letter, 0, this.height / 2);
      const { data } = context.getImageData(0, 0, width, this.height);
      const cover = Uint8Array.from({ length: width * this.height }, (_, i) => data[4 * i + 3]);
      this.glyphs[letter] = { width, cover };
    }
  }

  widthOf(text) {
    let width = 0;
    for (const letter of text) width += this.glyphs[letter].width;
    return width;
  }
}

class Raster {
  constructor(kinds, lightest, words) {
    this.kinds = kinds;
    this.lightest = lightest;
    this.words = words;
    this.letters = new Set([...kinds.map((k) => k.name).join(""), ..."0123456789.@"]);
  }

  /** Make the buffers, in device pixels. */
  resize(width, height, perPixel) {
    if (this.width === width && this.height === height && this.perPixel === perPixel) return;
    Object.assign(this, { width, height, perPixel });
    this.image = new ImageData(width, height);
    this.pixels = new Uint32Array(this.image.data.buffer);
    for (const name of ["red", "green", "blue", "share", "thin", "low", "high"]) {
      this[name] = new Float32Array(width);
    }
    this.line = new Uint32Array(width);
    this.wide = [];
    this.glyphs = new Glyphs(Math.round(11 * perPixel), this.letters);
    this.needed = new Map();
  }

  /** Take the colours of a theme, and number the looks of ops: a colour for each kind and shade. */
  dress(theme, charts, isDark) {
    this.theme = Object.fromEntries(Object.entries(theme).map(([k, hex]) => [k, linear(hex)]));
    this.flat = Object.fromEntries(
      Object.entries(this.theme).map(([name, colour]) => [name, word(...colour)]),
    );
    const shades = [...new Set(charts.flatMap((chart) => chart.shades.flat()))];
    this.looks = this.kinds.flatMap(({ colour, darkColour }) =>
      shades.map((shade) => {
        const full = linear((isDark ? darkColour : colour) || theme.quiet);
        const own = mixed(full, [1, 1, 1], shade * this.lightest);
        return { own, ink: luminance(own) > 0.2 ? 0 : 1 };
      }),
    );
    this.light = Float32Array.from(
      this.looks.flatMap(({ own }) => own.map((x, i) => x - this.theme.idle[i])),
    );
    for (const chart of charts) {
      const shadeOf = chart.shades.map((row) => row.map((shade) => shades.indexOf(shade)));
      const { kind, stage, replica, numOps } = chart;
      chart.look = Uint16Array.from({ length: numOps }, (_, op) =>
        kind[op] * shades.length + shadeOf[replica[op]][stage[op]]);
    }
  }

  clear() {
    this.pixels.fill(this.flat.paper);
    this.isNumbered = false;
  }

  /** Choose the form of all labels: the longest that has space in even short ops of each kind. */
  chooseForm(charts, usPerPixel) {
    const hasSpace = (form) =>
      charts.every((chart) => {
        const space = this.shortUs(chart) / usPerPixel - 3 * this.perPixel;
        return this.needs(chart)[form] <= space;
      });
    const last = FORMS.length - 1;
    this.form = FORMS.findIndex((_, form) => form === last || hasSpace(form));
  }

  /** The duration of a short op, of the kind whose short ones are the shortest. */
  shortUs(chart) {
    if (chart.shortUs === undefined) {
      const { kind, duration, numOps } = chart;
      const found = this.kinds.map(() => []);
      for (let op = 0; op < numOps; op++) if (duration[op]) found[kind[op]].push(duration[op]);
      const short = found
        .filter((durations, code) => durations.length && this.kinds[code].name !== "STEP")
        .map((durations) => Float64Array.from(durations).sort()[(durations.length / 10) | 0]);
      chart.shortUs = Math.min(...short);
    }
    return chart.shortUs;
  }

  /** Paint a rank's ops. `view` has the time at the left edge and the time per device pixel. */
  paintOps(chart, rank, view, top, height, showPath) {
    this.addUp(chart, rank, view, showPath);
    const { line, width, red, green, blue, share } = this;
    for (let x = 0; x < width; x++) line[x] = word(red[x], green[x], blue[x]);
    for (const [, a] of this.wide) if (a >= 0) line[a | 0] = this.flat.idle;
    const strip = showPath ? Math.max(2, Math.round(height / 6)) : 0;
    this.repeat(top, height - strip);
    if (strip) {
      const [r, g, b] = this.theme.ink;
      for (let x = 0; x < width; x++) {
        const s = Math.min(1, share[x]);
        if (s > 0) line[x] = word(mix(red[x], r, s), mix(green[x], g, s), mix(blue[x], b, s));
      }
      this.repeat(top + height - strip, strip);
    }
    const least = this.glyphs.height * 0.72;
    if (height - strip >= least) {
      for (const [op, a, b] of this.wide) this.label(chart, op, a, b, top, height - strip);
    }
  }

  /** Add up the light of the ops in each column; list those with space for a label as `wide`. */
  addUp(chart, rank, view, showPath) {
    const { red, green, blue, share, thin, width, light } = this;
    const { start, duration, look, onPath } = chart;
    red.fill(this.theme.idle[0]);
    green.fill(this.theme.idle[1]);
    blue.fill(this.theme.idle[2]);
    share.fill(0);
    thin.fill(0);
    const wide = (this.wide = []);
    const wideFrom = 6 * this.perPixel;
    const scale = 1 / view.usPerPixel;
    const add = (x, part, at, isOnPath) => {
      red[x] += part * light[at];
      green[x] += part * light[at + 1];
      blue[x] += part * light[at + 2];
      share[x] += part * isOnPath;
    };
    const [, last] = chart.opsOf(rank);
    for (let op = chart.firstEndingAfter(rank, view.fromUs); op < last; op++) {
      const begin = (start[op] - view.fromUs) * scale;
      if (begin >= width) break;
      const length = duration[op] * scale;
      if (length === 0) continue;
      const a = begin < 0 ? 0 : begin;
      const b = begin + length > width ? width : begin + length;
      if (length >= wideFrom) wide.push([op, begin, begin + length]);
      const at = 3 * look[op];
      const isOnPath = showPath ? onPath[op] : 0;
      const first = a | 0;
      const end = b | 0;
      if (length < THIN) thin.fill(1, first, end + 1);
      if (first === end) {
        add(first, b - a, at, isOnPath);
        continue;
      }
      add(first, first + 1 - a, at, isOnPath);
      for (let x = first + 1; x < end; x++) add(x, 1, at, isOnPath);
      if (end < width) add(end, b - end, at, isOnPath);
    }
    for (const light of [red, green, blue]) this.smooth(light);
  }

  /** Blend columns of thin ops with their neighbours, so that rows of ops make no beats. */
  smooth(light) {
    const { thin, width } = this;
    let before = light[0];
    for (let x = 0; x < width; x++) {
      const here = light[x];
      const left = x > 0 && thin[x - 1] ? before : here;
      const right = x + 1 < width && thin[x + 1] ? light[x + 1] : here;
      light[x] = unit(thin[x] ? (left + 2 * here + right) / 4 : here);
      before = here;
    }
  }

  /** Copy the line into `count` rows of the picture. */
  repeat(top, count) {
    const { pixels, line, width, height } = this;
    for (let y = Math.max(0, top); y < Math.min(height, top + count); y++) {
      pixels.set(line, y * width);
    }
  }

  /** Write the label of an op if it fits into the visible part. */
  label(chart, op, a, b, top, height) {
    const left = Math.max(0, a);
    const space = Math.min(this.width, b) - left - 3 * this.perPixel;
    const text = this.words.labels(chart, op)[this.form];
    if (this.glyphs.widthOf(text) > space) return;
    this.isNumbered = true;
    const ink = this.looks[chart.look[op]].ink ? 255 : 0;
    let x = Math.round(left + (space + 3 * this.perPixel - this.glyphs.widthOf(text)) / 2);
    const y = top + ((height - this.glyphs.height) >> 1);
    for (const letter of text) x += this.letter(letter, x, y, ink);
  }

  /** The width that each form of label needs at most. */
  needs(chart) {
    if (!this.needed.has(chart)) {
      const widths = this.words.widest(chart).map((text) => this.glyphs.widthOf(text));
      this.needed.set(chart, widths);
    }
    return this.needed.get(chart);
  }

  letter(letter, left, top, ink) {
    const { width, cover } = this.glyphs.glyphs[letter];
    const { pixels, height } = this;
    for (let y = Math.max(0, -top); y < this.glyphs.height && top + y < height; y++) {
      for (let x = 0; x < width; x++) {
        const c = cover[y * width + x];
        if (c < 8 || left + x < 0 || left + x >= this.width) continue;
        const at = (top + y) * this.width + left + x;
        const under = pixels[at];
        const over = (shift) => {
          const old = (under >>> shift) & 255;
          return (old + (((ink - old) * c) >> 8)) << shift;
        };
        pixels[at] = ((OPAQUE << 24) | over(16) | over(8) | over(0)) >>> 0;
      }
    }
    return width;
  }

  /** Paint a rank's memory curve below its limit; `fullBytes` is the height of the row. */
  paintMemory(chart, rank, view, top, height, fullBytes) {
    this.findLevels(chart, rank, view);
    const { low, high, width, line, flat } = this;
    const lines = (bytes) => Math.round((bytes / fullBytes) * (height - 1));
    const cap = chart.capBytes ? lines(chart.capBytes[rank]) : Infinity;
    const fixed = lines(chart.staticBytes[rank]);
    let highest = 0;
    for (let x = 0; x < width; x++) {
      low[x] = lines(low[x]);
      high[x] = lines(high[x]);
      if (high[x] > highest) highest = high[x];
    }
    for (let k = 0; k < height; k++) {
      if (k >= highest && k !== cap) continue;
      const solid = k > cap ? flat.limit : k < fixed ? flat.fixed : flat.memory;
      const pale = k > cap ? flat.limit : flat.swing;
      for (let x = 0; x < width; x++) {
        line[x] = k < low[x] ? solid : k < high[x] ? pale : flat.paper;
      }
      if (k === cap) line.fill(flat.limit);
      this.repeat(top + height - 1 - k, 1);
    }
  }

  /** Find the lowest and highest level of each column; 0 before the first op and after the end. */
  findLevels(chart, rank, view) {
    const { low, high, width } = this;
    const { start, waiting, running } = chart;
    low.fill(Infinity);
    high.fill(0);
    const scale = 1 / view.usPerPixel;
    const mark = (fromUs, toUs, level) => {
      const a = Math.max(0, Math.floor((fromUs - view.fromUs) * scale));
      const b = Math.min(width, Math.max(a + 1, Math.ceil((toUs - view.fromUs) * scale)));
      for (let x = a; x < b; x++) {
        if (level < low[x]) low[x] = level;
        if (level > high[x]) high[x] = level;
      }
    };
    const [first, last] = chart.opsOf(rank);
    const toUs = view.fromUs + width * view.usPerPixel;
    let op = Math.max(first, chart.firstEndingAfter(rank, view.fromUs) - 1);
    let endUs = op > first ? chart.end(op - 1) : chart.beginUs;
    for (; op < last && endUs < toUs; op++) {
      const slot = chart.slotOf(op, rank);
      const us = chart.end(op);
      if (start[op] >= view.fromUs) mark(endUs, start[op], waiting[slot]);
      if (us >= view.fromUs && start[op] < toUs) mark(start[op], us, running[slot]);
      endUs = us;
    }
    if (op === last && endUs < toUs && chart.endUs > view.fromUs) {
      mark(endUs, chart.endUs, waiting[chart.slotOf(last, rank)]);
    }
    for (let x = 0; x < width; x++) if (low[x] === Infinity) low[x] = 0;
  }
}

const mix = (a, b, share) => a + (b - a) * share;
const unit = (x) => (x < 0 ? 0 : x > 1 ? 1 : x);
