// Mouse, keys and buttons.

/** Mouse, keys and buttons of a view. */
class Controls {
  constructor(viewer) {
    this.viewer = viewer;
    const { canvas, scroller } = viewer;
    scroller.addEventListener("scroll", () => viewer.draw());
    new ResizeObserver(() => viewer.resized()).observe(scroller);
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
    if (event.target.closest?.("input, select, textarea, [data-own-keys]")) return;
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
