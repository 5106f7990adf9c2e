// The tour: three steps on the first visit. It takes no focus by itself, and what it speaks of is outlined.

const TOURED = "statewise-toured";
const tour = { at: null };

// A browser may refuse storage to files; the tour is then offered each time.
const toured = (now) => {
  try {
    if (now) localStorage.setItem(TOURED, "yes");
    return localStorage.getItem(TOURED) !== null;
  } catch {
    return false;
  }
};

const listed = (words) => words.length < 2 ? words.join("") : `${words.slice(0, -1).join(", ")} and ${words.at(-1)}`;

// Each stop: its title, its text, what it outlines, and the step of the trace at which it is seen.
function stops() {
  const models = chosen().filter((model) => page.traces.has(model.name)), traces = models.map((model) => page.traces.get(model.name));
  const [place, apart] = opening(traces), view = viewOf(models[0]);
  const best = models.map((model, index) => {
    const [token, logp] = traces[index].places[place - 1].next[0];
    return `${model.name} ${percent(Math.exp(logp))} to ${visible(traces[index].texts[token] ?? `token ${token}`)}`;
  });
  const part = models.length < 2 ? `What the model expects after token ${place}: ${best[0]}.`
    : apart > 0.1 ? `After token ${place} their predictions differ most. The likeliest next token: ${listed(best)}.` : `On this prompt they predict much the same, as after token ${place}: ${listed(best)}. Their states may differ all the same.`;
  const read = models.filter((model) => model.reading).map((model) => `${model.name} ${model.reading.measure === "R2" ? "R²" : model.reading.measure} ${model.reading.quality.toFixed(2)}`);
  const held = read.length ? `After each token a model has a state, a vector. The true state is read off it by least squares, fitted on other sequences: ${listed(read)}.`
    : "After each token a model has a state, a vector. No true state is known for this task.";
  return [
    { title: "What is asked", text: view.asked ?? "The models read a prompt token by token, and write on. Step with the slider or the arrow keys.", shown: "article figure, article .tokens", step: place },
    { title: models.length < 2 ? "What the model predicts" : "Where the models part", text: part, shown: "article .next-token", step: place },
    { title: "What the state holds", text: `${held}${live() ? " Now choose another token as the next one, and see what becomes of it." : ""}`, shown: "article .state, article .plane", step: place },
  ];
}

function showStop(index, focus = true) {
  const all = stops(), { title, text, shown, step: place } = all[index];
  tour.at = index;
  stop();
  page.step = place;
  render();
  byId("tour").hidden = false;
  byId("tour-count").textContent = `${index + 1} of ${all.length}`;
  byId("tour-title").textContent = title;
  byId("tour-text").textContent = text;
  byId("tour-back").disabled = index === 0;
  byId("tour-next").textContent = index === all.length - 1 ? "Done" : "Next";
  outline(shown);
  document.body.classList.add("touring");
  if (!focus) return;
  byId("tour-title").focus({ preventScroll: true });
  document.querySelector(".outlined")?.scrollIntoView({ block: "center", behavior: still() ? "auto" : "smooth" });
}

function outline(shown) {
  tour.outlined = shown;
  for (const panel of document.querySelectorAll("article")) {
    const found = [...panel.querySelectorAll(shown)].find((one) => one.getClientRects().length);
    if (found) found.classList.add("outlined");
  }
}

function closeTour() {
  if (tour.at === null) return;
  tour.at = tour.outlined = null;
  toured(true);
  byId("tour").hidden = true;
  document.body.classList.remove("touring");
  for (const one of document.querySelectorAll(".outlined")) one.classList.remove("outlined");
  byId("tour-open").focus({ preventScroll: true });
}

// Called once there is something to see.
function offerTour() {
  byId("tour-open").hidden = false;
  if (!toured()) showStop(0, false);
}

byId("tour-open").addEventListener("click", () => showStop(0));
byId("tour-back").addEventListener("click", () => showStop(Math.max(0, tour.at - 1)));
byId("tour-next").addEventListener("click", () => tour.at === stops().length - 1 ? closeTour() : showStop(tour.at + 1));
byId("tour-close").addEventListener("click", closeTour);
document.addEventListener("keydown", (event) => { if (event.key === "Escape") closeTour(); });
