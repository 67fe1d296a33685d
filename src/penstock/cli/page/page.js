// Keeps the page as the server says it is: sections that have changed come over one connection, and are put into the page in place,
// so that what is the same stays: focus, selection, what was folded. Nothing is kept here but the page itself.
"use strict";

const main = document.getElementById("main");
const connection = document.getElementById("connection");
const SILENT = 20000; // milliseconds: the server says something every 5 seconds

// Have `now` become what `next` is, by as few changes as possible.
function become(now, next) {
  if (now.nodeType !== next.nodeType || now.nodeName !== next.nodeName || now.id !== next.id) {
    now.replaceWith(next);
    return;
  }
  if (now.nodeType === Node.TEXT_NODE) {
    if (now.data !== next.data) now.data = next.data;
    return;
  }
  const folds = now.nodeName === "DETAILS"; // as a person has left it
  for (const { name } of [...now.attributes]) {
    if (!next.hasAttribute(name) && !(folds && name === "open")) now.removeAttribute(name);
  }
  for (const { name, value } of [...next.attributes]) {
    if (now.getAttribute(name) !== value && !(folds && name === "open")) now.setAttribute(name, value);
  }
  if (now.nodeName === "TIME") {
    tell(now);
    return;
  }
  const before = [...now.childNodes], after = [...next.childNodes];
  after.forEach((child, at) => (at < before.length ? become(before[at], child) : now.append(child)));
  before.slice(after.length).forEach((child) => child.remove());
}

function change({ order, html }) {
  for (const child of [...main.children]) if (!order.includes(child.id)) child.remove();
  order.forEach((id, at) => {
    const now = document.getElementById(id);
    if (id in html) {
      const template = document.createElement("template");
      template.innerHTML = html[id];
      const next = template.content.firstElementChild;
      if (now) become(now, next);
      else main.insertBefore(next, main.children[at] || null);
    } else if (now && main.children[at] !== now) {
      main.insertBefore(now, main.children[at] || null);
    }
  });
  ages();
}

// Tell a time as an age; its title has the time.
function tell(time) {
  const seconds = Math.round((Date.now() - Date.parse(time.dateTime)) / 1000);
  const size = Math.abs(seconds);
  const [number, unit] = size < 60 ? [size, "s"] : size < 3600 ? [Math.floor(size / 60), "min"]
    : size < 172800 ? [Math.floor(size / 3600), "h"] : [Math.floor(size / 86400), "days"];
  const text = seconds < 0 ? `in ${number} ${unit}` : `${number} ${unit} ago`;
  if (time.textContent !== text) time.textContent = text;
}

function ages() {
  for (const time of main.querySelectorAll("time")) tell(time);
}

let source = null, heard = 0, again = 0;

function say(text, lost) {
  if (connection.textContent !== text) connection.textContent = text;
  connection.classList.toggle("lost", lost);
}

function hear() {
  heard = Date.now();
  say("live", false);
}

function lost() {
  if (source) source.close();
  source = null;
  say("connection lost, trying again", true);
  clearTimeout(again);
  again = setTimeout(listen, 2000);
  // Another token counts by now: the page itself says so, by leading to where it is asked for.
  fetch("./", { method: "HEAD", redirect: "manual" }).then((answer) => answer.type === "opaqueredirect" && location.reload(), () => {});
}

function listen() {
  heard = Date.now();
  source = new EventSource("events");
  source.addEventListener("hello", (event) => {
    hear();
    if (JSON.parse(event.data).version !== document.body.dataset.version) location.reload();
  });
  source.addEventListener("beat", hear);
  source.addEventListener("change", (event) => {
    hear();
    change(JSON.parse(event.data));
  });
  source.onerror = lost;
}

setInterval(() => {
  ages();
  if (source && Date.now() - heard > SILENT) lost();
}, 1000);
ages();
listen();
