"""The page in a real browser."""

import math

import pytest
from doubles import path_star_model
from running_server import running, story_model
from small_worlds import CITY, HMM, model_of

from statewise.deploy.playground.page import export, page
from statewise.deploy.serving.served import Served

pytestmark = pytest.mark.slow
PROMPT = "0,1|1,2|2,3|0,4|4,5|5,6/0,3="


@pytest.fixture(scope="module")
def server():
    with running({"plain": path_star_model(), "bst": path_star_model("belief_state")}) as made:
        yield made


@pytest.fixture
def opened(browser):
    """Opens pages; at the end none may have logged an error, or asked another host for anything."""
    contexts, problems, asked = [], [], []

    def open_page(url, allowed=(), **options):
        context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **options})
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda line: problems.append(line.text) if line.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda dialog: problems.append(f"dialog: {dialog.message}"))
        page.on("request", lambda request: asked.append((url, request.url)))
        page.goto(url)
        page.allowed = allowed
        return page

    yield open_page
    allowed = [text for context in contexts for page in context.pages for text in getattr(page, "allowed", ())]
    for context in contexts:
        context.close()
    assert [problem for problem in problems if not any(text in problem for text in allowed)] == []
    for url, other in asked:
        origin = url if url.startswith("file:") else url.rstrip("/")
        assert other.startswith((origin, "data:")), other


def ready(page):
    page.wait_for_selector("article")
    return page


def count(page):
    return page.text_content("#count")


def until(page, holds):
    """Waits for what a script would be asked for, which the page's policy forbids."""
    for _ in range(1500):
        if holds():
            return
        page.wait_for_timeout(20)
    raise AssertionError("it never happened")


def test_two_models_stand_side_by_side_and_step_together(opened, server):
    page = ready(opened(server.url))
    assert page.locator("article h2").all_text_contents() == ["plain", "bst"]
    assert count(page) == "21 of 25"
    page.click("#next")
    assert count(page) == "22 of 25"
    assert page.text_content("#status").startswith("Token 22 of 25, ")
    page.locator("#slider").fill("25")
    assert count(page) == "25 of 25"
    assert page.is_disabled("#next")
    page.fill("#prompt", PROMPT)
    page.click("#run")
    until(page, lambda: count(page) == "21 of 25")
    nodes = page.locator("article").first.locator("[data-node]")
    assert sorted(nodes.evaluate_all("nodes => nodes.map(node => node.dataset.node)")) == list("0123456")
    nodes.first.click()  # what untrained models choose may be no node
    until(page, lambda: page.locator('article [data-state="current"]').count() == 1)
    page.fill("#prompt", "0,1|x")
    page.click("#run")
    page.allowed = ("status of 400",)
    page.wait_for_selector("#error:not([hidden])")
    assert "unknown symbol 'x'" in page.text_content("#error")


def test_all_can_be_done_by_keyboard(opened, server):
    page = ready(opened(server.url))
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # the link to the steps
    page.keyboard.press("ArrowRight")
    assert count(page) == "22 of 25"
    page.keyboard.press("Home")
    assert count(page) == "1 of 25"
    page.keyboard.press("Space")
    until(page, lambda: count(page) == "2 of 25")
    assert page.get_attribute("#play", "aria-pressed") == "true"
    page.keyboard.press("ArrowLeft")
    assert page.get_attribute("#play", "aria-pressed") == "false"
    page.locator("#slider").focus()
    page.keyboard.press("End")
    page.keyboard.press("ArrowLeft")
    assert count(page) == "24 of 25"
    page.evaluate("document.activeElement.blur()")
    for _ in range(3):
        page.keyboard.press("ArrowLeft")
    for _ in range(60):
        page.keyboard.press("Tab")
        focused = page.evaluate("document.activeElement.getAttribute('data-node')")
        state = page.evaluate("document.activeElement.getAttribute('data-state')")
        if focused and state == "unread":
            break
    assert focused
    page.keyboard.press("Enter")
    until(page, lambda: count(page) == "22 of 25")
    first = page.locator("article").first
    assert f"Forced: {focused}." in first.text_content()
    assert first.locator(f'[data-node="{focused}"]').get_attribute("data-state") == "current"
    assert "Forced" not in page.locator("article").last.text_content()
    first.get_by_role("button", name="Undo").focus()
    page.keyboard.press("Enter")
    until(page, lambda: "Forced" not in page.locator("article").first.text_content())


def forced(page, name):
    """The name of the forced token in a panel's note, and of the token that stands there."""
    panel = page.locator(f'[data-model-panel="{name}"]')
    note, place = panel.locator(".note"), panel.locator(".tokens .forced button")
    if not note.count() or not place.count():
        return None
    return note.first.text_content().removeprefix("Forced: ").partition(".")[0], place.first.text_content()


def test_tokens_chosen_in_two_panels_at_once_are_both_forced(opened, server):
    page = ready(opened(server.url))
    page.evaluate("""for (const name of ["plain", "bst"])
      [...document.querySelectorAll(`[data-model-panel="${name}"] .next button`)].at(-1).click()""")
    until(page, lambda: forced(page, "plain") and forced(page, "bst"))
    for name in ("plain", "bst"):
        said, there = forced(page, name)
        assert said == there


def test_what_is_typed_changes_nothing_until_it_is_traced(opened, server):
    page = ready(opened(server.url))
    before = page.locator('[data-model-panel="bst"] .tokens').text_content()
    page.fill("#prompt", PROMPT)
    page.locator('[data-model-panel="plain"] .next button').last.click()
    until(page, lambda: forced(page, "plain"))
    tokens = page.locator('[data-model-panel="plain"] .tokens li')
    assert before.startswith("".join(tokens.all_text_contents()[:21]))


def test_what_is_chosen_while_a_new_prompt_is_traced_does_not_mix_them(opened, server):
    page = ready(opened(server.url))
    page.uncheck('[data-model="bst"]')
    button = page.locator('[data-model-panel="plain"] .next button').last
    page.fill("#prompt", PROMPT)
    page.evaluate(
        "window.pressed = [document.getElementById('run'), document.querySelector('.next button'),"
        " document.querySelector('[data-model=bst]')]"
    )
    assert button.count()
    page.evaluate("for (const one of window.pressed) one.click()")
    until(page, lambda: page.locator("article").count() == 2 and not page.get_attribute("#panels", "aria-busy"))
    for name in ("plain", "bst"):
        tokens = page.locator(f'[data-model-panel="{name}"] .tokens li').all_text_contents()
        assert "".join(tokens[:21]) == PROMPT.replace(",", "")
    assert not forced(page, "plain")


def test_a_token_that_does_not_fit_the_context_is_not_offered(opened, server):
    page = ready(opened(server.url))
    assert page.locator('[data-model-panel="plain"] .next button').count()
    page.locator("#slider").focus()
    page.keyboard.press("End")
    panels = page.locator("article").filter(has_not_text="has ended the sequence")
    assert panels.count()
    assert panels.locator(".next tr").count()
    assert not panels.locator(".next button").count()


def test_a_goal_is_set_for_models_that_take_one(opened, server):
    page = ready(opened(server.url))
    page.fill("#prompt", PROMPT)
    page.click("#run")
    page.wait_for_selector('article:last-child [data-node="6"]')
    page.check("#mode input[value=goal]")
    page.click('article:last-child [data-node="6"]')
    page.wait_for_selector("article:last-child .goal button")
    assert page.input_value("#goal") == "6"
    assert "cannot condition on a goal" in page.locator("article").first.text_content()
    assert page.locator("article").last.locator(".tokens li").count() == 21 + 3 + 1


def test_a_key_is_asked_for_and_kept_for_the_session(opened):
    with running({"plain": path_star_model()}, key="secret") as made:
        page = opened(made.url, allowed=("status of 401",))
        page.wait_for_selector("#key-form:not([hidden])")
        page.fill("#key", "\u043a\u043b\u044e\u0447")
        page.keyboard.press("Enter")
        page.wait_for_selector("#error:not([hidden])")
        assert "ASCII" in page.text_content("#error")
        for key, shown in (("wrong", "#error:not([hidden])"), ("secret", "article")):
            page.fill("#key", key)
            page.keyboard.press("Enter")
            page.wait_for_selector(shown)
        page.reload()
        ready(page)
        assert page.evaluate("JSON.stringify([localStorage.length, document.cookie])") == '[0,""]'


def test_a_server_that_stopped_is_named(opened):
    with running({"plain": path_star_model()}) as made:
        page = ready(opened(made.url, allowed=("ERR_CONNECTION", "ERR_EMPTY")))
    page.click("#run")
    page.wait_for_selector("#error:not([hidden])")
    assert "The server does not answer" in page.text_content("#error")


def test_a_prompt_that_cannot_be_traced_leaves_the_page_as_it_is(opened, server):
    page = ready(opened(server.url, allowed=("status of 400",)))
    page.fill("#prompt", "nonsense")
    page.click("#run")
    page.wait_for_selector("#error:not([hidden])")
    page.click("#previous")
    assert page.locator("article").count() == 2


def test_a_model_of_another_task_has_a_tab_with_its_own_prompts(opened, tmp_path):
    with running({"plain": path_star_model(), "story": story_model(tmp_path)}) as made:
        page = ready(opened(made.url))
        before = page.input_value("#prompt")
        page.get_by_role("tab", selected=True).focus()
        page.keyboard.press("ArrowRight")
        page.wait_for_selector('[data-model-panel="story"]')
        assert page.get_by_role("tab", selected=True).text_content() == "stories"
        assert page.is_hidden("#error")
        assert page.input_value("#prompt") not in ("", before)
        assert page.locator("#models input").count() == 1


def recorded(tmp_path, *models):
    """A page with a recording in which each model's probabilities of token 1 rather than 0 after each token are given;
    the prompt is of two tokens, of five."""
    traces, described = {}, []
    for place, probabilities in enumerate(models):
        name = f"model {place}"
        places = [
            {"token": 0, "state": [0.0, 0.0], "next": [[1, math.log(p)], [0, math.log(1 - p)]]} for p in probabilities
        ]
        traces[name] = {
            "model": name,
            "prompt": 2,
            "given": 2,
            "places": places,
            "goal": [],
            "finish": "length",
            "passes": None,
            "texts": {"0": "a", "1": "b"},
            "scene": {},
        }
        described.append(
            {
                "name": name,
                "task": "sequences",
                "objective": "next_token",
                "colour": "#3b6fb6",
                "backbone": "gpt",
                "view": "tokens",
                "goal": False,
                "drafts": False,
                "top": 2,
                "temperature": 0,
                "context": 8,
                "planes": [],
                "sequences": "x",
                "plane": {"axes": None, "points": [], "labels": None, "colours": None, "share": [0.1, 0.1]},
                "states": None,
                "reading": None,
                "examples": [],
            }
        )
    path = tmp_path / "page.html"
    path.write_bytes(page({"models": described, "recordings": [{"prompt": "aa", "traces": traces}]}))
    return path.as_uri()


@pytest.mark.parametrize(
    ("models", "step"),
    [
        ([[0.5, 0.5, 0.9, 0.5, 0.1], [0.5, 0.5, 0.2, 0.4, 0.9]], "3 of 5"),  # after the last token nothing follows
        ([[0.9, 0.5, 0.5, 0.2, 0.5], [0.1, 0.5, 0.5, 0.2, 0.5], [0.1, 0.5, 0.5, 0.9, 0.5]], "4 of 5"),
        ([[0.9, 0.5, 0.5, 0.5, 0.5], [0.1, 0.5, 0.52, 0.5, 0.5]], "2 of 5"),  # they differ within the prompt alone
        ([[0.9, 0.5, 0.1, 0.9, 0.5]], "2 of 5"),
    ],
)
def test_the_page_opens_where_the_models_differ_most(opened, tmp_path, models, step):
    page = ready(opened(recorded(tmp_path, *models)))
    assert count(page) == step
    assert page.locator("article h2 .swatch").count() == len(models)
    assert "principal axes" not in page.text_content("#panels")


def test_the_tour_has_three_stops_and_comes_once(opened, tmp_path):
    url = recorded(tmp_path, [0.5, 0.5, 0.9, 0.5, 0.1], [0.5, 0.5, 0.2, 0.4, 0.9])
    page = ready(opened(url))
    assert page.evaluate("document.activeElement === document.body")  # it takes no focus
    seen = []
    for _ in range(3):
        seen.append((page.text_content("#tour-count"), page.text_content("#tour-title")))
        assert count(page) == "3 of 5"
        page.click("#tour-next")
    assert [place for place, _ in seen] == ["1 of 3", "2 of 3", "3 of 3"]
    assert seen[1][1] == "Where the models part"
    assert page.is_hidden("#tour")
    assert page.evaluate("document.activeElement.id") == "tour-open"
    page.reload()
    ready(page)
    assert page.is_hidden("#tour")
    page.keyboard.press("Tab")
    page.click("#tour-open")
    assert page.evaluate("document.activeElement.id") == "tour-title"
    page.keyboard.press("Escape")
    assert page.is_hidden("#tour")


def test_two_panels_stand_side_by_side_on_a_phone(opened, exported):
    page = ready(opened((exported / "star.html").as_uri(), viewport={"width": 390, "height": 844}))
    one, other = (page.locator("article").nth(place).bounding_box() for place in (0, 1))
    assert one["y"] == other["y"]
    assert page.locator("article .state").first.is_hidden()
    page.click("#form")
    assert page.locator("article .state").first.is_visible()
    assert page.locator("article").nth(1).bounding_box()["y"] > one["y"]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """An exported page of each view."""
    folder = tmp_path_factory.mktemp("pages")
    hostile = folder / "hostile.txt"
    words = ["<img/src=x/onerror=alert(1)>", "</script><script>alert(2)</script>", "&lt;b&gt;", "{{script}}"]
    hostile.write_text("".join(f"{words[n % 4]} {words[n // 4 % 4]} {words[n // 16 % 4]} {n}\n" for n in range(64)))
    models = {
        "star": [path_star_model(), path_star_model("next_latent")],
        "belief": [model_of(HMM)],
        "map": [model_of(CITY)],
        "text": [story_model(folder)],
        "tokens": [model_of({"name": "sequences", "path": str(hostile)})],
    }
    for view, some in models.items():
        served = [Served(f"{view} <b>{number}</b>", model) for number, model in enumerate(some)]
        assert {one.task.view for one in served} == {view}
        export(served, folder / f"{view}.html", 3, 1)
    return folder


def test_states_and_beliefs_have_the_same_colours(opened, exported):
    page = ready(opened((exported / "belief.html").as_uri()))
    fills = "dots => dots.map(dot => dot.style.fill)"
    beliefs, states = (set(page.locator(f"{where} .cloud circle").evaluate_all(fills)) for where in ("figure", ".two"))
    assert "" not in beliefs | states
    assert len(beliefs & states) > 10
    assert "coloured by the exact belief" in page.text_content(".two")


def test_no_state_is_read_where_none_is_known(opened, exported):
    """The origin alone is no crossing at which a ride is."""
    page = ready(opened((exported / "map.html").as_uri()))
    state = page.locator(".two section").filter(has_text="read off the model")
    assert state.locator(".bar").count()
    page.keyboard.press("Home")
    assert "No state is known here" in state.text_content()
    assert not state.locator(".bar").count()
    assert not page.locator("figure .maybe:not(.key)").count()


def test_the_buttons_of_steps_say_what_they_do(opened, exported):
    page = ready(opened((exported / "star.html").as_uri()))
    assert [page.get_attribute(f"#{name}", "title") for name in ("previous", "play", "next")] == [
        "Previous token (←)",
        "Play (space)",
        "Next token (→)",
    ]
    assert page.text_content("#play") == "▶"
    page.keyboard.press("Home")
    page.click("#play")
    assert (page.text_content("#play"), page.get_attribute("#play", "title")) == ("❚❚", "Pause (space)")
    until(page, lambda: count(page).startswith("2 of"))


@pytest.mark.parametrize("look", ["light", "dark", "phone"])
@pytest.mark.parametrize("view", ["star", "belief", "map", "text", "tokens"])
def test_every_view_works_from_a_file(opened, exported, view, look):
    options = {"color_scheme": "dark" if look == "dark" else "light", "reduced_motion": "reduce"}
    size = {"viewport": {"width": 390, "height": 800}} if look == "phone" else {}
    page = ready(opened((exported / f"{view}.html").as_uri(), **options, **size))
    assert page.locator("#examples option").count() == 3
    assert page.locator("#prompt").is_hidden()
    for _ in range(3):
        before = count(page)
        page.keyboard.press("ArrowRight")
        assert count(page) != before or page.is_disabled("#next")
        assert page.evaluate("document.getAnimations().length") == 0
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.locator("article figure svg").count() >= (view != "tokens")
    assert page.locator("img, iframe, article b").count() == 0
    assert page.locator("script").count() == 2
    back = page.evaluate("getComputedStyle(document.body).backgroundColor").strip("rgb()").split(",")
    assert (sum(map(int, back)) < 200) == (look == "dark")
    page.select_option("#examples", "2")
    assert page.locator("article").count() == 1 + (view == "star")
    assert page.evaluate("[...document.querySelectorAll('svg text')].every(text => text.getBBox().width > 0)")
