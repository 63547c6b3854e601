// The memory limit, dragged by its line below a rank.

const NEAR = 5; // pixels

export class LimitLine {
  /** `onLimit` gets bytes while the line is dragged. */
  constructor(viewer, onLimit) {
    Object.assign(this, { viewer, onLimit });
    const { scroller } = viewer;
    scroller.addEventListener("pointerdown", (event) => this.press(event), true);
    scroller.addEventListener("pointermove", (event) => this.move(event), true);
    scroller.addEventListener("pointerup", (event) => this.release(event), true);
  }

  /** The height of a row's limit on the canvas. */
  lineOf(row) {
    const { viewer } = this;
    const cap = row.chart.capBytes?.[row.rank];
    if (!cap || !row.memory) return null;
    const bottom = row.y - viewer.top + row.height + row.memory;
    return { row, bottom, y: bottom - (cap / viewer.fullBytes) * row.memory };
  }

  near(event) {
    if (event.target !== this.viewer.canvas) return null;
    const lines = this.viewer.visible.map((row) => this.lineOf(row)).filter(Boolean);
    return lines.find(({ y }) => Math.abs(y - event.offsetY) < NEAR);
  }

  press(event) {
    const line = event.button === 0 && this.near(event);
    if (!line) return;
    event.stopPropagation();
    this.viewer.canvas.setPointerCapture(event.pointerId);
    this.viewer.hideTip();
    this.held = { ...line, fullBytes: this.viewer.fullBytes };
  }

  move(event) {
    const { held } = this;
    this.viewer.canvas.classList.toggle("limiting", Boolean(held || this.near(event)));
    if (!held) return;
    event.stopPropagation();
    const share = (held.bottom - event.offsetY) / held.row.memory;
    this.onLimit(Math.max(0.02, share) * held.fullBytes);
  }

  release(event) {
    if (!this.held) return;
    event.stopPropagation();
    this.held = null;
  }
}
