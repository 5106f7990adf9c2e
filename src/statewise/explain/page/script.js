"use strict";
// Texts of the user's file are only ever set as textContent, so markup in them stays text.
const data = JSON.parse(document.getElementById("data").textContent);
const dark = matchMedia("(prefers-color-scheme: dark)");
const BRIGHT = ["#2a62c9", "#d1603d", "#3f8f5b", "#8a5aa8", "#a87b1f", "#0e8fa3", "#bd3f68", "#6b7a1f", "#8f6246"];
const LIGHT = ["#7fabff", "#ff9a72", "#6fd093", "#c79bf5", "#e0b44a", "#55cfe0", "#ff86ac", "#bccb5c", "#d3a07f"];
const OTHER = "#98a1ad";

function make(tag, text, name) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (name) element.className = name;
  return element;
}

function ramp(share) { // from blue to yellow: Cividis, which people of all colour visions can read
  const stops = [[0, 34, 78], [53, 69, 108], [102, 105, 112], [148, 142, 119], [200, 184, 102], [254, 232, 56]];
  const bright = dark.matches ? .2 + .8 * share : share; // the darkest blue is lost on a dark page
  const at = Math.min(Math.max(bright, 0), 1) * (stops.length - 1), low = Math.min(Math.floor(at), stops.length - 2);
  return `rgb(${stops[low].map((one, place) => Math.round(one + (stops[low + 1][place] - one) * (at - low))).join(",")})`;
}

function plane() {
  const states = data.states, canvas = document.getElementById("plane"), select = document.getElementById("colour");
  const tip = document.getElementById("tip"), legend = document.getElementById("legend");
  states.colourings.forEach((one, place) => {
    const option = make("option", one.name);
    option.value = place;
    select.append(option);
  });
  const xs = states.places.map((one) => one[0]), ys = states.places.map((one) => one[1]);
  const low = [Math.min(...xs), Math.min(...ys)], high = [Math.max(...xs), Math.max(...ys)];
  let points = [];

  function shown() {
    const colouring = states.colourings[+select.value], colours = dark.matches ? LIGHT : BRIGHT;
    legend.replaceChildren();
    if (colouring.kind === "categories") {
      const none = colouring.values.some((one) => one === null);
      const colour = (value) => value === null || value >= colours.length ? OTHER : colours[value];
      colouring.labels.forEach((label, place) => {
        const key = make("span"), dot = make("i");
        dot.style.background = colour(place);
        key.append(dot, label);
        legend.append(key);
      });
      if (none) legend.append(make("span", "no value: not drawn"));
      return { colour: (value) => value === null ? null : colour(value), text: (value) => colouring.labels[value] };
    }
    const numbers = colouring.values.filter((one) => one !== null).sort((a, b) => a - b);
    // The extreme hundredths share a colour, so that one outlier does not make all others alike.
    const from = numbers[Math.floor(.01 * (numbers.length - 1))], to = numbers[Math.ceil(.99 * (numbers.length - 1))];
    const bar = make("span", undefined, "ramp");
    bar.style.background = `linear-gradient(to right, ${[0, .25, .5, .75, 1].map(ramp).join(",")})`;
    const key = make("span");
    key.append(short(from), bar, short(to));
    legend.append(key);
    return {
      colour: (value) => value === null ? null : ramp(to > from ? (value - from) / (to - from) : .5),
      text: short,
    };
  }

  function draw() {
    const { colour } = shown(), ratio = devicePixelRatio || 1, width = canvas.clientWidth, height = canvas.clientHeight;
    const values = states.colourings[+select.value].values, context = canvas.getContext("2d"), room = 14;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    context.scale(ratio, ratio);
    context.clearRect(0, 0, width, height);
    context.globalAlpha = .75;
    points = states.places.map(([x, y]) => [
      room + (x - low[0]) / (high[0] - low[0] || 1) * (width - 2 * room),
      height - room - (y - low[1]) / (high[1] - low[1] || 1) * (height - 2 * room),
    ]);
    points.forEach(([x, y], place) => {
      const ink = colour(values[place]);
      if (ink === null) return;
      context.fillStyle = ink;
      context.beginPath();
      context.arc(x, y, points.length > 800 ? 2.6 : 3.4, 0, 2 * Math.PI);
      context.fill();
    });
  }

  function point(event) {
    const box = canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    let best = -1, least = 144;
    points.forEach(([px, py], place) => {
      const far = (px - x) ** 2 + (py - y) ** 2;
      if (far < least) [best, least] = [place, far];
    });
    tip.hidden = best < 0;
    if (best < 0) return;
    const colouring = states.colourings[+select.value], value = colouring.values[best];
    const text = value === null ? "no value" : colouring.kind === "categories" ? colouring.labels[value] : short(value);
    tip.textContent = `${states.names[best]}, after ${states.events[best]} ${states.events[best] === 1 ? "event" : "events"}; ${colouring.name}: ${text}`;
    tip.style.top = `${canvas.offsetTop + points[best][1] + 8}px`;
    tip.style.left = `${Math.max(0, Math.min(points[best][0] + 8, canvas.clientWidth - tip.offsetWidth))}px`;
  }
  select.addEventListener("change", draw);
  canvas.addEventListener("pointermove", point);
  canvas.addEventListener("pointerdown", point);
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
  addEventListener("resize", draw);
  dark.addEventListener("change", draw);
  draw();
}

function short(value) {
  return Math.abs(value) >= 1e6 || (value !== 0 && Math.abs(value) < .001) ? value.toExponential(2) : String(+value.toFixed(3));
}

function index() {
  const cases = data.index, select = document.getElementById("case"), list = document.getElementById("near");
  cases.names.forEach((name, place) => {
    const option = make("option", name);
    option.value = place;
    select.append(option);
  });

  function card(place, title) {
    const box = make("div", undefined, "case"), events = make("ol", undefined, "events");
    box.append(make("h3", title));
    cases.sequences[place].forEach((number) => events.append(make("li", data.events[number])));
    box.append(events);
    return box;
  }

  function show() {
    const chosen = +select.value;
    list.replaceChildren(card(chosen, cases.names[chosen]), ...cases.nearest[chosen].map((other, place) =>
      card(other, `${cases.names[other]}, at a distance of ${short(cases.distances[chosen][place])}`)));
  }
  select.addEventListener("change", show);
  if (cases.names.length) show();
}

plane();
index();
