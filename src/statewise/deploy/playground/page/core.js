"use strict";

// Elements. Texts go in as text nodes alone, so that nothing that a model or a user writes is read as markup.

const SVG = "http://www.w3.org/2000/svg";

const make = (element, attributes, children) => {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name.startsWith("--")) element.style.setProperty(name, value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false)
      element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
};
const el = (name, attributes, ...children) => make(document.createElement(name), attributes, children);
const svg = (name, attributes, ...children) => make(document.createElementNS(SVG, name), attributes, children);
const byId = (id) => document.getElementById(id);

// What Enter and space do to a button, for elements of a drawing.
const asButton = (label, act) => act ? {
  role: "button", tabindex: "0", "aria-label": label, onclick: act,
  onkeydown: (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    event.stopPropagation();
    act();
  },
} : { role: "img", "aria-label": label };

// Numbers and texts

const percent = (p) => p >= 0.9995 ? "100%" : p >= 0.0995 ? `${Math.round(100 * p)}%` : p >= 0.0005 ? `${(100 * p).toFixed(1)}%` : p > 0 ? "<0.1%" : "0%";
// The total variation distance between distributions given as [token, log-probability]; what a list lacks counts as 0.
const variation = (one, other) => {
  const [p, q] = [one, other].map((list) => new Map(list.map(([token, logp]) => [token, Math.exp(logp)])));
  return [...new Set([...p.keys(), ...q.keys()])].reduce((sum, token) => sum + Math.abs((p.get(token) ?? 0) - (q.get(token) ?? 0)), 0) / 2;
};
const nats = (value) => `${value.toFixed(value < 9.95 ? 2 : 1)} nats`;
const visible = (text) => text === "" ? "∅" : text.replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/^ | $/g, "␣");
const still = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

// Views by name: `draw(panel)` makes an element, or null where there is nothing to draw.
const views = {};

// A panel: one model's trace at a step.
class Panel {
  constructor(model, trace, step, actions) {
    this.model = model;
    this.trace = trace;
    this.step = Math.max(1, Math.min(step, trace.places.length));
    this.actions = actions;
  }
  get place() { return this.trace.places[this.step - 1]; }
  get ended() { return this.step === this.trace.places.length && this.trace.finish === "stop"; }
  text(token) { return this.trace.texts[token] ?? `token ${token}`; }
  probability(token) {
    const found = this.place.next.find(([other]) => other === token);
    return found ? Math.exp(found[1]) : 0;
  }
  isLegal(token, step = this.step) {
    const legal = this.trace.places[step - 1].legal;
    return legal === undefined ? null : legal.includes(token);
  }
  // Whether the token at a place may stand there; null where the task does not know.
  wasLegal(place) { return place < 1 ? null : this.isLegal(this.trace.places[place].token, place); }
}
