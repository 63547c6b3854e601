// The panel of settings: its fields show the state, and change it.

import { choose, element } from "./elements.js";
import { NONE, SLIDERS } from "./state.js";

const PLACEMENTS = ["auto", "linear", "looped", "v", "wave", "bidirectional"];
const WITH_ROUNDS = ["looped", "wave"];
const SLOTS = ["upper", "lower"];
const OWN = "sliders";
// Words, least, most and step of each slider.
const RANGES = {
  layers: ["layers", 1, 256, 1],
  forward_ms: ["F, ms", 1, 100, 1],
  backward_ms: ["B, ms", 0, 100, 1],
  weight_ms: ["W, ms", 0, 100, 1],
  saved_mb: ["saved, MB", 0, 1000, 10],
  output_mb: ["output, MB", 0, 200, 1],
  parameter_mb: ["parameters, MB", 0, 4000, 50],
};
const STEPS = 1000; // of the slider of the memory limit
const GB = 1e9;

/** Bytes as an option has them. */
export const asSize = (bytes) => `${Math.max(0.001, bytes / GB).toPrecision(4) * 1}GB`;

export class Form {
  /** `onChange` gets the fields of the state that have changed. */
  constructor(start, onChange) {
    Object.assign(this, { start, onChange, fullBytes: 100 * GB });
    this.listModels();
    this.addSliders();
    choose(byId("device"), start.devices.map((name) => [name, name]));
    choose(byId("placement"), PLACEMENTS.map((name) => [name, name]));
    byId("settings").addEventListener("submit", (event) => event.preventDefault());
    for (const name of ["ranks", "micro_batches", "tp"]) this.onNumber(name);
    for (const name of ["objective", "recompute", "device"]) this.onChoice(name, byId(name));
    for (const slot of SLOTS) this.onChoice(slot, byId(`${slot}-schedule`));
    byId("model").addEventListener("change", () => this.chooseModel(byId("model").value));
    byId("placement").addEventListener("change", () => this.place());
    byId("rounds").addEventListener("change", () => this.place());
    this.listenToLimit();
    this.listenToLinks();
  }

  listModels(more = []) {
    const { shipped, estimated, profile, config } = this.start.models;
    const same = (names) => names.map((name) => [name, name]);
    this.opened = [...(this.opened || []), ...more];
    const groups = [
      ["opened", this.opened],
      ["of this folder", same([...profile, ...config])],
      ["measured or published", same(shipped)],
      ["by hand", [[OWN, "F, B and W by sliders"]]],
      ["estimated", same(estimated)],
    ];
    choose(byId("model"), groups.filter(([, names]) => names.length));
  }

  isConfig(name) {
    return this.start.models.config.includes(name) || Boolean(this.configs?.has(name));
  }

  /** Take a model that was opened. */
  addModel(kind, name, text) {
    if (kind === "config") (this.configs ||= new Set()).add(name);
    this.listModels([[name, text]]);
    this.chooseModel(name);
  }

  chooseModel(name) {
    const sliders = name === OWN ? { ...SLIDERS } : null;
    const model = sliders ? {} : { model: name };
    this.onChange({ ...model, sliders, is_config: this.isConfig(name), partition: null, moves: [] });
  }

  addSliders() {
    for (const [name, [words, min, max, step]] of Object.entries(RANGES)) {
      const range = element("input", { type: "range", id: `s-${name}`, min, max, step });
      byId("sliders").append(element("label", {}, element("span", {}, words), range, element("output")));
      range.addEventListener("input", () => {
        const sliders = { ...this.state.sliders, [name]: Number(range.value) };
        const partition = name === "layers" ? { partition: null } : {};
        this.onChange({ sliders, ...partition });
      });
    }
  }

  onNumber(name) {
    byId(name).addEventListener("change", () => {
      const value = Math.round(Number(byId(name).value));
      if (value >= 1) this.changed(name, value);
      else byId(name).value = this.state[name];
    });
  }

  onChoice(name, select) {
    select.addEventListener("change", () => this.changed(name, select.value));
  }

  changed(name, value) {
    const partition = name === "ranks" ? { partition: null } : {};
    const moves = name === "objective" ? {} : { moves: [] };
    this.onChange({ [name]: value, ...partition, ...moves });
  }

  place() {
    const name = byId("placement").value;
    const rounds = Math.max(2, Number(byId("rounds").value) || 2);
    const placement = WITH_ROUNDS.includes(name) ? `${name}:${rounds}` : name;
    this.onChange({ placement, partition: null, moves: [] });
  }

  listenToLimit() {
    const kind = byId("limit-kind");
    const size = () => Number(byId("limit-size").value) * GB || 0.9 * this.peakBytes;
    kind.addEventListener("change", () =>
      this.limit(kind.value === "size" ? asSize(size()) : kind.value));
    byId("limit-size").addEventListener("change", () => this.limit(asSize(size())));
    byId("limit-range").addEventListener("input", (event) =>
      this.limit(asSize((event.target.value / STEPS) * this.fullBytes)));
  }

  limit(text) {
    this.onChange({ mem_limit: text });
  }

  listenToLinks() {
    const [latency, bandwidth, range] = ["latency", "bandwidth", "bandwidth-range"].map(byId);
    const change = () => {
      const isOwn = byId("link-kind").value;
      const [us, gb] = [Number(latency.value) || 0, Number(bandwidth.value) || 100];
      this.onChange({ link: isOwn ? `${us}us,${gb}GB/s` : null });
    };
    range.addEventListener("input", () => {
      bandwidth.value = Number((10 ** range.value).toPrecision(2));
      change();
    });
    for (const field of [byId("link-kind"), latency, bandwidth]) {
      field.addEventListener("change", change);
    }
  }

  /** Show the state in all fields. */
  show(state) {
    this.state = state;
    const value = (id, text) => {
      if (document.activeElement !== byId(id) || byId(id).type !== "number") byId(id).value = text;
    };
    value("model", state.sliders ? OWN : state.model);
    for (const name of ["ranks", "micro_batches", "tp", "device", "objective", "recompute"]) {
      value(name, state[name]);
    }
    const [place, rounds = 2] = state.placement.split(":");
    value("placement", place);
    value("rounds", rounds);
    byId("rounds").parentElement.hidden = !WITH_ROUNDS.includes(place);
    byId("config").hidden = !state.is_config || Boolean(state.sliders);
    byId("sliders").hidden = !state.sliders;
    if (state.sliders) this.showSliders(state.sliders);
    const [us, gb] = (state.link || "").match(/[\d.]+/g) || [10, 100];
    value("link-kind", state.link ? "own" : "");
    byId("link").hidden = !state.link;
    value("latency", us);
    value("bandwidth", gb);
    byId("bandwidth-range").value = Math.log10(gb);
  }

  showSliders(sliders) {
    for (const [name, value] of Object.entries(sliders)) {
      const range = byId(`s-${name}`);
      range.value = value;
      range.nextElementSibling.textContent = value;
    }
  }

  /** Show what the server answered: the limit in bytes, and the schedules to choose from. */
  showAnswer(state, { cap_bytes: cap, choices, drawn }, opened) {
    const peaks = drawn.map((one) => one.peak_bytes || 0);
    this.peakBytes = Math.max(...peaks, 1);
    if (!byId("limit-range").matches(":active")) {
      this.fullBytes = 1.25 * Math.max(this.peakBytes, cap || 0);
    }
    const isWord = ["none", "auto"].includes(state.mem_limit);
    byId("limit-kind").value = isWord ? state.mem_limit : "size";
    const shown = cap || this.peakBytes;
    if (document.activeElement !== byId("limit-size")) {
      byId("limit-size").value = cap ? Number((cap / GB).toPrecision(4)) : "";
    }
    byId("limit-range").value = Math.round((STEPS * shown) / this.fullBytes);
    this.showChoices(state, choices, opened);
  }

  /** Show the schedules to choose from. */
  showChoices(state, choices, opened) {
    const groups = choices.map(({ placement, schedules }) => [
      placement,
      schedules.map((name) => [name, name]),
    ]);
    for (const slot of SLOTS) this.showSchedules(slot, state[slot], groups, opened);
  }

  showSchedules(slot, name, groups, opened) {
    const plans = slot === "upper" ? [...opened, [NONE, NONE]] : [...opened];
    const known = [...plans, ...groups.flatMap(([, names]) => names)].some(([each]) => each === name);
    if (!known) plans.push([name, name.startsWith("plan:found-") ? "found before" : name.replace("plan:", "")]);
    choose(byId(`${slot}-schedule`), plans.length ? [["here", plans], ...groups] : groups, name);
  }
}
