// The page: asks the server for what the state says, and draws it.

import { get, post } from "./api.js";
import { CurvePlot } from "./curve.js";
import { count } from "./elements.js";
import { asSize, Form } from "./form.js";
import { LimitLine } from "./limit_line.js";
import { moved, OrderDrag, programsOf } from "./order.js";
import { PartitionBar } from "./partition.js";
import {
  complain, offerWayOut, saveFiles, showCommands, showTab, showVerdicts,
} from "./results.js";
import { Searches } from "./searches.js";
import { FIRST, fromAddress, NONE, settingOf, sourceOf, toAddress } from "./state.js";

const SLOTS = ["upper", "lower"];
const SOLVE_WORDS = "Solve: the same search; unless it is proven, it may find another plan in its time";

class Page {
  constructor(start) {
    this.start = start;
    this.readAddress();
    this.opened = []; // plans to choose from: [value, text]
    this.curve = {};
    this.form = new Form(start, (changes) => this.change(changes));
    this.bar = new PartitionBar(byId("partition"), (sizes) =>
      this.change({ partition: sizes, moves: [] }));
    this.searches = new Searches(this);
    this.plot = new CurvePlot(byId("curve"), (plan) => this.openPlan(plan, "of the curve"));
    this.listen();
  }

  listen() {
    const on = (id, act) => byId(id).addEventListener("click", act);
    on("start-over", () => this.change({ ...FIRST }));
    on("even", () => this.change({ partition: null, moves: [] }));
    on("solve", () => this.solve());
    on("stop", () => this.searches.stop());
    on("trace", () => this.trace());
    on("what-if", () => this.whatIf());
    on("undo", () => this.change({ moves: this.state.moves.slice(0, -1) }));
    on("reset", () => this.change({ moves: [] }));
    on("edit", () => this.turnOrder());
    on("open-file", () => byId("file").click());
    on("show-menu", () => showMenu(byId("menu").hidden));
    byId("file").addEventListener("change", (event) => this.openFile(event.target));
    byId("points").addEventListener("change", () => this.draw());
    byId("explain-of").addEventListener("change", () => this.explain());
    byId("time_limit").addEventListener("change", (event) =>
      this.change({ time_limit: Math.max(1, Number(event.target.value) || 10) }));
    for (const button of document.querySelectorAll("[data-tab]")) {
      const { tab } = button.dataset;
      button.addEventListener("click", () =>
        this.change({ tab: tab === this.state.tab ? "none" : tab }));
    }
    for (const button of document.querySelectorAll("[data-save]")) {
      button.addEventListener("click", () => this.save(button.dataset.save));
    }
    addEventListener("hashchange", () => {
      if (toAddress(this.state) === (location.hash || "#")) return;
      this.readAddress();
      this.draw();
    });
  }

  readAddress() {
    const { state, dropped } = fromAddress(location.hash);
    this.state = state;
    this.dropped = dropped;
  }

  /** Change the state, and draw what follows from it. */
  change(changes) {
    const keys = Object.keys(changes);
    this.state = { ...this.state, ...changes };
    this.dropped = [];
    history.replaceState(null, "", toAddress(this.state));
    this.showState();
    if (keys.some((key) => key !== "tab" && key !== "time_limit")) this.draw();
    else if (changes.tab === "explain") this.explain();
    else this.fitRows();
  }

  showState() {
    this.form.show(this.state);
    showTab(this.state.tab);
    byId("time_limit").value = this.state.time_limit;
    byId("undo").disabled = byId("reset").disabled = !this.state.moves.length;
  }

  get points() {
    return Math.round(Number(byId("points").value)) || 6;
  }

  get setting() {
    return settingOf(this.state);
  }

  /** The source of a slot, with the order that was made by hand. */
  source(slot) {
    const source = sourceOf(this.state[slot]);
    const { moves } = this.state;
    if (slot === "lower" && moves.length && this.programs) {
      return { ...source, programs: moved(this.programs, moves) };
    }
    return source;
  }

  /** Draw what the state says; while an answer is on its way, the latest state waits for it. */
  async draw() {
    this.isStale = true;
    if (this.isDrawing) return;
    this.isDrawing = true;
    while (this.isStale) {
      this.isStale = false;
      await this.drawOnce().catch((error) => this.showFailure(error));
    }
    this.isDrawing = false;
  }

  /** Say why nothing is drawn, and leave ways out. */
  showFailure(error) {
    complain(error);
    offerWayOut(true, this.dropped);
    const { choices } = error.data || {};
    if (choices) this.form.showChoices(this.state, choices, this.opened);
  }

  async drawOnce() {
    const { state } = this;
    this.showState();
    const base = `${state.lower} ${JSON.stringify({ ...this.setting, time_limit: 0 })}`;
    if (this.base !== base) await this.takeBase(base);
    const sources = SLOTS.map((slot) => this.source(slot));
    const points = this.points;
    const request = { setting: this.setting, sources, points };
    const answer = await post("draw", { ...request, is_quick: true });
    complain(null);
    offerWayOut(this.dropped.length, this.dropped);
    this.request = request;
    await this.showAnswer(answer, state);
    this.drawRest();
  }

  /** Draw the schedules that take as long as a search, while the rest is there already. */
  async drawRest() {
    if (this.isDrawingRest) return;
    this.isDrawingRest = true;
    while (this.answer.drawn.some((one) => one.waits)) {
      const { request, state } = this;
      const answer = await post("draw", request).catch((error) => ({ error }));
      if (this.request !== request || this.state.moves !== state.moves) continue;
      if (answer.error) {
        complain(answer.error);
        break;
      }
      await this.showAnswer(answer, this.state);
    }
    this.isDrawingRest = false;
  }

  async showAnswer(answer, state) {
    this.answer = answer;
    const lower = answer.drawn[1];
    if (lower.error && state.moves.length) return this.refuse(lower.error);
    this.showOrder(lower);
    showVerdicts(answer.drawn, SLOTS.map((slot) => state[slot]));
    await this.showCharts(answer.drawn);
    this.showSettings(answer);
    this.drawnState = state;
    const explained = answer.drawn[SLOTS.indexOf(byId("explain-of").value)];
    if (explained.waits) byId("explanation").textContent = "";
    else if (state.tab === "explain") await this.explain();
    count("drawn");
  }

  /** Ask for the order that moves begin with. */
  async takeBase(base) {
    this.programs = this.baseUs = null;
    if (!this.state.moves.length) {
      this.base = base;
      return;
    }
    const sources = [sourceOf(this.state.lower)];
    const { drawn } = await post("draw", { setting: this.setting, sources });
    this.base = base;
    if (drawn[0].error) return;
    this.baseUs = drawn[0].makespan_us;
    const chart = await Chart.load(drawn[0].chart, 1);
    this.programs = programsOf(this.viewer || { words: this.words }, chart);
  }

  /** Put an op back that cannot stand where it was put, and say why. */
  refuse(words) {
    this.state = { ...this.state, moves: this.state.moves.slice(0, -1) };
    history.replaceState(null, "", toAddress(this.state));
    this.showState();
    byId("order-verdict").textContent = `It is back where it was, because this breaks: ${words}`;
    byId("order-verdict").className = "wrong";
    this.hasRefused = true;
    if (!this.viewer || this.isOfSearch) this.isStale = true;
  }

  showOrder(lower) {
    const verdict = byId("order-verdict");
    const { moves } = this.state;
    if (moves.length && !lower.error) {
      const was = this.baseUs ? `, ${formatUs(this.baseUs)} before the moves` : "";
      const memory = lower.exceeds ? `; memory: ${lower.exceeds}` : "";
      const count = `${moves.length} ${moves.length === 1 ? "move" : "moves"}`;
      verdict.textContent = `${count}: ${formatUs(lower.makespan_us)}${was}${memory}`;
      verdict.className = memory ? "wrong" : "";
    } else if (!this.hasRefused) {
      verdict.textContent = "";
    }
    this.hasRefused = false;
    if (!moves.length && !lower.error) this.baseUs = lower.makespan_us;
  }

  /** Draw the charts; those of a search are of another schedule than the state says. */
  async showCharts(drawn, isOfSearch = false) {
    const raws = drawn.flatMap(({ chart }, number) => (chart ? [[chart, number]] : []));
    if (!raws.length) return;
    const charts = await Promise.all(raws.map(([raw, number]) => Chart.load(raw, number)));
    if (this.viewer) this.viewer.setCharts(charts);
    else this.beginViewer(charts);
    this.isOfSearch = isOfSearch;
    this.fitRows();
    if (!this.state.moves.length && !isOfSearch) {
      const lower = charts.find((chart) => chart.number === 1);
      this.programs = lower && programsOf(this.viewer, lower);
    }
    this.viewer.drawNow();
    document.documentElement.dataset.readyMs ||= String(Math.round(performance.now()));
  }

  /** Make the rows as high as there is space for, unless they were made higher or lower by hand. */
  fitRows() {
    const { viewer } = this;
    if (!viewer || (this.row !== undefined && viewer.row !== this.row)) return;
    this.row = viewer.row = viewer.firstRow();
    viewer.draw();
  }

  beginViewer(charts) {
    this.viewer = globalThis.viewer = new Viewer(this.start.viewer, charts);
    const target = () => this.viewer.charts.find((chart) => chart.number === 1);
    this.order = new OrderDrag(this.viewer, target, (move) => this.move(move));
    this.limit = new LimitLine(this.viewer, (bytes) => this.change({ mem_limit: asSize(bytes) }));
  }

  showSettings(answer) {
    this.form.showAnswer(this.state, answer, this.opened);
    byId("about").textContent = answer.about;
    const cut = answer.drawn.findLast((one) => one.partition);
    const layers = cut?.differs ? cut.layers : answer.layers;
    if (cut) this.bar.show(cut.partition, layers);
    const count = layers.length;
    byId("sizes").textContent = cut ? `${count} layers in ${cut.partition.length} stages` : "";
    const { solve, curve, schedules } = answer.commands;
    const isPublished = (slot) =>
      sourceOf(this.state[slot]).schedule && !(slot === "lower" && this.state.moves.length);
    const shown = SLOTS.flatMap((slot, place) =>
      isPublished(slot) ? [[`The ${slot} schedule`, schedules[place]]] : []);
    showCommands([[SOLVE_WORDS, solve], ...shown, ["Time and memory", curve]]);
  }

  async explain() {
    const slot = byId("explain-of").value;
    const body = { setting: this.setting, source: this.source(slot) };
    const { text } = await post("explain", body).catch((error) => ({ text: error.message }));
    byId("explanation").textContent = text;
    this.fitRows();
  }

  solve() {
    return this.searches.begin("solve", { setting: this.setting });
  }

  trace() {
    return this.searches.begin("curve", { setting: this.setting, points: this.points });
  }

  whatIf() {
    const source = this.source(byId("explain-of").value);
    return this.searches.begin("what-if", { setting: this.setting, source });
  }

  /** Offer a plan; returns its name in the state. */
  list(plan, text) {
    const name = `plan:${plan}`;
    if (!this.opened.some(([each]) => each === name)) this.opened.push([name, text]);
    return name;
  }

  /** Show a plan below. */
  openPlan(plan, text) {
    this.change({ lower: this.list(plan, text), moves: [] });
    this.plot.show(this.curve, plan);
  }

  async openFile(input) {
    const [file] = input.files;
    input.value = "";
    if (!file) return;
    try {
      this.take(await post("open", { text: await file.text() }), file.name);
    } catch (error) {
      complain(error);
    }
  }

  /** Show a model or a plan that was opened, or that the command names. */
  take(opened, text) {
    if (opened.kind !== "plan") return this.form.addModel(opened.kind, opened.name, text);
    const { profile: model, ranks, micro_batches: count, cap_bytes: cap } = opened;
    const limit = cap ? { mem_limit: `${cap / 1e9}GB` } : {};
    const sizes = { ranks, micro_batches: count, partition: null, ...limit };
    const own = model ? { model, sliders: null, is_config: false } : { upper: NONE };
    this.state = { ...this.state, ...sizes, ...own };
    this.openPlan(opened.name, text);
  }

  async save(kind) {
    const slot = byId("save-of").value;
    try {
      const body = { setting: this.setting, source: this.source(slot), kind };
      saveFiles(await post("export", body), slot);
    } catch (error) {
      byId("saved").textContent = error.message;
    }
  }

  turnOrder() {
    const isOn = byId("edit").getAttribute("aria-pressed") !== "true";
    byId("edit").setAttribute("aria-pressed", String(isOn));
    this.order.turn(isOn);
  }

  /** Move an op; that of a schedule that a search has drawn is moved in that one's plan. */
  move(move) {
    if (!this.isOfSearch) return this.change({ moves: [...this.state.moves, move] });
    const lower = this.list(this.searches.stepPlan, "taken from the search");
    this.change({ lower, moves: [move] });
  }

  /** Show what the command names, or what the address says. */
  async begin() {
    byId("show-menu").hidden = false;
    byId("show-menu").textContent = "Settings";
    showMenu(true);
    this.words = new Words(this.start.viewer.kinds, this.start.viewer.values);
    const { models, opened } = this.start;
    for (const name of models.plan) this.opened.push([`plan:${name}`, name]);
    const isFirst = location.hash.length < 2;
    if (isFirst && opened.name && opened.kind === "plan") this.take(opened, opened.name);
    else if (isFirst && opened.name) this.beginWith(opened);
    else await this.draw();
    await this.searches.resume(this.start.job);
  }

  beginWith({ kind, name, pipeline }) {
    this.state = { ...this.state, model: name, ...pipeline };
    const { shipped, estimated, profile, config } = this.start.models;
    if ([...shipped, ...estimated, ...profile, ...config].includes(name)) this.form.chooseModel(name);
    else this.form.addModel(kind, name, "of the command");
  }
}

async function begin() {
  takeTheme();
  const page = (globalThis.page = new Page(await get("start")));
  await page.begin();
}

begin().catch(complain);
