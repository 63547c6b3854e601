// What is drawn with lines and text over the rows: path, transfers, marks, names and axis.

const MOST_MOVES = 2000; // transfers that are drawn at once

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

  drawNames() {
    const { view } = this;
    const { context, size } = view;
    context.fillStyle = view.theme.paper;
    context.fillRect(0, AXIS, GUTTER, size.height);
    context.textBaseline = "middle";
    for (const { chart, y } of view.layout.heads) {
      const middle = y - view.top + HEAD / 2;
      if (middle < -HEAD || middle > size.height + HEAD) continue;
      context.fillStyle = view.theme.ink;
      context.font = "bold 13px system-ui, sans-serif";
      context.fillText(chart.title, 10, middle);
      const x = 22 + context.measureText(chart.title).width;
      context.font = "12px system-ui, sans-serif";
      context.fillStyle = view.theme.quiet;
      context.fillText(chart.note, x, middle, size.width - x - 10);
    }
    for (const { chart, rank, y, height, memory } of view.visible) {
      const top = y - view.top;
      context.fillStyle = view.theme.ink;
      context.font = `${Math.min(12, height + 2)}px system-ui, sans-serif`;
      const name = view.show.byRank ? ` ${chart.title}` : "";
      context.fillText(`rank ${rank}${name}`, 10, top + height / 2, GUTTER - 16);
      if (memory < 13) continue;
      context.fillStyle = view.theme.quiet;
      context.font = "11px system-ui, sans-serif";
      const peak = `peak ${formatBytes(chart.peakBytes[rank])}`;
      context.fillText(peak, 10, top + height + memory / 2, GUTTER - 16);
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
    const step = niceStep(90 * view.usPerPixel);
    const [unit, unitUs] = unitOf(Math.max(view.endUs, step));
    context.fillText(`time, ${unit}`, 10, AXIS / 2);
    context.beginPath();
    const last = view.usAt(size.width);
    for (let us = Math.ceil(view.fromUs / step) * step; us <= last; us += step) {
      const x = view.xOf(us);
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
  if (us < 2000) return ["µs", 1];
  return us < 2e6 ? ["ms", 1e3] : ["s", 1e6];
}
