"use strict";

function localTimes(root) {
  for (const item of root.querySelectorAll("time[datetime]")) {
    const moment = new Date(item.dateTime);
    if (!isNaN(moment)) {
      item.title = item.textContent;
      item.textContent = moment.toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
    }
  }
}
localTimes(document);

// What is selected in a part stays selected; the news of it come after that.
const held = new Map();
document.addEventListener("selectionchange", () => {
  for (const [element, html] of [...held]) put(element, html);
});

function put(element, html) {
  held.delete(element);
  if (element.shown === html) return;
  const chosen = getSelection();
  if (!chosen.isCollapsed && chosen.containsNode(element, true)) {
    held.set(element, html);
    return;
  }
  element.shown = html;
  const focused = element.contains(document.activeElement) ? document.activeElement.id : "";
  const open = [...element.querySelectorAll("details[open][id]")].map((item) => item.id);
  // Made by the server from escaped text; scripts in it would not run: the policy forbids them.
  element.innerHTML = html;
  localTimes(element);
  for (const name of open) document.getElementById(name)?.setAttribute("open", "");
  if (focused) document.getElementById(focused)?.focus();
}

async function fill(element, address) {
  const answer = await fetch(address, { headers: { Accept: "text/html" } });
  if (answer.ok) put(element, await answer.text());
}

async function again(part) {
  const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
  if (!answer.ok) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const fresh = page.querySelector(part);
  if (fresh) put(document.querySelector(part), fresh.innerHTML);
}

function follow(root) {
  const log = document.getElementById("log");
  const end = document.getElementById("follow");
  const most = 2000000;
  let length = log ? log.textContent.length : 0;
  let source = null;
  let last = "";
  const toEnd = () => { if (log && end.checked) log.scrollTop = log.scrollHeight; };
  toEnd();
  end?.addEventListener("change", toEnd);
  const known = document.getElementById("known");
  const explain = () => { if (known) fill(known, known.dataset.known); };
  if (known?.dataset.failed === "yes") explain();
  if (!root) return;
  const open = () => {
    const address = new URL(root.dataset.live, location.href);
    if (last) address.searchParams.set("start", last);
    source = new EventSource(address);
    source.addEventListener("parts", (event) => {
      for (const [name, html] of Object.entries(JSON.parse(event.data))) {
        const element = document.getElementById("part-" + name);
        if (element) put(element, html);
      }
    });
    source.addEventListener("log", (event) => {
      last = event.lastEventId;
      if (!log) { location.reload(); return; }
      const piece = document.createTextNode(JSON.parse(event.data).text);
      log.append(piece);
      length += piece.length;
      while (length > most && log.firstChild !== piece) {
        length -= log.firstChild.length;
        log.firstChild.remove();
      }
      toEnd();
    });
    source.addEventListener("over", () => {
      source.close();
      source = null;
      root.removeAttribute("data-live");
      again("#acting");
      root.dataset.over = "yes";
      explain();
    });
  };
  open();
  // A browser has six connections to a server: a page nobody sees keeps none.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) { source?.close(); source = null; }
    else if (!source && root.dataset.over !== "yes") open();
  });
}
follow(document.querySelector("[data-live]"));

for (const element of document.querySelectorAll("[data-fill]")) fill(element, element.dataset.fill);

for (const element of document.querySelectorAll("[data-refresh]")) {
  setInterval(() => {
    const focused = document.activeElement;
    // The focus comes back to what has a name.
    if (!document.hidden && (focused.id || !element.contains(focused))) again("[data-refresh]");
  }, 1000 * Number(element.dataset.refresh));
}

document.addEventListener("submit", (event) => {
  const question = event.target.dataset.sure;
  if (question && !confirm(question)) event.preventDefault();
});

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const code = button.parentElement.querySelector("code");
  try {
    await navigator.clipboard.writeText(code.textContent);
  } catch {
    // Only pages of this machine, or of https, may write the clipboard.
    getSelection().selectAllChildren(code);
    document.execCommand("copy");
  }
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = "Copy"; }, 2000);
});

const recipe = document.getElementById("recipe");
if (recipe) {
  const answer = document.getElementById("answer");
  const text = document.getElementById("field-toml");
  let asked = 0;
  let timer = 0;
  const verdict = document.getElementById("verdict");
  const shown = () => { verdict.textContent = answer.querySelector("h3")?.textContent || "Answer"; };
  const check = async () => {
    const number = ++asked;
    const fields = new URLSearchParams(new FormData(recipe));
    fields.set("page_token", recipe.dataset.pageToken);
    answer.classList.add("over");
    try {
      const said = await fetch(recipe.dataset.check, { method: "POST", body: fields });
      // An answer to what is typed no longer is none.
      if (number === asked && said.ok) { put(answer, await said.text()); shown(); }
    } finally {
      if (number === asked) answer.classList.remove("over");
    }
  };
  const soon = () => { clearTimeout(timer); timer = setTimeout(check, 200); };
  recipe.addEventListener("input", soon);
  recipe.addEventListener("submit", (event) => { event.preventDefault(); check(); });
  answer.addEventListener("click", (event) => {
    if (!event.target.closest("[data-take]")) return;
    for (const item of event.target.parentElement.querySelectorAll("[data-key]")) {
      const field = document.getElementById("field-" + item.dataset.key);
      if (field) field.value = item.dataset.value;
    }
    text.value = "";
    check();
  });
  const take = async (file) => {
    if (!file) return;
    text.value = file.size < 1 << 20 ? await file.text() : "# this file is too long for a recipe";
    check();
  };
  const chosen = document.getElementById("file");
  chosen.addEventListener("change", () => take(chosen.files[0]));
  // All of the page takes it: beside the form a browser would leave the page for the file.
  const whole = document.documentElement;
  whole.addEventListener("dragover", (event) => { event.preventDefault(); recipe.classList.add("over"); });
  whole.addEventListener("dragleave", (event) => { if (!event.relatedTarget) recipe.classList.remove("over"); });
  whole.addEventListener("drop", (event) => {
    event.preventDefault();
    recipe.classList.remove("over");
    const words = event.dataTransfer.getData("text");
    take(event.dataTransfer.files[0] || (words && new File([words], "recipe.toml")));
  });
  shown();
}

const polled = document.querySelector("[data-poll]");
const ends = () => { for (const log of document.querySelectorAll("[data-end]")) log.scrollTop = log.scrollHeight; };
ends();
if (polled) {
  const timer = setInterval(async () => {
    if (document.hidden) return;
    await fill(polled, polled.dataset.poll);
    ends();
    if (polled.querySelector('[data-over="yes"]')) {
      clearInterval(timer);
      document.querySelector("[data-sure]")?.remove();
    }
  }, 2000);
}
