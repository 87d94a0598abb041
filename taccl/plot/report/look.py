"""The look of the page, and the script that shows what is under the pointer. Neither needs any other file."""

from __future__ import annotations

STYLE = """
:root { color-scheme: light dark; --ink: #1f2328; --paper: #ffffff; --faint: #667; --line: #d5d9de;
  --soft: #f4f6f8; --good: #0b6e4f; --bad: #b3261e; --mark: #0072b2; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e7eb; --paper: #15181c; --faint: #9aa3ad;
  --line: #3a4048; --soft: #1f242a; --good: #4cc38a; --bad: #ff8a80; --mark: #56b4e9; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 24px 20px 60px; }
h1 { font-size: 24px; line-height: 1.25; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 18px; margin: 0 0 10px; }
section { margin-top: 34px; padding-top: 14px; border-top: 1px solid var(--line); }
p { margin: 6px 0; max-width: 75ch; overflow-wrap: anywhere; }
.sub { color: var(--faint); }
.note { color: var(--faint); font-size: 14px; }
.bad { color: var(--bad); }
.verdict { display: inline-block; margin-top: 8px; padding: 2px 10px; border-radius: 99px; font-weight: 600;
  border: 1px solid currentColor; color: var(--good); }
.verdict.no { color: var(--bad); }
nav { margin-top: 14px; display: flex; flex-wrap: wrap; gap: 4px 14px; font-size: 14px; }
a { color: var(--mark); }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(160px, 1fr)); gap: 12px;
  margin-top: 18px; }
.card { background: var(--soft); border-radius: 10px; padding: 12px 14px; }
.card b { display: block; font-size: 21px; line-height: 1.3; font-variant-numeric: tabular-nums; }
.card span { color: var(--faint); font-size: 13px; }
dl.facts { display: grid; grid-template-columns: max-content 1fr; gap: 4px 18px; margin: 6px 0; }
dl.facts dt { color: var(--faint); }
dl.facts dd { margin: 0; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 14px; margin: 6px 0; }
th, td { text-align: left; padding: 3px 14px 3px 0; border-bottom: 1px solid var(--line);
  vertical-align: top; }
th { font-weight: 600; white-space: nowrap; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
figure { margin: 12px 0; background: #ffffff; border-radius: 8px; padding: 10px; }
figure svg { display: block; width: 100%; min-width: 620px; height: auto; }
.tabs { display: flex; flex-wrap: wrap; gap: 8px; margin: 6px 0; }
button { font: inherit; font-size: 14px; color: var(--ink); background: var(--soft); padding: 3px 12px;
  border: 1px solid var(--line); border-radius: 99px; cursor: pointer; }
button[aria-pressed="true"] { border-color: var(--mark); color: var(--mark); font-weight: 600; }
details { margin: 8px 0; } summary { cursor: pointer; color: var(--mark); }
pre { background: var(--soft); padding: 10px 12px; border-radius: 8px; overflow-x: auto; font-size: 13px;
  white-space: pre-wrap; overflow-wrap: anywhere; }
#tip { position: fixed; z-index: 9; pointer-events: none; background: #1f2328; color: #ffffff;
  font-size: 13px;  padding: 4px 9px; border-radius: 6px; max-width: min(420px, 90vw);
  white-space: pre-line; }
[hidden] { display: none !important; }
@media (max-width: 560px) { main { padding: 16px 12px 40px; } dl.facts { grid-template-columns: 1fr; gap: 0 }
  dl.facts dd { margin-bottom: 6px; } .cards { grid-template-columns: repeat(2, 1fr); }
  .card b { font-size: 18px; } }
@media print { .tabs, nav { display: none; } }
"""

SCRIPT = """
"use strict";
(() => {
  const tip = document.getElementById("tip");
  const show = (text, event) => {
    tip.textContent = text;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const x = Math.min(event.clientX + 14, window.innerWidth - box.width - 6);
    const y = Math.min(event.clientY + 14, window.innerHeight - box.height - 6);
    tip.style.left = `${Math.max(4, x)}px`;
    tip.style.top = `${Math.max(4, y)}px`;
  };
  const known = document.getElementById("sends");
  const sends = known ? JSON.parse(known.textContent) : null;
  let count = 0;
  if (sends) {
    for (const [name, groups] of Object.entries(sends.pictures)) {
      for (const [kind, members] of Object.entries(groups)) {
        const shapes = document.querySelectorAll(`#${name}-${kind} > path`);
        if (shapes.length !== members.length) continue;
        shapes.forEach((shape, index) => {
          const text = sends.texts[members[index]];
          shape.addEventListener("pointermove", (event) => show(text, event));
          shape.addEventListener("pointerleave", () => { tip.hidden = true; });
          count += 1;
        });
      }
    }
    document.body.dataset.bars = String(count);
  }
  const tabs = document.querySelectorAll("[data-shows]");
  const choose = (chosen) => tabs.forEach((tab) => {
    tab.setAttribute("aria-pressed", String(tab === chosen));
    document.getElementById(tab.dataset.shows).hidden = tab !== chosen;
  });
  tabs.forEach((tab) => tab.addEventListener("click", () => choose(tab)));
  if (tabs.length) choose(tabs[0]);
  document.body.dataset.ready = "yes";
})();
"""
