// Puts the page together: its data, its pictures and tables, light and dark, and the tabs.

let data;
const pictures = [];

// The text of an element that was compressed.
async function unpacked(id) {
  const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

// The library runs as a script with the very text that the page's policy allows.
async function load() {
  data = JSON.parse(await unpacked("memsched-data"));
  const script = document.createElement("script");
  script.textContent = await unpacked("plotly");
  document.getElementById("plotly").replaceWith(script);
}

function makePicture(div) {
  const { figure, of } = div.dataset;
  if (figure === "sweep") return sweepCurves(div, data.tables[of]);
  const result = data.results[Number(of)];
  if (figure === "timeline") return new Timeline(div, result);
  if (figure === "lifetimes") return new Lifetimes(div, result, data.tables[`tensors-${of}`].rows);
  if (figure === "addresses") return new Addresses(div, result);
  return frontierCurves(div, result);
}

// Pictures of one plan whose axis is the same time zoom together.
function linkTimes(found) {
  for (const picture of found) {
    picture.zoomed = () => found.forEach((other) => other !== picture && other.zoomTo(picture.div._fullLayout.xaxis.range));
  }
}

function drawAll() {
  hideTip();
  for (const picture of pictures) (picture.redraw ?? picture.draw).call(picture);
}

function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  drawAll();
}

function showTab(id) {
  for (const button of document.querySelectorAll("[data-tab]")) {
    button.setAttribute("aria-selected", String(button.dataset.tab === id));
  }
  for (const section of document.querySelectorAll(".result")) section.hidden = section.id !== id;
  drawAll();
}

function start() {
  for (const holder of document.querySelectorAll("[data-table]")) new Table(holder, data.tables[holder.dataset.table]);
  for (const div of document.querySelectorAll("[data-figure]")) pictures.push(makePicture(div));
  (data.results ?? []).forEach((_, at) => {
    const own = pictures.filter((one) => one.div.dataset.of === String(at));
    linkTimes(own.filter((one) => one instanceof Timeline || one instanceof Lifetimes || one.columns?.in_time));
  });
  const wish = matchMedia("(prefers-color-scheme: dark)");
  wish.addEventListener("change", () => setTheme());
  document.getElementById("theme").addEventListener("click", () => {
    const now = document.documentElement.dataset.theme ?? (wish.matches ? "dark" : "light");
    setTheme(now === "dark" ? "light" : "dark");
  });
  const tabs = [...document.querySelectorAll("[data-tab]")];
  tabs.forEach((tab) => tab.addEventListener("click", () => showTab(tab.dataset.tab)));
  if (tabs.length) showTab(tabs[0].dataset.tab);
  else drawAll();
  let later = 0;
  new ResizeObserver(() => {
    clearTimeout(later);
    later = setTimeout(() => pictures.forEach((one) => one.div.clientWidth !== one.width && one.draw()), 120);
  }).observe(document.querySelector("main"));
  document.documentElement.dataset.ready = "yes";
}

// Without its data the page has words alone, which must say why.
function failed(error) {
  const said = document.createElement("p");
  said.setAttribute("role", "alert");
  said.textContent = `The pictures and tables cannot be shown (${error.message}): open the page in a newer browser, or write it again.`;
  document.querySelector("main").prepend(said);
  throw error; // for the console
}

load().then(start).catch(failed);
