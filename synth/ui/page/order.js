// An order of ops that is made by hand: an op of the lower schedule is put before another.

import { element } from "./elements.js";

/** Return the programs after some moves: [rank, from, to] puts an op before the one at `to`. */
export function moved(programs, moves) {
  const changed = programs.map((line) => line.split(" "));
  for (const [rank, from, to] of moves) {
    const ops = changed[rank];
    if (!ops || from >= ops.length) continue;
    const [op] = ops.splice(from, 1);
    ops.splice(to > from ? to - 1 : to, 0, op);
  }
  return changed.map((ops) => ops.join(" "));
}

/** The programs of a chart, as plan files have them. */
export function programsOf(viewer, chart) {
  return Array.from({ length: chart.numRanks }, (_, rank) => {
    const [first, last] = chart.opsOf(rank);
    const ops = Array.from({ length: last - first }, (_, i) => viewer.words.token(chart, first + i));
    return ops.join(" ");
  });
}

export class OrderDrag {
  /** `onMove` gets [rank, from, to]; `target` returns the chart whose ops may be moved. */
  constructor(viewer, target, onMove) {
    Object.assign(this, { viewer, target, onMove, isOn: false });
    this.mark = element("div", { id: "drop-mark", hidden: "" });
    document.body.append(this.mark);
    const { scroller } = viewer;
    scroller.addEventListener("pointerdown", (event) => this.press(event), true);
    scroller.addEventListener("pointermove", (event) => this.move(event), true);
    scroller.addEventListener("pointerup", (event) => this.release(event), true);
    document.addEventListener("keydown", (event) => this.key(event));
  }

  turn(isOn) {
    this.isOn = isOn;
    this.viewer.canvas.classList.toggle("ordering", isOn);
  }

  press(event) {
    if (!this.isOn || event.button !== 0 || event.target !== this.viewer.canvas) return;
    const found = this.viewer.at(event.offsetX, event.offsetY);
    if (!found || found.chart !== this.target() || found.node < 0) return;
    if (!found.chart.isOp(found.node)) return;
    event.stopPropagation();
    this.viewer.canvas.setPointerCapture(event.pointerId);
    this.held = { chart: found.chart, op: found.node, rank: found.chart.rankOf(found.node) };
    this.held.to = this.held.op;
    this.viewer.hideTip();
  }

  move(event) {
    if (!this.held) return;
    event.stopPropagation();
    const { chart, rank } = this.held;
    const us = this.viewer.usAt(event.offsetX);
    const [first, last] = chart.opsOf(rank);
    let to = first;
    while (to < last && chart.start[to] + chart.duration[to] / 2 < us) to++;
    this.held.to = to;
    this.showMark(to);
  }

  showMark(to) {
    const { viewer, held } = this;
    const { chart, rank } = held;
    const row = viewer.rowOf.get(`${chart.number}/${rank}`);
    const frame = viewer.canvas.getBoundingClientRect();
    const us = to < chart.opsOf(rank)[1] ? chart.start[to] : chart.end(to - 1);
    this.mark.hidden = false;
    Object.assign(this.mark.style, {
      left: `${frame.left + viewer.xOf(us) - 1}px`,
      top: `${frame.top + row.y - viewer.top - 3}px`,
      height: `${row.height + 6}px`,
    });
  }

  release(event) {
    if (!this.held) return;
    event.stopPropagation();
    const { chart, rank, op, to } = this.held;
    this.held = null;
    this.mark.hidden = true;
    const [first] = chart.opsOf(rank);
    if (chart !== this.target()) return; // another schedule is drawn since
    if (to !== op && to !== op + 1) this.onMove([rank, op - first, to - first]);
  }

  /** Move the selected op by one place, with < and >. */
  key(event) {
    if (!this.isOn || event.target.closest?.("input, select")) return;
    const selected = this.viewer.selected;
    if (!selected || selected.chart !== this.target() || !["<", ">"].includes(event.key)) return;
    const { chart, node } = selected;
    const rank = chart.rankOf(node);
    const [first, last] = chart.opsOf(rank);
    const to = event.key === "<" ? node - 1 : node + 2;
    if (to >= first && to <= last) this.onMove([rank, node - first, to - first]);
  }
}
