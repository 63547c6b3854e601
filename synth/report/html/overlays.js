// What is drawn with lines and text over the rows: path, transfers, marks, names and axis.

const MOST_MOVES = 2000; // transfers that are drawn at once
const MOST_DIGITS = 4; // of a label of the time axis
const TITLE_FONT = "bold 13px system-ui, sans-serif";
const NOTE_FONT = "12px system-ui, sans-serif";

class Overlays {
  constructor(viewer) {
    this.view = viewer;
  }

  /** Draw on the rows only, not on names and axis. */
  clipped(work) {
    const { view } = this;
    const { context, size } = view;
    context.save();
    context.beginPath();
    context.rect(GUTTER, AXIS, size.width - GUTTER, size.height - AXIS);
    context.clip();
    work();
    context.restore();
  }

  /** Join the ops of the critical path from rank to rank. */
  drawPath() {
    const { view } = this;
    const { context } = view;
    const toUs = view.usAt(view.size.width);
    context.strokeStyle = view.theme.ink;
    context.lineWidth = 1.25;
    context.beginPath();
    for (const chart of view.charts) {
      const { path } = chart;
      const first = firstWhere(0, path.length, (i) => chart.end(path[i]) >= view.fromUs);
      let before = null;
      for (let i = Math.max(0, first - 2); i < path.length; i++) {
        const node = path[i];
        if (!chart.isOp(node)) continue;
        const rank = chart.rankOf(node);
        if (before !== null && before.rank !== rank) {
          context.moveTo(view.xOf(before.us), view.middleOf(chart, before.rank));
          context.lineTo(view.xOf(chart.start[node]), view.middleOf(chart, rank));
        }
        if (before !== null && before.us > toUs) break;
        before = { rank, us: chart.end(node) };
      }
    }
    context.stroke();
  }

  /** Draw the transfers in sight, if they are asked for and not too many. */
  drawMoves() {
    const { view } = this;
    const { context } = view;
    view.moves = [];
    let count = 0;
    if (view.show.transfers) {
      const toUs = view.usAt(view.size.width);
      const shown = new Set(view.visible.map((row) => row.chart));
      for (const chart of shown) {
        const found = chart.movesWithin(view.fromUs, toUs, MOST_MOVES);
        if (typeof found === "number") count += found;
        else for (const node of found) view.moves.push(...this.linesOf(chart, node));
      }
    }
    view.say(count ? `${count} transfers in this range; zoom in to see them` : "");
    context.lineWidth = 1;
    context.strokeStyle = context.fillStyle = view.theme.moved;
    for (const { from, to } of view.moves) {
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
    const { view } = this;
    const x = [view.xOf(chart.start[node]), view.xOf(chart.end(node))];
    const ranks = chart.ranksOf(node);
    if (!chart.isTransfer(node)) {
      return ranks.map((rank) => {
        const y = view.middleOf(chart, rank) + ROWS[view.row] / 2;
        return { chart, node, from: [x[0], y], to: [x[1], y] };
      });
    }
    const own = ranks.find((rank) => rank >= 0);
    const beside = view.middleOf(chart, own) + ROWS[view.row] / 2 + 3;
    const [a, b] = ranks.map((rank) => (rank < 0 ? beside : view.middleOf(chart, rank)));
    return [{ chart, node, from: [x[0], a], to: [x[1], b] }];
  }

  /** Outline the ops that are selected and pointed at, and join them to what they waited for. */
  drawMarks() {
    const { view } = this;
    const { context } = view;
    for (const mark of [view.hovered, view.selected]) {
      if (mark === null || !mark.chart.isOp(mark.node)) continue;
      const { chart, node } = mark;
      this.outline(chart, node, mark === view.selected ? 2.5 : 1.5);
      const before = chart.awaited(node);
      if (before < 0) continue;
      const cause = chart.isOp(before) ? before : chart.awaited(before);
      if (cause < 0 || !chart.isOp(cause)) continue;
      context.setLineDash([4, 3]);
      context.beginPath();
      const [from, to] = [cause, node].map((op) => view.middleOf(chart, chart.rankOf(op)));
      context.moveTo(view.xOf(chart.end(cause)), from);
      context.lineTo(view.xOf(chart.start[node]), to);
      context.stroke();
      context.setLineDash([]);
    }
  }

  outline(chart, op, thickness) {
    const { view } = this;
    const { context } = view;
    const row = view.rowOf.get(`${chart.number}/${chart.rankOf(op)}`);
    const x = Math.max(GUTTER - 5, view.xOf(chart.start[op]));
    const end = Math.min(view.size.width + 5, view.xOf(chart.end(op)));
    context.strokeStyle = view.theme.ink;
    context.lineWidth = thickness;
    context.strokeRect(x, row.y - view.top, Math.max(2, end - x), row.height);
  }

  /** The lines of a schedule's figures, the first of which stands beside its title. */
  linesOfHead(chart) {
    const { context, size } = this.view;
    let left = this.leftOfNote(chart);
    context.font = NOTE_FONT;
    const lines = [""];
    for (const part of chart.note.split(", ")) {
      const line = lines.at(-1) ? `${lines.at(-1)}, ${part}` : part;
      if (left + context.measureText(line).width <= size.width - 10) {
        lines[lines.length - 1] = line;
        continue;
      }
      left = 10;
      if (lines.at(-1)) lines[lines.length - 1] += ",";
      lines.push(part);
    }
    return lines;
  }

  /** Where a schedule's figures begin beside its title. */
  leftOfNote(chart) {
    const { context } = this.view;
    context.font = TITLE_FONT;
    return 22 + context.measureText(chart.title).width;
  }

  drawNames() {
    const { view } = this;
    const { context, size } = view;
    context.fillStyle = view.theme.paper;
    context.fillRect(0, AXIS, GUTTER, size.height);
    context.textBaseline = "middle";
    for (const { chart, y } of view.layout.heads) {
      const lines = this.linesOfHead(chart);
      const middle = y - view.top + HEAD / 2;
      if (middle < -NOTE * lines.length || middle > size.height + HEAD) continue;
      context.fillStyle = view.theme.ink;
      const left = this.leftOfNote(chart);
      context.fillText(chart.title, 10, middle);
      context.font = NOTE_FONT;
      context.fillStyle = view.theme.quiet;
      lines.forEach((line, place) =>
        context.fillText(line, place ? 10 : left, middle + NOTE * place));
    }
    for (const { chart, rank, y, height, memory } of view.visible) {
      const top = y - view.top;
      context.fillStyle = view.theme.ink;
      context.font = `${Math.min(12, height + 2)}px system-ui, sans-serif`;
      const name = view.show.byRank ? ` ${chart.title}` : "";
      const shown = shortened(context, `rank ${rank}${name}`, GUTTER - 16);
      context.fillText(shown, 10, top + height / 2);
      if (memory < 13) continue;
      context.fillStyle = view.theme.quiet;
      context.font = "11px system-ui, sans-serif";
      const peak = `peak ${formatBytes(chart.peakBytes[rank])}`;
      context.fillText(shortened(context, peak, GUTTER - 16), 10, top + height + memory / 2);
    }
  }

  drawAxis() {
    const { view } = this;
    const { context, size } = view;
    context.fillStyle = view.theme.paper;
    context.fillRect(0, 0, size.width, AXIS);
    context.strokeStyle = view.theme.line;
    context.lineWidth = 1;
    context.fillStyle = view.theme.ink;
    context.font = "12px system-ui, sans-serif";
    context.textBaseline = "middle";
    const axis = timeAxis(view.fromUs, view.usAt(size.width), niceStep(90 * view.usPerPixel));
    context.fillText(axis.title, 10, AXIS / 2, GUTTER - 12);
    context.beginPath();
    for (const [us, label] of axis.ticks) {
      const x = view.xOf(us);
      context.moveTo(x, AXIS - 6);
      context.lineTo(x, AXIS);
      const isWhole = x + 3 + context.measureText(label).width <= size.width;
      if (isWhole) context.fillText(label, x + 3, AXIS / 2);
    }
    context.moveTo(0, AXIS - 0.5);
    context.lineTo(size.width, AXIS - 0.5);
    context.stroke();
    this.drawEnds();
  }

  /** A line at the end of each schedule. */
  drawEnds() {
    const { view } = this;
    const { context } = view;
    this.clipped(() => {
      context.strokeStyle = view.theme.quiet;
      context.setLineDash([2, 2]);
      context.beginPath();
      for (const { chart, y, height, memory } of view.visible) {
        const x = Math.round(view.xOf(chart.endUs)) + 0.5;
        context.moveTo(x, y - view.top - 2);
        context.lineTo(x, y - view.top + height + memory);
      }
      context.stroke();
    });
  }
}

/** The smallest of 1, 2, 5, 10, … that is at least some length. */
function niceStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= least * 0.999);
}

function unitOf(us) {
  if (us < 1000) return ["µs", 1];
  return us < 1e6 ? ["ms", 1e3] : ["s", 1e6];
}

/** The ticks of a range of time with few digits: in its unit, if need be after a beginning. */
function timeAxis(fromUs, toUs, step) {
  const [unit, unitUs] = unitOf(toUs - fromUs);
  const plain = (value) => Number(value.toPrecision(12)).toString();
  const places = [];
  for (let us = Math.ceil(fromUs / step) * step; us <= toUs; us += step) places.push(us);
  const digits = places.map((us) => plain(us / unitUs).replace(/\D/g, "").length);
  const round = 10 ** Math.ceil(Math.log10(2 * step));
  const isLong = places.length > 1 && Math.max(...digits) > MOST_DIGITS;
  const afterUs = isLong ? Math.floor(places[0] / round + 1e-9) * round : 0;
  const [name, nameUs] = unitOf(afterUs);
  return {
    title: afterUs ? `${plain(afterUs / nameUs)} ${name} + …, ${unit}` : `time, ${unit}`,
    ticks: places.map((us) => [us, plain((us - afterUs) / unitUs)]),
  };
}

/** A text as far as it has room, with … if something is missing. */
function shortened(context, text, room) {
  if (context.measureText(text).width <= room) return text;
  let end = text.length - 1;
  while (end > 0 && context.measureText(`${text.slice(0, end)}…`).width > room) end--;
  return `${text.slice(0, end)}…`;
}
