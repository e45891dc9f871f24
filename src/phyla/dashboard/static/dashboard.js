"use strict";
// Keeps a page as the server would show it now, and draws its figures.

const config = {responsive: true, displaylogo: false, displayModeBar: "hover",
  modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"]};

function make(name, text, parent) {
  const made = document.createElement(name);
  made.textContent = text;
  parent.append(made);
  return made;
}

function addTable(told, parent) {
  make("p", told.title, parent).className = "lead";
  const box = make("div", "", parent), table = make("table", "", box);
  box.className = "table";
  box.tabIndex = 0;
  const numbers = told.columns.map(name => name.startsWith(">"));
  const head = make("tr", "", make("thead", "", table)), body = make("tbody", "", table);
  for (const name of told.columns) make("th", name.replace(/^>/, ""), head).scope = "col";
  for (const row of told.rows) {
    const line = make("tr", "", body);
    row.forEach((cell, at) => { make("td", cell, line).className = numbers[at] ? "n" : ""; });
  }
}

const drawing = new Set();

function drawAll() {
  for (const section of document.querySelectorAll("[data-figure]")) {
    if (drawing.has(section)) continue;
    drawing.add(section);
    draw(section).catch(() => {}).finally(() => drawing.delete(section));
  }
}

async function draw(section) {
  const answer = await fetch(section.dataset.figure);
  if (answer.headers.get("ETag") === section.dataset.tag) return;
  const lead = section.querySelector(".lead");
  if (!answer.ok) {
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    lead.textContent = page.querySelector(".message")?.textContent ?? "It could not be drawn.";
    return;
  }
  const told = await answer.json();
  section.dataset.tag = answer.headers.get("ETag");
  section.querySelector("h2").textContent = told.title;
  lead.textContent = told.why ?? told.subtitle;
  section.classList.toggle("none", "why" in told);
  const box = section.querySelector(".figure"), details = section.querySelector("details");
  box.setAttribute("role", "group");
  box.setAttribute("aria-label", told.title);
  box.hidden = details.hidden = "why" in told;
  if ("why" in told) return;
  const plot = box.firstElementChild;
  await Plotly.react(plot, told.figure.data, told.figure.layout, config);
  const tables = details.querySelector("div");
  tables.replaceChildren();
  for (const one of told.tables) addTable(one, tables);
}

let busy = false, missed = false;

async function refresh() {
  if (busy) { missed = true; return; }
  busy = true;
  missed = false;
  try {
    const answer = await fetch(location.href);
    if (answer.redirected) { location.reload(); return; }
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const now of page.querySelectorAll("[data-live]")) {
      const old = document.getElementById(now.id), html = now.innerHTML;
      if (!old) { location.reload(); return; }
      if (shown.get(now.id) === html) continue;
      shown.set(now.id, html);
      const scrolled = [...old.querySelectorAll("[tabindex]")].map(each => [each.scrollLeft, each.scrollTop]);
      const link = old.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
      old.replaceChildren(...now.childNodes);
      old.querySelectorAll("[tabindex]").forEach((each, at) => {
        if (scrolled[at]) [each.scrollLeft, each.scrollTop] = scrolled[at];
      });
      if (link) [...old.querySelectorAll("a")].find(each => each.getAttribute("href") === link)?.focus();
    }
    drawAll();
  } catch {
    // The server cannot be reached, as the page says.
  } finally {
    busy = false;
  }
  if (missed) refresh();
}

const shown = new Map([...document.querySelectorAll("[data-live]")].map(each => [each.id, each.innerHTML]));
const status = document.getElementById("live");
let events = null;

// A browser has few connections to one server: pages in the background give theirs back.
function follow() {
  events?.close();
  if (document.hidden) return;
  const say = (kind, text) => { status.className = `far ${kind}`; status.textContent = text; };
  events = new EventSource(`/events?page=${encodeURIComponent(location.pathname + location.search)}`);
  events.onopen = () => { say("on", "live"); refresh(); };
  events.onerror = () => say("off", "not connected");
  events.onmessage = refresh;
}

addEventListener("load", () => {
  drawAll();
  if (!shown.size && !document.querySelector("[data-figure]")) return;
  follow();
  document.addEventListener("visibilitychange", follow);
});
