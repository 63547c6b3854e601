// The choice of schedules from a table and a plot.

/** Schedules of the page, of which some are shown; each is unpacked when it is first asked for. */
class Library {
  constructor(page) {
    this.raws = page.charts;
    this.charts = [];
  }

  async chart(number) {
    this.charts[number] ||= await Chart.load(this.raws[number], number);
    return this.charts[number];
  }

  async all(numbers) {
    return Promise.all(numbers.map((number) => this.chart(number)));
  }
}

class Menu {
  constructor({ columns, rows, names, svg, shown }, library, viewer) {
    Object.assign(this, { library, viewer, names, shown: [...shown] });
    byId("show-menu").hidden = false;
    showMenu(true);
    byId("plot").innerHTML = svg;
    this.addTable(columns, rows);
    for (const dot of byId("plot").querySelectorAll("[data-name]")) {
      dot.addEventListener("click", () => this.toggle(this.numberOf(dot)));
    }
    byId("show-menu").addEventListener("click", () => showMenu(byId("menu").hidden));
    this.mark();
  }

  addTable(columns, rows) {
    const table = byId("choice");
    this.rows = [columns, ...rows].map((cells, place) => {
      const row = table.insertRow();
      cells.forEach((text, column) => {
        const cell = row.appendChild(document.createElement(place ? "td" : "th"));
        cell.className = column ? "number" : "";
        const number = place - 1;
        if (!column && place && number < this.library.raws.length) {
          const button = cell.appendChild(document.createElement("button"));
          button.textContent = text;
          button.addEventListener("click", () => this.toggle(number));
        } else cell.textContent = text;
      });
      if (place) this.pointAt(row, this.names[place - 1] ?? cells[0]);
      return row;
    });
    this.rows.shift();
  }

  /** Mark the dot of a row, which may name several schedules, while the pointer is on the row. */
  pointAt(row, name) {
    const mark = (isOn) => {
      for (const dot of byId("plot").querySelectorAll("[data-name]")) {
        if (dot.dataset.name.split(" = ").includes(name)) dot.classList.toggle("pointed", isOn);
      }
    };
    row.addEventListener("mouseenter", () => mark(true));
    row.addEventListener("mouseleave", () => mark(false));
  }

  /** The chart of a dot, which may name several equal schedules. */
  numberOf(dot) {
    const names = dot.dataset.name.split(" = ");
    return this.names.findIndex((name) => names.includes(name));
  }

  /** Show a schedule below the others, or hide it unless it is the only one. */
  async toggle(number) {
    if (number < 0) return;
    const others = this.shown.filter((each) => each !== number);
    this.shown = others.length < this.shown.length ? others : [...others, number];
    if (!this.shown.length) this.shown = [number];
    const { shown } = this;
    const charts = await this.library.all(shown);
    if (shown !== this.shown) return; // another click came meanwhile
    this.viewer.setCharts(charts);
    this.mark();
  }

  mark() {
    this.rows.forEach((row, number) => {
      const isShown = this.shown.includes(number);
      row.classList.toggle("shown", isShown);
      row.querySelector("button")?.setAttribute("aria-pressed", String(isShown));
    });
    for (const dot of byId("plot").querySelectorAll("[data-name]")) {
      dot.classList.toggle("shown", this.shown.includes(this.numberOf(dot)));
    }
  }
}
