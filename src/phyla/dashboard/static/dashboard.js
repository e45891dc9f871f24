"use strict";
// Keeps a page as the server would show it now, and draws its figures.

const drawing = new Set();

// Plotly is large: it is loaded once the page is painted.
let plotly = null;
function loadPlotly() {
  plotly ??= new Promise((done, failed) => {
    const script = document.createElement("script");
    script.src = document.body.dataset.plotly;
    script.onload = done;
    script.onerror = failed;
    requestAnimationFrame(() => setTimeout(() => document.head.append(script)));
  });
  return plotly;
}

function drawAll() {
  for (const section of document.querySelectorAll("[data-figure]")) {
    if (drawing.has(section)) continue;
    drawing.add(section);
    draw(section).catch(() => {}).finally(() => drawing.delete(section));
  }
}

async function draw(section) {
  const loaded = loadPlotly();
  const answer = await fetch(section.dataset.figure);
  if (answer.headers.get("ETag") === section.dataset.tag) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  if (!answer.ok) {
    section.querySelector(".lead").textContent = page.querySelector(".message")?.textContent ?? "It could not be drawn.";
    return;
  }
  section.dataset.tag = answer.headers.get("ETag");
  const figure = section.querySelector(".figure"), now = page.querySelector(".figure");
  section.classList.toggle("none", !now);
  if (figure && now) {
    // What is drawn stays, with its zoom; what stands around it is new.
    for (const part of ["h2", ".lead", "script", "details > div"]) {
      section.querySelector(part).replaceWith(page.querySelector(part));
    }
  } else {
    section.replaceChildren(...page.body.childNodes);
  }
  await loaded;
  await plot(section);
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
      old.hidden = now.hidden;
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
