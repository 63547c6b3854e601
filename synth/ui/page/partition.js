// The layers of the model in a row, cut into stages by boundaries that are dragged.

import { element } from "./elements.js";

const MANY = 12; // stages, above which the handles are thin and have no numbers between them

export class PartitionBar {
  /** `onChange` gets the layers of each stage. */
  constructor(place, onChange) {
    Object.assign(this, { place, onChange, sizes: [], work: [] });
  }

  show(sizes, layers) {
    this.sizes = [...sizes];
    this.work = layers.map(([, us]) => Math.max(us, 1e-9));
    if (this.dragged === undefined) this.build();
    else this.arrange();
  }

  build() {
    const stages = element("div", { class: "stages" });
    this.stages = this.sizes.map(() => element("div", { class: "stage" }));
    this.handles = this.sizes.slice(1).map((_, place) => this.handle(place));
    stages.append(...this.stages, ...this.handles);
    this.place.replaceChildren(stages);
    this.place.classList.toggle("many", this.sizes.length > MANY);
    this.arrange();
  }

  handle(place) {
    const handle = element("div", { class: "handle", role: "slider", tabindex: "0" });
    handle.addEventListener("pointerdown", (event) => {
      handle.setPointerCapture(event.pointerId);
      this.dragged = place;
    });
    handle.addEventListener("pointermove", (event) => {
      if (this.dragged === place) this.moveTo(place, this.layerAt(event.clientX));
    });
    const release = () => (this.dragged = undefined);
    handle.addEventListener("pointerup", release);
    handle.addEventListener("pointercancel", release);
    handle.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1 }[event.key];
      if (!by) return;
      event.preventDefault();
      this.moveTo(place, this.boundary(place) + by);
    });
    return handle;
  }

  /** The number of layers before a boundary. */
  boundary(place) {
    return this.sizes.slice(0, place + 1).reduce((sum, size) => sum + size, 0);
  }

  /** The boundary between layers that is nearest to a point. */
  layerAt(x) {
    const frame = this.place.getBoundingClientRect();
    const total = this.work.reduce((sum, us) => sum + us, 0);
    const at = ((x - frame.left) / frame.width) * total;
    let [sum, layer] = [0, 0];
    while (layer < this.work.length && sum + this.work[layer] / 2 < at) sum += this.work[layer++];
    return layer;
  }

  moveTo(place, layer) {
    const by = layer - this.boundary(place);
    const least = 1 - this.sizes[place];
    const most = this.sizes[place + 1] - 1;
    const moved = Math.min(most, Math.max(least, by));
    if (!moved) return;
    this.sizes[place] += moved;
    this.sizes[place + 1] -= moved;
    this.arrange();
    this.onChange([...this.sizes]);
  }

  arrange() {
    const total = this.work.reduce((sum, us) => sum + us, 0);
    let [layer, before] = [0, 0];
    this.sizes.forEach((size, stage) => {
      const own = this.work.slice(layer, layer + size).reduce((sum, us) => sum + us, 0);
      layer += size;
      before += own;
      const box = this.stages[stage];
      box.style.flexGrow = String(own / total);
      box.textContent = String(size);
      box.title = `stage ${stage}: ${size} layers, ${((100 * own) / total).toFixed(1)} % of the work`;
      const handle = this.handles[stage];
      if (!handle) return;
      handle.style.left = `${(100 * before) / total}%`;
      handle.setAttribute("aria-valuenow", String(layer));
      handle.setAttribute("aria-valuemin", "1");
      handle.setAttribute("aria-valuemax", String(this.work.length - 1));
      handle.setAttribute("aria-label", `layers before stage ${stage + 1}`);
    });
  }
}
