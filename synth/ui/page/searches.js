// The searches of the server: this tab's own, and one that another tab has begun.

import { follow, post } from "./api.js";
import { count } from "./elements.js";
import { complain, showProgress, showVerdicts } from "./results.js";

export class Searches {
  constructor(page) {
    this.page = page;
  }

  /** Run a search of the server to its end, or follow the one that is running. */
  async begin(path, body) {
    complain(null);
    try {
      const { job } = await post(path, body);
      await this.follow(job);
    } catch (error) {
      complain(error);
      const { job } = error.data || {};
      if (job) await this.follow(job, false).catch(complain);
    }
  }

  /** Follow a search to its end; the plan of one that another tab began is only listed. */
  async follow(job, isOwn = true) {
    const { base } = this.page;
    this.stepPlan = null;
    this.run(job);
    if (isOwn) sessionStorage.setItem("job", job);
    try {
      const last = await follow(job, (state) => {
        showProgress(state);
        if (isOwn) this.takeStep(state, base);
      });
      if (isOwn) sessionStorage.removeItem("job"); // not where the page is left: it comes back
      if (last.error) complain(new Error(last.error));
      if (last.plan) this.takeFound(last, isOwn ? base : null);
    } finally {
      this.run(null);
      count("searched");
    }
  }

  run(job) {
    this.job = job;
    byId("stop").disabled = !job;
    for (const id of ["solve", "trace", "what-if"]) byId(id).disabled = Boolean(job);
  }

  stop() {
    if (this.job) post(`jobs/${this.job}/stop`, {}).catch(complain);
  }

  /** Show what a search has so far. */
  takeStep(state, base) {
    if (state.points) {
      this.page.curve = state;
      this.page.plot.show(state, this.page.state.lower.slice(5));
    }
    if (state.text) byId("explanation").textContent = state.text;
    if (!state.plan || state.plan === this.stepPlan || !this.page.answer) return;
    if (this.page.base !== base || this.page.state.moves.length || this.page.order?.held) return;
    this.stepPlan = state.plan;
    const drawn = [this.page.answer.drawn[0], { ...state.drawn, note: "the best of the search so far" }];
    showVerdicts(drawn, [this.page.state.upper, "the search"]);
    this.page.showCharts(drawn, true).catch(complain);
  }

  /** Open the plan of a search that has ended, or list it where something else was done since. */
  takeFound({ plan, value_us: us }, base) {
    const text = `found in ${formatUs(us)}`;
    const isSame = this.page.base === base && !this.page.state.moves.length;
    if (isSame) return this.page.openPlan(plan, text);
    this.page.list(plan, text);
    const { answer, form, opened, state } = this.page;
    if (answer) form.showChoices(state, answer.choices, opened);
    byId("progress").textContent += ` · ${text}: choose it as the lower schedule`;
  }

  /** Follow the search that this tab began before it was loaded again, or that another one runs. */
  async resume(job) {
    const own = sessionStorage.getItem("job");
    const isThere = own && (await this.follow(own).then(() => true, () => false));
    if (job && !isThere && job !== own) await this.follow(job, false).catch(complain);
  }
}
