// The beginning of it all.

async function open() {
  const page = JSON.parse(byId("data").textContent);
  takeTheme();
  const library = new Library(page);
  const numbers = page.menu ? page.menu.shown : page.charts.map((_, number) => number);
  const charts = await library.all(numbers);
  if (page.menu) byId("menu").hidden = false;
  globalThis.viewer = new Viewer(page, charts);
  if (page.menu) new Menu(page.menu, library, viewer);
  viewer.drawNow();
  document.documentElement.dataset.readyMs = String(Math.round(performance.now()));
}

open().catch((error) => {
  const hint = "a browser of 2023 or later is needed";
  document.body.textContent = `This page cannot be shown (${hint}): ${error}`;
});
