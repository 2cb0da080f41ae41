// Draws the charts of a page, in the reader's colours; of a live page again whenever there is something new.
"use strict";
const main = document.querySelector("main");
const over = document.getElementById("over");
const dark = matchMedia("(prefers-color-scheme: dark)");
let page = JSON.parse(document.getElementById("page").textContent);
let other = false; // whether charts are drawn over their other x

function colour(name) {
  const [variable, alpha] = name.slice(1).split("/");
  const value = getComputedStyle(document.documentElement).getPropertyValue("--" + variable).trim();
  return alpha ? value + Math.round(255 * alpha).toString(16).padStart(2, "0") : value;
}

// A copy with "@c0", "@ink/0.2" ... replaced, under keys that are colours.
function painted(value, key = "") {
  if (Array.isArray(value)) return value.map((item) => painted(item, key));
  if (value && typeof value === "object")
    return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, painted(v, k)]));
  const named = typeof value === "string" && value[0] === "@" && key.toLowerCase().endsWith("color");
  return named ? colour(value) : value;
}

function draw(place, block) {
  const { data, layout } = painted(block.figure);
  if (other && block.other) {
    layout.xaxis.title.text = block.other[0];
    layout.xaxis.type = "linear";
    delete layout.shapes; // marks are on the first x axis
    delete layout.annotations;
    data.forEach((trace, i) => { trace.x = block.other[1][i]; });
  }
  layout.uirevision = other ? "other" : "keep"; // zoom and hidden lines survive new data
  const wide = place.clientWidth;
  const named = data.filter((trace) => trace.showlegend !== false);
  let rows = 0; // of the legend, which is below the chart
  if (layout.showlegend) {
    const widest = Math.max(...named.map((trace) => 7.5 * trace.name.length + 48));
    rows = Math.ceil(named.length / Math.max(1, Math.floor(wide / widest)));
  }
  layout.height = (layout.height || 300) + 24 * rows;
  Plotly.react(place, data, layout, { responsive: true, displaylogo: false, displayModeBar: false });
}

function show() {
  const places = [...main.querySelectorAll(":scope > div")];
  page.blocks.forEach((block, i) => {
    let place = places[i];
    if (!place) {
      place = main.appendChild(document.createElement("div"));
      place.shown = null;
    }
    const plot = place.querySelector(".plot");
    const whole = JSON.stringify(block);
    if (place.shown === whole) return;
    place.shown = whole;
    if (block.html !== undefined && place.html !== block.html) {
      if (plot) Plotly.purge(plot);
      place.className = block.figure ? "chart" : "";
      place.innerHTML = place.html = block.html;
    }
    if (block.figure) draw(place.querySelector(".plot"), block);
  });
  places.slice(page.blocks.length).forEach((place) => place.remove());
  const choice = page.blocks.findIndex((block) => block.other);
  if (choice < 0) return over.classList.remove("some");
  over.classList.add("some");
  document.getElementById("time").textContent = page.blocks[choice].other[0];
  main.insertBefore(over, main.querySelectorAll(":scope > div")[choice]);
}

function again() {
  for (const place of main.querySelectorAll(":scope > div")) place.shown = null;
  show();
}

over.addEventListener("change", (event) => { other = event.target.value === "time"; again(); });
dark.addEventListener("change", again);
show();

// A live page asks for itself, at an address below its own.
const live = document.documentElement.dataset.live;
let have = -1;
async function ask() {
  const state = document.getElementById("state");
  try {
    const answer = await fetch(`${live}?have=${have}`, { cache: "no-store" });
    if (!answer.ok) throw new Error(`the server says ${answer.status}`);
    const news = await answer.json();
    state.textContent = news.state;
    have = news.number ?? have;
    if (news.page) { page = news.page; show(); }
  } catch (error) {
    state.textContent = `No answer: is aspire watch still running? (${error.message})`;
  }
  setTimeout(ask, 1000);
}
if (live) ask();
