"""The approval page in a real browser, before the real program, kernel, sandbox and MCP servers.

Screenshots go to build/screenshots/.
"""
import concurrent.futures
import http.server
import json
import os
import re
import shutil
import sys
import threading
import time
import unittest
import urllib.request
from pathlib import Path

try:
    from playwright.sync_api import expect, sync_playwright
except ImportError as error:
    raise unittest.SkipTest(f"Playwright is not installed ({error}); scripts/setup --browser does that")

SUPPORT = Path(os.environ["IPYBOX_TEST_SUPPORT"])
sys.path.insert(0, str(SUPPORT))
from approval_page import Program, Served, text_of  # noqa: E402
from workspace import make_directory  # noqa: E402

CHROMIUM = shutil.which("chromium")
FILES = Path(os.environ["IPYBOX_TEST_NODE_MODULES"]) / "@modelcontextprotocol/server-filesystem/dist/index.js"
SHOTS = Path(os.environ["IPYBOX_TEST_PROGRAM"]).parent / "screenshots"
MOMENT = 700  # ms in which buttons that allow do nothing, and a little more
ECHO = "from mcptools.own import echo\n"
TOOL = "own.echo"

# Texts of which too little differs from what they stand on, by WCAG: 4.5, or 3 for large ones.
PALE = """() => {
    const number = (text) => text.match(/[\\d.]+/g).map(Number);
    const light = ([r, g, b]) => {
        const [x, y, z] = [r, g, b].map((c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
        return 0.2126 * x + 0.7152 * y + 0.0722 * z;
    };
    const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
    const over = (colors) => {
        canvas.clearRect(0, 0, 1, 1);
        for (const color of colors) {
            canvas.fillStyle = color;
            canvas.fillRect(0, 0, 1, 1);
        }
        return [...canvas.getImageData(0, 0, 1, 1).data];
    };
    const found = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const element = walker.currentNode.parentElement;
        if (!walker.currentNode.data.trim() || !element.checkVisibility()) continue;
        if (element.closest(".unseen, noscript, option, :disabled, [data-steady=no]")) continue;
        const grounds = [];
        for (let at = element; at; at = at.parentElement) grounds.unshift(getComputedStyle(at).backgroundColor);
        const style = getComputedStyle(element);
        const ground = over(["white", ...grounds]), ink = over(["white", ...grounds, style.color]);
        const [a, b] = [light(ground), light(ink)].sort((x, y) => y - x);
        const ratio = (a + 0.05) / (b + 0.05);
        const size = parseFloat(style.fontSize);
        if (ratio < (size >= 24 || (size >= 18.66 && style.fontWeight >= 700) ? 3 : 4.5))
            found.push(`${ratio.toFixed(2)} ${element.className || element.tagName}: ${walker.currentNode.data.slice(0, 40)}`);
    }
    return [...new Set(found)];
}"""
OVERFLOW = """() => [document.documentElement.scrollWidth - document.documentElement.clientWidth,
    ...[...document.querySelectorAll("body *")].filter((e) => e.checkVisibility() && !e.closest(".unseen, .skip") &&
        e.getBoundingClientRect().right > document.documentElement.clientWidth + 1).map((e) => e.className || e.tagName)]"""


def http_cell(url, token, code):
    """A cell in a session of its own, over HTTP: a future of its text."""
    def post(message, session=None):
        request = urllib.request.Request(url, json.dumps({"jsonrpc": "2.0", **message}).encode(), {
            "Content-Type": "application/json", "Accept": "application/json, text/event-stream", "Authorization": f"Bearer {token}",
            "MCP-Protocol-Version": "2025-06-18", **({"Mcp-Session-Id": session} if session else {})})
        with urllib.request.urlopen(request, timeout=200) as reply:
            text = reply.read().decode()
            lines = [line[len("data:"):] for line in text.splitlines() if line.startswith("data:") and line[len("data:"):].strip()]
            return reply.headers["Mcp-Session-Id"], [json.loads(line) for line in lines or [text] if line.strip()]

    def run():
        session, _ = post({"id": 1, "method": "initialize", "params": {
            "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}})
        post({"method": "notifications/initialized"}, session)
        _, messages = post({"id": 2, "method": "tools/call", "params": {
            "name": "execute_ipython_cell", "arguments": {"code": code, "timeout": 200}}}, session)
        result, = [message["result"] for message in messages if message.get("id") == 2]
        return "\n".join(block["text"] for block in result["content"])

    future = concurrent.futures.Future()
    threading.Thread(target=lambda: future.set_result(run()), daemon=True).start()
    return future


@unittest.skipUnless(CHROMIUM, "needs chromium; scripts/setup --browser installs it")
class BrowserTest(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        SHOTS.mkdir(exist_ok=True)
        cls.playwright = sync_playwright().start()
        cls.addClassCleanup(cls.playwright.stop)
        cls.browser = cls.playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"] if os.geteuid() == 0 else [])
        cls.addClassCleanup(cls.browser.close)

    def setUp(self):
        self.directory = make_directory("ipybox-page-")
        self.workspace = self.directory / "workspace"
        self.addCleanup(shutil.rmtree, self.directory, ignore_errors=True)
        self.write_config()
        self.complaints = []

    def write_config(self, **servers):
        (self.directory / "mcp.json").write_text(json.dumps({"mcpServers": {"own": {
            "command": os.environ["IPYBOX_TEST_PYTHON"], "args": [str(SUPPORT / "mcp_server.py")]}, **servers}}))

    def serve(self, *flags):
        program = Served(self.directory, "--config", "mcp.json", "--approval-timeout", "300", *flags)
        self.addCleanup(program.close)
        return program

    def open(self, program, link=None, context=None, **settings):
        """A tab of a browser of its own, signed in by the link."""
        if not context:
            context = self.browser.new_context(**{"viewport": {"width": 1400, "height": 900}, **settings})
            self.addCleanup(context.close)
        page = context.new_page()
        # What the browser has to complain of, such as what the content security policy stopped.
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: (self.complaints.append(dialog.message), dialog.dismiss()))
        page.goto(link or program.link)
        page.wait_for_url(f"http://{program.address}/")
        expect(page.locator("#connection")).to_have_text("connected")
        return page

    def another(self, page):
        """A link for another browser, by the page's button."""
        page.get_by_role("button", name="Link for another browser").click()
        field = page.get_by_label("The link", exact=True)
        expect(field).to_have_value(re.compile("^http://"))
        link = field.input_value()
        page.get_by_role("dialog").get_by_role("button", name="Close").click()
        return link

    def question(self, page, tool=TOOL, number=0):
        """It has stood still."""
        call = page.locator(".call:not(.settled)").filter(has=page.get_by_role("button", name=f"Deny: {tool}")).nth(number)
        expect(call.locator(".answers")).to_have_attribute("data-steady", "yes")
        return call

    def press(self, call, name):
        self.press_in(call, call.locator(".answers"), call.get_by_role("button", name=re.compile(f"^{re.escape(name)}")))

    def press_in(self, place, guarded, button):
        """As a person does: once more if it moved just then, as when an answer above it went away."""
        for _ in range(5):
            expect(guarded).to_have_attribute("data-steady", "yes")
            button.click()
            if not any("had just appeared or moved" in text for text in place.locator(".problem").all_inner_texts()):
                return
        self.fail("it never stands still")

    def shoot(self, page, name, full=True):
        page.mouse.move(0, 0)
        page.screenshot(path=SHOTS / f"{name}.png", full_page=full, animations="disabled")

    def none_waits(self, page):
        expect(page).to_have_title("ipybox asks")
        expect(page.get_by_text("Nothing waits for an answer.")).to_be_visible()


class AnswersTest(BrowserTest):
    def test_allow_once_and_deny(self):
        program = self.serve()
        page = self.open(program)
        self.none_waits(page)
        cell = program.cell(ECHO + "for text in ('one', 'two', 'three'):\n    try:\n        print(echo.run(text=text))\n"
                                   "    except Exception as error:\n        print(type(error).__name__, error)")
        expect(page).to_have_title("(1) ipybox asks")
        self.press(self.question(page), "Allow once")
        expect(self.question(page).locator(".arguments")).to_contain_text('"two"')
        self.press(self.question(page), "Deny: ")
        expect(self.question(page).locator(".arguments")).to_contain_text('"three"')
        self.press(self.question(page), "Deny, saying why")
        page.get_by_label("Why not? The code is told.").fill("it is \"three\"")
        page.get_by_role("button", name=f"Deny {TOOL}", exact=True).click()
        said = text_of(cell)
        self.assertRegex(said, r"^one\nApprovalRejectedError .*\nApprovalRejectedError .*it is \"three\"")
        self.none_waits(page)
        rows = page.locator("#answers > li")
        expect(rows).to_have_count(3)
        expect(rows.nth(0)).to_contain_text("denied")
        expect(rows.nth(0)).to_contain_text('it is "three"')
        expect(rows.nth(2)).to_contain_text("worked")
        # The search, and the denied.
        page.get_by_label("denied").check()
        expect(rows).to_have_count(2)
        page.get_by_label("all", exact=True).check()
        page.get_by_label("Search what was answered").fill("two echo")
        expect(rows).to_have_count(1)
        rows.nth(0).locator("summary").click()
        expect(rows.nth(0).get_by_role("definition")).to_have_text('"two"')
        self.assertEqual(self.complaints, [])

    def grant(self, page, call, what, long):
        """Chooses, and gives back the rule that is shown."""
        self.press(call, "Allow more")
        panel = call.locator(".grant")
        # Nothing is chosen before.
        expect(panel.locator("input[type=radio]:checked")).to_have_count(0)
        expect(panel.get_by_role("button", name="Allow, and write this rule")).to_be_disabled()
        panel.get_by_label(what).check()
        panel.get_by_label(long, exact=True).check()
        return panel

    def agree(self, panel):
        button = panel.get_by_role("button", name="Allow, and write this rule")
        expect(button).to_be_enabled()
        self.press_in(panel.page.locator(".call").filter(has=panel), panel, button)

    def test_exactly_these_arguments_for_the_cell(self):
        program = self.serve()
        page = self.open(program)
        code = ECHO + "for text in ('same', 'same', 'other'):\n    echo.run(text=text)"
        cell = program.cell(code)
        panel = self.grant(page, self.question(page), "with exactly these arguments", "in this cell")
        expect(panel.locator(".preview")).to_contain_text('"same"')
        expect(panel.locator(".preview")).to_contain_text("no earlier calls")
        self.agree(panel)
        expect(self.question(page).locator(".arguments")).to_contain_text('"other"')
        self.press(self.question(page), "Allow once")
        text_of(cell)
        again = program.cell(code)
        expect(self.question(page).locator(".arguments")).to_contain_text('"same"')
        panel = self.grant(page, self.question(page), "with exactly these arguments", "in this cell")
        expect(panel.locator(".preview")).to_contain_text("2 of the last 3 calls")
        panel.get_by_role("button", name="Back").click()
        self.press(self.question(page), "Cancel the cell")
        text_of(again)
        self.assertFalse((self.directory / "settings/ipybox/always.json").exists())

    def test_arguments_like_these_for_the_session(self):
        program = self.serve()
        page = self.open(program)
        cell = program.cell(ECHO + "for text in ('/data/deep/a', '/data/b', '/etc/c'):\n    echo.run(text=text)")
        panel = self.grant(page, self.question(page), "with arguments like these", "in this session")
        pattern = panel.get_by_role("combobox", name="text")
        expect(pattern).to_have_value("under")
        place = panel.get_by_role("textbox", name="text is a path in the directory")
        expect(place).to_have_value("/data/deep")
        place.fill("/srv")
        expect(panel.locator(".preview")).to_contain_text("does not fit")
        expect(panel.get_by_role("button", name="Allow, and write this rule")).to_be_disabled()
        place.fill("/data")
        expect(panel.locator(".preview")).to_contain_text('"under": "/data"')
        self.shoot(page, "pattern")
        self.agree(panel)
        call = self.question(page)
        expect(call.locator(".arguments")).to_contain_text("/etc/c")
        # The difference to the last similar call.
        expect(call.locator(".differs .tag")).to_have_text("changed")
        call.locator(".was summary").click()
        expect(call.locator(".was")).to_contain_text("/data/b")
        for kind, value, words in (("glob", "/etc/*", '"glob": "/etc/*"'), ("regex", "/etc/[a-c]", '"regex": "/etc/[a-c]"'),
                                   ("one_of", '["/etc/c", "/etc/d"]', '"one_of"'), ("json", '{"not": {"under": "/data"}}', '"not"')):
            panel = call.locator(".grant")
            if not panel.count():
                panel = self.grant(page, call, "with arguments like these", "in this session")
            panel.get_by_role("combobox", name="text").select_option(kind)
            panel.locator(".inputs input").fill(value)
            expect(panel.locator(".preview")).to_contain_text(words)
        panel.locator(".inputs input").fill("{")
        expect(panel.locator(".preview")).to_contain_text("is not JSON")
        panel.get_by_role("combobox", name="text").select_option("glob")
        panel.locator(".inputs input").fill("/etc/*")
        self.agree(panel)
        text_of(cell)
        self.assertEqual(text_of(program.cell(ECHO + "print(echo.run(text='/etc/other'))")), "/etc/other")
        self.assertFalse((self.directory / "settings/ipybox/always.json").exists())

    def test_the_tool_for_some_hours_and_the_server_always(self):
        program = self.serve()
        page = self.open(program)
        cell = program.cell("from mcptools.own import echo, add\necho.run(text='a')\necho.run(text='b')\nprint(add.run(a=1, b=2).sum)")
        panel = self.grant(page, self.question(page), "echo with any arguments", "for some hours")
        panel.get_by_label("hours", exact=True).fill("0")
        expect(panel.locator(".preview")).to_contain_text("hours")
        panel.get_by_label("hours", exact=True).fill("2")
        expect(panel.locator(".preview")).to_contain_text("expires")
        self.agree(panel)
        call = self.question(page, "own.add")
        panel = self.grant(page, call, "every tool of own", "always")
        self.agree(panel)
        self.assertEqual(text_of(cell), "3")
        rules = json.loads((self.directory / "settings/ipybox/always.json").read_text())["rules"]
        self.assertEqual(len(rules), 2)
        self.assertEqual(["expires" in rule for rule in rules].count(True), 1)
        self.assertEqual(text_of(program.cell("from mcptools.own import image\nimage.run() and None")), "")

    def test_edited_then_allowed(self):
        program = self.serve("--audit", "calls.jsonl")
        page = self.open(program)
        cell = program.cell("from mcptools.own import structured, echo, add\nprint(echo.run(text='as asked\\u200b'))\n"
                            "print(add.run(a=12345678901234567890123, b=1).sum)")
        self.press(self.question(page), "Edit, then allow")
        call = self.question(page)
        field = call.get_by_role("textbox", name="text", exact=True)
        # What cannot be seen is an escape there, too.
        expect(field).to_have_value(r'"as asked\u200b"')
        send = call.get_by_role("button", name="Allow the edited call")
        expect(send).to_be_disabled()
        field.fill("as edited")
        expect(call.locator(".field")).to_contain_text("this is not JSON")
        field.fill("5")
        self.press_in(call, call.locator(".edit"), send)
        expect(call.get_by_role("alert")).to_contain_text("text")
        field.fill('"as edited"')
        self.shoot(page, "edit")
        self.press_in(call, call.locator(".edit"), send)
        call = self.question(page, "own.add")
        self.press(call, "Edit, then allow")
        call.get_by_role("button", name="leave out b").click()
        self.press_in(call, call.locator(".edit"), call.get_by_role("button", name="Allow the edited call"))
        expect(call.get_by_role("alert")).to_contain_text("b")
        call.get_by_role("button", name="put back b").click()
        call.get_by_role("textbox", name="b", exact=True).fill("2")
        self.press_in(call, call.locator(".edit"), call.get_by_role("button", name="Allow the edited call"))
        self.assertTrue(text_of(cell).startswith("as edited\n"), text_of(cell))
        row = page.locator("#answers > li").nth(1)
        expect(row).to_contain_text("edited")
        row.locator("summary").click()
        expect(row).to_contain_text("as it was sent, after editing")
        records = [json.loads(line) for line in (self.directory / "calls.jsonl").read_text().splitlines() if '"call"' in line]
        records = [record for record in records if record["event"] == "call"]
        self.assertEqual((records[0]["arguments"], records[0]["edited"]), ({"text": "as asked\u200b"}, {"text": "as edited"}))
        self.assertIn("12345678901234567890123", (self.directory / "calls.jsonl").read_text())

    def test_the_cell_is_cancelled(self):
        program = self.serve()
        page = self.open(program)
        cell = program.cell(ECHO + "echo.run(text='x')")
        self.press(self.question(page), "Cancel the cell")
        text_of(cell)
        self.none_waits(page)
        expect(page.locator(".cell .status")).to_contain_text("cancelled")
        cell = program.cell("import time\nprint('on', flush=True)\ntime.sleep(100)")
        expect(page.locator(".printed").first).to_contain_text("on")
        page.get_by_role("button", name="Cancel this cell").click()
        text_of(cell)

    def test_calls_of_a_loop_are_answered_together(self):
        program = self.serve()
        page = self.open(program)
        code = (ECHO + "import asyncio\nresults = await asyncio.gather(*(echo.run_async(text=f'item {i}') for i in range(%d)), return_exceptions=True)\n"
                "print(sum(isinstance(result, str) for result in results))")
        cell = program.cell(code % 12)
        expect(page).to_have_title("(12) ipybox asks")
        card = page.locator(".card")
        expect(card).to_have_count(1)
        listed = card.locator(".arguments").all_inner_texts()
        self.assertEqual(sorted(re.search(r"item \d+", text).group() for text in listed), sorted(f"item {i}" for i in range(12)))
        self.shoot(page, "loop")
        # One is answered alone; then the others.
        self.press(self.question(page, number=3), "Deny: ")
        together = card.locator(".together")
        expect(together.get_by_role("button", name="Allow these 11")).to_be_visible()
        self.press_in(card, together, together.get_by_role("button", name="Allow these 11"))
        self.assertEqual(text_of(cell), "11")
        cell = program.cell(code % 3)
        expect(page).to_have_title("(3) ipybox asks")
        page.get_by_role("button", name="Deny these 3").click()
        self.assertEqual(text_of(cell), "0")
        self.none_waits(page)


class CareTest(BrowserTest):
    """A person's yes is worth protecting."""

    def test_nothing_is_chosen_and_a_hasty_click_is_no_yes(self):
        program = self.serve()
        page = self.open(program)
        cell = program.cell(ECHO + "echo.run(text='x')")
        call = page.locator(".call")
        allow = call.get_by_role("button", name="Allow once")
        # The first moment: pressed as soon as it is there, again and again.
        page.evaluate("""() => new Promise((done) => {
            const until = performance.now() + 10000;
            const look = () => {
                const button = document.querySelector(".answers .allow");
                if (button) {
                    button.dispatchEvent(new MouseEvent("click", {bubbles: true, detail: 1}));
                    done();
                } else if (performance.now() < until) requestAnimationFrame(look);
            };
            look();
        })""")
        expect(call.get_by_role("alert")).to_contain_text("had just appeared or moved")
        expect(page).to_have_title("(1) ipybox asks")
        self.assertEqual(page.evaluate("document.activeElement.tagName"), "BODY")
        # It moves under the pointer.
        expect(call.locator(".answers")).to_have_attribute("data-steady", "yes")
        allow.hover()
        page.evaluate("document.querySelector('h2').style.paddingTop = '60px'")
        page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        expect(call.locator(".answers")).to_have_attribute("data-steady", "no")
        allow.click(no_wait_after=True)
        expect(page).to_have_title("(1) ipybox asks")
        # A press that began before it stood still.
        page.evaluate("window.dispatchEvent(new Event('focus'))")
        allow.hover()
        page.mouse.down()
        expect(call.locator(".answers")).to_have_attribute("data-steady", "yes")
        page.mouse.up()
        expect(call.get_by_role("alert")).to_contain_text("had just appeared or moved")
        expect(page).to_have_title("(1) ipybox asks")
        self.assertFalse(cell.done())
        self.press(call, "Allow once")
        text_of(cell)

    def test_an_answered_question_leaves_its_place_while_the_pointer_is_there(self):
        program = self.serve()
        page = self.open(program)
        code = "from mcptools.own import echo, add, image\nimport asyncio\n" + (
            "await asyncio.gather(echo.run_async(text='x'), add.run_async(a=1, b=2), image.run_async(), return_exceptions=True)\nNone")
        cell = program.cell(code)
        expect(page).to_have_title("(3) ipybox asks")
        calls = page.locator(".call")
        where = [calls.nth(i).bounding_box() for i in range(3)]
        self.press(calls.nth(0), "Deny: ")
        expect(calls.nth(0)).to_have_class(re.compile("settled"))
        page.wait_for_timeout(2500)  # longer than an answer stays at least
        self.assertEqual([calls.nth(i).bounding_box() for i in range(3)], where)
        page.mouse.move(1390, 890)
        expect(calls).to_have_count(2)
        for _ in range(2):
            page.locator(".call:not(.settled)").first.get_by_role("button", name=re.compile("^Deny: ")).click()
        text_of(cell)

    def test_by_keys_only(self):
        program = self.serve()
        page = self.open(program)
        cell = program.cell(ECHO + "for text in 'abcdef':\n    try:\n        print(echo.run(text=text))\n    except Exception as error:\n        print(error)")
        # Enter alone, wherever the focus is, allows nothing.
        self.question(page)
        for _ in range(60):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.classList.contains('allow')"):
                break
        focused = page.locator(":focus")
        expect(focused).to_have_accessible_name(re.compile(f"^Allow once: {TOOL}"))
        for _ in range(8):
            page.keyboard.press("Enter")
            page.wait_for_timeout(MOMENT)
        self.assertFalse(cell.done())
        expect(page).to_have_title("(1) ipybox asks")
        page.keyboard.press("Escape")
        # Keys, when the question has the focus: a asks once more, y in the same breath is no yes.
        page.locator("body").focus()
        page.evaluate("document.activeElement.blur()")
        page.keyboard.press("j")
        call = self.question(page)
        expect(call).to_be_focused()
        page.keyboard.type("okay")
        expect(call.get_by_role("alert")).to_contain_text("too soon")
        expect(page).to_have_title("(1) ipybox asks")
        page.keyboard.press("a")
        expect(page.get_by_role("button", name="Back")).to_be_focused()
        self.shoot(page, "confirm")
        page.wait_for_timeout(MOMENT)
        page.keyboard.press("y")
        # The next question does not get the focus by itself.
        expect(page.locator(".arguments").get_by_text('"b"')).to_be_visible()
        self.assertEqual(page.locator(".call:not(.settled):focus").count(), 0)
        page.keyboard.press("j")
        page.keyboard.press("d")
        page.keyboard.type("no ay b")
        page.keyboard.press("Enter")
        expect(page.locator(".call:not(.settled) .arguments").get_by_text('"c"')).to_be_visible()
        # Allow more, and edit.
        page.keyboard.press("j")
        page.wait_for_timeout(MOMENT)
        page.keyboard.press("m")
        expect(page.get_by_label("with exactly these arguments")).to_be_focused()
        page.keyboard.press("Space")
        page.keyboard.press("Tab")
        page.keyboard.press("Space")
        send = page.get_by_role("button", name="Allow, and write this rule")
        expect(send).to_be_enabled()
        page.keyboard.press("Tab")
        expect(send).to_be_focused()
        page.wait_for_timeout(MOMENT)
        page.keyboard.press("Enter")
        page.wait_for_timeout(MOMENT)
        page.keyboard.press("y")
        expect(page.locator(".call:not(.settled) .arguments").get_by_text('"d"')).to_be_visible()
        page.keyboard.press("j")
        page.keyboard.press("e")
        page.keyboard.press("Control+a")
        page.keyboard.type("edited by keys")
        for _ in range(4):  # leave out, another argument, add, the button
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.classList.contains('allow')"):
                break
        page.wait_for_timeout(MOMENT)
        page.keyboard.press("Space")
        page.wait_for_timeout(MOMENT)
        page.keyboard.press("y")
        expect(page.locator(".call:not(.settled) .arguments").get_by_text('"e"')).to_be_visible()
        # The help says so; without single keys nothing of it happens.
        page.keyboard.press("?")
        expect(page.get_by_role("dialog", name="How answers are given")).to_be_visible()
        page.get_by_label("single keys do this").focus()
        page.keyboard.press("Space")
        page.keyboard.press("Escape")
        page.keyboard.press("j")
        self.assertEqual(page.locator(".call:focus").count(), 0)
        page.keyboard.press("c")
        self.assertFalse(cell.done())
        page.keyboard.press("?")
        expect(page.get_by_role("dialog")).to_have_count(0)
        page.get_by_role("button", name="Help").press("Enter")
        page.get_by_label("single keys do this").press("Space")
        page.keyboard.press("Escape")
        self.question(page).focus()
        page.keyboard.press("c")
        self.assertRegex(text_of(cell), r"a\n.*no ay b.*\nc\nedited by keys$")

    def test_names_for_screen_readers(self):
        program = self.serve()
        page = self.open(program)
        cell = program.cell("from mcptools.own import echo, add\nimport asyncio\nprint('hello', flush=True)\n"
                            "await asyncio.gather(echo.run_async(text='x'), echo.run_async(text='y'), add.run_async(a=1, b=2))\nNone")
        expect(page).to_have_title("(3) ipybox asks")
        expect(page.locator("#announcements")).to_have_text("3 new questions. 3 waiting.")
        for role, name in (("banner", ""), ("main", ""), ("region", "Waiting for your answer 3"), ("complementary", "The session"),
                           ("region", "Answered"), ("article", TOOL), ("group", re.compile(f"^Question [0-9a-f]{{4}}: {TOOL}$")),
                           ("group", re.compile(f"^All 2 calls of {TOOL} above$")), ("group", "What the code printed; none of it is a question"),
                           ("list", "Hints of the server, which promise nothing"), ("timer", "")):
            expect(page.get_by_role(role, **({"name": name} if name else {})).first).to_be_attached()
        self.question(page, "own.add").get_by_role("button", name="Allow more").click()
        self.question(page).get_by_role("button", name="Edit, then allow").click()
        # Whatever can be pressed or filled has a name, and no two of the same kind share one.
        client = page.context.new_cdp_session(page)
        nodes = [node for node in client.send("Accessibility.getFullAXTree")["nodes"] if not node["ignored"]]
        names = {}
        for node in nodes:
            role = node["role"]["value"]
            if role in ("button", "textbox", "combobox", "radio", "checkbox", "searchbox", "spinbutton", "link", "image"):
                names.setdefault(role, []).append(node.get("name", {}).get("value", ""))
        self.assertFalse([role for role, all_ in names.items() if not all(name.strip() for name in all_)], names)
        repeated = {name for name in names["button"] if names["button"].count(name) > 1} - {"Back"}
        self.assertEqual(repeated, set())
        # What is hidden from the eye is not what tells questions apart only.
        self.assertEqual(sum(node["role"]["value"] == "alert" and bool(node.get("name", {}).get("value")) for node in nodes), 0)
        cell.cancel()


class LooksTest(BrowserTest):
    def scene(self, program):
        """A write of a file, a loop, and a call with a plot beside it. Returns when all wait."""
        old = "".join(f"line {i} of the report\n" for i in range(40))
        (self.workspace / "report.md").write_text("# Report\n\n" + old)
        self.workspace.chmod(0o777)  # root starts servers as somebody else
        return program.cell(
            "from mcptools.files import write_file\nfrom mcptools.own import echo, add\nimport asyncio\nimport matplotlib.pyplot as plt\n\n"
            f"path = {str(self.workspace / 'report.md')!r}\ntext = open(path).read()\nprint('read', len(text), 'characters', flush=True)\n"
            "plt.figure(figsize=(5, 2.4)); plt.plot([3, 1, 4, 1, 5, 9, 2, 6]); plt.title('Orders'); plt.show()\n\n"
            "# Put the summary in its place.\n"
            "edited = text.replace('line 7 of the report', 'line seven, corrected').replace('line 20 of the report\\n', '')\n"
            "async def save():\n    await write_file.run_async(path=path, content=edited + 'a new end\\n')\n\n"
            "await asyncio.gather(\n    save(),\n"
            "    add.run_async(a=2, b=3),\n    *(echo.run_async(text=f'order {i}') for i in range(3)), return_exceptions=True)\nprint('done')")

    def files(self):
        self.write_config(files={"command": "node", "args": [str(FILES), "${WORKSPACE}"]})

    def test_dark_and_light(self):
        self.files()
        program = self.serve()
        light = self.open(program, color_scheme="light", viewport={"width": 1280, "height": 860})
        dark = self.open(program, self.another(light), color_scheme="dark", viewport={"width": 1280, "height": 860})
        cell = self.scene(program)
        for page, name in ((light, "light"), (dark, "dark")):
            expect(page).to_have_title("(5) ipybox asks")
            call = self.question(page, "files.write_file")
            # The file as a difference, the code with the calling line marked, the plot beside it.
            expect(call.locator(".diff caption")).to_have_text("2 lines added, 2 removed")
            expect(call.locator("tr.added .line").first).to_have_text("added: line seven, corrected")
            expect(call.locator(".code .calls .line")).to_contain_text("write_file.run_async(path=path")
            expect(page.locator(".session img")).to_have_js_property("complete", True)
            self.assertGreater(page.locator(".session img").evaluate("image => image.naturalWidth"), 100)
            self.question(page, number=2)
            self.assertEqual(page.evaluate(PALE), [])
            self.shoot(page, name)
            self.shoot(page, f"{name}-window", full=False)
            self.press(call, "Allow more")
            call.get_by_label("with arguments like these").check()
            call.get_by_label("always").check()
            expect(call.locator(".preview .text")).to_be_visible()
            expect(call.locator(".grant")).to_have_attribute("data-steady", "yes")
            self.assertEqual(page.evaluate(PALE), [])
            call.locator(".grant").screenshot(path=SHOTS / f"{name}-pattern.png")
            call.get_by_role("button", name="Back").click()
        self.press(self.question(light, "files.write_file"), "Allow once")
        for _ in range(4):
            light.locator(".call:not(.settled)").first.get_by_role("button", name=re.compile("^Deny: ")).click()
        self.assertIn("\ndone\n", text_of(cell))
        expect(light.locator("#answers > li").last).to_contain_text("worked")
        self.assertIn("line seven, corrected", (self.workspace / "report.md").read_text())
        for page in (light, dark):
            self.none_waits(page)
            expect(page.locator(".call")).to_have_count(0)
            self.assertEqual(page.evaluate(PALE), [])
            page.get_by_role("button", name="Help").click()
            self.assertEqual(page.evaluate(PALE), [])
        self.shoot(light, "help", full=False)
        self.assertEqual(self.complaints, [])

    def test_a_phone_and_200_percent(self):
        self.files()
        program = self.serve()
        page = self.open(program, viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True)
        zoomed = self.open(program, self.another(page), viewport={"width": 640, "height": 400}, device_scale_factor=2)  # 1280 at 200 %
        self.scene(program)
        for tab, name in ((page, "phone"), (zoomed, "zoom")):
            expect(tab).to_have_title("(5) ipybox asks")
            call = self.question(tab, "files.write_file")
            self.assertEqual(tab.evaluate(OVERFLOW), [0])
            self.shoot(tab, name)
            self.press(call, "Allow more")
            call.get_by_label("with arguments like these").check()
            self.assertEqual(tab.evaluate(OVERFLOW), [0])
            call.get_by_role("button", name="Back").click()
            self.press(call, "Edit, then allow")
            self.assertEqual(tab.evaluate(OVERFLOW), [0])
            call.get_by_role("button", name="Back").click()
        # Twice as large letters.
        zoomed.evaluate("document.documentElement.style.fontSize = '200%'")
        self.assertEqual(zoomed.evaluate(OVERFLOW), [0])
        call = self.question(page, "own.add")
        call.get_by_role("button", name="Deny: ").tap()
        expect(page).to_have_title("(4) ipybox asks")
        call = self.question(page, "files.write_file")
        call.get_by_role("button", name="Allow once").tap()
        expect(page).to_have_title("(3) ipybox asks")

    def test_many_questions(self):
        program = Program("serve", self.directory, "--sandbox", "bubblewrap", "--config", "mcp.json", "--approval-timeout", "300",
                          "--http", "127.0.0.1:0", env={"IPYBOX_HTTP_TOKEN": "a-token-of-the-tests"})
        self.addCleanup(program.close)
        url = program.said(r"serving at (http://\S+/mcp)").group(1)
        page = self.open(program)
        code = ECHO + ("import asyncio\n"
                       "results = await asyncio.gather(*(echo.run_async(text=f'item {i}\\n' * 15) for i in range(250)), return_exceptions=True)\n"
                       "print(sum(isinstance(result, str) for result in results))")
        # A session has 256 calls at once.
        cells = [http_cell(url, "a-token-of-the-tests", code) for _ in range(2)]
        expect(page).to_have_title("(500) ipybox asks", timeout=60000)
        page.reload()
        expect(page).to_have_title("(500) ipybox asks", timeout=60000)
        self.press(self.question(page, number=499), "Deny: ")
        expect(page).to_have_title("(499) ipybox asks")
        for many, left in ((250, 249), (249, 0)):
            button = page.get_by_role("button", name=f"Allow these {many}")
            self.press_in(page.locator(".card").filter(has=button), page.locator(".together").filter(has=button), button)
            expect(page).to_have_title(f"({left}) ipybox asks" if left else "ipybox asks", timeout=60000)
        self.assertEqual(sorted(cell.result(100) for cell in cells), ["249", "250"])
        expect(page.locator("#answers > li[data-id]")).to_have_count(100)
        page.get_by_role("button", name="show older ones").click()
        expect(page.locator("#answers > li[data-id]")).to_have_count(500)
        self.assertEqual(self.complaints, [])


class HostileTest(BrowserTest):
    MARKUP = "<img src=x onerror=alert(1)><script>alert(2)</script><style>*{display:none}</style><b>bold</b>"

    def test_hostile_texts_are_shown_whole_and_do_nothing(self):
        program = self.serve()
        page = self.open(program)
        values = {
            "bidi": "/data/\u202egpj.exe", "markup": self.MARKUP, "escape": "\x1b[2J\x1b[31mred", "zero": "pass\u200bword\ufeff\u00ad",
            "tags": "".join(chr(0xE0000 + ord(c)) for c in "secret"), "blank": "a\u3164b\u2800c\u00a0d\u2003e",
            "command": "ls" + " " * 300 + "; rm -rf ~", "url": "https://www.\u0440\u0430ypal.com/", "hebrew": "/srv/\u05d0\u05d1\u05d2/../etc",
            "zalgo": "Z" + "\u0301" * 40, "long": "x" * 50000 + "needle" + "y" * 50000, "lines": "first\n" + "\n" * 200 + "last",
            "digits": 123456789012345678901, "quote": "\" and then: Allow once [y]\n\nAllow own.echo? [y/s/a/N/r/?] y",
            "nested": {"deep\u202e": [1, {"x": "y\u2066"}]}, self.MARKUP: "name"}
        cell = program.cell("import json\nfrom mcptools.own import structured\nstructured.run(value=json.loads(%r))\nNone" % json.dumps({"a": 1}))
        self.press(self.question(page, "own.structured"), "Deny: ")
        text_of(cell)
        # Around the generated functions, which take what the tool names.
        cell = program.cell("from ipybox_kernel import client\nimport json\nclient.send('own', 'structured', json.loads(%r))\nNone" % json.dumps(values))
        call = self.question(page, "own.structured")
        shown = call.locator(".arguments > div")
        expect(shown).to_have_count(len(values) + 1)  # `value` of the last call is not in this one

        def value(name):
            return call.locator(".arguments > div").filter(has=page.locator("dt", has_text=re.compile(f"^{re.escape(name)}"))).locator("dd")

        for name, words in (
                ("bidi", ['"/data/', r"\u202e", 'gpj.exe"', "invisible or unusual character"]), ("markup", ["<img src=x onerror=alert(1)><script>"]),
                ("escape", [r"\x1b", "[2J", "[31mred"]), ("zero", [r"\u200b", r"\ufeff\xad"]), ("tags", [r"\U000e0073\U000e0065"]),
                ("blank", [r"\u3164", r"\u2800", r"\xa0", r"\u2003"]), ("command", ["ls[300 blanks]; rm -rf ~"]),
                ("url", ["several scripts"]), ("zalgo", [r"\u0301×38"]), ("lines", ["folded: 210 characters, 202 lines"]),
                ("digits", ["123456789012345678901"]), ("nested", [r"\u202e", r"\u2066"])):
            for word in words:
                expect(value(name)).to_contain_text(word)
        # A long text is folded and never cut.
        expect(value("long")).to_contain_text("folded: 100\u202f006 characters")
        expect(value("long")).not_to_contain_text("needle")
        value("long").get_by_role("button", name="show all").click()
        self.assertIn("x" * 50000 + "needle" + "y" * 50000, value("long").inner_text())
        value("long").get_by_role("button", name="fold").click()
        # Right-to-left letters turn round nothing but themselves.
        box = value("hebrew").locator("bdi").bounding_box()
        place = value("hebrew").bounding_box()
        self.assertLess(box["x"] - place["x"], 80)
        self.assertEqual(value("hebrew").inner_text().replace("\u2068", "").replace("\u2069", ""), '"/srv/\u05d0\u05d1\u05d2/../etc"')
        self.assertEqual(page.locator("main b:has-text('bold'), main script, main style, .call img, .call iframe").count(), 0)
        for one in shown.locator("dd > .value").all():
            self.assertEqual(one.locator(".text").first.evaluate("e => getComputedStyle(e).unicodeBidi"), "isolate")
        self.assertEqual(page.evaluate(OVERFLOW), [0])
        self.shoot(page, "hostile")
        # The title, the announcements and the history, too.
        expect(page).to_have_title("(1) ipybox asks")
        self.press(call, "Deny: ")
        text_of(cell)
        row = page.locator("#answers > li").first
        expect(row).to_contain_text(r"\u202e")
        row.locator("summary").click()
        expect(row).to_contain_text("folded: 100\u202f006 characters")
        page.reload()
        expect(page.locator("#answers > li").first).to_contain_text(r"\u202e")
        self.assertEqual(self.complaints, [])

    def test_what_the_code_prints_is_apart_and_presses_nothing(self):
        program = self.serve()
        page = self.open(program)
        code = ("import sys\nfrom IPython.display import HTML, SVG, Image, display, Javascript\nfrom mcptools.own import echo\n"
                f"markup = {self.MARKUP!r}\n"
                "print(markup + '<button class=allow>Allow once</button>\\x1b[31mred\\x1b[0m \\x1b]0;title\\x07 \\u202eevil', flush=True)\n"
                "print('on stderr', file=sys.stderr, flush=True)\nprint('10%\\r20%\\rdone', flush=True)\n"
                "display(HTML(markup)); display(Javascript('alert(3)'))\n"
                "display(SVG('<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"80\" height=\"40\" onload=\"alert(4)\"><script>alert(5)</script>"
                "<rect width=\"80\" height=\"40\" fill=\"teal\"/></svg>'))\n"
                "import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show()\n"
                "for i in range(20000): print('line', i)\n"
                "echo.run(text='now')\nNone")
        cell = program.cell(code)
        call = self.question(page)
        printed = page.locator(".printed")
        expect(printed.locator(".label")).to_have_text("what the code printed")
        expect(printed).to_contain_text("line 19999")
        expect(printed.locator("img")).to_have_count(2)
        expect(printed.locator("img").first).to_have_attribute("src", re.compile("^data:image/svg"))
        self.assertEqual(printed.locator("button, a, input, script, style, iframe, svg, b").count(), 0)
        self.assertEqual(page.locator(".questions .printed").count(), 0)
        # Apart from the questions for the eye, too: none of it is over one of them.
        outside, question = printed.bounding_box(), call.bounding_box()
        self.assertGreaterEqual(outside["x"], question["x"] + question["width"])
        self.shoot(page, "output", full=False)
        self.press(call, "Allow once")
        text_of(cell)
        page.reload()
        expect(page.locator(".printed")).to_contain_text("line 19999")
        self.assertEqual(self.complaints, [])


class ConnectionTest(BrowserTest):
    def test_two_tabs_and_a_stale_answer(self):
        program = self.serve()
        one = self.open(program)
        two = self.open(program, context=one.context, link=f"http://{program.address}/")
        cell = program.cell(ECHO + "echo.run(text='x')\necho.run(text='y')\nNone")
        self.question(two)
        self.press(self.question(one), "Allow once")
        expect(two.locator(".call.settled").first).to_contain_text("allowed")
        # Somebody else is faster, though this tab does not know yet.
        self.question(one)

        def overtaken(route):
            button = self.question(one).get_by_role("button", name="Deny: ")
            button.click()
            expect(one).to_have_title("ipybox asks")
            route.continue_()

        call = self.question(two)
        two.route("**/answer", overtaken)
        self.press(call, "Allow once")
        expect(two.get_by_role("alert").filter(has_text="it was answered before: denied by page: no")).to_be_visible()
        self.assertIn("ApprovalRejectedError", text_of(cell))
        expect(two.locator("#answers > li")).to_have_count(2)

    def test_first_answer_wins_over_the_terminal(self):
        import pty
        import select
        program, terminal = pty.fork()
        if program == 0:
            os.chdir(self.directory)
            os.execve(os.environ["IPYBOX_TEST_PROGRAM"], [
                "ipybox", "run", "--workspace", "workspace", "--config", "mcp.json", "--approval-page", "127.0.0.1:0", "-c",
                ECHO + "print(echo.run(text='first'))\nprint(echo.run(text='second'))"],
                {"PATH": os.environ["PATH"], "IPYBOX_PYTHON": os.environ["IPYBOX_TEST_PYTHON"], "TERM": "xterm", "NO_COLOR": "1",
                 "XDG_CONFIG_HOME": str(self.directory / "settings")})
        self.addCleanup(os.close, terminal)
        seen = ""

        def read_until(pattern):
            nonlocal seen
            end = time.monotonic() + 90
            while not re.search(pattern, seen):
                self.assertLess(time.monotonic(), end, seen)
                if select.select([terminal], [], [], 0.2)[0]:
                    try:
                        seen += os.read(terminal, 65536).decode(errors="replace")
                    except OSError:
                        break
            return re.search(pattern, seen)

        link = read_until(r"approval page: (http://\S+)").group(1)
        address = link.partition("//")[2].partition("/")[0]
        page = self.browser.new_page()
        self.addCleanup(page.close)
        page.goto(link)
        page.wait_for_url(f"http://{address}/")
        call = self.question(page)
        # The terminal answers: the page says so.
        read_until(r"Allow own.echo\? \[y/s/a/N/r/\?\]")
        time.sleep(0.3)
        os.write(terminal, b"y\n")
        expect(page.locator("#answers > li").first).to_contain_text(re.compile("allowed.*by console"))
        # The page answers: the terminal's question is withdrawn.
        expect(call.locator(".arguments")).to_contain_text('"second"')
        self.press(self.question(page), "Allow once")
        read_until(r"\nsecond")
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(program, 0)[1]), 0)

    def test_a_reload_finds_everything(self):
        program = self.serve()
        page = self.open(program)
        cell = program.cell(ECHO + "print('printed', flush=True)\necho.run(text='x')\necho.run(text='y')\nNone")
        self.press(self.question(page), "Allow once")
        expect(self.question(page).locator(".arguments")).to_contain_text('"y"')
        page.reload()
        expect(page).to_have_title("(1) ipybox asks")
        expect(self.question(page).locator(".arguments")).to_contain_text('"y"')
        expect(self.question(page).locator(".code .calls .line")).to_contain_text("echo.run(text='y')")
        expect(page.locator("#answers > li")).to_have_count(1)
        expect(page.locator("#answers > li")).to_contain_text("worked")
        expect(page.locator(".printed")).to_contain_text("printed")
        self.press(self.question(page), "Allow once")
        text_of(cell)

    def test_without_a_connection_nothing_can_be_answered(self):
        program = self.serve()
        page = self.open(program)
        program.cell(ECHO + "echo.run(text='x')")
        call = self.question(page)
        self.press(call, "Edit, then allow")
        program.process.kill()
        expect(page.locator("#connection")).to_have_text("not connected: answers cannot be given now")
        for button in call.locator(".answers").get_by_role("button").all():
            expect(button).to_be_disabled()
        self.assertTrue(call.locator(".edit").evaluate("e => e.inert"))
        self.shoot(page, "not-connected", full=False)

    def test_the_link_is_used_once(self):
        program = self.serve()
        page = self.open(program)
        stranger = self.browser.new_page()
        self.addCleanup(stranger.close)
        for target in (program.link, f"http://{program.address}/"):
            stranger.goto(target)
            expect(stranger.get_by_role("heading", name="This browser is not signed in")).to_be_visible()
        self.shoot(stranger, "refused")
        self.assertEqual([cookie["name"] for cookie in stranger.context.cookies()], [])
        cookie, = page.context.cookies()
        self.assertEqual((cookie["httpOnly"], cookie["sameSite"], cookie["path"]), (True, "Strict", "/"))
        self.assertEqual(page.evaluate("document.cookie"), "")
        self.assertNotIn("token", page.url)
        other = self.open(program, self.another(page))
        expect(other.locator("#connection")).to_have_text("connected")

    def test_pages_of_others_can_neither_answer_nor_frame_it(self):
        program = self.serve()
        page = self.open(program)
        cell = program.cell(ECHO + "echo.run(text='x')")
        call = self.question(page)
        ident = call.get_attribute("data-id")

        class Evil(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.end_headers()
                self.wfile.write(f"<title>evil</title><iframe src='http://{program.address}/'></iframe>".encode())

            def log_message(self, *_):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Evil)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        # In the same browser, which has the cookie. By another port it is the same site, by another name another one.
        for host in ("127.0.0.1", "localhost"):
            evil = page.context.new_page()
            evil.goto(f"http://{host}:{server.server_port}/")
            said = evil.evaluate("""async ([address, id]) => {
                const body = JSON.stringify({answers: [{id, verdict: "allow"}]});
                const said = [];
                for (const settings of [{mode: "no-cors"}, {mode: "cors"}, {mode: "no-cors", headers: {"Content-Type": "text/plain"}},
                                        {mode: "cors", headers: {"Content-Type": "application/json"}}])
                    said.push(await fetch(`http://${address}/answer`, {method: "POST", credentials: "include", body, ...settings}).then(
                        async (response) => response.type === "opaque" ? "opaque" : await response.text(), (error) => error.name));
                said.push(await fetch(`http://${address}/events`, {credentials: "include"}).then(() => "read", (error) => error.name));
                navigator.sendBeacon(`http://${address}/answer`, body);
                const form = document.createElement("form");
                Object.assign(form, {method: "post", action: `http://${address}/answer`, enctype: "text/plain", target: "_blank"});
                form.append(Object.assign(document.createElement("input"), {name: body.slice(0, -1) + ',"x":"', value: '"}'}));
                document.body.append(form);
                form.submit();
                return said;
            }""", [program.address, ident])
            self.assertEqual(said, ["TypeError"] * 5)
            frame = evil.frames[1]
            self.assertEqual(frame.locator(".card, #questions-title").count(), 0)
            evil.close()
        # Requests that a browser sends without asking first arrived, and were refused.
        program.said("(?s)refused with status 403.*refused with status 403")
        expect(page).to_have_title("(1) ipybox asks")
        self.assertFalse(cell.done())
        self.press(call, "Allow once")
        text_of(cell)

    def test_notified_only_while_somebody_is_waited_for(self):
        program = self.serve()
        context = self.browser.new_context()
        self.addCleanup(context.close)
        context.grant_permissions(["notifications"], origin=f"http://{program.address}")
        # What the system would show is out of a headless browser's reach: its calls are recorded.
        context.add_init_script("""
            window.shown = [];
            window.Notification = class {
                static permission = "granted";
                static requestPermission = async () => (window.shown.push("asked"), "granted");
                constructor(title, {body}) { this.body = body; window.shown.push(`shown ${body}`); }
                close() { window.shown.push(`closed ${this.body}`); }
            };
            window.away = false;
            Object.defineProperty(document, "hidden", {get: () => window.away});
        """)
        page = self.open(program, context=context)

        def run():
            cell = program.cell(ECHO + "echo.run(text='x')\nNone")
            self.press(self.question(page), "Allow once")
            text_of(cell)
            self.none_waits(page)

        page.evaluate("window.away = true")
        run()
        self.assertEqual(page.evaluate("window.shown"), [])  # nobody asked for it
        page.get_by_role("button", name="Notify me").click()
        expect(page.get_by_role("button", name="Notify me")).to_have_attribute("aria-pressed", "true")
        run()
        self.assertEqual(page.evaluate("window.shown"), ["asked", f"shown {TOOL} waits for an answer", f"closed {TOOL} waits for an answer"])
        page.evaluate("window.away = false")
        run()
        self.assertEqual(len(page.evaluate("window.shown")), 3)


if __name__ == "__main__":
    unittest.main()
